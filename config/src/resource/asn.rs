//! Autonomous system numbers.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use serde_json::Value;

use super::ValueError;

/// A four-octet AS number (RFC 6793), not 0 (RFC 7607).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Asn(NonZeroU32);

/// Expected format, for errors.
pub(crate) const EXPECTED: &str = "write an AS number from 1 to 4294967295, or dotted such as 1.10";

impl Asn {
    /// Default of Calico (since its Go implementation) if the store has no global AS number.
    pub const DEFAULT: Self = match NonZeroU32::new(64512) {
        Some(number) => Self(number),
        None => Self(NonZeroU32::MIN),
    };

    /// Creates an AS number; `None` for 0.
    #[must_use]
    pub fn new(number: u32) -> Option<Self> {
        NonZeroU32::new(number).map(Self)
    }

    /// Returns the AS number as an integer.
    #[must_use]
    pub fn get(self) -> u32 {
        self.0.get()
    }

    /// Parses a JSON number or string.
    pub(crate) fn from_json(value: &Value) -> Result<Self, ValueError> {
        let asn = match value {
            Value::Number(number) => number.as_u64().and_then(|n| u32::try_from(n).ok()).and_then(Self::new),
            Value::String(text) => text.trim().parse().ok(),
            _ => None,
        };
        asn.ok_or_else(|| ValueError::json("", value, EXPECTED))
    }
}

/// AS of a peer: a number, or a condition on the AS in its OPEN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PeerAs {
    /// This AS number.
    Number(Asn),
    /// `external`: any AS other than the local one.
    External,
    /// `internal`: the local AS.
    Internal,
}

impl PeerAs {
    /// Returns the number, if there is one.
    #[must_use]
    pub fn number(self) -> Option<Asn> {
        match self {
            Self::Number(asn) => Some(asn),
            Self::External | Self::Internal => None,
        }
    }

    /// Parses a number, `external` or `internal`.
    pub(crate) fn from_json(value: &Value) -> Result<Self, ValueError> {
        match value.as_str() {
            Some("external") => Ok(Self::External),
            Some("internal") => Ok(Self::Internal),
            _ => Asn::from_json(value).map(Self::Number),
        }
    }
}

impl From<Asn> for PeerAs {
    fn from(asn: Asn) -> Self {
        Self::Number(asn)
    }
}

impl fmt::Display for PeerAs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(asn) => fmt::Display::fmt(asn, f),
            Self::External => f.write_str("external"),
            Self::Internal => f.write_str("internal"),
        }
    }
}

impl FromStr for Asn {
    type Err = ValueError;

    /// Parses `64512` or the asdot notation of RFC 5396: `1.10` is 65546.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let number = match text.split_once('.') {
            None => decimal::<u32>(text),
            Some((high, low)) => decimal::<u16>(high)
                .zip(decimal::<u16>(low))
                .map(|(high, low)| u32::from(high) << 16 | u32::from(low)),
        };
        number.and_then(Self::new).ok_or_else(|| ValueError::new("", format_args!("`{text}`"), EXPECTED))
    }
}

fn decimal<T: FromStr>(text: &str) -> Option<T> {
    if text.bytes().all(|b| b.is_ascii_digit()) { text.parse().ok() } else { None }
}

impl fmt::Display for Asn {
    /// Formats the plain number, never asdot notation.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for Asn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AS{}", self.0)
    }
}
