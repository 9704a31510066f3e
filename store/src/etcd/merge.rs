//! Merges the answers of one watch stream into whole transactions, in the order of revisions. Pure.
//!
//! etcd notifies each watcher separately and splits large answers into fragments, so one transaction may
//! arrive in several answers. Changes are held back until a progress report confirms that nothing older is in
//! flight; the report is requested after they arrive. Servers before 3.4.25 and 3.5.8 may send the report
//! before earlier changes (etcd issue 15220, observed here as halves of transactions under load). With those,
//! one watcher covers all prefixes, and its answers are whole transactions.

use std::collections::BTreeMap;

use super::super::{Change, Delta, Revision};

/// State of the merge: changes held back, and progress per watcher.
pub(super) struct Merge {
    /// Everything up to this revision was delivered.
    after: Revision,
    held: BTreeMap<Revision, Vec<Change>>,
    /// For each watcher, the revision up to which it is complete.
    watchers: Vec<Revision>,
}

impl Merge {
    pub(super) fn new(watchers: usize, after: Revision) -> Self {
        Self { after, held: BTreeMap::new(), watchers: vec![after; watchers] }
    }

    pub(super) fn after(&self) -> Revision {
        self.after
    }

    /// Returns true if changes wait for a progress report.
    pub(super) fn waiting(&self) -> bool {
        !self.held.is_empty()
    }

    /// Adds one change.
    pub(super) fn change(&mut self, revision: Revision, change: Change) {
        self.held.entry(revision).or_default().push(change);
    }

    /// Records that nothing up to `revision` is in flight; returns the transactions that are complete.
    pub(super) fn complete(&mut self, revision: Revision) -> Vec<Delta> {
        let later = self.held.split_off(&revision.saturating_add(1));
        let ready = std::mem::replace(&mut self.held, later);
        self.after = self.after.max(revision);
        ready.into_iter().map(|(revision, changes)| Delta { revision, changes }).collect()
    }

    /// Records an unsolicited progress report of one watcher. Returns complete transactions if that raises
    /// the revision up to which all watchers are complete.
    pub(super) fn quiet(&mut self, watcher: usize, revision: Revision) -> Option<Vec<Delta>> {
        let known = self.watchers.get_mut(watcher)?;
        *known = revision.max(*known);
        let all = self.watchers.iter().min().copied()?;
        if all > self.after { Some(self.complete(all)) } else { None }
    }
}

/// Returns true if a server of this version sends progress reports only after the changes before them.
pub(super) fn reports_in_order(version: &str) -> bool {
    let mut numbers = version.split(['.', '-', '+']).map_while(|part| part.parse::<u32>().ok());
    let (major, minor, patch) = (numbers.next(), numbers.next(), numbers.next().unwrap_or(0));
    match (major, minor) {
        (Some(3), Some(4)) => patch >= 25,
        (Some(3), Some(5)) => patch >= 8,
        (Some(3), Some(minor)) => minor > 5,
        (Some(major), _) => major > 3,
        // Only newer servers withhold their version.
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
