//! In-memory copy of the reported entries, with the last valid value of each key.
//!
//! An invalid value leaves the last valid one in force. A restarted agent needs that value, so it is kept
//! next to the current one for as long as the current one is invalid and the key exists. The model does the
//! same.

use std::collections::BTreeMap;
use std::sync::Arc;

use tortie_config::is_readable;

use crate::cache::{Cached, Entry};
use crate::{KeyValue, Revision, Snapshot};

type Values = BTreeMap<Box<str>, CachedValue>;

/// Value and revisions of an entry, without its key: this copy is as large as the store.
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

/// All entries of the watched prefixes.
#[derive(Debug, Default)]
pub(super) struct CachedEntries {
    values: Values,
    /// The last valid values of keys whose current value is invalid.
    last_good: Values,
    /// Content of the file at the start of this process, of keys that were not read since.
    restored: Option<Arc<Cached>>,
}

impl CachedEntries {
    /// Restores the content of the file.
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

    /// Applies a write.
    pub(super) fn put(&mut self, key: Box<str>, value: CachedValue) {
        match self.good_under(&key, &value) {
            Some(good) => self.last_good.insert(key.clone(), good),
            None => self.last_good.remove(&key),
        };
        self.values.insert(key, value);
    }

    pub(super) fn remove(&mut self, key: &str) {
        self.values.remove(key);
        self.last_good.remove(key);
    }

    /// Replaces all entries by a list. `goes_on` is true if the list is of the same store; revisions of two
    /// stores cannot be compared.
    pub(super) fn replace(&mut self, new: Vec<(Box<str>, CachedValue)>, goes_on: bool) {
        let mut values = Values::new();
        let mut last_good = Values::new();
        for (key, value) in new {
            let good = if goes_on && self.revision_of(&key) == Some(value.mod_revision) {
                // The same write: its value need not be validated again.
                self.good_of(&key)
            } else {
                self.good_under(&key, &value)
            };
            last_good.extend(good.map(|good| (key.clone(), good)));
            values.insert(key, value);
        }
        // Keys missing in the list may be read later, such as the blocks of a host.
        self.restored = self.restored.take().map(|cached| unlisted(&cached, &values).into());
        (self.values, self.last_good) = (values, last_good);
    }

    pub(super) fn keep_only(&mut self, prefixes: &[String]) {
        let keeps = |key: &str| prefixes.iter().any(|prefix| key.starts_with(prefix.as_str()));
        self.values.retain(|key, _| keeps(key));
        self.last_good.retain(|key, _| keeps(key));
    }

    /// Returns the revision of the last known write of a key.
    pub(super) fn revision_of(&self, key: &str) -> Option<Revision> {
        if let Some(known) = self.values.get(key) {
            return Some(known.mod_revision);
        }
        let cached = self.restored.as_ref()?;
        let present = cached.unreadable.iter().find(|kv| kv.key == key);
        present.or_else(|| find(&cached.snapshot.entries, key)).map(|kv| kv.mod_revision)
    }

    /// Returns the last valid value of a key whose current value is invalid.
    fn good_of(&self, key: &str) -> Option<CachedValue> {
        if self.values.contains_key(key) {
            return self.last_good.get(key).cloned();
        }
        let cached =
            self.restored.as_ref().filter(|cached| cached.unreadable.iter().any(|kv| kv.key == key))?;
        find(&cached.snapshot.entries, key).map(|kv| CachedValue::of(kv).1)
    }

    /// Returns the last valid value of a key before a write, if that is invalid. A key without an earlier value
    /// is not validated: there are tens of thousands at the start.
    fn good_under(&self, key: &str, new: &CachedValue) -> Option<CachedValue> {
        self.revision_of(key)?;
        if is_readable(key, &new.value) { None } else { self.good_before(key) }
    }

    /// Returns the last valid value of a key before an invalid write.
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

/// Returns the restored entries of keys that a list does not contain.
fn unlisted(cached: &Cached, listed: &Values) -> Cached {
    let rest = |entries: &[KeyValue]| -> Vec<KeyValue> {
        entries.iter().filter(|kv| !listed.contains_key(kv.key.as_str())).cloned().collect()
    };
    let snapshot = Snapshot { entries: rest(&cached.snapshot.entries), ..Snapshot::default() };
    Cached { snapshot, unreadable: rest(&cached.unreadable), saved: cached.saved, truncated: None }
}

/// Finds a key in entries sorted by key.
fn find<'a>(entries: &'a [KeyValue], key: &str) -> Option<&'a KeyValue> {
    entries.get(entries.binary_search_by(|kv| kv.key.as_str().cmp(key)).ok()?)
}
