//! Delivery of changed best paths to the embedder.

use super::RibSet;
use super::family::FamilyRib;
use crate::api::{Best, BestChange, NextHops};
use crate::rib::Shared;
use crate::rib::entry::{Entry, Key, Path};
use crate::rib::source::LOCAL;

impl RibSet {
    /// Implements [`Speaker::take_best`](crate::Speaker::take_best).
    pub(crate) fn take_best(&mut self, max: usize, out: &mut Vec<BestChange>) -> bool {
        if self.shared.deferring {
            return false;
        }
        let mut left = max;
        take(&mut self.v4, &self.shared, &mut left, out);
        take(&mut self.v6, &self.shared, &mut left, out);
        self.taken()
    }

    /// Implements [`Speaker::pending_best`](crate::Speaker::pending_best).
    pub(crate) fn pending_best(&self) -> usize {
        self.v4.table.dirty() + self.v6.table.dirty()
    }

    /// Implements [`Speaker::drop_best`](crate::Speaker::drop_best).
    pub(crate) fn drop_best(&mut self, max: usize) -> bool {
        if self.shared.deferring {
            return false;
        }
        let dropped = (0..max).take_while(|_| self.v4.table.pop_dirty().is_some()).count();
        let _ = (dropped..max).take_while(|_| self.v6.table.pop_dirty().is_some()).count();
        self.taken()
    }

    /// Returns true if changed best paths have not been taken yet.
    pub(crate) fn has_changed_best(&self) -> bool {
        self.v4.table.has_dirty() || self.v6.table.has_dirty()
    }

    /// Returns true if [`Event::BestChanged`](crate::Event::BestChanged) has to be reported: once until all
    /// changes have been taken.
    pub(crate) fn notify_best(&mut self) -> bool {
        let notify = !self.shared.deferring && !self.best_notified && self.has_changed_best();
        self.best_notified |= notify;
        notify
    }

    fn taken(&mut self) -> bool {
        let more = self.has_changed_best();
        if !more {
            self.best_notified = false;
            self.v4.retry_sweep();
            self.v6.retry_sweep();
        }
        more
    }
}

fn take<A: Key>(rib: &mut FamilyRib<A>, shared: &Shared, left: &mut usize, out: &mut Vec<BestChange>) {
    while *left > 0 {
        let Some((slot, tag)) = rib.table.pop_dirty() else { return };
        *left -= 1;
        // What is held back is reported later.
        if let Some(entry) = rib.table.entry(slot).filter(|entry| !entry.is_held()) {
            out.push(BestChange { prefix: entry.cidr(), best: best(rib, shared, entry), tag });
        }
    }
}

fn best<A: Key>(rib: &FamilyRib<A>, shared: &Shared, entry: &Entry<A>) -> Option<Best> {
    let path = entry.best().filter(|p| p.source != LOCAL)?;
    let source = shared.sources.get(path.source)?;
    // Where both were received, a link-local next hop is the nearer one, but only the global one can be
    // tracked.
    let next_hop = |path: &Path| Some(shared.attrs.attributes(path.attr)?.next_hop);
    let mut next_hops = NextHops::new();
    if entry.has_ties() {
        next_hops.extend(rib.table.paths(entry).filter(|p| p.multipath).filter_map(|p| next_hop(&p)));
        next_hops.sort_unstable();
        next_hops.dedup();
    } else {
        next_hops.extend(next_hop(&path));
    }
    let stale = source.family(A::FAMILY).generation != path.generation;
    let local_pref = shared.attrs.attributes(path.attr)?.local_pref;
    Some(Best { next_hops, peer: source.id, local_pref, ebgp: source.ebgp(), stale })
}
