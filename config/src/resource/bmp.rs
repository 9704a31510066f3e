//! BMP stations (RFC 7854), to which an agent exports the routes that its peers send.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use serde_json::Value;

use super::ValueError;
use super::json::{Extra, Fields, Writer, elements, value};
use super::peer_options::words;

/// An element of `bmp_stations`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BmpStation {
    /// Address and port of the station; the port is never 0.
    pub address: SocketAddr,
    /// Routes that the station receives.
    pub policy: BmpPolicy,
    /// Unknown fields, kept when the value is written.
    pub extra: Extra,
}

words! {
    /// Routes that a station receives (RFC 7854, section 5, and RFC 9069).
    BmpPolicy: "write \"pre\", \"post\", \"both\", \"loc\" or \"all\"" {
        /// Adj-RIB-In before import policy.
        Pre = "pre",
        /// Adj-RIB-In after import policy.
        Post = "post",
        /// Adj-RIB-In before and after import policy.
        Both = "both",
        /// Loc-RIB: the best path of each prefix.
        Loc = "loc",
        /// All of the above.
        All = "all",
    }
}

impl BmpPolicy {
    /// Returns true if the Adj-RIB-In before import policy is exported.
    #[must_use]
    pub fn pre(self) -> bool {
        matches!(self, Self::Pre | Self::Both | Self::All)
    }

    /// Returns true if the Adj-RIB-In after import policy is exported.
    #[must_use]
    pub fn post(self) -> bool {
        matches!(self, Self::Post | Self::Both | Self::All)
    }

    /// Returns true if the Loc-RIB is exported.
    #[must_use]
    pub fn loc(self) -> bool {
        matches!(self, Self::Loc | Self::All)
    }
}

const ADDRESS: &str = "write ADDRESS:PORT such as 192.0.2.50:11019 or [2001:db8::50]:11019";

impl BmpStation {
    /// Parses the list: `["192.0.2.50:11019", {"address": "[2001:db8::50]:11019", "policy": "both"}]`.
    ///
    /// # Errors
    /// If it is not a list of addresses with ports, or contains an address twice.
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
        let (address, policy, extra) = match value {
            Value::Object(_) => {
                let mut fields = Fields::of(value)?;
                let address = fields.parsed::<SocketAddr>("address", ADDRESS)?;
                let policy = fields.parsed("policy", BmpPolicy::EXPECTED)?.unwrap_or(BmpPolicy::Pre);
                (address.ok_or_else(|| ValueError::missing("address", ADDRESS))?, policy, fields.rest())
            }
            other => (super::json::parsed(&other, ADDRESS)?, BmpPolicy::Pre, Extra::default()),
        };
        if address.port() == 0 {
            return Err(ValueError::new("", format_args!("`{address}`"), ADDRESS));
        }
        Ok(Self { address, policy, extra })
    }

    /// Formats the list as it is stored.
    #[must_use]
    pub fn list_to_value(list: &[Self]) -> Vec<u8> {
        let list = list.iter().map(|station| {
            if station.extra.is_empty() && station.policy == BmpPolicy::Pre {
                return Value::String(station.address.to_string());
            }
            let mut writer = Writer::default();
            writer.put("address", station.address.to_string());
            writer.put_text("policy", Some(&station.policy).filter(|policy| **policy != BmpPolicy::Pre));
            writer.object(&station.extra)
        });
        Value::Array(list.collect()).to_string().into_bytes()
    }
}
