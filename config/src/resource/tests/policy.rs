//! Rules, policies, profiles and tiers.

use serde_json::{Value, json};

use super::{inside, read, refused, rewritten};
use crate::key::IpFamily;
use crate::resource::*;

const RULES: &str = "/calico/v1/policy/profile/web/rules";
const POLICY: &str = "/calico/v1/policy/tier/default/policy/p1";

fn rule(value: &str) -> Rule {
    let rules = inside!(ProfileRules, read(RULES, &format!(r#"{{"inbound_rules": [{value}]}}"#)));
    rules.inbound.into_iter().next().unwrap()
}

fn rule_error(value: &str) -> String {
    refused(RULES, &format!(r#"{{"inbound_rules": [{value}]}}"#))
}

fn policy(value: &str) -> Policy {
    *inside!(Policy, read(POLICY, value))
}

#[test]
fn every_match_of_the_specification_and_its_negation() {
    let value = json!({
        "action": "deny", "ip_version": 4, "protocol": "tcp",
        "src_tag": "a", "src_selector": "role == \"web\"", "src_net": "10.0.0.0/8", "src_ports": [1234, "2048:4000"],
        "dst_tag": "b", "dst_selector": "has(x)", "dst_net": "10.1.0.0/16", "dst_ports": [80],
        "!protocol": "udp",
        "!src_tag": "c", "!src_selector": "has(y)", "!src_net": "10.2.0.0/16", "!src_ports": [22],
        "!dst_tag": "d", "!dst_selector": "has(z)", "!dst_net": "10.3.0.0/16", "!dst_ports": ["1:2"],
        "log_prefix": "dropped"
    });
    let rule = rule(&value.to_string());
    assert_eq!(rule.action, Action::Deny);
    assert_eq!(rule.ip_version, Some(IpFamily::V4));
    assert_eq!((rule.protocol.unwrap().number(), rule.not_protocol.unwrap().number()), (6, 17));
    assert_eq!(rule.src.tag.as_deref(), Some("a"));
    assert_eq!(rule.src.ports, [PortRange::new(1234, 1234).unwrap(), PortRange::new(2048, 4000).unwrap()]);
    assert_eq!(rule.dst.nets[0].to_string(), "10.1.0.0/16");
    assert_eq!(rule.src.not_tag.as_deref(), Some("c"));
    assert_eq!(rule.src.not_nets[0].to_string(), "10.2.0.0/16");
    assert_eq!(rule.src.not_ports, [PortRange::new(22, 22).unwrap()]);
    assert_eq!(rule.dst.not_tag.as_deref(), Some("d"));
    assert_eq!(rule.dst.not_selector, Some("has(z)".parse().unwrap()));
    let again = rewritten(RULES, &json!({"inbound_rules": [value], "outbound_rules": []}).to_string());
    assert_eq!(again, json!({"inbound_rules": [value], "outbound_rules": []}));
}

#[test]
fn actions_and_their_other_names() {
    for (value, action) in [
        ("{}", Action::Allow),
        (r#"{"action": ""}"#, Action::Allow),
        (r#"{"action": null}"#, Action::Allow),
        (r#"{"action": "allow"}"#, Action::Allow),
        (r#"{"action": "deny"}"#, Action::Deny),
        (r#"{"action": "log"}"#, Action::Log),
        (r#"{"action": "next-tier"}"#, Action::NextTier),
        (r#"{"action": "pass"}"#, Action::NextTier),
    ] {
        assert_eq!(rule(value).action, action, "{value}");
    }
    assert!(rule_error(r#"{"action": "Drop"}"#).contains("`inbound_rules[0].action`: found `Drop`"));
}

#[test]
fn protocols_by_name_and_number() {
    for (value, number) in [
        (r#""tcp""#, 6),
        (r#""icmpv6""#, 58),
        (r#""udplite""#, 136),
        ("6", 6),
        (r#""255""#, 255),
        (r#""sctp""#, 132),
    ] {
        let rule = rule(&format!(r#"{{"protocol": {value}}}"#));
        assert_eq!(rule.protocol.map(Protocol::number), Some(number), "{value}");
    }
    for bad in ["0", "256", r#""0""#, r#""gre""#, "1.5", "true", "-1"] {
        assert!(
            rule_error(&format!(r#"{{"protocol": {bad}}}"#)).contains("inbound_rules[0].protocol"),
            "{bad}"
        );
    }
}

#[test]
fn nulls_are_absent_and_lists_join_the_single_form() {
    assert_eq!(
        rule(r#"{"protocol": null, "src_tag": null, "!icmp_type": null, "src_nets": null}"#),
        Rule::default()
    );
    assert_eq!(
        rule(r#"{"src_tag": "", "src_selector": "", "src_net": "", "src_ports": [], "log_prefix": ""}"#),
        Rule::default()
    );
    let joined =
        rule(r#"{"src_net": "10.0.0.0/8", "src_nets": ["11.0.0.0/8"], "!dst_nets": ["12.0.0.0/8"]}"#);
    assert_eq!(joined.src.nets.len(), 2);
    assert_eq!(joined.dst.not_nets.len(), 1);
    assert_eq!(
        rewritten(RULES, r#"{"inbound_rules": [{"src_net": "10.0.0.0/8", "src_nets": ["11.0.0.0/8"]}]}"#)["inbound_rules"],
        json!([{"action": "allow", "src_nets": ["10.0.0.0/8", "11.0.0.0/8"]}])
    );
}

#[test]
fn ports_as_numbers_texts_and_ranges() {
    let rule = rule(r#"{"protocol": "udp", "dst_ports": [0, 65535, "53", "1024:2048"]}"#);
    let texts: Vec<String> = rule.dst.ports.iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["0", "65535", "53", "1024:2048"]);
    for bad in ["65536", "-1", r#""a""#, r#""5:4""#, r#""1:2:3""#, r#""1:""#, "1.5", r#""+1""#] {
        let text = rule_error(&format!(r#"{{"protocol": "udp", "dst_ports": [1, {bad}]}}"#));
        assert!(text.starts_with("`inbound_rules[0].dst_ports[1]`: found"), "{text}");
    }
    for protocol in [r#""protocol": "icmp","#, r#""!protocol": "tcp","#, ""] {
        let text = rule_error(&format!(r#"{{{protocol} "!src_ports": [1]}}"#));
        assert!(text.contains("ports need"), "{text}");
    }
}

#[test]
fn icmp_types_and_codes_are_one_match() {
    let one = rule(r#"{"protocol": "icmp", "icmp_type": 8, "icmp_code": 0, "!icmp_type": 3}"#);
    assert_eq!(one.icmp, Icmp::new(8, Some(0)));
    assert_eq!(one.not_icmp, Icmp::new(3, None));
    for (bad, says) in [
        (r#"{"protocol": "icmp", "icmp_type": 255}"#, "from 0 to 254"),
        (r#"{"protocol": "icmp", "icmp_code": 1}"#, "a code needs `icmp_type`"),
        (r#"{"protocol": "icmp", "icmp_type": 1, "!icmp_code": 1}"#, "a code needs `!icmp_type`"),
        (r#"{"protocol": "tcp", "icmp_type": 8}"#, "ICMP types need"),
        (r#"{"icmp_type": 8}"#, "found no protocol"),
    ] {
        assert!(rule_error(bad).contains(says), "{bad}: {}", rule_error(bad));
    }
    assert_eq!(rule(r#"{"protocol": 58, "icmp_type": 128}"#).icmp, Icmp::new(128, None));
}

#[test]
fn a_match_that_is_not_understood_is_refused() {
    let text = rule_error(r#"{"action": "allow", "src_service": "db"}"#);
    assert!(text.starts_with("`inbound_rules[0].src_service`: found `\"db\"`"), "{text}");
    assert_eq!(rule(r#"{"src_service": null}"#), Rule::default());
}

#[test]
fn a_broken_selector_carries_its_own_place() {
    let text = rule_error(r#"{"src_selector": "a == "}"#);
    assert!(text.starts_with("`inbound_rules[0].src_selector`: found `a == `"), "{text}");
    let text = refused(POLICY, r#"{"selector": "a &&"}"#);
    assert!(text.starts_with("`selector`: found `a &&`"), "{text}");
}

#[test]
fn the_order_of_a_policy() {
    let order =
        |text: &str| policy(&format!(r#"{{"selector": "all()", "order": {text}}}"#)).order.map(Order::get);
    assert_eq!(order("100"), Some(100.0));
    assert_eq!(order("-1.5"), Some(-1.5));
    assert_eq!(order("null"), None);
    assert_eq!(order("\"default\""), None);
    assert_eq!(policy(r#"{"selector": "all()"}"#).order, None);
    assert!(refused(POLICY, r#"{"selector": "all()", "order": "100"}"#).contains("`order`"));
    assert_eq!(rewritten(POLICY, r#"{"selector": "all()", "order": 100}"#)["order"], json!(100));
    assert_eq!(rewritten(POLICY, r#"{"selector": "all()", "order": 0.5}"#)["order"], json!(0.5));
}

#[test]
fn policies_with_their_flags_types_and_unnamed_fields() {
    let both = policy(r#"{"selector": "role == 'db'", "types": []}"#);
    assert_eq!(both.types, PolicyTypes::Both);
    assert!(both.types.ingress() && both.types.egress());
    let ingress = policy(r#"{"selector": "", "types": ["ingress"], "untracked": true}"#);
    assert!(ingress.types.ingress() && !ingress.types.egress() && ingress.untracked);
    assert_eq!(ingress.selector, "all()".parse().unwrap(), "an empty selector is all()");
    assert_eq!(policy(r#"{"selector": "", "types": ["egress", "ingress"]}"#).types, PolicyTypes::Both);
    let again = rewritten(POLICY, r#"{"selector": "all()", "annotations": {"a": "b"}, "types": ["egress"]}"#);
    assert_eq!(again["annotations"], json!({"a": "b"}));
    assert_eq!(again["types"], json!(["egress"]));
    for (bad, says) in [
        ("{}", "`selector`: found nothing"),
        (r#"{"selector": "all()", "untracked": true, "pre_dnat": true}"#, "excludes"),
        (r#"{"selector": "all()", "pre_dnat": true, "outbound_rules": [{}]}"#, "inbound rules only"),
        (r#"{"selector": "all()", "types": ["sideways"]}"#, "`types[0]`"),
        (r#"{"selector": 5}"#, "`selector`: found `5`"),
    ] {
        assert!(refused(POLICY, bad).contains(says), "{bad}");
    }
}

#[test]
fn tags_labels_and_tiers() {
    let tags = |text: &str| inside!(ProfileTags, read("/calico/v1/policy/profile/web/tags", text));
    assert_eq!(tags(r#"["A", "B", "C"]"#), ["A", "B", "C"]);
    assert!(refused("/calico/v1/policy/profile/web/tags", r#"["A", 1]"#).contains("`[1]`"));
    let labels = inside!(ProfileLabels, read("/calico/v1/policy/profile/web/labels", r#"{"role": "web"}"#));
    assert_eq!(labels["role"], "web");
    let tier = |text: &str| inside!(TierMetadata, read("/calico/v1/policy/tier/sec/metadata", text)).order;
    assert_eq!(tier(r#"{"order": 50}"#), Order::new(50.0));
    assert_eq!(tier("{}"), None);
    let rules: Value = rewritten(RULES, "{}");
    assert_eq!(rules, json!({"inbound_rules": [], "outbound_rules": []}));
}

#[test]
fn only_calico_3_has_named_ports_and_its_grammar_of_selectors() {
    use crate::{Dialect, Key};
    let read = |dialect, key: &str, value: &Value| {
        Resource::parse_in(dialect, &Key::parse(key).unwrap(), value.to_string().as_bytes())
    };
    for member in [
        json!({"inbound_rules": [{"protocol": "tcp", "dst_ports": [80, "http", "1:2"], "!src_ports": ["a.b"]}]}),
        json!({"inbound_rules": [{"dst_ports": ["http"]}]}),
        json!({"inbound_rules": [{"src_selector": "a starts with \"b\""}]}),
    ] {
        assert!(read(Dialect::V1, RULES, &member).is_err(), "{member}");
        let rules = read(Dialect::V3, RULES, &member).unwrap();
        assert_eq!(read(Dialect::V3, RULES, &serde_json::from_slice(&rules.to_value()).unwrap()), Ok(rules));
    }
    let rules =
        json!({"inbound_rules": [{"protocol": "tcp", "dst_ports": ["http", 80], "!dst_ports": ["a"]}]});
    let rule = inside!(ProfileRules, read(Dialect::V3, RULES, &rules).unwrap()).inbound.remove(0);
    assert_eq!(rule.dst.named_ports, ["http".parse().unwrap()]);
    assert_eq!(rule.dst.not_named_ports, ["a".parse().unwrap()]);
    assert_eq!(rule.dst.ports, [PortRange::new(80, 80).unwrap()]);
    for bad in [json!("a b"), json!(""), json!("5:4"), json!("99999"), json!("x".repeat(129)), json!({})] {
        let rules = json!({"inbound_rules": [{"protocol": "tcp", "dst_ports": [bad]}]});
        assert!(read(Dialect::V3, RULES, &rules).is_err(), "{rules}");
    }
    // Neither names nor numbers go with a protocol without ports.
    for port in [json!("http"), json!(80)] {
        let rules = json!({"inbound_rules": [{"protocol": "icmp", "dst_ports": [port]}]});
        assert!(read(Dialect::V3, RULES, &rules).is_err(), "{rules}");
    }
    let policy = json!({"selector": "a contains \"b\"", "inbound_rules": []});
    assert!(read(Dialect::V1, POLICY, &policy).is_err());
    assert!(read(Dialect::V3, POLICY, &policy).is_ok());

    let ports = json!([{"name": "http", "protocol": "tcp", "port": 80}]);
    let workload = json!({"state": "active", "name": "cali1", "labels": {}, "ports": ports});
    let host = json!({"name": "eth0", "labels": {}, "ports": ports});
    for (key, value) in
        [("/calico/v1/host/h/workload/k8s/w/endpoint/e", workload), ("/calico/v1/host/h/endpoint/e", host)]
    {
        let wanted = |resource: &Resource| match resource {
            Resource::WorkloadEndpoint(endpoint) => endpoint.ports.len(),
            Resource::HostEndpoint(endpoint) => endpoint.ports.len(),
            _ => 0,
        };
        for (dialect, count) in [(Dialect::V1, 0), (Dialect::V3, 1)] {
            let resource = read(dialect, key, &value).unwrap();
            assert_eq!(wanted(&resource), count, "{dialect:?} {value}");
            let again: Value = serde_json::from_slice(&resource.to_value()).unwrap();
            assert_eq!(again["ports"], ports, "{dialect:?}");
        }
    }
    let bad = json!({"name": "eth0", "ports": [{"name": "http", "protocol": "tcp", "port": 0}]});
    assert!(read(Dialect::V3, "/calico/v1/host/h/endpoint/e", &bad).is_err());
}
