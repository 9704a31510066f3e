//! Tests of IPPools and IPReservations.

use serde_json::{Value, json};

use super::{spec, view};
use crate::Resource;
use crate::resource::{AllowedUse, AssignmentMode, IpipMode};

const POOL: &str = "v1/ipam/v4/pool/10.0.0.0-16";

fn pool(members: Value) -> Value {
    let mut all = json!({ "cidr": "10.0.0.0/16" });
    all.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
    spec(all)
}

#[test]
fn a_pool_has_the_defaults_that_calico_3_gives_it() {
    let view = view("a", &[("ippools/p", pool(json!({})))]);
    let expected = json!({
        "cidr": "10.0.0.0/16", "ipip": "", "ipip_mode": "", "vxlan_mode": "", "masquerade": false,
        "ipam": true, "disabled": false, "disableBGPExport": false, "assignment_mode": "Automatic",
        "allowed_uses": ["Workload", "Tunnel"], "blockSize": 26,
    });
    assert_eq!(view.json(POOL), expected);
    assert_eq!(view.origins[POOL], ["ippools/p"]);
}

#[test]
fn members_of_a_pool_reach_the_v1_value() {
    for (members, name, expected) in [
        (json!({ "ipipMode": "Always" }), "ipip", json!("tunl0")),
        (json!({ "ipipMode": "CrossSubnet" }), "ipip_mode", json!("cross-subnet")),
        (json!({ "ipipMode": "Never" }), "ipip", json!("")),
        (json!({ "ipip": { "enabled": true, "mode": "cross-subnet" } }), "ipip_mode", json!("cross-subnet")),
        (json!({ "ipip": { "enabled": true } }), "ipip_mode", json!("always")),
        (json!({ "ipip": { "enabled": false } }), "ipip", json!("")),
        (json!({ "vxlanMode": "Always" }), "vxlan_mode", json!("always")),
        (json!({ "vxlanMode": "CrossSubnet" }), "vxlan_mode", json!("cross-subnet")),
        (json!({ "natOutgoing": true }), "masquerade", json!(true)),
        (json!({ "nat-outgoing": true }), "masquerade", json!(true)),
        (json!({ "disabled": true }), "ipam", json!(false)),
        (json!({ "disabled": true }), "disabled", json!(true)),
        (json!({ "disableBGPExport": true }), "disableBGPExport", json!(true)),
        (json!({ "blockSize": 28 }), "blockSize", json!(28)),
        (json!({ "assignmentMode": "Manual" }), "assignment_mode", json!("Manual")),
        (json!({ "allowedUses": ["LoadBalancer"] }), "allowed_uses", json!(["LoadBalancer"])),
        (json!({ "nodeSelector": "rack == 'a'" }), "node_selector", json!("rack == \"a\"")),
        (json!({ "nodeSelector": "rack ==" }), "node_selector", json!("!all()")),
        (json!({ "ipipMode": "Always", "vxlanMode": "Always" }), "ipip", json!("")),
        (json!({ "ipipMode": "Always", "vxlanMode": "Always" }), "vxlan_mode", json!("")),
        // What is not valid is never more permissive.
        (json!({ "assignmentMode": "Sometimes" }), "assignment_mode", json!("Manual")),
        (json!({ "allowedUses": ["Anything"] }), "allowed_uses", json!(["LoadBalancer"])),
    ] {
        let view = view("a", &[("ippools/p", pool(members.clone()))]);
        assert_eq!(view.json(POOL)[name], expected, "{members}");
        assert!(matches!(view.resource(POOL), Resource::Pool(_)), "{members}");
    }
}

#[test]
fn a_pool_that_is_being_deleted_is_disabled() {
    let mut object = pool(json!({}));
    object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    assert_eq!(view("a", &[("ippools/p", object)]).json(POOL)["disabled"], true);
}

#[test]
fn the_resource_has_typed_members() {
    let members = json!({
        "ipipMode": "CrossSubnet", "allowedUses": ["Tunnel"], "assignmentMode": "Manual",
        "disableBGPExport": true, "nodeSelector": "has(a)",
    });
    let view = view("a", &[("ippools/p", pool(members))]);
    let Resource::Pool(pool) = view.resource(POOL) else { panic!() };
    assert_eq!(pool.ipip.as_ref().unwrap().mode, IpipMode::CrossSubnet);
    assert!(pool.allows(AllowedUse::Tunnel) && !pool.allows(AllowedUse::Workload));
    assert_eq!(pool.disable_bgp_export, Some(true));
    assert!(pool.is_for_hosts());
    assert_eq!(pool.assignment_mode, AssignmentMode::Manual);
    assert_eq!(pool.node_selector, Some("has(a)".parse().unwrap()));
    let again = crate::resource::Pool::parse(pool.cidr, &pool.to_value()).unwrap();
    assert_eq!(again, pool);
}

#[test]
fn of_several_pools_with_one_prefix_the_lowest_name_counts() {
    let (first, second) = (pool(json!({ "natOutgoing": true })), pool(json!({})));
    let both = view("a", &[("ippools/b", second.clone()), ("ippools/a", first)]);
    assert_eq!(both.json(POOL)["masquerade"], true);
    assert_eq!(both.origins[POOL], ["ippools/a"]);
    assert_eq!(both.codes(), [("ippools/b", "setting-not-in-force")]);
    // Host bits do not make another pool.
    let mut same = second;
    same["spec"]["cidr"] = "10.0.3.4/16".into();
    assert_eq!(view("a", &[("ippools/b", same)]).origins[POOL], ["ippools/b"]);
}

#[test]
fn a_pool_without_valid_prefix_does_not_count() {
    for cidr in [json!("10.0.0.0/33"), json!(null), json!(7), json!("")] {
        let view = view("a", &[("ippools/p", spec(json!({ "cidr": cidr })))]);
        assert_eq!(view.keys("v1/ipam/"), Vec::<&str>::new());
        assert_eq!(view.codes(), [("ippools/p", "invalid-value")]);
    }
    let v6 = view("a", &[("ippools/p", spec(json!({ "cidr": "fd00::/64", "ipipMode": "Always" })))]);
    let value = v6.json("v1/ipam/v6/pool/fd00::-64");
    assert_eq!((&value["ipip"], &value["blockSize"]), (&json!(""), &json!(122)));
    assert_eq!(v6.codes(), [("ippools/p", "invalid-value")]);
}

#[test]
fn a_reservation_lists_its_valid_prefixes() {
    let object = spec(json!({ "reservedCIDRs": ["10.0.0.1", "10.0.1.7/24", "here"] }));
    let view = view("a", &[("ipreservations/r", object)]);
    assert_eq!(view.json("tortie/v1/ipreservation/r"), json!({ "cidrs": ["10.0.0.1/32", "10.0.1.0/24"] }));
    assert_eq!(view.codes(), [("ipreservations/r", "invalid-value")]);
}
