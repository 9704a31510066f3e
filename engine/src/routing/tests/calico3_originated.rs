//! Tests of the routes that a host of a Calico 3 store originates for single addresses. Expected values are those
//! of BIRD under Calico 3's configuration.

use serde_json::json;

use super::calico3::{BLOCK_OF_ONE, cidr, intent_of, store};
use crate::routing::*;

/// Adds a workload of host `b` with this address.
fn with_workload(entries: &mut Vec<(String, String)>, addr: &str) {
    entries.push((
        "v1/host/b/workload/cni/w/endpoint/e".to_owned(),
        format!(r#"{{"state":"active","name":"cali1","ipv4_nets":["{addr}/32"]}}"#),
    ));
}

#[test]
fn an_address_inside_of_an_own_block_is_originated_for_a_filter_that_may_accept_it() {
    let originates = |rules: serde_json::Value| {
        let mut entries = store(&rules);
        with_workload(&mut entries, "10.0.1.2");
        let intent = intent_of(&entries);
        let route = intent.originated.get(&cidr("10.0.1.2/32")).map(|route| route.kind);
        assert!(matches!(route, None | Some(OriginKind::Borrowed)));
        route.is_some()
    };
    let rule = |more: serde_json::Value| {
        let mut rule = json!({"action": "Accept", "cidr": "10.0.0.0/16", "matchOperator": "In"});
        rule.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({ "exportV4": [rule] })
    };
    assert!(originates(rule(json!({}))));
    assert!(originates(rule(json!({"prefixLength": {"min": 32}, "peerType": "eBGP"}))));
    assert!(!originates(json!({})), "the block is announced instead");
    assert!(!originates(rule(json!({"action": "Reject"}))));
    assert!(!originates(rule(json!({"prefixLength": {"max": 31}}))));
    assert!(!originates(rule(json!({"source": "RemotePeers"}))));
}

#[test]
fn a_floating_address_is_originated_where_it_is_in_force() {
    let kind = |setting: Option<&str>| {
        let mut entries = store(&json!({}));
        entries.push((
            "v1/host/b/workload/cni/w/endpoint/e".to_owned(),
            r#"{"state":"active","name":"cali1","ipv4_nets":["10.0.1.2/32"],
                "ipv4_nat":[{"int_ip":"10.0.1.2","ext_ip":"10.0.9.9"}]}"#
                .to_owned(),
        ));
        entries.extend(setting.map(|text| ("v1/config/FloatingIPs".to_owned(), text.to_owned())));
        let intent = intent_of(&entries);
        let note = intent.notes.iter().any(|note| note.code == "nat-left-out");
        (intent.originated.get(&cidr("10.0.9.9/32")).map(|route| route.kind), note)
    };
    assert_eq!(kind(None), (None, true));
    assert_eq!(kind(Some("Disabled")), (None, true));
    assert_eq!(kind(Some("Enabled")), (Some(OriginKind::Floating), false));
}

#[test]
fn a_block_of_one_address_is_originated_while_the_address_is_in_use() {
    let kind = |more: &[(&str, &str)], workload: bool| {
        let mut entries = store(&json!({}));
        let block = [
            ("ipam/v2/host/b/ipv4/block/10.0.7.7-32", r#"{"state":"confirmed"}"#),
            ("ipam/v2/assignment/ipv4/block/10.0.7.7-32", BLOCK_OF_ONE),
        ];
        entries.extend(block.iter().chain(more).map(|(k, v)| ((*k).to_owned(), (*v).to_owned())));
        if workload {
            with_workload(&mut entries, "10.0.7.7");
        }
        intent_of(&entries).originated.get(&cidr("10.0.7.7/32")).map(|route| route.kind)
    };
    assert_eq!(kind(&[], false), None);
    assert_eq!(kind(&[], true), Some(OriginKind::Borrowed));
    let tunnel = ("v1/host/b/config/IpInIpTunnelAddr", "10.0.7.7");
    assert_eq!(kind(&[tunnel], false), Some(OriginKind::OwnBlock));
}
