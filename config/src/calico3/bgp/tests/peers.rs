//! Tests of BGPPeers, one for each rule of the passes and members.

use std::time::Duration;

use serde_json::{Value, json};

use super::{View, host, spec, view};
use crate::Resource;
use crate::calico3::objects::Objects;
use crate::calico3::{Kind, Object, ObjectKey};
use crate::resource::{NextHopMode, Peer, SourceAddr};

const ROUTER: &str = "bgp/v1/global/peer_v4/192.0.2.1";

/// Three nodes of two racks.
fn nodes() -> Vec<(&'static str, Value)> {
    vec![
        ("nodes/n1", host("10.1.0.1/24", json!({ "rack": "a" }))),
        ("nodes/n2", host("10.1.0.2/24", json!({ "rack": "a", "reflector": "" }))),
        ("nodes/n3", host("10.1.0.3/24", json!({ "rack": "b" }))),
    ]
}

/// Returns the view of a node of the three with more objects.
fn with(node: &str, objects: &[(&'static str, Value)]) -> View {
    let mut all = nodes();
    all.extend_from_slice(objects);
    view(node, &all)
}

fn peer(view: &View, key: &str) -> Peer {
    match view.resource(key) {
        Resource::Peer(peer) => *peer,
        other => panic!("{other:?}"),
    }
}

/// Returns the keys of explicit peers.
fn keys(view: &View) -> Vec<String> {
    let all = view.keys("bgp/v1/").into_iter().filter(|key| key.contains("/peer_"));
    all.map(|key| key.trim_start_matches("bgp/v1/").to_owned()).collect()
}

/// Returns the peer that a BGPPeer for all hosts gives with a router, with more members.
fn router(members: Value) -> (View, Option<Peer>) {
    let mut all = json!({ "peerIP": "192.0.2.1", "asNumber": 65001 });
    all.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
    let view = with("n1", &[("bgppeers/p", spec(all))]);
    let found = view.get(ROUTER).is_some().then(|| peer(&view, ROUTER));
    (view, found)
}

#[test]
fn the_global_pass_gives_peers_of_all_hosts() {
    let by_address = with("n1", &[("bgppeers/p", spec(json!({ "peerIP": "192.0.2.1", "asNumber": "1.1" })))]);
    assert_eq!(keys(&by_address), ["global/peer_v4/192.0.2.1"]);
    assert_eq!(by_address.json(ROUTER)["as_num"], "65537");
    assert_eq!(by_address.json(ROUTER)["ip"], "192.0.2.1");
    assert_eq!(by_address.origins[ROUTER], ["bgppeers/p"]);
    let by_label = with("n1", &[("bgppeers/p", spec(json!({ "peerSelector": "has(reflector)" })))]);
    assert_eq!(keys(&by_label), ["global/peer_v4/10.1.0.2"]);
    assert_eq!(by_label.origins["bgp/v1/global/peer_v4/10.1.0.2"], ["bgppeers/p", "nodes/n2"]);
}

#[test]
fn the_node_pass_gives_peers_of_this_host_only() {
    for (local, hosts) in [
        (json!({ "node": "n1" }), &["n1"][..]),
        (json!({ "nodeSelector": "rack == 'a'" }), &["n1", "n2"]),
        // Without a Node only the name can fit.
        (json!({ "node": "n9" }), &["n9"]),
        (json!({ "nodeSelector": "!has(rack)" }), &[]),
    ] {
        let mut members = local.clone();
        members["peerIP"] = "192.0.2.1".into();
        members["asNumber"] = 65001.into();
        for node in ["n1", "n2", "n3", "n9"] {
            let view = with(node, &[("bgppeers/p", spec(members.clone()))]);
            let expected = format!("host/{node}/peer_v4/192.0.2.1");
            let expected: Vec<String> = hosts.contains(&node).then_some(expected).into_iter().collect();
            assert_eq!(keys(&view), expected, "{local} on {node}");
        }
    }
}

#[test]
fn a_node_peer_with_address_and_port_of_a_global_one_is_dropped() {
    let own = json!({ "node": "n1", "peerIP": "192.0.2.1", "asNumber": 65002 });
    let global = json!({ "peerIP": "192.0.2.1", "asNumber": 65001 });
    let both = with("n1", &[("bgppeers/a", spec(own.clone())), ("bgppeers/z", spec(global.clone()))]);
    assert_eq!(keys(&both), ["global/peer_v4/192.0.2.1"]);
    assert_eq!(both.codes(), [("bgppeers/a", "peer-configuration")]);
    let mut other_port = own;
    other_port["peerIP"] = "192.0.2.1:1790".into();
    let both = with("n1", &[("bgppeers/a", spec(other_port)), ("bgppeers/z", spec(global))]);
    assert_eq!(keys(&both), ["global/peer_v4/192.0.2.1", "host/n1/peer_v4/192.0.2.1-1790"]);
    assert_eq!(both.codes(), []);
}

#[test]
fn of_two_peers_in_one_pass_the_lowest_name_counts_and_both_are_named() {
    let of = |asn: u32| spec(json!({ "peerIP": "192.0.2.1", "asNumber": asn }));
    let clash = with("n1", &[("bgppeers/b", of(65002)), ("bgppeers/a", of(65001))]);
    assert_eq!(clash.json(ROUTER)["as_num"], "65001");
    assert_eq!(clash.codes(), [("bgppeers/b", "peer-configuration")]);
    let text = &clash.problems[0].2;
    assert!(text.contains("BGPPeer a") && text.contains("BGPPeer b"), "{text}");
    // Two that agree are no problem.
    assert_eq!(with("n1", &[("bgppeers/b", of(65001)), ("bgppeers/a", of(65001))]).codes(), []);
}

#[test]
fn the_reverse_pass_makes_peerings_between_nodes_symmetric() {
    let reflect = json!({ "nodeSelector": "rack == 'b'", "peerSelector": "has(reflector)" });
    let objects = [("bgppeers/p", spec(reflect.clone()))];
    assert_eq!(keys(&with("n3", &objects)), ["host/n3/peer_v4/10.1.0.2"]);
    let reverse = with("n2", &objects);
    assert_eq!(keys(&reverse), ["host/n2/peer_v4/10.1.0.3"]);
    assert_eq!(reverse.origins["bgp/v1/host/n2/peer_v4/10.1.0.3"], ["bgppeers/p", "nodes/n3"]);
    assert_eq!(keys(&with("n1", &objects)), Vec::<String>::new());
    let mut manual = reflect;
    manual["reversePeering"] = "Manual".into();
    assert_eq!(keys(&with("n2", &[("bgppeers/p", spec(manual))])), Vec::<String>::new());
    // The peers of a host that all others have as their peer are all of them.
    let all = [("bgppeers/p", spec(json!({ "peerSelector": "has(reflector)" })))];
    let expected = ["global/peer_v4/10.1.0.2", "host/n2/peer_v4/10.1.0.1", "host/n2/peer_v4/10.1.0.3"];
    assert_eq!(keys(&with("n2", &all)), expected);
}

#[test]
fn a_node_that_is_a_peer_by_address_has_the_reverse_if_as_and_port_fit() {
    let of = |members: Value| {
        let mut all = json!({ "node": "n3", "peerIP": "10.1.0.2", "asNumber": 64512 });
        all.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
        spec(all)
    };
    let port = |name: &'static str, port: u16| (name, spec(json!({ "listenPort": port })));
    let (own, global) = ("bgpconfigurations/node.n2", "bgpconfigurations/default");
    let reverse = vec!["host/n2/peer_v4/10.1.0.3".to_owned()];
    for (members, more, expected) in [
        (json!({}), vec![], reverse.clone()),
        (json!({ "asNumber": 65001 }), vec![], vec![]),
        // Of n3 no port is known.
        (json!({ "peerIP": "10.1.0.2:1790" }), vec![port(own, 1790)], reverse.clone()),
        (json!({ "peerIP": "10.1.0.2:1790" }), vec![port(own, 1791)], vec![]),
        (
            json!({ "peerIP": "10.1.0.2:1790" }),
            vec![port(global, 1790)],
            vec!["host/n2/peer_v4/10.1.0.3-1790".to_owned()],
        ),
        (json!({ "peerIP": "10.1.0.2:1790" }), vec![port(global, 1791)], vec![]),
        // As in Calico, the global port must not differ even if the node has its own.
        (json!({ "peerIP": "10.1.0.2:1790" }), vec![port(own, 1790), port(global, 1791)], vec![]),
    ] {
        let mut objects = more.clone();
        objects.push(("bgppeers/p", of(members.clone())));
        assert_eq!(keys(&with("n2", &objects)), expected, "{members} with {more:?}");
    }
}

#[test]
fn an_explicit_peering_is_not_replaced_by_a_reverse_one() {
    let own = json!({ "node": "n2", "peerIP": "10.1.0.3", "asNumber": 64512, "keepaliveTime": "7s" });
    let theirs = json!({ "node": "n3", "peerSelector": "has(reflector)", "keepaliveTime": "9s" });
    let both = with("n2", &[("bgppeers/z", spec(own)), ("bgppeers/a", spec(theirs))]);
    assert_eq!(keys(&both), ["host/n2/peer_v4/10.1.0.3"]);
    assert_eq!(both.json("bgp/v1/host/n2/peer_v4/10.1.0.3")["keepalive_time"], "7s");
    assert_eq!(both.codes(), []);
}

#[test]
fn a_selected_node_is_a_peer_in_each_of_its_families() {
    let both = spec(json!({ "bgp": { "ipv4Address": "10.1.0.9", "ipv6Address": "fd00::9" } }));
    let all = spec(json!({ "node": "n1", "peerSelector": "!has(rack)" }));
    let view = with("n1", &[("nodes/n9", both.clone()), ("bgppeers/p", all)]);
    assert_eq!(keys(&view), ["host/n1/peer_v4/10.1.0.9", "host/n1/peer_v6/fd00::9"]);
    // By address, the reverse has the family of the address.
    let by_address = spec(json!({ "node": "n9", "peerIP": "10.1.0.1", "asNumber": 64512 }));
    let view = with("n1", &[("nodes/n9", both), ("bgppeers/p", by_address)]);
    assert_eq!(keys(&view), ["host/n1/peer_v4/10.1.0.9"]);
}

#[test]
fn port_as_and_cluster_id_of_a_selected_node_are_its_own() {
    let node = spec(json!({ "bgp": {
        "ipv4Address": "10.1.0.9", "asNumber": 64999, "routeReflectorClusterID": "244.0.0.1",
    } }));
    let objects = [
        ("nodes/n9", node),
        ("bgpconfigurations/default", spec(json!({ "asNumber": 64888, "listenPort": 1790 }))),
        ("bgpconfigurations/node.n9", spec(json!({ "listenPort": 1791 }))),
        // Members that a selected node never has.
        (
            "bgppeers/p",
            spec(json!({
                "node": "n1", "peerSelector": "all()", "localASNumber": 65000, "numAllowedLocalASNumbers": 2,
            })),
        ),
    ];
    let view = with("n1", &objects);
    let own = view.json("bgp/v1/host/n1/peer_v4/10.1.0.9-1791");
    assert_eq!((&own["as_num"], &own["port"]), (&json!("64999"), &json!(1791)));
    assert_eq!((&own["rr_cluster_id"], &own["calico_node"]), (&json!("244.0.0.1"), &json!(false)));
    assert_eq!((own.get("local_as_num"), own.get("num_allow_local_as")), (None, None));
    let other = view.json("bgp/v1/host/n1/peer_v4/10.1.0.3-1790");
    assert_eq!((&other["as_num"], &other["rr_cluster_id"]), (&json!("64888"), &json!("")));
}

#[test]
fn a_peer_by_address_that_is_a_node_has_the_nodes_port() {
    let objects = |asn: u32| {
        [
            ("bgpconfigurations/node.n2", spec(json!({ "listenPort": 1790 }))),
            ("bgppeers/p", spec(json!({ "node": "n1", "peerIP": "10.1.0.2", "asNumber": asn }))),
        ]
    };
    let fits = with("n1", &objects(64512));
    let value = fits.json("bgp/v1/host/n1/peer_v4/10.1.0.2-1790");
    assert_eq!((&value["port"], &value["calico_node"]), (&json!(1790), &json!(true)));
    // With another AS it is not that node, although the address is one of a node.
    let value = with("n1", &objects(65001)).json("bgp/v1/host/n1/peer_v4/10.1.0.2");
    assert_eq!((&value["port"], &value["calico_node"]), (&json!(0), &json!(true)));
}

#[test]
fn members_of_the_object_reach_the_peer() {
    let peer = |members: Value| router(members).1.unwrap();
    let plain = peer(json!({}));
    assert_eq!(plain.source_addr, SourceAddr::UseNodeIp);
    assert_eq!((plain.port, plain.rr_cluster_id, plain.calico_node), (None, None, false));
    assert_eq!((plain.restart_time, plain.keepalive_time, plain.ttl_security), (None, None, None));
    assert_eq!(peer(json!({ "sourceAddress": "None" })).source_addr, SourceAddr::None);
    assert_eq!(peer(json!({ "maxRestartTime": "1m59.6s" })).restart_time, Some(Duration::from_secs(120)));
    assert_eq!(peer(json!({ "keepaliveTime": "20s" })).keepalive_time, Some(Duration::from_secs(20)));
    assert_eq!(peer(json!({ "ttlSecurity": 2 })).ttl_security, Some(2));
    assert_eq!(peer(json!({ "numAllowedLocalASNumbers": 3 })).num_allow_local_as, 3);
    assert_eq!(peer(json!({ "localASNumber": 65000 })).local_as_num.unwrap().get(), 65000);
    assert!(peer(json!({ "keepOriginalNextHop": true })).keep_next_hop);
    assert_eq!(peer(json!({ "nextHopMode": "Self" })).next_hop_mode, Some(NextHopMode::Own));
    let both = peer(json!({ "nextHopMode": "Auto", "keepOriginalNextHop": true }));
    assert_eq!((both.next_hop_mode, both.keep_next_hop), (Some(NextHopMode::Auto), false));
}

#[test]
fn a_peer_with_an_unusable_password_has_no_session() {
    let with = |password: Value| router(json!({ "password": password }));
    let (view, found) = with(json!({ "secretKeyRef": { "name": "bgp", "key": "tor" } }));
    let file = crate::resource::Password::File("/etc/tortie/secrets/bgp/tor".into());
    assert_eq!(found.unwrap().password, Some(file));
    assert_eq!(view.codes(), []);
    for password in [json!({}), json!("secret"), json!({ "secretKeyRef": { "name": "../..", "key": "x" } })] {
        let (view, found) = with(password);
        assert_eq!((found, view.codes()), (None, vec![("bgppeers/p", "invalid-value")]));
        assert!(!view.problems[0].2.contains("secret`"), "{:?}", view.problems);
    }
}

#[test]
fn an_unknown_filter_is_named_and_kept() {
    let (view, found) = router(json!({ "filters": ["mine", "other"] }));
    assert_eq!(found.unwrap().filters, ["mine", "other"]);
    assert_eq!(view.codes(), [("bgppeers/p", "peer-configuration"); 2]);
    let objects = [
        ("bgpfilters/mine", spec(json!({}))),
        ("bgppeers/p", spec(json!({ "peerIP": "192.0.2.1", "asNumber": 1, "filters": ["mine"] }))),
    ];
    assert_eq!(with("n1", &objects).codes(), []);
}

#[test]
fn a_gateway_of_another_family_is_refused() {
    let (view, found) = router(json!({ "reachableBy": "192.0.2.254" }));
    assert_eq!(found.unwrap().reachable_by, Some("192.0.2.254".parse().unwrap()));
    assert_eq!(view.codes(), []);
    for gateway in ["fd00::1", "there"] {
        let (view, found) = router(json!({ "reachableBy": gateway }));
        assert_eq!((found, view.codes()), (None, vec![("bgppeers/p", "invalid-value")]));
    }
}

#[test]
fn addresses_have_ports_as_go_writes_them() {
    for (text, key) in [
        ("192.0.2.1", Some("peer_v4/192.0.2.1")),
        ("192.0.2.1:179", Some("peer_v4/192.0.2.1")),
        ("192.0.2.1:0", Some("peer_v4/192.0.2.1")),
        ("192.0.2.1:1790", Some("peer_v4/192.0.2.1-1790")),
        ("192.0.2.1:0x6fe", Some("peer_v4/192.0.2.1-1790")),
        ("192.0.2.1:017", Some("peer_v4/192.0.2.1-15")),
        ("2001:DB8::1", Some("peer_v6/2001:db8::1")),
        ("[2001:db8::1]:1790", Some("peer_v6/2001:db8::1-1790")),
        ("192.0.2.1:70000", None),
        ("192.0.2.1:+1", None),
        ("192.0.2.300", None),
        ("router", None),
    ] {
        let view = with("n1", &[("bgppeers/p", spec(json!({ "peerIP": text, "asNumber": 65001 })))]);
        let expected: Vec<String> = key.map(|key| format!("global/{key}")).into_iter().collect();
        assert_eq!(keys(&view), expected, "{text}");
        assert_eq!(view.codes().len(), usize::from(key.is_none()), "{text}");
        if key.is_some() {
            peer(&view, &format!("bgp/v1/{}", expected[0]));
        }
    }
}

#[test]
fn a_peer_that_is_not_valid_has_no_session_and_is_named() {
    for members in [
        json!({ "peerIP": "192.0.2.1" }),
        json!({ "peerIP": "192.0.2.1", "asNumber": 0 }),
        json!({ "peerIP": "192.0.2.1", "asNumber": "x" }),
        json!({ "asNumber": 65001 }),
        json!({ "peerIP": "192.0.2.1", "asNumber": 65001, "peerSelector": "all()" }),
        json!({ "peerIP": "192.0.2.1", "asNumber": 65001, "node": "n1", "nodeSelector": "all()" }),
        json!({ "peerIP": "192.0.2.1", "asNumber": 65001, "nodeSelector": "all(" }),
        json!({ "peerIP": "192.0.2.1", "asNumber": 65001, "nodeSelector": 7 }),
        json!({ "peerIP": "192.0.2.1", "asNumber": 65001, "node": 7 }),
        json!({ "peerIP": "192.0.2.1", "asNumber": 65001, "ttlSecurity": 1000 }),
        json!({ "peerSelector": "rack =" }),
        json!({ "localWorkloadSelector": "all()" }),
    ] {
        let view = with("n1", &[("bgppeers/p", spec(members.clone()))]);
        assert_eq!(keys(&view), Vec::<String>::new(), "{members}");
        assert_eq!(view.codes(), [("bgppeers/p", "invalid-value")], "{members}");
    }
}

#[test]
fn local_workloads_are_peers_of_this_host() {
    let object =
        |key: ObjectKey, value: Value| Object::parse(key, value.to_string().as_bytes(), 1, 1).unwrap();
    let endpoint = |name: &str, networks: Value, role: &str| {
        let value = json!({
            "metadata": { "labels": { "role": role, "pcns.role": "router" } },
            "spec": { "ipNetworks": networks, "serviceAccountName": "bird", "profiles": ["none", "kns.ns"] },
        });
        object(ObjectKey::namespaced(Kind::WorkloadEndpoint, "ns", name), value)
    };
    let mut objects = Objects::default();
    let labels = spec(json!({ "labelsToApply": { "pcns.zone": "z", "role": "router" } }));
    objects.insert(object(ObjectKey::global(Kind::Profile, "kns.ns"), labels));
    let networks = json!(["10.0.0.5/32", "10.0.0.6/32", "fd00::5/128"]);
    objects.insert(endpoint("n1-cni-1-eth0", networks, "router"));
    objects.insert(endpoint("n1-cni-2-eth0", json!(["10.0.0.7/32"]), "web"));
    objects.insert(endpoint("n1-cni-3-eth0", json!(["10.0.0.8/32", "nowhere"]), "router"));
    let mut peers = |selector: &str, asn: Value| {
        let members = json!({
            "localWorkloadSelector": selector, "asNumber": asn, "localASNumber": 65000, "maxRestartTime": "9s",
        });
        objects.insert(object(ObjectKey::global(Kind::BGPPeer, "p"), spec(members)));
        crate::calico3::bgp::peers(&objects, "n1")
    };
    let out = peers("role == 'router'", json!(65001));
    let keys: Vec<String> = out.entries.iter().map(|entry| entry.key.to_string()).collect();
    let root = "/calico/bgp/v1/host/n1/";
    assert_eq!(keys, [format!("{root}peer_v4/10.0.0.5"), format!("{root}peer_v6/fd00::5")]);
    let value: Value = serde_json::from_slice(&out.entries[0].value).unwrap();
    assert_eq!(
        value,
        json!({
            "ip": "10.0.0.5", "as_num": "65001", "port": 0, "rr_cluster_id": "", "calico_node": false, "filters": [],
            "source_addr": "None", "passive_mode": true, "local_bgp_peer": true, "local_as_num": "65000",
        })
    );
    assert_eq!(out.entries[0].origin.len(), 2);
    assert_eq!(out.problems, []);
    let accounts = peers("projectcalico.org/serviceaccount == 'bird'", json!(65001));
    assert_eq!(accounts.entries.len(), 3);
    // Labels that would fake those of the namespace do not count.
    assert_eq!(peers("has(pcns.role)", json!(65001)).entries.len(), 0);
    // Those of its profiles do, unless it has the label itself.
    assert_eq!(peers("pcns.zone == 'z'", json!(65001)).entries.len(), 3);
    assert_eq!(peers("pcns.zone == 'z' && role == 'web'", json!(65001)).entries.len(), 1);
}

#[test]
fn five_thousand_nodes_and_one_peer_by_selector_are_cheap() {
    let mut objects = Objects::default();
    let mut put = |key: ObjectKey, value: Value| {
        objects.insert(Object::parse(key, value.to_string().as_bytes(), 1, 1).unwrap());
    };
    for n in 0..5000_u32 {
        let addr = format!("10.{}.{}.1/24", n / 250, n % 250);
        put(
            ObjectKey::global(Kind::Node, &format!("n{n}")),
            host(&addr, json!({ "rack": (n % 40).to_string() })),
        );
    }
    let members = json!({ "nodeSelector": "rack != '1'", "peerSelector": "rack == '1'" });
    put(ObjectKey::global(Kind::BGPPeer, "p"), spec(members));
    // One reflector has the peers of all racks, another host those of one.
    assert_eq!(crate::calico3::bgp::peers(&objects, "n1").entries.len(), 4875);
    assert_eq!(crate::calico3::bgp::peers(&objects, "n2").entries.len(), 125);
}
