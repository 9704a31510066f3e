//! Schema version of the whole data model: programs that do not support it must not use the store.

use super::ValueError;
use super::json::{Extra, Fields, Writer};

/// Value of `tortie/v1/schema`. An absent key means 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreSchema {
    /// Minimum schema version; a program that does not support it neither writes nor follows the store.
    pub schema: u32,
    /// Unknown fields, kept when the value is written.
    pub extra: Extra,
}

impl StoreSchema {
    /// Parses `{"schema": N}`.
    ///
    /// # Errors
    /// If the value has another form, or if N is 0.
    pub fn parse(bytes: &[u8]) -> Result<Self, ValueError> {
        let mut fields = Fields::parse(bytes)?;
        let schema = fields.number("schema", 1, u64::from(u32::MAX))?;
        let schema =
            schema.ok_or_else(|| ValueError::new("schema", "nothing", "write {\"schema\": N}, from 1 on"))?;
        Ok(Self { schema, extra: fields.rest() })
    }

    /// Formats the value as it is stored.
    #[must_use]
    pub fn to_value(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.put("schema", self.schema);
        writer.bytes(&self.extra)
    }
}
