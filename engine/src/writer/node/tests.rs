//! Tests of the registration of a host and of its tunnel addresses, in both dialects.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;

const NODE: &str = "/calico/resources/v3/projectcalico.org/nodes/h1";

fn birth() -> Birth {
    Birth { uid: "00000000-0000-4000-8000-000000000001".into(), time: "2026-01-02T03:04:05Z".into() }
}

fn address(text: &str) -> NodeAddress {
    let (addr, len) = text.split_once('/').unwrap();
    NodeAddress { addr: addr.parse().unwrap(), len: len.parse().unwrap() }
}

/// A host that has 192.0.2.13/24, with this flag for IPv4.
fn host(flag: AddressFlag) -> Registration {
    Registration {
        node: "h1".into(),
        ipv4: AddressSource { flag, detected: Some(address("192.0.2.13/24")) },
        ipv6: AddressSource::default(),
        asn: None,
    }
}

fn kv(key: &str, value: &str) -> KeyValue {
    KeyValue { key: key.into(), value: value.into(), mod_revision: 7, create_revision: 5 }
}

fn ops(txn: Option<Txn>) -> BTreeMap<String, Option<String>> {
    let op = |op| match op {
        Op::Put { key, value, .. } => (key, Some(String::from_utf8(value).unwrap())),
        Op::Delete { key } => (key, None),
        Op::DeletePrefix { prefix } => panic!("{prefix}"),
    };
    txn.map(|txn| txn.ops).unwrap_or_default().into_iter().map(op).collect()
}

/// Registers in a v1 store.
fn v1(store: &[(&str, &str)], host: &Registration) -> BTreeMap<String, Option<String>> {
    let stored: Vec<_> = store.iter().map(|(key, value)| Some(kv(key, value))).collect();
    ops(Writer::of(Dialect::V1).register(host, &stored, &birth()).unwrap())
}

/// Registers in a Calico 3 store; returns the Node that is written.
fn v3(stored: Option<&Value>, host: &Registration) -> Option<Value> {
    let stored = stored.map(|value| kv(NODE, &value.to_string()));
    let compares = compare(NODE, stored.as_ref());
    let txn = Writer::of(Dialect::V3).register(host, &[stored], &birth()).unwrap()?;
    assert_eq!(txn.compare, [compares], "a concurrent change is a conflict");
    let written = ops(Some(txn));
    assert_eq!(written.keys().map(String::as_str).collect::<Vec<_>>(), [NODE]);
    Some(serde_json::from_str(written[NODE].as_deref().unwrap()).unwrap())
}

#[test]
fn an_empty_store_gets_the_host_and_the_defaults() {
    let written = v1(&[], &host(AddressFlag::Unset));
    let get = |k: &str| written.get(k).cloned().flatten();
    assert_eq!(get("/calico/bgp/v1/host/h1/ip_addr_v4").as_deref(), Some("192.0.2.13"));
    assert_eq!(get("/calico/bgp/v1/host/h1/network_v4").as_deref(), Some("192.0.2.0/24"));
    assert_eq!(get("/calico/v1/host/h1/bird_ip").as_deref(), Some("192.0.2.13"));
    assert_eq!(get("/calico/v1/host/h1/metadata").as_deref(), Some("{}"));
    assert_eq!(get("/calico/v1/host/h1/config/DefaultEndpointToHostAction").as_deref(), Some("RETURN"));
    assert_eq!(get("/calico/bgp/v1/global/as_num").as_deref(), Some("64512"));
    assert_eq!(get("/calico/v1/Ready").as_deref(), Some("true"));
    assert!(!written.contains_key("/calico/bgp/v1/host/h1/ip_addr_v6"));
    assert!(!written.keys().any(|k| k.contains("pool")));

    let node = v3(None, &host(AddressFlag::Unset)).unwrap();
    assert_eq!(node["metadata"]["name"], "h1");
    assert_eq!(node["spec"], json!({"bgp": {"ipv4Address": "192.0.2.13/24"}}));
}

#[test]
fn what_stands_stays_and_a_flag_wins() {
    let full = [
        ("/calico/v1/Ready", "false"),
        ("/calico/v1/host/h1/metadata", "{\"x\":1}"),
        ("/calico/v1/host/h1/config/DefaultEndpointToHostAction", "DROP"),
        ("/calico/bgp/v1/global/as_num", "65000"),
        ("/calico/bgp/v1/global/node_mesh", "{\"enabled\":false}"),
        ("/calico/bgp/v1/host/h1/ip_addr_v4", "198.51.100.1"),
        ("/calico/bgp/v1/host/h1/network_v4", "198.51.100.0/24"),
    ];
    let node = json!({
        "kind": "Node", "apiVersion": "projectcalico.org/v3", "odd": 1,
        "metadata": {"name": "h1", "uid": "u", "creationTimestamp": "t", "labels": {"rack": "1"}},
        "spec": {"bgp": {"ipv4Address": "198.51.100.1/24", "odd": 2}, "odd": 3},
    });
    assert!(v1(&full, &host(AddressFlag::Unset)).is_empty());
    assert_eq!(v3(Some(&node), &host(AddressFlag::Unset)), None);

    let flags = Registration { asn: Some(65_001), ..host(AddressFlag::Given(address("203.0.113.5/25"))) };
    let written = v1(&full, &flags);
    let get = |k: &str| written.get(k).cloned().flatten();
    assert_eq!(get("/calico/bgp/v1/host/h1/ip_addr_v4").as_deref(), Some("203.0.113.5"));
    assert_eq!(get("/calico/bgp/v1/host/h1/network_v4").as_deref(), Some("203.0.113.0/25"));
    assert_eq!(get("/calico/bgp/v1/host/h1/as_num").as_deref(), Some("65001"));
    assert_eq!(written.len(), 4);
    let mut expected = node;
    expected["spec"]["bgp"]["ipv4Address"] = json!("203.0.113.5/25");
    expected["spec"]["bgp"]["asNumber"] = json!(65_001);
    assert_eq!(v3(Some(&expected), &flags), None);
    let mut before = expected.clone();
    before["spec"]["bgp"]["ipv4Address"] = json!("198.51.100.1/24");
    assert_eq!(v3(Some(&before), &flags), Some(expected));
}

#[test]
fn none_leaves_the_family() {
    let none = host(AddressFlag::Nothing);
    let store = [
        ("/calico/bgp/v1/host/h1/ip_addr_v4", "192.0.2.13"),
        ("/calico/bgp/v1/host/h1/network_v4", "192.0.2.0/24"),
    ];
    let written = v1(&store, &none);
    assert_eq!(written["/calico/bgp/v1/host/h1/ip_addr_v4"].as_deref(), Some(""));
    assert_eq!(written["/calico/bgp/v1/host/h1/network_v4"], None);
    let node = v3(Some(&json!({"spec": {"bgp": {"ipv4Address": "192.0.2.13/24"}}})), &none).unwrap();
    assert_eq!(node["spec"], json!({}));
}

#[test]
fn a_stored_address_gets_its_network_if_the_host_has_it() {
    let own = [("/calico/bgp/v1/host/h1/ip_addr_v4", "192.0.2.13")];
    let written = v1(&own, &host(AddressFlag::Unset));
    assert_eq!(written["/calico/bgp/v1/host/h1/network_v4"].as_deref(), Some("192.0.2.0/24"));
    assert_eq!(written["/calico/v1/host/h1/bird_ip"].as_deref(), Some("192.0.2.13"));
    let node = |text: &str| json!({"spec": {"bgp": {"ipv4Address": text}}});
    let of = |text: &str| v3(Some(&node(text)), &host(AddressFlag::Unset)).unwrap()["spec"].clone();
    assert_eq!(of("192.0.2.13"), node("192.0.2.13/24")["spec"]);
    assert_eq!(of("192.0.2.14"), node("192.0.2.14")["spec"], "another one is an operator's");

    let other = [("/calico/bgp/v1/host/h1/ip_addr_v4", "192.0.2.14")];
    assert!(!v1(&other, &host(AddressFlag::Unset)).contains_key("/calico/bgp/v1/host/h1/network_v4"));
    // Only what is absent is written.
    let wide = [own[0], ("/calico/bgp/v1/host/h1/network_v4", "192.0.0.0/16")];
    let written = v1(&wide, &host(AddressFlag::Unset));
    assert!(!written.contains_key("/calico/bgp/v1/host/h1/network_v4"));
    assert_eq!(written["/calico/v1/host/h1/bird_ip"].as_deref(), Some("192.0.2.13"));
}

#[test]
fn a_node_that_cannot_be_parsed_is_not_written() {
    for broken in ["", "{", "[]", r#"{"spec":{"bgp":1}}"#, r#"{"metadata":{"labels":1}}"#] {
        let stored = Some(kv(NODE, broken));
        let writer = Writer::of(Dialect::V3);
        let error = writer.register(&host(AddressFlag::Unset), std::slice::from_ref(&stored), &birth());
        assert!(error.unwrap_err().to_string().contains(NODE), "{broken}");
        let addr = Some("10.0.0.1".parse().unwrap());
        let error = writer.tunnel_address("h1", TunnelKind::Ipip, addr, stored.as_ref(), &birth());
        if broken != r#"{"metadata":{"labels":1}}"# {
            assert!(error.unwrap_err().to_string().contains(NODE), "{broken}");
        }
    }
}

#[test]
fn a_cluster_is_created_ready_and_never_changed() {
    assert_eq!(Writer::of(Dialect::V1).cluster("0", &birth()), None);
    let (key, txn) = Writer::of(Dialect::V3).cluster("0123456789abcdef0123456789abcdef", &birth()).unwrap();
    assert_eq!(key, "/calico/resources/v3/projectcalico.org/clusterinformations/default");
    assert_eq!(txn.compare, [Compare::Absent(key.clone())]);
    let value: Value = serde_json::from_str(ops(Some(txn))[&key].as_deref().unwrap()).unwrap();
    assert_eq!(value["spec"]["datastoreReady"], true);
    assert_eq!(value["spec"]["clusterType"], "tortie");
}

#[test]
fn each_tunnel_has_its_place() {
    let stored = json!({
        "kind": "Node", "apiVersion": "projectcalico.org/v3", "metadata": {"name": "h1", "uid": "u", "creationTimestamp": "t"},
        "spec": {"bgp": {"ipv4Address": "192.0.2.13/24"}, "odd": 1},
    });
    for (kind, addr, setting, place) in [
        (TunnelKind::Ipip, "10.0.0.1", "IpInIpTunnelAddr", "/spec/bgp/ipv4IPIPTunnelAddr"),
        (TunnelKind::Vxlan, "10.0.0.1", "IPv4VXLANTunnelAddr", "/spec/ipv4VXLANTunnelAddr"),
        (TunnelKind::VxlanV6, "fd00::1", "IPv6VXLANTunnelAddr", "/spec/ipv6VXLANTunnelAddr"),
    ] {
        let addr: IpAddr = addr.parse().unwrap();
        let writer = Writer::of(Dialect::V1);
        let key = format!("/calico/v1/host/h1/config/{setting}");
        assert_eq!(writer.tunnel_address_key("h1", kind), key);
        let txn = writer.tunnel_address("h1", kind, Some(addr), None, &birth()).unwrap().unwrap();
        assert_eq!(txn.compare, [Compare::Absent(key.clone())]);
        let written = ops(Some(txn))[&key].clone().unwrap();
        let written = kv(&key, &written);
        assert_eq!(writer.stored_tunnel_address(kind, &written), Some(addr));
        let txn = writer.tunnel_address("h1", kind, None, Some(&written), &birth()).unwrap();
        assert_eq!(ops(txn)[&key], None);

        let writer = Writer::of(Dialect::V3);
        assert_eq!(writer.tunnel_address_key("h1", kind), NODE);
        let before = kv(NODE, &stored.to_string());
        assert_eq!(writer.stored_tunnel_address(kind, &before), None);
        let txn = writer.tunnel_address("h1", kind, Some(addr), Some(&before), &birth()).unwrap().unwrap();
        assert_eq!(txn.compare, [Compare::ModRevision(NODE.into(), 7)]);
        let after = kv(NODE, &ops(Some(txn))[NODE].clone().unwrap());
        assert_eq!(writer.stored_tunnel_address(kind, &after), Some(addr));
        let json: Value = serde_json::from_slice(&after.value).unwrap();
        assert_eq!(json.pointer(place), Some(&json!(addr.to_string())));
        assert_eq!(writer.tunnel_address("h1", kind, Some(addr), Some(&after), &birth()).unwrap(), None);
        let txn = writer.tunnel_address("h1", kind, None, Some(&after), &birth()).unwrap();
        let removed: Value = serde_json::from_str(ops(txn)[NODE].as_deref().unwrap()).unwrap();
        assert_eq!(removed, stored);
        // A tunnel address alone makes no Node: IPAM gives none to a host that is not registered.
        let error = writer.tunnel_address("h1", kind, Some(addr), None, &birth()).unwrap_err();
        assert!(matches!(error, WriteError::NoNode(_)));
        assert_eq!(writer.tunnel_address("h1", kind, None, None, &birth()).unwrap(), None);
    }
}
