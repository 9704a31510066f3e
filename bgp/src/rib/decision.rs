//! The decision process (RFC 4271 9.1, RFC 4456 9) by elimination: each step keeps the best of the remaining
//! paths.
//!
//! Elimination makes MED safe. Pairwise comparison with MED compared only within a neighbouring AS is not
//! transitive (a beats b, b beats c, c beats a). Elimination per neighbouring AS among the remaining paths,
//! as RFC 4271 9.1.2.2 c specifies it, makes the outcome depend on the set of paths only, not on the order of
//! arrival.

use smallvec::SmallVec;
use tortie_net::ScopedAddr;

use super::source::LOCAL;
use crate::api::Step;
use crate::attr::Origin;

/// A usable path, as input of the decision process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// True for a local route without LOCAL_PREF, which is preferred to every learned path.
    pub(crate) local: bool,
    /// True if the path has LLGR_STALE (RFC 9494).
    pub(crate) stale: bool,
    pub(crate) local_pref: u32,
    pub(crate) path_len: u16,
    pub(crate) origin: u8,
    pub(crate) med: u32,
    /// Neighbouring AS, within which MEDs are compared.
    pub(crate) neighbour: u32,
    pub(crate) ebgp: bool,
    pub(crate) metric: u32,
    /// ORIGINATOR_ID, else the BGP identifier of the peer.
    pub(crate) router_id: u32,
    pub(crate) clusters: u16,
    pub(crate) address: ScopedAddr,
    /// Source number: two peers may share an address (several ports).
    pub(crate) source: u32,
    /// 0 for the running session, else the age of the earlier session that the path was received in (RFC
    /// 4724).
    pub(crate) earlier: u8,
    /// Path identifier: paths of one session may differ in it alone (RFC 7911), so it breaks all remaining
    /// ties.
    pub(crate) path_id: u32,
    /// Attribute set; the decision does not use it.
    pub(crate) attr: u32,
}

/// LOCAL_PREF of routes without the attribute.
pub(crate) const LOCAL_PREF: u32 = 100;

/// The steps before MED as one number; the lowest is best. As each step sees only the remaining paths, a path
/// without the lowest rank can be left out of [`decide`] from the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Rank(u64);

impl Rank {
    pub(crate) fn new(
        local: bool,
        stale: bool,
        local_pref: Option<u32>,
        path_len: u16,
        origin: Origin,
    ) -> Self {
        let disfavour = u32::MAX - local_pref.unwrap_or(LOCAL_PREF);
        Self(
            u64::from(!local) << 51
                | u64::from(stale) << 50
                | u64::from(disfavour) << 18
                | u64::from(path_len) << 2
                | origin as u64,
        )
    }

    pub(crate) fn stale(self) -> bool {
        self.0 >> 50 & 1 != 0
    }

    #[expect(clippy::cast_possible_truncation, reason = "these 16 bits")]
    pub(crate) fn path_len(self) -> u16 {
        (self.0 >> 2) as u16
    }
}

/// Losing step of each candidate; `None` for the best path. Candidates that lost at [`Step::RouterId`] or
/// later tie with it for ECMP.
pub(crate) type Outcome = SmallVec<[Option<Step>; 12]>;

/// Returns true if a path with this losing step shares load with the best path (ECMP).
pub(crate) fn is_multipath(lost: Option<Step>) -> bool {
    lost.is_none_or(|step| step >= Step::RouterId)
}

/// Decides among all usable paths of a prefix. Exactly one has no losing step, unless there are no
/// candidates.
pub(crate) fn decide(candidates: &[Candidate]) -> Outcome {
    let mut round =
        Round { candidates, lost: SmallVec::from_elem(None, candidates.len()), left: candidates.len() };
    round.keep(Step::Local, |c| !c.local);
    round.keep(Step::LongLivedStale, |c| c.stale);
    round.keep(Step::LocalPref, |c| std::cmp::Reverse(c.local_pref));
    round.keep(Step::AsPathLength, |c| c.path_len);
    round.keep(Step::Origin, |c| c.origin);
    round.med();
    round.keep(Step::Local, |c| c.source != LOCAL);
    round.keep(Step::Ebgp, |c| !c.ebgp);
    round.keep(Step::IgpMetric, |c| c.metric);
    round.keep(Step::Stale, |c| c.earlier > 0);
    round.keep(Step::RouterId, |c| c.router_id);
    round.keep(Step::ClusterListLength, |c| c.clusters);
    round.keep(Step::PeerAddress, |c| (c.address, c.source));
    round.keep(Step::PathId, |c| (c.path_id, c.earlier));
    round.lost
}

/// Returns the candidate at this position, from 0: each position is decided among the candidates that all
/// earlier positions leave, because MED defines no total order. Candidates of one source with equal
/// attributes share a position, because they would be announced twice.
pub(crate) fn nth(mut candidates: SmallVec<[Candidate; 4]>, place: u8) -> Option<Candidate> {
    for left in (0..=place).rev() {
        let lost = decide(&candidates);
        let won = candidates.get(lost.iter().position(Option::is_none)?).copied()?;
        if left == 0 {
            return Some(won);
        }
        candidates.retain(|c| (c.source, c.attr) != (won.source, won.attr));
    }
    None
}

struct Round<'c> {
    candidates: &'c [Candidate],
    lost: Outcome,
    left: usize,
}

impl Round<'_> {
    fn remaining(&self) -> impl Iterator<Item = &Candidate> {
        self.candidates.iter().zip(&self.lost).filter(|(_, lost)| lost.is_none()).map(|(c, _)| c)
    }

    /// Eliminates all candidates but those with the lowest key.
    fn keep<K: Ord>(&mut self, step: Step, key: impl Fn(&Candidate) -> K) {
        if self.left < 2 {
            return;
        }
        let Some(least) = self.remaining().map(&key).min() else { return };
        self.drop(step, |c| key(c) > least);
    }

    fn drop(&mut self, step: Step, loses: impl Fn(&Candidate) -> bool) {
        for (candidate, lost) in self.candidates.iter().zip(&mut self.lost) {
            if lost.is_none() && loses(candidate) {
                *lost = Some(step);
                self.left -= 1;
            }
        }
    }

    /// Eliminates candidates if a remaining one from the same neighbouring AS has a lower MED.
    fn med(&mut self) {
        if self.left < 2 {
            return;
        }
        let first = self.remaining().next().map(|c| c.med);
        if self.remaining().all(|c| Some(c.med) == first) {
            return;
        }
        let mut least: SmallVec<[(u32, u32); 8]> = self.remaining().map(|c| (c.neighbour, c.med)).collect();
        least.sort_unstable();
        least.dedup_by_key(|(neighbour, _)| *neighbour);
        self.drop(Step::Med, |c| {
            let at = least.binary_search_by_key(&c.neighbour, |(neighbour, _)| *neighbour);
            at.ok().and_then(|i| least.get(i)).is_some_and(|(_, med)| c.med > *med)
        });
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    fn candidate() -> impl Strategy<Value = Candidate> {
        // Small ranges, so that ties are common at every step.
        let first = (
            prop::bool::weighted(0.1),
            prop::bool::weighted(0.3),
            0u32..2,
            0u16..2,
            0u8..2,
            0u32..3,
            0u32..3,
        );
        let second = (any::<bool>(), 0u32..2, 0u32..3, 0u16..2, 0u32..3);
        (first, second).prop_map(
            |(
                (local, stale, local_pref, path_len, origin, med, neighbour),
                (ebgp, metric, router_id, clusters, address),
            )| {
                Candidate {
                    local,
                    stale,
                    local_pref,
                    path_len,
                    origin,
                    med,
                    neighbour,
                    ebgp,
                    metric,
                    router_id,
                    clusters,
                    address: Ipv4Addr::from(address).into(),
                    source: 0,
                    earlier: 0,
                    path_id: 0,
                    attr: 0,
                }
            },
        )
    }

    fn candidates() -> impl Strategy<Value = Vec<Candidate>> {
        prop::collection::vec(candidate(), 1..8).prop_map(|mut all| {
            for (n, c) in (0..).zip(&mut all) {
                // Some candidates share a source and differ only in their numbers.
                (c.source, c.earlier, c.path_id, c.attr) = (n / 3, [0, 1, 2][n as usize % 3], n / 2, n);
            }
            all
        })
    }

    /// Returns the numbers of the candidates in use, and those of all candidates in order of position.
    fn used_and_order(all: &[Candidate]) -> (std::collections::BTreeSet<u32>, Vec<u32>) {
        let used = all.iter().zip(decide(all)).filter(|(_, lost)| is_multipath(*lost)).map(|(c, _)| c.attr);
        let places = u8::try_from(all.len()).unwrap();
        let order = (0..places).map(|place| nth(all.into(), place).unwrap().attr);
        (used.collect(), order.collect())
    }

    fn best(all: &[Candidate]) -> Candidate {
        let outcome = decide(all);
        let mut winners = all.iter().zip(&outcome).filter(|(_, lost)| lost.is_none());
        let winner = *winners.next().unwrap().0;
        assert!(winners.next().is_none());
        winner
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(3000))]

        /// There is exactly one winner, independent of the order of arrival.
        #[test]
        fn order_of_arrival_does_not_matter(
            (all, other) in candidates().prop_flat_map(|all| (Just(all.clone()), Just(all).prop_shuffle())),
        ) {
            prop_assert_eq!(best(&all), best(&other));
            prop_assert_eq!(used_and_order(&all), used_and_order(&other));
        }

        /// Each candidate has exactly one position, the best path the first.
        #[test]
        fn the_order_names_each_once(all in candidates()) {
            let (used, mut order) = used_and_order(&all);
            prop_assert_eq!(order[0], best(&all).attr);
            prop_assert!(used.contains(&order[0]));
            prop_assert_eq!(nth(all.as_slice().into(), u8::try_from(all.len()).unwrap()), None);
            order.sort_unstable();
            prop_assert_eq!(order, (0..u32::try_from(all.len()).unwrap()).collect::<Vec<_>>());
        }

        /// If all MEDs are comparable, pairwise comparison is a strict total order, and the best path comes
        /// first in it.
        #[test]
        fn within_a_neighbouring_as_the_order_is_total(all in candidates()) {
            let all: Vec<Candidate> = all.iter().map(|c| Candidate { neighbour: 7, ..*c }).collect();
            let beats = |a: &Candidate, b: &Candidate| best(&[*a, *b]) == *a;
            for a in &all {
                for b in all.iter().filter(|b| *b != a) {
                    prop_assert!(beats(a, b) != beats(b, a));
                    for c in all.iter().filter(|c| *c != a && *c != b) {
                        prop_assert!(!(beats(a, b) && beats(b, c)) || beats(a, c));
                    }
                }
            }
            let winner = best(&all);
            prop_assert!(all.iter().all(|c| *c == winner || beats(&winner, c)));
        }

        /// Removal of a loser changes nothing, unless its MED had eliminated others of its neighbouring AS
        /// (RFC 4271 9.1.2.2 c).
        #[test]
        fn a_loser_that_goes_changes_nothing(all in candidates()) {
            let (lost, winner) = (decide(&all), best(&all));
            for (at, gone) in all.iter().enumerate().filter(|(at, _)| lost[*at].is_some()) {
                let mates = || all.iter().zip(&lost).filter(|(c, _)| c.neighbour == gone.neighbour && *c != gone);
                let keeps_out = lost[at] > Some(Step::Med)
                    && mates().any(|(_, lost)| *lost == Some(Step::Med))
                    && !mates().any(|(c, lost)| c.med == gone.med && lost.is_none_or(|l| l > Step::Med));
                if !keeps_out {
                    let rest: Vec<Candidate> = all.iter().filter(|c| *c != gone).copied().collect();
                    prop_assert_eq!(best(&rest), winner);
                }
            }
        }

        /// A path that loses by its rank loses before MED, and does not affect the decision among the others.
        #[test]
        fn ranks_are_the_steps_before_med(all in candidates()) {
            let number = |c: &Candidate| {
                let origin = Origin::from_code(c.origin).unwrap();
                let rank = Rank::new(c.local, c.stale, Some(c.local_pref), c.path_len, origin);
                assert_eq!((rank.stale(), rank.path_len()), (c.stale, c.path_len));
                rank
            };
            let least = all.iter().map(number).min().unwrap();
            let whole = decide(&all);
            let left: Vec<(Candidate, Option<Step>)> =
                all.iter().copied().zip(whole.iter().copied()).filter(|(c, _)| number(c) == least).collect();
            for (c, lost) in all.iter().zip(&whole) {
                prop_assert_eq!(number(c) == least, lost.is_none_or(|step| step >= Step::Med));
            }
            let few: Vec<Candidate> = left.iter().map(|(c, _)| *c).collect();
            prop_assert_eq!(decide(&few).to_vec(), left.iter().map(|(_, lost)| *lost).collect::<Vec<_>>());
        }

        /// Without MED, removal of losers changes nothing: the remaining steps are a total order.
        #[test]
        fn without_med_the_winner_of_all_beats_every_subset(all in candidates(), mask in any::<u8>()) {
            let flat: Vec<Candidate> = all.iter().map(|c| Candidate { med: 0, ..*c }).collect();
            let winner = best(&flat);
            let subset: Vec<Candidate> = flat
                .iter()
                .enumerate()
                .filter(|(i, c)| mask & 1 << i != 0 || **c == winner)
                .map(|(_, c)| *c)
                .collect();
            prop_assert_eq!(best(&subset), winner);
        }

        /// A path that shares load with the best one equals it in all steps before the BGP identifier.
        #[test]
        fn multipath_ties_up_to_the_router_id(all in candidates()) {
            let winner = best(&all);
            for (c, lost) in all.iter().zip(decide(&all)) {
                if is_multipath(lost) {
                    let key = |c: &Candidate| {
                        (c.local, c.local_pref, c.path_len, c.origin, c.ebgp, c.metric, c.earlier > 0)
                    };
                    prop_assert_eq!(key(c), key(&winner));
                }
            }
        }
    }

    fn plain() -> Candidate {
        Candidate {
            local: false,
            stale: false,
            local_pref: 100,
            path_len: 2,
            origin: 0,
            med: 0,
            neighbour: 1,
            ebgp: true,
            metric: 0,
            router_id: 1,
            clusters: 0,
            address: Ipv4Addr::LOCALHOST.into(),
            source: 0,
            earlier: 0,
            path_id: 0,
            attr: 0,
        }
    }

    /// The cycle of RFC 3345: if MED is compared pairwise, no path beats both others.
    #[test]
    fn med_compares_within_one_neighbouring_as_only() {
        let a =
            Candidate { neighbour: 10, med: 10, ebgp: false, metric: 5, router_id: 1, source: 1, ..plain() };
        let b =
            Candidate { neighbour: 20, med: 5, ebgp: false, metric: 4, router_id: 2, source: 2, ..plain() };
        let c =
            Candidate { neighbour: 10, med: 0, ebgp: false, metric: 6, router_id: 3, source: 3, ..plain() };
        // a loses to c by MED, then b has the lower metric.
        let lost = decide(&[a, b, c]);
        assert_eq!(lost.to_vec(), [Some(Step::Med), None, Some(Step::IgpMetric)]);
        assert_eq!(best(&[a, b]), b);
        assert_eq!(best(&[a, c]), c);
    }

    #[test]
    fn each_step_decides_in_order() {
        let base = plain();
        let worse = [
            (Candidate { stale: true, local_pref: 999, ..base }, Step::LongLivedStale),
            (Candidate { local_pref: 99, ..base }, Step::LocalPref),
            (Candidate { path_len: 3, ..base }, Step::AsPathLength),
            (Candidate { origin: 1, ..base }, Step::Origin),
            (Candidate { med: 1, ..base }, Step::Med),
            (Candidate { ebgp: false, ..base }, Step::Ebgp),
            (Candidate { metric: 1, ..base }, Step::IgpMetric),
            (Candidate { router_id: 2, ..base }, Step::RouterId),
            (Candidate { clusters: 1, ..base }, Step::ClusterListLength),
            (Candidate { address: "127.0.0.2".parse().unwrap(), ..base }, Step::PeerAddress),
            (Candidate { earlier: 1, router_id: 0, ..base }, Step::Stale),
            (Candidate { path_id: 1, ..base }, Step::PathId),
        ];
        for (other, step) in worse {
            assert_eq!(decide(&[base, other]).to_vec(), [None, Some(step)]);
            assert_eq!(decide(&[other, base]).to_vec(), [Some(step), None]);
        }
        let local = Candidate { local: true, local_pref: 0, path_len: 9, ..base };
        assert_eq!(decide(&[base, local]).to_vec(), [Some(Step::Local), None]);
    }

    /// Paths of equal length share load whatever ASes they contain; a longer path does not.
    #[test]
    fn multipath_looks_at_the_length_of_a_path_only() {
        let base = plain();
        let other = Candidate { neighbour: 2, med: 9, router_id: 2, source: 1, ..base };
        let longer = Candidate { path_len: 3, ..other };
        assert!(decide(&[base, other]).into_iter().all(is_multipath));
        assert_eq!(decide(&[base, longer]).into_iter().map(is_multipath).collect::<Vec<_>>(), [true, false]);
    }

    #[test]
    fn equal_paths_of_one_source_take_one_place() {
        let base = plain();
        let all = [base, Candidate { path_id: 1, ..base }, Candidate { path_id: 2, attr: 1, ..base }];
        let order: Vec<_> = (0..3).map(|n| nth(all.as_slice().into(), n).map(|c| c.path_id)).collect();
        assert_eq!(order, [Some(0), Some(2), None]);
    }
}
