//! Container networking with the real kernel; each test has one network namespace as the host, and further
//! ones as containers.

mod mapped;
mod sctp;
mod several;
mod store;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::common::concurrency::{self, uninterrupted};
use crate::common::containers::*;
use crate::common::netns::{in_netns, ip, try_ip, veth};
use tortie_config::resource::{InterfaceName, MacAddr};
use tortie_kernel::container::{self, *};

fn name(text: &str) -> InterfaceName {
    text.parse().unwrap()
}

fn addrs(list: &[&str]) -> Vec<IpAddr> {
    list.iter().map(|a| a.parse().unwrap()).collect()
}

/// Attaches a container as the plugins do.
fn attach_container(pod: &Pod, host: &str, list: &[&str]) -> (HostSide, MacAddr) {
    attach_interface(pod, host, "eth0", Some(1440), list)
}

/// The same with another interface.
fn attach_interface(
    pod: &Pod,
    host: &str,
    inside: &str,
    mtu: Option<u32>,
    list: &[&str],
) -> (HostSide, MacAddr) {
    let (host, inside, addrs) = (name(host), name(inside), addrs(list));
    let namespace = pod.open();
    let spec = VethSpec {
        host: &host,
        host_mac: Some(HOST_MAC),
        peer: &inside,
        peer_mac: None,
        namespace: Some(&namespace),
        mtu,
        alias: "tortie test",
    };
    container::create_veth(&spec).unwrap();
    let side = container::host_side(&HostSpec { name: &host, addrs: &addrs, mtu: None }).unwrap();
    let spec = InsideSpec {
        existing: &inside,
        name: &inside,
        mac: None,
        mtu: None,
        addrs: &addrs,
        host_mac: side.mac,
        link_local: side.link_local,
        routes: None,
    };
    let (mac, _) = container::configure_container(&namespace, &spec).unwrap();
    container::host_routes(&host, &addrs).unwrap();
    (side, mac)
}

/// Removes the records of port mappings that an earlier test left: Linux reuses the number of its namespace, and
/// its interface had the same index and name.
fn remove_earlier_records() {
    let number = std::fs::metadata("/proc/thread-self/ns/net").unwrap().ino();
    let prefix = format!("{number}-");
    for record in std::fs::read_dir(container::PORTS_FOLDER).into_iter().flatten().flatten() {
        if record.file_name().to_string_lossy().starts_with(&prefix) {
            std::fs::remove_file(record.path()).unwrap();
        }
    }
}

/// Enables IP forwarding, as the agent does.
fn enable_forwarding() {
    for path in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
        std::fs::write(Path::new("/proc/sys/net").join(path), "1").unwrap();
    }
}

#[test]
fn a_container_reaches_the_host_and_its_neighbour_at_once_with_both_families() {
    in_netns(|| {
        enable_forwarding();
        let (a, b) = (Pod::new(), Pod::new());
        let (side, mac) = attach_container(&a, "calia", &["10.65.0.2", "2001:db8:65::2"]);
        // Duplicate address detection takes a second or two, after which a wait would not be seen.
        let all = a.ip("-6 addr show dev eth0 scope global") + &ip("-6 addr show dev calia scope link");
        assert!(all.contains("2001:db8:65::2") && all.contains("fe80::"), "{all}");
        assert!(!all.contains("tentative"), "{all}");
        attach_container(&b, "calib", &["10.65.0.3", "2001:db8:65::3"]);
        b.serve_source_address(7000);
        // No wait for duplicate address detection, and no answer to ARP for the gateway: there is no agent.
        for (kind, to, from) in [
            (Kind::Tcp, "10.65.0.3:7000", "10.65.0.2"),
            (Kind::Tcp, "[2001:db8:65::3]:7000", "2001:db8:65::2"),
            (Kind::Udp, "10.65.0.3:7000", "10.65.0.2"),
        ] {
            assert_eq!(a.source_seen_by(kind, to), Ok(from.parse().unwrap()), "{to}");
        }
        assert_eq!((side.mac, side.mtu), (HOST_MAC, 1440));
        assert_eq!(side.link_local, Some("fe80::ecee:eeff:feee:eeee".parse().unwrap()));
        let inside = container::inspect_container(&a.open(), &name("eth0")).unwrap().unwrap();
        assert_eq!((inside.up, inside.mac, inside.mtu), (true, Some(mac), 1440));
        assert_eq!(
            inside.addrs,
            [("10.65.0.2".parse().unwrap(), 32), ("2001:db8:65::2".parse().unwrap(), 128)]
        );
        assert_eq!(
            a.ip("route").trim(),
            "default via 169.254.1.1 dev eth0 onlink \n169.254.1.1 dev eth0 scope link"
        );
        assert!(a.ip("-6 route show default").starts_with("default via fe80::ecee:eeff:feee:eeee dev eth0"));
        assert_eq!(ip("route show 10.65.0.2").trim(), "10.65.0.2 dev calia scope link");
        assert!(ip("-6 route show 2001:db8:65::2").starts_with("2001:db8:65::2 dev calia metric 1024"));
        assert!(ip("link show calia").contains("ee:ee:ee:ee:ee:ee"));
        let outside =
            container::inspect_host_side(&name("calia"), &addrs(&["10.65.0.2", "2001:db8:65::2"])).unwrap();
        let outside = outside.unwrap();
        assert_eq!(
            (outside.misplaced_routes.len(), outside.wrong_sysctls, outside.kind.as_str()),
            (0, 0, "veth")
        );
        assert_eq!(container::orphans("tortie test").unwrap().len(), 2);
        assert!(container::remove_link(&name("calia")).unwrap());
        assert!(!container::remove_link(&name("calia")).unwrap());
        assert!(container::inspect_container(&a.open(), &name("eth0")).unwrap().is_none());
    });
}

#[test]
fn a_path_that_is_no_containers_namespace_is_named_and_nothing_is_made() {
    in_netns(|| {
        let own =
            format!("/proc/{}/task/{}/ns/net", std::process::id(), rustix::thread::gettid().as_raw_nonzero());
        let file = tempfile::NamedTempFile::new().unwrap();
        for (path, wanted) in [
            ("/proc/4194305/ns/net", "does not exist"),
            ("/run/netns/nobody/x", "does not exist"),
            ("/proc/self/ns/mnt", "another kind"),
            (file.path().to_str().unwrap(), "ordinary file"),
            ("/proc/thread-self/ns/net", "host's own"),
            (own.as_str(), "host's own"),
        ] {
            let error = Namespace::open(Path::new(path)).unwrap_err().to_string();
            assert!(error.contains(wanted) && error.contains(path), "{path}: {error}");
        }
    });
}

#[test]
fn an_address_that_leads_elsewhere_and_a_name_that_is_taken_are_refused() {
    in_netns(|| {
        let (a, b) = (Pod::new(), Pod::new());
        attach_container(&a, "calia", &["10.65.0.2"]);
        ip("link add calib type veth peer name pb");
        ip("link set calib up");
        let error = container::host_routes(&name("calib"), &addrs(&["10.65.0.2"])).unwrap_err().to_string();
        assert!(error.contains("10.65.0.2") && error.contains("calia"), "{error}");
        // A repeated call of the plugin succeeds.
        container::host_routes(&name("calia"), &addrs(&["10.65.0.2"])).unwrap();
        ip("route add blackhole 10.65.0.9/32");
        let error = container::host_routes(&name("calib"), &addrs(&["10.65.0.9"])).unwrap_err().to_string();
        assert!(error.contains("blackhole"), "{error}");
        let namespace = a.open();
        let mut spec = VethSpec {
            host: &name("calic"),
            host_mac: None,
            peer: &name("eth0"),
            peer_mac: None,
            namespace: Some(&namespace),
            mtu: None,
            alias: "",
        };
        let error = container::create_veth(&spec).unwrap_err().to_string();
        assert_eq!(error, "interface eth0 exists already in the container");
        let (taken, other) = (name("calia"), b.open());
        (spec.host, spec.namespace) = (&taken, Some(&other));
        let error = container::create_veth(&spec).unwrap_err().to_string();
        assert_eq!(error, "interface calia exists already on this host");
        let small = HostSpec { name: &name("calia"), addrs: &addrs(&["2001:db8::1"]), mtu: Some(1279) };
        assert!(container::host_side(&small).unwrap_err().to_string().contains("1280"));
    });
}

/// Returns the source address of a datagram from a socket bound to this device, as the server at `to` sees
/// it.
fn source_of_device(device: &str, to: &str) -> String {
    let to: SocketAddr = to.parse().unwrap();
    let socket = socket2::Socket::new(socket2::Domain::for_address(to), socket2::Type::DGRAM, None).unwrap();
    socket.bind_device(Some(device.as_bytes())).unwrap();
    let socket = UdpSocket::from(socket);
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket.connect(to).unwrap();
    socket.send(b"?").unwrap();
    let mut octets = [0; 64];
    let len = uninterrupted(|| socket.recv(&mut octets)).expect("it is answered");
    String::from_utf8_lossy(&octets[..len]).into_owned()
}

#[test]
fn a_second_interface_keeps_the_first_ones_way_out() {
    in_netns(|| {
        enable_forwarding();
        let pod = Pod::new();
        attach_container(&pod, "calia", &["10.65.0.2", "2001:db8:65::2"]);
        let (host, eth1, list) = (name("calib"), name("eth1"), addrs(&["10.65.0.3", "2001:db8:65::3"]));
        let namespace = pod.open();
        let spec = VethSpec {
            host: &host,
            host_mac: Some(HOST_MAC),
            peer: &eth1,
            peer_mac: Some("02:00:00:00:00:07".parse().unwrap()),
            namespace: Some(&namespace),
            mtu: None,
            alias: "",
        };
        container::create_veth(&spec).unwrap();
        let side = container::host_side(&HostSpec { name: &host, addrs: &list, mtu: None }).unwrap();
        let inside = InsideSpec {
            existing: &eth1,
            name: &eth1,
            mac: None,
            mtu: None,
            addrs: &list,
            host_mac: side.mac,
            link_local: side.link_local,
            routes: None,
        };
        let (mac, _) = container::configure_container(&namespace, &inside).unwrap();
        assert_eq!(mac.to_string(), "02:00:00:00:00:07");
        let routes = pod.ip("route show default");
        assert!(
            routes.starts_with("default via 169.254.1.1 dev eth0") && routes.contains("dev eth1"),
            "{routes}"
        );
        assert!(pod.ip("route get 198.51.100.1").contains("dev eth0"));
        assert!(pod.ip("-6 route get 2001:db8:9::1").contains("dev eth0"));

        // The same with packets. Outgoing connections leave by the first interface, with its address.
        container::host_routes(&host, &list).unwrap();
        let far = Pod::new();
        attach_container(&far, "calic", &["10.65.0.9", "2001:db8:65::9"]);
        far.serve_source_address(7000);
        let count = |device: &str, way: &str| -> u64 {
            let file = format!("/sys/class/net/{device}/statistics/{way}_packets");
            ip(&format!("netns exec {} cat {file}", pod.name)).trim().parse().unwrap()
        };
        for (kind, to, from) in [
            (Kind::Tcp, "10.65.0.9:7000", "10.65.0.2"),
            (Kind::Udp, "10.65.0.9:7000", "10.65.0.2"),
            (Kind::Tcp, "[2001:db8:65::9]:7000", "2001:db8:65::2"),
            (Kind::Udp, "[2001:db8:65::9]:7000", "2001:db8:65::2"),
        ] {
            let before = (count("eth0", "tx"), count("eth1", "tx"));
            for _ in 0..10 {
                assert_eq!(pod.source_seen_by(kind, to), Ok(from.parse().unwrap()), "{to}");
            }
            let (first, second) = (count("eth0", "tx") - before.0, count("eth1", "tx") - before.1);
            // IPv6 sends some packets on each new link by itself: fewer than one for each of these.
            assert!(first >= 10 && second < 10, "{kind:?} {to}: {first} left by eth0, {second} by eth1");
        }
        // A socket bound to the second interface has its address, and receives answers there.
        for (to, from) in [("10.65.0.9:7000", "10.65.0.3"), ("[2001:db8:65::9]:7000", "2001:db8:65::3")] {
            let before = (count("eth0", "tx"), count("eth1", "tx"), count("eth1", "rx"));
            for _ in 0..10 {
                assert_eq!(pod.open().run(|| source_of_device("eth1", to)).unwrap(), from, "{to}");
            }
            let first = count("eth0", "tx") - before.0;
            let (sent, came) = (count("eth1", "tx") - before.1, count("eth1", "rx") - before.2);
            assert!(
                sent >= 10 && came >= 10 && first < 10,
                "{to}: {sent} left, {came} came; {first} by eth0"
            );
        }
    });
}

#[test]
fn a_veth_of_a_bridge_and_a_tap_are_taken_and_given_back() {
    in_netns(|| {
        enable_forwarding();
        let pod = Pod::new();
        ip("link add br0 type bridge");
        ip("link set br0 up");
        ip(&format!("link add veth7 type veth peer name c7 netns {}", pod.name));
        ip("link set veth7 master br0");
        ip("link set veth7 up");
        pod.ip("link set c7 up");
        let namespace = pod.open();
        let (was, cali, eth0, list) =
            (name("veth7"), name("calix"), name("eth0"), addrs(&["10.65.0.2", "2001:db8::2"]));
        let adopted = container::take_link(&was, &cali, "tortie mine").unwrap();
        let side = container::host_side(&HostSpec { name: &cali, addrs: &list, mtu: Some(1400) }).unwrap();
        let inside = InsideSpec {
            existing: &name("c7"),
            name: &eth0,
            mac: Some("02:00:00:00:00:09".parse().unwrap()),
            mtu: Some(1400),
            addrs: &list,
            host_mac: side.mac,
            link_local: side.link_local,
            routes: None,
        };
        let before = pod.ip("-o link show c7");
        let (_, stripped) = container::configure_container(&namespace, &inside).unwrap();
        container::host_routes(&cali, &list).unwrap();
        serve_source_address(7001);
        for to in ["169.254.1.1:7001", "[2001:db8:ffff::1]:7001"] {
            if to.starts_with('1') {
                ip("addr add 169.254.1.1/32 dev lo");
            } else {
                ip("addr add 2001:db8:ffff::1/128 dev lo nodad");
            }
            // On a loaded machine, the bridge end of the pair may delay the first IPv6 neighbour
            // solicitations.
            let tries = std::iter::repeat_with(|| pod.source_seen_by(Kind::Tcp, to)).take(3);
            assert!(tries.into_iter().any(|seen| seen.is_ok()), "{to} does not answer");
        }
        assert!(!ip("-o link show calix").contains("master"));
        stripped.undo().unwrap();
        container::restore_link(&adopted).unwrap();
        assert_eq!(pod.ip("-o link show c7"), before);
        assert_eq!(pod.ip("-o addr show dev c7 scope global"), "");
        assert_eq!(pod.ip("route"), "");
        let again = ip("-o link show veth7");
        assert!(
            again.contains("master br0") && again.contains("mtu 1500") && again.contains(",UP"),
            "{again}"
        );
        assert_eq!(container::orphans("tortie").unwrap(), []);
        // A tap has no other end to configure.
        ip("tuntap add tap7 mode tap");
        let adopted = container::take_link(&name("tap7"), &name("calit"), "tortie tap").unwrap();
        let list = addrs(&["10.65.0.4", "2001:db8::4"]);
        let side = container::host_side(&HostSpec { name: &name("calit"), addrs: &list, mtu: None }).unwrap();
        assert!(side.link_local.is_some());
        container::host_routes(&name("calit"), &list).unwrap();
        container::restore_link(&adopted).unwrap();
        assert!(try_ip("link show tap7").0 && !try_ip("link show calit").0);
        assert!(matches!(
            container::take_link(&name("nobody"), &name("calin"), "").unwrap_err(),
            ContainerNetError::Missing { .. }
        ));
    });
}

fn mapping(host_ip: Option<&str>, host_port: u16, protocol: Transport) -> PortMapping {
    PortMapping { host_ip: host_ip.map(|ip| ip.parse().unwrap()), host_port, container_port: 7000, protocol }
}

#[test]
fn ports_of_the_host_lead_to_the_container_from_everywhere() {
    in_netns(|| {
        enable_forwarding();
        let (a, b, far) = (Pod::new(), Pod::new(), Pod::new());
        attach_container(&a, "calia", &["10.65.0.2", "2001:db8:65::2"]);
        attach_container(&b, "calib", &["10.65.0.3", "2001:db8:65::3"]);
        // Another host without a route to the containers.
        veth("eth0", "far0", &["192.0.2.1/24", "198.51.100.1/32", "2001:db8:1::1/64"]);
        ip(&format!("link set far0 netns {}", far.name));
        for words in
            ["addr add 192.0.2.9/24 dev far0", "addr add 2001:db8:1::9/64 dev far0 nodad", "link set far0 up"]
        {
            far.ip(words);
        }
        far.ip("route add 198.51.100.1 via 192.0.2.1");
        a.serve_source_address(7000);
        let list = addrs(&["10.65.0.2", "2001:db8:65::2"]);
        let table = container::ports_table(PORTS_PREFIX, "net1 a eth0");
        let mappings = [
            mapping(None, 8080, Transport::Tcp),
            mapping(None, 8080, Transport::Udp),
            mapping(None, 8080, Transport::Sctp),
            mapping(Some("198.51.100.1"), 8081, Transport::Tcp),
            mapping(Some("0.0.0.0"), 8082, Transport::Tcp),
        ];
        container::map_ports(&table, &list, &mappings).unwrap();
        let who = |text: &str| Ok(text.parse::<IpAddr>().unwrap());
        let (v4, v6) = ("192.0.2.1:8080", "[2001:db8:1::1]:8080");
        // The original source address is preserved, because policy of the container depends on it.
        for kind in [Kind::Tcp, Kind::Udp] {
            assert_eq!(far.source_seen_by(kind, v4), who("192.0.2.9"), "{kind:?}");
            assert_eq!(far.source_seen_by(kind, v6), who("2001:db8:1::9"), "{kind:?}");
            assert_eq!(b.source_seen_by(kind, v4), who("10.65.0.3"), "{kind:?}");
            assert_eq!(b.source_seen_by(kind, v6), who("2001:db8:65::3"), "{kind:?}");
            // To itself through the host, and from the host itself.
            for to in [v4, v6] {
                a.source_seen_by(kind, to).unwrap();
                source_seen_by(kind, to).unwrap();
            }
            source_seen_by(kind, "127.0.0.1:8080").unwrap();
        }
        assert_eq!(far.source_seen_by(Kind::Tcp, "198.51.100.1:8081"), who("192.0.2.9"));
        assert!(far.source_seen_by(Kind::Tcp, "192.0.2.1:8081").is_err(), "another address of the host");
        far.source_seen_by(Kind::Tcp, "192.0.2.1:8082").unwrap();
        assert!(far.source_seen_by(Kind::Tcp, "[2001:db8:1::1]:8082").is_err(), "0.0.0.0 is IPv4's");
        assert!(far.source_seen_by(Kind::Tcp, "192.0.2.1:8083").is_err());
        // A port of another host on the path is not redirected: only addresses of this host count.
        far.serve_source_address(8080);
        far.ip("route add 10.65.0.0/16 via 192.0.2.1");
        assert_eq!(a.source_seen_by(Kind::Tcp, "192.0.2.9:8080"), who("10.65.0.2"));
        assert_eq!(container::mapped_tables("tortie-ports").unwrap(), [table.as_str()]);
        // A repeated call replaces the mappings; tables of others stay.
        container::map_ports(&table, &list, &mappings[..1]).unwrap();
        assert!(far.source_seen_by(Kind::Tcp, "192.0.2.1:8082").is_err());
        container::map_ports(
            "tortie-ports-other",
            &addrs(&["10.65.0.3"]),
            &[mapping(None, 9090, Transport::Tcp)],
        )
        .unwrap();
        container::unmap_ports(&table).unwrap();
        container::unmap_ports(&table).unwrap();
        assert!(far.source_seen_by(Kind::Tcp, v4).is_err());
        assert_eq!(container::mapped_tables("tortie-ports").unwrap(), ["tortie-ports-other"]);
    });
}

/// The kernel applies the decision on the first datagram to a client that never stops sending.
#[test]
fn datagrams_to_a_port_that_led_nowhere_come_to_the_container_once_it_is_mapped() {
    in_netns(|| {
        enable_forwarding();
        let (a, far) = (Pod::new(), Pod::new());
        attach_container(&a, "calia", &["10.65.0.2", "2001:db8:65::2"]);
        attach_container(&far, "calib", &["10.65.0.3", "2001:db8:65::3"]);
        ip("addr add 192.0.2.1/32 dev lo");
        ip("addr add 2001:db8:1::1/128 dev lo");
        a.serve_source_address(7000);
        let list = addrs(&["10.65.0.2", "2001:db8:65::2"]);
        // Connection tracking is active while rules require it.
        container::map_ports("tortie-ports-other", &list, &[mapping(None, 9090, Transport::Tcp)]).unwrap();
        let open = |any: &str, to: &str| {
            let socket = far.open().run(|| UdpSocket::bind(any).unwrap()).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            let to: SocketAddr = to.parse().unwrap();
            socket.send_to(b"?", to).unwrap();
            (socket, to)
        };
        let clients = [open("0.0.0.0:0", "192.0.2.1:8080"), open("[::]:0", "[2001:db8:1::1]:8080")];
        let passing = open("0.0.0.0:0", "10.65.0.2:8080");
        let other = open("0.0.0.0:0", "192.0.2.1:8081");
        let to_ports = || {
            let all = tortie_kernel::connections().unwrap();
            let mut to: Vec<_> =
                all.iter().filter(|c| c.protocol == 17).map(|c| (c.dst, c.ports.unwrap().1)).collect();
            to.sort_unstable();
            to
        };
        let target = |to: SocketAddr| (to.ip(), to.port());
        let mut before: Vec<_> =
            clients.iter().chain([&passing, &other]).map(|(_, to)| target(*to)).collect();
        before.sort_unstable();
        assert_eq!(to_ports(), before);
        let table = container::ports_table(PORTS_PREFIX, "net1 a eth0");
        container::map_ports(&table, &list, &[mapping(None, 8080, Transport::Udp)]).unwrap();
        assert_eq!(to_ports(), [target(passing.1), target(other.1)], "others' stay");
        for (socket, to) in &clients {
            socket.send_to(b"?", to).unwrap();
            let mut octets = [0; 64];
            let (_, from) = uninterrupted(|| socket.recv_from(&mut octets)).unwrap();
            assert_eq!(from, *to);
        }
    });
}

/// The kernel need not support SCTP: it only translates the packets.
#[test]
fn an_association_of_sctp_is_led_to_the_container_and_back() {
    in_netns(|| {
        enable_forwarding();
        let (a, far) = (Pod::new(), Pod::new());
        attach_container(&a, "calia", &["10.65.0.2"]);
        attach_container(&far, "calib", &["10.65.0.3"]);
        ip("addr add 192.0.2.1/32 dev lo");
        let table = container::ports_table(PORTS_PREFIX, "net1 a eth0");
        container::map_ports(&table, &addrs(&["10.65.0.2"]), &[mapping(None, 8080, Transport::Sctp)])
            .unwrap();
        let (server, client) = (a.open().run(sctp::open).unwrap(), far.open().run(sctp::open).unwrap());
        let init = sctp::Packet { ports: (40_000, 8080), tag: 0, chunk: sctp::INIT };
        sctp::send(&client, "192.0.2.1", &init);
        let (from, came) = sctp::receive(&server);
        assert_eq!(
            (from, came),
            ("10.65.0.3".parse().unwrap(), sctp::Packet { ports: (40_000, 7000), ..init })
        );
        let answer = sctp::Packet { ports: (7000, 40_000), tag: sctp::INITIATE_TAG, chunk: sctp::INIT_ACK };
        sctp::send(&server, "10.65.0.3", &answer);
        let (from, came) = sctp::receive(&client);
        assert_eq!(
            (from, came),
            ("192.0.2.1".parse().unwrap(), sctp::Packet { ports: (8080, 40_000), ..answer })
        );
    });
}

#[test]
fn bandwidth_is_what_was_asked_for_within_a_fifth_in_both_directions() {
    in_netns(|| {
        enable_forwarding();
        let pod = Pod::new();
        attach_container(&pod, "calia", &["10.65.0.2"]);
        ip("addr add 192.0.2.1/32 dev lo");
        let _group = concurrency::KERNEL_THREADS.join();
        let host = open_own_namespace();
        let (to, from) = (8_000_000u64, 4_000_000u64);
        let limits = Bandwidth {
            ingress: Some(Rate { bits: to, burst: Some(160_000) }),
            egress: Some(Rate { bits: from, burst: None }),
        };
        container::limit(&name("calia"), &limits, Some((&pod.open(), &name("eth0")))).unwrap();
        assert_eq!(container::shaped(&name("calia")).unwrap(), (Some(1_000_000), Some(500_000)));
        let namespace = pod.open();
        // A busy machine sends less and reads the burst late, so the measurement is repeated.
        let measured =
            |from: &Namespace, into: &Namespace, addr: &str, ports: Range<u16>, wanted: &Range<f64>| {
                let mut rate = 0f64;
                for port in ports {
                    rate = octets_a_second(from, into, addr.parse().unwrap(), port);
                    if wanted.contains(&rate) {
                        break;
                    }
                }
                rate
            };
        // Headers count too: 52 of 1,492 octets.
        let (wanted_in, wanted_out) = (0.8e6..1.2e6, 0.4e6..0.6e6);
        let inward = measured(&host, &namespace, "10.65.0.2", 7100..7108, &wanted_in);
        let outward = measured(&namespace, &host, "192.0.2.1", 7200..7208, &wanted_out);
        println!("to the container {:.2} of 8 Mbit/s, from it {:.2} of 4", inward * 8e-6, outward * 8e-6);
        assert!(wanted_in.contains(&inward), "{inward}");
        assert!(wanted_out.contains(&outward), "{outward}");
        container::unlimit(&name("calia")).unwrap();
        container::unlimit(&name("calia")).unwrap();
        assert_eq!(container::shaped(&name("calia")).unwrap(), (None, None));
        assert_eq!(container::orphans("tortie limit").unwrap(), []);
    });
}

/// Opens the namespace of this thread from a thread in another namespace.
fn open_own_namespace() -> Namespace {
    let path =
        format!("/proc/{}/task/{}/ns/net", std::process::id(), rustix::thread::gettid().as_raw_nonzero());
    std::thread::scope(|scope| {
        let opened = scope.spawn(|| {
            let elsewhere = Pod::new();
            elsewhere.open().run(|| Namespace::open(Path::new(&path)).unwrap()).unwrap()
        });
        opened.join().unwrap()
    })
}

#[test]
fn rates_above_four_gbit_reach_the_kernel_whole_and_a_limit_goes_with_its_interface() {
    in_netns(|| {
        let pod = Pod::new();
        attach_container(&pod, "calia", &["10.65.0.2"]);
        let rate = Some(Rate { bits: 100_000_000_000, burst: Some(20_000_000_000) });
        let limits = Bandwidth { ingress: rate, egress: rate };
        container::limit(&name("calia"), &limits, None).unwrap();
        assert_eq!(container::shaped(&name("calia")).unwrap(), (Some(12_500_000_000), Some(12_500_000_000)));
        let shown = Command::new("tc").args(["qdisc", "show", "dev", "calia", "root"]).output();
        if let Ok(out) = shown {
            let text = String::from_utf8_lossy(&out.stdout).into_owned();
            assert!(text.contains("rate 100Gbit"), "{text}");
        }
        // The interface is removed before its limit.
        container::remove_link(&name("calia")).unwrap();
        assert_eq!(container::orphans("tortie limit").unwrap().len(), 1);
        container::unlimit(&name("calia")).unwrap();
        assert_eq!(container::orphans("tortie limit").unwrap(), []);
        let error = container::limit(&name("calia"), &limits, None).unwrap_err();
        assert!(matches!(error, ContainerNetError::Missing { .. }), "{error}");
    });
}
