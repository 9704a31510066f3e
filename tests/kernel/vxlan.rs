//! VXLAN devices, the entries for other hosts, and routes over them, with the real kernel.

use std::net::IpAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::kernel_thread::{Overlay, PATIENCE, Rig, cidr, eventually, fast};
use crate::common::netns::{in_netns, ip, try_ip, veth};
use tortie_engine::routing::{Encapsulation, RemoteRoute, VxlanDevice, VxlanIntent, VxlanRemote};

/// Limit for a repair.
const SECOND: Duration = Duration::from_secs(1);
const DEVICE: &str = "vxlan.calico";

fn addr(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn device() -> VxlanDevice {
    VxlanDevice {
        vni: 4096,
        port: 4789,
        local: addr("192.0.2.1"),
        mac: [0x66, 0, 0, 0, 0, 1],
        addr: Some(addr("10.65.0.1")),
        mtu: None,
    }
}

/// One host elsewhere, and one in this host's network.
fn overlay() -> Overlay {
    let remote = VxlanRemote { host: addr("198.51.100.2"), mac: [0x66, 0, 0, 0, 0, 2] };
    Overlay {
        vxlan: VxlanIntent {
            v4: Some(device()),
            remotes: [(addr("10.65.2.0"), remote)].into(),
            ..VxlanIntent::default()
        },
        routes: [
            (cidr("10.65.2.0/26"), RemoteRoute::Vxlan(addr("10.65.2.0"))),
            (cidr("10.65.3.0/26"), RemoteRoute::Direct(addr("192.0.2.3"), Encapsulation::Vxlan)),
            (cidr("10.65.0.9/32"), RemoteRoute::Vxlan(addr("10.65.2.0"))),
        ]
        .into(),
    }
}

fn bridge(words: &str) -> String {
    let out = Command::new("bridge").args(words.split_whitespace()).output().unwrap();
    assert!(out.status.success(), "bridge {words}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// Returns a difference from the state of [`overlay`].
fn wrong() -> Option<String> {
    let (there, link) = try_ip(&format!("-d link show {DEVICE}"));
    let device = [
        "mtu 1450",
        "vxlan id 4096 local 192.0.2.1 dev eth0",
        "dstport 4789",
        "nolearning",
        "66:00:00:00:00:01",
    ];
    if !there || !link.contains(",UP") || device.iter().any(|part| !link.contains(part)) {
        return Some(link);
    }
    let addresses = ip(&format!("-br -4 address show {DEVICE}"));
    let forwarding = bridge(&format!("fdb show dev {DEVICE}"));
    let neighbours = ip(&format!("neighbour show dev {DEVICE}"));
    let routes = ip("route show proto 179");
    let entries = routes.contains("10.65.2.0/26 ")
        && routes.contains("10.65.0.9 ")
        && routes.matches(&format!("via 10.65.2.0 dev {DEVICE} metric 1790 onlink")).count() == 2
        && routes.contains("via 192.0.2.3 dev eth0 metric 1790")
        && forwarding.lines().count() == 1
        && forwarding.starts_with("66:00:00:00:00:02 dst 198.51.100.2 self permanent")
        && neighbours.lines().count() == 1
        && neighbours.starts_with("10.65.2.0 lladdr 66:00:00:00:00:02 ")
        && neighbours.contains("PERMANENT")
        && addresses.split_whitespace().skip(2).eq(["10.65.0.1/32"]);
    (!entries).then(|| format!("{addresses}{forwarding}{neighbours}{routes}"))
}

fn is_right() -> bool {
    wrong().is_none()
}

/// Waits until everything is right. Returns the time that took.
fn until_right(what: &str) -> Duration {
    let begin = Instant::now();
    while let Some(difference) = wrong() {
        assert!(begin.elapsed() < PATIENCE, "{what}: {difference}");
        std::thread::sleep(Duration::from_millis(10));
    }
    begin.elapsed()
}

#[test]
fn the_device_its_entries_and_its_routes_follow_the_intent() {
    in_netns(|| {
        veth("eth0", "peer0", &["192.0.2.1/24"]);
        ip("route add default via 192.0.2.254");
        let mut rig = Rig::program();
        rig.overlay(&overlay());
        assert_eq!(wrong(), None);
        assert_eq!(rig.ask(|view| view.tunnel().map(str::to_owned)), None);
        let route = rig.ask(|view| view.route(&cidr("10.65.2.0/26")).and_then(|route| route.why));
        assert_eq!(route, Some("vxlan"));
        // Another host with the same end: entries are replaced.
        let mut moved = overlay();
        let remote = VxlanRemote { host: addr("198.51.100.7"), mac: [0x66, 0, 0, 0, 0, 2] };
        moved.vxlan.remotes.insert(addr("10.65.2.0"), remote);
        rig.overlay(&moved);
        assert!(bridge(&format!("fdb show dev {DEVICE}")).starts_with("66:00:00:00:00:02 dst 198.51.100.7 "));
        // No host is left; then VXLAN is not used at all.
        let alone = VxlanIntent { v4: Some(device()), ..VxlanIntent::default() };
        rig.overlay(&Overlay { vxlan: alone, ..Overlay::default() });
        assert_eq!(bridge(&format!("fdb show dev {DEVICE}")), "");
        assert_eq!(ip(&format!("neighbour show dev {DEVICE}")), "");
        assert_eq!(ip("route show proto 179"), "");
        rig.overlay(&Overlay::default());
        assert!(!try_ip(&format!("link show {DEVICE}")).0);
        rig.stop();
    });
}

#[test]
fn ipv6_has_a_device_of_its_own() {
    in_netns(|| {
        veth("eth0", "peer0", &["2001:db8::1/64"]);
        let mut rig = Rig::program();
        let v6 = VxlanDevice { local: addr("2001:db8::1"), addr: Some(addr("fd00:65::1")), ..device() };
        let remote = VxlanRemote { host: addr("2001:db8:9::2"), mac: [0x66, 0, 0, 0, 0, 2] };
        let remotes = [(addr("fd00:65:2::"), remote)].into();
        rig.overlay(&Overlay {
            vxlan: VxlanIntent { v6: Some(v6), remotes, ..VxlanIntent::default() },
            routes: [(cidr("fd00:65:2::/122"), RemoteRoute::Vxlan(addr("fd00:65:2::")))].into(),
        });
        let link = ip("-d link show vxlan-v6.calico");
        assert!(link.contains("mtu 1430") && link.contains("local 2001:db8::1 dev eth0"), "{link}");
        assert!(ip("-6 address show vxlan-v6.calico").contains("inet6 fd00:65::1/128 "));
        assert!(ip("-6 neighbour show dev vxlan-v6.calico").contains("fd00:65:2:: lladdr 66:00:00:00:00:02"));
        assert!(bridge("fdb show dev vxlan-v6.calico").contains("66:00:00:00:00:02 dst 2001:db8:9::2 "));
        let route = ip("-6 route show fd00:65:2::/122");
        assert!(route.contains("via fd00:65:2:: dev vxlan-v6.calico"), "{route}");
        assert!(!try_ip(&format!("link show {DEVICE}")).0, "no device of a family without VXLAN");
        rig.stop();
    });
}

#[test]
fn what_somebody_breaks_is_right_again_within_a_second() {
    in_netns(|| {
        veth("eth0", "peer0", &["192.0.2.1/24"]);
        let mut rig = Rig::program();
        rig.overlay(&overlay());
        assert_eq!(wrong(), None);
        let damages: [(&str, &dyn Fn()); 9] = [
            ("the device is deleted", &|| drop(ip(&format!("link delete {DEVICE}")))),
            ("a forwarding entry is deleted", &|| {
                drop(bridge(&format!("fdb delete 66:00:00:00:00:02 dev {DEVICE} dst 198.51.100.2")));
            }),
            ("a forwarding entry leads elsewhere", &|| {
                drop(bridge(&format!("fdb replace 66:00:00:00:00:02 dev {DEVICE} dst 198.51.100.66")));
            }),
            ("a forwarding entry is added", &|| {
                drop(bridge(&format!("fdb add 66:00:00:00:00:66 dev {DEVICE} dst 198.51.100.66")));
            }),
            ("a neighbour is deleted", &|| drop(ip(&format!("neighbour delete 10.65.2.0 dev {DEVICE}")))),
            ("a neighbour has another address", &|| {
                drop(ip(&format!("neighbour replace 10.65.2.0 lladdr 66:00:00:00:00:66 dev {DEVICE}")));
            }),
            ("the MTU is changed", &|| drop(ip(&format!("link set {DEVICE} mtu 1300")))),
            ("the device is set down", &|| drop(ip(&format!("link set {DEVICE} down")))),
            ("the address is exchanged", &|| {
                ip(&format!("address add 10.65.0.66/32 dev {DEVICE}"));
                ip(&format!("address delete 10.65.0.1/32 dev {DEVICE}"));
            }),
        ];
        for (what, damage) in damages {
            fast(what, SECOND, || {
                damage();
                until_right(what)
            });
        }
        assert!(rig.ask(|view| view.counters().external_changes) >= 4, "changed entries are counted");
        // The device follows its parent, and the store.
        ip("link set eth0 mtu 1400");
        eventually("the MTU of the parent", PATIENCE, || {
            ip(&format!("link show {DEVICE}")).contains("mtu 1350")
        });
        ip("link set eth0 mtu 1500");
        let other = VxlanDevice { vni: 7, addr: Some(addr("10.65.0.5")), mtu: Some(1400), ..device() };
        let mut with_other = overlay();
        with_other.vxlan.v4 = Some(other);
        rig.overlay(&with_other);
        let link = ip(&format!("-d link show {DEVICE}"));
        assert!(link.contains("vxlan id 7 ") && link.contains("mtu 1400"), "{link}");
        assert!(ip(&format!("-br address show {DEVICE}")).contains("10.65.0.5/32"));
        eventually("the routes", PATIENCE, || ip("route show proto 179").contains(&format!("dev {DEVICE}")));
        rig.stop();
    });
}

#[test]
fn a_device_of_another_program_is_left_alone_unless_it_fits() {
    in_netns(|| {
        veth("eth0", "peer0", &["192.0.2.1/24"]);
        // As Felix makes it.
        ip(&format!(
            "link add {DEVICE} address 66:00:00:00:00:01 type vxlan id 4096 dev eth0 local 192.0.2.1 dstport 4789 nolearning"
        ));
        let index = ip(&format!("-o link show {DEVICE}")).split(':').next().unwrap().to_owned();
        let mut rig = Rig::program();
        rig.overlay(&overlay());
        assert_eq!(wrong(), None);
        assert!(ip(&format!("-o link show {DEVICE}")).starts_with(&format!("{index}:")), "it is taken over");
        rig.overlay(&Overlay::default());
        assert!(!try_ip(&format!("link show {DEVICE}")).0, "what was taken over is Tortie's");
        for foreign in ["vxlan id 77 dev eth0 local 192.0.2.1 dstport 8472 nolearning", "bridge"] {
            ip(&format!("link add {DEVICE} type {foreign}"));
            let before = ip(&format!("link show {DEVICE}"));
            rig.overlay(&overlay());
            let problem = rig.ask(|view| view.tunnel().map(str::to_owned)).unwrap();
            assert!(problem.contains("belongs to another program"), "{problem}");
            assert_eq!(ip(&format!("link show {DEVICE}")), before);
            assert!(
                !ip("route show proto 179").contains(DEVICE),
                "no route over a device of another program"
            );
            rig.overlay(&Overlay::default());
            assert_eq!(ip(&format!("link show {DEVICE}")), before);
            ip(&format!("link delete {DEVICE}"));
        }
        // When it goes, the place is taken.
        ip(&format!("link add {DEVICE} type bridge"));
        rig.overlay(&overlay());
        assert!(!is_right());
        ip(&format!("link delete {DEVICE}"));
        until_right("the place is free");
        rig.stop();
    });
}

#[test]
fn a_restart_changes_nothing_that_is_right() {
    in_netns(|| {
        veth("eth0", "peer0", &["192.0.2.1/24"]);
        let mut rig = Rig::program();
        rig.overlay(&overlay());
        rig.stop();
        let state = || {
            ip(&format!("-d link show {DEVICE}"))
                + &ip("nexthop show")
                + &ip("route show")
                + &bridge(&format!("fdb show dev {DEVICE}"))
        };
        let before = state();
        let mut rig = Rig::program();
        rig.overlay(&overlay());
        rig.sweep();
        assert_eq!(wrong(), None);
        assert_eq!(state(), before);
        assert_eq!(rig.writes(), 0);
        rig.stop();
    });
}

/// Returns the VXLAN of a cluster with this number of other hosts, each with one block.
fn cluster(hosts: u32) -> Overlay {
    let mut overlay = Overlay::default();
    overlay.vxlan.v4 = Some(device());
    for n in 0..hosts {
        let [.., a, b, c] = (n + 2).to_be_bytes();
        let block = cidr("10.128.0.0/9").nth(u128::from(n) * 64).unwrap();
        let remote = VxlanRemote { host: [198, 18 + a, b, c].into(), mac: [0x66, 1, 0, a, b, c] };
        overlay.vxlan.remotes.insert(block, remote);
        overlay.routes.insert(tortie_net::Cidr::new(block, 26).unwrap(), RemoteRoute::Vxlan(block));
    }
    overlay
}

/// Measures the time until the kernel has everything, and until one more host is known.
#[test]
#[ignore = "long: measures, so it needs an idle machine"]
fn long_five_thousand_hosts_take_less_than_two_seconds() {
    in_netns(|| {
        veth("eth0", "peer0", &["192.0.2.1/24"]);
        let mut times = Vec::new();
        for hosts in [1_000, 5_000] {
            let mut rig = Rig::program();
            let (all, more) = (cluster(hosts), cluster(hosts + 1));
            let begin = Instant::now();
            rig.overlay(&all);
            let took = begin.elapsed();
            let count = |hosts: u32| {
                let hosts = usize::try_from(hosts).unwrap();
                assert_eq!(bridge(&format!("fdb show dev {DEVICE}")).lines().count(), hosts);
                assert_eq!(ip(&format!("neighbour show dev {DEVICE}")).lines().count(), hosts);
                assert_eq!(ip("route show proto 179").lines().count(), hosts);
            };
            count(hosts);
            let begin = Instant::now();
            rig.overlay(&more);
            let one = begin.elapsed();
            count(hosts + 1);
            println!("{hosts} hosts: {took:?}, one more: {one:?}");
            rig.overlay(&Overlay::default());
            rig.stop();
            times.push(took);
        }
        assert!(times[1] < Duration::from_secs(2), "{times:?}");
        assert!(times[1] < times[0] * 10, "five times the hosts: {times:?}");
    });
}
