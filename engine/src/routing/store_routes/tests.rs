//! Which end, device and route follows from which keys.

use proptest::prelude::*;

use super::*;
use std::collections::BTreeSet;

use crate::routing::tests::{codes, lenient, model, with};
use crate::routing::{NodeOptions, RoutingIntent, intent};
use tortie_config::resource::MacAddr;

/// Host `b` is this host; `a` is in its network, `c` is elsewhere.
const HOSTS: &[(&str, &str)] = &[
    ("bgp/v1/host/a/ip_addr_v4", "192.0.2.10"),
    ("bgp/v1/host/b/ip_addr_v4", "192.0.2.9"),
    ("bgp/v1/host/b/network_v4", "192.0.2.0/24"),
    ("bgp/v1/host/c/ip_addr_v4", "198.51.100.9"),
    ("v1/host/a/config/IPv4VXLANTunnelAddr", "10.0.1.0"),
    ("v1/host/b/config/IPv4VXLANTunnelAddr", "10.0.2.0"),
    ("v1/host/c/config/IPv4VXLANTunnelAddr", "10.0.3.0"),
    ("v1/host/c/config/VXLANTunnelMACAddr", "66:00:00:00:00:0c"),
    ("v1/ipam/v4/pool/10.0.0.0-16", r#"{"vxlan_mode":"always"}"#),
    ("ipam/v2/assignment/ipv4/block/10.0.1.0-30", BLOCK_A),
    ("ipam/v2/assignment/ipv4/block/10.0.2.0-30", BLOCK_B),
    ("ipam/v2/assignment/ipv4/block/10.0.3.0-30", BLOCK_C),
];
const BLOCK_A: &str = r#"{"affinity":"host:a","allocations":[null,null,null,null],"attributes":[]}"#;
const BLOCK_B: &str = r#"{"affinity":"host:b","allocations":[null,null,null,null],"attributes":[]}"#;
const BLOCK_C: &str = r#"{"affinity":"host:c","allocations":[null,null,null,null],"attributes":[]}"#;

const CROSS: (&str, &str) = ("v1/ipam/v4/pool/10.0.0.0-16", r#"{"vxlan_mode":"cross-subnet"}"#);

fn planned(more: &[(&str, &str)]) -> RoutingIntent {
    intent(&model(&with(HOSTS, more)), &NodeOptions::default())
}

fn routes(intent: &RoutingIntent) -> Vec<String> {
    let text = |(prefix, route): (&Cidr, &RemoteRoute)| match route {
        RemoteRoute::Vxlan(addr) => format!("{prefix} tunnel {addr}"),
        RemoteRoute::Ipip(addr) => format!("{prefix} ipip {addr}"),
        RemoteRoute::Direct(addr, _) => format!("{prefix} direct {addr}"),
    };
    intent.store_routes.remote.iter().map(text).collect()
}

fn ends(intent: &RoutingIntent) -> Vec<String> {
    let text = |(addr, end): (&IpAddr, &VxlanRemote)| format!("{addr} {} {}", MacAddr(end.mac), end.host);
    intent.vxlan.remotes.iter().map(text).collect()
}

fn withheld(intent: &RoutingIntent) -> Vec<(String, &str)> {
    intent
        .store_routes
        .withheld
        .iter()
        .map(|(prefix, why)| (prefix.to_string(), why.reason.as_str()))
        .collect()
}

#[test]
fn blocks_of_others_are_reached_through_their_ends() {
    let intent = planned(&[]);
    // The SHA-1 of `a` begins with 86f7e437fa.
    assert_eq!(
        ends(&intent),
        ["10.0.1.0 66:86:f7:e4:37:fa 192.0.2.10", "10.0.3.0 66:00:00:00:00:0c 198.51.100.9"]
    );
    assert_eq!(routes(&intent), ["10.0.1.0/30 tunnel 10.0.1.0", "10.0.3.0/30 tunnel 10.0.3.0"]);
    assert_eq!(withheld(&intent), []);
    let device = intent.vxlan.v4.clone().unwrap();
    assert_eq!((device.vni, device.port, device.mtu), (4096, 4789, None));
    assert_eq!(
        (device.local, device.addr),
        ("192.0.2.9".parse().unwrap(), Some("10.0.2.0".parse().unwrap()))
    );
    // The SHA-1 of `b` begins with e9d71f5ee7.
    assert_eq!(MacAddr(device.mac).to_string(), "66:e9:d7:1f:5e:e7");
    assert_eq!(intent.vxlan.v6, None);
}

#[test]
fn across_subnets_only_means_that_a_neighbour_is_reached_without_the_tunnel() {
    let expected = ["10.0.1.0/30 direct 192.0.2.10", "10.0.3.0/30 tunnel 10.0.3.0"];
    assert_eq!(routes(&planned(&[CROSS])), expected);
    // A neighbour needs no end of a tunnel.
    assert_eq!(routes(&planned(&[CROSS, ("v1/host/a/config/IPv4VXLANTunnelAddr", "")])), expected);
    // Without a network of its own this host has no neighbours.
    let alone = planned(&[CROSS, ("bgp/v1/host/b/network_v4", "")]);
    assert_eq!(routes(&alone), ["10.0.1.0/30 tunnel 10.0.1.0", "10.0.3.0/30 tunnel 10.0.3.0"]);
}

#[test]
fn a_borrowed_address_is_where_its_attribute_says() {
    let lent = r#"{"affinity":"host:a","allocations":[0,1,2,3],"attributes":[{"secondary":{"node":"a"}},
        {"secondary":{"node":"b"}},{"secondary":{"node":"c"}},{"secondary":{}}]}"#;
    let own = r#"{"affinity":"host:b","allocations":[0,1,null,null],"attributes":[{"secondary":{"node":"b"}},
        {"secondary":{"node":"c"}}]}"#;
    let nobody = r#"{"allocations":[0,null,null,null],"attributes":[{"secondary":{"node":"a"}}]}"#;
    let intent = planned(&[
        ("ipam/v2/assignment/ipv4/block/10.0.1.0-30", lent),
        ("ipam/v2/assignment/ipv4/block/10.0.2.0-30", own),
        ("ipam/v2/assignment/ipv4/block/10.0.4.0-30", nobody),
    ]);
    assert_eq!(
        routes(&intent),
        [
            "10.0.1.0/30 tunnel 10.0.1.0",
            "10.0.1.2/32 tunnel 10.0.3.0",
            "10.0.2.1/32 tunnel 10.0.3.0",
            "10.0.3.0/30 tunnel 10.0.3.0",
            "10.0.4.0/32 tunnel 10.0.1.0",
        ]
    );
}

#[test]
fn an_own_workload_counts_more_than_a_route() {
    let lent =
        r#"{"affinity":"host:a","allocations":[null,null,0,null],"attributes":[{"secondary":{"node":"c"}}]}"#;
    let block = ("ipam/v2/assignment/ipv4/block/10.0.1.0-30", lent);
    let endpoint = (
        "v1/host/b/workload/cni/w/endpoint/e",
        r#"{"state":"active","name":"cali1","ipv4_nets":["10.0.1.2/32"]}"#,
    );
    assert!(routes(&planned(&[block])).contains(&"10.0.1.2/32 tunnel 10.0.3.0".to_owned()));
    let shadowed = planned(&[block, endpoint]);
    assert_eq!(routes(&shadowed), ["10.0.1.0/30 tunnel 10.0.1.0", "10.0.3.0/30 tunnel 10.0.3.0"]);
}

#[test]
fn what_cannot_be_reached_is_named() {
    let all = planned(&[
        ("v1/host/a/config/IPv4VXLANTunnelAddr", ""),
        ("v1/host/c/config/IPv4VXLANTunnelAddr", "10.0.2.0"),
        (
            "ipam/v2/assignment/ipv4/block/10.0.5.0-30",
            r#"{"affinity":"host:x","allocations":[null,null,null,null]}"#,
        ),
        ("bgp/v1/host/d/ip_addr_v4", "10.0.6.1"),
        ("ipam/v2/assignment/ipv4/block/10.0.6.0-30", BLOCK_A),
    ]);
    assert_eq!(
        withheld(&all),
        [
            ("10.0.1.0/30".into(), "host a has no VXLAN tunnel address"),
            ("10.0.3.0/30".into(), "the VXLAN tunnel address 10.0.2.0 of host c is another host's, too"),
            ("10.0.5.0/30".into(), "host x has no IPv4 address"),
            ("10.0.6.0/30".into(), "it covers 10.0.6.1, the address of a host or BGP neighbour"),
        ]
    );
    assert!(codes(&all).contains(&"vxlan-no-route"), "{:?}", codes(&all));
    // A MAC address identifies one host, and one that cannot be read none.
    let same = planned(&[("v1/host/a/config/VXLANTunnelMACAddr", "66:00:00:00:00:0c")]);
    let why = "the VXLAN MAC address 66:00:00:00:00:0c of host c is another host's, too";
    assert_eq!(withheld(&same), [("10.0.3.0/30".into(), why)]);
    let broken = lenient(&with(HOSTS, &[("v1/host/a/config/VXLANTunnelMACAddr", "?")]));
    let broken = intent(&broken, &NodeOptions::default());
    assert_eq!(withheld(&broken), [("10.0.1.0/30".into(), "the VXLAN MAC address of host a is unreadable")]);
}

#[test]
fn the_pools_decide_unless_the_setting_does() {
    let plain = ("v1/ipam/v4/pool/10.0.0.0-16", "{}");
    assert!(!planned(&[plain]).vxlan.is_on());
    assert!(!planned(&[("v1/config/VXLANEnabled", "false")]).vxlan.is_on());
    let forced = planned(&[plain, ("v1/config/VXLANEnabled", "true"), ("v1/config/VXLANMTU", "1400")]);
    assert_eq!(forced.vxlan.v4.as_ref().map(|device| device.mtu), Some(Some(1400)));
    assert_eq!(routes(&forced), [""; 0]);
    // A family is used where both a pool and this host have it.
    let pool = ("v1/ipam/v6/pool/fd00::-48", r#"{"vxlan_mode":"always"}"#);
    assert_eq!(planned(&[pool]).vxlan.v6, None);
    let both = [pool, ("bgp/v1/host/b/ip_addr_v6", "2001:db8::b")];
    let device = planned(&both).vxlan.v6.clone().unwrap();
    // The SHA-1 of `b-v6` begins with 0590f354e9.
    assert_eq!(MacAddr(device.mac).to_string(), "66:05:90:f3:54:e9");
    let off = [both[0], both[1], ("v1/config/Ipv6Support", "false")];
    assert_eq!(planned(&off).vxlan.v6, None);
}

#[test]
fn both_families_have_ends_of_their_own() {
    let intent = planned(&[
        ("v1/ipam/v6/pool/fd00::-48", r#"{"vxlan_mode":"always"}"#),
        ("bgp/v1/host/a/ip_addr_v6", "2001:db8::a"),
        ("bgp/v1/host/b/ip_addr_v6", "2001:db8::b"),
        ("v1/host/a/config/IPv6VXLANTunnelAddr", "fd00::1"),
        ("ipam/v2/assignment/ipv6/block/fd00::-126", BLOCK_A),
    ]);
    assert!(ends(&intent).iter().any(|end| end.starts_with("fd00::1 66:") && end.ends_with(" 2001:db8::a")));
    assert!(routes(&intent).contains(&"fd00::/126 tunnel fd00::1".to_owned()));
}

/// The same hosts with an IPIP pool whose routes come from the store.
fn with_ipip(more: &[(&str, &str)]) -> RoutingIntent {
    let given = [
        ("v1/ipam/v4/pool/10.0.0.0-16", r#"{"ipip":"tunl0"}"#),
        ("v1/config/ProgramClusterRoutes", "EnabledIPIPOnly"),
    ];
    planned(&with(&given, more))
}

#[test]
fn routes_of_ipip_pools_come_from_the_store_where_the_setting_says_so() {
    let all = ["10.0.1.0/30 ipip 192.0.2.10", "10.0.3.0/30 ipip 198.51.100.9"];
    let intent = with_ipip(&[]);
    assert_eq!(routes(&intent), all);
    assert!(intent.view.ipip_from_store && !intent.vxlan.is_on() && ends(&intent).is_empty());
    for setting in ["Enabled", "EnabledIPIPOnly"] {
        assert_eq!(routes(&with_ipip(&[("v1/config/ProgramClusterRoutes", setting)])), all, "{setting}");
    }
    for setting in ["Disabled", "EnabledNoEncapOnly", "none"] {
        let intent = with_ipip(&[("v1/config/ProgramClusterRoutes", setting)]);
        assert_eq!((routes(&intent), intent.view.ipip_from_store), (Vec::new(), false), "{setting}");
    }
    let pool = r#"{"ipip":"tunl0","ipip_mode":"cross-subnet"}"#;
    let cross = [("v1/ipam/v4/pool/10.0.0.0-16", pool)];
    assert_eq!(routes(&with_ipip(&cross)), ["10.0.1.0/30 direct 192.0.2.10", all[1]]);
    let alone = with_ipip(&[cross[0], ("bgp/v1/host/b/network_v4", "")]);
    assert_eq!(routes(&alone), all, "without a network of its own this host has no neighbours");
}

#[test]
fn an_ipip_pool_has_borrowed_addresses_and_reasons_too() {
    let lent = r#"{"affinity":"host:a","allocations":[0,1,2,null],"attributes":[{"secondary":{"node":"c"}},
        {"secondary":{"node":"b"}},{"secondary":{"node":"x"}}]}"#;
    let intent = with_ipip(&[
        ("ipam/v2/assignment/ipv4/block/10.0.1.0-30", lent),
        ("ipam/v2/assignment/ipv4/block/10.0.4.0-30", BLOCK_A),
        ("bgp/v1/host/d/ip_addr_v4", "10.0.4.1"),
        ("bgp/v1/host/c/ip_addr_v4", "192.0.2.9"),
    ]);
    assert_eq!(routes(&intent), ["10.0.1.0/30 ipip 192.0.2.10"]);
    assert_eq!(
        withheld(&intent),
        [
            ("10.0.1.0/32".into(), "host c has the address 192.0.2.9 of this host"),
            ("10.0.1.2/32".into(), "host x has no IPv4 address"),
            ("10.0.3.0/30".into(), "host c has the address 192.0.2.9 of this host"),
            ("10.0.4.0/30".into(), "it covers 10.0.4.1, the address of a host or BGP neighbour"),
        ]
    );
    assert!(codes(&intent).contains(&"ipip-no-route") && !codes(&intent).contains(&"vxlan-no-route"));
}

/// What a peer announces for such a pool is not installed: the store has the answer.
#[test]
fn an_announcement_gives_no_route_where_the_store_does() {
    use crate::routing::filter::FilterRoute;
    use crate::routing::suppose_kernel;

    let answer = |intent: &RoutingIntent, prefix: &str| {
        let route = FilterRoute {
            next_hop: "192.0.2.77".parse().ok(),
            ..FilterRoute::local(prefix.parse().unwrap())
        };
        let answer = suppose_kernel(intent, &route);
        (answer.programmed, answer.tunnel, answer.reason)
    };
    let intent = with_ipip(&[]);
    assert_eq!(answer(&intent, "10.0.1.0/30"), (true, Some(Encapsulation::Ipip), "ipip"));
    assert_eq!(answer(&intent, "10.0.1.2/32"), (true, Some(Encapsulation::Ipip), "ipip"));
    assert_eq!(answer(&intent, "10.0.9.0/30"), (false, None, "ipip-pool"));
    let by_bgp = with_ipip(&[("v1/config/ProgramClusterRoutes", "Disabled")]);
    assert_eq!(answer(&by_bgp, "10.0.9.0/30"), (true, Some(Encapsulation::Ipip), "ipip-always"));
}

/// Changes of the setting, a pool, a host, a block and an own workload: the intent that follows them is the one
/// from scratch.
#[test]
fn routes_of_the_store_follow_each_change() {
    use crate::routing::Planner;
    use tortie_store::fixtures::{delete, put};

    let mut model = model(HOSTS);
    let mut planner = Planner::new(&model, NodeOptions::default());
    let mut step = |delta| {
        let changes = model.apply(&delta);
        planner.update(&model, &changes);
        assert_eq!(*planner.intent(), intent(&model, &NodeOptions::default()));
        let all = model.block_scope().iter().all(|key| key.ends_with('/'));
        (all, routes(planner.intent()))
    };
    let pool = "/calico/v1/ipam/v4/pool/10.0.0.0-16";
    let setting = "/calico/v1/config/ProgramClusterRoutes";
    let c = "10.0.3.0/30 ipip 198.51.100.9".to_owned();
    let a = |at: &str| format!("10.0.1.0/30 ipip {at}");
    let (_, by_bgp) = step(put(11, pool, r#"{"ipip":"tunl0"}"#));
    assert_eq!(by_bgp, [""; 0]);
    assert_eq!(step(put(12, setting, "Enabled")), (true, vec![a("192.0.2.10"), c.clone()]));
    let host = "/calico/bgp/v1/host/a/ip_addr_v4";
    assert_eq!(step(put(13, host, "192.0.2.11")).1, [a("192.0.2.11"), c.clone()]);
    assert_eq!(step(delete(14, host)).1, std::slice::from_ref(&c));
    assert_eq!(step(put(15, host, "192.0.2.10")).1, [a("192.0.2.10"), c.clone()]);
    let lent =
        r#"{"affinity":"host:a","allocations":[null,null,0,null],"attributes":[{"secondary":{"node":"c"}}]}"#;
    let block = "/calico/ipam/v2/assignment/ipv4/block/10.0.1.0-30";
    let borrowed = "10.0.1.2/32 ipip 198.51.100.9".to_owned();
    assert_eq!(step(put(16, block, lent)).1, [a("192.0.2.10"), borrowed.clone(), c.clone()]);
    let workload = "/calico/v1/host/b/workload/cni/w/endpoint/e";
    let endpoint = r#"{"state":"active","name":"cali1","ipv4_nets":["10.0.1.2/32"]}"#;
    assert_eq!(step(put(17, workload, endpoint)).1, [a("192.0.2.10"), c.clone()]);
    assert_eq!(step(delete(18, workload)).1, [a("192.0.2.10"), borrowed, c.clone()]);
    assert_eq!(step(put(19, block, BLOCK_B)).1, [c]);
    assert_eq!(step(delete(20, setting)).1, [""; 0]);
    assert_eq!(step(put(21, pool, r#"{"vxlan_mode":"always"}"#)).1, ["10.0.3.0/30 tunnel 10.0.3.0"]);
}

fn gateways(more: &[(&str, &str)]) -> Vec<String> {
    let intent = planned(more);
    intent.store_routes.gateways.iter().map(|(peer, by)| format!("{peer} via {by}")).collect()
}

/// Only a peer that this host has a session with gets a route, by a gateway of its family.
#[test]
fn a_peer_with_a_gateway_is_reached_by_it() {
    const BY: &str = r#"{"as_num":"65001","reachable_by":"192.0.2.254"}"#;
    const BY_OTHER: &str = r#"{"as_num":"65001","reachable_by":"192.0.2.253"}"#;
    const BY_V6: &str = r#"{"as_num":"65001","reachable_by":"2001:db8::254"}"#;
    let of_all = "bgp/v1/global/peer_v4/203.0.113.1";
    let own = "bgp/v1/host/b/peer_v4/203.0.113.1";
    let own_port = "bgp/v1/host/b/peer_v4/203.0.113.1-1790";
    let expected = ["203.0.113.1/32 via 192.0.2.254"];
    assert_eq!(gateways(&[(of_all, BY)]), expected);
    assert_eq!(gateways(&[(own_port, BY)]), expected);
    // The peer of all hosts counts before an own one, and the least port before another.
    assert_eq!(gateways(&[(of_all, BY), (own, BY_OTHER)]), expected);
    assert_eq!(gateways(&[(own, BY), (own_port, BY_OTHER)]), expected);
    assert_eq!(gateways(&[(of_all, r#"{"as_num":"65001"}"#), (own_port, BY)]), expected);
    let none: [&[(&str, &str)]; 5] = [
        &[(of_all, r#"{"as_num":"65001"}"#)],
        &[("bgp/v1/host/a/peer_v4/203.0.113.1", BY)],
        &[("bgp/v1/global/peer_v4/192.0.2.9", BY)],
        &[("bgp/v1/global/peer_v4/192.0.2.254", BY)],
        &[(of_all, BY_V6)],
    ];
    for keys in none {
        assert_eq!(gateways(keys), [""; 0], "{keys:?}");
    }
    // A host without an address of the family has no such session.
    let v6 = ("bgp/v1/global/peer_v6/2001:db8:9::1", BY_V6);
    assert_eq!(gateways(&[v6]), [""; 0]);
    let address = ("bgp/v1/host/b/ip_addr_v6", "2001:db8::9");
    assert_eq!(gateways(&[v6, address]), ["2001:db8:9::1/128 via 2001:db8::254"]);
}

proptest! {
    /// Every route through the tunnel leads to a known end, and no prefix is both routed and withheld.
    #[test]
    fn routes_and_ends_agree(
        owners in prop::collection::vec((0..4_usize, 0..4_usize, 0..4_usize), 1..8),
        ends in prop::collection::vec(prop::option::of(0..6_u8), 4),
        cross in any::<bool>(),
    ) {
        let names = ["a", "b", "c", "x"];
        let mut keys: Vec<(String, String)> =
            HOSTS.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        if cross {
            keys.push((CROSS.0.to_owned(), CROSS.1.to_owned()));
        }
        for (name, end) in names.iter().zip(&ends) {
            let value = end.map_or(String::new(), |end| format!("10.0.9.{end}"));
            keys.push((format!("v1/host/{name}/config/IPv4VXLANTunnelAddr"), value));
        }
        for (at, (owner, one, two)) in owners.iter().enumerate() {
            let attribute = |name: &usize| format!(r#"{{"secondary":{{"node":"{}"}}}}"#, names[*name]);
            let attributes = if one == two {
                format!(r#""allocations":[null,0,0,null],"attributes":[{}]"#, attribute(one))
            } else {
                format!(r#""allocations":[null,0,1,null],"attributes":[{},{}]"#, attribute(one), attribute(two))
            };
            keys.push((
                format!("ipam/v2/assignment/ipv4/block/10.0.8.{}-30", at * 4),
                format!(r#"{{"affinity":"host:{}",{attributes}}}"#, names[*owner]),
            ));
        }
        let keys: std::collections::BTreeMap<String, String> = keys.into_iter().collect();
        let keys: Vec<(&str, &str)> = keys.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let intent = intent(&lenient(&keys), &NodeOptions::default());
        let (vxlan, routes) = (&intent.vxlan, &intent.store_routes);
        for (prefix, route) in &routes.remote {
            prop_assert!(!routes.withheld.contains_key(prefix));
            match route {
                RemoteRoute::Vxlan(addr) => prop_assert!(vxlan.remotes.contains_key(addr)),
                RemoteRoute::Ipip(_) => prop_assert!(false, "no pool has IPIP"),
                RemoteRoute::Direct(host, _) => prop_assert!(cross && intent.view.network_v4.is_some_and(|net| net.contains(*host))),
            }
        }
        let macs: BTreeSet<[u8; 6]> = vxlan.remotes.values().map(|end| end.mac).collect();
        prop_assert_eq!(macs.len(), vxlan.remotes.len());
        prop_assert!(vxlan.v4.as_ref().and_then(|own| own.addr).is_none_or(|own| !vxlan.remotes.contains_key(&own)));
        for (at, (owner, one, two)) in owners.iter().enumerate() {
            let block = Cidr::v4([10, 0, 8, u8::try_from(at * 4).unwrap()].into(), 30);
            let known = |prefix: &Cidr| routes.remote.contains_key(prefix) || routes.withheld.contains_key(prefix);
            prop_assert_eq!(known(&block), names[*owner] != "b");
            for (ordinal, holder) in [(1, one), (2, two)] {
                let prefix = Cidr::host(block.nth(ordinal).unwrap());
                prop_assert_eq!(known(&prefix), holder != owner && names[*holder] != "b");
            }
        }
    }
}
