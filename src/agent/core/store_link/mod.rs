//! State of the connection to the store, as the feed reports it.

pub(super) mod change_revisions;
pub(super) mod watch_scope;

use std::time::Instant;

use tortie_store::Snapshot;

/// State of the connection and the newest revision that it delivered.
#[derive(Debug, Clone)]
pub(super) struct StoreLink {
    pub(super) connected: bool,
    pub(super) unreachable_reason: Option<String>,
    pub(super) from_cache: bool,
    pub(super) fresh: Instant,
    pub(super) revision: u64,
    pub(super) restarts: u64,
    pub(super) snapshots: u64,
    /// Generation of the last snapshot.
    pub(super) generation: u64,
    /// Number of keys in the last snapshot.
    pub(super) keys: usize,
    /// Generation and revision that were applied and confirmed last.
    pub(super) trusted: (u64, u64),
}

impl StoreLink {
    /// Creates the state before the first connection.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            connected: false,
            unreachable_reason: None,
            from_cache: false,
            fresh: now,
            revision: 0,
            restarts: 0,
            snapshots: 0,
            generation: 0,
            keys: 0,
            trusted: (0, 0),
        }
    }

    /// Records an answer of the store: all changes up to `revision` were received.
    pub(super) fn confirm_revision(&mut self, revision: u64, now: Instant) {
        self.connected = true;
        self.unreachable_reason = None;
        self.fresh = now;
        self.revision = self.revision.max(revision);
    }

    /// Records a failure to reach the store. Returns true if it was connected before.
    pub(super) fn on_unreachable(&mut self, reason: String) -> bool {
        self.unreachable_reason = Some(reason);
        let ended = std::mem::replace(&mut self.connected, false);
        self.restarts += u64::from(ended);
        ended
    }

    /// Records a complete list. Its revision may be lower than the last one: another history may count from
    /// the beginning.
    pub(super) fn on_snapshot(&mut self, snapshot: &Snapshot, generation: u64) {
        self.snapshots += 1;
        self.generation = generation;
        self.keys = snapshot.entries.len();
        self.revision = snapshot.revision;
    }

    /// Confirms everything that was read; returns generation and revision if they changed.
    pub(super) fn trust(&mut self) -> Option<(u64, u64)> {
        let now = (self.generation, self.revision);
        let before = std::mem::replace(&mut self.trusted, now);
        (before != now).then_some(now)
    }
}
