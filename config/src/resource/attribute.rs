//! Attributes of allocations: who holds an address.

use serde_json::{Map, Value};

use super::ValueError;
use super::json::{Extra, Fields, Writer};

/// Attributes of an allocation. Equal attributes are stored once.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Attribute {
    /// Handle under which the address can be released.
    pub handle: Option<String>,
    /// Free-form attributes: `node`, `timestamp`, `pod`, `namespace` and others.
    pub secondary: Option<Map<String, Value>>,
    /// Free-form attributes of a second holder, to which the address moves (Calico 3.32, virtual machines).
    pub alternate_owner: Option<Map<String, Value>>,
    /// Time of the release, RFC 3339, of an address that cools down (Calico 3.33). Such an entry has no
    /// holder.
    pub released_at: Option<String>,
    /// Unknown fields, kept when the value is written.
    pub extra: Extra,
}

impl Attribute {
    /// Returns a free-form attribute, if it is a string.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.secondary.as_ref()?.get(name)?.as_str()
    }

    /// Parses an element of the list `attributes`.
    pub(super) fn parse(value: Value) -> Result<Self, ValueError> {
        let mut fields = Fields::of(value)?;
        let older = fields.text("primary")?;
        let handle = fields.text("handle_id")?.or(older);
        let secondary = object(&mut fields, "secondary")?;
        let alternate_owner = object(&mut fields, "alternateOwnerAttrs")?;
        let released_at = fields.text("releasedAt")?;
        Ok(Self { handle, secondary, alternate_owner, released_at, extra: fields.rest() })
    }

    /// Formats the element.
    pub(super) fn to_json(&self) -> Value {
        let mut writer = Writer::default();
        writer.put("handle_id", self.handle.clone());
        writer.put("secondary", self.secondary.clone().map_or(Value::Null, Value::Object));
        writer.put_some("alternateOwnerAttrs", self.alternate_owner.clone().map(Value::Object));
        writer.put_some("releasedAt", self.released_at.clone());
        writer.object(&self.extra)
    }
}

fn object(fields: &mut Fields, name: &str) -> Result<Option<Map<String, Value>>, ValueError> {
    match fields.take(name) {
        None => Ok(None),
        Some(Value::Object(map)) => Ok(Some(map)),
        Some(other) => Err(ValueError::json(name, &other, "write an object or null")),
    }
}
