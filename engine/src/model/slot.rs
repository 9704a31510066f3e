//! One thing of the data model with all the keys that may say it.
//!
//! A thing has one key today, perhaps an older path, and in theory other spellings of the same path (an IPv6 address
//! that is not in its shortest form). Today's key wins key by key, then its other spellings, then the older paths, each
//! in the order of their texts: the answer never depends on the order in which the keys came.
//!
//! A value that cannot be read leaves the last good one in force.

use std::collections::BTreeMap;

use tortie_config::key::Key;

use super::value::Value;
use tortie_store::{KeyValue, Revision};

/// What is stored under one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// The last value that could be read; `None`: there never was one.
    pub(super) value: Option<Value>,
    /// Revision of the last write.
    pub(super) revision: Revision,
    /// Revision of the write that created the key.
    pub(super) created: Revision,
}

impl Entry {
    /// Takes a write in; `read` is its value, `None` when it cannot be read.
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

/// Which of the keys of a slot.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Spelling {
    /// Today's path in its canonical form.
    Canonical,
    /// Today's path, written otherwise.
    Variant(Box<str>),
    /// An older path.
    Legacy(Box<str>),
}

impl Spelling {
    /// The text of the key.
    pub(super) fn text(&self, key: &Key) -> Box<str> {
        match self {
            Self::Canonical => key.to_string().into(),
            Self::Variant(text) | Self::Legacy(text) => text.clone(),
        }
    }
}

/// All keys that say one thing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Slot {
    canonical: Option<Entry>,
    /// Rare, so it costs one word.
    #[expect(clippy::box_collection, reason = "a BTreeMap has three words and there are many slots")]
    others: Option<Box<BTreeMap<Spelling, Entry>>>,
}

impl Slot {
    /// The entry in force: the first that has a value, so that a broken newer key does not take an older one down.
    pub(super) fn entry(&self) -> Option<&Entry> {
        let others = || self.others.iter().flat_map(|others| others.values());
        let mut all = self.canonical.iter().chain(others());
        all.clone().find(|entry| entry.value.is_some()).or_else(|| all.next())
    }

    /// The value in force.
    pub(super) fn value(&self) -> Option<&Value> {
        self.entry()?.value.as_ref()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.canonical.is_none() && self.others.is_none()
    }

    /// What is stored under one of the keys.
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

    /// Forgets what is stored under one of the keys; whether there was something.
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

    /// All keys of this slot with what is stored under them.
    pub(super) fn spellings(&self) -> impl Iterator<Item = (Spelling, &Entry)> {
        let canonical = self.canonical.iter().map(|entry| (Spelling::Canonical, entry));
        canonical.chain(self.others.iter().flat_map(|others| others.iter().map(|(s, e)| (s.clone(), e))))
    }
}
