//! Best path selection: applies the decision process to an entry of the table.

use std::cmp::Ordering;

use smallvec::SmallVec;
use tortie_net::Cidr;

use super::Shared;
use super::attr_table::AttrSet;
use super::decision::{self, Candidate, Rank};
use super::entry::{BestKey, Entry, Key, NO_PATH, Path, flag};
use super::import::ACCEPTED;
use super::next_hops::NO_HOP;
use super::source::{LOCAL, Source};
use super::table::Table;
use crate::api::Multipath;
use crate::api::Step;
use crate::types::Family;

/// A change of the paths of an entry.
#[derive(Debug, Clone, Copy)]
pub(super) struct Change {
    /// Best path before the change.
    pub(super) best: BestKey,
    /// True if a path in use was changed or removed.
    pub(super) used: bool,
    /// True if any path may have been added, changed or removed.
    pub(super) other: bool,
    /// True if the local path was added, changed or removed: it may be announced while another one is best.
    pub(super) local: bool,
}

/// Paths that a new decision has to consider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    /// All paths.
    All,
    /// Paths marked as tied, as long as one of them is usable. All others lost before MED, and a path that
    /// lost there does not influence the rest.
    Tied,
}

/// Effect of a new path on the decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// No effect.
    None,
    /// The new path is the only best path, as the previous one was.
    Takes,
    /// The new path may be used and has to be marked as tied.
    Decide(Scope),
}

impl<A: Key> Table<A> {
    /// Returns the effect of a path that is added or replaces an untied one. In most cases the rank of the
    /// best path decides.
    #[inline]
    pub(super) fn effect(&self, shared: &Shared, entry: &Entry<A>, path: &Path) -> Effect {
        let Some(best) = entry.best().and_then(|best| rank(shared, entry.prefix(), &best)) else {
            return Effect::Decide(Scope::All);
        };
        match rank(shared, entry.prefix(), path) {
            Some(rank) if rank < best && !entry.has_ties() => Effect::Takes,
            Some(rank) if rank <= best => Effect::Decide(Scope::Tied),
            _ => Effect::None,
        }
    }

    /// Shortcut for a path whose rank is at least that of the tied paths: decides by comparison with the best
    /// path alone. Returns the two, the better one first. `None`: a full decision is required.
    pub(super) fn join(&self, shared: &Shared, entry: &Entry<A>, path: &Path) -> Option<(Path, Path)> {
        let best = entry.first();
        if !entry.has_ties() {
            return compare_pair(shared, entry.prefix(), &best, path);
        }
        if shared.multipath != Multipath::default() {
            return None;
        }
        let new = shared.attrs.set(path.attr)?;
        if shared.attrs.set(best.attr)?.rank != new.rank {
            return None;
        }
        let mut beaten = false;
        for other in self.paths(entry).filter(|other| other.tied) {
            let set = shared.attrs.set(other.attr)?;
            if set.neighbour == new.neighbour {
                if !is_usable(shared, entry.prefix(), &other) {
                    return None;
                }
                match set.med().cmp(&new.med()) {
                    Ordering::Less => beaten = true,
                    Ordering::Equal => {}
                    Ordering::Greater => return None,
                }
            }
        }
        if beaten {
            return Some((best, Path { multipath: false, tied: true, ..*path }));
        }
        let decided = compare_pair(shared, entry.prefix(), &best, path)?;
        // A path that beats the best one, rather than tying with it, beats all paths that shared load with
        // it.
        (decided.0.is_same(&best) || decided.1.multipath).then_some(decided)
    }

    /// Runs the decision process on one entry.
    pub(super) fn redecide(&mut self, shared: &mut Shared, slot: u32, scope: Scope, change: Change) {
        let Some(entry) = self.entries.get(slot) else { return };
        let mut used = change.used;
        if entry.first.next() == NO_PATH {
            // Most prefixes have one path.
            let first = entry.first();
            let usable = !entry.is_empty() && is_usable(shared, entry.prefix(), &first);
            used |= first.multipath != usable;
            if let Some(entry) = self.entries.get_mut(slot) {
                entry.first = Path { multipath: usable, tied: usable, ..first }.into();
                entry.set_best(usable, false);
            }
        } else {
            used |= self.select_best(shared, slot, scope);
        }
        self.settle(shared, slot, Change { used, ..change });
    }

    /// Completes a decision: updates counters, logs the change and queues it.
    pub(super) fn settle(&mut self, shared: &mut Shared, slot: u32, change: Change) {
        let (new, held) =
            self.entries.get(slot).map_or((None, false), |entry| (entry.best_key(), entry.is_held()));
        let old = change.best;
        if new != old {
            let family = A::FAMILY;
            if let Some(source) = old.and_then(|(_, s)| shared.sources.get_mut(s)) {
                let best = &mut source.family_mut(family).best;
                *best = best.saturating_sub(1);
            }
            if let Some(source) = new.and_then(|(_, s)| shared.sources.get_mut(s)) {
                source.family_mut(family).best += 1;
            }
        }
        if new != old || change.local || (change.other && self.planes > 0) {
            self.touch(slot);
        }
        if new.is_none() && (old.is_some() || held) && self.hold(shared, slot) {
            return;
        }
        if held && let Some(entry) = self.entries.get_mut(slot) {
            entry.flags &= !flag::HELD;
        }
        if change.used || new != old || held {
            self.mark_dirty(slot);
        }
    }

    /// Decides among several paths, moves the best one to the front and marks the paths in use. Returns true
    /// if the set of paths in use changed.
    fn select_best(&mut self, shared: &Shared, slot: u32, scope: Scope) -> bool {
        let Some(entry) = self.entries.get(slot) else { return false };
        let mut all: SmallVec<[Path; 16]> = SmallVec::new();
        all.extend(self.paths(entry));
        let prefix = entry.prefix();
        // Most paths lose before MED by their rank, without a look at their attributes.
        let mut tied: SmallVec<[usize; 8]> = SmallVec::new();
        let mut least = Rank::default();
        for (at, path) in all.iter().enumerate().filter(|(_, p)| scope == Scope::All || p.tied) {
            match rank(shared, prefix, path) {
                Some(rank) if rank < least || tied.is_empty() => {
                    least = rank;
                    tied.clear();
                    tied.push(at);
                }
                Some(rank) if rank == least => tied.push(at),
                _ => {}
            }
        }
        if tied.is_empty() && scope == Scope::Tied {
            return self.select_best(shared, slot, Scope::All);
        }
        let mut marks: SmallVec<[(bool, bool); 16]> = SmallVec::from_elem((false, false), all.len());
        let mut mark = |at: usize, used: bool| {
            if let Some(mark) = marks.get_mut(at) {
                *mark = (used, true);
            }
        };
        let mut best = tied.first().copied();
        if let [only] = *tied {
            mark(only, true);
        } else {
            let candidates: SmallVec<[Candidate; 4]> =
                tied.iter().filter_map(|at| candidate(shared, prefix, all.get(*at)?)).collect();
            let lost = decision::decide(&candidates);
            best = tied.iter().zip(&lost).find(|(_, lost)| lost.is_none()).map(|(at, _)| *at);
            // A local best path is used alone, as it has no next hop to share load with.
            let local = best.and_then(|b| all.get(b)).is_some_and(|p| p.source == LOCAL);
            let left_out = left_out(shared, &candidates, &lost);
            for (n, (at, lost)) in tied.iter().zip(&lost).enumerate() {
                let used = if local { lost.is_none() } else { decision::is_multipath(*lost) };
                mark(*at, used && !left_out.contains(&n));
            }
        }
        let changed = all.iter().zip(&marks).any(|(path, (used, _))| path.multipath != *used);
        let other_ties = all.iter().zip(&marks).any(|(path, (_, tied))| path.tied != *tied);
        let ties = tied.len() > 1;
        if !changed && !other_ties && best.is_none_or(|at| at == 0) {
            if let Some(entry) = self.entries.get_mut(slot) {
                entry.set_best(best.is_some(), ties);
            }
            return false;
        }
        for (path, mark) in all.iter_mut().zip(marks) {
            (path.multipath, path.tied) = mark;
        }
        if let Some(best) = best {
            all.swap(0, best);
        }
        // The chain of slots stays; only their contents move.
        let mut at = NO_PATH;
        for (n, path) in all.iter().enumerate() {
            if n == 0 {
                let Some(entry) = self.entries.get_mut(slot) else { return changed };
                at = entry.first.next();
                entry.first = Path { next: at, ..*path }.into();
                entry.set_best(best.is_some(), ties);
            } else if let Some(place) = self.paths.get_mut(at) {
                let next = place.next();
                *place = Path { next, ..*path }.into();
                at = next;
            }
        }
        changed
    }
}

/// Returns the usable path at this position in the order of the decision process; see [`decision::nth`].
pub(crate) fn nth<A: Key>(shared: &Shared, table: &Table<A>, entry: &Entry<A>, place: u8) -> Option<Path> {
    if entry.first.next() == NO_PATH && place > 0 {
        return None;
    }
    let all: SmallVec<[(Path, Candidate); 4]> =
        table.paths(entry).filter_map(|p| Some((p, candidate(shared, entry.prefix(), &p)?))).collect();
    let won = decision::nth(all.iter().map(|(_, c)| *c).collect(), place)?;
    all.iter().find(|(_, c)| *c == won).map(|(p, _)| *p)
}

/// Decides between the best path and one of equal rank, ignoring all others. Returns the better one first.
fn compare_pair<P: Prefix>(shared: &Shared, prefix: P, best: &Path, other: &Path) -> Option<(Path, Path)> {
    let candidates = [candidate(shared, prefix, best)?, candidate(shared, prefix, other)?];
    let lost = decision::decide(&candidates);
    let [mut first, mut second] = match lost.first()? {
        None => [*best, *other],
        Some(_) => [*other, *best],
    };
    // Neither path is local: a prefix has one local path at most, and no other path has its rank.
    (first.multipath, first.tied) = (true, true);
    second.multipath = lost.iter().any(|step| step.is_some() && decision::is_multipath(*step))
        && left_out(shared, &candidates, &lost).is_empty();
    second.tied = true;
    Some((first, second))
}

/// Returns the indexes of candidates that tie with the best path but do not share load with it, because of
/// the limit or the AS_PATH condition of [`Multipath`].
fn left_out(shared: &Shared, candidates: &[Candidate], lost: &[Option<Step>]) -> SmallVec<[usize; 4]> {
    let Multipath { max, relax } = shared.multipath;
    let mut out = SmallVec::new();
    if (max, relax) == (None, true) {
        return out;
    }
    let max = max.map_or(usize::MAX, |max| usize::from(max.max(1)));
    let all = candidates.iter().zip(lost).enumerate();
    let mut ties: SmallVec<[_; 8]> = all.filter(|(_, (_, lost))| decision::is_multipath(**lost)).collect();
    ties.sort_unstable_by_key(|(_, (c, lost))| {
        (lost.is_some(), c.router_id, c.clusters, c.address, c.source, c.path_id, c.earlier)
    });
    let set = |c: &Candidate| shared.attrs.set(c.attr).and_then(|set| Some((set.hop, set.attributes()?)));
    let best = ties.first().and_then(|(_, (c, _))| set(c));
    let mut hops: SmallVec<[u32; 8]> = SmallVec::new();
    for (at, (candidate, _)) in ties {
        let (Some((hop, attributes)), Some((_, best))) = (set(candidate), best) else { continue };
        let known = hops.contains(&hop);
        if (!known && hops.len() >= max) || !(relax || attributes.as_path == best.as_path) {
            out.push(at);
        } else if !known {
            hops.push(hop);
        }
    }
    out
}

/// Adds a path to the counters of its peer, or subtracts it.
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

/// The prefix of a path, as key or as [`Cidr`].
pub(crate) trait Prefix: Copy {
    fn family(self) -> Family;
    fn cidr(self) -> Cidr;
}

impl<A: Key> Prefix for (A, u8) {
    #[inline]
    fn family(self) -> Family {
        A::FAMILY
    }

    fn cidr(self) -> Cidr {
        self.0.cidr(self.1)
    }
}

impl Prefix for Cidr {
    fn family(self) -> Family {
        Family::of(self.addr())
    }

    fn cidr(self) -> Cidr {
        self
    }
}

/// Returns true if the decision process may select the path.
#[inline]
pub(super) fn is_usable<P: Prefix>(shared: &Shared, prefix: P, path: &Path) -> bool {
    usable(shared, prefix, path).is_some()
}

/// Returns the attribute set of a usable path: accepted by import, of a valid generation, with a reachable
/// next hop. Local paths are always usable.
#[inline]
fn usable<'s, P: Prefix>(shared: &'s Shared, prefix: P, path: &Path) -> Option<&'s AttrSet> {
    let set = shared.attrs.set(path.attr)?;
    let is = path.source == LOCAL
        || path.reason == ACCEPTED
            && shared.sources.get(path.source)?.family(prefix.family()).is_valid(path.generation)
            && shared.next_hops.metric(set.hop, || prefix.cidr()).is_some();
    is.then_some(set)
}

/// Returns true if only the unknown resolution of its next hop makes a path unusable.
pub(super) fn awaits_next_hop(shared: &Shared, family: Family, path: &Path) -> bool {
    path.source != LOCAL
        && path.reason == ACCEPTED
        && shared.sources.get(path.source).is_some_and(|s| s.family(family).is_valid(path.generation))
        && shared.attrs.set(path.attr).is_some_and(|set| shared.next_hops.state(set.hop).is_none())
}

/// Returns the rank of a path. `None` if it is unusable.
#[inline]
fn rank<P: Prefix>(shared: &Shared, prefix: P, path: &Path) -> Option<Rank> {
    usable(shared, prefix, path).map(|set| set.rank)
}

/// Returns the decision process input of a path. `None` if it is unusable.
pub(crate) fn candidate<P: Prefix>(shared: &Shared, prefix: P, path: &Path) -> Option<Candidate> {
    let set = usable(shared, prefix, path)?;
    let attributes = set.attributes()?;
    let source = shared.sources.get(path.source);
    let router_id = attributes.originator_id().or(source.map(|s| s.router_id)).unwrap_or(shared.router_id);
    Some(Candidate {
        local: set.hop == NO_HOP && attributes.local_pref.is_none(),
        stale: set.rank.stale(),
        local_pref: attributes.local_pref.unwrap_or(decision::LOCAL_PREF),
        path_len: set.rank.path_len(),
        origin: attributes.origin as u8,
        med: set.med(),
        neighbour: set.neighbour,
        ebgp: source.is_some_and(Source::ebgp),
        metric: shared.next_hops.metric(set.hop, || prefix.cidr())?,
        router_id,
        clusters: u16::try_from(attributes.cluster_list().len()).unwrap_or(u16::MAX),
        address: source.map_or(std::net::Ipv4Addr::UNSPECIFIED.into(), |s| s.address),
        source: path.source,
        earlier: source.map_or(0, |s| s.family(prefix.family()).age_if_earlier(path.generation)),
        path_id: path.path_id,
        attr: path.attr,
    })
}
