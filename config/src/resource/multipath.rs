//! Multipath (ECMP): the paths that are used in parallel for a prefix.

use serde_json::Value;

use super::ValueError;
use super::json::{Extra, Fields, Writer, value};

/// Value of `multipath`, global or of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Multipath {
    /// Maximum number of next hops per prefix, 1 to 1024; `None` for all equal paths.
    pub max: Option<u16>,
    /// Requires AS paths of equal length only, instead of equal AS paths.
    pub relax: bool,
    /// Unknown fields, kept when the value is written.
    pub extra: Extra,
}

impl Default for Multipath {
    fn default() -> Self {
        Self { max: None, relax: true, extra: Extra::default() }
    }
}

impl Multipath {
    const MOST: u64 = 1024;

    /// Parses `{"max": 16, "relax": false}`; a number alone is `max`.
    ///
    /// # Errors
    /// If a field is malformed.
    pub fn parse(bytes: &[u8]) -> Result<Self, ValueError> {
        let value = value(bytes)?;
        if !matches!(value, Value::Object(_)) {
            let number = value.as_u64().filter(|max| (1..=Self::MOST).contains(max));
            let max = number.and_then(|max| u16::try_from(max).ok()).ok_or_else(|| {
                let expected = "write {\"max\": 16, \"relax\": true}, or a number from 1 to 1024";
                ValueError::json("", &value, expected)
            })?;
            return Ok(Self { max: Some(max), ..Self::default() });
        }
        let mut fields = Fields::of(value)?;
        Ok(Self {
            max: fields.number("max", 1, Self::MOST)?,
            relax: fields.bool("relax")?.unwrap_or(true),
            extra: fields.rest(),
        })
    }

    /// Formats the value as it is stored.
    #[must_use]
    pub fn to_value(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.put_some("max", self.max);
        writer.put_some("relax", (!self.relax).then_some(false));
        writer.bytes(&self.extra)
    }
}
