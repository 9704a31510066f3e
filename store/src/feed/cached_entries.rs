//! The copy of what the feed reported, with the last value of each key that could be read.
//!
//! A value that cannot be read leaves the last good one in force; an agent that starts again has to know it, so it is kept
//! beside the present value for as long as that cannot be read and the key is there. As the model does.

use std::collections::BTreeMap;
use std::sync::Arc;

use tortie_config::{Key, Resource};

use crate::cache::{Cached, Entry};
use crate::{KeyValue, Revision, Snapshot};

type Values = BTreeMap<Box<str>, CachedValue>;

/// What is kept of an entry, without what its key says: the copy is as large as the store.
#[derive(Debug, Clone)]
pub(super) struct CachedValue {
    value: Box<[u8]>,
    mod_revision: Revision,
    create_revision: Revision,
}

impl CachedValue {
    pub(super) fn of(kv: &KeyValue) -> (Box<str>, Self) {
        let (mod_revision, create_revision) = (kv.mod_revision, kv.create_revision);
        (kv.key.as_str().into(), Self { value: kv.value.as_slice().into(), mod_revision, create_revision })
    }
}

/// Whether the value of a key can be used. What is no key of the data model has no value to be read.
pub(super) fn is_readable(key: &str, value: &[u8]) -> bool {
    Key::parse(key).map_or(true, |key| Resource::parse(key.canonical(), value).is_ok())
}

/// All entries.
#[derive(Debug, Default)]
pub(super) struct CachedEntries {
    values: Values,
    /// Of keys whose value cannot be read: the last one that could be.
    last_good: Values,
    /// What the file had when this process began, of keys that were not read since.
    restored: Option<Arc<Cached>>,
}

impl CachedEntries {
    /// Takes what the file had.
    pub(super) fn restore(&mut self, cached: Arc<Cached>) {
        self.restored = Some(cached);
    }

    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    pub(super) fn get<'a>(&'a self, key: &'a str) -> Option<Entry<'a>> {
        self.values.get(key).map(|held| self.entry(key, held))
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = Entry<'_>> {
        self.values.iter().map(|(key, held)| self.entry(key, held))
    }

    fn entry<'a>(&'a self, key: &'a str, held: &'a CachedValue) -> Entry<'a> {
        let good = self.last_good.get(key);
        Entry {
            key,
            value: &held.value,
            mod_revision: held.mod_revision,
            create_revision: held.create_revision,
            last_good: good.map(|good| (&*good.value, good.mod_revision, good.create_revision)),
        }
    }

    /// Takes a write.
    pub(super) fn put(&mut self, key: Box<str>, value: CachedValue) {
        if is_readable(&key, &value.value) {
            self.last_good.remove(&key);
        } else {
            match self.good_before(&key) {
                Some(good) => self.last_good.insert(key.clone(), good),
                None => self.last_good.remove(&key),
            };
        }
        self.values.insert(key, value);
    }

    pub(super) fn remove(&mut self, key: &str) {
        self.values.remove(key);
        self.last_good.remove(key);
    }

    /// Takes a list of everything. `goes_on`: it is of the same store as what is known; revisions of two stores cannot be
    /// compared.
    pub(super) fn replace(&mut self, new: Vec<(Box<str>, CachedValue)>, goes_on: bool) {
        let mut values = Values::new();
        let mut last_good = Values::new();
        for (key, value) in new {
            let good = if goes_on && self.revision_of(&key) == Some(value.mod_revision) {
                // The very same write: nobody has to look at its value again.
                self.good_of(&key)
            } else if is_readable(&key, &value.value) {
                None
            } else {
                self.good_before(&key)
            };
            last_good.extend(good.map(|good| (key.clone(), good)));
            values.insert(key, value);
        }
        // What the list does not name may be read later: the blocks of a host are.
        self.restored = self.restored.take().map(|cached| unlisted(&cached, &values).into());
        (self.values, self.last_good) = (values, last_good);
    }

    pub(super) fn keep_only(&mut self, prefixes: &[String]) {
        let keeps = |key: &str| prefixes.iter().any(|prefix| key.starts_with(prefix.as_str()));
        self.values.retain(|key, _| keeps(key));
        self.last_good.retain(|key, _| keeps(key));
    }

    /// The last write that is known of a key.
    pub(super) fn revision_of(&self, key: &str) -> Option<Revision> {
        if let Some(known) = self.values.get(key) {
            return Some(known.mod_revision);
        }
        let cached = self.restored.as_ref()?;
        let present = cached.unreadable.iter().find(|kv| kv.key == key);
        present.or_else(|| find(&cached.snapshot.entries, key)).map(|kv| kv.mod_revision)
    }

    /// The last good value of a key whose present one cannot be read.
    fn good_of(&self, key: &str) -> Option<CachedValue> {
        if self.values.contains_key(key) {
            return self.last_good.get(key).cloned();
        }
        let cached =
            self.restored.as_ref().filter(|cached| cached.unreadable.iter().any(|kv| kv.key == key))?;
        find(&cached.snapshot.entries, key).map(|kv| CachedValue::of(kv).1)
    }

    /// The last good value of a key, before a write that cannot be read.
    fn good_before(&self, key: &str) -> Option<CachedValue> {
        self.good_of(key).or_else(|| {
            let known = match self.values.get(key) {
                Some(known) => Some(known.clone()),
                None => {
                    let cached = self.restored.as_ref()?;
                    find(&cached.snapshot.entries, key).map(|kv| CachedValue::of(kv).1)
                }
            };
            known.filter(|known| is_readable(key, &known.value))
        })
    }
}

/// What the file had of keys that a list does not name.
fn unlisted(cached: &Cached, listed: &Values) -> Cached {
    let rest = |entries: &[KeyValue]| -> Vec<KeyValue> {
        entries.iter().filter(|kv| !listed.contains_key(kv.key.as_str())).cloned().collect()
    };
    let snapshot = Snapshot { entries: rest(&cached.snapshot.entries), ..Snapshot::default() };
    Cached { snapshot, unreadable: rest(&cached.unreadable), saved: cached.saved, truncated: None }
}

/// Of entries in the order of their keys.
fn find<'a>(entries: &'a [KeyValue], key: &str) -> Option<&'a KeyValue> {
    entries.get(entries.binary_search_by(|kv| kv.key.as_str().cmp(key)).ok()?)
}
