//! Rules: their v1 form, and what is left of a rule that loses a match.

use serde_json::{Value, json};

use super::super::policy;
use super::{entries, problems, spec};
use crate::calico3::Kind;

/// Returns the v1 form of an ingress rule of a global or namespaced policy, and its problems.
fn converted(name: &str, rule: &Value) -> (Option<Value>, Vec<(&'static str, String)>) {
    let kind = if name.contains('/') { Kind::NetworkPolicy } else { Kind::GlobalNetworkPolicy };
    let output = policy(spec(kind, name, &json!({"ingress": [rule]})));
    let rules = entries(&output).remove(0).1["inbound_rules"].take();
    let found = problems(&output).into_iter().map(|(code, text)| (code, text.to_owned())).collect();
    (rules.as_array().unwrap().first().cloned(), found)
}

fn good(name: &str, rule: &Value) -> Value {
    let (converted, found) = converted(name, rule);
    assert_eq!(found, [], "{rule}");
    converted.unwrap()
}

#[test]
fn every_match_of_a_rule() {
    let rule = json!({
        "action": "Deny", "ipVersion": 4, "protocol": "TCP", "notProtocol": "UDPLite",
        "metadata": {"annotations": {"a": "b"}},
        "source": {
            "nets": ["10.1.2.3/8", "1.2.3.4"], "notNets": ["10.9.9.9/16"], "selector": "a == 'b'",
            "notSelector": "c == 'd'", "ports": [80, "81", "90:99", "http"], "notPorts": [85]
        },
        "destination": {"nets": ["2001:db8::1/32"], "ports": ["dns.tcp"]}
    });
    assert_eq!(
        good("g", &rule),
        json!({
            "action": "deny", "ip_version": 4, "protocol": "tcp", "!protocol": "udplite",
            "src_nets": ["10.0.0.0/8", "1.2.3.4/32"], "!src_nets": ["10.9.0.0/16"],
            "src_selector": "a == 'b'", "!src_selector": "c == 'd'",
            "src_ports": [80, 81, "90:99", "http"], "!src_ports": [85],
            "dst_nets": ["2001:db8::/32"], "dst_ports": ["dns.tcp"]
        })
    );
    for (rule, wanted) in [
        (json!({}), json!({"action": "allow"})),
        (json!({"action": "allow"}), json!({"action": "allow"})),
        (json!({"action": "Pass"}), json!({"action": "next-tier"})),
        (json!({"action": "Log"}), json!({"action": "log"})),
        (json!({"action": "Allow", "protocol": 6}), json!({"action": "allow", "protocol": 6})),
        (json!({"action": "Allow", "protocol": "6"}), json!({"action": "allow", "protocol": 6})),
        (json!({"action": "Allow", "protocol": "ICMPv6"}), json!({"action": "allow", "protocol": "icmpv6"})),
        (json!({"action": "Allow", "notProtocol": 255}), json!({"action": "allow", "!protocol": 255})),
        (
            json!({"action": "Allow", "protocol": "ICMP", "icmp": {"type": 8, "code": 0}, "notICMP": {"type": 3}}),
            json!({"action": "allow", "protocol": "icmp", "icmp_type": 8, "icmp_code": 0, "!icmp_type": 3}),
        ),
        (json!({"action": "Allow", "icmp": {}}), json!({"action": "allow"})),
        // A named port has a protocol of its own.
        (
            json!({"action": "Allow", "destination": {"ports": ["http"]}}),
            json!({"action": "allow", "dst_ports": ["http"]}),
        ),
        (json!({"action": "Allow", "source": {"nets": [], "ports": []}}), json!({"action": "allow"})),
    ] {
        assert_eq!(good("g", &rule), wanted, "{rule}");
    }
}

#[test]
fn the_selector_of_a_side_is_composed() {
    let ns = "projectcalico.org/namespace";
    let own = format!("{ns} == 'ns'");
    let sa = "projectcalico.org/serviceaccount";
    // Side of a rule, selector in a global policy, selector in a policy of namespace `ns`.
    for (side, global, namespaced) in [
        (
            json!({"selector": "a == 'b'"}),
            Some("a == 'b'".to_owned()),
            Some(format!("({own}) && (a == 'b')")),
        ),
        (json!({"nets": ["10.0.0.0/8"]}), None, None),
        (json!({"notSelector": "a == 'b'"}), None, Some(own.clone())),
        (
            json!({"namespaceSelector": "a == 'b'"}),
            Some("pcns.a == \"b\"".to_owned()),
            Some("pcns.a == \"b\"".to_owned()),
        ),
        (json!({"namespaceSelector": "all()"}), Some(format!("has({ns})")), Some(format!("has({ns})"))),
        (json!({"namespaceSelector": "global()"}), Some(format!("!has({ns})")), Some(format!("!has({ns})"))),
        (
            json!({"namespaceSelector": "global() || a starts with 'b'", "selector": "all()"}),
            Some(format!("((!has({ns}) || pcns.a starts with \"b\")) && (all())")),
            Some(format!("((!has({ns}) || pcns.a starts with \"b\")) && (all())")),
        ),
        (
            json!({"serviceAccounts": {"names": ["b", "a"]}}),
            Some(format!("{sa} in {{\"a\", \"b\"}}")),
            Some(format!("({own}) && ({sa} in {{\"a\", \"b\"}})")),
        ),
        (
            json!({"serviceAccounts": {"names": ["a"], "selector": "x == 'y'"}, "selector": "has(c)"}),
            Some(format!("((pcsa.x == \"y\") && ({sa} in {{\"a\"}})) && (has(c))")),
            Some(format!("({own}) && (((pcsa.x == \"y\") && ({sa} in {{\"a\"}})) && (has(c)))")),
        ),
        (json!({"serviceAccounts": {}}), None, None),
    ] {
        let rule = json!({"action": "Allow", "source": side});
        for (name, wanted) in [("g", global), ("ns/p", namespaced)] {
            let rule = good(name, &rule);
            assert_eq!(rule.get("src_selector").and_then(Value::as_str), wanted.as_deref(), "{name} {side}");
        }
    }
}

/// Rules with a match that cannot be used: the match without action, what a deny of it keeps, and the code.
fn losing() -> Vec<(Value, Value, &'static str)> {
    let invalid = "invalid-value";
    let unsupported = "unsupported-setting";
    let tcp = json!({"protocol": "tcp"});
    vec![
        (json!({"source": {"nets": ["x"]}}), json!({}), invalid),
        (json!({"source": {"nets": ["10.0.0.0/33"]}, "protocol": "TCP"}), tcp.clone(), invalid),
        (json!({"source": {"nets": "10.0.0.0/8"}}), json!({}), invalid),
        (json!({"source": {"notNets": ["10.0.0.0/8", "x"]}}), json!({"!src_nets": ["10.0.0.0/8"]}), invalid),
        (json!({"destination": {"selector": "a ="}}), json!({}), invalid),
        (json!({"destination": {"selector": 5}}), json!({}), invalid),
        (json!({"destination": {"notSelector": "a"}}), json!({}), invalid),
        (
            json!({"source": {"namespaceSelector": "a", "selector": "has(b)"}}),
            json!({"src_selector": "has(b)"}),
            invalid,
        ),
        (json!({"source": {"serviceAccounts": {"names": ["it's"]}}}), json!({}), invalid),
        (json!({"source": {"serviceAccounts": {"selector": "a"}}}), json!({}), invalid),
        (json!({"source": {"serviceAccounts": {"uids": ["a"]}}}), json!({}), invalid),
        (json!({"source": 5}), json!({}), invalid),
        (json!({"protocol": "TCP", "destination": {"ports": ["9:8"]}}), tcp.clone(), invalid),
        (json!({"protocol": "TCP", "destination": {"ports": [65536]}}), tcp.clone(), invalid),
        (
            json!({"protocol": "TCP", "destination": {"notPorts": ["a b", 80]}}),
            json!({"protocol": "tcp", "!dst_ports": [80]}),
            invalid,
        ),
        (json!({"destination": {"ports": [80]}}), json!({}), invalid),
        (
            json!({"protocol": "ICMP", "destination": {"ports": ["http"]}}),
            json!({"protocol": "icmp"}),
            invalid,
        ),
        (json!({"protocol": "GRE"}), json!({}), invalid),
        (json!({"protocol": 0}), json!({}), invalid),
        (json!({"protocol": 256}), json!({}), invalid),
        (json!({"notProtocol": ""}), json!({}), invalid),
        (json!({"ipVersion": 5}), json!({}), invalid),
        (json!({"icmp": {"type": 8}}), json!({}), invalid),
        (json!({"protocol": "ICMP", "icmp": {"type": 255}}), json!({"protocol": "icmp"}), invalid),
        (json!({"protocol": "ICMP", "icmp": {"code": 1}}), json!({"protocol": "icmp"}), invalid),
        (json!({"protocol": "TCP", "notICMP": {"type": 1}}), tcp.clone(), invalid),
        (json!({"protocol": "TCP", "http": {"methods": ["GET"]}}), tcp, unsupported),
        (json!({"destination": {"services": {"name": "a", "namespace": "b"}}}), json!({}), unsupported),
        (json!({"source": {"domains": ["example.org"]}}), json!({}), unsupported),
        (json!({"time": "night"}), json!({}), unsupported),
    ]
}

#[test]
fn a_rule_that_loses_a_match_never_widens() {
    for (matches, kept, code) in losing() {
        for action in ["Allow", "Log", "Deny", "Pass"] {
            let mut rule = matches.clone();
            rule["action"] = action.into();
            let (converted, found) = converted("g", &rule);
            let wanted = matches!(action, "Deny" | "Pass").then(|| {
                let mut wanted = kept.clone();
                wanted["action"] = "deny".into();
                wanted
            });
            assert_eq!(converted, wanted, "{rule}");
            assert!(found.iter().any(|(found, _)| *found == code), "{rule}: {found:?}");
            assert!(found.iter().all(|(_, text)| text.starts_with("`spec.ingress[0]")), "{found:?}");
        }
    }
}

#[test]
fn a_lost_selector_is_confined_to_the_namespace_of_the_policy() {
    let deny = |side: Value| converted("ns/p", &json!({"action": "Deny", "source": side})).0.unwrap();
    let own = json!("projectcalico.org/namespace == 'ns'");
    assert_eq!(deny(json!({"selector": "a ="}))["src_selector"], own);
    assert_eq!(deny(json!({"notSelector": "a ="}))["src_selector"], own);
    // Other namespaces may be meant.
    assert_eq!(deny(json!({"namespaceSelector": "a ="})), json!({"action": "deny"}));
}

#[test]
fn one_bad_element_of_several_alternatives_is_skipped() {
    for action in ["Allow", "Deny"] {
        let rule = json!({"action": action, "protocol": "UDP", "source": {"nets": ["x", "10.0.0.0/8"]},
                          "destination": {"ports": [53, "9:8"]}});
        let (converted, found) = converted("g", &rule);
        let converted = converted.unwrap();
        assert_eq!((&converted["src_nets"], &converted["dst_ports"]), (&json!(["10.0.0.0/8"]), &json!([53])));
        let places: Vec<_> = found.iter().map(|(_, text)| text.split(": ").next().unwrap()).collect();
        assert_eq!(places, ["`spec.ingress[0].source.nets[0]`", "`spec.ingress[0].destination.ports[1]`"]);
    }
}
