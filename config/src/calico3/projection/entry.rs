//! Entries of the store and of the v1 model, as the projection takes and gives them.

use super::super::{EntryValue, ObjectKey};
use crate::key::Key;

/// An entry of the store, or of the v1 model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawEntry<'a> {
    /// Full key.
    pub key: &'a str,
    /// Value.
    pub value: &'a [u8],
    /// Revision of the write that created the key.
    pub created: u64,
    /// Revision of the last write.
    pub revision: u64,
}

/// A change of one key of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RawChange<'a> {
    /// The key was written.
    Put(RawEntry<'a>),
    /// The key was deleted.
    Delete(&'a str),
}

/// An entry of the v1 model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Key of the v1 model, or the key of the store if it passed unchanged.
    pub key: String,
    /// The same key parsed; `None` if it passed unchanged.
    pub parsed: Option<Key>,
    /// Value.
    pub value: EntryValue,
    /// Revision of the write that created the entry.
    pub created: u64,
    /// Revision of the last change of the entry.
    pub revision: u64,
    /// Objects that the entry came from, the decisive one first; none if the key passed unchanged.
    pub origin: Vec<ObjectKey>,
}

impl Entry {
    /// Returns the raw keys that the entry came from, the decisive one first.
    #[must_use]
    pub fn raw_keys(&self) -> Vec<String> {
        if self.parsed.is_none() {
            return vec![self.key.clone()];
        }
        self.origin.iter().map(ToString::to_string).collect()
    }
}

/// A change of one entry of the v1 model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryChange {
    /// The entry was written.
    Put(Entry),
    /// The entry was deleted.
    Delete {
        /// Its key.
        key: String,
    },
}

impl EntryChange {
    /// Returns the key of the entry.
    pub(super) fn key(&self) -> &str {
        match self {
            Self::Put(entry) => &entry.key,
            Self::Delete { key } => key,
        }
    }
}

/// Returns the entries that changes result in, sorted by key. Of several changes of a key the last one counts.
pub(super) fn outcome(mut changes: Vec<EntryChange>) -> Vec<Entry> {
    changes.sort_by(|a, b| a.key().cmp(b.key()));
    let mut entries: Vec<Entry> = Vec::with_capacity(changes.len());
    for change in changes {
        entries.pop_if(|last| last.key == change.key());
        if let EntryChange::Put(entry) = change {
            entries.push(entry);
        }
    }
    entries
}

/// What a section emitted for a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Emitted {
    pub(super) key: Key,
    pub(super) value: EntryValue,
    pub(super) origin: Vec<ObjectKey>,
    pub(super) created: u64,
    pub(super) revision: u64,
}

impl Emitted {
    /// Returns the entry; `text` is its key.
    pub(super) fn entry(&self, text: &str) -> Entry {
        Entry {
            key: text.to_owned(),
            parsed: Some(self.key.clone()),
            value: self.value.clone(),
            created: self.created,
            revision: self.revision,
            origin: self.origin.clone(),
        }
    }
}
