//! NetworkPolicy, GlobalNetworkPolicy, staged policies, tiers.

use serde_json::{Value, json};

use super::super::{policy, staged, tier};
use super::{assert_unreadable, entries, only, problems, raw_entries, spec};
use crate::calico3::Kind;

fn global(spec_of: &Value) -> Value {
    only(&policy(spec(Kind::GlobalNetworkPolicy, "g", spec_of))).1
}

fn namespaced(spec_of: &Value) -> Value {
    only(&policy(spec(Kind::NetworkPolicy, "ns/p", spec_of))).1
}

#[test]
fn members_of_policies() {
    let spec_of = json!({
        "tier": "net", "order": 10.5, "selector": "role == 'db'", "types": ["Ingress", "Egress"],
        "ingress": [{"action": "Allow"}], "egress": [{"action": "Pass"}],
        "doNotTrack": true, "applyOnForward": true, "preDNAT": false,
        "performanceHints": ["AssumeNeededOnEveryNode"]
    });
    assert_eq!(
        only(&policy(spec(Kind::GlobalNetworkPolicy, "net.g", &spec_of))),
        (
            "/calico/v1/policy/tier/net/policy/net.g".to_owned(),
            json!({
                "selector": "role == 'db'", "order": 10.5, "types": ["ingress", "egress"], "untracked": true,
                "apply_on_forward": true, "inbound_rules": [{"action": "allow"}],
                "outbound_rules": [{"action": "next-tier"}]
            })
        )
    );
    // A NetworkPolicy has none of the members for host endpoints.
    assert_eq!(
        only(&policy(spec(Kind::NetworkPolicy, "ns/default.p", &spec_of))),
        (
            "/calico/v1/policy/tier/net/policy/ns%2fdefault.p".to_owned(),
            json!({
                "namespace": "ns", "selector": "(role == 'db') && projectcalico.org/namespace == 'ns'",
                "order": 10.5, "types": ["ingress", "egress"], "inbound_rules": [{"action": "allow"}],
                "outbound_rules": [{"action": "next-tier"}]
            })
        )
    );
    let (key, value) = only(&policy(spec(Kind::GlobalNetworkPolicy, "default.g", &json!({"order": null}))));
    assert_eq!(key, "/calico/v1/policy/tier/default/policy/default.g");
    assert_eq!(value, json!({"selector": "", "inbound_rules": [], "outbound_rules": []}));
    let nat = global(&json!({"preDNAT": true, "applyOnForward": true, "types": ["Ingress"]}));
    assert_eq!((&nat["pre_dnat"], &nat["apply_on_forward"]), (&json!(true), &json!(true)));
}

#[test]
fn selectors_of_policies_are_composed() {
    let ns = "projectcalico.org/namespace";
    for (spec_of, selector) in [
        (json!({"selector": "all()"}), "all()".to_owned()),
        (json!({"namespaceSelector": "a == 'b'"}), "pcns.a == \"b\"".to_owned()),
        (
            json!({"selector": "x == 'y' || has(z)", "namespaceSelector": "a in {'c', 'b'}"}),
            "(x == 'y' || has(z)) && pcns.a in {\"b\", \"c\"}".to_owned(),
        ),
        // The user's own all() is replaced, too, but only as Calico writes it.
        (json!({"selector": "all()", "namespaceSelector": "all()"}), format!("(has({ns})) && has({ns})")),
        (json!({"selector": "all( )", "namespaceSelector": "all( )"}), format!("(all( )) && has({ns})")),
        (json!({"serviceAccountSelector": "all()"}), "has(projectcalico.org/serviceaccount)".to_owned()),
        (
            json!({"selector": "all()", "namespaceSelector": "a == 'b'", "serviceAccountSelector": "!c == 'd'"}),
            format!("((has({ns})) && pcns.a == \"b\") && !pcsa.c == \"d\""),
        ),
        (json!({"selector": "a contains 'b'"}), "a contains 'b'".to_owned()),
    ] {
        assert_eq!(global(&spec_of)["selector"], json!(selector), "{spec_of}");
    }
    for (spec_of, selector) in [
        (json!({}), format!("{ns} == 'ns'")),
        (json!({"selector": "all()"}), format!("(all()) && {ns} == 'ns'")),
        (
            json!({"selector": "a == 'b'", "serviceAccountSelector": "all()"}),
            format!("((a == 'b') && {ns} == 'ns') && all()"),
        ),
        // Not a member of a NetworkPolicy.
        (json!({"namespaceSelector": "a == 'b'"}), format!("{ns} == 'ns'")),
    ] {
        assert_eq!(namespaced(&spec_of)["selector"], json!(selector), "{spec_of}");
    }
}

#[test]
fn a_policy_that_cannot_be_read_keeps_its_last_good_form() {
    for (spec_of, why) in [
        (json!({"selector": "a = 'b'"}), "`spec.selector`"),
        (json!({"selector": 5}), "`spec.selector`"),
        (json!({"namespaceSelector": "a"}), "`spec.namespaceSelector`"),
        (json!({"serviceAccountSelector": "a"}), "`spec.serviceAccountSelector`"),
        (json!({"order": "first"}), "`spec.order`"),
        (json!({"types": ["Both"]}), "`spec.types[0]`"),
        (json!({"types": "Ingress"}), "`spec.types`"),
        (json!({"ingress": {}}), "`spec.ingress`"),
        (json!({"egress": [{"action": "Allow"}, 5]}), "`spec.egress[1]`"),
        (json!({"ingress": [{"action": "Reject"}]}), "`spec.ingress[0].action`"),
        (json!({"doNotTrack": "yes"}), "`spec.doNotTrack`"),
        (json!({"doNotTrack": true, "preDNAT": true}), "pre_dnat"),
        (json!({"preDNAT": true, "types": ["Egress"]}), "pre_dnat"),
    ] {
        let output = policy(spec(Kind::GlobalNetworkPolicy, "g", &spec_of));
        assert_unreadable(&output, "/calico/v1/policy/tier/default/policy/g", why);
    }
    // The endpoints that it concerns are known.
    let output = policy(spec(Kind::NetworkPolicy, "ns/p", &json!({"selector": "has(a)", "order": []})));
    let (_, value) = raw_entries(&output).remove(0);
    assert_eq!(value["selector"], json!("(has(a)) && projectcalico.org/namespace == 'ns'"));
    // Its tier is that which its name implies.
    let output = policy(spec(Kind::GlobalNetworkPolicy, "net.g", &json!({"tier": 5})));
    assert_unreadable(&output, "/calico/v1/policy/tier/net/policy/net.g", "`spec.tier`");
}

#[test]
fn staged_policies_have_problems_and_no_entries() {
    let broken = json!({"stagedAction": "Set", "ingress": [{"action": "Allow", "source": {"nets": ["x"]}}]});
    for (kind, name) in [(Kind::StagedGlobalNetworkPolicy, "g"), (Kind::StagedNetworkPolicy, "ns/p")] {
        let output = staged(spec(kind, name, &broken));
        assert_eq!((output.entries.len(), problems(&output).len()), (0, 1));
    }
    let of_kubernetes = json!({"podSelector": {}, "ingress": [{"from": []}]});
    let output = staged(spec(Kind::StagedKubernetesNetworkPolicy, "ns/p", &of_kubernetes));
    assert_eq!((output.entries.len(), problems(&output).len()), (0, 0));
}

#[test]
fn tiers() {
    for (spec_of, order, action) in [
        (json!({"order": 100, "defaultAction": "Pass"}), json!(100), "pass"),
        (json!({"order": 1.5, "defaultAction": "Deny"}), json!(1.5), "deny"),
        (json!({}), Value::Null, "deny"),
    ] {
        let (key, value) = only(&tier(spec(Kind::Tier, "t", &spec_of)));
        assert_eq!(key, "/calico/tortie/v1/tier/t");
        assert_eq!(value, json!({"order": order, "default_action": action}));
    }
    let other = tier(spec(Kind::Tier, "t", &json!({"defaultAction": "Allow"})));
    assert_eq!(entries(&other)[0].1["default_action"], json!("deny"));
    assert!(problems(&other)[0].1.starts_with("`spec.defaultAction`"));
    for broken in [json!({"order": "1"}), json!({"defaultAction": 5})] {
        let output = tier(spec(Kind::Tier, "t", &broken));
        assert_eq!(problems(&output).len(), 1);
        assert!(raw_entries(&output)[0].1.is_string());
    }
}
