//! The schema of the whole data model: who has to keep his hands off.

use super::ValueError;
use super::json::{Extra, Fields, Writer};

/// The value of `tortie/v1/schema`. Absent means 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreSchema {
    /// Whoever does not know this schema or a later one writes nothing and follows nothing.
    pub schema: u32,
    /// Fields that are not named here.
    pub extra: Extra,
}

impl StoreSchema {
    /// Reads `{"schema": N}`.
    ///
    /// # Errors
    /// When it is something else, or N is 0.
    pub fn parse(bytes: &[u8]) -> Result<Self, ValueError> {
        let mut fields = Fields::parse(bytes)?;
        let schema = fields.number("schema", 1, u64::from(u32::MAX))?;
        let schema =
            schema.ok_or_else(|| ValueError::new("schema", "nothing", "write {\"schema\": N}, from 1 on"))?;
        Ok(Self { schema, extra: fields.rest() })
    }

    /// The value as it is stored.
    #[must_use]
    pub fn to_value(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.put("schema", self.schema);
        writer.bytes(&self.extra)
    }
}
