//! Protocol, port and ICMP matches of rules.

use std::fmt;
use std::num::NonZeroU8;
use std::str::FromStr;

use serde_json::Value;

use super::ValueError;
use super::json::{Fields, Writer};
use super::port_name::PortName;

/// An IP protocol number, 1 to 255.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Protocol(NonZeroU8);

const PROTOCOL: &str = "write tcp, udp, icmp, icmpv6, sctp, udplite or a number from 1 to 255";

const NAMES: [(&str, u8); 6] =
    [("tcp", 6), ("udp", 17), ("icmp", 1), ("icmpv6", 58), ("sctp", 132), ("udplite", 136)];

impl Protocol {
    /// Creates a protocol from its number; `None` for 0.
    #[must_use]
    pub fn new(number: u8) -> Option<Self> {
        NonZeroU8::new(number).map(Self)
    }

    /// Returns the protocol number (IANA).
    #[must_use]
    pub fn number(self) -> u8 {
        self.0.get()
    }

    /// Returns true for protocols with ports: TCP, UDP, SCTP, UDP-Lite.
    #[must_use]
    pub fn has_ports(self) -> bool {
        matches!(self.number(), 6 | 17 | 132 | 136)
    }

    /// Returns true for ICMP and ICMPv6.
    #[must_use]
    pub fn is_icmp(self) -> bool {
        matches!(self.number(), 1 | 58)
    }

    fn name(self) -> Option<&'static str> {
        NAMES.iter().find(|(_, number)| *number == self.number()).map(|(name, _)| *name)
    }

    pub(super) fn take(fields: &mut Fields, name: &str) -> Result<Option<Self>, ValueError> {
        let Some(value) = fields.take(name) else { return Ok(None) };
        let protocol = match &value {
            Value::Number(number) => number.as_u64().and_then(|n| u8::try_from(n).ok()).and_then(Self::new),
            Value::String(text) if text.is_empty() => return Ok(None),
            Value::String(text) => text.parse().ok(),
            _ => None,
        };
        protocol.map(Some).ok_or_else(|| ValueError::json(name, &value, PROTOCOL))
    }

    pub(super) fn json(self) -> Value {
        self.name().map_or_else(|| self.number().into(), Value::from)
    }
}

impl FromStr for Protocol {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let named = NAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)).map(|(_, number)| *number);
        named
            .or_else(|| decimal(text))
            .and_then(Self::new)
            .ok_or_else(|| ValueError::new("", format_args!("`{text}`"), PROTOCOL))
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => fmt::Display::fmt(&self.number(), f),
        }
    }
}

fn decimal<T: FromStr>(text: &str) -> Option<T> {
    if text.bytes().all(|b| b.is_ascii_digit()) { text.parse().ok() } else { None }
}

/// A port range that includes both ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortRange {
    first: u16,
    last: u16,
}

const PORTS: &str = "write a port (80), a text (\"80\") or a range (\"2048:4000\") from 0 to 65535";

impl PortRange {
    /// Creates a range; `None` if `first` is greater than `last`.
    #[must_use]
    pub fn new(first: u16, last: u16) -> Option<Self> {
        (first <= last).then_some(Self { first, last })
    }

    /// Returns the first port.
    #[must_use]
    pub fn first(self) -> u16 {
        self.first
    }

    /// Returns the last port.
    #[must_use]
    pub fn last(self) -> u16 {
        self.last
    }

    /// Returns true if the range contains the port.
    #[must_use]
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }

    pub(super) fn of_json(value: &Value) -> Result<Self, ValueError> {
        let range = match value {
            Value::Number(number) => {
                number.as_u64().and_then(|n| u16::try_from(n).ok()).and_then(|port| Self::new(port, port))
            }
            Value::String(text) => text.parse().ok(),
            _ => None,
        };
        range.ok_or_else(|| ValueError::json("", value, PORTS))
    }
}

impl FromStr for PortRange {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let (first, last) = text.split_once(':').unwrap_or((text, text));
        decimal(first)
            .zip(decimal(last))
            .and_then(|(first, last)| Self::new(first, last))
            .ok_or_else(|| ValueError::new("", format_args!("`{text}`"), PORTS))
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}:{}", self.first, self.last)
        }
    }
}

/// Formats single ports as numbers, ranges and names as strings.
pub(super) fn ports_json(ports: &[PortRange], names: &[PortName]) -> Value {
    let json = |range: &PortRange| {
        if range.first == range.last { Value::from(range.first) } else { Value::from(range.to_string()) }
    };
    let names = names.iter().map(|name| Value::from(name.as_str()));
    Value::Array(ports.iter().map(json).chain(names).collect())
}

/// An ICMP type with an optional code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Icmp {
    icmp_type: u8,
    code: Option<u8>,
}

impl Icmp {
    /// Creates a match; `None` for type 255, which kernel matches do not support.
    #[must_use]
    pub fn new(icmp_type: u8, code: Option<u8>) -> Option<Self> {
        (icmp_type != 255).then_some(Self { icmp_type, code })
    }

    /// Returns the ICMP type, 0 to 254.
    #[must_use]
    pub fn icmp_type(self) -> u8 {
        self.icmp_type
    }

    /// Returns the ICMP code; `None` for any code.
    #[must_use]
    pub fn code(self) -> Option<u8> {
        self.code
    }

    pub(super) fn take(fields: &mut Fields, not: &str) -> Result<Option<Self>, ValueError> {
        let type_name = format!("{not}icmp_type");
        let code_name = format!("{not}icmp_code");
        let icmp_type = fields.number::<u8>(&type_name, 0, 254)?;
        let code = fields.number::<u8>(&code_name, 0, 255)?;
        match (icmp_type, code) {
            (None, None) => Ok(None),
            (Some(icmp_type), code) => Ok(Some(Self { icmp_type, code })),
            (None, Some(code)) => Err(ValueError::new(
                code_name,
                format_args!("`{code}`"),
                format!("a code needs `{type_name}` as well"),
            )),
        }
    }

    pub(super) fn write(self, writer: &mut Writer, not: &str) {
        writer.put(&format!("{not}icmp_type"), self.icmp_type);
        writer.put_some(&format!("{not}icmp_code"), self.code);
    }
}
