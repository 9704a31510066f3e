//! Store revisions of recent changes, for recorder entries about their consequences.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use tortie_engine::routing::ChangeId;

/// Maximum number of changes whose revision is kept.
const CHANGES_MAX: usize = 1_024;

/// Changes with their store revision, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::agent::core) struct ChangeRevisions(VecDeque<(ChangeId, u64)>);

impl ChangeRevisions {
    /// Adds a change, which is newer than all before it.
    pub(in crate::agent::core) fn push(&mut self, change: ChangeId, revision: u64) {
        if self.0.len() == CHANGES_MAX {
            self.0.pop_front();
        }
        self.0.push_back((change, revision));
    }

    /// Returns the newest change.
    pub(in crate::agent::core) fn last(&self) -> Option<ChangeId> {
        self.0.back().map(|(change, _)| *change)
    }

    /// Returns the store revision of a change; 0 if it is too old or did not come from the store.
    pub(in crate::agent::core) fn of(&self, change: ChangeId) -> u64 {
        let at = self.0.binary_search_by_key(&change, |(c, _)| *c);
        at.ok().and_then(|i| self.0.get(i)).map_or(0, |(_, revision)| *revision)
    }
}
