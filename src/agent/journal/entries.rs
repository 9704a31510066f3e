//! The store's entries as the core has them, derived from feed events, for the beginning of a checkpoint.

use std::collections::BTreeMap;

use crate::agent::core::checkpoint::Entries;
use tortie_engine::model::WatchPart;
use tortie_store::{Change, Delta, FeedEvent, KeyValue, Snapshot};

/// Values of one key.
#[derive(Debug, Clone, Default)]
struct Values {
    /// The last readable value.
    good: Option<KeyValue>,
    /// A later value that cannot be read.
    unreadable: Option<KeyValue>,
}

impl Values {
    fn revision(&self) -> Option<u64> {
        self.unreadable.as_ref().or(self.good.as_ref()).map(|kv| kv.mod_revision)
    }

    fn put(&mut self, kv: KeyValue) {
        let is_good = tortie_config::check(&kv.key, &kv.value).is_ok()
            && tortie_config::is_readable(&kv.key, &kv.value);
        if is_good {
            *self = Self { good: Some(kv), unreadable: None };
        } else {
            self.unreadable = Some(kv);
        }
    }
}

/// Follows the feed as the core does.
#[derive(Debug, Clone, Default)]
pub(super) struct StoreEntries {
    keys: BTreeMap<String, Values>,
    /// The core reads blocks from snapshots only once it knows its own affinities.
    has_blocks: bool,
    /// The store was restored from a backup: revisions of the next snapshot are not comparable to earlier
    /// ones.
    is_put_back: bool,
}

impl StoreEntries {
    /// Starts from the entries of a checkpoint.
    pub(super) fn of(entries: Entries) -> Self {
        let mut store = Self { has_blocks: true, ..Self::default() };
        for kv in entries.good.into_iter().chain(entries.unreadable) {
            store.keys.entry(kv.key.clone()).or_default().put(kv);
        }
        store
    }

    /// Applies one feed event.
    pub(super) fn follow(&mut self, event: FeedEvent) {
        match event {
            FeedEvent::Cached(cached) => {
                self.replace(WatchPart::All, &cached.snapshot);
                cached.unreadable.iter().cloned().for_each(|kv| self.put(kv));
            }
            FeedEvent::Snapshot { snapshot, .. } => {
                self.replace(WatchPart::Main, &snapshot);
                if self.has_blocks {
                    self.replace(WatchPart::Blocks, &snapshot);
                }
                self.is_put_back = false;
            }
            FeedEvent::Added { prefixes, snapshot } => {
                self.has_blocks = true;
                for key in &prefixes {
                    if snapshot.entries.iter().all(|kv| kv.key != *key) {
                        self.keys.remove(key);
                    }
                }
                snapshot.entries.into_iter().for_each(|kv| self.put(kv));
            }
            FeedEvent::Delta(Delta { changes, .. }) => {
                for change in changes {
                    match change {
                        Change::Put(kv) => self.put(kv),
                        Change::Delete { key } => drop(self.keys.remove(&key)),
                    }
                }
            }
            FeedEvent::PutBack(_) => self.is_put_back = true,
            FeedEvent::Calico3(_)
            | FeedEvent::Progress(_)
            | FeedEvent::Unreachable { .. }
            | FeedEvent::Reconnected
            | FeedEvent::CacheProblem(_) => {}
        }
    }

    fn put(&mut self, kv: KeyValue) {
        let known = self.keys.entry(kv.key.clone()).or_default();
        if known.revision().is_none_or(|revision| kv.mod_revision > revision) {
            known.put(kv);
        }
    }

    fn replace(&mut self, part: WatchPart, snapshot: &Snapshot) {
        let mut before = std::mem::take(&mut self.keys);
        self.keys = before.extract_if(.., |key, _| !part.covers(key)).collect();
        for kv in snapshot.entries.iter().filter(|kv| part.covers(&kv.key)) {
            let mut values = before.remove(&kv.key).unwrap_or_default();
            if self.is_put_back || values.revision() != Some(kv.mod_revision) {
                values.put(kv.clone());
            }
            self.keys.insert(kv.key.clone(), values);
        }
    }

    /// Returns the entries for a checkpoint.
    pub(super) fn entries(&self) -> Entries {
        let mut entries = Entries::default();
        for values in self.keys.values() {
            match (&values.good, &values.unreadable) {
                (Some(good), unreadable) => {
                    entries.good.push(good.clone());
                    entries.unreadable.extend(unreadable.clone());
                }
                (None, Some(unreadable)) => entries.good.push(unreadable.clone()),
                (None, None) => {}
            }
        }
        entries
    }
}
