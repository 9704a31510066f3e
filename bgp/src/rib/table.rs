//! One table: prefix to paths.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tortie_config::Cidr;

use super::Shared;
use super::choice::count;
use super::index::{Index, MAX_ID, mix};
use super::intern::NO_ATTR;
use super::log::{Log, short};
use super::pool::Pool;
use super::source::LOCAL;
use crate::api::Tag;
use crate::wire::Address;

/// An address as a key.
pub(crate) trait Key: Address + Default + std::hash::Hash {
    fn hash(self, len: u8) -> u64;
}

impl Key for u32 {
    #[inline]
    fn hash(self, len: u8) -> u64 {
        mix(u64::from(self) << 8 | u64::from(len))
    }
}

impl Key for u128 {
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "both halves are used")]
    fn hash(self, len: u8) -> u64 {
        mix(mix((self >> 64) as u64) ^ self as u64 ^ u64::from(len).rotate_right(8))
    }
}

pub(super) const NO_PATH: u32 = u32::MAX;

/// A path of a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Path {
    /// Its attribute set; [`NO_ATTR`] in an empty slot.
    pub(crate) attr: u32,
    /// Who sent it, or [`LOCAL`].
    pub(crate) source: u32,
    pub(super) next: u32,
    /// The session of its source that it belongs to.
    pub(crate) generation: u8,
    /// Why import refused it, or [`ACCEPTED`].
    pub(crate) reason: u8,
    /// Best, or used beside the best one.
    pub(crate) multipath: bool,
}

impl Default for Path {
    fn default() -> Self {
        Self { attr: NO_ATTR, source: LOCAL, next: NO_PATH, generation: 0, reason: 0, multipath: false }
    }
}

/// What distinguishes one best path from another towards peers.
pub(crate) type BestKey = Option<(u32, u32)>;

pub(super) mod flag {
    /// The slot is in use.
    pub(in crate::rib) const LIVE: u8 = 1;
    /// The first path is the best one.
    pub(in crate::rib) const BEST: u8 = 2;
    /// In the dirty queue.
    pub(in crate::rib) const DIRTY: u8 = 4;
    /// In the queue of entries without paths.
    pub(in crate::rib) const DEAD: u8 = 8;
    /// In the log since it came to life.
    pub(in crate::rib) const LOGGED: u8 = 16;
}

/// A prefix with its first path; others hang on it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Entry<A> {
    address: A,
    /// Position of its newest change in the log, cut.
    seq: u32,
    pub(super) first: Path,
    len: u8,
    pub(super) flags: u8,
}

impl<A: Key> Entry<A> {
    pub(crate) fn is_live(&self) -> bool {
        self.flags & flag::LIVE != 0
    }

    pub(crate) fn prefix(&self) -> (A, u8) {
        (self.address, self.len)
    }

    pub(crate) fn cidr(&self) -> Cidr {
        self.address.cidr(self.len)
    }

    /// The best path, if any is usable.
    #[inline]
    pub(crate) fn best(&self) -> Option<&Path> {
        (self.flags & flag::BEST != 0).then_some(&self.first)
    }

    pub(super) fn best_key(&self) -> BestKey {
        self.best().map(|p| (p.attr, p.source))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.attr == NO_ATTR
    }
}

/// A route that this speaker originates, attributes apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LocalRoute {
    pub(crate) kind: u32,
}

/// The prefixes of one family.
#[derive(Debug)]
pub(crate) struct Table<A> {
    pub(super) entries: Pool<Entry<A>>,
    index: Index,
    pub(super) paths: Pool<Path>,
    pub(crate) log: Log,
    pub(crate) locals: FxHashMap<(A, u8), LocalRoute>,
    /// Marks of inputs by slot, until the change is taken.
    tags: FxHashMap<u32, Tag>,
    dirty: VecDeque<u32>,
    /// Entries without paths, which update groups may still have to withdraw.
    dead: VecDeque<u32>,
    path_count: usize,
    prefix_count: usize,
}

impl<A> Default for Table<A> {
    fn default() -> Self {
        Self {
            entries: Pool::default(),
            index: Index::default(),
            paths: Pool::default(),
            log: Log::default(),
            locals: FxHashMap::default(),
            tags: FxHashMap::default(),
            dirty: VecDeque::new(),
            dead: VecDeque::new(),
            path_count: 0,
            prefix_count: 0,
        }
    }
}

/// What an announcement did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Announced {
    New,
    Replaced,
    Repeated,
    /// No room for more prefixes.
    Refused,
}

impl<A: Key> Table<A> {
    #[inline]
    pub(crate) fn entry(&self, slot: u32) -> Option<&Entry<A>> {
        self.entries.get(slot)
    }

    /// All slot numbers are below this.
    pub(crate) fn limit(&self) -> u32 {
        self.entries.limit()
    }

    pub(crate) fn find(&self, (address, len): (A, u8)) -> Option<u32> {
        self.index.find(address.hash(len), |slot| {
            self.entries.get(slot).is_some_and(|e| e.address == address && e.len == len)
        })
    }

    fn find_or_insert(&mut self, prefix @ (address, len): (A, u8)) -> Option<u32> {
        if let Some(slot) = self.find(prefix) {
            return Some(slot);
        }
        if self.index.is_full() {
            self.rebuild();
        }
        if self.entries.len() >= MAX_ID as usize - 4096 {
            return None;
        }
        // A position in the past, so that no reader takes it for news before it is logged.
        let seq = short(self.log.base().wrapping_sub(1));
        let entry = Entry { address, seq, first: Path::default(), len, flags: flag::LIVE };
        let slot = self.entries.insert(entry);
        self.index.insert(address.hash(len), slot);
        Some(slot)
    }

    fn rebuild(&mut self) {
        let all =
            self.entries.iter().filter(|(_, e)| e.is_live()).map(|(slot, e)| (e.address.hash(e.len), slot));
        self.index.rebuild(self.entries.len(), all);
    }

    /// The paths of an entry, the best one first.
    pub(crate) fn paths(&self, entry: &Entry<A>) -> impl Iterator<Item = Path> {
        let first = (entry.first.attr != NO_ATTR).then_some(entry.first);
        std::iter::successors(first, |p| self.paths.get(p.next).copied())
    }

    /// The position of an entry's newest change.
    #[inline]
    pub(crate) fn position(&self, entry: &Entry<A>) -> u64 {
        self.log.position(entry.seq)
    }

    /// Whether the entry's newest change is the one at this position.
    #[inline]
    pub(crate) fn is_newest(&self, entry: &Entry<A>, position: u64) -> bool {
        entry.seq == short(position)
    }

    /// Whether the entry changed at this position or later.
    pub(crate) fn changed_since(&self, entry: &Entry<A>, position: u64) -> bool {
        entry.flags & flag::LOGGED != 0 && self.position(entry) >= position
    }

    /// Adds or replaces the path of `source`. The path takes its own reference to `attr`.
    pub(crate) fn announce(
        &mut self,
        shared: &mut Shared,
        source: u32,
        prefix: (A, u8),
        attr: u32,
        reason: u8,
    ) -> Announced {
        let Some(slot) = self.find_or_insert(prefix) else { return Announced::Refused };
        if let Some(hop) = shared.attrs.set(attr).map(|a| a.hop) {
            shared.hops.wait(hop, A::FAMILY, slot);
        }
        let generation = shared.sources.get(source).map_or(0, |s| s.family(A::FAMILY).generation);
        let Some(entry) = self.entries.get(slot) else { return Announced::Refused };
        let old_best = entry.best_key();
        let path = Path { attr, source, next: NO_PATH, generation, reason, multipath: false };
        if let Some(old) = self.path_mut(slot, source) {
            let before = *old;
            *old = Path { next: before.next, multipath: before.multipath, ..path };
            let same = before.attr == attr && before.reason == reason;
            let was_valid = source == LOCAL
                || shared
                    .sources
                    .get(source)
                    .is_some_and(|s| s.family(A::FAMILY).is_valid(before.generation));
            count(shared, A::FAMILY, before, false);
            count(shared, A::FAMILY, path, true);
            if same && was_valid {
                return Announced::Repeated;
            }
            if before.attr != attr {
                shared.attrs.retain(attr);
            }
            self.redecide(shared, slot, old_best, before.multipath);
            if before.attr != attr {
                shared.attrs.release(before.attr, &mut shared.hops);
            }
            return if was_valid { Announced::Replaced } else { Announced::New };
        }
        shared.attrs.retain(attr);
        count(shared, A::FAMILY, path, true);
        self.path_count += 1;
        if self.entries.get(slot).is_some_and(Entry::is_empty) {
            self.prefix_count += 1;
            if let Some(entry) = self.entries.get_mut(slot) {
                entry.first = path;
            }
        } else if let Some(next) = self.entries.get(slot).map(|e| e.first.next) {
            // Behind the first path, which may be the best one.
            let added = self.paths.insert(Path { next, ..path });
            if let Some(entry) = self.entries.get_mut(slot) {
                entry.first.next = added;
            }
        }
        self.redecide(shared, slot, old_best, false);
        Announced::New
    }

    fn path_mut(&mut self, slot: u32, source: u32) -> Option<&mut Path> {
        let first = &mut self.entries.get_mut(slot)?.first;
        if first.attr == NO_ATTR {
            return None;
        }
        if first.source == source {
            return Some(first);
        }
        let mut at = first.next;
        loop {
            let path = *self.paths.get(at)?;
            if path.source == source {
                return self.paths.get_mut(at);
            }
            at = path.next;
        }
    }

    /// Removes the path of `source`; `false` when it had none.
    pub(crate) fn withdraw(&mut self, shared: &mut Shared, source: u32, prefix: (A, u8)) -> bool {
        let Some(slot) = self.find(prefix) else { return false };
        self.remove_if(shared, slot, |_, p| p.source == source)
    }

    /// Removes the paths for which `gone` holds and decides anew; `false` when there was none.
    pub(crate) fn remove_if(
        &mut self,
        shared: &mut Shared,
        slot: u32,
        gone: impl Fn(&Shared, &Path) -> bool,
    ) -> bool {
        let Some(entry) = self.entries.get(slot) else { return false };
        let old_best = entry.best_key();
        let mut removed: SmallVec<[Path; 2]> = SmallVec::new();
        // Hanging paths first, so that one of those that stay can take the first place.
        let mut before = None;
        let mut at = entry.first.next;
        while let Some(path) = self.paths.get(at).copied() {
            if gone(shared, &path) {
                match before {
                    None => {
                        if let Some(entry) = self.entries.get_mut(slot) {
                            entry.first.next = path.next;
                        }
                    }
                    Some(before) => {
                        if let Some(before) = self.paths.get_mut(before) {
                            before.next = path.next;
                        }
                    }
                }
                self.paths.remove(at);
                removed.push(path);
            } else {
                before = Some(at);
            }
            at = path.next;
        }
        let Some(first) = self.entries.get(slot).map(|e| e.first) else { return false };
        if first.attr != NO_ATTR && gone(shared, &first) {
            removed.push(first);
            let heir = self.paths.remove(first.next).filter(|_| first.next != NO_PATH).unwrap_or_default();
            if let Some(entry) = self.entries.get_mut(slot) {
                entry.first = heir;
                entry.flags &= !flag::BEST;
            }
        }
        if removed.is_empty() {
            return false;
        }
        self.path_count -= removed.len();
        for path in &removed {
            count(shared, A::FAMILY, *path, false);
        }
        if let Some(entry) = self.entries.get_mut(slot)
            && entry.is_empty()
        {
            self.prefix_count -= 1;
            if entry.flags & flag::DEAD == 0 {
                entry.flags |= flag::DEAD;
                self.dead.push_back(slot);
            }
        }
        self.redecide(shared, slot, old_best, removed.iter().any(|p| p.multipath));
        for path in removed {
            shared.attrs.release(path.attr, &mut shared.hops);
        }
        true
    }

    /// Decides anew, because something that paths refer to changed.
    pub(crate) fn review(&mut self, shared: &mut Shared, slot: u32) {
        self.revise(shared, slot, |_, _, _| None);
    }

    /// Makes import decisions anew where `reason` gives one, and decides.
    pub(crate) fn revise(
        &mut self,
        shared: &mut Shared,
        slot: u32,
        mut reason: impl FnMut(&mut Shared, Cidr, &Path) -> Option<u8>,
    ) {
        let Some(entry) = self.entries.get(slot) else { return };
        let (old_best, prefix) = (entry.best_key(), entry.cidr());
        let all: SmallVec<[Path; 4]> = self.paths(entry).collect();
        for path in all {
            if let Some(reason) = reason(shared, prefix, &path)
                && reason != path.reason
            {
                count(shared, A::FAMILY, path, false);
                count(shared, A::FAMILY, Path { reason, ..path }, true);
                if let Some(path) = self.path_mut(slot, path.source) {
                    path.reason = reason;
                }
            }
        }
        self.redecide(shared, slot, old_best, false);
    }

    /// Appends an entry to the log.
    pub(crate) fn touch(&mut self, slot: u32) {
        let seq = self.log.push(slot);
        if let Some(entry) = self.entries.get_mut(slot) {
            entry.seq = seq;
            entry.flags |= flag::LOGGED;
        }
    }

    pub(super) fn mark_dirty(&mut self, slot: u32) {
        if let Some(entry) = self.entries.get_mut(slot)
            && entry.flags & flag::DIRTY == 0
        {
            entry.flags |= flag::DIRTY;
            self.dirty.push_back(slot);
        }
    }

    /// Marks a change for what follows from it.
    pub(crate) fn tag(&mut self, prefix: (A, u8), tag: Tag) {
        if let Some(slot) = self.find(prefix)
            && self.entries.get(slot).is_some_and(|e| e.flags & flag::DIRTY != 0)
        {
            self.tags.insert(slot, tag);
        }
    }

    pub(crate) fn has_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Takes the oldest changed slot and its mark.
    pub(crate) fn pop_dirty(&mut self) -> Option<(u32, Tag)> {
        let slot = self.dirty.pop_front()?;
        if self.dirty.is_empty() && self.dirty.capacity() > 8192 {
            self.dirty = VecDeque::new();
        }
        if let Some(entry) = self.entries.get_mut(slot) {
            entry.flags &= !flag::DIRTY;
        }
        Some((slot, self.tags.remove(&slot).unwrap_or_default()))
    }

    pub(crate) fn has_dead(&self) -> bool {
        !self.dead.is_empty()
    }

    /// Gives back entries without paths whose last change all readers have passed; calls `freed` for each.
    pub(crate) fn bury(&mut self, passed: u64, max: usize, mut freed: impl FnMut(u32)) -> bool {
        for _ in 0..max {
            let Some(slot) = self.dead.front().copied() else { break };
            let Some(entry) = self.entries.get(slot) else { break };
            if entry.is_empty() {
                if entry.flags & flag::DIRTY != 0 || self.changed_since(entry, passed) {
                    return false;
                }
                let hash = entry.address.hash(entry.len);
                self.index.remove(hash, slot);
                self.entries.remove(slot);
                freed(slot);
            } else if let Some(entry) = self.entries.get_mut(slot) {
                entry.flags &= !flag::DEAD;
            }
            self.dead.pop_front();
        }
        if self.dead.is_empty() && self.dead.capacity() > 8192 {
            self.dead = VecDeque::new();
        }
        if self.index.is_sparse() {
            self.rebuild();
        }
        !self.dead.is_empty()
    }

    /// Prefixes with paths.
    pub(crate) fn prefixes(&self) -> usize {
        self.prefix_count
    }

    pub(crate) fn path_count(&self) -> usize {
        self.path_count
    }

    pub(crate) fn memory(&self) -> usize {
        self.entries.memory()
            + self.index.memory()
            + self.paths.memory()
            + self.log.memory()
            + (self.dirty.capacity() + self.dead.capacity()) * 4
    }

    /// All slots that are in use.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Entry<A>)> {
        self.entries.iter().filter(|(_, e)| e.is_live())
    }
}
