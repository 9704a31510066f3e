//! A slot: one value of the data model, with all keys under which it may be stored.
//!
//! A value has one current key, possibly a key at an older path, and in theory other spellings of the same
//! path (an IPv6 address that is not in its shortest form). The current key takes precedence, then its other
//! spellings, then the older paths, each in text order, so the result never depends on the order of writes.
//!
//! If a value cannot be parsed, the last good one stays in force.

use std::collections::BTreeMap;

use tortie_config::key::Key;

use super::value::Value;
use tortie_store::{KeyValue, Revision};

/// Value stored under one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// Last value that could be parsed; `None` if there never was one.
    pub(super) value: Option<Value>,
    /// Revision of the last write.
    pub(super) revision: Revision,
    /// Revision of the write that created the key.
    pub(super) created: Revision,
}

impl Entry {
    /// Records a write. `read` is its parsed value, or `None` if it cannot be parsed.
    fn write(&mut self, kv: &KeyValue, read: Option<Value>) {
        self.revision = kv.mod_revision;
        self.created = kv.create_revision;
        if read.is_some() {
            self.value = read;
        }
    }

    fn new(kv: &KeyValue, value: Option<Value>) -> Self {
        Self { value, revision: kv.mod_revision, created: kv.create_revision }
    }
}

/// One of the keys of a slot.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Spelling {
    /// Current path in its canonical form.
    Canonical,
    /// Current path in another spelling.
    Variant(Box<str>),
    /// Older path.
    Legacy(Box<str>),
}

impl Spelling {
    /// Returns the text of the key.
    pub(super) fn text(&self, key: &Key) -> Box<str> {
        match self {
            Self::Canonical => key.to_string().into(),
            Self::Variant(text) | Self::Legacy(text) => text.clone(),
        }
    }
}

/// All keys that hold one value of the data model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Slot {
    canonical: Option<Entry>,
    /// Rarely used, so it is boxed and takes one pointer.
    #[expect(clippy::box_collection, reason = "a BTreeMap has three words and there are many slots")]
    others: Option<Box<BTreeMap<Spelling, Entry>>>,
}

impl Slot {
    /// Returns the entry in force: the first with a value, so that an unreadable current key does not hide an
    /// older one.
    pub(super) fn entry(&self) -> Option<&Entry> {
        let others = || self.others.iter().flat_map(|others| others.values());
        let mut all = self.canonical.iter().chain(others());
        all.clone().find(|entry| entry.value.is_some()).or_else(|| all.next())
    }

    /// Returns the value in force.
    pub(super) fn value(&self) -> Option<&Value> {
        self.entry()?.value.as_ref()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.canonical.is_none() && self.others.is_none()
    }

    /// Returns the entry stored under one of the keys.
    pub(super) fn under(&self, spelling: &Spelling) -> Option<&Entry> {
        match spelling {
            Spelling::Canonical => self.canonical.as_ref(),
            other => self.others.as_ref()?.get(other),
        }
    }

    pub(super) fn put(&mut self, spelling: Spelling, kv: &KeyValue, read: Option<Value>) {
        if let Spelling::Canonical = spelling {
            match &mut self.canonical {
                Some(entry) => entry.write(kv, read),
                empty => *empty = Some(Entry::new(kv, read)),
            }
            return;
        }
        let others = self.others.get_or_insert_default();
        match others.get_mut(&spelling) {
            Some(entry) => entry.write(kv, read),
            None => {
                others.insert(spelling, Entry::new(kv, read));
            }
        }
    }

    /// Removes the entry under one of the keys. Returns true if there was one.
    pub(super) fn remove(&mut self, spelling: &Spelling) -> bool {
        if let Spelling::Canonical = spelling {
            return self.canonical.take().is_some();
        }
        let Some(others) = &mut self.others else { return false };
        let removed = others.remove(spelling).is_some();
        if others.is_empty() {
            self.others = None;
        }
        removed
    }

    /// Returns all keys of this slot with their entries.
    pub(super) fn spellings(&self) -> impl Iterator<Item = (Spelling, &Entry)> {
        let canonical = self.canonical.iter().map(|entry| (Spelling::Canonical, entry));
        canonical.chain(self.others.iter().flat_map(|others| others.iter().map(|(s, e)| (s.clone(), e))))
    }
}
