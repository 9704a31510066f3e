//! Table of one family: prefixes and their paths.

use std::collections::{HashMap, VecDeque};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tortie_net::{Cidr, HashKey};

use super::Shared;
use super::attr_table::NO_ATTR;
use super::best_path::{Change, Effect, Scope, awaits_next_hop, count, is_usable};
use super::change_log::{Log, short};
use super::entry::{Entry, Key, LocalRoute, NO_PATH, Packed, Path, flag, source_bit};
use super::import::ImportOutcome;
use super::index::{Index, MAX_ID};
use super::pool::Pool;
use super::source::LOCAL;
use crate::api::Tag;

/// All prefixes of one family, with their paths.
#[derive(Debug, Clone)]
pub(crate) struct Table<A> {
    pub(super) entries: Pool<Entry<A>>,
    pub(super) index: Index,
    pub(super) paths: Pool<Packed>,
    pub(crate) log: Log,
    pub(crate) locals: HashMap<(A, u8), LocalRoute, HashKey>,
    pub(crate) key: HashKey,
    /// Markers of inputs by slot, until the change is taken.
    pub(super) tags: FxHashMap<u32, Tag>,
    pub(super) dirty: VecDeque<u32>,
    /// Vacant entries: without paths, but possibly still to be withdrawn by update groups.
    pub(super) vacant: VecDeque<u32>,
    /// Entries whose loss of the best path is not reported yet, and some that no longer are.
    held: Vec<u32>,
    path_count: usize,
    prefix_count: usize,
    /// Number of update groups that announce other paths than the best one. Changes of such paths are logged
    /// only if it is not 0.
    pub(crate) planes: usize,
}

/// Error: the source has the maximum number of paths of the prefix.
struct TooMany;

/// Effect of an announcement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Announced {
    New,
    Replaced,
    Repeated,
    /// The table has the maximum number of prefixes.
    Refused,
    /// The source has the maximum number of paths of this prefix.
    TooMany,
}

/// Number of prefixes that are prefetched together.
pub(crate) const AHEAD: usize = 16;

/// Maximum number of paths per prefix and source: each new path is compared with all others.
pub(crate) const PATHS_MAX: usize = 255;

impl<A: Key> Table<A> {
    /// Creates an empty table.
    pub(crate) fn new(key: HashKey) -> Self {
        Self {
            entries: Pool::default(),
            index: Index::default(),
            paths: Pool::default(),
            log: Log::default(),
            locals: HashMap::with_hasher(key),
            key,
            tags: FxHashMap::default(),
            dirty: VecDeque::new(),
            vacant: VecDeque::new(),
            held: Vec::new(),
            path_count: 0,
            prefix_count: 0,
            planes: 0,
        }
    }

    #[inline]
    pub(crate) fn entry(&self, slot: u32) -> Option<&Entry<A>> {
        self.entries.get(slot)
    }

    /// Returns the upper bound of slot numbers.
    pub(crate) fn limit(&self) -> u32 {
        self.entries.limit()
    }

    pub(crate) fn find(&self, (address, len): (A, u8)) -> Option<u32> {
        self.index.find(address.hash(&self.key, len), |slot| {
            self.entries.get(slot).is_some_and(|e| e.address == address && e.len == len)
        })
    }

    /// Prefetches index slots and entries of the first [`AHEAD`] prefixes. These reads overlap, while the
    /// reads of successive lookups each wait for memory.
    pub(crate) fn prefetch(&self, prefixes: impl Iterator<Item = (A, u8)>) {
        // A small index fits into the processor cache.
        if self.index.memory() > 256 * 1024 {
            let (mut hashes, mut places) = ([0; AHEAD], [0; AHEAD]);
            for (hash, (address, len)) in hashes.iter_mut().zip(prefixes) {
                *hash = address.hash(&self.key, len);
            }
            // All reads have to be issued before a branch depends on one of them.
            for (place, hash) in places.iter_mut().zip(hashes) {
                *place = self.index.place(hash);
            }
            let slots = hashes.iter().zip(places).filter_map(|(hash, place)| Index::guess(*hash, place));
            let entries = slots.filter_map(|slot| self.entries.get(slot));
            std::hint::black_box(entries.fold(0, |seen, entry| seen ^ entry.flags));
        }
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
        // A position in the past: readers must not take the entry for changed before it is logged.
        let seq = short(self.log.base().wrapping_sub(1));
        let entry = Entry { address, seq, first: Packed::default(), len, flags: flag::LIVE, sources: 0 };
        let slot = self.entries.insert(entry);
        self.index.insert(address.hash(&self.key, len), slot);
        Some(slot)
    }

    pub(super) fn rebuild(&mut self) {
        let all = self
            .entries
            .iter()
            .filter(|(_, e)| e.is_live())
            .map(|(slot, e)| (e.address.hash(&self.key, e.len), slot));
        self.index.rebuild(self.entries.len(), all);
    }

    /// Iterates over the paths of an entry, the best one first.
    pub(crate) fn paths(&self, entry: &Entry<A>) -> impl Iterator<Item = Path> {
        let first = (!entry.is_empty()).then(|| entry.first());
        std::iter::successors(first, |p| self.path_at(p.next))
    }

    /// Returns the local path of an entry.
    pub(crate) fn local_path(&self, entry: &Entry<A>) -> Option<Path> {
        if entry.may_have(LOCAL) { self.paths(entry).find(|path| path.source == LOCAL) } else { None }
    }

    /// Adds or replaces the path of `source` with this path identifier. The path holds its own reference to
    /// `attr`.
    pub(crate) fn announce(
        &mut self,
        shared: &mut Shared,
        (source, path_id): (u32, u32),
        prefix: (A, u8),
        attr: u32,
        reason: u8,
    ) -> Announced {
        let Some(slot) = self.find_or_insert(prefix) else { return Announced::Refused };
        if let Some(hop) = shared.attrs.set(attr).map(|a| a.hop) {
            shared.next_hops.wait(hop, A::FAMILY, slot);
        }
        let (generation, add_path) = shared.sources.get(source).map_or((0, false), |s| {
            let family = s.family(A::FAMILY);
            (family.generation, family.add_path)
        });
        let Some(entry) = self.entries.get(slot) else { return Announced::Refused };
        let old_best = entry.best_key();
        let path = Path { attr, source, path_id, generation, reason, ..Path::default() };
        let replaced = if !entry.may_have(source) {
            None
        } else if add_path {
            match self.replaced(shared, entry, &path) {
                Ok(replaced) => replaced.and_then(|old| self.seek(entry, |p| p.is_same(&old))),
                Err(TooMany) => return Announced::TooMany,
            }
        } else {
            self.seek(entry, |p| p.source == source)
        };
        if let Some((_, first)) = replaced
            && !add_path
            && shared.sources.get(source).is_some_and(|s| s.family(A::FAMILY).is_earlier(first.generation))
            && self.remove_if(shared, slot, |_, p| p.source == source && !p.is_same(&first))
        {
            // The earlier session used path identifiers and left several paths. This one replaces all of
            // them.
            return self.announce(shared, (source, path_id), prefix, attr, reason);
        }
        if let Some((at, before)) = replaced {
            let renamed = add_path && !before.is_same(&path);
            let (multipath, tied) = (before.multipath, before.tied);
            self.put(slot, at, Path { next: before.next, multipath, tied, ..path });
            let same = before.attr == attr && before.reason == reason;
            let was_stale =
                shared.sources.get(source).is_some_and(|s| s.family(A::FAMILY).is_earlier(before.generation));
            let was_valid = source == LOCAL
                || shared
                    .sources
                    .get(source)
                    .is_some_and(|s| s.family(A::FAMILY).is_valid(before.generation));
            count(shared, A::FAMILY, before, false);
            count(shared, A::FAMILY, path, true);
            // A path that was stale shares load again.
            if same && was_valid && !renamed && !was_stale {
                return Announced::Repeated;
            }
            if before.attr != attr {
                shared.attrs.retain(attr);
            }
            let used = before.multipath && !same;
            let change = Change { best: old_best, used, other: true, local: source == LOCAL };
            self.replace(shared, slot, &before, &path, change);
            if before.attr != attr {
                shared.attrs.release(before.attr, &mut shared.next_hops);
            }
            return match was_valid {
                true if same => Announced::Repeated,
                true => Announced::Replaced,
                false => Announced::New,
            };
        }
        shared.attrs.retain(attr);
        count(shared, A::FAMILY, path, true);
        let change = Change { best: old_best, used: false, other: true, local: source == LOCAL };
        self.add(shared, slot, path, change);
        Announced::New
    }

    /// Adds a path to an entry that does not have it.
    fn add(&mut self, shared: &mut Shared, slot: u32, path: Path, change: Change) {
        self.path_count += 1;
        let Some(entry) = self.entries.get(slot).copied() else { return };
        let Some(place) = self.entries.get_mut(slot) else { return };
        place.sources |= source_bit(path.source);
        if entry.is_empty() {
            self.prefix_count += 1;
            place.first = path.into();
            return self.redecide(shared, slot, Scope::All, change);
        }
        let effect = self.effect(shared, &entry, &path);
        let scope = match effect {
            Effect::None | Effect::Takes => None,
            Effect::Decide(scope) => Some(scope),
        };
        let before = entry.first();
        let decided = if scope == Some(Scope::Tied) { self.join(shared, &entry, &path) } else { None };
        // Insert behind the first path, or in its place.
        let (first, second) = match (decided, effect) {
            (Some(decided), _) => decided,
            (None, Effect::Takes) => {
                let lost = Path { multipath: false, tied: false, ..before };
                (Path { multipath: true, tied: true, ..path }, lost)
            }
            (None, _) => (before, Path { tied: effect != Effect::None, ..path }),
        };
        let next = self.paths.insert(Path { next: before.next, ..second }.into());
        if let Some(place) = self.entries.get_mut(slot) {
            place.first = Path { next, ..first }.into();
            place.flags |= if decided.is_some() { flag::TIES } else { 0 };
        }
        match scope.filter(|_| decided.is_none()) {
            None => self.settle(shared, slot, Change { used: change.used || second.multipath, ..change }),
            Some(scope) => self.redecide(shared, slot, scope, change),
        }
    }

    /// Decides again after the path `new` has replaced `old`.
    fn replace(&mut self, shared: &mut Shared, slot: u32, old: &Path, new: &Path, change: Change) {
        let Some(entry) = self.entries.get(slot) else { return };
        // A tied path may have eliminated others, for example by its MED.
        let effect = if old.tied || entry.first().is_same(new) {
            Effect::Decide(Scope::All)
        } else {
            self.effect(shared, entry, new)
        };
        match effect {
            Effect::None => self.settle(shared, slot, change),
            Effect::Decide(Scope::All) => self.redecide(shared, slot, Scope::All, change),
            Effect::Takes | Effect::Decide(Scope::Tied) => {
                if let Some((at, path)) = self.seek(entry, |p| p.is_same(new)) {
                    self.put(slot, at, Path { tied: true, ..path });
                }
                self.redecide(shared, slot, Scope::Tied, change);
            }
        }
    }

    /// Returns the path that a path of an add-path session replaces: the one with its identifier, or, because
    /// identifiers may change between sessions, an equal stale path. Other stale paths stay until End-of-RIB,
    /// so that a restart with other path identifiers does not affect forwarding (RFC 7911 5).
    fn replaced(&self, shared: &Shared, entry: &Entry<A>, new: &Path) -> Result<Option<Path>, TooMany> {
        let received = shared.attrs.received(new.attr);
        let Some(family) = shared.sources.get(new.source).map(|s| s.family(A::FAMILY)) else {
            return Ok(None);
        };
        let (mut equal, mut count) = (None, 0);
        for path in self.paths(entry).filter(|p| p.source == new.source) {
            if !family.is_earlier(path.generation) {
                if path.path_id == new.path_id {
                    return Ok(Some(path));
                }
            } else if shared.attrs.received(path.attr) == received {
                equal = Some(path);
            }
            count += 1;
        }
        if equal.is_none() && count >= PATHS_MAX { Err(TooMany) } else { Ok(equal) }
    }

    /// Returns the path with this number in the linked list.
    #[inline]
    pub(super) fn path_at(&self, at: u32) -> Option<Path> {
        self.paths.get(at).map(|p| p.path())
    }

    /// Returns the first path of an entry for which `is` returns true, and its number in the list;
    /// [`NO_PATH`] for the first path.
    #[inline]
    fn seek(&self, entry: &Entry<A>, is: impl Fn(&Path) -> bool) -> Option<(u32, Path)> {
        if entry.is_empty() {
            return None;
        }
        let (mut at, mut path) = (NO_PATH, entry.first());
        while !is(&path) {
            at = path.next;
            path = self.path_at(at)?;
        }
        Some((at, path))
    }

    /// Stores a path at the place that [`Table::seek`] returned.
    #[inline]
    fn put(&mut self, slot: u32, at: u32, path: Path) {
        let place = if at == NO_PATH {
            self.entries.get_mut(slot).map(|e| &mut e.first)
        } else {
            self.paths.get_mut(at)
        };
        if let Some(place) = place {
            *place = path.into();
        }
    }

    /// Removes the path of `source` with this path identifier. Returns false if there was none.
    pub(crate) fn withdraw(
        &mut self,
        shared: &mut Shared,
        (source, path_id): (u32, u32),
        prefix: (A, u8),
    ) -> bool {
        let Some(slot) = self.find(prefix) else { return false };
        if !self.entries.get(slot).is_some_and(|e| e.may_have(source)) {
            return false;
        }
        let family = shared.sources.get(source).map(|s| s.family(A::FAMILY));
        match family.copied().filter(|f| f.add_path) {
            None => self.remove_if(shared, slot, |_, p| p.source == source),
            Some(family) => self.remove_if(shared, slot, |_, p| {
                p.source == source && p.path_id == path_id && !family.is_earlier(p.generation)
            }),
        }
    }

    /// Removes the paths for which `gone` returns true, and decides again. Returns false if there were none.
    pub(crate) fn remove_if(
        &mut self,
        shared: &mut Shared,
        slot: u32,
        gone: impl Fn(&Shared, &Path) -> bool,
    ) -> bool {
        let Some(entry) = self.entries.get(slot) else { return false };
        let old_best = entry.best_key();
        let mut removed: SmallVec<[Path; 2]> = SmallVec::new();
        let mut sources = 0;
        // The linked list first, so that one of the remaining paths can take the first place.
        let mut before = None;
        let mut at = entry.first.next();
        while let Some(path) = self.path_at(at) {
            if gone(shared, &path) {
                match before {
                    None => {
                        if let Some(entry) = self.entries.get_mut(slot) {
                            entry.first.set_next(path.next);
                        }
                    }
                    Some(before) => {
                        if let Some(before) = self.paths.get_mut(before) {
                            before.set_next(path.next);
                        }
                    }
                }
                self.paths.remove(at);
                removed.push(path);
            } else {
                sources |= source_bit(path.source);
                before = Some(at);
            }
            at = path.next;
        }
        let Some(first) = self.entries.get(slot).map(Entry::first) else { return false };
        if first.attr != NO_ATTR && gone(shared, &first) {
            removed.push(first);
            let heir = self.paths.remove(first.next).filter(|_| first.next != NO_PATH).unwrap_or_default();
            if let Some(entry) = self.entries.get_mut(slot) {
                entry.first = heir;
                entry.flags &= !flag::BEST;
            }
        } else {
            sources |= source_bit(first.source);
        }
        if removed.is_empty() {
            return false;
        }
        self.path_count -= removed.len();
        for path in &removed {
            count(shared, A::FAMILY, *path, false);
        }
        if let Some(entry) = self.entries.get_mut(slot) {
            entry.sources = if entry.is_empty() { 0 } else { sources };
            if entry.is_empty() {
                self.prefix_count -= 1;
                if entry.flags & flag::VACANT == 0 {
                    entry.flags |= flag::VACANT;
                    self.vacant.push_back(slot);
                }
            }
        }
        let used = removed.iter().any(|p| p.multipath);
        let local = removed.iter().any(|p| p.source == LOCAL);
        let change = Change { best: old_best, used, other: true, local };
        // A path that lost before MED has no influence on the decision.
        let missed = removed.iter().any(|p| p.tied);
        let stays = self
            .entries
            .get(slot)
            .is_some_and(|e| e.best().is_some_and(|p| is_usable(shared, e.prefix(), &p)));
        if missed || !stays {
            self.redecide(shared, slot, Scope::Tied, change);
        } else {
            self.settle(shared, slot, change);
        }
        for path in removed {
            shared.attrs.release(path.attr, &mut shared.next_hops);
        }
        true
    }

    /// Decides again after a change of data that the paths refer to.
    pub(crate) fn review(&mut self, shared: &mut Shared, slot: u32) {
        let Some(old_best) = self.entries.get(slot).map(Entry::best_key) else { return };
        let change = Change { best: old_best, used: false, other: true, local: false };
        self.redecide(shared, slot, Scope::All, change);
    }

    /// Holds back the report to the embedder that an entry lost its best path, as long as another path only
    /// waits for the resolution of its next hop: else the route of a prefix that moves to a new next hop would
    /// be missing in the kernel until that is resolved. Returns true if the report is held back.
    pub(super) fn hold(&mut self, shared: &Shared, slot: u32) -> bool {
        let Some(entry) = self.entries.get(slot) else { return false };
        if !self.paths(entry).any(|path| awaits_next_hop(shared, A::FAMILY, &path)) {
            return false;
        }
        if let Some(entry) = self.entries.get_mut(slot)
            && !entry.is_held()
        {
            entry.flags |= flag::HELD;
            self.held.push(slot);
        }
        true
    }

    /// Decides again on entries whose loss of the best path is not reported yet, after a next hop was
    /// resolved.
    pub(crate) fn review_held(&mut self, shared: &mut Shared) {
        for slot in std::mem::take(&mut self.held) {
            if self.entries.get(slot).is_some_and(Entry::is_held) {
                self.review(shared, slot);
            }
            // Another path still waits.
            if self.entries.get(slot).is_some_and(Entry::is_held) {
                self.held.push(slot);
            }
        }
    }

    /// Stores new import results where `import` returns one, and decides again. A path takes a reference to
    /// its new attribute set.
    pub(crate) fn revise(
        &mut self,
        shared: &mut Shared,
        slot: u32,
        mut import: impl FnMut(&mut Shared, Cidr, &Path) -> Option<ImportOutcome>,
    ) {
        let Some(entry) = self.entries.get(slot) else { return };
        let (old_best, prefix) = (entry.best_key(), entry.cidr());
        let all: SmallVec<[Path; 4]> = self.paths(entry).collect();
        let mut dropped: SmallVec<[u32; 4]> = SmallVec::new();
        let (mut touched, mut other) = (false, false);
        for path in all {
            let Some(ImportOutcome { attr, reason }) = import(shared, prefix, &path) else { continue };
            if (attr, reason) == (path.attr, path.reason) {
                continue;
            }
            let Some(entry) = self.entries.get(slot) else { continue };
            let Some((at, path)) = self.seek(entry, |p| p.is_same(&path)) else { continue };
            self.put(slot, at, Path { attr, reason, ..path });
            other = true;
            count(shared, A::FAMILY, path, false);
            count(shared, A::FAMILY, Path { reason, ..path }, true);
            if attr != path.attr {
                touched |= path.multipath;
                shared.attrs.retain(attr);
                dropped.push(path.attr);
                if let Some(hop) = shared.attrs.set(attr).map(|a| a.hop) {
                    shared.next_hops.wait(hop, A::FAMILY, slot);
                }
            }
        }
        let change = Change { best: old_best, used: touched, other, local: false };
        self.redecide(shared, slot, Scope::All, change);
        for attr in dropped {
            shared.attrs.release(attr, &mut shared.next_hops);
        }
    }

    /// Returns the number of prefixes with paths.
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
            + (self.dirty.capacity() + self.vacant.capacity()) * 4
    }

    /// Iterates over all slots in use.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Entry<A>)> {
        self.entries.iter().filter(|(_, e)| e.is_live())
    }
}
