//! From the answers of several watchers on one stream to whole transactions in the order of revisions. Pure.
//!
//! etcd tells each watcher by itself, and large answers in fragments, so that one transaction comes in several answers.
//! Changes are held back until a progress report, asked for after they came, says that nothing older is under way. A
//! report covers the revisions that were known when it was asked for and not more: servers before 3.4.25 and 3.5.8 let
//! it overtake changes (etcd issue 15220).

use std::collections::BTreeMap;

use super::super::{Change, Delta, Revision};

/// What was told and what is held back.
pub(super) struct Merge {
    /// Everything up to here was handed out.
    after: Revision,
    held: BTreeMap<Revision, Vec<Change>>,
    /// The greatest revision held when the report on its way was asked for.
    asked: Option<Revision>,
    /// For each watcher, in the order of the prefixes: up to where it is known to be complete.
    watchers: Vec<Revision>,
}

impl Merge {
    pub(super) fn new(watchers: usize, after: Revision) -> Self {
        Self { after, held: BTreeMap::new(), asked: None, watchers: vec![after; watchers] }
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

    /// A report is asked for now.
    pub(super) fn asked(&mut self) {
        self.asked = self.held.last_key_value().map(|(revision, _)| *revision);
    }

    /// The report came: nothing up to `revision` is under way. Gives the transactions that are whole by now.
    pub(super) fn reported(&mut self, revision: Revision) -> Vec<Delta> {
        match self.asked.take() {
            Some(asked) => self.release(asked.min(revision)),
            None => Vec::new(),
        }
    }

    /// Gives all that is held up to `revision`.
    fn release(&mut self, revision: Revision) -> Vec<Delta> {
        let later = self.held.split_off(&revision.saturating_add(1));
        let ready = std::mem::replace(&mut self.held, later);
        self.after = self.after.max(ready.last_key_value().map_or(0, |(revision, _)| *revision));
        ready.into_iter().map(|(revision, changes)| Delta { revision, changes }).collect()
    }

    /// Gives all that is held: a server that reports nothing must not stop everything.
    pub(super) fn give_up(&mut self) -> Vec<Delta> {
        self.asked = None;
        self.release(Revision::MAX - 1)
    }

    /// The server says by itself that one watcher has nothing up to `revision`. Gives the revision up to which none has.
    pub(super) fn quiet(&mut self, watcher: usize, revision: Revision) -> Option<Revision> {
        let known = self.watchers.get_mut(watcher)?;
        *known = revision.max(*known);
        let all = self.watchers.iter().min().copied()?;
        if self.held.is_empty() && all > self.after {
            self.after = all;
            return Some(all);
        }
        None
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
        merge.asked();
        // Comes while the report is under way: 12 is whole then, 13 perhaps not.
        merge.change(11, gone("b"));
        merge.change(13, gone("a"));
        merge.change(12, gone("b"));
        assert_eq!(revisions(&merge.reported(20)), [(11, 2), (12, 2)]);
        assert_eq!(merge.after(), 12);
        assert!(merge.waiting());
        assert!(merge.reported(20).is_empty(), "nobody asked");
        merge.asked();
        merge.change(13, gone("b"));
        assert_eq!(revisions(&merge.reported(13)), [(13, 2)]);
        assert!(!merge.waiting());
    }

    #[test]
    fn a_report_of_an_older_revision_releases_no_more_than_that() {
        let mut merge = Merge::new(2, 10);
        merge.change(11, gone("a"));
        merge.change(15, gone("a"));
        merge.asked();
        assert_eq!(revisions(&merge.reported(12)), [(11, 1)]);
        assert_eq!(revisions(&merge.give_up()), [(15, 1)]);
    }

    #[test]
    fn quiet_counts_when_all_watchers_are_quiet() {
        let mut merge = Merge::new(2, 10);
        assert_eq!(merge.quiet(0, 50), None);
        assert_eq!(merge.quiet(1, 40), Some(40));
        merge.change(60, gone("a"));
        assert_eq!(merge.quiet(1, 70), None);
        assert_eq!(merge.quiet(7, 70), None);
        assert_eq!(merge.after(), 40);
    }
}
