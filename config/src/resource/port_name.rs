//! Names of ports, and the ports that an endpoint names; Calico 3 only.

use std::fmt;
use std::str::FromStr;

use serde_json::Value;

use super::ValueError;
use super::json::{Extra, Fields, Writer};
use super::rule_match::Protocol;

/// Name of a port: 1 to 128 characters of `A-Z a-z 0-9 _ . -`, of which one is no digit.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortName(Box<str>);

const PORT_NAME: &str = "write a name of 1 to 128 characters from A-Z a-z 0-9 _ . -, not only digits";

impl PortName {
    /// Returns the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for PortName {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
        let is_number = text.bytes().all(|b| b.is_ascii_digit());
        if text.len() > 128 || is_number || !text.bytes().all(allowed) {
            return Err(ValueError::new("", format_args!("`{text}`"), PORT_NAME));
        }
        Ok(Self(text.into()))
    }
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A port of an endpoint that rules refer to by name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointPort {
    /// Name of the port.
    pub name: PortName,
    /// Protocol of the port.
    pub protocol: Protocol,
    /// Number of the port.
    pub port: u16,
}

impl EndpointPort {
    pub(crate) fn parse(value: Value) -> Result<Self, ValueError> {
        let mut fields = Fields::of(value)?;
        let protocol = Protocol::take(&mut fields, "protocol")?;
        Ok(Self {
            name: fields.parsed("name", PORT_NAME)?.ok_or_else(|| ValueError::missing("name", PORT_NAME))?,
            protocol: protocol.ok_or_else(|| ValueError::missing("protocol", "write \"tcp\" or \"udp\""))?,
            port: fields
                .number("port", 1, 65_535)?
                .ok_or_else(|| ValueError::missing("port", "write a number from 1 to 65535"))?,
        })
    }

    /// Writes the member `ports`, unless the list is empty.
    pub(super) fn put_list(writer: &mut Writer, ports: &[Self]) {
        if ports.is_empty() {
            return;
        }
        let list = ports.iter().map(|port| {
            let mut writer = Writer::default();
            writer.put("name", port.name.as_str());
            writer.put("protocol", port.protocol.json());
            writer.put("port", port.port);
            writer.object(&Extra::default())
        });
        writer.put("ports", Value::Array(list.collect()));
    }
}
