//! An update group: its Adj-RIB-Out, its members and their idle list.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::advertised::{Advertised, PAGE, State};
use super::attr_sets::AttrSets;
use super::export::{GroupKey, Representative};
use super::member::{EndOfRib, Member, Mode, Pages};
use super::segment::Segment;
use crate::rib::Shared;
use crate::rib::entry::Key;
use crate::rib::table::Table;

/// Maximum number of log positions per segment.
pub(super) const SLICE: u64 = if crate::types::TINY { 8 } else { 2048 };
/// Maximum octets of segments kept for members that have not taken them.
pub(super) const RING_BYTES: usize = if crate::types::TINY { 300 } else { 512 * 1024 };

/// An update group: peers that are sent the same routes.
#[derive(Debug, Clone)]
pub(crate) struct Group {
    pub(crate) key: GroupKey,
    pub(super) representative: Representative,
    pub(crate) advertised: Advertised,
    pub(crate) attr_sets: AttrSets,
    pub(super) gates: Vec<(&'static str, u64)>,
    /// Log position that the Adj-RIB-Out corresponds to.
    pub(super) front: u64,
    pub(super) build: Build,
    /// Range of pages (end exclusive) that existed before the group and have not been evaluated yet. All
    /// others were evaluated, or arrive through the log.
    pub(super) unbuilt: (u32, u32),
    /// The only member of the group, whose own routes are not evaluated. `None` with several members.
    pub(super) sole: Option<u32>,
    pub(super) ring: VecDeque<Arc<Segment>>,
    /// Number of the first segment in the ring.
    pub(super) ring_first: u64,
    /// The ring has all output from this log position on.
    pub(super) ring_from: u64,
    pub(super) ring_bytes: usize,
    pub(super) encoded: VecDeque<(u32, u32, Arc<Segment>)>,
    pub(super) members: FxHashMap<u32, Member>,
    pub(super) idle: Vec<u32>,
    /// A segment was encoded for which idle members have not been woken yet.
    pub(super) fresh: bool,
}

/// Progress of filling the Adj-RIB-Out, page by page as members request it. A slot that was evaluated before
/// is evaluated again only if a member is certain to be sent the result: members in step receive changes
/// through the log alone.
#[derive(Debug, Clone, Copy)]
pub(super) struct Build {
    pub(super) next: u32,
    pub(super) end: u32,
    /// Log position from which the group lost changes. Slots of built pages that changed since then are
    /// evaluated again.
    pub(super) since: Option<u64>,
    /// Evaluate routes of this source again in built pages from this page on, because they were left out
    /// before.
    pub(super) only: Option<(u32, u32)>,
}

impl Group {
    pub(crate) fn new<A: Key>(key: GroupKey, representative: Representative, table: &Table<A>) -> Self {
        let front = table.log.head();
        Self {
            key,
            representative,
            advertised: Advertised::default(),
            attr_sets: AttrSets::new(table.key),
            gates: Vec::new(),
            front,
            build: Build { next: 0, end: pages(table), since: None, only: None },
            unbuilt: (0, pages(table)),
            sole: None,
            ring: VecDeque::new(),
            ring_first: 0,
            ring_from: front,
            ring_bytes: 0,
            encoded: VecDeque::new(),
            members: FxHashMap::default(),
            idle: Vec::new(),
            fresh: false,
        }
    }

    /// Adds a member. `previous`: routes sent through another group in the same session, up to that log
    /// position.
    pub(crate) fn join<A: Key>(
        &mut self,
        table: &Table<A>,
        member: u32,
        previous: Option<(Advertised, u64, EndOfRib)>,
    ) {
        match (self.members.len(), self.sole) {
            (0, _) => self.sole = Some(member),
            (_, Some(_)) => {
                // The routes of the only member so far were left out.
                let since = self.unbuilt_since();
                let only = self.sole.take().map(|sole| (0, sole));
                self.build = Build { next: 0, end: pages(table), since, only };
                if let Some(since) = since {
                    self.resync_since(table, since);
                }
            }
            _ => {}
        }
        let mode = Mode::Pages(self.all_pages(table));
        let (previous, synced, end_of_rib) = match previous {
            Some((advertised, synced, eor)) => (Some(advertised), synced.min(self.front), eor),
            None => (None, self.front, EndOfRib::Due),
        };
        self.members.insert(member, Member { mode, previous, synced, end_of_rib, idle: false });
    }

    pub(super) fn all_pages<A: Key>(&self, table: &Table<A>) -> Pages {
        Pages { next: 0, end: pages(table), all: true, since: None, resume: self.front }
    }

    /// Returns the log position from which a running build looks for changes.
    pub(super) fn unbuilt_since(&self) -> Option<u64> {
        self.build.since.filter(|_| self.build.next < self.build.end)
    }

    /// Removes a member. Returns the routes sent to it.
    pub(crate) fn leave(&mut self, member: u32) -> Option<(Advertised, u64, EndOfRib)> {
        let gone = self.members.remove(&member)?;
        if gone.idle {
            self.idle.retain(|m| *m != member);
        }
        let synced = if gone.idle { self.front } else { gone.synced };
        let mut advertised = self.advertised.clone();
        // A member whose change of groups was incomplete had been sent routes of both groups.
        for slot in gone.previous.iter().flat_map(Advertised::traces) {
            if advertised.get(slot).attr_set().is_none() {
                advertised.set(slot, State::announced(0));
            }
        }
        Some((advertised, synced, gone.end_of_rib))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub(crate) fn member(&self, member: u32) -> Option<&Member> {
        self.members.get(&member)
    }

    /// Schedules all routes of the group for this member again.
    pub(crate) fn resend<A: Key>(&mut self, table: &Table<A>, member: u32) {
        let mut pages = self.all_pages(table);
        self.wake(member);
        if let Some(member) = self.members.get_mut(&member) {
            pages.since = match &member.mode {
                Mode::Pages(old) => Some(old.since.unwrap_or(old.resume)),
                Mode::Ring(_) | Mode::Log(_) => Some(member.synced),
            };
            // Members that are up to date share encoded pages.
            pages.since = pages.since.filter(|since| *since < pages.resume);
            member.mode = Mode::Pages(pages);
        }
    }

    fn wake(&mut self, member: u32) {
        if let Some(m) = self.members.get_mut(&member)
            && m.idle
        {
            m.idle = false;
            m.synced = self.front;
            self.idle.retain(|i| *i != member);
        }
    }

    /// Returns true if a member waits for changes.
    pub(crate) fn has_idle(&self) -> bool {
        !self.idle.is_empty()
    }

    /// Returns true if all members are up to date.
    pub(crate) fn all_idle(&self) -> bool {
        self.idle.len() == self.members.len()
    }

    pub(crate) fn is_behind<A: Key>(&self, table: &Table<A>) -> bool {
        self.front < table.log.head()
    }

    /// Returns true if a segment was encoded since the last call.
    pub(crate) fn take_fresh(&mut self) -> bool {
        std::mem::take(&mut self.fresh)
    }

    /// Wakes all idle members for the newest segment.
    pub(crate) fn wake_for_segment(&mut self, each: impl FnMut(u32)) {
        let synced = self.ring.back().map(|s| s.from);
        self.wake_all(synced, each);
    }

    /// Wakes all idle members. `synced`: log position up to which they are up to date; `None`: as recorded.
    pub(crate) fn wake_all(&mut self, synced: Option<u64>, mut each: impl FnMut(u32)) {
        for member in std::mem::take(&mut self.idle) {
            if let Some(m) = self.members.get_mut(&member) {
                m.idle = false;
                m.synced = synced.unwrap_or(m.synced);
            }
            each(member);
        }
    }

    /// Returns the log position that the Adj-RIB-Out corresponds to.
    pub(crate) fn front(&self) -> u64 {
        self.front
    }

    /// Returns the oldest log position that a member or the group still needs.
    pub(crate) fn needs(&self) -> u64 {
        let floor = self.front.min(self.unbuilt_since().unwrap_or(u64::MAX));
        if self.idle.len() == self.members.len() {
            return floor;
        }
        self.members.values().filter(|m| !m.idle).map(|m| m.synced).min().unwrap_or(floor).min(floor)
    }

    /// Clears the slot of a freed table entry.
    pub(crate) fn forget(&mut self, shared: &mut Shared, slot: u32) {
        let old = self.advertised.clear(slot);
        self.drop_state(shared, old);
    }

    pub(crate) fn dissolve(&mut self, shared: &mut Shared) {
        self.attr_sets.release_all(shared);
    }

    /// Returns the number of paths that policy withholds, by export gate.
    pub(crate) fn withheld(&self) -> &[(&'static str, u64)] {
        &self.gates
    }

    /// Returns the number of prefixes announced to this member. `own`: number of its own routes, which are
    /// not sent to it.
    pub(crate) fn advertised_count(&self, member: u32, own: u32) -> u32 {
        if self.members.contains_key(&member) { self.advertised.announced().saturating_sub(own) } else { 0 }
    }

    pub(crate) fn representative(&self) -> &Representative {
        &self.representative
    }

    pub(crate) fn memory(&self) -> usize {
        self.advertised.memory()
            + self.attr_sets.memory()
            + self.ring_bytes
            + self.encoded.iter().map(|(.., s)| s.len()).sum::<usize>()
            + self.members.capacity() * size_of::<(u32, Member)>()
    }
}

/// Returns the number of pages for all slots of the table.
pub(super) fn pages<A: Key>(table: &Table<A>) -> u32 {
    table.limit().div_ceil(PAGE)
}
