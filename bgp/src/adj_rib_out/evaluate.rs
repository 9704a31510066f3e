//! Evaluation of export by an update group: it follows the table's log, updates its Adj-RIB-Out, encodes
//! segments, and recovers when the log has overtaken it.

use std::sync::Arc;

use super::advertised::{PAGE, State};
use super::attr_sets::{Added, AttrSetKey};
use super::export::{self, Verdict};
use super::group::{Build, Group, RING_BYTES, SLICE, pages};
use super::member::{Mode, Pages};
use super::segment::Changes;
use crate::rib::Shared;
use crate::rib::best_path::nth;
use crate::rib::entry::{Entry, Key, Path};
use crate::rib::source::LOCAL;
use crate::rib::table::Table;

impl Group {
    /// Evaluates the next page of a build.
    pub(super) fn build_page<A: Key>(&mut self, shared: &mut Shared, table: &Table<A>) {
        let number = self.build.next;
        for slot in number * PAGE..(number + 1) * PAGE {
            let Some(entry) = table.entry(slot).filter(|e| e.is_live()) else { continue };
            // Changes after the front arrive through the log. If they were evaluated here, members in step
            // would miss them.
            let wanted = !table.changed_since(entry, self.front)
                && ((self.unbuilt.0..self.unbuilt.1).contains(&number)
                    || self.build.since.is_some_and(|since| table.changed_since(entry, since))
                    || self.build.only.is_some_and(|(from, source)| {
                        number >= from
                            && self.advertised.get(slot).attr_set().is_none()
                            && self.path(shared, table, entry).is_some_and(|p| p.source == source)
                    }));
            if wanted {
                let state = self.evaluate(shared, table, entry);
                self.set(shared, slot, state);
            }
        }
        self.build.next += 1;
        self.unbuilt.0 = self.unbuilt.0.max(self.build.next);
    }

    /// Returns the path of an entry that the group may announce. A local path stays announced inside the AS
    /// while one learned by iBGP is preferred to it (draft-ietf-idr-best-external): if it were withdrawn, other
    /// speakers could lose it before they have the preferred one.
    #[inline]
    pub(crate) fn path<A: Key>(&self, shared: &Shared, table: &Table<A>, entry: &Entry<A>) -> Option<Path> {
        if self.key.plane > 0 {
            return nth(shared, table, entry, self.key.plane);
        }
        let best = entry.best()?;
        let superseded = self.key.path_id().is_none() && !export::may_pass_on(shared, &self.key, best.source);
        let local = if superseded { table.local_path(entry) } else { None };
        Some(local.unwrap_or(best))
    }

    /// Evaluates export for an entry. An announced attribute set gets another reference.
    fn evaluate<A: Key>(&mut self, shared: &mut Shared, table: &Table<A>, entry: &Entry<A>) -> State {
        let Some(path) = self.path(shared, table, entry) else { return State::withheld(None) };
        if self.sole == Some(path.source) {
            return State::withheld(None);
        }
        let kind = (path.source == LOCAL).then(|| table.locals.get(&entry.prefix()).map_or(0, |l| l.kind));
        match export::verdict(shared, &self.key, &self.representative, entry.cidr(), &path, kind, None) {
            Verdict::No => State::withheld(None),
            Verdict::Gate(gate) => State::withheld(Some(self.gate(gate))),
            Verdict::Announce(added) => self.announced(shared, path.attr, path.source, added),
        }
    }

    fn announced(&mut self, shared: &mut Shared, attr: u32, source: u32, added: Added) -> State {
        let extra = self.attr_sets.added_number(added);
        let out =
            AttrSetKey { attr, source, extra, reflection: export::reflection(shared, &self.key, source) };
        let key = &self.key;
        let id = self.attr_sets.intern(out, shared, |shared, attr_sets| {
            export::is_oversized(shared, key, out, attr_sets.added(out.extra))
        });
        if self.attr_sets.is_oversized(id) {
            self.attr_sets.release(id, shared);
            return State::withheld(Some(self.gate("size")));
        }
        State::announced(id)
    }

    fn gate(&mut self, gate: &'static str) -> u8 {
        let at = self.gates.iter().position(|(g, _)| *g == gate).unwrap_or_else(|| {
            self.gates.push((gate, 0));
            self.gates.len() - 1
        });
        u8::try_from(at).unwrap_or(u8::MAX)
    }

    /// Sets the state of a slot, as returned by [`Group::evaluate`]. Returns the previous announcement if the
    /// announcement changed.
    fn set(&mut self, shared: &mut Shared, slot: u32, state: State) -> Option<Option<AttrSetKey>> {
        let old = self.advertised.get(slot);
        if let Some(gate) = state.gate().and_then(|g| self.gates.get_mut(usize::from(g))) {
            gate.1 += 1;
        }
        if old.same(state) {
            self.drop_state(shared, state);
            return None;
        }
        self.advertised.set(slot, state);
        let before = old.attr_set().and_then(|out| self.attr_sets.key(out));
        self.drop_state(shared, old);
        (old.attr_set() != state.attr_set()).then_some(before)
    }

    /// Releases the references and counts of a state.
    pub(super) fn drop_state(&mut self, shared: &mut Shared, state: State) {
        if let Some(out) = state.attr_set() {
            self.attr_sets.release(out, shared);
        }
        if let Some(gate) = state.gate().and_then(|g| self.gates.get_mut(usize::from(g))) {
            gate.1 = gate.1.saturating_sub(1);
        }
    }

    /// Returns true if export of this entry now gives a result other than the announced one.
    pub(crate) fn differs<A: Key>(&mut self, shared: &mut Shared, table: &Table<A>, slot: u32) -> bool {
        let Some(entry) = table.entry(slot) else { return false };
        let state = self.evaluate(shared, table, entry);
        let differs = !self.advertised.get(slot).same(state);
        if let Some(out) = state.attr_set() {
            self.attr_sets.release(out, shared);
        }
        differs
    }

    /// Follows the log by one slice. Returns true if there is a new segment.
    pub(crate) fn advance<A: Key>(&mut self, shared: &mut Shared, table: &Table<A>) -> bool {
        let from = self.front;
        let to = table.log.head().min(from + SLICE);
        let mut changes = Changes::default();
        for position in from..to {
            let Some(slot) = table.log.get(position) else { continue };
            let Some(entry) = table.entry(slot).filter(|e| table.is_newest(e, position)) else { continue };
            let state = self.evaluate(shared, table, entry);
            let Some(before) = self.set(shared, slot, state) else { continue };
            let source = before.map(|b| b.source);
            match (state.attr_set(), source) {
                (Some(out), _) => {
                    changes.announced.push((out, slot));
                    let now = self.attr_sets.key(out).map(|k| k.source);
                    if let (Some(now), Some(source)) = (now, source)
                        && now != source
                        && self.members.contains_key(&now)
                    {
                        changes.private.push((now, slot));
                    }
                }
                (None, Some(source)) => changes.withdrawn.push((source, slot)),
                (None, None) => {}
            }
        }
        self.front = to;
        if changes.is_empty() {
            return false;
        }
        let is_member = |s| self.members.contains_key(&s);
        let mut segment = changes.encode(&self.key, shared, table, &self.attr_sets, is_member);
        if segment.is_empty() {
            return false;
        }
        (segment.from, segment.to) = (from, to);
        self.fresh = true;
        self.ring_bytes += segment.len();
        self.ring.push_back(Arc::new(segment));
        self.drop_ring(RING_BYTES);
        true
    }

    /// Drops the oldest segments until at most `bytes` are left. The newest one is kept unless `bytes` is 0.
    pub(super) fn drop_ring(&mut self, bytes: usize) {
        while self.ring_bytes > bytes && (self.ring.len() > 1 || bytes == 0) {
            let Some(segment) = self.ring.pop_front() else { break };
            self.ring_bytes -= segment.len();
            self.ring_first += 1;
            self.ring_from = segment.to;
        }
    }

    /// Recovers from changes that left the log before the group evaluated them: it finds them by a scan of
    /// the table.
    fn overrun<A: Key>(&mut self, table: &Table<A>) {
        let since = self.front.min(self.unbuilt_since().unwrap_or(u64::MAX));
        let only = self.build.only.filter(|_| self.build.next < self.build.end);
        let only = only.map(|(from, source)| (from.max(self.build.next), source));
        self.build = Build { next: 0, end: pages(table), since: Some(since), only };
        for member in self.members.values_mut().filter(|m| m.idle) {
            member.synced = self.front;
        }
        self.front = table.log.head();
        self.drop_ring(0);
        self.ring_from = self.front;
        self.resync_since(table, since);
    }

    /// Schedules all members for entries that changed since this position, which are evaluated again. Members
    /// that were sent them before are included, because the result of policy may differ now.
    pub(super) fn resync_since<A: Key>(&mut self, table: &Table<A>, since: u64) {
        let fresh = self.all_pages(table);
        for member in self.members.values_mut() {
            let (all, synced) = match &member.mode {
                Mode::Pages(pages) => (pages.all, pages.since.unwrap_or(pages.resume)),
                Mode::Ring(_) | Mode::Log(_) => (false, member.synced),
            };
            member.synced = member.synced.min(synced);
            member.mode = Mode::Pages(Pages { all, since: Some(synced.min(since)), ..fresh.clone() });
        }
    }

    /// Checks if the log has overtaken the group. Returns true if so; the caller has to wake the idle
    /// members.
    pub(crate) fn check_overrun<A: Key>(&mut self, table: &Table<A>) -> bool {
        let overrun = self.front < table.log.base();
        if overrun {
            self.overrun(table);
        }
        overrun
    }
}
