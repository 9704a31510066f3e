//! The store's entries as the core has them, from the events of the feed: what a checkpoint begins with.

use std::collections::BTreeMap;

use crate::agent::core::checkpoint::Entries;
use tortie_engine::model::WatchPart;
use tortie_store::{Change, Delta, FeedEvent, KeyValue, Snapshot};

/// The values under one key.
#[derive(Debug, Clone, Default)]
struct Values {
    /// The last one that can be read.
    good: Option<KeyValue>,
    /// A later one that cannot.
    unreadable: Option<KeyValue>,
}

impl Values {
    fn revision(&self) -> Option<u64> {
        self.unreadable.as_ref().or(self.good.as_ref()).map(|kv| kv.mod_revision)
    }

    fn put(&mut self, kv: KeyValue) {
        let is_good = tortie_config::check(&kv.key, &kv.value).is_ok();
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
    /// The store was put back: revisions of the next snapshot say nothing of those so far.
    is_put_back: bool,
}

impl StoreEntries {
    /// Takes what a checkpoint had.
    pub(super) fn of(entries: Entries) -> Self {
        let mut store = Self { has_blocks: true, ..Self::default() };
        for kv in entries.good.into_iter().chain(entries.unreadable) {
            store.keys.entry(kv.key.clone()).or_default().put(kv);
        }
        store
    }

    /// Follows one event.
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

    /// What a checkpoint begins with.
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
