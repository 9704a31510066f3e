//! Tests of the sessions of a host: their set, options and dialling side.

use std::net::SocketAddr;
use std::time::Duration;

use tortie_config::resource::AddPath;

use super::{MESH, codes, model, names, plan, with};
use crate::model::{Model, WatchPart};
use crate::routing::*;
use tortie_store::fixtures::snapshot;

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
    // Compared as text: "192.0.2.9" > "192.0.2.10", and "192.0.2.9" < "192.0.2.99".
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
    // Together with Calico hosts, whose two daemons carry one family each.
    let alongside = plan(&with(
        MESH,
        &[
            ("bgp/v1/host/a/ip_addr_v6", "2001:db8::a"),
            ("bgp/v1/host/b/ip_addr_v6", "2001:db8::b"),
            ("bgp/v1/global/node_mesh", r#"{"enabled":true,"per_family":true}"#),
        ],
    ));
    assert_eq!(names(&alongside), ["Mesh_192_0_2_10", "Mesh_192_0_2_99", "Mesh_2001_db8__a"]);
    let families = alongside.peers.values().map(|peer| (peer.ipv4, peer.ipv6)).collect::<Vec<_>>();
    assert_eq!(families, [(true, false), (true, false), (false, true)]);
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
        // An own address, and an address of a family that this host does not have.
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
    assert_eq!(global.source.to_string(), "/calico/bgp/v1/global/peer_v4/198.51.100.1");
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
    // The other host derives the reverse session.
    let value = r#"{"as_num":"64512","role":"customer","add_path":{"receive":true,"send":3},"bfd":true}"#;
    let intent = plan(&with(MESH, &[("bgp/v1/host/c/peer_v4/192.0.2.9", value)]));
    let peer = &intent.peers["Node_192_0_2_99"];
    assert_eq!((&peer.add_path, peer.role), (&Some(AddPath::new(true, 3)), Some(Role::Provider)));
    assert!(peer.bfd.is_some());
    // A session that the other host has shut down is not dialled.
    let intent = plan(&with(
        MESH,
        &[("bgp/v1/host/c/peer_v4/192.0.2.9", r#"{"as_num":"64512","bfd":true,"shutdown":"until noon"}"#)],
    ));
    let peer = &intent.peers["Node_192_0_2_99"];
    assert_eq!((&peer.shutdown, peer.dial_after, &peer.bfd), (&None, None, &None));
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
    let value = r#"{"as_num":"65001","bfd":true,"shutdown":"until noon"}"#;
    let intent = plan(&with(MESH, &[("bgp/v1/global/peer_v4/198.51.100.1", value)]));
    let peer = &intent.peers["Global_198_51_100_1"];
    assert_eq!((peer.shutdown.as_deref(), &peer.bfd), (Some("until noon"), &None));
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
    // Peer value, local cluster id, cluster id used for reflection.
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
    // The cluster id of a host is in its own key.
    let keys = [
        ("bgp/v1/host/b/peer_v4/192.0.2.99", r#"{"as_num":"64512"}"#),
        ("bgp/v1/host/b/rr_cluster_id", "244.0.0.1"),
        ("bgp/v1/host/c/rr_cluster_id", "244.0.0.1"),
    ];
    assert_eq!(plan(&with(MESH, &keys)).peers["Node_192_0_2_99"].reflector_client, None);
}

#[test]
fn peerings_between_hosts_are_symmetric() {
    // Host c has this host as its peer.
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

    // This host is the route reflector of all hosts.
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

    // The other host sees a global peer.
    let mut client = Model::new("a");
    let keys: Vec<_> = reflector.iter().map(|(key, value)| (format!("/calico/{key}"), *value)).collect();
    let keys: Vec<_> = keys.iter().map(|(key, value)| (key.as_str(), *value)).collect();
    client.replace(WatchPart::All, &snapshot(10, &keys));
    assert_eq!(names(&super::intent(&client, &NodeOptions::default())), ["Global_192_0_2_9"]);
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

/// The intent contains filters of peers without an address as well.
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

/// Another host drops its own peer at an address that a global peer has.
#[test]
fn of_two_peerings_with_this_host_the_global_one_counts() {
    let key = "bgp/v1/host/c/peer_v4/192.0.2.9";
    let intent = plan(&with(
        MESH,
        &[
            ("bgp/v1/global/peer_v4/192.0.2.9", r#"{"as_num":"64512"}"#),
            (key, r#"{"as_num":"64512","password":"theirs"}"#),
        ],
    ));
    let peer = intent.peers.values().find(|peer| peer.name == "c").unwrap();
    assert_eq!(peer.source, PeerSource::PeerOfAll("c".to_owned()));
    assert_eq!(peer.password, None);
}
