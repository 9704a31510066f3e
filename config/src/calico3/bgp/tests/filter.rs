//! Tests of BGPFilters.

use serde_json::{Value, json};

use super::{spec, view};

/// Returns the projected rules of `exportV4`, and the number of problems.
fn rules(rules: Value) -> (Value, usize) {
    let view = view("a", &[("bgpfilters/f", spec(json!({ "exportV4": rules })))]);
    (view.json("tortie/v1/bgpfilter/f")["exportV4"].clone(), view.problems.len())
}

#[test]
fn valid_rules_stay_as_they_are_written() {
    let written = json!([
        { "action": "Accept", "cidr": "10.0.0.0/8", "matchOperator": "In", "prefixLength": { "min": 24, "max": 26 } },
        { "action": "Reject", "source": "RemotePeers", "interface": "cali*", "peerType": "eBGP" },
        { "action": "Accept", "communities": { "values": ["65000:100"] }, "asPathPrefix": [64512, 64513],
          "priority": 1024, "operations": [
            { "addCommunity": { "value": "65000:1:2" } },
            { "prependASPath": { "prefix": [64512] } },
            { "setPriority": { "value": 512 } },
        ] },
        { "action": "Accept" },
    ]);
    assert_eq!(rules(written.clone()), (written, 0));
}

#[test]
fn a_rule_that_is_not_valid_never_widens() {
    for (name, value) in [
        ("cidr", json!("10.0.0.0/33")),
        ("cidr", json!("10.0.0.0/8")),
        ("matchOperator", json!("In")),
        ("prefixLength", json!({ "min": 24 })),
        ("source", json!("Somewhere")),
        ("interface", json!("an interface with blanks")),
        ("peerType", json!("both")),
        ("communities", json!({ "values": ["65000"] })),
        ("communities", json!({ "values": ["65000:1", "65000:2"] })),
        ("communities", json!({})),
        ("asPathPrefix", json!(["x"])),
        ("priority", json!(-1)),
        ("aMatchOfALaterRelease", json!(true)),
    ] {
        // A rule that accepts matches nothing, and one that rejects everything.
        for (action, expected) in [("Accept", json!(null)), ("Reject", json!([{ "action": "Reject" }]))] {
            let (left, problems) = rules(json!([{ "action": action, name: value.clone() }]));
            assert_eq!(left, expected, "{action} {name} {value}");
            assert!(problems > 0);
        }
    }
    for operation in [
        json!({ "addCommunity": { "value": "no-export" } }),
        json!({ "prependASPath": { "prefix": [] } }),
        json!({ "setPriority": {} }),
        json!({ "setPriority": { "value": 1 }, "addCommunity": { "value": "1:1" } }),
        json!({ "setMED": { "value": 1 } }),
        json!(7),
    ] {
        let (left, problems) = rules(json!([{ "action": "Accept", "operations": [operation] }]));
        assert_eq!((left, problems > 0), (json!(null), true), "{operation}");
    }
    for rule in [json!({ "action": "Maybe" }), json!({}), json!("Accept")] {
        assert_eq!(rules(json!([rule])).0, json!([{ "action": "Reject" }]), "{rule}");
    }
    let operations = json!([{ "action": "Reject", "operations": [{ "addCommunity": { "value": "1:1" } }] }]);
    assert_eq!(rules(operations).0, json!([{ "action": "Reject" }]));
    assert_eq!(rules(json!("all")).0, json!([{ "action": "Reject" }]));
}

#[test]
fn a_list_has_rules_of_its_family() {
    let rule = json!([{ "action": "Accept", "cidr": "10.0.0.0/8", "matchOperator": "Equal" }]);
    let view = view("a", &[("bgpfilters/f", spec(json!({ "importV4": rule, "importV6": rule })))]);
    assert_eq!(view.json("tortie/v1/bgpfilter/f"), json!({ "importV4": rule }));
    assert_eq!(view.codes(), [("bgpfilters/f", "invalid-value")]);
}
