//! Prefix advertisements: prefixes to announce in addition to pools and blocks, with communities.

use std::fmt;
use std::str::FromStr;

use serde_json::Value;

use super::ValueError;
use super::json::{Extra, Fields, Writer, elements, value};
use crate::key::IpFamily;
use tortie_net::Cidr;

/// An element of `prefix_advertisements`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrefixAdvertisement {
    /// Prefix; it applies to routes equal to or inside of it.
    pub cidr: Cidr,
    /// Communities to add to these routes.
    pub communities: Vec<Community>,
    /// Unknown fields, kept when the value is written.
    pub extra: Extra,
}

/// A BGP community.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Community {
    /// Two parts of 16 bits, `65000:100` (RFC 1997).
    Standard(u32),
    /// Three parts of 32 bits, `65000:1:2` (RFC 8092).
    Large([u32; 3]),
}

const COMMUNITY: &str =
    "write a community: two parts up to 65535 (65000:100) or three up to 4294967295 (65000:1:2)";

impl FromStr for Community {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let parts: Option<Vec<u32>> = text
            .split(':')
            .map(|part| if part.bytes().all(|b| b.is_ascii_digit()) { part.parse().ok() } else { None })
            .collect();
        match parts.as_deref() {
            Some([high, low]) if *high <= 0xffff && *low <= 0xffff => Ok(Self::Standard(high << 16 | low)),
            Some([global, one, two]) => Ok(Self::Large([*global, *one, *two])),
            _ => Err(ValueError::new("", format_args!("`{text}`"), COMMUNITY)),
        }
    }
}

impl fmt::Display for Community {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Standard(community) => write!(f, "{}:{}", community >> 16, community & 0xffff),
            Self::Large([global, one, two]) => write!(f, "{global}:{one}:{two}"),
        }
    }
}

impl PrefixAdvertisement {
    /// Parses the list of one address family.
    ///
    /// # Errors
    /// If it is not a list of objects with `cidr` and `communities`.
    pub fn parse_list(family: IpFamily, bytes: &[u8]) -> Result<Vec<Self>, ValueError> {
        elements(value(bytes)?, |element| Self::parse(family, element))
    }

    fn parse(family: IpFamily, value: Value) -> Result<Self, ValueError> {
        let expected = "write ADDRESS/LENGTH of the key's family";
        let mut fields = Fields::of(value)?;
        let cidr: Cidr =
            fields.parsed("cidr", expected)?.ok_or_else(|| ValueError::missing("cidr", expected))?;
        if IpFamily::of_cidr(&cidr) != family {
            return Err(ValueError::new("cidr", format_args!("`{cidr}`"), expected));
        }
        let communities = fields.parsed_list("communities", COMMUNITY)?;
        Ok(Self { cidr, communities, extra: fields.rest() })
    }

    /// Formats the list as it is stored.
    #[must_use]
    pub fn list_to_value(list: &[Self]) -> Vec<u8> {
        let list = list.iter().map(|element| {
            let mut writer = Writer::default();
            writer.put("cidr", element.cidr.to_string());
            writer.put_list("communities", &element.communities);
            writer.object(&element.extra)
        });
        Value::Array(list.collect()).to_string().into_bytes()
    }
}
