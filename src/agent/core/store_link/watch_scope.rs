//! The keys of own blocks that are watched, and how much of the store was read.
//!
//! Own blocks are single keys that the own affinities name: what is watched follows the affinities, and nothing is
//! computed between an affinity and its block. A block that was released stays watched: should its affinity come
//! back (a wiped store that is filled again), both come in one transaction.

use std::collections::BTreeSet;

/// See the module.
#[derive(Debug, Default)]
pub(in crate::agent::core) struct WatchScope {
    watched: BTreeSet<String>,
    /// Those of them that were not read yet.
    unread: BTreeSet<String>,
    is_main_read: bool,
    are_blocks_read: bool,
}

impl WatchScope {
    /// All of these keys are watched and were read.
    pub(in crate::agent::core) fn read(watched: BTreeSet<String>) -> Self {
        Self { watched, unread: BTreeSet::new(), is_main_read: true, are_blocks_read: true }
    }

    /// The keys.
    pub(in crate::agent::core) fn watched(&self) -> &BTreeSet<String> {
        &self.watched
    }

    /// A whole list was read.
    pub(in crate::agent::core) fn on_snapshot(&mut self) {
        self.is_main_read = true;
    }

    /// Keys that were not watched before were read.
    pub(in crate::agent::core) fn on_added_prefixes(&mut self, prefixes: &[String]) {
        self.are_blocks_read = true;
        self.unread.retain(|key| !prefixes.iter().any(|read| key.starts_with(read.as_str())));
    }

    /// A whole list was read before.
    pub(in crate::agent::core) fn is_main_read(&self) -> bool {
        self.is_main_read
    }

    /// Blocks were read: lists have them, too.
    pub(in crate::agent::core) fn are_blocks_read(&self) -> bool {
        self.are_blocks_read
    }

    /// All that is watched was read.
    pub(in crate::agent::core) fn is_read(&self) -> bool {
        self.is_main_read && self.unread.is_empty()
    }

    /// Adds keys. All that are watched now, where some of them are new.
    pub(in crate::agent::core) fn extend(&mut self, mut keys: Vec<String>) -> Option<Vec<String>> {
        keys.retain(|key| !self.watched.iter().any(|part| key.starts_with(part.as_str())));
        if keys.is_empty() {
            return None;
        }
        self.watched.extend(keys.iter().cloned());
        self.unread.extend(keys);
        Some(self.watched.iter().cloned().collect())
    }
}
