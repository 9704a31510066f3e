//! Values of members in the text form of the v1 model.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use serde_json::{Map, Value, json};
use tortie_net::Cidr;

use super::member::{Member, Type};
use crate::resource::{Failsafe, Setting, ValueError, duration};

/// Formats a value of `spec` as the v1 model stores it; `None` if it is unset.
///
/// # Errors
/// If the value is of another type, or not valid for the setting.
pub(super) fn text(member: &Member, value: &Value) -> Result<Option<String>, ValueError> {
    let text = match (member.kind, value) {
        (_, Value::Null) => None,
        (Type::Bool, Value::Bool(value)) => Some(value.to_string()),
        (Type::Int(..) | Type::Mask, Value::Number(number)) if number.is_i64() || number.is_u64() => {
            Some(number.to_string())
        }
        // The mark of Istio is a number or the name of a class.
        (Type::Ports | Type::Text, Value::Number(number)) if number.is_u64() => Some(number.to_string()),
        (Type::Seconds, Value::String(text)) => seconds(text).map(decimal),
        (Type::Millis, Value::String(text)) => seconds(text).map(|seconds| decimal(seconds * 1e3)),
        (
            Type::Text | Type::Words(_) | Type::Address4 | Type::Address6 | Type::Ports,
            Value::String(text),
        ) => {
            if text.is_empty() {
                return Ok(None);
            }
            Some(text.clone())
        }
        (Type::Texts | Type::Prefixes | Type::PortLists, Value::Array(list)) if list.is_empty() => {
            return Ok(None);
        }
        (Type::Texts | Type::Prefixes, Value::Array(list)) => {
            joined(list, |text| text.as_str().map(str::to_owned))
        }
        (Type::PortLists, Value::Array(list)) => joined(list, |port| match port {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        }),
        (Type::Failsafes, Value::Array(list)) if list.is_empty() => Some("none".to_owned()),
        (Type::Failsafes, Value::Array(list)) => joined(list, failsafe),
        (Type::TableRange, range) => table_range(range),
        (Type::TableRanges, Value::Array(list)) if list.is_empty() => return Ok(None),
        (Type::TableRanges, Value::Array(list)) => joined(list, table_range),
        (Type::Pairs, Value::Object(map)) if map.is_empty() => return Ok(None),
        (Type::Pairs, Value::Object(map)) => {
            let pairs = map.iter().map(|(name, value)| Some(format!("{name}={}", value.as_str()?)));
            pairs.collect::<Option<Vec<_>>>().map(|pairs| pairs.join(","))
        }
        (Type::Timeouts, Value::Array(list)) if list.is_empty() => return Ok(None),
        (Type::Timeouts, Value::Array(list)) => joined(list, |timeout| {
            Some(format!("{}={}", timeout.get("name")?.as_str()?, timeout.get("timeout")?.as_str()?))
        }),
        _ => None,
    };
    match text {
        None if value.is_null() => Ok(None),
        None => Err(ValueError::json(place(member), value, expected(member.kind))),
        Some(text) => check(member, &text).map(|()| Some(text)),
    }
}

/// Checks a text of the v1 form, as an annotation has it.
///
/// # Errors
/// If the text is not valid for the setting.
pub(super) fn check(member: &Member, text: &str) -> Result<(), ValueError> {
    let parses = match member.kind {
        // The parser of the setting knows more words than these.
        Type::Bool => Setting::parse("Ipv6Support", text.as_bytes()).is_ok(),
        Type::Int(min, max) => text.parse().is_ok_and(|number: i64| (min..=max).contains(&number)),
        Type::Mask => Setting::parse("IptablesMarkMask", text.as_bytes()).is_ok(),
        Type::Words(words) => words.iter().any(|word| word.eq_ignore_ascii_case(text)) || is_none(text),
        Type::Seconds | Type::Millis => duration::parse(text).is_some(),
        Type::Address4 => text.parse::<Ipv4Addr>().is_ok() || is_none(text),
        Type::Address6 => text.parse::<Ipv6Addr>().is_ok() || is_none(text),
        Type::Prefixes => is_none(text) || text.split(',').all(|net| net.trim().parse::<Cidr>().is_ok()),
        Type::Ports => is_ports(text),
        Type::PortLists => text.split(',').all(|ports| is_ports(ports.trim())),
        Type::Text
        | Type::Texts
        | Type::Failsafes
        | Type::TableRange
        | Type::TableRanges
        | Type::Pairs
        | Type::Timeouts => true,
    };
    if !parses {
        return Err(ValueError::new(place(member), format_args!("`{text}`"), expected(member.kind)));
    }
    Setting::parse(member.setting(), text.as_bytes()).map(drop).map_err(|error| error.within(place(member)))
}

/// Converts a text of the v1 form to a value of `spec`.
///
/// # Errors
/// If the text is not valid for the setting.
pub(super) fn json(member: &Member, text: &str) -> Result<Value, ValueError> {
    if member.v1.starts_with("LogSeverity") {
        return Ok(severity(text).into());
    }
    check(member, text)?;
    let list = || text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let json = match member.kind {
        Type::Bool => {
            Setting::parse("Ipv6Support", text.as_bytes()).ok().map(|s| (s.to_text() == "true").into())
        }
        Type::Int(..) => text.parse::<i64>().ok().map(Value::from),
        Type::Mask => match Setting::parse("IptablesMarkMask", text.as_bytes()) {
            Ok(Setting::IptablesMarkMask(mask)) => Some(mask.bits().into()),
            _ => None,
        },
        Type::Seconds => duration::parse(text).map(|time| duration::text(time).into()),
        Type::Millis => duration::parse(text).map(|time| duration::text(time / 1_000).into()),
        Type::Words(_) => Some(word(text).into()),
        Type::Text | Type::Address4 | Type::Address6 | Type::Ports => Some(text.into()),
        Type::Texts | Type::Prefixes | Type::PortLists if is_none(text) => Some(Value::Array(Vec::new())),
        Type::Texts | Type::Prefixes | Type::PortLists => Some(list().map(Value::from).collect()),
        Type::Failsafes => failsafes(member, text),
        Type::TableRange => range_json(text),
        Type::TableRanges => list().map(range_json).collect(),
        Type::Pairs => list().map(pair).collect::<Option<Map<_, _>>>().map(Value::Object),
        Type::Timeouts => list()
            .map(|text| text.split_once('=').map(|(name, time)| json!({"name": name, "timeout": time})))
            .collect(),
    };
    json.ok_or_else(|| ValueError::new(place(member), format_args!("`{text}`"), expected(member.kind)))
}

/// Returns the name of a severity; of an unknown one that of Calico's own upgrade.
fn severity(text: &str) -> &'static str {
    match text.to_ascii_lowercase().as_str() {
        "trace" => "Trace",
        "debug" => "Debug",
        "warning" | "warn" => "Warning",
        "error" => "Error",
        "critical" | "fatal" | "panic" => "Fatal",
        _ => "Info",
    }
}

/// Returns a word as Calico 3 spells it: with a capital letter.
fn word(text: &str) -> String {
    let is_one_case =
        text.chars().all(|c| c.is_ascii_uppercase()) || text.chars().all(|c| c.is_ascii_lowercase());
    let mut chars = text.chars();
    match chars.next() {
        Some(first) if is_one_case => {
            format!("{}{}", first.to_ascii_uppercase(), chars.as_str().to_ascii_lowercase())
        }
        _ => text.to_owned(),
    }
}

fn failsafes(member: &Member, text: &str) -> Option<Value> {
    let parsed = Setting::parse(member.setting(), text.as_bytes()).ok()?;
    let (Setting::FailsafeInboundHostPorts(ports) | Setting::FailsafeOutboundHostPorts(ports)) = parsed
    else {
        return None;
    };
    let json = |failsafe: &Failsafe| {
        let mut json = json!({"protocol": if failsafe.udp { "UDP" } else { "TCP" }, "port": failsafe.port});
        if let (Some(net), Value::Object(members)) = (failsafe.net, &mut json) {
            members.insert("net".to_owned(), net.to_string().into());
        }
        json
    };
    Some(ports.iter().map(json).collect())
}

fn range_json(text: &str) -> Option<Value> {
    let (min, max) = text.split_once('-')?;
    let number = |text: &str| text.trim().parse::<u64>().ok();
    Some(json!({"min": number(min)?, "max": number(max)?}))
}

fn pair(text: &str) -> Option<(String, Value)> {
    text.split_once('=').map(|(name, value)| (name.to_owned(), value.into()))
}

/// Returns the path of a member.
fn place(member: &Member) -> String {
    format!("spec.{}", member.name)
}

fn is_none(text: &str) -> bool {
    text.eq_ignore_ascii_case("none")
}

fn is_ports(text: &str) -> bool {
    let port = |text: &str| text.parse::<u16>().ok();
    match text.split_once(':') {
        None => port(text).is_some(),
        Some((first, last)) => port(first).zip(port(last)).is_some_and(|(first, last)| first <= last),
    }
}

fn joined(list: &[Value], text: impl Fn(&Value) -> Option<String>) -> Option<String> {
    list.iter().map(text).collect::<Option<Vec<_>>>().map(|texts| texts.join(","))
}

/// Parses a duration as Kubernetes writes it: with units, and without only `0`.
fn seconds(text: &str) -> Option<f64> {
    let has_unit = text.trim() == "0" || text.trim().ends_with(|c: char| c.is_ascii_alphabetic());
    has_unit.then(|| duration::parse(text))?.as_ref().map(Duration::as_secs_f64)
}

/// Formats a number as the shortest decimal that reads back.
fn decimal(number: f64) -> String {
    number.to_string()
}

/// Formats a failsafe: `tcp:22`, `tcp:192.0.2.0/24:22` or `tcp:[2001:db8::/32]:22`.
fn failsafe(value: &Value) -> Option<String> {
    let protocol = match value.get("protocol") {
        None | Some(Value::Null) => "tcp".to_owned(),
        Some(protocol) => protocol.as_str().map(str::to_ascii_lowercase)?,
    };
    let protocol = if protocol.is_empty() { "tcp" } else { &protocol };
    let port = value.get("port")?.as_u64()?;
    let net = match value.get("net") {
        None | Some(Value::Null) => "",
        Some(net) => net.as_str()?,
    };
    match net {
        "" => Some(format!("{protocol}:{port}")),
        net if net.contains(':') => Some(format!("{protocol}:[{net}]:{port}")),
        net => Some(format!("{protocol}:{net}:{port}")),
    }
}

/// Formats a range of routing tables: `1-250`.
fn table_range(value: &Value) -> Option<String> {
    Some(format!("{}-{}", value.get("min")?.as_u64()?, value.get("max")?.as_u64()?))
}

/// Returns what to write for a type.
fn expected(kind: Type) -> String {
    match kind {
        Type::Bool => "write true or false".to_owned(),
        Type::Int(min, i64::MAX) => format!("write a number from {min}"),
        Type::Int(min, max) => format!("write a number from {min} to {max}"),
        Type::Mask => "write a number with at least two bits set, such as 4278190080".to_owned(),
        Type::Text => "write a text".to_owned(),
        Type::Words(words) => format!("write one of {}", words.join(", ")),
        Type::Seconds | Type::Millis => "write a duration with its unit, such as 90s".to_owned(),
        Type::Address4 => "write an IPv4 address".to_owned(),
        Type::Address6 => "write an IPv6 address".to_owned(),
        Type::Texts => "write a list of texts".to_owned(),
        Type::Prefixes => "write a list of networks, such as [\"192.0.2.0/24\"]".to_owned(),
        Type::Failsafes => "write a list such as [{\"protocol\": \"tcp\", \"port\": 22}]".to_owned(),
        Type::Ports => "write a port or a range, such as \"30000:32767\"".to_owned(),
        Type::PortLists => "write a list of ports and ranges, such as [\"30000:32767\"]".to_owned(),
        Type::TableRange => "write a range such as {\"min\": 1, \"max\": 250}".to_owned(),
        Type::TableRanges => "write a list of ranges such as [{\"min\": 1, \"max\": 250}]".to_owned(),
        Type::Pairs => "write an object of texts".to_owned(),
        Type::Timeouts => "write a list such as [{\"name\": \"x\", \"timeout\": \"90s\"}]".to_owned(),
    }
}
