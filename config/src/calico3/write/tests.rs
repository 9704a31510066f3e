//! Tests of the values that a host writes.

use serde_json::{Value, json};

use super::super::{Kind, ObjectKey};
use super::*;
use crate::resource::{IpipMode, Pool};

fn birth() -> Birth {
    Birth { uid: "00000000-0000-4000-8000-000000000001".into(), time: "2026-01-02T03:04:05Z".into() }
}

fn json_of(value: &[u8]) -> Value {
    serde_json::from_slice(value).unwrap()
}

/// Members that no version of ours knows, with number texts that a parser would normalize.
const STORED: &str = r#"{ "kind":"Node","apiVersion":"projectcalico.org/v3","future":{"x":1.10,"big":123456789012345678901234567890},
  "metadata":{"name":"h1","uid":"u","creationTimestamp":"2020-01-01T00:00:00Z","labels":{"rack":"1"},"odd": [ 1,2 ]},
  "spec":{"bgp":{"ipv4Address":"192.0.2.1/24","odd": 1.50},"orchRefs":[{"nodeName":"k","orchestrator":"k8s"}],"odd":{ "a":null }},"status":{"wireguardPublicKey":"x"}}"#;

#[test]
fn members_that_are_not_ours_are_written_back_byte_for_byte() {
    let changes =
        NodeChanges { vxlan_address: Edit::Set("10.0.0.1".parse().unwrap()), ..NodeChanges::default() };
    let written = node("h1", Some(STORED.as_bytes()), &changes, &birth()).unwrap().unwrap();
    let text = String::from_utf8(written).unwrap();
    for kept in [
        r#""future":{"x":1.10,"big":123456789012345678901234567890}"#,
        r#""odd":[ 1,2 ]"#,
        r#""odd":1.50"#,
        r#""odd":{ "a":null }"#,
        r#""status":{"wireguardPublicKey":"x"}"#,
        r#""uid":"u""#,
    ] {
        assert!(text.contains(kept), "{kept} in {text}");
    }
    assert!(text.contains(r#""ipv4VXLANTunnelAddr":"10.0.0.1""#));
}

#[test]
fn what_does_not_change_is_not_written() {
    let same = NodeChanges {
        ipv4_address: Edit::Set(("192.0.2.1".parse().unwrap(), 24)),
        ipip_address: Edit::Remove,
        ..NodeChanges::default()
    };
    assert_eq!(node("h1", Some(STORED.as_bytes()), &same, &birth()).unwrap(), None);
    assert_eq!(node("h1", Some(STORED.as_bytes()), &NodeChanges::default(), &birth()).unwrap(), None);
}

#[test]
fn a_new_node_has_what_clients_want_and_an_empty_bgp_is_left_out() {
    let changes = NodeChanges {
        ipv4_address: Edit::Set(("192.0.2.1".parse().unwrap(), 24)),
        as_number: Edit::Set("64513".parse().unwrap()),
        ..NodeChanges::default()
    };
    let first = node("h1", None, &changes, &birth()).unwrap().unwrap();
    assert_eq!(
        json_of(&first),
        json!({
            "kind": "Node", "apiVersion": "projectcalico.org/v3",
            "metadata": {"name": "h1", "uid": birth().uid, "creationTimestamp": birth().time},
            "spec": {"bgp": {"asNumber": 64513, "ipv4Address": "192.0.2.1/24"}},
        })
    );
    let none = NodeChanges { ipv4_address: Edit::Remove, as_number: Edit::Remove, ..NodeChanges::default() };
    let second = node("h1", Some(&first), &none, &birth()).unwrap().unwrap();
    assert_eq!(json_of(&second)["spec"], json!({}));
}

#[test]
fn a_value_that_is_no_object_is_refused() {
    for broken in ["", "[]", "{", r#"{"metadata":3}"#, r#"{"spec":[]}"#, r#"{"spec":{"bgp":1}}"#] {
        assert!(node("h1", Some(broken.as_bytes()), &NodeChanges::default(), &birth()).is_err(), "{broken}");
    }
}

#[test]
fn a_workload_endpoint_gets_calicos_labels_and_host_networks() {
    let key = ObjectKey::namespaced(Kind::WorkloadEndpoint, "default", "h1-cni-abc-eth0");
    let interface = "cali123".parse().unwrap();
    let spec = WorkloadEndpointSpec {
        key: &key,
        node: "h1",
        orchestrator: "cni",
        workload: None,
        pod: None,
        container_id: Some("abc"),
        endpoint: "eth0",
        interface: &interface,
        mac: Some("ee:ee:ee:ee:ee:ee".parse().unwrap()),
        addresses: &["10.0.0.2".parse().unwrap(), "fd00::2".parse().unwrap()],
        profiles: &["net".to_owned()],
        labels: &[("app".into(), "web".into())].into_iter().collect(),
        service_account: None,
    };
    let written = workload_endpoint(None, &spec, &birth()).unwrap().unwrap();
    let value = json_of(&written);
    assert_eq!(
        value["metadata"]["labels"],
        json!({
            "app": "web", "projectcalico.org/namespace": "default", "projectcalico.org/orchestrator": "cni",
        })
    );
    assert_eq!(value["spec"]["ipNetworks"], json!(["10.0.0.2/32", "fd00::2/128"]));
    assert_eq!(value["spec"].get("workload"), None);
    assert_eq!(workload_endpoint(Some(&written), &spec, &birth()).unwrap(), None);
}

#[test]
fn the_cluster_information_is_completed_and_never_made_ready() {
    let guid = "0123456789abcdef0123456789abcdef";
    let new = json_of(&cluster_information(None, guid, &birth()).unwrap().unwrap());
    assert_eq!(new["spec"], json!({"clusterGUID": guid, "clusterType": "tortie", "datastoreReady": true}));
    let stored = json!({"spec": {"clusterGUID": "x", "clusterType": "openstack", "datastoreReady": false}});
    let stored = stored.to_string();
    let next = json_of(&cluster_information(Some(stored.as_bytes()), guid, &birth()).unwrap().unwrap());
    assert_eq!(
        next["spec"],
        json!({"clusterGUID": "x", "clusterType": "openstack,tortie", "datastoreReady": false})
    );
    let full = next.to_string();
    assert_eq!(cluster_information(Some(full.as_bytes()), guid, &birth()).unwrap(), None);
}

#[test]
fn a_pool_has_the_members_of_calicos_client() {
    let cidr = "10.99.0.0/16".parse().unwrap();
    let pool = Pool { vxlan: Some(IpipMode::CrossSubnet), masquerade: true, ..Pool::new(cidr) };
    let key = ip_pool_key(&cidr);
    assert_eq!(key.to_string(), "/calico/resources/v3/projectcalico.org/ippools/10-99-0-0-16");
    let new = ip_pool(&pool, &birth()).unwrap();
    assert_eq!(
        json_of(&new),
        json!({
            "kind": "IPPool", "apiVersion": "projectcalico.org/v3",
            "metadata": {"name": "10-99-0-0-16", "uid": birth().uid, "creationTimestamp": birth().time},
            "spec": {
                "cidr": "10.99.0.0/16", "ipipMode": "Never", "vxlanMode": "CrossSubnet", "natOutgoing": true,
                "blockSize": 26, "nodeSelector": "all()", "allowedUses": ["Workload", "Tunnel"],
            },
        })
    );
    let unused = ip_pool(&Pool { ipam: false, ..Pool::new("fd00::/64".parse().unwrap()) }, &birth()).unwrap();
    let spec = &json_of(&unused)["spec"];
    assert_eq!((&spec["disabled"], &spec["blockSize"]), (&json!(true), &json!(122)));
}

#[test]
fn a_pool_is_switched_and_keeps_what_it_does_not_know() {
    let cidr = "10.99.0.0/16".parse().unwrap();
    let key = ip_pool_key(&cidr);
    let stored = r#"{"kind":"IPPool","apiVersion":"projectcalico.org/v3","metadata":{"name":"10-99-0-0-16","uid":"u","creationTimestamp":"t","odd":[ 1 ]},"spec":{"cidr":"10.99.0.0/16","later":{ "a":1.50 }},"status":{"x":1}}"#;
    let switch = |value: &[u8], disabled| switch_ip_pool(&key, value, disabled, &birth()).unwrap();
    assert_eq!(switch(stored.as_bytes(), false), None);
    let off = switch(stored.as_bytes(), true).unwrap();
    let text = String::from_utf8(off.clone()).unwrap();
    assert_eq!(text, stored.replace(r#"{ "a":1.50 }"#, r#"{ "a":1.50 },"disabled":true"#));
    assert_eq!(switch(&off, true), None);
    assert_eq!(switch(&off, false).unwrap(), stored.as_bytes());
    assert!(switch_ip_pool(&key, b"[]", true, &birth()).is_err());
}
