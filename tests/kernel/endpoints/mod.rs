//! Workload endpoints with the real kernel: routes, neighbours, sysctls, connections. Workloads are
//! namespaces behind a veth, set up as by the Calico CNI plugin: address /32, gateway 169.254.1.1, host route
//! to the interface.

mod rig;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::common::kernel_thread::{PATIENCE, cidr, eventually, options};
use crate::common::netns::{in_netns, ip, veth};
use tortie_config::key::EndpointKey;
use tortie_engine::policy::{EndpointPolicy, Globals, HostPolicy, RulesetDelta, Stages};
use tortie_engine::routing::ChangeId;
use tortie_kernel::{EndpointCondition, KernelFact, Mode, PolicyChange, ToKernel};

use rig::*;

#[test]
fn a_workload_as_the_cni_plugin_makes_it_reaches_host_and_neighbour_with_both_families() {
    in_netns(|| {
        let (a, b) = (Pod::new("calia"), Pod::new("calib"));
        let mac = a.up("10.65.0.2", Some("fd00:65::2"));
        b.up("10.65.0.3", Some("fd00:65::3"));
        let mut endpoints_rig = EndpointRig::program();
        let mut one = workload("calia", &["10.65.0.2/32", "fd00:65::2/128"]);
        one.mac = Some(mac.parse().unwrap());
        let two = workload("calib", &["10.65.0.3/32", "fd00:65::3/128"]);
        assert_eq!(endpoints_rig.apply(&[("a", Some(one)), ("b", Some(two))]), BTreeMap::new());
        assert_eq!(ip("route show 10.65.0.2").trim(), "10.65.0.2 dev calia proto 179 scope link");
        assert!(ip("-6 route show fd00:65::2").starts_with("fd00:65::2 dev calia proto 179 metric 1024"));
        for addr in ["10.65.0.2", "fd00:65::2"] {
            let there = ip(&format!("neigh show {addr}"));
            assert!(there.contains(&format!("lladdr {mac}")) && there.contains("PERMANENT"), "{there}");
        }
        for (name, value) in
            [("rp_filter", "1"), ("route_localnet", "1"), ("proxy_arp", "1"), ("forwarding", "1")]
        {
            assert_eq!(sysctl(&format!("ipv4/conf/calia/{name}")), value, "{name}");
        }
        assert_eq!(sysctl("ipv4/neigh/calia/proxy_delay"), "0");
        for (name, value) in [("proxy_ndp", "1"), ("forwarding", "1"), ("accept_ra", "0")] {
            assert_eq!(sysctl(&format!("ipv6/conf/calia/{name}")), value, "{name}");
        }
        assert_eq!(sysctl("ipv4/conf/default/rp_filter"), "1");
        // The host has no default route: the gateway still answers.
        assert!(ip("route show 169.254.1.1").contains("dev lo proto 179"));
        b.inside(|| {
            echo("10.65.0.3");
            echo("fd00:65::3");
        });
        assert!(a.reaches("10.65.0.3"), "to the other workload over 169.254.1.1");
        assert!(a.reaches("fd00:65::3"));
        assert_eq!(endpoints_rig.rig.ask(|v| v.drift(9)).first, Vec::<String>::new());
        let view = endpoints_rig.rig.ask(|v| v.endpoint(&key("a"))).unwrap();
        assert_eq!((view.condition, view.missing), (EndpointCondition::Up, vec![]));
        assert_eq!(view.routes, [(cidr("10.65.0.2/32"), true), (cidr("fd00:65::2/128"), true)]);
        assert_eq!(view.neighbours.iter().filter(|(.., there)| *there).count(), 2);
        // Another process can add such a route.
        veth("eth1", "peer1", &[]);
        ip("route add 169.254.1.1 dev eth1 scope link");
        ip("route del 169.254.1.1 dev eth1");
        // A default route of the host suffices.
        veth("eth0", "peer0", &["192.0.2.1/24"]);
        ip("route add default via 192.0.2.254 dev eth0");
        eventually("the route to the gateway goes", LONG, || ip("route show 169.254.1.1").is_empty());
        ip(&format!("-n {} neigh flush dev eth0", a.name));
        assert!(a.reaches("10.65.0.3"));
        assert_eq!(endpoints_rig.apply(&[("a", None), ("b", None)]), BTreeMap::new());
        assert_eq!(ip("route show dev calia") + &ip("neigh show nud permanent"), "");
        endpoints_rig.rig.stop();
    });
}

#[test]
fn an_inactive_endpoint_has_no_routes_and_each_reason_is_reported() {
    in_netns(|| {
        veth("calia", "pa", &[]);
        ip("link add calid type veth peer name pd");
        veth("eth0", "peer0", &["192.0.2.1/24"]);
        let mut endpoints_rig = EndpointRig::program();
        let failed = endpoints_rig.apply(&[
            ("a", Some(workload("calia", &["10.65.0.2/32"]))),
            ("absent", Some(workload("calix", &["10.65.0.3/32"]))),
            ("down", Some(workload("calid", &["10.65.0.4/32"]))),
            ("eth", Some(workload("eth0", &["10.65.0.5/32"]))),
            ("twice", Some(workload("calia", &["10.65.0.2/32", "10.65.0.6/32"]))),
        ]);
        let down = |why: &str| EndpointCondition::Down(why.to_owned());
        let condition = |endpoints_rig: &EndpointRig, name: &str| {
            let key = key(name);
            endpoints_rig.rig.ask(move |v| v.endpoint(&key)).unwrap().condition
        };
        assert_eq!(condition(&endpoints_rig, "absent"), down("interface calix does not exist"));
        assert_eq!(condition(&endpoints_rig, "down"), down("interface calid is down"));
        assert_eq!(
            failed.keys().collect::<Vec<_>>(),
            [&key("eth"), &key("twice")],
            "the others lack nothing"
        );
        assert!(failed[&key("eth")].contains("InterfacePrefix"), "{failed:?}");
        assert_eq!(failed[&key("twice")], "10.65.0.2/32 is held by endpoint cni/a/eth0");
        assert!(!ip("route show dev eth0").contains("10.65.0.5"));
        assert_eq!(sysctl("ipv4/conf/eth0/proxy_arp"), "0");
        let mut inactive = workload("calia", &["10.65.0.2/32"]);
        inactive.active = false;
        let failed = endpoints_rig.apply(&[("a", Some(inactive)), ("twice", None)]);
        assert_eq!((failed.len(), condition(&endpoints_rig, "a")), (1, down("it is not active")));
        assert_eq!(ip("route show dev calia"), "");
        // The missing part is written as soon as possible.
        ip("link set calid up");
        endpoints_rig.until("down", &EndpointCondition::Up);
        assert!(ip("route show dev calid").contains("10.65.0.4"));
        ip("link add calix type veth peer name px");
        endpoints_rig.until("absent", &down("interface calix is down"));
        ip("link set calix up");
        endpoints_rig.until("absent", &EndpointCondition::Up);
        assert!(ip("route show dev calix").contains("10.65.0.3"));
        endpoints_rig.rig.stop();
    });
}

#[test]
fn what_a_plugin_made_before_it_wrote_the_endpoint_is_in_place_when_that_is_answered() {
    in_netns(|| {
        let mut endpoints_rig = EndpointRig::program();
        for i in 1..=20 {
            let (name, addr) = (format!("cali{i}"), format!("10.65.0.{i}"));
            ip(&format!("link add {name} up type veth peer name p{i}"));
            let net = format!("{addr}/32");
            assert_eq!(endpoints_rig.apply(&[(&name, Some(workload(&name, &[&net])))]), BTreeMap::new());
            assert!(ip("route show").contains(&format!("{addr} dev {name} ")), "{name}");
        }
        endpoints_rig.rig.stop();
    });
}

#[test]
fn ipv6_of_an_interface_is_switched_on_with_its_first_address_of_it() {
    in_netns(|| {
        veth("calia", "pa", &[]);
        let mut endpoints_rig = EndpointRig::program();
        let v6 = || {
            ["proxy_ndp", "forwarding", "accept_ra"].map(|name| sysctl(&format!("ipv6/conf/calia/{name}")))
        };
        let mut one = workload("calia", &["10.65.0.2/32"]);
        assert_eq!(endpoints_rig.apply(&[("a", Some(one.clone()))]), BTreeMap::new());
        assert_eq!(v6(), ["0", "0", "0"]);
        one.nets.push("fd00:65::2/128".parse().unwrap());
        assert_eq!(endpoints_rig.apply(&[("a", Some(one))]), BTreeMap::new());
        assert_eq!(v6(), ["1", "1", "0"]);
        endpoints_rig.rig.stop();
    });
}

#[test]
fn an_interface_that_is_made_again_gets_its_routes_again() {
    in_netns(|| {
        veth("calia", "pa", &[]);
        let mut endpoints_rig = EndpointRig::program();
        let mut one = workload("calia", &["10.65.0.2/32", "fd00:65::2/128"]);
        one.mac = Some("02:00:00:00:00:01".parse().unwrap());
        assert_eq!(endpoints_rig.apply(&[("a", Some(one))]), BTreeMap::new());
        let there = || {
            ip("route show dev calia").contains("10.65.0.2")
                && ip("-6 route show dev calia").contains("fd00:65::2")
                && ip("neigh show dev calia nud permanent").lines().count() == 2
                && sysctl("ipv4/conf/calia/proxy_arp") == "1"
        };
        assert!(there());
        for _ in 0..3 {
            ip("link del calia");
            veth("calia", "pa", &[]);
            eventually("routes after the interface was made again", LONG, there);
            ip("link set calia down");
            ip("link set calia up");
            eventually("routes after it was down", LONG, there);
        }
        endpoints_rig.rig.stop();
    });
}

#[test]
fn a_route_of_the_plugin_is_kept_and_what_nobody_asks_for_goes_after_the_grace() {
    in_netns(|| {
        veth("calia", "pa", &[]);
        veth("calib", "pb", &["10.99.0.1/24"]);
        veth("eth0", "peer0", &["192.0.2.1/24"]);
        ip("route add 10.65.0.2 dev calia scope link");
        ip("-6 route add fd00:65::2 dev calia");
        ip("route add 10.65.0.9 dev calib scope link");
        ip("route add 10.70.0.0/24 via 10.99.0.2 dev calib");
        for elsewhere in
            ["10.66.0.1 dev eth0 scope link", "10.66.1.0/24 via 192.0.2.9", "blackhole 10.67.0.0/26"]
        {
            ip(&format!("route add {elsewhere}"));
        }
        let foreign = || {
            ip("route show dev eth0")
                + &ip("route show type blackhole")
                + &ip("route show table local dev eth0")
        };
        let (before, plugin) = (foreign(), ip("route show dev calia") + &ip("-6 route show dev calia"));
        // Longer than the test, so that no grace period expires.
        let mut long = options(Mode::Program);
        long.grace = Duration::from_secs(3600);
        let mut endpoints_rig = EndpointRig::start(&long);
        let one = workload("calia", &["10.65.0.2/32", "fd00:65::2/128"]);
        let monitor = Monitor::start();
        assert_eq!(endpoints_rig.apply(&[("a", Some(one.clone()))]), BTreeMap::new());
        assert_eq!(
            monitor.stop(),
            "169.254.1.1 dev lo proto 179 scope link metric 1791 \n",
            "kept, not written again"
        );
        assert_eq!(ip("route show dev calia") + &ip("-6 route show dev calia"), plugin);
        assert!(ip("route show dev calib").contains("10.65.0.9"), "still in the grace time");
        // The route belonged to the endpoint and is removed with it at once.
        assert_eq!(endpoints_rig.apply(&[("a", None)]), BTreeMap::new());
        assert_eq!(ip("route show dev calia"), "");
        assert_eq!(endpoints_rig.apply(&[("a", Some(one))]), BTreeMap::new());
        endpoints_rig.rig.stop();
        let mut short = options(Mode::Program);
        short.grace = Duration::from_millis(300);
        let mut endpoints_rig = EndpointRig::start(&short);
        assert_eq!(
            endpoints_rig.apply(&[("a", Some(workload("calia", &["10.65.0.2/32"])))]),
            BTreeMap::new()
        );
        eventually("the grace ends", LONG, || !ip("route show dev calib").contains("10.65.0.9"));
        assert!(!ip("-6 route show dev calia").contains("fd00:65::2"), "ours, and wanted no more: at once");
        assert!(ip("-6 route show dev calia").contains("fe80::/64"));
        assert!(ip("route show dev calib").contains("10.99.0.0/24"), "the kernel's own");
        assert!(ip("route show dev calib").contains("10.70.0.0/24 via"), "over a gateway");
        assert_eq!(foreign(), before);
        endpoints_rig.rig.stop();
    });
}

#[test]
fn what_is_deleted_or_changed_by_hand_comes_back_and_is_counted() {
    in_netns(|| {
        veth("calia", "pa", &[]);
        let mut endpoints_rig = EndpointRig::program();
        let mut one = workload("calia", &["10.65.0.2/32", "fd00:65::2/128"]);
        one.mac = Some("02:00:00:00:00:01".parse().unwrap());
        one.nats = vec![("10.65.0.2".parse::<IpAddr>().unwrap(), "198.51.100.7".parse::<IpAddr>().unwrap())];
        assert_eq!(endpoints_rig.apply(&[("a", Some(one))]), BTreeMap::new());
        let there = |addr: &str| ip("route show dev calia").contains(addr);
        assert!(there("198.51.100.7"), "a floating address leads to the interface too");
        ip("route del 10.65.0.2 dev calia");
        let first = endpoints_rig.repaired();
        assert!(first.starts_with("route 10.65.0.2/32 dev calia was deleted by port"), "{first}");
        assert!(there("10.65.0.2"));
        ip("-6 route del fd00:65::2 dev calia");
        endpoints_rig.repaired();
        assert!(ip("-6 route show dev calia").contains("fd00:65::2"));
        // Replaced by a route to another interface: it is kept as foreign, and reported.
        veth("eth0", "peer0", &["192.0.2.1/24"]);
        ip("route replace 198.51.100.7 dev eth0 scope link");
        endpoints_rig.until(
            "a",
            &EndpointCondition::Failed(
                "another route to 198.51.100.7/32 is in the way: see `ip route show 198.51.100.7/32`"
                    .to_owned(),
            ),
        );
        ip("route del 198.51.100.7 dev eth0");
        endpoints_rig.until("a", &EndpointCondition::Up);
        assert!(there("198.51.100.7"));
        assert!(endpoints_rig.rig.ask(|v| v.counters().repairs) >= 3);
        endpoints_rig.rig.stop();
    });
}

#[test]
fn an_address_that_moves_leads_to_its_new_holder() {
    in_netns(|| {
        veth("calia", "pa", &[]);
        veth("calib", "pb", &[]);
        let mut endpoints_rig = EndpointRig::program();
        let net = ["10.65.0.2/32"];
        assert_eq!(endpoints_rig.apply(&[("a", Some(workload("calia", &net)))]), BTreeMap::new());
        let failed = endpoints_rig.apply(&[("b", Some(workload("calib", &net)))]);
        assert_eq!(failed.len(), 1);
        assert!(ip("route show 10.65.0.2").contains("dev calia"), "who comes later does not take it");
        assert_eq!(endpoints_rig.apply(&[("a", None)]), BTreeMap::new());
        assert_eq!(ip("route show 10.65.0.2").trim(), "10.65.0.2 dev calib proto 179 scope link");
        // In the store but without an interface: it does not block the address.
        let failed = endpoints_rig.apply(&[("a", Some(workload("calix", &net)))]);
        assert_eq!(failed, BTreeMap::new());
        assert!(ip("route show 10.65.0.2").contains("dev calib"));
        endpoints_rig.rig.stop();
    });
}

#[test]
fn the_endpoint_is_preferred_to_a_learned_route_and_to_a_blackhole_of_its_address() {
    in_netns(|| {
        veth("eth0", "peer0", &["192.0.2.1/24"]);
        veth("calia", "pa", &[]);
        let mut endpoints_rig = EndpointRig::program();
        assert_eq!(endpoints_rig.rig.blackholes(&["10.65.0.2/32"]), vec![]);
        endpoints_rig.rig.learn("10.65.0.3/32", &["192.0.2.9"]);
        let failed =
            endpoints_rig.apply(&[("a", Some(workload("calia", &["10.65.0.2/32", "10.65.0.3/32"])))]);
        assert_eq!(failed, BTreeMap::new());
        for addr in ["10.65.0.2", "10.65.0.3"] {
            assert!(ip(&format!("route get {addr}")).contains("dev calia"), "{addr}");
        }
        // Neither table considers the other's routes stale.
        endpoints_rig.rig.sweep();
        assert!(ip("route show dev calia").contains("10.65.0.2"));
        endpoints_rig.apply(&[("a", None)]);
        assert!(ip("route get 10.65.0.3").contains("192.0.2.9"));
        endpoints_rig.rig.stop();
    });
}

#[test]
fn a_restart_writes_nothing_that_was_right_and_removes_what_went_meanwhile() {
    in_netns(|| {
        veth("calia", "pa", &[]);
        veth("calib", "pb", &[]);
        let mut endpoints_rig = EndpointRig::program();
        let with_mac = |interface: &str, nets: &[&str]| {
            let mut w = workload(interface, nets);
            w.mac = Some("02:00:00:00:00:01".parse().unwrap());
            w
        };
        let one = with_mac("calia", &["10.65.0.2/32", "fd00:65::2/128"]);
        let two = with_mac("calib", &["10.65.0.3/32", "10.65.0.4/32"]);
        endpoints_rig.apply(&[("a", Some(one.clone())), ("b", Some(two.clone()))]);
        endpoints_rig.rig.stop();
        let all = || ip("route show") + &ip("-6 route show") + &ip("neigh show nud permanent");
        let before = all();
        let monitor = Monitor::start();
        let mut endpoints_rig = EndpointRig::program();
        assert_eq!(endpoints_rig.rig.started, (0, 0), "learned routes are counted, not these");
        assert_eq!(all(), before, "nothing is touched before policy has spoken");
        assert_eq!(endpoints_rig.apply(&[("a", Some(one.clone())), ("b", Some(two))]), BTreeMap::new());
        endpoints_rig.rig.sweep();
        assert_eq!((endpoints_rig.rig.writes(), monitor.stop()), (0, String::new()));
        assert_eq!(all(), before);
        endpoints_rig.rig.stop();
        let mut endpoints_rig = EndpointRig::program();
        endpoints_rig.apply(&[("a", Some(one)), ("b", Some(with_mac("calib", &["10.65.0.3/32"])))]);
        assert!(!all().contains("10.65.0.4"), "{}", all());
        assert!(ip("neigh show nud permanent").contains("10.65.0.3"));
        endpoints_rig.rig.stop();
    });
}

#[test]
fn observing_reports_the_difference_and_writes_nothing() {
    in_netns(|| {
        veth("calia", "pa", &[]);
        ip("route add 10.65.0.9 dev calia scope link");
        let before = ip("route show");
        let mut observe = options(Mode::Observe);
        observe.grace = Duration::ZERO;
        let mut endpoints_rig = EndpointRig::start(&observe);
        let mut one = workload("calia", &["10.65.0.2/32"]);
        one.mac = Some("02:00:00:00:00:01".parse().unwrap());
        assert_eq!(endpoints_rig.apply(&[("a", Some(one))]), BTreeMap::new());
        let drift = endpoints_rig.rig.ask(|v| v.drift(9));
        assert_eq!(
            drift.first,
            [
                "10.65.0.2/32: route to calia missing",
                "10.65.0.2: neighbour on calia missing",
                "10.65.0.9/32: route to calia, not desired",
                "calia: sysctls are not in their desired state, or not read yet",
            ]
        );
        assert_eq!((ip("route show"), ip("neigh show nud permanent")), (before, String::new()));
        assert_eq!((sysctl("ipv4/conf/calia/proxy_arp"), endpoints_rig.rig.writes()), ("0".to_owned(), 0));
        endpoints_rig.rig.stop();
    });
}

#[test]
fn loose_reverse_path_filtering_is_reported_unless_it_is_to_be_ignored() {
    in_netns(|| {
        std::fs::write("/proc/sys/net/ipv4/conf/all/rp_filter", "2").unwrap();
        let mut endpoints_rig = EndpointRig::program();
        endpoints_rig.serial = 1;
        let send = |endpoints_rig: &mut EndpointRig, ignore: bool| {
            endpoints_rig.serial += 1;
            endpoints_rig.rig.send(ToKernel::Policy(Arc::new(PolicyChange {
                serial: endpoints_rig.serial,
                change: ChangeId(endpoints_rig.serial),
                delta: RulesetDelta::default(),
                globals: Some(Arc::new(Globals { ignore_loose_rpf: ignore, ..globals() })),
                routings: None,
            })));
        };
        // A query alone does not prove that earlier messages are done: it is answered during a long
        // transaction. Reported problems: true if it exists, false if it is over.
        let problems = |endpoints_rig: &EndpointRig| -> Vec<bool> {
            let news = |f: &KernelFact| match f {
                KernelFact::Problem { about, text } if about == "reverse path filter" => {
                    Some(text.as_ref().is_some_and(|text| text.contains("IgnoreLooseRPF")))
                }
                _ => None,
            };
            let mut all = Vec::new();
            endpoints_rig.rig.wait("Enforced", |fact| {
                all.extend(news(fact));
                matches!(fact, KernelFact::Enforced { serial, .. } if *serial == endpoints_rig.serial)
                    .then_some(())
            });
            endpoints_rig.rig.ask(|_| ());
            all.extend(endpoints_rig.rig.drain().iter().filter_map(news));
            all
        };
        send(&mut endpoints_rig, true);
        assert_eq!(problems(&endpoints_rig), [false; 0]);
        send(&mut endpoints_rig, false);
        assert_eq!(problems(&endpoints_rig), [true]);
        send(&mut endpoints_rig, false);
        assert_eq!(problems(&endpoints_rig), [false; 0], "once");
        send(&mut endpoints_rig, true);
        assert_eq!(problems(&endpoints_rig), [false]);
        endpoints_rig.rig.stop();
    });
}

#[test]
fn connections_of_an_address_that_was_left_are_deleted() {
    in_netns(|| {
        let (a, b) = (Pod::new("calia"), Pod::new("calib"));
        a.up("10.65.0.2", None);
        b.up("10.65.0.3", None);
        veth("eth0", "peer0", &["192.0.2.1/24"]);
        let mut endpoints_rig = EndpointRig::program();
        endpoints_rig.apply(&[
            ("a", Some(workload("calia", &["10.65.0.2/32"]))),
            ("b", Some(workload("calib", &["10.65.0.3/32"]))),
        ]);
        echo("192.0.2.1");
        assert!(a.reaches("192.0.2.1") && b.reaches("192.0.2.1"));
        assert!(connections().contains("src=10.65.0.2") && connections().contains("src=10.65.0.3"));
        endpoints_rig.apply(&[("a", None)]);
        eventually("its connections go", PATIENCE, || !connections().contains("10.65.0.2"));
        assert!(connections().contains("src=10.65.0.3"), "others' stay");
        // A moved address: its new holder must not inherit connections.
        endpoints_rig.apply(&[("b", Some(workload("calia", &["10.65.0.3/32"])))]);
        assert!(!connections().contains("10.65.0.3"), "gone before the address leads elsewhere");
        endpoints_rig.rig.stop();
    });
}

#[test]
fn a_host_endpoint_is_as_its_interfaces_are() {
    in_netns(|| {
        veth("eth0", "peer0", &["192.0.2.1/24"]);
        let mut endpoints_rig = EndpointRig::program();
        let host = |interface: Option<&str>, addrs: &[&str]| {
            Some(Arc::new(EndpointPolicy::Host(HostPolicy {
                interface: interface.map(|name| name.parse().unwrap()),
                addrs: addrs.iter().map(|a| a.parse().unwrap()).collect(),
                inbound: Stages::default(),
                outbound: Stages::default(),
                untracked_inbound: vec![],
                untracked_outbound: vec![],
                pre_dnat: vec![],
                forward_inbound: vec![],
                forward_outbound: vec![],
            })))
        };
        let key = |name: &str| EndpointKey::Host { host: "host1".to_owned(), endpoint: name.to_owned() };
        let until =
            |endpoints_rig: &EndpointRig, name: &str, pick: &dyn Fn(&Option<EndpointCondition>) -> bool| {
                endpoints_rig.rig.wait("Endpoints", |fact| match fact {
                    KernelFact::Endpoints(all) => all.get(&key(name)).filter(|c| pick(c)).map(|_| ()),
                    _ => None,
                });
            };
        let endpoints = [("addr", host(None, &["192.0.2.1"])), ("name", host(Some("eth9"), &[]))];
        let endpoints = endpoints.map(|(name, policy)| (key(name), policy)).into();
        endpoints_rig.serial = 1;
        endpoints_rig.rig.send(ToKernel::Policy(Arc::new(PolicyChange {
            serial: 1,
            change: ChangeId(1),
            delta: RulesetDelta { endpoints, ..RulesetDelta::default() },
            globals: Some(Arc::new(globals())),
            routings: None,
        })));
        endpoints_rig.rig.wait("Endpoints", |fact| match fact {
            KernelFact::Endpoints(all) => {
                assert_eq!(all.get(&key("addr")), Some(&Some(EndpointCondition::Up)));
                assert!(matches!(all.get(&key("name")), Some(Some(EndpointCondition::Failed(_)))));
                Some(())
            }
            _ => None,
        });
        ip("link add eth9 type veth peer name peer9");
        until(&endpoints_rig, "name", &|c| {
            *c == Some(EndpointCondition::Down("interface eth9 is down".to_owned()))
        });
        ip("link set eth9 up");
        until(&endpoints_rig, "name", &|c| *c == Some(EndpointCondition::Up));
        ip("address del 192.0.2.1/24 dev eth0");
        until(&endpoints_rig, "addr", &|c| matches!(c, Some(EndpointCondition::Failed(_))));
        endpoints_rig
            .send(RulesetDelta { endpoints: [(key("addr"), None)].into(), ..RulesetDelta::default() });
        endpoints_rig.rig.stop();
    });
}

#[test]
fn neighbours_and_sysctls_changed_by_hand_come_back() {
    in_netns(|| {
        veth("calia", "pa", &[]);
        let mut endpoints_rig = EndpointRig::program();
        let mut one = workload("calia", &["10.65.0.2/32"]);
        one.mac = Some("02:00:00:00:00:01".parse().unwrap());
        assert_eq!(endpoints_rig.apply(&[("a", Some(one))]), BTreeMap::new());
        ip("neigh replace 10.65.0.2 lladdr 02:00:00:00:00:99 dev calia nud permanent");
        // Compared every minute, and when an interface changes.
        ip("link add other type veth peer name elsewhere");
        eventually("the neighbour is as wanted", LONG, || {
            ip("neigh show 10.65.0.2 dev calia").contains("02:00:00:00:00:01")
        });
        // Sysctls are set when an interface comes up, whatever their value.
        std::fs::write("/proc/sys/net/ipv4/conf/calia/proxy_arp", "0").unwrap();
        ip("link set calia down");
        ip("link set calia up");
        eventually("sysctls are as wanted", LONG, || sysctl("ipv4/conf/calia/proxy_arp") == "1");
        endpoints_rig.rig.stop();
    });
}
