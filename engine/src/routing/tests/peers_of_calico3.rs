//! Tests of the sessions of a host in a store of Calico 3, from its objects. Expected values are those of
//! BIRD under Calico 3's configuration.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use serde_json::{Value, json};
use tortie_config::Dialect;
use tortie_store::fixtures::snapshot;

use super::names;
use crate::model::{Model, WatchPart};
use crate::routing::*;

const ROOT: &str = "/calico/resources/v3/projectcalico.org/";

/// Returns the model of host `b` in a store with these objects, given as `plural/name` and `spec`.
fn model(objects: &[(&str, Value)]) -> Model {
    let written: Vec<(String, String)> = objects
        .iter()
        .map(|(key, spec)| {
            let labels = json!({ "name": key.trim_start_matches("nodes/") });
            (format!("{ROOT}{key}"), json!({ "metadata": { "labels": labels }, "spec": spec }).to_string())
        })
        .collect();
    let entries: Vec<(&str, &str)> = written.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let mut model = Model::new("b");
    model.set_dialect(Dialect::V3);
    model.replace(WatchPart::All, &snapshot(10, &entries));
    model
}

/// Returns the intent of host `b` of three, with more objects.
fn plan(more: &[(&str, Value)]) -> RoutingIntent {
    let mut objects = vec![
        ("nodes/a", node("192.0.2.10/24", json!({}))),
        ("nodes/b", node("192.0.2.9/24", json!({}))),
        ("nodes/c", node("192.0.2.99/24", json!({}))),
    ];
    for (key, spec) in more {
        objects.retain(|(other, _)| other != key);
        objects.push((key, spec.clone()));
    }
    intent(&model(&objects), &NodeOptions::default())
}

fn node(v4: &str, more: Value) -> Value {
    let mut bgp = json!({ "ipv4Address": v4 });
    bgp.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({ "bgp": bgp })
}

fn configuration(spec: Value) -> (&'static str, Value) {
    ("bgpconfigurations/default", spec)
}

#[test]
fn the_mesh_has_a_session_for_each_family() {
    let both = json!({ "ipv6Address": "2001:db8::1/64" });
    let own = json!({ "ipv6Address": "2001:db8::2/64" });
    let plan = plan(&[("nodes/a", node("192.0.2.10/24", both)), ("nodes/b", node("192.0.2.9/24", own))]);
    assert_eq!(names(&plan), ["Mesh_192_0_2_10", "Mesh_192_0_2_99", "Mesh_2001_db8__1"]);
    let carried: Vec<_> = plan.peers.values().map(|peer| (peer.ipv4, peer.ipv6)).collect();
    assert_eq!(carried, [(true, false), (true, false), (false, true)]);
}

#[test]
fn mesh_sessions_have_as_port_and_password_and_the_lesser_text_waits() {
    let plan = plan(&[
        configuration(json!({
            "asNumber": 64999, "listenPort": 1790,
            "nodeMeshPassword": { "secretKeyRef": { "name": "bgp", "key": "mesh" } },
        })),
        ("bgpconfigurations/node.c", json!({ "listenPort": 1791 })),
        ("nodes/a", node("192.0.2.10/24", json!({ "asNumber": 65001 }))),
    ]);
    let ends: Vec<_> = plan.peers.values().map(|peer| (peer.asn, peer.remote.port())).collect();
    assert_eq!(ends, [(65001, 1790), (64999, 1791)]);
    assert!(plan.peers.values().all(|peer| peer.has_key_file()));
    assert!(plan.peers.values().map(|peer| peer.next_hop).eq([NextHopMode::Auto, NextHopMode::Keep]));
    // As text, "192.0.2.9" is greater than "192.0.2.10" and less than "192.0.2.99".
    assert_eq!(plan.peers["Mesh_192_0_2_10"].dial_after, Some(Duration::ZERO));
    assert_ne!(plan.peers["Mesh_192_0_2_99"].dial_after, Some(Duration::ZERO));
}

#[test]
fn reflectors_and_a_mesh_that_is_off_have_no_mesh_sessions() {
    let reflector = |addr| node(addr, json!({ "routeReflectorClusterID": "244.0.0.1" }));
    assert_eq!(names(&plan(&[("nodes/a", reflector("192.0.2.10/24"))])), ["Mesh_192_0_2_99"]);
    assert_eq!(names(&plan(&[("nodes/b", reflector("192.0.2.9/24"))])), [""; 0]);
    assert_eq!(names(&plan(&[configuration(json!({ "nodeToNodeMeshEnabled": false }))])), [""; 0]);
    // Without a valid reference to the password there is no session.
    assert_eq!(names(&plan(&[configuration(json!({ "nodeMeshPassword": {} }))])), [""; 0]);
}

#[test]
fn only_global_peers_by_the_address_of_a_node_wait_for_the_other_end() {
    let peer = |members: Value| {
        let mut all = json!({ "asNumber": 64512 });
        all.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
        ("bgppeers/p", all)
    };
    let no_mesh = configuration(json!({ "nodeToNodeMeshEnabled": false }));
    for (members, name, waits) in [
        (json!({ "peerIP": "192.0.2.99" }), "Global_192_0_2_99", true),
        (json!({ "peerIP": "192.0.2.10" }), "Global_192_0_2_10", false),
        (json!({ "peerIP": "192.0.2.250" }), "Global_192_0_2_250", false),
        (json!({ "peerIP": "192.0.2.99", "node": "b" }), "Node_192_0_2_99", false),
        (json!({ "peerSelector": "name == 'c'" }), "Global_192_0_2_99", false),
    ] {
        let plan = plan(&[no_mesh.clone(), peer(members.clone())]);
        let found = plan.peers.get(name).unwrap_or_else(|| panic!("{members}: {:?}", names(&plan)));
        assert_eq!(found.dial_after != Some(Duration::ZERO), waits, "{members}");
    }
}

#[test]
fn the_reverse_of_a_peering_is_that_of_the_projection() {
    let no_mesh = configuration(json!({ "nodeToNodeMeshEnabled": false }));
    let peer = |reverse: &str| {
        ("bgppeers/p", json!({ "peerIP": "192.0.2.9", "asNumber": 64512, "reversePeering": reverse }))
    };
    let expected = ["Node_192_0_2_10", "Node_192_0_2_99"];
    assert_eq!(names(&plan(&[no_mesh.clone(), peer("Auto")])), expected);
    assert_eq!(names(&plan(&[no_mesh, peer("Manual")])), [""; 0]);
}

#[test]
fn a_peer_in_our_as_without_our_cluster_id_is_a_client() {
    let client = |own: &str, theirs: &str, asn: u32| {
        let plan = plan(&[
            configuration(json!({ "nodeToNodeMeshEnabled": false })),
            ("nodes/b", node("192.0.2.9/24", json!({ "routeReflectorClusterID": own }))),
            ("nodes/a", node("192.0.2.10/24", json!({ "routeReflectorClusterID": theirs, "asNumber": asn }))),
            ("bgppeers/p", json!({ "node": "b", "peerSelector": "name == 'a'" })),
        ]);
        plan.peers["Node_192_0_2_10"].reflector_client.map(Ipv4Addr::from)
    };
    let id = Some(Ipv4Addr::new(244, 0, 0, 1));
    assert_eq!(client("244.0.0.1", "", 64512), id);
    assert_eq!(client("244.0.0.1", "244.0.0.2", 64512), id);
    assert_eq!(client("244.0.0.1", "244.0.0.1", 64512), None);
    assert_eq!(client("244.0.0.1", "", 65001), None);
    assert_eq!(client("", "244.0.0.1", 64512), None);
}

#[test]
fn next_hops_are_kept_towards_ibgp_or_as_the_mode_says() {
    let next_hop = |members: Value| {
        let mut all = json!({ "peerIP": "192.0.2.250" });
        all.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
        plan(&[("bgppeers/p", all)]).peers["Global_192_0_2_250"].next_hop
    };
    for (members, expected) in [
        (json!({ "asNumber": 65001 }), NextHopMode::Auto),
        (json!({ "asNumber": 65001, "keepOriginalNextHop": true }), NextHopMode::Keep),
        // BIRD's default towards iBGP: the received next hop.
        (json!({ "asNumber": 64512, "keepOriginalNextHop": true }), NextHopMode::Keep),
        (json!({ "asNumber": 64512, "nextHopMode": "Auto" }), NextHopMode::Keep),
        (json!({ "asNumber": 64512, "nextHopMode": "Self" }), NextHopMode::Own),
        (json!({ "asNumber": 65001, "nextHopMode": "Auto" }), NextHopMode::Auto),
        // The AS towards this peer decides what is eBGP.
        (json!({ "asNumber": 65001, "localASNumber": 65001 }), NextHopMode::Keep),
        (json!({ "asNumber": 64512, "nextHopMode": "Keep" }), NextHopMode::Keep),
        (json!({ "asNumber": 65001, "nextHopMode": "Self" }), NextHopMode::Own),
    ] {
        assert_eq!(next_hop(members.clone()), expected, "{members}");
    }
}

#[test]
fn the_host_listens_where_the_bind_mode_says() {
    let listen = |spec: Value| plan(&[configuration(spec)]).listen;
    let addr = |text: &str| text.parse::<SocketAddr>().unwrap();
    assert_eq!(listen(json!({})), [addr("0.0.0.0:179")]);
    assert_eq!(listen(json!({ "bindMode": "None", "listenPort": 1790 })), [addr("0.0.0.0:1790")]);
    assert_eq!(listen(json!({ "bindMode": "NodeIP" })), [addr("192.0.2.9:179")]);
}

#[test]
fn the_router_id_is_the_one_of_the_options() {
    let id = |text: &str| {
        let objects = [("nodes/b", node("192.0.2.9/24", json!({})))];
        let options = NodeOptions { router_id: text.parse().unwrap(), ..NodeOptions::default() };
        Ipv4Addr::from(intent(&model(&objects), &options).router_id)
    };
    assert_eq!(id(""), Ipv4Addr::new(192, 0, 2, 9));
    assert_eq!(id("10.9.8.7"), Ipv4Addr::new(10, 9, 8, 7));
    // The first four bytes of the SHA-256 of `b`.
    assert_eq!(id("hash"), Ipv4Addr::new(62, 35, 232, 22));
    assert!("somewhere".parse::<RouterId>().is_err());
}

#[test]
fn a_pool_for_load_balancers_is_no_pool_for_routes() {
    let pool = |uses: Value| {
        let plan = plan(&[(
            "ippools/p",
            json!({ "cidr": "10.0.0.0/16", "ipipMode": "Always", "allowedUses": uses }),
        )]);
        (plan.view.pools.len(), plan.tunnel.is_some())
    };
    assert_eq!(pool(json!(["Workload"])), (1, true));
    assert_eq!(pool(json!(["LoadBalancer"])), (0, false));
}
