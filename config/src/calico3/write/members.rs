//! A JSON object whose members keep their text when others are changed.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use super::super::ObjectError;

/// Members of a JSON object in their order, each with its text as stored: numbers, spaces and nested members
/// that this program does not know are written back byte for byte.
#[derive(Debug, Clone, Default)]
pub(super) struct Members(Vec<(String, Box<RawValue>)>);

impl Members {
    /// Parses an object. `place` names it in the error.
    ///
    /// # Errors
    /// If the text is no JSON object.
    pub(super) fn parse(place: &str, text: &[u8]) -> Result<Self, ObjectError> {
        serde_json::from_slice(text)
            .map_err(|error| ObjectError::new(place, format!("this is no JSON object ({error})")))
    }

    /// Returns a member as JSON; `None` if it is absent or null.
    pub(super) fn get(&self, name: &str) -> Option<Value> {
        let (_, raw) = self.0.iter().find(|(member, _)| member == name)?;
        serde_json::from_str(raw.get()).ok().filter(|value: &Value| !value.is_null())
    }

    /// Returns the members of a member that is an object; empty if it is absent or null.
    ///
    /// # Errors
    /// If the member is no object.
    pub(super) fn object(&self, name: &str) -> Result<Self, ObjectError> {
        match self.0.iter().find(|(member, _)| member == name) {
            None => Ok(Self::default()),
            Some((_, raw)) if raw.get() == "null" => Ok(Self::default()),
            Some((_, raw)) => Self::parse(name, raw.get().as_bytes()),
        }
    }

    /// Sets a member, unless it has this value. A new member becomes the last one.
    pub(super) fn set(&mut self, name: &str, value: &Value) {
        if self.get(name).as_ref() == Some(value) {
            return;
        }
        // A `Value` has text keys only, so that it is always JSON.
        let Ok(raw) = to_raw_value(value) else { return };
        self.put(name, raw);
    }

    /// Sets a member to an object; an object without members removes it.
    pub(super) fn set_object(&mut self, name: &str, members: &Self) {
        if members.0.is_empty() {
            return self.remove(name);
        }
        if let Ok(raw) = RawValue::from_string(members.to_string()) {
            self.put(name, raw);
        }
    }

    /// Removes a member.
    pub(super) fn remove(&mut self, name: &str) {
        self.0.retain(|(member, _)| member != name);
    }

    /// Returns true if there is no member.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn put(&mut self, name: &str, raw: Box<RawValue>) {
        match self.0.iter_mut().find(|(member, _)| member == name) {
            Some((_, old)) => *old = raw,
            None => self.0.push((name.to_owned(), raw)),
        }
    }
}

impl fmt::Display for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{")?;
        for (at, (name, raw)) in self.0.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma}{}:{}", Value::from(name.as_str()), raw.get())?;
        }
        f.write_str("}")
    }
}

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Members;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Members::default();
                while let Some((name, raw)) = map.next_entry::<String, Box<RawValue>>()? {
                    // Of two members with one name the last one counts, as for Go.
                    members.put(&name, raw);
                }
                Ok(members)
            }
        }
        from.deserialize_map(Object)
    }
}
