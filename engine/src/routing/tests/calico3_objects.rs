//! Decisions about supposed routes in a store of Calico 3, from its objects on.

use serde_json::json;
use tortie_config::Dialect;
use tortie_config::resource::RouteSource;
use tortie_store::fixtures::snapshot;

use super::BLOCK;
use crate::model::{Model, WatchPart};
use crate::routing::*;

/// Returns the intent of host `b`: a block, three pools, a router with a filter, and service ranges.
fn intent_of_objects() -> RoutingIntent {
    let object = |kind: &str, name: &str, spec: serde_json::Value| {
        json!({"kind": kind, "apiVersion": "projectcalico.org/v3", "metadata": {"name": name}, "spec": spec})
            .to_string()
    };
    let root = "/calico/resources/v3/projectcalico.org";
    let entries = [
        (format!("{root}/nodes/b"), object("Node", "b", json!({"bgp": {"ipv4Address": "192.0.2.9/24"}}))),
        (format!("{root}/nodes/c"), object("Node", "c", json!({"bgp": {"ipv4Address": "192.0.2.10/24"}}))),
        (
            format!("{root}/ippools/plain"),
            object("IPPool", "plain", json!({"cidr": "10.0.0.0/16", "blockSize": 30})),
        ),
        (
            format!("{root}/ippools/hidden"),
            object("IPPool", "hidden", json!({"cidr": "10.8.0.0/16", "disableBGPExport": true})),
        ),
        (
            format!("{root}/ippools/vxlan"),
            object("IPPool", "vxlan", json!({"cidr": "10.9.0.0/16", "vxlanMode": "Always"})),
        ),
        (
            format!("{root}/ippools/ipip"),
            object("IPPool", "ipip", json!({"cidr": "10.10.0.0/16", "ipipMode": "CrossSubnet"})),
        ),
        (
            format!("{root}/bgpfilters/f"),
            object(
                "BGPFilter",
                "f",
                json!({"exportV4": [
                    {"action": "Reject", "cidr": "10.0.7.0/24", "matchOperator": "In", "communities": {"values": ["65000:1"]}},
                    {"action": "Accept", "cidr": "10.8.5.0/24", "matchOperator": "In",
                     "operations": [{"addCommunity": {"value": "65000:1:2"}}]},
                    {"action": "Accept", "cidr": "172.16.0.0/12"},
                ]}),
            ),
        ),
        (
            format!("{root}/bgppeers/tor"),
            object("BGPPeer", "tor", json!({"peerIP": "192.0.2.1", "asNumber": 65001, "filters": ["f"]})),
        ),
        (
            format!("{root}/bgpconfigurations/default"),
            object(
                "BGPConfiguration",
                "default",
                json!({
                    "serviceClusterIPs": [{"cidr": "10.96.0.0/12"}],
                    "communities": [{"name": "rack", "value": "65000:7"}],
                    "prefixAdvertisements": [{"cidr": "10.0.0.0/16", "communities": ["rack"]}],
                }),
            ),
        ),
        ("/calico/ipam/v2/host/b/ipv4/block/10.0.1.0-30".to_owned(), r#"{"state":"confirmed"}"#.to_owned()),
        ("/calico/ipam/v2/assignment/ipv4/block/10.0.1.0-30".to_owned(), BLOCK.to_owned()),
    ];
    let entries: Vec<(&str, &str)> = entries.iter().map(|(key, value)| (&**key, &**value)).collect();
    let mut model = Model::new("b");
    model.set_dialect(Dialect::V3);
    model.replace(WatchPart::All, &snapshot(10, &entries));
    assert_eq!(model.invalid_keys().map(|p| (&p.key, &p.error)).collect::<Vec<_>>(), []);
    intent(&model, &NodeOptions::default())
}

#[test]
fn objects_decide_about_supposed_routes() {
    let intent = intent_of_objects();
    let local = |prefix: &str| FilterRoute::local(prefix.parse().unwrap());
    let peer = |address: &str| {
        let address = address.parse::<std::net::IpAddr>().unwrap();
        intent.peers.values().find(|peer| peer.remote.ip() == address).unwrap()
    };
    let export = |address, route: &FilterRoute<'_>| {
        let answer = suppose_export(&intent, peer(address), route);
        let added: Vec<String> = answer.added.iter().map(ToString::to_string).collect();
        (answer.accepted, answer.by, added.join(" "))
    };
    let (tor, mesh) = ("192.0.2.1", "192.0.2.10");
    let is = |accepted, by: &str, added: &str| (accepted, by.to_owned(), added.to_owned());
    assert_eq!(export(tor, &local("10.0.1.0/30")), is(true, "own-block", "65000:7"));
    assert_eq!(export(mesh, &local("10.0.1.2/32")), is(false, "inside-own-block", ""));
    assert_eq!(export(mesh, &local("10.8.5.1/32")), is(false, "disable-bgp-export", ""));
    assert_eq!(export(tor, &local("10.8.5.1/32")), is(true, "rule 2 in exportV4 of filter f", "65000:1:2"));
    assert_eq!(export(tor, &local("10.96.0.0/12")), is(true, "service-range", ""));
    assert_eq!(export(tor, &local("10.9.1.0/26")), is(true, "pool", ""));
    // The rule has no operator, so it is not valid, and it accepts nothing.
    assert_eq!(export(tor, &local("172.16.0.0/12")), is(false, "none", ""));
    let marked = FilterRoute { communities: vec![65000 << 16 | 1].into(), ..local("10.0.7.0/26") };
    assert_eq!(export(tor, &marked), is(false, "rule 1 in exportV4 of filter f", ""));

    let learned = FilterRoute { source: RouteSource::Ebgp, ..local("172.16.0.0/12") };
    let answer = suppose_import(&intent, peer(tor), &learned);
    assert_eq!((answer.accepted, answer.by.as_str()), (true, "accept"));

    let kernel = |prefix: &str, hop: &str| {
        let route = FilterRoute { next_hop: Some(hop.parse().unwrap()), ..local(prefix) };
        let answer = suppose_kernel(&intent, &route);
        (answer.programmed, answer.tunnel.is_some(), answer.reason)
    };
    assert_eq!(kernel("10.96.0.0/12", "192.0.2.10"), (false, false, "service-range"));
    assert_eq!(kernel("10.9.1.0/26", "192.0.2.10"), (false, false, "vxlan-pool"));
    assert_eq!(kernel("10.10.1.0/26", "192.0.2.10"), (true, false, "same-subnet"));
    assert_eq!(kernel("10.10.1.0/26", "198.51.100.10"), (true, true, "ipip-cross-subnet"));
}
