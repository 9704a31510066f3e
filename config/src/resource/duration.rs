//! Durations as Calico's writers format them: Go's text form (`120s`, `1m30s`, `50ms`) or a number of
//! seconds.

use std::time::Duration;

use serde_json::Value;

use super::ValueError;
use super::json::Fields;

/// Parses Go's form or a number of seconds with optional fraction. Returns `None` for other text, and for
/// negative or excessive values.
pub(crate) fn parse(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    if let Some(seconds) = decimal(rest) {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let mut total = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !(c.is_ascii_digit() || c == '.'))?;
        let (number, tail) = rest.split_at_checked(digits)?;
        let unit_len = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at_checked(unit_len)?;
        total += decimal(number)? * unit_seconds(unit)?;
        rest = tail;
    }
    (!text.trim().is_empty()).then(|| Duration::try_from_secs_f64(total).ok())?
}

/// Parses digits with at most one decimal point. Rust's own parser would accept `inf`, `1e9` and signs.
fn decimal(text: &str) -> Option<f64> {
    let plain =
        text.bytes().all(|b| b.is_ascii_digit() || b == b'.') && text.bytes().any(|b| b.is_ascii_digit());
    plain.then(|| text.parse().ok())?
}

fn unit_seconds(unit: &str) -> Option<f64> {
    Some(match unit {
        "h" => 3600.0,
        "m" => 60.0,
        "s" => 1.0,
        "ms" => 1e-3,
        "us" | "\u{b5}s" | "\u{3bc}s" => 1e-6,
        "ns" => 1e-9,
        _ => return None,
    })
}

/// Formats with the largest unit that is exact: `120s`, `50ms` or `7us`.
pub(crate) fn text(duration: Duration) -> String {
    if duration.subsec_nanos() == 0 {
        format!("{}s", duration.as_secs())
    } else if duration.subsec_nanos().is_multiple_of(1_000_000) {
        format!("{}ms", duration.as_millis())
    } else {
        format!("{}us", duration.as_micros())
    }
}

/// Parses a field, text or number, that must be within a range and a multiple of `unit`.
pub(crate) fn field(
    fields: &mut Fields,
    name: &str,
    unit: Duration,
    min: Duration,
    max: Duration,
) -> Result<Option<Duration>, ValueError> {
    let Some(value) = fields.take(name) else { return Ok(None) };
    let duration = match &value {
        Value::String(text) if text.is_empty() => return Ok(None),
        Value::String(text) => parse(text),
        Value::Number(number) => parse(&number.to_string()),
        _ => None,
    };
    duration
        .filter(|d| (min..=max).contains(d) && d.as_nanos().is_multiple_of(unit.as_nanos().max(1)))
        .map(Some)
        .ok_or_else(|| {
            let expected =
                format!("write a duration from {} to {}, such as \"{}\"", text(min), text(max), text(max));
            ValueError::json(name, &value, expected)
        })
}
