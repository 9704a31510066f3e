//! Incremental decision of an entry, compared with a decision from all of its paths at once.

use std::net::Ipv4Addr;

use proptest::prelude::*;
use smallvec::SmallVec;
use tortie_net::{Cidr, HashKey, ScopedAddr};

use super::Shared;
use super::best_path::{self, candidate};
use super::decision::{decide, is_multipath};
use super::import::ACCEPTED;
use super::source::{Keep, LOCAL, Source, SourceFamily};
use super::table::Table;
use crate::api::{NextHopState, PeerId, PolicyHandle};
use crate::attr::{AsPath, Attributes};
use crate::types::Family;

const SOURCES: u32 = 20;
const PREFIX: (u32, u8) = (0x0a00_0000, 8);

#[derive(Debug, Clone)]
enum Op {
    /// Source, path identifier, neighbouring AS, AS_PATH length, LOCAL_PREF, MED, next hop, rejected by
    /// import.
    Announce(u32, u32, u32, usize, u32, u32, u32, bool),
    Withdraw(u32, u32),
    Local(bool),
    /// The session ends; the next one may use path identifiers. Remaining paths are removed later or kept as
    /// stale.
    End(u32, bool, Keep),
    /// End-of-RIB: stale paths are removed.
    EndOfRib(u32),
    Purge,
    /// Next hop and its metric; `None`: unreachable.
    NextHopEntry(u32, Option<u32>),
    /// The same for routes to the prefix only.
    NextHopWithin(u32, Option<u32>),
}

fn op() -> impl Strategy<Value = Op> {
    // Most operations concern a few sources, so that their paths interact.
    let source = prop_oneof![3 => 0..2u32, 1 => 0..SOURCES].boxed();
    prop_oneof![
        12 => (source.clone(), 0..3u32, 1..3u32, 1..4usize, 0..2u32, 0..3u32, 0..3u32, prop::bool::weighted(0.1))
            .prop_map(|(s, id, n, len, pref, med, hop, no)| Op::Announce(s, id, n, len, pref, med, hop, no)),
        6 => (source.clone(), 0..3u32).prop_map(|(s, id)| Op::Withdraw(s, id)),
        1 => any::<bool>().prop_map(Op::Local),
        1 => (source.clone(), any::<bool>(), prop_oneof![Just(Keep::Nothing), Just(Keep::Session), Just(Keep::All)])
            .prop_map(|(s, add_path, keep)| Op::End(s, add_path, keep)),
        1 => source.clone().prop_map(Op::EndOfRib),
        1 => Just(Op::Purge),
        1 => (0..3u32, prop::option::of(0..2u32)).prop_map(|(hop, metric)| Op::NextHopEntry(hop, metric)),
        1 => (0..3u32, prop::option::of(0..2u32)).prop_map(|(hop, metric)| Op::NextHopWithin(hop, metric)),
    ]
}

fn state(metric: Option<u32>) -> NextHopState {
    match metric {
        Some(metric) => NextHopState::Reachable { metric, on_link: true },
        None => NextHopState::Unreachable,
    }
}

fn hop(n: u32) -> ScopedAddr {
    Ipv4Addr::from(0xc000_0200 + n).into()
}

/// Sources with an odd number use add-path at first. Some share a bit in `Entry::sources`,
/// some are eBGP.
fn source(n: u32) -> Source {
    let mut families = [SourceFamily::default(); 2];
    families[0].add_path = n % 2 == 1;
    Source {
        id: PeerId(n),
        name: "s".into(),
        address: Ipv4Addr::from(n / 2).into(),
        asn: if n.is_multiple_of(3) { 64512 } else { 65000 },
        local_asn: 64512,
        class: 0,
        client: None,
        reflection: 0,
        allow_own_as: 0,
        role: None,
        ebgp_policy: true,
        drained: false,
        router_id: n / 4,
        own: SmallVec::new(),
        families,
        removed: false,
    }
}

fn family(shared: &mut Shared, source: u32) -> &mut SourceFamily {
    shared.sources.get_mut(source).unwrap().family_mut(Family::Ipv4Unicast)
}

/// Returns the path identifier that the source's session uses.
fn id_of(shared: &mut Shared, source: u32, id: u32) -> u32 {
    if family(shared, source).add_path { id } else { 0 }
}

struct World {
    shared: Shared,
    table: Table<u32>,
    /// References that keep the next hops in the table.
    kept: Vec<u32>,
}

impl World {
    fn new(planes: usize) -> Self {
        let mut shared = Shared::new(64512, 1, PolicyHandle::accept_all(), HashKey::new([1, 2]));
        (shared.local_ready, shared.transit) = (true, true);
        for n in 0..SOURCES {
            shared.sources.insert(source(n));
        }
        let kept = (0..3)
            .map(|n| shared.attrs.intern(Attributes::new(hop(n)), false, &mut shared.next_hops))
            .collect();
        for n in 0..3 {
            shared.next_hops.set(hop(n), NextHopState::Reachable { metric: 0, on_link: true });
        }
        let mut table = Table::new(HashKey::new([1, 2]));
        table.planes = planes;
        Self { shared, table, kept }
    }

    fn slot(&self) -> Option<u32> {
        self.table.find(PREFIX)
    }

    fn review(&mut self) {
        if let Some(slot) = self.slot() {
            self.table.review(&mut self.shared, slot);
        }
    }

    fn purge(&mut self) {
        if let Some(slot) = self.slot() {
            self.table.remove_if(&mut self.shared, slot, |shared, path| {
                let source = shared.sources.get(path.source);
                path.source != LOCAL
                    && !source.is_some_and(|s| s.family(Family::Ipv4Unicast).is_valid(path.generation))
            });
        }
    }

    /// Applies an operation. With `walked`, the reevaluation that it requires is done at once.
    fn apply(&mut self, op: &Op, walked: bool) {
        let shared = &mut self.shared;
        match *op {
            Op::Announce(source, id, neighbour, len, pref, med, n, refused) => {
                let mut a = Attributes::new(hop(n));
                a.as_path = AsPath::from_sequence(&vec![neighbour; len]);
                a.local_pref = Some(100 + pref);
                a.med = Some(med);
                let attr = shared.attrs.intern(a, false, &mut shared.next_hops);
                let id = id_of(shared, source, id);
                self.table.announce(shared, (source, id), PREFIX, attr, if refused { 7 } else { ACCEPTED });
                shared.attrs.release(attr, &mut shared.next_hops);
            }
            Op::Withdraw(source, id) => {
                let id = id_of(shared, source, id);
                self.table.withdraw(shared, (source, id), PREFIX);
            }
            Op::Local(true) => {
                let attr = shared.attrs.intern(Attributes::new(hop(0)), true, &mut shared.next_hops);
                self.table.announce(shared, (LOCAL, 0), PREFIX, attr, ACCEPTED);
                shared.attrs.release(attr, &mut shared.next_hops);
            }
            Op::Local(false) => {
                self.table.withdraw(shared, (LOCAL, 0), PREFIX);
            }
            Op::End(source, add_path, keep) => {
                let family = family(shared, source);
                family.end(keep);
                family.add_path = add_path;
                if walked {
                    self.purge();
                    self.review();
                }
            }
            Op::EndOfRib(source) => {
                family(shared, source).drop_stale();
                if walked {
                    self.purge();
                }
            }
            Op::Purge => self.purge(),
            Op::NextHopWithin(n, metric) => {
                let prefix = Cidr::v4(PREFIX.0.into(), PREFIX.1);
                shared.next_hops.set_within(hop(n), vec![(prefix, state(metric))]);
                if walked {
                    self.review();
                }
            }
            Op::NextHopEntry(n, metric) => {
                let state = state(metric);
                shared.next_hops.set(hop(n), state);
                if walked {
                    self.review();
                }
            }
        }
    }

    /// Compares best path and paths in use with a decision from scratch.
    fn check(&self) {
        let Some(entry) = self.slot().and_then(|slot| self.table.entry(slot)) else { return };
        let key = |p: &super::entry::Path| (p.source, p.path_id, p.generation);
        let paths: Vec<_> = self.table.paths(entry).collect();
        let mut keys: Vec<_> = paths.iter().map(key).collect();
        keys.sort_unstable();
        assert!(keys.windows(2).all(|two| two[0] != two[1]), "two paths are the same: {keys:?}");
        let all: Vec<_> =
            paths.iter().filter_map(|p| Some((*p, candidate(&self.shared, PREFIX, p)?))).collect();
        let lost = decide(&all.iter().map(|(_, c)| *c).collect::<Vec<_>>());
        let decided = || all.iter().zip(&lost);
        let best = decided().find(|(_, lost)| lost.is_none()).map(|((p, _), _)| *p);
        assert_eq!(entry.best().as_ref().map(key), best.as_ref().map(key));
        let alone = best.is_some_and(|p| p.source == LOCAL);
        let used = |lost: Option<_>| if alone { lost.is_none() } else { is_multipath(lost) };
        let mut want: Vec<_> = decided().filter(|(_, lost)| used(**lost)).map(|((p, _), _)| key(p)).collect();
        let mut have: Vec<_> = paths.iter().filter(|p| p.multipath).map(key).collect();
        want.sort_unstable();
        have.sort_unstable();
        assert_eq!(have, want);
        assert!(entry.has_ties() || have.len() < 2, "more than one is used");
        for source in 0..SOURCES {
            let best = self.shared.sources.get(source).unwrap().family(Family::Ipv4Unicast).best;
            assert_eq!(best, u32::from(entry.best().is_some_and(|p| p.source == source)));
        }
        assert_eq!(
            best_path::nth(&self.shared, &self.table, entry, 0).as_ref().map(key),
            best.as_ref().map(key)
        );
    }

    /// A change of the best path, or with planes any change, must be logged; a change of the paths in use
    /// must be queued.
    fn check_reported(&self, before: &Observed, after: &Observed) {
        let changed = if self.table.planes > 0 { before.all != after.all } else { before.best != after.best };
        assert!(!changed || after.head > before.head, "not logged");
        assert!(before.used == after.used || self.table.has_dirty(), "not reported");
    }

    fn observed(&self) -> Observed {
        let entry = self.slot().and_then(|slot| self.table.entry(slot));
        let paths: Vec<_> = entry.iter().flat_map(|e| self.table.paths(e)).collect();
        let named =
            |source| self.shared.sources.get(source).is_some_and(|s| s.family(Family::Ipv4Unicast).add_path);
        let id = |p: &super::entry::Path| if named(p.source) { p.path_id } else { 0 };
        let mut all: Vec<_> = paths.iter().map(|p| (p.source, id(p), p.attr)).collect();
        let mut used: Vec<_> = paths.iter().filter(|p| p.multipath).map(|p| (p.source, p.attr)).collect();
        all.sort_unstable();
        used.sort_unstable();
        Observed {
            best: entry.and_then(|e| e.best().map(|p| (p.attr, p.source))),
            all,
            used,
            head: self.table.log.head(),
        }
    }
}

#[derive(Debug)]
struct Observed {
    best: Option<(u32, u32)>,
    /// Source, path identifier (if the session has them) and attribute set of each path.
    all: Vec<(u32, u32, u32)>,
    /// Source and attribute set of each multipath path. The report of a change has no path identifiers.
    used: Vec<(u32, u32)>,
    head: u64,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Checks after each operation.
    #[test]
    fn step_by_step_it_is_as_from_nothing(
        ops in prop::collection::vec(op(), 1..60),
        planes in 0..2usize,
    ) {
        let mut world = World::new(planes);
        for op in &ops {
            while world.table.pop_dirty().is_some() {}
            let before = world.observed();
            world.apply(op, true);
            world.check();
            world.check_reported(&before, &world.observed());
        }
    }

    /// Checks after the reevaluation, with sessions and next hops changed in between.
    #[test]
    fn it_is_as_from_nothing_after_the_walk(ops in prop::collection::vec(op(), 1..60)) {
        let mut world = World::new(0);
        for op in &ops {
            world.apply(op, false);
        }
        world.purge();
        world.review();
        world.check();
        // All references are released at the end.
        for source in 0..SOURCES {
            family(&mut world.shared, source).end(Keep::Nothing);
        }
        world.purge();
        world.table.withdraw(&mut world.shared, (LOCAL, 0), PREFIX);
        prop_assert_eq!(world.table.path_count(), 0);
        for attr in std::mem::take(&mut world.kept) {
            world.shared.attrs.release(attr, &mut world.shared.next_hops);
        }
        prop_assert_eq!(world.shared.attrs.len(), 0);
    }
}
