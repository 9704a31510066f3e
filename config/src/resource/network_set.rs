//! Network sets: labelled networks, which rule selectors match like the addresses of endpoints.

use super::ValueError;
use super::json::{Extra, Fields, Writer};
use super::names::{Labels, labels_field, labels_json};
use tortie_net::Cidr;

/// A network set of Calico 3. It is never subject to policy.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NetworkSet {
    /// Networks of both families.
    pub nets: Vec<Cidr>,
    /// Labels that selectors match.
    pub labels: Labels,
    /// Profiles whose labels the set inherits, in order of precedence: that of its namespace.
    pub profile_ids: Vec<String>,
}

impl NetworkSet {
    /// Parses a value.
    ///
    /// # Errors
    /// If a member is malformed.
    pub fn parse(bytes: &[u8]) -> Result<Self, ValueError> {
        let mut fields = Fields::parse(bytes)?;
        Ok(Self {
            nets: fields.parsed_list("nets", "write ADDRESS/LENGTH, such as 10.0.0.0/8")?,
            labels: labels_field(&mut fields)?,
            profile_ids: fields.names("profile_ids")?,
        })
    }

    /// Formats the value.
    #[must_use]
    pub fn to_value(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.put("nets", super::json::texts(&self.nets));
        writer.put("labels", labels_json(&self.labels));
        writer.put("profile_ids", super::json::texts(&self.profile_ids));
        writer.bytes(&Extra::default())
    }
}
