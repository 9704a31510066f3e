//! The decision process applied to an entry of the table.

use smallvec::SmallVec;

use super::Shared;
use super::decision::{self, Candidate, Rank};
use super::entry::{BestKey, Entry, Key, NO_PATH, Path, flag};
use super::hops::NO_HOP;
use super::import::ACCEPTED;
use super::intern::AttrSet;
use super::source::{LOCAL, Source};
use super::table::Table;
use crate::attr::Attributes;

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
        let mut all: SmallVec<[Path; 16]> = self.paths(entry).collect();
        // Most paths lose before their MED is looked at. They are not even looked at whole.
        let ranks: SmallVec<[Option<Rank>; 16]> = all.iter().map(|p| rank(shared, A::FAMILY, p)).collect();
        let least = ranks.iter().flatten().min().copied();
        let tied: SmallVec<[usize; 4]> = ranks
            .iter()
            .enumerate()
            .filter(|(_, r)| least.is_some() && **r == least)
            .map(|(at, _)| at)
            .collect();
        let mut used: SmallVec<[bool; 16]> = SmallVec::from_elem(false, all.len());
        let mut best = tied.first().copied();
        let mut mark = |at: usize, multipath: bool| {
            if let Some(used) = used.get_mut(at) {
                *used = multipath;
            }
        };
        if let [only] = *tied {
            mark(only, true);
        } else {
            let candidates: SmallVec<[Candidate; 4]> =
                tied.iter().filter_map(|at| candidate(shared, A::FAMILY, all.get(*at)?)).collect();
            let lost = decision::decide(&candidates);
            best = tied.iter().zip(&lost).find(|(_, lost)| lost.is_none()).map(|(at, _)| *at);
            // A local best path is used alone: there is no next hop to share with.
            let local = best.and_then(|b| all.get(b)).is_some_and(|p| p.source == LOCAL);
            for (at, lost) in tied.iter().zip(&lost) {
                mark(*at, if local { lost.is_none() } else { decision::is_multipath(*lost) });
            }
        }
        let changed = all.iter().zip(&used).any(|(path, used)| path.multipath != *used);
        if !changed && best.is_none_or(|at| at == 0) {
            if let Some(entry) = self.entries.get_mut(slot) {
                entry.flags =
                    if best.is_some() { entry.flags | flag::BEST } else { entry.flags & !flag::BEST };
            }
            return false;
        }
        for (path, used) in all.iter_mut().zip(used) {
            path.multipath = used;
        }
        if let Some(best) = best {
            all.swap(0, best);
        }
        // The chain of slots stays, their contents move.
        let mut at = NO_PATH;
        for (n, path) in all.iter().enumerate() {
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

/// What a path is judged by.
struct Usable<'s> {
    set: &'s AttrSet,
    attributes: &'s Attributes,
    metric: u32,
    local: bool,
    source: Option<&'s Source>,
}

#[inline]
fn usable<'s>(shared: &'s Shared, family: crate::Family, path: &Path) -> Option<Usable<'s>> {
    let set = shared.attrs.set(path.attr)?;
    let attributes = set.attributes()?;
    let metric = shared.hops.metric(set.hop)?;
    let local = path.source == LOCAL && set.hop == NO_HOP;
    let source = shared.sources.get(path.source);
    let usable = local
        || (path.reason == ACCEPTED && source.is_some_and(|s| s.family(family).is_valid(path.generation)));
    usable.then_some(Usable { set, attributes, metric, local, source })
}

#[inline]
fn rank(shared: &Shared, family: crate::Family, path: &Path) -> Option<Rank> {
    let Usable { set, attributes, local, .. } = usable(shared, family, path)?;
    Some(decision::rank(local, set.stale && !local, attributes.local_pref, set.path_len, attributes.origin))
}

/// A path as the decision process sees it; `None` when it is unusable.
pub(crate) fn candidate(shared: &Shared, family: crate::Family, path: &Path) -> Option<Candidate> {
    let Usable { set, attributes, metric, local, source } = usable(shared, family, path)?;
    let router_id = attributes.originator_id().or(source.map(|s| s.router_id)).unwrap_or(shared.router_id);
    Some(Candidate {
        local,
        stale: set.stale && !local,
        local_pref: attributes.local_pref.unwrap_or(decision::LOCAL_PREF),
        path_len: set.path_len,
        origin: attributes.origin as u8,
        med: attributes.med.unwrap_or(0),
        neighbour: set.neighbour,
        ebgp: source.is_some_and(Source::ebgp),
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
