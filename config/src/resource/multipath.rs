//! Which paths share the load of a prefix (ECMP).

use serde_json::Value;

use super::ValueError;
use super::json::{Extra, Fields, Writer, value};

/// The value of `multipath`, global or of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Multipath {
    /// Most next hops of a prefix, 1 to 1024; `None`: all that tie.
    pub max: Option<u16>,
    /// The AS paths need not be equal, only of equal length.
    pub relax: bool,
    /// Fields that are not named here.
    pub extra: Extra,
}

impl Default for Multipath {
    fn default() -> Self {
        Self { max: None, relax: true, extra: Extra::default() }
    }
}

impl Multipath {
    const MOST: u64 = 1024;

    /// Reads `{"max": 16, "relax": false}`; a number alone is `max`.
    ///
    /// # Errors
    /// When a field is malformed.
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

    /// The value as stored.
    #[must_use]
    pub fn to_value(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.put_some("max", self.max);
        writer.put_some("relax", (!self.relax).then_some(false));
        writer.bytes(&self.extra)
    }
}
