//! Generated rules of v1 policies and profiles, with every member that a rule may have.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

/// Selectors over the labels, tags and namespaces of the generated endpoints.
pub(crate) const SELECTORS: [&str; 9] = [
    "",
    "all()",
    "role == 'front'",
    "role in {'front','back'} && has(x)",
    "!has(t) || role != 'front'",
    "role not in {'back'}",
    "has(host)",
    "calico/k8s_ns == 'prod'",
    "has(projectcalico.org/namespace) && !(x == 'y')",
];

/// Tags of the generated profiles. Endpoints have labels of the same names, too.
pub(crate) const TAGS: [&str; 2] = ["t", "u"];

fn put(rule: &mut Map<String, Value>, name: &str, value: Option<Value>) {
    if let Some(value) = value {
        rule.insert(name.to_owned(), value);
    }
}

/// Returns a value in one of `of` cases.
fn sometimes<T: Clone + std::fmt::Debug>(
    of: u32,
    strategy: impl Strategy<Value = T>,
) -> impl Strategy<Value = Option<T>> {
    prop::option::weighted(1.0 / f64::from(of), strategy)
}

/// Members of one side of a rule: all but ports, and ports for protocols that have them.
fn side(name: &'static str, v4: bool) -> impl Strategy<Value = [Map<String, Value>; 2]> {
    let net = move || {
        prop::sample::select(if v4 {
            vec!["10.1.1.0/26", "10.1.1.1/32", "10.0.0.0/8", "192.0.2.0/24", "0.0.0.0/0", "192.0.2.77/24"]
        } else {
            vec!["fd00::/64", "fd00::1/128", "2001:db8::/32"]
        })
    };
    let port = || prop::sample::select(vec![json!(80), json!("440:450"), json!(53), json!("22")]);
    let selector = || prop::sample::select(SELECTORS[1..].to_vec());
    let tag = || prop::sample::select(TAGS.to_vec());
    let matches = (
        sometimes(5, prop::collection::vec(net(), 1..3)),
        sometimes(6, net()),
        sometimes(4, selector()),
        sometimes(6, selector()),
        sometimes(6, tag()),
        sometimes(8, tag()),
    );
    let ports = (
        sometimes(3, prop::collection::vec(port(), 1..3)),
        sometimes(6, prop::collection::vec(port(), 1..3)),
    );
    (matches, ports).prop_map(
        move |((nets, not_net, selector, not_selector, tag, not_tag), (ports, not_ports))| {
            let mut matches = Map::new();
            put(&mut matches, &format!("{name}_nets"), nets.map(|nets| json!(nets)));
            put(&mut matches, &format!("!{name}_net"), not_net.map(Value::from));
            put(&mut matches, &format!("{name}_selector"), selector.map(Value::from));
            put(&mut matches, &format!("!{name}_selector"), not_selector.map(Value::from));
            put(&mut matches, &format!("{name}_tag"), tag.map(Value::from));
            put(&mut matches, &format!("!{name}_tag"), not_tag.map(Value::from));
            let mut of_ports = Map::new();
            put(&mut of_ports, &format!("{name}_ports"), ports.map(|ports| json!(ports)));
            put(&mut of_ports, &format!("!{name}_ports"), not_ports.map(|ports| json!(ports)));
            [matches, of_ports]
        },
    )
}

/// Generates a rule with networks of one family, because those of Calico 3 are.
fn rule(v4: bool) -> impl Strategy<Value = Value> {
    let action = prop::sample::select(vec![
        json!(null),
        json!("allow"),
        json!("allow"),
        json!("deny"),
        json!("log"),
        json!("next-tier"),
    ]);
    let protocol = prop_oneof![
        3 => Just(json!(null)),
        2 => Just(json!("tcp")),
        1 => Just(json!("udp")),
        1 => prop::sample::select(vec![json!("sctp"), json!("udplite"), json!(6), json!("17")]),
        1 => Just(json!("icmp")),
        1 => Just(json!("icmpv6")),
        1 => prop::sample::select(vec![json!(4), json!(112)]),
    ];
    let not_protocol = sometimes(8, prop::sample::select(vec![json!("udp"), json!("icmp"), json!(4)]));
    let icmp = || sometimes(2, (prop::sample::select(vec![0_u8, 8, 128]), sometimes(2, 0..2_u8)));
    let version = sometimes(6, prop::sample::select(vec![4, 6]));
    let log = sometimes(8, Just("seen"));
    let parts = (action, protocol, not_protocol, version, log);
    (parts, (icmp(), icmp()), side("src", v4), side("dst", v4)).prop_map(
        |((action, protocol, not_protocol, version, log), (icmp, not_icmp), src, dst)| {
            let mut rule = Map::new();
            put(&mut rule, "action", Some(action).filter(|action| !action.is_null()));
            let is = |names: &[Value]| names.contains(&protocol);
            if is(&[json!("icmp"), json!("icmpv6")]) {
                for (not, icmp) in [("", icmp), ("!", not_icmp)] {
                    let Some((kind, code)) = icmp else { continue };
                    put(&mut rule, &format!("{not}icmp_type"), Some(kind.into()));
                    put(&mut rule, &format!("{not}icmp_code"), code.map(Value::from));
                }
            }
            let has_ports = !is(&[json!(null), json!("icmp"), json!("icmpv6"), json!(4), json!(112)]);
            for [matches, ports] in [src, dst] {
                rule.extend(matches);
                if has_ports {
                    rule.extend(ports);
                }
            }
            put(&mut rule, "protocol", Some(protocol).filter(|protocol| !protocol.is_null()));
            put(&mut rule, "!protocol", not_protocol);
            put(&mut rule, "ip_version", version.map(Value::from));
            put(&mut rule, "log_prefix", log.map(Value::from));
            Value::Object(rule)
        },
    )
}

/// Generates the rules of one direction.
pub(crate) fn rules() -> impl Strategy<Value = Vec<Value>> {
    prop_oneof![1 => Just(Vec::new()), 1 => Just(vec![json!({})]), 4 => prop::collection::vec(prop_oneof![3 => rule(true), 1 => rule(false)], 1..4)]
}
