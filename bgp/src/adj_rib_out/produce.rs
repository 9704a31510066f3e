//! Output of an update group for its members: from the shared ring, from the log, or page by page.

use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::advertised::PAGE;
use super::group::{Group, SLICE};
use super::member::{EndOfRib, Mode, Pages, Produced};
use super::segment::{Changes, Segment};
use crate::rib::Shared;
use crate::rib::entry::Key;
use crate::rib::source::LOCAL;
use crate::rib::table::Table;

/// Maximum number of encoded pages kept for joining members.
const PAGES_KEPT: usize = 32;
/// Maximum number of pages visited per call without output.
const PAGES_LOOKED_AT: u32 = 256;

impl Group {
    /// Returns the next output for a member. The group must not have been overtaken by the log. Each call
    /// does a bounded amount of work.
    pub(crate) fn produce<A: Key>(
        &mut self,
        shared: &mut Shared,
        table: &Table<A>,
        member: u32,
        end_of_rib_after: Option<u64>,
    ) -> Produced {
        if !shared.local_ready {
            return Produced::Idle;
        }
        let Some(mode) = self.members.get(&member).map(|m| m.mode.clone()) else { return Produced::Idle };
        match mode {
            Mode::Pages(pages) => self.produce_pages(shared, table, member, pages),
            Mode::Log(at) if at < table.log.base() => {
                let pages = Pages { all: false, since: Some(at), ..self.all_pages(table) };
                self.set_mode(member, Mode::Pages(pages));
                Produced::Working
            }
            Mode::Log(at) => self.produce_log(shared, table, member, at),
            Mode::Ring(next) if next < self.ring_first => {
                let synced = self.members.get(&member).map_or(0, |m| m.synced);
                self.set_mode(member, Mode::Log(synced));
                Produced::Working
            }
            Mode::Ring(next) => {
                let at = usize::try_from(next - self.ring_first).unwrap_or(usize::MAX);
                if let Some(segment) = self.ring.get(at).cloned() {
                    if let Some(m) = self.members.get_mut(&member) {
                        m.mode = Mode::Ring(next + 1);
                        m.synced = segment.to;
                    }
                    return Produced::Segment(segment);
                }
                if self.is_behind(table) {
                    self.advance(shared, table);
                    return Produced::Working;
                }
                self.rest(member, end_of_rib_after)
            }
        }
    }

    /// Handles a member that is up to date: returns End-of-RIB if due, else marks it as idle.
    fn rest(&mut self, member: u32, end_of_rib_after: Option<u64>) -> Produced {
        let front = self.front;
        let Some(m) = self.members.get_mut(&member) else { return Produced::Idle };
        m.synced = front;
        if m.end_of_rib == EndOfRib::Due && end_of_rib_after.is_some_and(|after| front >= after) {
            m.end_of_rib = EndOfRib::Sent;
            return Produced::EndOfRib;
        }
        if !m.idle {
            m.idle = true;
            self.idle.push(member);
            if self.idle.len() == self.members.len() {
                self.drop_ring(0);
            }
        }
        Produced::Idle
    }

    fn set_mode(&mut self, member: u32, mode: Mode) {
        if let Some(m) = self.members.get_mut(&member) {
            m.mode = mode;
        }
    }

    /// Sets the mode of a member that has been sent all changes below this log position.
    fn settle(&mut self, member: u32, synced: u64) {
        let ring_end = self.ring_first + self.ring.len() as u64;
        let mode = if synced >= self.front {
            Mode::Ring(ring_end)
        } else if synced >= self.ring_from {
            let at = self.ring.partition_point(|s| s.to <= synced);
            Mode::Ring(self.ring_first + at as u64)
        } else {
            Mode::Log(synced)
        };
        if let Some(m) = self.members.get_mut(&member) {
            m.synced = synced;
            m.mode = mode;
        }
    }

    fn produce_pages<A: Key>(
        &mut self,
        shared: &mut Shared,
        table: &Table<A>,
        member: u32,
        mut pages: Pages,
    ) -> Produced {
        let changed_group = self.members.get(&member).is_some_and(|m| m.previous.is_some());
        if changed_group && self.is_behind(table) {
            // Routes that the group has not evaluated yet would look unannounced and be withdrawn for a
            // moment.
            self.advance(shared, table);
            return Produced::Working;
        }
        let alone = pages.since.is_some() || changed_group;
        let stop = pages.next.saturating_add(PAGES_LOOKED_AT).min(pages.end);
        let mut built = 0;
        while pages.next < stop {
            let number = pages.next;
            if self.build.next <= number && self.build.next < self.build.end {
                // Building a page evaluates export policy about a thousand times.
                if built == 8 {
                    break;
                }
                self.build_page(shared, table);
                built += 1;
                continue;
            }
            pages.next += 1;
            let segment = if alone {
                self.encode_for(shared, table, member, number, &pages)
            } else {
                self.encode_page(shared, table, number)
            };
            if let Some(segment) = segment {
                self.set_mode(member, Mode::Pages(pages));
                return Produced::Segment(segment);
            }
        }
        if pages.next < pages.end {
            self.set_mode(member, Mode::Pages(pages));
            return Produced::Working;
        }
        if let Some(m) = self.members.get_mut(&member) {
            m.previous = None;
        }
        self.settle(member, pages.resume);
        if pages.all { Produced::PassComplete } else { Produced::Working }
    }

    /// Encodes the announcements of a page, shared by all members that request it before it changes.
    fn encode_page<A: Key>(
        &mut self,
        shared: &Shared,
        table: &Table<A>,
        number: u32,
    ) -> Option<Arc<Segment>> {
        let page = self.advertised.page(number)?;
        let version = page.version;
        if let Some((.., segment)) = self.encoded.iter().find(|(n, v, _)| (*n, *v) == (number, version)) {
            return Some(segment.clone());
        }
        let announced = page.attr_sets(number).map(|(slot, out)| (out, slot)).collect();
        let changes = Changes { announced, ..Changes::default() };
        let segment = Arc::new(changes.encode(&self.key, shared, table, &self.attr_sets, |_| false));
        self.encoded.retain(|(n, ..)| *n != number);
        self.encoded.push_back((number, version, segment.clone()));
        if self.encoded.len() > PAGES_KEPT {
            self.encoded.pop_front();
        }
        Some(segment)
    }

    /// Encodes the part of a page that one member has to be sent.
    fn encode_for<A: Key>(
        &self,
        shared: &Shared,
        table: &Table<A>,
        member: u32,
        number: u32,
        pages: &Pages,
    ) -> Option<Arc<Segment>> {
        let previous = self.members.get(&member).and_then(|m| m.previous.as_ref());
        let synced = self.members.get(&member).map_or(0, |m| m.synced);
        let mut changes = Changes::default();
        for slot in number * PAGE..(number + 1) * PAGE {
            let Some(entry) = table.entry(slot).filter(|e| e.is_live()) else { continue };
            let changed = pages.since.is_some_and(|since| table.changed_since(entry, since));
            if !changed && !pages.all {
                continue;
            }
            let state = self.advertised.get(slot);
            let own =
                state.attr_set().and_then(|out| self.attr_sets.key(out)).is_some_and(|k| k.source == member);
            match state.attr_set().filter(|_| !own) {
                Some(out) => changes.announced.push((out, slot)),
                None => {
                    let previous = previous.map(|k| k.get(slot)).is_some_and(|k| {
                        k.attr_set().is_some() || (k.was() && table.changed_since(entry, synced))
                    });
                    if previous || (changed && (own || state.was())) {
                        changes.withdrawn.push((LOCAL, slot));
                    }
                }
            }
        }
        self.finish(shared, table, changes)
    }

    /// Appends the change of a slot for one member.
    fn push_change(&self, changes: &mut Changes, member: u32, slot: u32) {
        let state = self.advertised.get(slot);
        match state.attr_set() {
            Some(out) if self.attr_sets.key(out).is_some_and(|k| k.source != member) => {
                changes.announced.push((out, slot));
            }
            Some(_) => changes.withdrawn.push((LOCAL, slot)),
            None if state.was() => changes.withdrawn.push((LOCAL, slot)),
            None => {}
        }
    }

    fn finish<A: Key>(&self, shared: &Shared, table: &Table<A>, changes: Changes) -> Option<Arc<Segment>> {
        if changes.is_empty() {
            return None;
        }
        Some(Arc::new(changes.encode(&self.key, shared, table, &self.attr_sets, |_| false)))
    }

    fn produce_log<A: Key>(&mut self, shared: &Shared, table: &Table<A>, member: u32, at: u64) -> Produced {
        let end = self.front.min(at + SLICE);
        let (mut changes, mut again) = (Changes::default(), FxHashSet::default());
        for position in at..end {
            let Some(slot) = table.log.get(position) else { continue };
            let Some(entry) = table.entry(slot) else { continue };
            // A slot that changed again later is sent then, unless the group has not evaluated that change
            // yet: the result may turn out equal.
            let unseen = table.changed_since(entry, self.front) && again.insert(slot);
            if unseen || table.is_newest(entry, position) {
                self.push_change(&mut changes, member, slot);
            }
        }
        if end == self.front {
            self.settle(member, end);
        } else if let Some(m) = self.members.get_mut(&member) {
            m.synced = end;
            m.mode = Mode::Log(end);
        }
        self.finish(shared, table, changes).map_or(Produced::Working, Produced::Segment)
    }
}
