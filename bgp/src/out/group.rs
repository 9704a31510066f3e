//! An update group.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::adv::{Adv, PAGE, State};
use super::export::{Face, GroupKey};
use super::member::{EndOfRib, Member, Mode, Pages, Produced};
use super::outs::Outs;
use super::segment::{Changes, Segment};
use crate::rib::Shared;
use crate::rib::source::LOCAL;
use crate::rib::table::{Key, Table};

/// Log positions that one segment covers at most.
pub(super) const SLICE: u64 = if cfg!(test) { 8 } else { 2048 };
/// Octets of segments that are kept for members that have not taken them.
pub(super) const RING_BYTES: usize = if cfg!(test) { 300 } else { 512 * 1024 };
/// Encoded pages that are kept for members that join.
const PAGES_KEPT: usize = 32;
/// Pages that one call looks at without finding anything to send.
const PAGES_LOOKED_AT: u32 = 256;

/// Peers that are sent the same.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) key: GroupKey,
    pub(super) face: Face,
    pub(crate) adv: Adv,
    pub(crate) outs: Outs,
    pub(super) gates: Vec<(&'static str, u64)>,
    /// The Adj-RIB-Out stands at this position of the log.
    pub(super) front: u64,
    pub(super) build: Build,
    /// Pages from the first on to below the second were there before the group and have not been evaluated yet. All others
    /// were, or came through the log.
    pub(super) unbuilt: (u32, u32),
    /// The group has one member, whose own routes are not even looked at.
    pub(super) sole: Option<u32>,
    pub(super) ring: VecDeque<Arc<Segment>>,
    /// Number of the first segment of the ring.
    pub(super) ring_first: u64,
    /// The ring holds all that was told from this position on.
    pub(super) ring_from: u64,
    pub(super) ring_bytes: usize,
    pub(super) encoded: VecDeque<(u32, u32, Arc<Segment>)>,
    pub(super) members: FxHashMap<u32, Member>,
    pub(super) idle: Vec<u32>,
    /// A segment was made that idle members do not know of.
    pub(super) fresh: bool,
}

/// Filling the Adj-RIB-Out, page by page, as members ask for it. What was evaluated before is evaluated again only where a
/// member is sure to be told of the outcome: members that are in step hear of a slot through the log alone.
#[derive(Debug, Clone, Copy)]
pub(super) struct Build {
    pub(super) next: u32,
    pub(super) end: u32,
    /// Of pages that were built, what changed since this position: the front could not follow the log.
    pub(super) since: Option<u64>,
    /// Of pages that were built, from this one on the routes of this source: they were left out.
    pub(super) only: Option<(u32, u32)>,
}

impl Group {
    pub(crate) fn new<A: Key>(key: GroupKey, face: Face, table: &Table<A>) -> Self {
        let front = table.log.head();
        Self {
            key,
            face,
            adv: Adv::default(),
            outs: Outs::default(),
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

    /// Adds a member. `known`: what it was told in another group of this session, up to that log position.
    pub(crate) fn join<A: Key>(
        &mut self,
        table: &Table<A>,
        member: u32,
        known: Option<(Adv, u64, EndOfRib)>,
    ) {
        match (self.members.len(), self.sole) {
            (0, _) => self.sole = Some(member),
            (_, Some(_)) => {
                // The routes of the only member so far were left out.
                let since = self.unbuilt_since();
                let only = self.sole.take().map(|sole| (0, sole));
                self.build = Build { next: 0, end: pages(table), since, only };
                if let Some(since) = since {
                    self.tell_since(table, since);
                }
            }
            _ => {}
        }
        let mode = Mode::Pages(self.all_pages(table));
        let (known, told, end_of_rib) = match known {
            Some((adv, told, eor)) => (Some(adv), told.min(self.front), eor),
            None => (None, self.front, EndOfRib::Due),
        };
        self.members.insert(member, Member { mode, known, told, end_of_rib, idle: false });
    }

    fn all_pages<A: Key>(&self, table: &Table<A>) -> Pages {
        Pages { next: 0, end: pages(table), all: true, since: None, resume: self.front }
    }

    /// What a build that is under way still looks for.
    fn unbuilt_since(&self) -> Option<u64> {
        self.build.since.filter(|_| self.build.next < self.build.end)
    }

    /// Removes a member; returns what it was told.
    pub(crate) fn leave(&mut self, member: u32) -> Option<(Adv, u64, EndOfRib)> {
        let gone = self.members.remove(&member)?;
        if gone.idle {
            self.idle.retain(|m| *m != member);
        }
        let told = if gone.idle { self.front } else { gone.told };
        let mut adv = self.adv.clone();
        // A member that was still being told of its change of group knows parts of both.
        for slot in gone.known.iter().flat_map(Adv::traces) {
            if adv.get(slot).out().is_none() {
                adv.set(slot, State::announced(0));
            }
        }
        Some((adv, told, gone.end_of_rib))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub(crate) fn member(&self, member: u32) -> Option<&Member> {
        self.members.get(&member)
    }

    /// Everything has to be sent to this member again.
    pub(crate) fn resend<A: Key>(&mut self, table: &Table<A>, member: u32) {
        let mut pages = self.all_pages(table);
        self.wake(member);
        if let Some(member) = self.members.get_mut(&member) {
            pages.since = match &member.mode {
                Mode::Pages(old) => Some(old.since.unwrap_or(old.resume)),
                Mode::Ring(_) | Mode::Log(_) => Some(member.told),
            };
            // Up to date members share their pages.
            pages.since = pages.since.filter(|since| *since < pages.resume);
            member.mode = Mode::Pages(pages);
        }
    }

    fn wake(&mut self, member: u32) {
        if let Some(m) = self.members.get_mut(&member)
            && m.idle
        {
            m.idle = false;
            m.told = self.front;
            self.idle.retain(|i| *i != member);
        }
    }

    /// Whether some member waits for changes.
    pub(crate) fn has_idle(&self) -> bool {
        !self.idle.is_empty()
    }

    pub(crate) fn is_behind<A: Key>(&self, table: &Table<A>) -> bool {
        self.front < table.log.head()
    }

    /// Whether a segment was made since the last call.
    pub(crate) fn take_fresh(&mut self) -> bool {
        std::mem::take(&mut self.fresh)
    }

    /// Takes all idle members, because the newest segment is for them.
    pub(crate) fn wake_for_segment(&mut self, each: impl FnMut(u32)) {
        let told = self.ring.back().map(|s| s.from);
        self.wake_all(told, each);
    }

    /// Takes all idle members, who were told all below `told` (`None`: as noted).
    pub(crate) fn wake_all(&mut self, told: Option<u64>, mut each: impl FnMut(u32)) {
        for member in std::mem::take(&mut self.idle) {
            if let Some(m) = self.members.get_mut(&member) {
                m.idle = false;
                m.told = told.unwrap_or(m.told);
            }
            each(member);
        }
    }

    /// The log position of the Adj-RIB-Out.
    pub(crate) fn front(&self) -> u64 {
        self.front
    }

    /// The oldest log position that some member or the group still needs.
    pub(crate) fn needs(&self) -> u64 {
        let floor = self.front.min(self.unbuilt_since().unwrap_or(u64::MAX));
        if self.idle.len() == self.members.len() {
            return floor;
        }
        self.members.values().filter(|m| !m.idle).map(|m| m.told).min().unwrap_or(floor).min(floor)
    }

    /// A slot was given back.
    pub(crate) fn forget(&mut self, shared: &mut Shared, slot: u32) {
        let old = self.adv.clear(slot);
        self.drop_state(shared, old);
    }

    pub(crate) fn dissolve(&mut self, shared: &mut Shared) {
        self.outs.release_all(shared);
    }

    /// Best paths that policy withholds, by gate.
    pub(crate) fn withheld(&self) -> &[(&'static str, u64)] {
        &self.gates
    }

    /// Prefixes announced to this member.
    pub(crate) fn advertised(&self, member: u32, own: u32) -> u32 {
        if self.members.contains_key(&member) { self.adv.announced().saturating_sub(own) } else { 0 }
    }

    pub(crate) fn face(&self) -> &Face {
        &self.face
    }

    pub(crate) fn memory(&self) -> usize {
        self.adv.memory()
            + self.outs.memory()
            + self.ring_bytes
            + self.encoded.iter().map(|(.., s)| s.len()).sum::<usize>()
            + self.members.capacity() * size_of::<(u32, Member)>()
    }

    /// The next thing for a member. Each call does a bounded amount of work.
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
        if self.front < table.log.base() {
            self.overrun(table);
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
                let told = self.members.get(&member).map_or(0, |m| m.told);
                self.set_mode(member, Mode::Log(told));
                Produced::Working
            }
            Mode::Ring(next) => {
                let at = usize::try_from(next - self.ring_first).unwrap_or(usize::MAX);
                if let Some(segment) = self.ring.get(at).cloned() {
                    if let Some(m) = self.members.get_mut(&member) {
                        m.mode = Mode::Ring(next + 1);
                        m.told = segment.to;
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

    /// The member is told all: End-of-RIB if it is due, else it rests.
    fn rest(&mut self, member: u32, end_of_rib_after: Option<u64>) -> Produced {
        let front = self.front;
        let Some(m) = self.members.get_mut(&member) else { return Produced::Idle };
        m.told = front;
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

    /// Where a member goes on that was told all below this position.
    fn settle(&mut self, member: u32, told: u64) {
        let ring_end = self.ring_first + self.ring.len() as u64;
        let mode = if told >= self.front {
            Mode::Ring(ring_end)
        } else if told >= self.ring_from {
            let at = self.ring.partition_point(|s| s.to <= told);
            Mode::Ring(self.ring_first + at as u64)
        } else {
            Mode::Log(told)
        };
        if let Some(m) = self.members.get_mut(&member) {
            m.told = told;
            m.mode = mode;
        }
    }

    /// The log lost changes that the group has not seen: it looks for them in the table, as far as it is asked to.
    fn overrun<A: Key>(&mut self, table: &Table<A>) {
        let since = self.front.min(self.unbuilt_since().unwrap_or(u64::MAX));
        let only = self.build.only.filter(|_| self.build.next < self.build.end);
        let only = only.map(|(from, source)| (from.max(self.build.next), source));
        self.build = Build { next: 0, end: pages(table), since: Some(since), only };
        for member in self.members.values_mut().filter(|m| m.idle) {
            member.told = self.front;
        }
        self.front = table.log.head();
        self.drop_ring(0);
        self.ring_from = self.front;
        self.tell_since(table, since);
    }

    /// What changed since this position will be evaluated again, so all members have to be told of it, also those that
    /// were told once: the answer of policy may be another now.
    fn tell_since<A: Key>(&mut self, table: &Table<A>, since: u64) {
        let fresh = self.all_pages(table);
        for member in self.members.values_mut() {
            let (all, told) = match &member.mode {
                Mode::Pages(pages) => (pages.all, pages.since.unwrap_or(pages.resume)),
                Mode::Ring(_) | Mode::Log(_) => (false, member.told),
            };
            member.told = member.told.min(told);
            member.mode = Mode::Pages(Pages { all, since: Some(told.min(since)), ..fresh.clone() });
        }
    }

    /// Looks whether the log has left the group behind; its idle members then have to be woken.
    pub(crate) fn check_overrun<A: Key>(&mut self, table: &Table<A>) -> bool {
        let overrun = self.front < table.log.base();
        if overrun {
            self.overrun(table);
        }
        overrun
    }

    fn produce_pages<A: Key>(
        &mut self,
        shared: &mut Shared,
        table: &Table<A>,
        member: u32,
        mut pages: Pages,
    ) -> Produced {
        let alone = pages.since.is_some() || self.members.get(&member).is_some_and(|m| m.known.is_some());
        let stop = pages.next.saturating_add(PAGES_LOOKED_AT).min(pages.end);
        let mut built = 0;
        while pages.next < stop {
            let number = pages.next;
            if self.build.next <= number && self.build.next < self.build.end {
                // Building a page costs a thousand questions to policy.
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
            m.known = None;
        }
        self.settle(member, pages.resume);
        Produced::Working
    }

    /// The announcements of a page, for all members that ask for it before it changes.
    fn encode_page<A: Key>(
        &mut self,
        shared: &Shared,
        table: &Table<A>,
        number: u32,
    ) -> Option<Arc<Segment>> {
        let page = self.adv.page(number)?;
        let version = page.version;
        if let Some((.., segment)) = self.encoded.iter().find(|(n, v, _)| (*n, *v) == (number, version)) {
            return Some(segment.clone());
        }
        let announced = page.outs(number).map(|(slot, out)| (out, slot)).collect();
        let changes = Changes { announced, ..Changes::default() };
        let segment = Arc::new(changes.encode(&self.key, shared, table, &self.outs, |_| false));
        self.encoded.retain(|(n, ..)| *n != number);
        self.encoded.push_back((number, version, segment.clone()));
        if self.encoded.len() > PAGES_KEPT {
            self.encoded.pop_front();
        }
        Some(segment)
    }

    /// What one member has to be told of a page.
    fn encode_for<A: Key>(
        &self,
        shared: &Shared,
        table: &Table<A>,
        member: u32,
        number: u32,
        pages: &Pages,
    ) -> Option<Arc<Segment>> {
        let known = self.members.get(&member).and_then(|m| m.known.as_ref());
        let told = self.members.get(&member).map_or(0, |m| m.told);
        let mut changes = Changes::default();
        for slot in number * PAGE..(number + 1) * PAGE {
            let Some(entry) = table.entry(slot).filter(|e| e.is_live()) else { continue };
            let changed = pages.since.is_some_and(|since| table.changed_since(entry, since));
            if !changed && !pages.all {
                continue;
            }
            let state = self.adv.get(slot);
            let own = state.out().and_then(|out| self.outs.key(out)).is_some_and(|k| k.source == member);
            match state.out().filter(|_| !own) {
                Some(out) => changes.announced.push((out, slot)),
                None => {
                    let known = known
                        .map(|k| k.get(slot))
                        .is_some_and(|k| k.out().is_some() || (k.was() && table.changed_since(entry, told)));
                    if known || (changed && (own || state.was())) {
                        changes.withdrawn.push((LOCAL, slot));
                    }
                }
            }
        }
        self.finish(shared, table, changes)
    }

    /// Notes the state of a changed slot for one member.
    fn tell(&self, changes: &mut Changes, member: u32, slot: u32) {
        let state = self.adv.get(slot);
        match state.out() {
            Some(out) if self.outs.key(out).is_some_and(|k| k.source != member) => {
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
        Some(Arc::new(changes.encode(&self.key, shared, table, &self.outs, |_| false)))
    }

    fn produce_log<A: Key>(&mut self, shared: &Shared, table: &Table<A>, member: u32, at: u64) -> Produced {
        let end = self.front.min(at + SLICE);
        let mut changes = Changes::default();
        for position in at..end {
            let Some(slot) = table.log.get(position) else { continue };
            if table.entry(slot).is_some_and(|e| table.is_newest(e, position)) {
                self.tell(&mut changes, member, slot);
            }
        }
        if end == self.front {
            self.settle(member, end);
        } else if let Some(m) = self.members.get_mut(&member) {
            m.told = end;
            m.mode = Mode::Log(end);
        }
        self.finish(shared, table, changes).map_or(Produced::Working, Produced::Segment)
    }

    /// Drops the oldest segments until at most `bytes` are left, but never the newest unless all are to go.
    pub(super) fn drop_ring(&mut self, bytes: usize) {
        while self.ring_bytes > bytes && (self.ring.len() > 1 || bytes == 0) {
            let Some(segment) = self.ring.pop_front() else { break };
            self.ring_bytes -= segment.len();
            self.ring_first += 1;
            self.ring_from = segment.to;
        }
    }
}

fn pages<A: Key>(table: &Table<A>) -> u32 {
    table.limit().div_ceil(PAGE)
}
