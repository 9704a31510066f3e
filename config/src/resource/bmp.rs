//! BMP stations (RFC 7854): whom an agent tells what its peers send.

use std::net::SocketAddr;

use serde_json::Value;

use super::ValueError;
use super::json::{Extra, Fields, Writer, elements, value};

/// One element of `bmp_stations`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BmpStation {
    /// Where it listens; the port is never 0.
    pub address: SocketAddr,
    /// Fields that are not named here.
    pub extra: Extra,
}

const ADDRESS: &str = "write ADDRESS:PORT such as 192.0.2.50:11019 or [2001:db8::50]:11019";

impl BmpStation {
    /// Reads the list: `["192.0.2.50:11019", {"address": "[2001:db8::50]:11019"}]`.
    ///
    /// # Errors
    /// When it is no list of addresses with ports, or names one twice.
    pub fn parse_list(bytes: &[u8]) -> Result<Vec<Self>, ValueError> {
        let list = elements(value(bytes)?, Self::parse)?;
        for (at, station) in list.iter().enumerate() {
            if list.iter().take(at).any(|other| other.address == station.address) {
                let found = format!("`{}` again", station.address);
                return Err(
                    ValueError::new("", found, "name each station once").within(format_args!("[{at}]"))
                );
            }
        }
        Ok(list)
    }

    fn parse(value: Value) -> Result<Self, ValueError> {
        let (address, extra) = match value {
            Value::Object(_) => {
                let mut fields = Fields::of(value)?;
                let address = fields.parsed::<SocketAddr>("address", ADDRESS)?;
                (address.ok_or_else(|| ValueError::missing("address", ADDRESS))?, fields.rest())
            }
            other => (super::json::parsed(&other, ADDRESS)?, Extra::default()),
        };
        if address.port() == 0 {
            return Err(ValueError::new("", format_args!("`{address}`"), ADDRESS));
        }
        Ok(Self { address, extra })
    }

    /// The list as stored.
    #[must_use]
    pub fn list_to_value(list: &[Self]) -> Vec<u8> {
        let list = list.iter().map(|station| {
            if station.extra.is_empty() {
                return Value::String(station.address.to_string());
            }
            let mut writer = Writer::default();
            writer.put("address", station.address.to_string());
            writer.object(&station.extra)
        });
        Value::Array(list.collect()).to_string().into_bytes()
    }
}
