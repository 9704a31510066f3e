use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use proptest::prelude::*;
use tortie_config::resource::{AddPath, Community, RouteSource};

use super::*;
use crate::model::tests::{FakeStore, delete, history, put, snapshot};
use crate::model::{Model, Part};

const BLOCK: &str = r#"{"affinity":"host:b","allocations":[null,null,null,null],"attributes":[]}"#;

/// A model for the host `b` with these keys below `/calico/`.
fn model(entries: &[(&str, &str)]) -> Model {
    let model = lenient(entries);
    assert_eq!(model.problems().map(|p| &p.error).collect::<Vec<_>>(), [""; 0]);
    model
}

/// The same, where values may be broken.
fn lenient(entries: &[(&str, &str)]) -> Model {
    let keys: Vec<(String, &str)> =
        entries.iter().map(|(key, value)| (format!("/calico/{key}"), *value)).collect();
    let entries: Vec<(&str, &str)> = keys.iter().map(|(key, value)| (key.as_str(), *value)).collect();
    let mut model = Model::new("b");
    model.replace(Part::All, &snapshot(10, &entries));
    model
}

fn plan(entries: &[(&str, &str)]) -> RoutingIntent {
    intent(&model(entries), &NodeOptions::default())
}

fn names(intent: &RoutingIntent) -> Vec<&str> {
    intent.peers.keys().map(String::as_str).collect()
}

fn codes(intent: &RoutingIntent) -> Vec<&str> {
    intent.notes.iter().map(|note| note.code).collect()
}

const MESH: &[(&str, &str)] = &[
    ("bgp/v1/host/a/ip_addr_v4", "192.0.2.10"),
    ("bgp/v1/host/b/ip_addr_v4", "192.0.2.9"),
    ("bgp/v1/host/c/ip_addr_v4", "192.0.2.99"),
];

fn with<'a>(base: &[(&'a str, &'a str)], more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut all: BTreeMap<&str, &str> = base.iter().copied().collect();
    all.extend(more.iter().copied());
    all.into_iter().collect()
}

const SECONDS: fn(u64) -> Duration = Duration::from_secs;

#[test]
fn the_mesh_has_every_other_host_and_is_on_unless_said_otherwise() {
    let intent = plan(MESH);
    assert_eq!(names(&intent), ["Mesh_192_0_2_10", "Mesh_192_0_2_99"]);
    assert_eq!((intent.asn, intent.router_id), (64512, u32::from_be_bytes([192, 0, 2, 9])));
    assert_eq!(intent.listen, ["192.0.2.9:179".parse::<SocketAddr>().unwrap()]);

    let peer = &intent.peers["Mesh_192_0_2_10"];
    assert_eq!((peer.kind, peer.name.as_str(), peer.asn), (PeerKind::Mesh, "a", 64512));
    assert_eq!(peer.remote, "192.0.2.10:179".parse().unwrap());
    assert_eq!(peer.local, Some("192.0.2.9".parse().unwrap()));
    assert_eq!((peer.ipv4, peer.ipv6), (true, false));
    assert_eq!((peer.hold_time, peer.restart_time), (SECONDS(90), SECONDS(120)));

    let off = plan(&with(MESH, &[("bgp/v1/global/node_mesh", r#"{"enabled":false}"#)]));
    assert!(off.peers.is_empty());
}

#[test]
fn the_end_with_the_greater_text_dials_at_once() {
    let intent = plan(MESH);
    // As texts: "192.0.2.9" > "192.0.2.10", and "192.0.2.9" < "192.0.2.99".
    assert_eq!(intent.peers["Mesh_192_0_2_10"].dial_after, Some(Duration::ZERO));
    assert_eq!(intent.peers["Mesh_192_0_2_99"].dial_after, Some(SECONDS(5)));
}

#[test]
fn as_numbers_and_ports_are_host_over_global_over_default() {
    let intent = plan(&with(
        MESH,
        &[
            ("bgp/v1/global/as_num", "65000"),
            ("bgp/v1/host/a/as_num", "1.10"),
            ("bgp/v1/global/listen_port", "1179"),
            ("bgp/v1/host/c/listen_port", "1790"),
        ],
    ));
    assert_eq!(intent.asn, 65000);
    assert_eq!(intent.listen, ["192.0.2.9:1179".parse::<SocketAddr>().unwrap()]);
    let ends: Vec<_> = intent.peers.values().map(|p| (p.name.as_str(), p.asn, p.remote.port())).collect();
    assert_eq!(ends, [("a", 65546, 1179), ("c", 65000, 1790)]);
}

#[test]
fn a_host_without_an_address_of_a_family_takes_no_part_in_it() {
    let base = with(MESH, &[("bgp/v1/host/a/ip_addr_v4", ""), ("bgp/v1/host/a/ip_addr_v6", "2001:db8::a")]);
    assert_eq!(names(&plan(&base)), ["Mesh_192_0_2_99"], "we have no IPv6 address");
    let dual = with(&base, &[("bgp/v1/host/b/ip_addr_v6", "2001:db8::b")]);
    let intent = plan(&dual);
    assert_eq!(names(&intent), ["Mesh_192_0_2_99", "Mesh_2001_db8__a"]);
    let peer = &intent.peers["Mesh_2001_db8__a"];
    assert_eq!((peer.ipv4, peer.ipv6), (false, true));

    let silent = plan(&with(MESH, &[("bgp/v1/host/b/ip_addr_v4", "")]));
    assert!(silent.peers.is_empty() && silent.listen.is_empty());
    assert!(codes(&silent).contains(&"node-without-address"));
    assert_ne!(silent.router_id, 0);
    assert!(silent.router_id >> 24 < 224);
}

#[test]
fn two_dual_stack_hosts_keep_one_session_over_ipv4_with_both_families() {
    let intent = plan(&with(
        MESH,
        &[("bgp/v1/host/a/ip_addr_v6", "2001:db8::a"), ("bgp/v1/host/b/ip_addr_v6", "2001:db8::b")],
    ));
    assert_eq!(names(&intent), ["Mesh_192_0_2_10", "Mesh_192_0_2_99"]);
    let peer = &intent.peers["Mesh_192_0_2_10"];
    assert_eq!((peer.ipv4, peer.ipv6), (true, true));
    assert_eq!(peer.local_v6, Some("2001:db8::b".parse().unwrap()));
    assert!(!intent.peers["Mesh_192_0_2_99"].ipv6, "c has no IPv6 address");
}

#[test]
fn route_reflectors_are_not_in_the_mesh_on_either_end() {
    let cluster = ("bgp/v1/host/a/rr_cluster_id", "244.0.0.1");
    assert_eq!(names(&plan(&with(MESH, &[cluster]))), ["Mesh_192_0_2_99"]);
    let own = ("bgp/v1/host/b/rr_cluster_id", "244.0.0.1");
    assert!(plan(&with(MESH, &[own])).peers.is_empty());
}

#[test]
fn global_and_own_peers_are_there_with_and_without_the_mesh() {
    let peers = [
        ("bgp/v1/global/peer_v4/198.51.100.1", r#"{"ip":"198.51.100.1","as_num":"65001"}"#),
        ("bgp/v1/host/b/peer_v4/198.51.100.2", r#"{"as_num":65002}"#),
        ("bgp/v1/host/b/peer_v4/198.51.100.3-1790", r#"{"as_num":65003}"#),
        ("bgp/v1/host/c/peer_v4/198.51.100.4", r#"{"as_num":65003}"#),
        // Our own address, and an address of a family that we lack.
        ("bgp/v1/host/b/peer_v4/192.0.2.9", r#"{"as_num":64512}"#),
        ("bgp/v1/global/peer_v6/2001:db8::1", r#"{"as_num":64512}"#),
    ];
    let explicit = ["Global_198_51_100_1", "Node_198_51_100_2", "Node_198_51_100_3_port_1790"];
    let on = plan(&with(MESH, &peers));
    assert_eq!(
        names(&on),
        [&explicit[..1], &["Mesh_192_0_2_10", "Mesh_192_0_2_99"], &explicit[1..]].concat()
    );
    let off = plan(&with(&with(MESH, &peers), &[("bgp/v1/global/node_mesh", r#"{"enabled":false}"#)]));
    assert_eq!(names(&off), explicit);
    let global = &off.peers["Global_198_51_100_1"];
    assert_eq!(
        (global.asn, global.dial_after, global.name.as_str()),
        (65001, Some(Duration::ZERO), "198.51.100.1")
    );
    assert_eq!(global.reason, "/calico/bgp/v1/global/peer_v4/198.51.100.1");
    assert_eq!(off.peers["Node_198_51_100_3_port_1790"].remote.port(), 1790);
}

#[test]
fn of_a_global_and_an_own_peer_at_one_address_only_the_global_is_kept() {
    let intent = plan(&with(
        MESH,
        &[
            ("bgp/v1/global/peer_v4/198.51.100.1", r#"{"as_num":"65001"}"#),
            ("bgp/v1/host/b/peer_v4/198.51.100.1", r#"{"as_num":"65002"}"#),
            ("bgp/v1/global/node_mesh", r#"{"enabled":false}"#),
        ],
    ));
    assert_eq!(names(&intent), ["Global_198_51_100_1"]);
    assert_eq!(intent.peers["Global_198_51_100_1"].asn, 65001);
}

#[test]
fn an_explicit_peer_that_is_a_host_takes_the_place_of_its_mesh_session() {
    let intent = plan(&with(MESH, &[("bgp/v1/host/b/peer_v4/192.0.2.99", r#"{"as_num":"64512"}"#)]));
    assert_eq!(names(&intent), ["Mesh_192_0_2_10", "Node_192_0_2_99"]);
    let peer = &intent.peers["Node_192_0_2_99"];
    assert_eq!((peer.name.as_str(), peer.dial_after), ("c", Some(SECONDS(5))));
    // The other end of it does the other half.
    let value = r#"{"as_num":"64512","role":"customer","add_path":{"receive":true,"send":3},"bfd":true}"#;
    let intent = plan(&with(MESH, &[("bgp/v1/host/c/peer_v4/192.0.2.9", value)]));
    let peer = &intent.peers["Node_192_0_2_99"];
    assert_eq!((&peer.add_path, peer.role), (&Some(AddPath::new(true, 3)), Some(Role::Provider)));
    assert!(peer.bfd.is_some());
}

#[test]
fn options_of_a_peer_reach_its_session() {
    let value = r#"{"as_num":"65001","port":1790,"password":"s","source_addr":"None","restart_time":"30s",
        "long_lived_restart_time":"1h",
        "keepalive_time":"10s","hold_time":"45s","next_hop_mode":"Keep","ttl_security":3,"num_allow_local_as":2,
        "local_as_num":"65099","passive_mode":true,"filters":["f"],"max_prefixes":100,"role":"customer","role_strict":true,"send_hold_time":"600s","families":["ipv4","ipv6"],
        "extended_messages":false,"own_only":true,"import_pools":false,"add_path":4,
        "bfd":{"interval":"50ms","multiplier":5}}"#;
    let intent = plan(&with(
        MESH,
        &[("bgp/v1/global/peer_v4/198.51.100.1", value), ("bgp/v1/host/b/ip_addr_v6", "2001:db8::b")],
    ));
    let peer = &intent.peers["Global_198_51_100_1"];
    assert_eq!(peer.remote, "198.51.100.1:1790".parse().unwrap());
    assert_eq!(peer.password, Some(Password::Text("s".to_owned())));
    assert_eq!((peer.local, peer.dial_after), (None, None));
    assert_eq!(
        (peer.restart_time, peer.keepalive_time, peer.hold_time),
        (SECONDS(30), Some(SECONDS(10)), SECONDS(45))
    );
    assert_eq!(peer.long_lived_restart_time, Some(SECONDS(3600)));
    assert_eq!((peer.next_hop, peer.ttl_security, peer.allow_local_as), (NextHopMode::Keep, Some(3), 2));
    let limit = peer.max_prefixes.as_ref().and_then(|limits| limits.limit);
    assert_eq!((peer.local_asn, limit, peer.extended_messages), (Some(65099), Some(100), false));
    assert_eq!((peer.role, peer.role_strict), (Some(Role::Customer), true));
    assert_eq!(peer.add_path, Some(AddPath::new(true, 4)));
    assert_eq!(peer.send_hold_time, Some(SECONDS(600)));
    assert_eq!((peer.ipv4, peer.ipv6), (true, true));
    let bfd = peer.bfd.as_ref().unwrap();
    assert_eq!((bfd.interval, bfd.multiplier), (std::time::Duration::from_millis(50), 5));
    let policy = PeerPolicy { own_only: true, import_pools: false, filters: vec!["f".to_owned()] };
    assert_eq!(peer.policy, policy);
    assert!(!format!("{intent:?}").contains("\"s\""), "no secret in a debug text");
    assert!(codes(&intent).contains(&"filter-missing"));
}

#[test]
fn keep_next_hop_acts_on_ebgp_only() {
    for (asn, wanted) in [("65001", NextHopMode::Keep), ("64512", NextHopMode::Auto)] {
        let value = format!(r#"{{"as_num":"{asn}","keep_next_hop":true}}"#);
        let intent = plan(&with(MESH, &[("bgp/v1/global/peer_v4/198.51.100.1", &value)]));
        assert_eq!(intent.peers["Global_198_51_100_1"].next_hop, wanted);
    }
}

#[test]
fn a_peer_is_a_client_when_it_is_in_our_as_and_not_of_our_cluster() {
    let id = u32::from_be_bytes([244, 0, 0, 1]);
    // (peer's value, our cluster id, reflected to).
    let table = [
        (r#"{"as_num":"64512"}"#, "244.0.0.1", Some(id)),
        (r#"{"as_num":"64512","rr_cluster_id":"244.0.0.2"}"#, "244.0.0.1", Some(id)),
        (r#"{"as_num":"64512","rr_cluster_id":"244.0.0.1"}"#, "244.0.0.1", None),
        (r#"{"as_num":"65001"}"#, "244.0.0.1", None),
        (r#"{"as_num":"64512"}"#, "", None),
        (r#"{"as_num":"65001","local_as_num":"65001"}"#, "244.0.0.1", Some(id)),
    ];
    for (value, ours, wanted) in table {
        let keys = [("bgp/v1/global/peer_v4/198.51.100.1", value), ("bgp/v1/host/b/rr_cluster_id", ours)];
        let intent = plan(&with(MESH, &keys));
        assert_eq!(intent.peers["Global_198_51_100_1"].reflector_client, wanted, "{value} {ours}");
    }
    // A host's cluster id stands in its own key.
    let keys = [
        ("bgp/v1/host/b/peer_v4/192.0.2.99", r#"{"as_num":"64512"}"#),
        ("bgp/v1/host/b/rr_cluster_id", "244.0.0.1"),
        ("bgp/v1/host/c/rr_cluster_id", "244.0.0.1"),
    ];
    assert_eq!(plan(&with(MESH, &keys)).peers["Node_192_0_2_99"].reflector_client, None);
}

#[test]
fn peerings_between_hosts_are_symmetric() {
    // c has us as its peer.
    let own = plan(&with(
        MESH,
        &[
            ("bgp/v1/host/c/peer_v4/192.0.2.9", r#"{"as_num":"64512","password":"s","hold_time":"30s"}"#),
            ("bgp/v1/global/node_mesh", r#"{"enabled":false}"#),
        ],
    ));
    assert_eq!(names(&own), ["Node_192_0_2_99"]);
    let peer = &own.peers["Node_192_0_2_99"];
    assert_eq!((peer.name.as_str(), peer.hold_time), ("c", SECONDS(30)));
    assert_eq!(peer.password, Some(Password::Text("s".to_owned())));

    // We are the reflector of all hosts.
    let reflector = with(
        MESH,
        &[
            ("bgp/v1/global/peer_v4/192.0.2.9", r#"{"as_num":"64512"}"#),
            ("bgp/v1/global/node_mesh", r#"{"enabled":false}"#),
            ("bgp/v1/host/b/rr_cluster_id", "244.0.0.1"),
        ],
    );
    let intent = plan(&reflector);
    assert_eq!(names(&intent), ["Node_192_0_2_10", "Node_192_0_2_99"]);
    assert!(intent.peers.values().all(|peer| peer.reflector_client.is_some()));

    // And the other end sees a global peer.
    let mut client = Model::new("a");
    let keys: Vec<_> = reflector.iter().map(|(key, value)| (format!("/calico/{key}"), *value)).collect();
    let keys: Vec<_> = keys.iter().map(|(key, value)| (key.as_str(), *value)).collect();
    client.replace(Part::All, &snapshot(10, &keys));
    assert_eq!(names(&super::intent(&client, &NodeOptions::default())), ["Global_192_0_2_9"]);
}

#[test]
fn flags_win_over_the_store() {
    let options = NodeOptions {
        ip4: AddressOption::Given("203.0.113.7".parse().unwrap(), Some("203.0.113.0/24".parse().unwrap())),
        ip6: AddressOption::Off,
        asn: Some(65077),
        listen: vec!["127.0.0.1:1179".parse().unwrap()],
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
    assert_eq!(
        (borrowed.key.as_str(), borrowed.revision),
        ("/calico/v1/host/b/workload/cni/w1/endpoint/eth0", 10)
    );
    let block = &intent.originated[&"10.0.1.0/30".parse().unwrap()];
    assert_eq!(block.key, "/calico/ipam/v2/assignment/ipv4/block/10.0.1.0-30");
    assert_eq!(
        intent.blackholes,
        ["10.0.1.0/30".parse().unwrap()].into(),
        "not /32, not pending, not another's"
    );
    // Every originated route passes the gates.
    for prefix in intent.originated.keys() {
        assert!(
            export_gate(&intent.view, &PeerPolicy::default(), true, &FilterRoute::local(*prefix)).accept,
            "{prefix}"
        );
    }
    let mut held: Vec<String> = intent.view.endpoint_addresses.iter().map(IpAddr::to_string).collect();
    held.sort();
    assert_eq!(
        held,
        ["10.0.1.2", "10.0.1.3", "10.0.4.1", "10.9.0.9", "172.16.0.1", "203.0.113.1", "fd00::5"]
    );
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
        Some(TunnelIntent { addr: Some("10.0.0.1".parse().unwrap()), mtu: Some(1400) })
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
    // A router inside of our AS that originates by itself.
    assert!(hint(r#"{"as_num":"64512"}"#, &[("10.0.7.0/26", "198.51.100.1", None, None)]).is_some());
    // Nothing inside pools, or refused anyhow.
    assert_eq!(hint(OPEN, &[own("0.0.0.0/0"), own("192.168.0.0/16")]), None);
    assert_eq!(hint(r#"{"as_num":"65001","import_pools":false}"#, &[own("10.0.7.0/26")]), None);
    // What hosts announced: through a switch in their subnet, a reflector that is the next hop, a router of a rack.
    let from_hosts = [
        ("10.0.7.0/26", "192.0.2.30", None, Some(65001)),
        ("10.0.8.0/26", "198.51.100.1", Some("192.0.2.30"), None),
        ("10.0.9.0/26", "198.51.100.1", None, Some(65010)),
    ];
    assert_eq!(hint(OPEN, &from_hosts), None);
}

#[test]
fn explanations_say_why_there_is_a_session_or_none() {
    let model = model(&with(MESH, &[("bgp/v1/host/c/rr_cluster_id", "244.0.0.1")]));
    let last = |addr: &str| {
        let (peers, steps) = explain_peer(&model, &NodeOptions::default(), addr.parse().unwrap());
        let step = steps.last().unwrap().clone();
        assert_eq!(peers.is_empty(), step.outcome == StepOutcome::No, "{step:?}");
        (step.name, step.text)
    };
    assert_eq!(last("192.0.2.9").0, "own-address");
    assert_eq!(last("2001:db8::1").0, "family");
    assert_eq!(last("192.0.2.10"), ("mesh", "node-to-node mesh with a".to_owned()));
    assert!(last("192.0.2.99").1.contains("route reflector"));
    assert!(last("192.0.2.77").1.contains("no host has the address"));
}

#[test]
fn one_hosts_change_moves_only_its_session() {
    let mut model = model(MESH);
    let mut planner = Planner::new(&model, NodeOptions::default());
    let mut step = |delta| {
        let dirty = model.apply(&delta);
        let change = planner.update(&model, &dirty);
        assert_eq!(*planner.intent(), intent(&model, &NodeOptions::default()));
        change.peers.into_iter().collect::<Vec<_>>()
    };
    assert_eq!(step(put(11, "/calico/bgp/v1/host/a/as_num", "65001")), ["Mesh_192_0_2_10"]);
    assert_eq!(step(put(12, "/calico/bgp/v1/host/a/as_num", "65001")), [""; 0]);
    assert_eq!(
        step(put(13, "/calico/bgp/v1/host/a/ip_addr_v4", "192.0.2.11")),
        ["Mesh_192_0_2_10", "Mesh_192_0_2_11"]
    );
    assert_eq!(step(put(14, "/calico/bgp/v1/host/d/ip_addr_v4", "192.0.2.12")), ["Mesh_192_0_2_12"]);
    assert_eq!(step(delete(15, "/calico/bgp/v1/host/d/ip_addr_v4")), ["Mesh_192_0_2_12"]);
    let peer = "/calico/bgp/v1/global/peer_v4/198.51.100.1";
    assert_eq!(step(put(16, peer, r#"{"as_num":"65001"}"#)), ["Global_198_51_100_1"]);
    assert_eq!(step(delete(17, peer)), ["Global_198_51_100_1"]);
    let mesh = "/calico/bgp/v1/global/node_mesh";
    assert_eq!(step(put(18, mesh, r#"{"enabled":false}"#)), ["Mesh_192_0_2_11", "Mesh_192_0_2_99"]);
    assert_eq!(step(delete(19, mesh)).len(), 2);
    // An assignment in an own block and another host's endpoint move nothing.
    let endpoint = r#"{"state":"active","name":"cali9","ipv4_nets":["10.0.7.7/32"]}"#;
    assert_eq!(step(put(20, "/calico/v1/host/c/workload/cni/w/endpoint/e", endpoint)), [""; 0]);
}

proptest! {
    #[test]
    fn the_kept_intent_is_the_one_from_scratch(
        history in history(true),
        relists in prop::collection::vec(any::<bool>(), 40),
        flags in 0..3_usize,
    ) {
        let options = [
            NodeOptions::default(),
            NodeOptions { ip6: AddressOption::Off, asn: Some(65099), ..NodeOptions::default() },
            NodeOptions {
                ip4: AddressOption::Given("192.0.2.2".parse().unwrap(), None),
                ..NodeOptions::default()
            },
        ];
        let options = &options[flags];
        let mut store = FakeStore::default();
        let mut model = Model::new("h1");
        let mut planner = Planner::new(&model, options.clone());
        for (transaction, relist) in history.iter().zip(&relists) {
            let before = planner.intent().clone();
            let delta = store.commit(transaction);
            let dirty = if *relist { model.replace(Part::All, &store.list()) } else { model.apply(&delta) };
            let change = planner.update(&model, &dirty);
            let scratch = intent(&model, options);
            prop_assert_eq!(planner.intent(), &scratch);
            let differs = |name: &String| before.peers.get(name) != scratch.peers.get(name);
            let moved: std::collections::BTreeSet<String> =
                before.peers.keys().chain(scratch.peers.keys()).filter(|n| differs(n)).cloned().collect();
            prop_assert_eq!(&change.peers, &moved);
            prop_assert_eq!(change.originated, before.originated != scratch.originated);
            prop_assert_eq!(change.view, before.view != scratch.view);
            prop_assert_eq!(change.tunnel, before.tunnel != scratch.tunnel);
            prop_assert_eq!(change.blackholes, before.blackholes != scratch.blackholes);
            prop_assert_eq!(change.notes, before.notes != scratch.notes);
        }
    }
}

const ROUTER_WITH_FILTER: (&str, &str) =
    ("bgp/v1/global/peer_v4/198.51.100.1", r#"{"as_num":"65001","own_only":true,"filters":["f"]}"#);

#[test]
fn filters_are_host_over_global_and_closed_where_there_is_nothing_to_ask() {
    let verdict = |entries: &[(&str, &str)]| {
        let entries = with(MESH, &with(&[ROUTER_WITH_FILTER], entries));
        let intent = intent(&lenient(&entries), &NodeOptions::default());
        let policy = &intent.peers["Global_198_51_100_1"].policy;
        let route =
            FilterRoute { source: RouteSource::Ebgp, ..FilterRoute::local("10.0.0.0/8".parse().unwrap()) };
        let codes: Vec<&'static str> = intent.notes.iter().map(|note| note.code).collect();
        (import(&intent.view, policy, &route).is_ok(), codes)
    };
    let open = r#"{"import":[{"then":"accept"}]}"#;
    let shut = r#"{"import":[{"then":"reject"}]}"#;
    assert_eq!(verdict(&[]), (false, vec!["filter-missing"]));
    assert_eq!(verdict(&[("bgp/v1/global/filters/f", open)]), (true, vec![]));
    assert_eq!(verdict(&[("bgp/v1/global/filters/f", "{")]), (false, vec!["filter-unreadable"]));
    let own = "bgp/v1/host/b/filters/f";
    assert_eq!(verdict(&[("bgp/v1/global/filters/f", shut), (own, open)]), (true, vec![]));
    assert_eq!(verdict(&[("bgp/v1/global/filters/f", open), (own, "{")]), (false, vec!["filter-unreadable"]));
    assert_eq!(
        verdict(&[("bgp/v1/global/filters/f", open), ("bgp/v1/host/c/filters/f", shut)]),
        (true, vec![])
    );
}

#[test]
fn the_view_follows_filters_step_by_step_and_keeps_the_last_good_one() {
    let entries = with(MESH, &[ROUTER_WITH_FILTER]);
    let mut model = lenient(&entries);
    let mut planner = Planner::new(&model, NodeOptions::default());
    let open = r#"{"import":[{"then":"accept"}]}"#;
    let own = "bgp/v1/host/b/filters/f";
    // What is written, whether the view differs then, and what is noted.
    type Written<'a> = (u64, &'a str, Option<&'a str>, bool, &'a [&'a str]);
    let steps: [Written<'_>; 7] = [
        (11, "bgp/v1/global/filters/f", Some(open), true, &[]),
        (12, "bgp/v1/global/filters/f", Some("{"), false, &[]),
        (13, "bgp/v1/global/filters/unused", Some(open), false, &[]),
        (14, own, Some("{"), true, &["filter-unreadable"]),
        (15, own, None, true, &[]),
        (16, "bgp/v1/global/filters/f", None, true, &["filter-missing"]),
        (17, ROUTER_WITH_FILTER.0, Some(r#"{"as_num":"65001","own_only":true}"#), false, &[]),
    ];
    for (revision, key, value, differs, notes) in steps {
        let key = format!("/calico/{key}");
        let change = match value {
            Some(value) => put(revision, &key, value),
            None => delete(revision, &key),
        };
        let dirty = model.apply(&change);
        let change = planner.update(&model, &dirty);
        assert_eq!(change.view, differs, "{revision}");
        let intent = planner.intent();
        assert_eq!(codes(intent), notes, "{revision}");
        assert_eq!(*intent, super::intent(&model, &NodeOptions::default()), "{revision}: from scratch");
    }
}

#[test]
fn a_hosts_own_range_counts_before_the_one_for_all_and_its_peers_are_dynamic() {
    let external = r#"{"as_num": "external", "max_sessions": 5, "filters": ["gone"], "bfd": true}"#;
    let entries = with(
        MESH,
        &[
            ("bgp/v1/global/peer_range/10.0.0.0-24", r#"{"as_num": "internal"}"#),
            ("bgp/v1/host/b/peer_range/10.0.0.0-24", external),
            ("bgp/v1/global/peer_range/10.0.0.0-8", r#"{"as_num": "65001"}"#),
            ("bgp/v1/global/peer_range/fd00::-64", r#"{"as_num": "65001"}"#),
            ("bgp/v1/host/c/peer_range/10.3.0.0-24", r#"{"as_num": "65001"}"#),
        ],
    );
    let intent = plan(&entries);
    let ranges: Vec<&str> = intent.ranges.keys().map(String::as_str).collect();
    // This host has no IPv6 address.
    assert_eq!(ranges, ["Global_range_10_0_0_0-8", "Node_range_10_0_0_0-24"]);
    let own = &intent.ranges["Node_range_10_0_0_0-24"];
    assert_eq!((own.max_sessions, own.peer.asn, own.peer.dial_after), (5, 0, None));
    assert_eq!((intent.ranges["Global_range_10_0_0_0-8"].max_sessions, own.peer.local), (MAX_SESSIONS, None));
    assert_eq!(codes(&intent), ["filter-missing"]);
    let found = DynamicPeer {
        name: "Dynamic_10.0.0.7".into(),
        range: "Node_range_10_0_0_0-24".into(),
        remote: "10.0.0.7:179".parse().unwrap(),
    };
    let whole = intent.with_dynamic([&found]);
    assert_eq!(names(&whole), ["Dynamic_10.0.0.7", "Mesh_192_0_2_10", "Mesh_192_0_2_99"]);
    let peer = &whole.peers["Dynamic_10.0.0.7"];
    assert_eq!((peer.kind, peer.range, &*peer.name), (PeerKind::Dynamic, Some(own.prefix), "10.0.0.7"));
    assert!(peer.is_router() && peer.bfd.is_some());
    assert_eq!(intent.with_dynamic([]), intent);
    let orphan = DynamicPeer { range: "gone".into(), ..found };
    assert_eq!(intent.with_dynamic([&orphan]), intent);
}

/// Filters of peers without an address are as good as those of others.
#[test]
fn filters_of_interfaces_and_ranges_are_there() {
    let intent = plan(&[
        ("bgp/v1/host/b/ip_addr_v4", "192.0.2.9"),
        ("bgp/v1/global/filters/tor", r#"{"rules": []}"#),
        ("bgp/v1/global/peer_interface/eth1", r#"{"as_num": "external", "filters": ["tor"]}"#),
    ]);
    assert_eq!(codes(&intent), [""; 0]);
    let value = resource_filter();
    let expected = Filters::from_values([("tor".to_owned(), Some(value))]);
    assert_eq!(intent.view.filters, expected);
}

fn resource_filter() -> tortie_config::resource::Filter {
    tortie_config::resource::Filter::parse(br#"{"rules": []}"#).unwrap()
}
