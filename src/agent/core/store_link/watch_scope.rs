//! Set of own block keys to watch, and progress of the initial read.
//!
//! Own blocks are single keys that the own affinities name, so the watched set follows the affinities, and
//! nothing is computed between an affinity and its block. A released block stays watched: if its affinity
//! comes back, as after a wiped store is filled again, both arrive in one transaction.

use std::collections::BTreeSet;

/// Watched keys and the state of their first read.
#[derive(Debug, Default)]
pub(in crate::agent::core) struct WatchScope {
    watched: BTreeSet<String>,
    /// Watched keys that were not read yet.
    unread: BTreeSet<String>,
    is_main_read: bool,
    are_blocks_read: bool,
}

impl WatchScope {
    /// Creates the scope in which all of these keys are watched and were read.
    pub(in crate::agent::core) fn read(watched: BTreeSet<String>) -> Self {
        Self { watched, unread: BTreeSet::new(), is_main_read: true, are_blocks_read: true }
    }

    /// Returns the watched keys.
    pub(in crate::agent::core) fn watched(&self) -> &BTreeSet<String> {
        &self.watched
    }

    /// Records that a complete list was read.
    pub(in crate::agent::core) fn on_snapshot(&mut self) {
        self.is_main_read = true;
    }

    /// Records that newly watched keys were read.
    pub(in crate::agent::core) fn on_added_prefixes(&mut self, prefixes: &[String]) {
        self.are_blocks_read = true;
        self.unread.retain(|key| !prefixes.iter().any(|read| key.starts_with(read.as_str())));
    }

    /// True once a complete list was read.
    pub(in crate::agent::core) fn is_main_read(&self) -> bool {
        self.is_main_read
    }

    /// True once blocks were read; from then on lists contain blocks, too.
    pub(in crate::agent::core) fn are_blocks_read(&self) -> bool {
        self.are_blocks_read
    }

    /// True if everything watched was read.
    pub(in crate::agent::core) fn is_read(&self) -> bool {
        self.is_main_read && self.unread.is_empty()
    }

    /// Adds keys; returns all watched keys if some of them are new.
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
