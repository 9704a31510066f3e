//! From the answers of one watch stream to whole transactions in the order of revisions. Pure.
//!
//! etcd tells each watcher by itself, and large answers in fragments, so that one transaction comes in several answers.
//! Changes are held back until a progress report says that nothing older is under way; it is asked for after they came.
//! Servers before 3.4.25 and 3.5.8 let the report overtake changes (etcd issue 15220, seen here as halves of transactions
//! under load): there one watcher covers all prefixes, and what it tells is whole by itself.

use std::collections::BTreeMap;

use super::super::{Change, Delta, Revision};

/// What was told and what is held back.
pub(super) struct Merge {
    /// Everything up to here was handed out.
    after: Revision,
    held: BTreeMap<Revision, Vec<Change>>,
    /// For each watcher: up to where it is known to be complete.
    watchers: Vec<Revision>,
}

impl Merge {
    pub(super) fn new(watchers: usize, after: Revision) -> Self {
        Self { after, held: BTreeMap::new(), watchers: vec![after; watchers] }
    }

    pub(super) fn after(&self) -> Revision {
        self.after
    }

    /// Whether changes wait for a report.
    pub(super) fn waiting(&self) -> bool {
        !self.held.is_empty()
    }

    /// A change came.
    pub(super) fn change(&mut self, revision: Revision, change: Change) {
        self.held.entry(revision).or_default().push(change);
    }

    /// Nothing up to `revision` is under way any more: gives the transactions that are whole by that.
    pub(super) fn complete(&mut self, revision: Revision) -> Vec<Delta> {
        let later = self.held.split_off(&revision.saturating_add(1));
        let ready = std::mem::replace(&mut self.held, later);
        self.after = self.after.max(revision);
        ready.into_iter().map(|(revision, changes)| Delta { revision, changes }).collect()
    }

    /// The server says by itself that one watcher has nothing more up to `revision`. Gives what is whole when that moves
    /// the revision up to which all watchers are complete.
    pub(super) fn quiet(&mut self, watcher: usize, revision: Revision) -> Option<Vec<Delta>> {
        let known = self.watchers.get_mut(watcher)?;
        *known = revision.max(*known);
        let all = self.watchers.iter().min().copied()?;
        if all > self.after { Some(self.complete(all)) } else { None }
    }
}

/// Whether a server of this version reports progress only after the changes before it.
pub(super) fn reports_in_order(version: &str) -> bool {
    let mut numbers = version.split(['.', '-', '+']).map_while(|part| part.parse::<u32>().ok());
    let (major, minor, patch) = (numbers.next(), numbers.next(), numbers.next().unwrap_or(0));
    match (major, minor) {
        (Some(3), Some(4)) => patch >= 25,
        (Some(3), Some(5)) => patch >= 8,
        (Some(3), Some(minor)) => minor > 5,
        (Some(major), _) => major > 3,
        // Only newer servers keep their version to themselves.
        (None, _) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gone(key: &str) -> Change {
        Change::Delete { key: key.into() }
    }

    fn revisions(deltas: &[Delta]) -> Vec<(Revision, usize)> {
        deltas.iter().map(|d| (d.revision, d.changes.len())).collect()
    }

    #[test]
    fn halves_of_a_transaction_become_one() {
        let mut merge = Merge::new(2, 10);
        merge.change(11, gone("a"));
        merge.change(12, gone("a"));
        merge.change(11, gone("b"));
        merge.change(13, gone("a"));
        merge.change(12, gone("b"));
        assert_eq!(revisions(&merge.complete(12)), [(11, 2), (12, 2)]);
        assert_eq!(merge.after(), 12);
        assert!(merge.waiting());
        assert!(merge.complete(12).is_empty());
        merge.change(13, gone("b"));
        assert_eq!(revisions(&merge.complete(20)), [(13, 2)]);
        assert!(!merge.waiting());
        assert_eq!(merge.after(), 20);
    }

    #[test]
    fn quiet_counts_when_all_watchers_are_quiet() {
        let mut merge = Merge::new(2, 10);
        assert_eq!(merge.quiet(0, 50), None);
        assert_eq!(merge.quiet(1, 40), Some(vec![]));
        assert_eq!(merge.after(), 40);
        merge.change(45, gone("a"));
        assert_eq!(merge.quiet(7, 70), None);
        assert_eq!(revisions(&merge.quiet(1, 70).unwrap()), [(45, 1)]);
        assert_eq!(merge.after(), 50);
    }

    #[test]
    fn versions_with_the_repaired_report() {
        for good in ["3.4.25", "3.4.33", "3.5.8", "3.5.16", "3.6.0", "3.6.0-rc.3", "3.7.2", "4.0", ""] {
            assert!(reports_in_order(good), "{good}");
        }
        for old in ["3.3.27", "3.4.23", "3.4.24", "3.5.0", "3.5.7", "3.5.7-rc.1"] {
            assert!(!reports_in_order(old), "{old}");
        }
    }
}
