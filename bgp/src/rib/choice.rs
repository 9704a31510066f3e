//! The decision process applied to an entry of the table.

use smallvec::SmallVec;

use super::Shared;
use super::decision::{self, Candidate};
use super::entry::{BestKey, Entry, Key, NO_PATH, Path, flag};
use super::hops::NO_HOP;
use super::import::ACCEPTED;
use super::source::LOCAL;
use super::table::Table;
use crate::attr::community;

impl<A: Key> Table<A> {
    /// Runs the decision process over one entry. `touched`: a path that was in use changed or went; `other`: any path may
    /// have come, changed or gone.
    pub(super) fn redecide(
        &mut self,
        shared: &mut Shared,
        slot: u32,
        old: BestKey,
        touched: bool,
        other: bool,
    ) {
        let Some(entry) = self.entries.get(slot) else { return };
        let mut changed = touched;
        if entry.first.next == NO_PATH {
            // Most prefixes have one path.
            let usable = !entry.is_empty() && is_usable(shared, A::FAMILY, &entry.first);
            changed |= entry.first.multipath != usable;
            if let Some(entry) = self.entries.get_mut(slot) {
                entry.first.multipath = usable;
                entry.flags = if usable { entry.flags | flag::BEST } else { entry.flags & !flag::BEST };
            }
        } else {
            changed |= self.contest(shared, slot);
        }
        let new = self.entries.get(slot).and_then(Entry::best_key);
        if new != old {
            let family = A::FAMILY;
            if let Some(source) = old.and_then(|(_, s)| shared.sources.get_mut(s)) {
                let best = &mut source.family_mut(family).best;
                *best = best.saturating_sub(1);
            }
            if let Some(source) = new.and_then(|(_, s)| shared.sources.get_mut(s)) {
                source.family_mut(family).best += 1;
            }
            self.touch(slot);
            changed = true;
        } else if other && self.planes > 0 {
            self.touch(slot);
        }
        if changed {
            self.mark_dirty(slot);
        }
    }

    /// Decides among several paths, moves the best one to the front and marks those in use; true when the set of those in
    /// use changed.
    fn contest(&mut self, shared: &Shared, slot: u32) -> bool {
        let Some(entry) = self.entries.get(slot) else { return false };
        let all: SmallVec<[Path; 12]> = self.paths(entry).collect();
        let mut usable: SmallVec<[usize; 12]> = SmallVec::new();
        let mut candidates: SmallVec<[Candidate; 12]> = SmallVec::new();
        for (at, path) in all.iter().enumerate() {
            if let Some(candidate) = candidate(shared, A::FAMILY, path) {
                usable.push(at);
                candidates.push(candidate);
            }
        }
        let lost = decision::decide(&candidates);
        let best = usable.iter().zip(&lost).find(|(_, lost)| lost.is_none()).map(|(at, _)| *at);
        // A local best path is used alone: there is no next hop to share with.
        let local = best.and_then(|b| all.get(b)).is_some_and(|p| p.source == LOCAL);
        let mut changed = false;
        let mut now = all.clone();
        for path in &mut now {
            path.multipath = false;
        }
        for (at, lost) in usable.iter().zip(&lost) {
            if let Some(path) = now.get_mut(*at) {
                path.multipath = if local { lost.is_none() } else { decision::is_multipath(*lost) };
            }
        }
        for (before, after) in all.iter().zip(&now) {
            changed |= before.multipath != after.multipath;
        }
        if let Some(best) = best {
            now.swap(0, best);
        }
        // The chain of slots stays, their contents move.
        let mut at = NO_PATH;
        for (n, path) in now.iter().enumerate() {
            if n == 0 {
                let Some(entry) = self.entries.get_mut(slot) else { return changed };
                at = entry.first.next;
                entry.first = Path { next: at, ..*path };
                entry.flags =
                    if best.is_some() { entry.flags | flag::BEST } else { entry.flags & !flag::BEST };
            } else if let Some(place) = self.paths.get_mut(at) {
                at = place.next;
                *place = Path { next: at, ..*path };
            }
        }
        changed
    }
}

/// The usable path of an entry that comes at this place in the order of the decision process; see [`decision::nth`].
pub(crate) fn nth<A: Key>(shared: &Shared, table: &Table<A>, entry: &Entry<A>, place: u8) -> Option<Path> {
    if entry.first.next == NO_PATH && place > 0 {
        return None;
    }
    let all: SmallVec<[(Path, Candidate); 4]> =
        table.paths(entry).filter_map(|p| Some((p, candidate(shared, A::FAMILY, &p)?))).collect();
    let won = decision::nth(all.iter().map(|(_, c)| *c).collect(), place)?;
    all.iter().find(|(_, c)| *c == won).map(|(p, _)| *p)
}

/// Counts a path for its peer, or no longer.
pub(super) fn count(shared: &mut Shared, family: crate::Family, path: Path, add: bool) {
    let Some(source) = shared.sources.get_mut(path.source) else { return };
    let Some(counts) = source.family_mut(family).counts(path.generation) else { return };
    let filtered = u32::from(path.reason != ACCEPTED);
    if add {
        counts.received += 1;
        counts.filtered += filtered;
    } else {
        counts.received = counts.received.saturating_sub(1);
        counts.filtered = counts.filtered.saturating_sub(filtered);
    }
}

/// Whether a path can be chosen.
#[inline]
fn is_usable(shared: &Shared, family: crate::Family, path: &Path) -> bool {
    if path.source == LOCAL {
        return true;
    }
    path.reason == ACCEPTED
        && shared.sources.get(path.source).is_some_and(|s| s.family(family).is_valid(path.generation))
        && shared.attrs.set(path.attr).is_some_and(|a| shared.hops.metric(a.hop).is_some())
}

/// A path as the decision process sees it; `None` when it is unusable.
pub(crate) fn candidate(shared: &Shared, family: crate::Family, path: &Path) -> Option<Candidate> {
    let set = shared.attrs.set(path.attr)?;
    let attributes = set.attributes()?;
    let metric = shared.hops.metric(set.hop)?;
    let local = path.source == LOCAL && set.hop == NO_HOP;
    let source = shared.sources.get(path.source);
    let usable = local
        || (path.reason == ACCEPTED && source.is_some_and(|s| s.family(family).is_valid(path.generation)));
    if !usable {
        return None;
    }
    let router_id = attributes.originator_id().or(source.map(|s| s.router_id)).unwrap_or(shared.router_id);
    Some(Candidate {
        local,
        stale: !local && attributes.has_community(community::LLGR_STALE),
        local_pref: attributes.local_pref.unwrap_or(100),
        path_len: set.path_len,
        origin: attributes.origin as u8,
        med: attributes.med.unwrap_or(0),
        neighbour: set.neighbour,
        ebgp: source.is_some_and(super::source::Source::ebgp),
        metric,
        router_id,
        clusters: u16::try_from(attributes.cluster_list().len()).unwrap_or(u16::MAX),
        address: source.map_or(std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), |s| s.address),
        source: path.source,
        earlier: source.map_or(0, |s| s.family(family).age_if_earlier(path.generation)),
        path_id: path.path_id,
        attr: path.attr,
    })
}
