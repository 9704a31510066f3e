//! What the projection of objects results in: entries of the v1 model, and problems.

use super::{EntryValue, ObjectKey};
use crate::key::Key;

/// An entry of the v1 model, as one file of a kind computes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::calico3) struct Projected {
    /// Key of the v1 model.
    pub(in crate::calico3) key: Key,
    /// Value as the v1 model stores it.
    pub(in crate::calico3) value: EntryValue,
    /// Objects that the entry came from, the decisive one first. Never empty.
    pub(in crate::calico3) origin: Vec<ObjectKey>,
}

/// A member or object that cannot be used as it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// Object that the problem is about.
    pub key: ObjectKey,
    /// Stable code, such as `invalid-value`.
    pub code: &'static str,
    /// What was found, with the member, and the next step.
    pub text: String,
}

/// Entries and problems of one object, or of one section.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::calico3) struct Output {
    /// Entries, with distinct keys.
    pub(in crate::calico3) entries: Vec<Projected>,
    /// Problems.
    pub(in crate::calico3) problems: Vec<Problem>,
}

impl Output {
    /// Adds an entry that came from one object.
    pub(in crate::calico3) fn put(&mut self, key: Key, value: impl Into<EntryValue>, origin: &ObjectKey) {
        self.put_of(key, value, vec![origin.clone()]);
    }

    /// Adds an entry that came from several objects, the decisive one first.
    pub(in crate::calico3) fn put_of(
        &mut self,
        key: Key,
        value: impl Into<EntryValue>,
        origin: Vec<ObjectKey>,
    ) {
        self.entries.push(Projected { key, value: value.into(), origin });
    }

    /// Adds a problem.
    pub(in crate::calico3) fn problem(
        &mut self,
        key: &ObjectKey,
        code: &'static str,
        text: impl Into<String>,
    ) {
        self.problems.push(Problem { key: key.clone(), code, text: text.into() });
    }
}
