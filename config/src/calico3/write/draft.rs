//! An object while it is edited: what is kept, what changes, and what a new one gets.

use serde_json::{Value, json};

use super::super::{ObjectError, ObjectKey};
use super::members::Members;

/// What is to become of one member.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Edit<T> {
    /// It stays as it is, also if it is absent.
    #[default]
    Keep,
    /// It gets this value.
    Set(T),
    /// It is removed.
    Remove,
}

impl<T> Edit<T> {
    /// Applies the change to a member of an object.
    pub(super) fn apply(&self, members: &mut Members, name: &str, json: impl FnOnce(&T) -> Value) {
        match self {
            Self::Keep => {}
            Self::Set(value) => members.set(name, &json(value)),
            Self::Remove => members.remove(name),
        }
    }
}

/// What a new object gets that the caller must supply, because it is neither pure nor configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Birth {
    /// UUID in text form, `metadata.uid`.
    pub uid: String,
    /// Time of creation, RFC 3339 in seconds and UTC, `metadata.creationTimestamp`.
    pub time: String,
}

/// An object that is edited.
pub(super) struct Draft {
    whole: Members,
    pub(super) metadata: Members,
    pub(super) spec: Members,
    before: Option<Vec<u8>>,
}

impl Draft {
    /// Starts from a stored value, or from a new object.
    pub(super) fn open(key: &ObjectKey, stored: Option<&[u8]>, birth: &Birth) -> Result<Self, ObjectError> {
        let whole = stored.map_or_else(|| Ok(Members::default()), |text| Members::parse("", text))?;
        let mut draft = Self {
            metadata: whole.object("metadata")?,
            spec: whole.object("spec")?,
            whole,
            before: stored.map(<[u8]>::to_vec),
        };
        draft.whole.set("kind", &json!(key.kind.as_str()));
        draft.whole.set("apiVersion", &json!("projectcalico.org/v3"));
        draft.metadata.set("name", &json!(key.name));
        if let Some(namespace) = &key.namespace {
            draft.metadata.set("namespace", &json!(namespace));
        }
        // Clients refuse to update an object without these two.
        for (member, value) in [("uid", &birth.uid), ("creationTimestamp", &birth.time)] {
            if draft.metadata.get(member).is_none() {
                draft.metadata.set(member, &json!(value));
            }
        }
        Ok(draft)
    }

    /// Returns the value to write, or `None` if it equals the stored one.
    pub(super) fn close(mut self) -> Option<Vec<u8>> {
        self.whole.set_object("metadata", &self.metadata);
        self.whole.set("spec", &json!({}));
        if !self.spec.is_empty() {
            self.whole.set_object("spec", &self.spec);
        }
        let value = self.whole.to_string().into_bytes();
        let unchanged = |before: &Vec<u8>| {
            let json = |text: &[u8]| serde_json::from_slice::<Value>(text).ok();
            *before == value || json(before) == json(&value)
        };
        (!self.before.as_ref().is_some_and(unchanged)).then_some(value)
    }
}
