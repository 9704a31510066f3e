//! A host with workloads and an outside, each in its own network namespace, with sockets that inject packets
//! and receive them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};
use tortie_engine::policy::Packet;
use tortie_engine::policy::path::Place;

use super::packets::{self, Layer};
use crate::common::concurrency::uninterrupted;
use crate::common::netns::{in_netns_kept, ip};

/// Interfaces of the host: workloads 1 to 3, one without endpoint, and the outside.
pub(crate) const INTERFACES: [&str; 5] = ["cali1", "cali2", "cali3", "cali9", "eth0"];
/// Networks routed to each interface. The outside also has the default route.
pub(crate) const NETS: [(&str, &[&str]); 5] = [
    ("cali1", &["10.65.0.1/32", "fd00:65::1/128"]),
    ("cali2", &["10.65.0.2/32", "10.65.0.22/32", "fd00:65::2/128"]),
    ("cali3", &["10.65.0.3/32", "10.65.3.0/28", "fd00:65::3/128", "fd00:65:3::/112"]),
    ("cali9", &["10.65.0.9/32", "fd00:65::9/128"]),
    ("eth0", &["192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/64", "2001:db8:f::/64"]),
];
pub(crate) const HOST: [&str; 2] = ["192.0.2.1", "2001:db8::1"];

/// Protocols received on the host.
const RECEIVED: [(bool, &[u8]); 2] =
    [(true, &[1, 4, 6, 17, 47, 89, 132, 136]), (false, &[6, 17, 47, 58, 89, 132, 136])];

/// Sockets of one namespace.
struct Side {
    sends: [Socket; 2],
    receives: Vec<(Socket, Layer)>,
}

/// A received packet: its number, and its addresses if the socket reports them.
pub(crate) type Received = (u32, Option<(IpAddr, IpAddr)>);

/// Received packets by number and place.
pub(crate) type Arrivals = BTreeMap<u32, BTreeMap<Place, Option<(IpAddr, IpAddr)>>>;

pub(crate) struct Net {
    sides: BTreeMap<Place, Side>,
}

fn raw(v4: bool, protocol: u8) -> Socket {
    let domain = if v4 { Domain::IPV4 } else { Domain::IPV6 };
    let socket = Socket::new(domain, Type::RAW, Some(Protocol::from(i32::from(protocol)))).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

fn sends() -> [Socket; 2] {
    // Raw sockets for any protocol: the header is ours.
    [raw(true, 255), raw(false, 255)]
}

/// Creates a namespace behind `interface`, with a default route and sockets that receive everything.
fn far(interface: &str, index: usize) -> Side {
    let (sender, sides) = channel();
    let moved = format!("far{index}");
    ip(&format!("link add {interface} address 02:00:00:00:02:0{index} type veth peer name {moved}"));
    let (start, path) = in_netns_kept(move || {
        for line in [
            // Packets to 127.0.0.0/8 leave too.
            "route flush table local 127.0.0.0/8".to_owned(),
            "route flush table local 127.0.0.1".to_owned(),
            format!("link set {moved} name eth0"),
            format!("link set eth0 address 02:00:00:00:01:0{index} up"),
            "route add default dev eth0 scope link".to_owned(),
            "-6 route add default dev eth0".to_owned(),
        ] {
            ip(&line);
        }
        // All neighbours on the way out resolve to one address.
        for addr in ["192.0.2.1", "2001:db8::1"]
            .into_iter()
            .chain(NETS.iter().flat_map(|(_, nets)| nets.iter().copied()))
        {
            let addr = addr.split('/').next().unwrap();
            ip(&format!("neighbour replace {addr} lladdr 02:00:00:00:02:0{index} nud permanent dev eth0"));
        }
        for addr in super::generate::ADDRESSES {
            ip(&format!("neighbour replace {addr} lladdr 02:00:00:00:02:0{index} nud permanent dev eth0"));
        }
        // A socket of one protocol receives incoming packets but not outgoing ones (ETH_P_IP, ETH_P_IPV6).
        let receives = [0x0800u16, 0x86dd].map(|ethertype| {
            let protocol = Protocol::from(i32::from(ethertype.to_be()));
            let socket = Socket::new(Domain::PACKET, Type::RAW, Some(protocol)).unwrap();
            socket.set_nonblocking(true).unwrap();
            rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 32 << 20).unwrap();
            (socket, Layer::Frame)
        });
        sender.send(Side { sends: sends(), receives: receives.into() }).unwrap();
    });
    ip(&format!("link set far{index} netns {path}"));
    ip(&format!("link set {interface} up"));
    start.send(()).unwrap();
    sides.recv_timeout(Duration::from_secs(10)).unwrap()
}

impl Net {
    pub(crate) fn make() -> Self {
        for (file, value) in [
            ("ipv4/ip_forward", "1"),
            ("ipv4/conf/all/rp_filter", "0"),
            ("ipv4/conf/default/rp_filter", "0"),
            ("ipv4/conf/all/send_redirects", "0"),
            ("ipv4/conf/default/send_redirects", "0"),
            // As the agent sets it on workload interfaces.
            ("ipv4/conf/default/route_localnet", "1"),
            ("ipv6/conf/all/forwarding", "1"),
            ("ipv6/icmp/echo_ignore_all", "1"),
            ("ipv6/conf/all/accept_dad", "0"),
            ("ipv6/conf/default/accept_dad", "0"),
        ] {
            std::fs::write(format!("/proc/sys/net/{file}"), value).unwrap();
        }
        let mut sides = BTreeMap::new();
        for (index, interface) in INTERFACES.iter().enumerate() {
            sides.insert(Place::Interface((*interface).into()), far(interface, index + 1));
        }
        ip("link set lo up");
        ip("address add 192.0.2.1/24 dev eth0");
        ip("address add 2001:db8::1/64 dev eth0 nodad");
        for (index, (interface, nets)) in NETS.iter().enumerate() {
            for net in *nets {
                if *interface != "eth0" {
                    ip(&format!("route add {net} dev {interface}"));
                }
            }
            for addr in
                super::generate::ADDRESSES.into_iter().filter(|addr| *addr != super::generate::LOOPBACK)
            {
                ip(&format!(
                    "neighbour replace {addr} lladdr 02:00:00:00:01:0{} nud permanent dev {interface}",
                    index + 1
                ));
            }
        }
        for net in ["198.51.100.0/24", "203.0.113.0/24", "2001:db8:f::/64"] {
            ip(&format!("route add {net} dev eth0"));
        }
        let received = |v4: bool, protocol: u8| {
            (raw(v4, protocol), if v4 { Layer::Packet } else { Layer::Payload(protocol) })
        };
        let receives =
            RECEIVED.iter().flat_map(|(v4, protocols)| protocols.iter().map(|p| received(*v4, *p))).collect();
        sides.insert(Place::Host, Side { sends: sends(), receives });
        Self { sides }
    }

    /// Makes connection tracking accept wrong checksums. The sysctl exists once the first rule uses
    /// connection tracking.
    pub(crate) fn believe_checksums() {
        std::fs::write("/proc/sys/net/netfilter/nf_conntrack_checksum", "0").unwrap();
    }

    /// Injects a packet at a place.
    pub(crate) fn send(&self, from: &Place, packet: &Packet, number: u32) {
        let Some(side) = self.sides.get(from) else { panic!("nobody is at {from:?}") };
        let bytes = packets::bytes(packet, number);
        let to = SocketAddr::new(packet.dst, 0);
        let sent = side.sends[usize::from(packet.dst.is_ipv6())].send_to(&bytes, &to.into());
        match sent {
            Ok(_) => {}
            // For the host's own packets, the kernel reports drops.
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {}
            Err(error) => panic!("{packet:?} from {from:?}: {error}"),
        }
    }

    /// Reads all received packets, with their place.
    pub(crate) fn receive_all(&self, mut each: impl FnMut(&Place, Received)) {
        let mut buffer = [0; 2048];
        for (place, side) in &self.sides {
            for (socket, layer) in &side.receives {
                let mut socket = socket;
                while let Ok(len) = uninterrupted(|| socket.read(&mut buffer)) {
                    if let Some(received) = packets::read(&buffer[..len], *layer) {
                        each(place, received);
                    }
                }
            }
        }
    }

    /// Adds received packets to `seen`, until all `wanted` arrived and so much longer, for packets that
    /// should not have. Ends in any case after a time that no machine needs.
    pub(crate) fn arrivals(
        &self,
        seen: &mut Arrivals,
        sent: &BTreeSet<u32>,
        wanted: usize,
        longer: Duration,
    ) {
        let mut until = Instant::now() + Duration::from_secs(20);
        let mut complete = false;
        while Instant::now() < until {
            self.receive_all(|place, (number, ends)| {
                if sent.contains(&number) {
                    seen.entry(number).or_default().insert(place.clone(), ends);
                }
            });
            if !complete && seen.len() >= wanted {
                complete = true;
                until = Instant::now() + longer;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Deletes all connections, so that translations start afresh.
    pub(crate) fn forget_connections() {
        let netlink = Socket::new(Domain::from(16), Type::RAW, Some(Protocol::from(12))).unwrap();
        netlink.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        // IPCTNL_MSG_CT_DELETE without a tuple; NLM_F_REQUEST, NLM_F_ACK; any family.
        let mut request = Vec::new();
        request.extend(20u32.to_ne_bytes());
        request.extend(0x0102u16.to_ne_bytes());
        request.extend(5u16.to_ne_bytes());
        request.extend([0; 12]);
        netlink.send(&request).unwrap();
        let mut answer = [0; 256];
        let len = uninterrupted(|| (&netlink).read(&mut answer)).unwrap();
        assert!(len >= 20 && answer[16..20] == [0; 4], "connections stay: {:?}", &answer[..len]);
    }
}
