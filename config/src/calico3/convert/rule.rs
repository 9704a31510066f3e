//! Rules of policies and profiles.

use serde_json::{Map, Value, json};

use super::output::{Converted, Weight};
use crate::key::IpFamily;
use crate::resource::{Action, Icmp, PortRange, Protocol, Rule, Side};
use crate::selector::Selector;

/// Label of the namespace in v1, and in Calico 3.
const NAMESPACE: (&str, &str) = ("calico/k8s_ns", "projectcalico.org/namespace");

/// Converts the rules of one direction.
pub(super) fn rules(list: &[Rule], about: &str, out: &mut Converted) -> Value {
    list.iter().map(|rule| Value::Object(convert(rule, about, out))).collect()
}

fn convert(rule: &Rule, about: &str, out: &mut Converted) -> Map<String, Value> {
    let mut new = Map::new();
    let mut put = |member: &str, value: Option<Value>| {
        if let Some(value) = value {
            new.insert(member.to_owned(), value);
        }
    };
    let action = match rule.action {
        Action::Allow => "Allow",
        Action::Deny => "Deny",
        Action::Log => "Log",
        Action::NextTier => "Pass",
    };
    put("action", Some(action.into()));
    put("ipVersion", rule.ip_version.map(|family| Value::from(if family == IpFamily::V4 { 4 } else { 6 })));
    put("protocol", rule.protocol.map(protocol));
    put("notProtocol", rule.not_protocol.map(protocol));
    put("icmp", rule.icmp.map(icmp));
    put("notICMP", rule.not_icmp.map(icmp));
    put("source", side(&rule.src));
    put("destination", side(&rule.dst));
    if rule.log_prefix.is_some() {
        out.finding(Weight::Lost, about, "rules of Calico 3 have no log_prefix; LogPrefix counts");
    }
    for side in [&rule.src, &rule.dst] {
        let mut nets = side.nets.iter().chain(&side.not_nets);
        if nets.clone().any(tortie_net::Cidr::is_v4) && !nets.all(tortie_net::Cidr::is_v4) {
            let text = "a rule of Calico 3 has networks of one family: write one rule for each";
            out.finding(Weight::Error, about, text);
        }
    }
    new
}

/// Names of Calico 3 are in upper case.
fn protocol(protocol: Protocol) -> Value {
    match protocol.to_string().as_str() {
        "icmpv6" => "ICMPv6".into(),
        "udplite" => "UDPLite".into(),
        name if name.starts_with(|c: char| c.is_ascii_digit()) => protocol.number().into(),
        name => name.to_ascii_uppercase().into(),
    }
}

fn icmp(icmp: Icmp) -> Value {
    match icmp.code() {
        Some(code) => json!({"type": icmp.icmp_type(), "code": code}),
        None => json!({"type": icmp.icmp_type()}),
    }
}

/// Converts one side; `None` if it matches everything.
fn side(side: &Side) -> Option<Value> {
    let mut new = Map::new();
    for (member, nets) in [("nets", &side.nets), ("notNets", &side.not_nets)] {
        if !nets.is_empty() {
            new.insert(member.to_owned(), nets.iter().map(ToString::to_string).collect());
        }
    }
    for (member, list) in [("ports", &side.ports), ("notPorts", &side.not_ports)] {
        if !list.is_empty() {
            new.insert(member.to_owned(), list.iter().copied().map(port).collect());
        }
    }
    // A negated selector matches what has neither the tag nor the labels.
    for (member, selected, tag, and) in [
        ("selector", &side.selector, &side.tag, "&&"),
        ("notSelector", &side.not_selector, &side.not_tag, "||"),
    ] {
        if let Some(text) = tagged(selected.as_ref(), tag.as_deref(), and) {
            new.insert(member.to_owned(), text.into());
        }
    }
    (!new.is_empty()).then_some(Value::Object(new))
}

fn port(range: PortRange) -> Value {
    if range.first() == range.last() { range.first().into() } else { range.to_string().into() }
}

/// Returns a selector with a tag, which is a label with an empty value.
fn tagged(selector: Option<&Selector>, tag: Option<&str>, and: &str) -> Option<String> {
    let tag = tag.map(|tag| format!("{tag} == ''"));
    match (selector.map(self::selector), tag) {
        (Some(selector), Some(tag)) => Some(format!("({selector}) {and} {tag}")),
        (selector, tag) => selector.or(tag),
    }
}

/// Formats a selector with the label of the namespace that Calico 3 has.
pub(super) fn selector(selector: &Selector) -> String {
    let name =
        |name: &str| -> Box<str> { if name == NAMESPACE.0 { NAMESPACE.1.into() } else { name.into() } };
    selector.expr().renamed(&name).to_string()
}
