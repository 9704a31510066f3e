//! Rules of policies and profiles.

use serde_json::{Map, Value};

use super::super::ObjectKey;
use super::super::output::Output;
use super::entity::Entity;
use super::losses::{Losses, UNKNOWN};
use crate::resource::{Action, Fields, Icmp, Protocol, ValueError};

/// Rules of both directions, as the v1 model writes them.
#[derive(Debug, Default)]
pub(super) struct Rules {
    pub(super) inbound: Value,
    pub(super) outbound: Value,
}

const PROTOCOL: &str = "write TCP, UDP, ICMP, ICMPv6, SCTP, UDPLite or a number from 1 to 255";
const PORTS: &str = "numbers of ports need `protocol` TCP, UDP or SCTP";
const ICMP: &str = "ICMP types need `protocol` ICMP or ICMPv6";
const HTTP: &str = "HTTP is not inspected; remove it, or the rule";

impl Rules {
    /// Reads `ingress` and `egress` of a policy in a namespace (`None` for global ones, and profiles), and
    /// adds the problems of rules that lose a match.
    ///
    /// # Errors
    /// If they are no lists of rules, or a rule has no known action.
    pub(super) fn take(
        fields: &mut Fields,
        namespace: Option<&str>,
        object: &ObjectKey,
        output: &mut Output,
    ) -> Result<Self, ValueError> {
        let mut list = |name: &str| {
            let mut index = 0;
            let rules = fields.list(name, |value| {
                let path = format!("spec.{name}[{index}]");
                index += 1;
                let (rule, action, losses) = rule(value, namespace)?;
                let mut at_path = Losses::default();
                at_path.within(&path, losses);
                for (code, text) in at_path.problems(action) {
                    output.problem(object, code, text);
                }
                Ok(rule)
            })?;
            Ok(rules.into_iter().flatten().collect::<Value>())
        };
        Ok(Self { inbound: list("ingress")?, outbound: list("egress")? })
    }
}

/// Parses a rule. It is `None` if it may not be in force without the matches that it loses.
fn rule(value: Value, namespace: Option<&str>) -> Result<(Option<Value>, Action, Losses), ValueError> {
    let mut fields = Fields::of(value)?;
    let action = action(&mut fields)?;
    let mut losses = Losses::default();
    let ip_version = losses.keep(ip_version(&mut fields));
    let protocol = losses.keep(protocol(&mut fields, "protocol"));
    let not_protocol = losses.keep(self::protocol(&mut fields, "notProtocol"));
    let mut icmp = losses.keep(self::icmp(&mut fields, "icmp"));
    let mut not_icmp = losses.keep(self::icmp(&mut fields, "notICMP"));
    let mut side = |name: &str| {
        let Some(value) = fields.take(name) else { return Entity::default() };
        let mut of_side = Losses::default();
        let entity = Entity::parse(value, namespace, &mut of_side);
        losses.within(name, of_side);
        entity
    };
    let (mut source, mut destination) = (side("source"), side("destination"));
    if fields.take("http").is_some() {
        losses.lose_unsupported("http", HTTP);
    }
    // Annotations only.
    fields.take("metadata");
    losses.lose_unknown(fields);

    let number = protocol.as_ref().map(|protocol| protocol.number);
    if !number.is_some_and(Protocol::is_icmp) && (icmp.is_some() || not_icmp.is_some()) {
        losses.lose(&ValueError::new("protocol", found(protocol.as_ref()), ICMP));
        (icmp, not_icmp) = (None, None);
    }
    let any = |has: fn(&Entity) -> bool| has(&source) || has(&destination);
    // A named port has a protocol of its own.
    let needs_protocol = any(Entity::has_numbers) || (any(Entity::has_names) && number.is_some());
    if needs_protocol && !number.is_some_and(Protocol::has_ports) {
        losses.lose(&ValueError::new("protocol", found(protocol.as_ref()), PORTS));
        source.clear_ports();
        destination.clear_ports();
    }

    let Some(in_force) = losses.action(action) else { return Ok((None, action, losses)) };
    let mut rule = Map::new();
    let mut put = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            rule.insert(name.to_owned(), value);
        }
    };
    put("action", Some(in_force.as_str().into()));
    put("ip_version", ip_version.map(Value::from));
    put("protocol", protocol.map(|protocol| protocol.json));
    put("!protocol", not_protocol.map(|protocol| protocol.json));
    for (not, icmp) in [("", icmp), ("!", not_icmp)] {
        put(&format!("{not}icmp_type"), icmp.map(|icmp| icmp.icmp_type().into()));
        put(&format!("{not}icmp_code"), icmp.and_then(Icmp::code).map(Value::from));
    }
    source.write(&mut rule, "src");
    destination.write(&mut rule, "dst");
    Ok((Some(Value::Object(rule)), action, losses))
}

/// Reads the action; without one the rule allows, as in Calico.
fn action(fields: &mut Fields) -> Result<Action, ValueError> {
    let text = fields.text("action")?.unwrap_or_default();
    match text.to_ascii_lowercase().as_str() {
        "" | "allow" => Ok(Action::Allow),
        "deny" => Ok(Action::Deny),
        "log" => Ok(Action::Log),
        "pass" | "next-tier" => Ok(Action::NextTier),
        _ => Err(ValueError::new("action", format_args!("`{text}`"), "write Allow, Deny, Log or Pass")),
    }
}

fn ip_version(fields: &mut Fields) -> Result<Option<u8>, ValueError> {
    let Some(value) = fields.take("ipVersion") else { return Ok(None) };
    match value.as_u64() {
        Some(4) => Ok(Some(4)),
        Some(6) => Ok(Some(6)),
        _ => Err(ValueError::json("ipVersion", &value, "write 4 or 6")),
    }
}

/// A protocol, with the JSON that the v1 model writes for it.
struct NamedProtocol {
    number: Protocol,
    json: Value,
}

/// Reads a protocol, whose name the v1 model writes in lower case.
fn protocol(fields: &mut Fields, name: &str) -> Result<Option<NamedProtocol>, ValueError> {
    let Some(value) = fields.take(name) else { return Ok(None) };
    let protocol: Option<Protocol> = match &value {
        Value::Number(number) => number.as_u64().and_then(|n| u8::try_from(n).ok()).and_then(Protocol::new),
        Value::String(text) => text.parse().ok(),
        _ => None,
    };
    let number = protocol.ok_or_else(|| ValueError::json(name, &value, PROTOCOL))?;
    let json = match value.as_str() {
        Some(text) if text.parse::<u8>().is_err() => text.to_ascii_lowercase().into(),
        _ => number.number().into(),
    };
    Ok(Some(NamedProtocol { number, json }))
}

fn found(protocol: Option<&NamedProtocol>) -> String {
    protocol.map_or_else(|| "no protocol".to_owned(), |protocol| format!("`{}`", protocol.number))
}

/// Reads type and code of ICMP. An object without either matches everything.
fn icmp(fields: &mut Fields, name: &str) -> Result<Option<Icmp>, ValueError> {
    let Some(value) = fields.take(name) else { return Ok(None) };
    let read = |value| {
        let mut fields = Fields::of(value)?;
        let icmp_type = fields.number::<u8>("type", 0, 254)?;
        let code = fields.number::<u8>("code", 0, 255)?;
        fields.deny_unknown(UNKNOWN)?;
        match (icmp_type, code) {
            (Some(icmp_type), code) => Ok(Icmp::new(icmp_type, code)),
            (None, None) => Ok(None),
            (None, Some(code)) => {
                Err(ValueError::new("code", format_args!("`{code}`"), "a code needs `type` as well"))
            }
        }
    };
    read(value).map_err(|error: ValueError| error.within(name))
}
