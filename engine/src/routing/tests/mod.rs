//! Tests of the intent for given stores: flags, originated routes, the view, and notes. Peers are tested in
//! `peer.rs`, incremental changes in `plan.rs`.

mod calico3;
mod calico3_objects;
mod calico3_originated;
mod filter;
mod peer;
mod peers_of_calico3;
mod plan;

use std::collections::BTreeMap;
use std::net::IpAddr;

use tortie_config::resource::Community;

use super::*;
use crate::model::{Model, WatchPart};
use tortie_store::fixtures::snapshot;

const BLOCK: &str = r#"{"affinity":"host:b","allocations":[null,null,null,null],"attributes":[]}"#;

/// Returns the model of host `b` with these keys below `/calico/`.
pub(super) fn model(entries: &[(&str, &str)]) -> Model {
    let model = lenient(entries);
    assert_eq!(model.invalid_keys().map(|p| &p.error).collect::<Vec<_>>(), [""; 0]);
    model
}

/// Returns the model of host `b`, allowing invalid values.
pub(super) fn lenient(entries: &[(&str, &str)]) -> Model {
    let keys: Vec<(String, &str)> =
        entries.iter().map(|(key, value)| (format!("/calico/{key}"), *value)).collect();
    let entries: Vec<(&str, &str)> = keys.iter().map(|(key, value)| (key.as_str(), *value)).collect();
    let mut model = Model::new("b");
    model.replace(WatchPart::All, &snapshot(10, &entries));
    model
}

pub(super) fn plan(entries: &[(&str, &str)]) -> RoutingIntent {
    intent(&model(entries), &NodeOptions::default())
}

pub(super) fn names(intent: &RoutingIntent) -> Vec<&str> {
    intent.peers.keys().map(String::as_str).collect()
}

pub(super) fn codes(intent: &RoutingIntent) -> Vec<&str> {
    intent.notes.iter().map(|note| note.code).collect()
}

pub(super) const MESH: &[(&str, &str)] = &[
    ("bgp/v1/host/a/ip_addr_v4", "192.0.2.10"),
    ("bgp/v1/host/b/ip_addr_v4", "192.0.2.9"),
    ("bgp/v1/host/c/ip_addr_v4", "192.0.2.99"),
];

pub(super) fn with<'a>(base: &[(&'a str, &'a str)], more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut all: BTreeMap<&str, &str> = base.iter().copied().collect();
    all.extend(more.iter().copied());
    all.into_iter().collect()
}

#[test]
fn flags_win_over_the_store() {
    let options = NodeOptions {
        ip4: AddressOption::Given("203.0.113.7".parse().unwrap(), Some("203.0.113.0/24".parse().unwrap())),
        ip6: AddressOption::Off,
        asn: Some(65077),
        listen: vec!["127.0.0.1:1179".parse().unwrap()],
        ..NodeOptions::default()
    };
    let keys = with(
        MESH,
        &[("bgp/v1/host/b/ip_addr_v6", "2001:db8::b"), ("bgp/v1/host/a/ip_addr_v6", "2001:db8::a")],
    );
    let intent = intent(&model(&keys), &options);
    assert_eq!((intent.asn, intent.listen.clone()), (65077, options.listen.clone()));
    assert_eq!(intent.view.network_v4, Some("203.0.113.0/24".parse().unwrap()));
    assert_eq!(names(&intent), ["Mesh_192_0_2_10", "Mesh_192_0_2_99"]);
    assert!(
        intent.peers.values().all(|peer| peer.local == Some("203.0.113.7".parse().unwrap()) && !peer.ipv6)
    );
}

const ROUTES: &[(&str, &str)] = &[
    ("bgp/v1/host/b/ip_addr_v4", "192.0.2.9"),
    ("v1/ipam/v4/pool/10.0.0.0-16", r#"{"ipip":"tunl0","ipip_mode":"cross-subnet"}"#),
    ("v1/ipam/v4/pool/10.9.0.0-16", r#"{"disabled":true}"#),
    ("v1/ipam/v6/pool/fd00::-48", "{}"),
    ("ipam/v2/host/b/ipv4/block/10.0.1.0-30", r#"{"state":"confirmed"}"#),
    ("ipam/v2/assignment/ipv4/block/10.0.1.0-30", BLOCK),
    ("ipam/v2/host/b/ipv4/block/10.0.2.0-30", r#"{"state":"pending"}"#),
    ("ipam/v2/assignment/ipv4/block/10.0.2.0-30", BLOCK),
    ("ipam/v2/host/b/ipv4/block/10.0.3.7-32", ""),
    ("ipam/v2/assignment/ipv4/block/10.0.3.7-32", r#"{"affinity":"host:b","allocations":[null]}"#),
    ("ipam/v2/host/b/ipv4/block/10.0.4.0-30", r#"{"state":"confirmed"}"#),
    (
        "ipam/v2/assignment/ipv4/block/10.0.4.0-30",
        r#"{"affinity":"host:c","allocations":[null,null,null,null]}"#,
    ),
    (
        "v1/host/b/workload/cni/w1/endpoint/eth0",
        r#"{"state":"active","name":"cali1","ipv4_nets":["10.0.1.2/32","10.0.4.1/32","172.16.0.1/32"],
           "ipv6_nets":["fd00::5/128"],"ipv4_nat":[{"int_ip":"10.0.1.2","ext_ip":"10.9.0.9"},
           {"int_ip":"10.0.1.2","ext_ip":"10.0.1.3"},{"int_ip":"10.0.1.2","ext_ip":"203.0.113.1"}]}"#,
    ),
    (
        "v1/host/b/workload/cni/w2/endpoint/eth0",
        r#"{"state":"inactive","name":"cali2","ipv4_nets":["10.0.4.2/32"]}"#,
    ),
    (
        "v1/host/c/workload/cni/w3/endpoint/eth0",
        r#"{"state":"active","name":"cali3","ipv4_nets":["10.0.4.3/32"]}"#,
    ),
];

#[test]
fn own_blocks_and_addresses_outside_of_them_are_originated() {
    let intent = plan(ROUTES);
    let routes: Vec<_> = intent.originated.iter().map(|(prefix, o)| (prefix.to_string(), o.kind)).collect();
    assert_eq!(
        routes,
        [
            ("10.0.1.0/30".to_owned(), OriginKind::OwnBlock),
            ("10.0.3.7/32".to_owned(), OriginKind::OwnBlock),
            ("10.0.4.1/32".to_owned(), OriginKind::Borrowed),
            ("10.9.0.9/32".to_owned(), OriginKind::Floating),
            ("fd00::5/128".to_owned(), OriginKind::Borrowed),
        ]
    );
    let borrowed = &intent.originated[&"10.0.4.1/32".parse().unwrap()];
    assert_eq!((&*borrowed.key, borrowed.revision), ("/calico/v1/host/b/workload/cni/w1/endpoint/eth0", 10));
    let block = &intent.originated[&"10.0.1.0/30".parse().unwrap()];
    assert_eq!(&*block.key, "/calico/ipam/v2/assignment/ipv4/block/10.0.1.0-30");
    assert_eq!(
        *intent.blackholes,
        ["10.0.1.0/30".parse().unwrap()].into(),
        "not /32, not pending, not another's"
    );
    // Every originated route passes the export gates.
    for prefix in intent.originated.keys() {
        assert!(
            export_gate(&intent.view, &PeerPolicy::default(), true, &FilterRoute::local(*prefix)).accept,
            "{prefix}"
        );
    }
    let mut held: Vec<String> = intent.addresses.keys().map(IpAddr::to_string).collect();
    held.sort();
    assert_eq!(
        held,
        ["10.0.1.2", "10.0.1.3", "10.0.4.1", "10.9.0.9", "172.16.0.1", "203.0.113.1", "fd00::5"]
    );
}

/// Host `b` has block 10.0.1.0/30. The block is withheld if its blackhole would drop packets of the host
/// itself; the addresses of its workloads in the block are then announced one by one.
#[test]
fn a_block_that_would_cut_the_host_off_has_no_blackhole_and_is_not_announced() {
    let block: tortie_net::Cidr = "10.0.1.0/30".parse().unwrap();
    let options = |store: &str| NodeOptions { store: vec![store.parse().unwrap()], ..NodeOptions::default() };
    for (more, options, reason) in [
        (("bgp/v1/host/b/ip_addr_v4", "10.0.1.1"), NodeOptions::default(), Some("address of this host")),
        (("bgp/v1/host/b/network_v4", "10.0.0.0/16"), NodeOptions::default(), Some("network of this host")),
        (("bgp/v1/host/b/network_v4", "10.0.1.2/31"), NodeOptions::default(), Some("network of this host")),
        (
            ("bgp/v1/host/c/ip_addr_v4", "10.0.1.1"),
            NodeOptions::default(),
            Some("BGP neighbour Mesh_10_0_1_1"),
        ),
        (
            ("bgp/v1/global/peer_v4/10.0.1.3", r#"{"ip":"10.0.1.3","as_num":"65001"}"#),
            NodeOptions::default(),
            Some("BGP neighbour Global_10_0_1_3"),
        ),
        (("v1/Ready", "true"), options("10.0.1.0"), Some("address of the store")),
        (
            ("v1/Ready", "true"),
            NodeOptions { connected: vec!["10.0.0.0/23".parse().unwrap()], ..NodeOptions::default() },
            Some("a network that this host is connected to"),
        ),
        (("v1/Ready", "true"), options("10.0.1.4"), None),
        (("bgp/v1/host/c/ip_addr_v4", "10.0.1.4"), NodeOptions::default(), None),
        (("bgp/v1/host/b/network_v4", "10.0.2.0/24"), NodeOptions::default(), None),
    ] {
        let keys = with(ROUTES, &[more]);
        let intent = intent(&model(&keys), &options);
        let withheld = intent.withheld_blocks.get(&block).cloned();
        match reason {
            Some(reason) => {
                let text = withheld.unwrap_or_else(|| panic!("{more:?}"));
                assert!(text.contains(reason), "{more:?}: {text}");
                assert!(
                    !intent.blackholes.contains(&block) && !intent.originated.contains_key(&block),
                    "{more:?}"
                );
                assert!(
                    intent.originated.keys().any(|prefix| block.covers(prefix)),
                    "{more:?}: {:?}",
                    intent.originated
                );
            }
            None => {
                assert_eq!(withheld, None, "{more:?}");
                assert!(
                    intent.blackholes.contains(&block) && intent.originated.contains_key(&block),
                    "{more:?}"
                );
            }
        }
    }
}

#[test]
fn the_view_and_the_tunnel_follow_the_pools_and_settings() {
    let intent = plan(&with(
        ROUTES,
        &[("v1/host/b/config/IpInIpTunnelAddr", "10.0.0.1"), ("v1/config/IpInIpMtu", "1400")],
    ));
    let pools: Vec<_> = intent.view.pools.iter().map(|p| (p.cidr.to_string(), p.ipip, p.disabled)).collect();
    assert_eq!(
        pools,
        [
            ("10.0.0.0/16".to_owned(), Some(IpipMode::CrossSubnet), false),
            ("10.9.0.0/16".to_owned(), None, true),
            ("fd00::/48".to_owned(), None, false)
        ]
    );
    assert_eq!(
        intent.tunnel,
        Some(TunnelIntent { addr: Some("10.0.0.1".parse().unwrap()), mtu: Some(1400), max_mtu: Some(1440) })
    );
    assert!(codes(&intent).contains(&"no-network"));
    let disabled = with(ROUTES, &[("v1/ipam/v4/pool/10.0.0.0-16", r#"{"ipip":"tunl0","disabled":true}"#)]);
    assert!(plan(&disabled).tunnel.is_some(), "addresses in use go on through it");
}

#[test]
fn a_hosts_own_advertisements_replace_the_global_ones() {
    let global = (
        "bgp/v1/global/prefix_advertisements/ip_v4",
        r#"[{"cidr":"203.0.113.0/24","communities":["65000:100","65000:1:2"]}]"#,
    );
    let view = plan(&with(MESH, &[global])).view;
    let communities = [Community::Standard(65000 << 16 | 100), Community::Large([65000, 1, 2])];
    assert_eq!(view.advertisements[0].communities, communities);
    let own = ("bgp/v1/host/b/prefix_advertisements/ip_v4", r#"[{"cidr":"198.18.0.0/15","communities":[]}]"#);
    let view = plan(&with(MESH, &[global, own])).view;
    assert_eq!(view.advertisements.iter().map(|a| a.cidr.to_string()).collect::<Vec<_>>(), ["198.18.0.0/15"]);
}

#[test]
fn notes_name_what_surprises() {
    let router = ("bgp/v1/global/peer_v4/198.51.100.1", r#"{"as_num":"65001"}"#);
    assert_eq!(codes(&plan(&with(MESH, &[router]))), ["own-only-hint"]);
    let quiet = ("bgp/v1/global/peer_v4/198.51.100.1", r#"{"as_num":"65001","own_only":true}"#);
    assert_eq!(codes(&plan(&with(MESH, &[quiet]))), [""; 0]);
    let alone = ("bgp/v1/host/b/peer_v4/198.51.100.1", r#"{"as_num":"65001"}"#);
    assert_eq!(codes(&plan(&with(MESH, &[alone]))), [""; 0], "no other host peers with it");
    let too = ("bgp/v1/host/c/peer_v4/198.51.100.1", r#"{"as_num":"65001"}"#);
    assert_eq!(codes(&plan(&with(MESH, &[alone, too]))), ["own-only-hint"]);

    let table = [
        (("bgp/v1/host/c/ip_addr_v4", ""), "host-without-address"),
        (("bgp/v1/host/c/ip_addr_v4", "192.0.2.10"), "shared-address"),
        (("bgp/v1/global/custom_filters/v4/f", "reject;"), "custom-filter-ignored"),
        (("bgp/v1/host/b/peer_v4/192.0.2.99", r#"{"as_num":"1"}"#), "peer-as-differs"),
        (
            (
                "v1/host/b/workload/cni/w/endpoint/eth0",
                r#"{"name":"cali0","ipv4_nets":["10.0.3.5/32"],"ipv4_nat":[{"int_ip":"10.0.3.6","ext_ip":"10.0.9.9"}]}"#,
            ),
            "nat-left-out",
        ),
    ];
    for (key, code) in table {
        assert_eq!(codes(&plan(&with(MESH, &[key]))), [code]);
    }
}

#[test]
fn a_router_that_announces_pool_addresses_is_hinted_at() {
    const ROUTER: &str = "bgp/v1/global/peer_v4/198.51.100.1";
    let hint = |value: &str, learned: &[(&str, &str, Option<&str>, Option<u32>)]| {
        let c = [("bgp/v1/host/c/ip_addr_v4", "192.0.2.30"), ("bgp/v1/host/c/as_num", "65010")];
        let model = model(&with(ROUTES, &[(ROUTER, value), c[0], c[1]]));
        let intent = intent(&model, &NodeOptions::default());
        let path = |(prefix, next_hop, originator, origin_as): &(&str, &str, Option<&str>, Option<u32>)| {
            let originator = originator.map(|id| id.parse::<std::net::Ipv4Addr>().unwrap().into());
            let (prefix, next_hop) = (prefix.parse().unwrap(), next_hop.parse().unwrap());
            LearnedPath { prefix, next_hop, originator, origin_as: *origin_as }
        };
        let learned = [("Global_198_51_100_1".to_owned(), learned.iter().map(path).collect())];
        let notes = import_pools_hints(&model, &intent, &learned);
        notes.into_iter().map(|(session, note)| (session.to_owned(), note)).next()
    };
    const OPEN: &str = r#"{"as_num":"65001"}"#;
    let own = |prefix| (prefix, "198.51.100.1", None, Some(65001));
    let (session, note) = hint(OPEN, &[own("10.0.7.0/26"), own("0.0.0.0/0"), own("10.0.8.0/26")]).unwrap();
    assert_eq!((session.as_str(), note.code), ("Global_198_51_100_1", "import-pools-hint"));
    assert_eq!(note.subject, "198.51.100.1");
    assert!(note.text.contains("10.0.7.0/26 and 1 more"), "{}", note.text);
    // A router in the local AS that originates the prefix itself.
    assert!(hint(r#"{"as_num":"64512"}"#, &[("10.0.7.0/26", "198.51.100.1", None, None)]).is_some());
    // Prefixes outside of pools, and prefixes that import rejects anyway.
    assert_eq!(hint(OPEN, &[own("0.0.0.0/0"), own("192.168.0.0/16")]), None);
    assert_eq!(hint(r#"{"as_num":"65001","import_pools":false}"#, &[own("10.0.7.0/26")]), None);
    // Prefixes that hosts announced: via a switch in their subnet, a route reflector as next hop, a router of
    // a rack.
    let from_hosts = [
        ("10.0.7.0/26", "192.0.2.30", None, Some(65001)),
        ("10.0.8.0/26", "198.51.100.1", Some("192.0.2.30"), None),
        ("10.0.9.0/26", "198.51.100.1", None, Some(65010)),
    ];
    assert_eq!(hint(OPEN, &from_hosts), None);
}

#[test]
fn core_and_speaker_never_give_the_same_change_id() {
    let (mut core, mut speaker) = (ChangeIds::of_core(), ChangeIds::of_speaker());
    let mut given = std::collections::BTreeSet::from([ChangeId::default()]);
    for _ in 0..100 {
        assert!(given.insert(core.next_id()) && given.insert(speaker.next_id()));
    }
}
