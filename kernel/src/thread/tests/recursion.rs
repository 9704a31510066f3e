//! Next hops that resolve over learned routes, while learned routes, foreign routes and links change in any
//! order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use smallvec::SmallVec;
use tortie_net::{Cidr, ScopedAddr};

use super::fake_kernel::{DEVICES, MARKS, connected, foreign_route, link, own_route};
use crate::fib::network::NextHopAnswer;
use crate::fib::table::Table;
use crate::intent::KernelIntent;
use crate::netlink::event::Event;
use crate::netlink::route::{Leg, RTN_UNICAST};
use crate::options::Mode;
use crate::thread::state::{Pending, State};
use tortie_engine::routing::{ChangeId, KernelRoute, LearnedChange, StoreRoutes};

/// A change and its opposite.
#[derive(Debug, Clone)]
enum Op {
    Learn(u8, u8),
    Forget(u8),
    Foreign(u8, bool),
    Link(u32, bool),
    Track(u8),
    /// A peer with this gateway, or none.
    Gateway(u8, Option<u8>),
}

/// Prefixes that cover each other and the next hops.
fn prefix(n: u8) -> Cidr {
    const ALL: [&str; 8] = [
        "0.0.0.0/0",
        "10.0.0.0/8",
        "10.1.0.0/16",
        "10.1.1.0/24",
        "10.1.1.1/32",
        "10.2.0.0/16",
        "10.2.1.1/32",
        "192.0.0.0/16",
    ];
    ALL[usize::from(n) % ALL.len()].parse().unwrap()
}

fn address(n: u8) -> ScopedAddr {
    const ALL: [&str; 7] =
        ["192.0.1.8", "192.0.2.8", "10.1.1.1", "10.1.1.2", "10.2.1.1", "10.2.2.2", "172.16.0.1"];
    ALL[usize::from(n) % ALL.len()].parse().unwrap()
}

/// Returns one to three next hops.
fn hops(bits: u8) -> SmallVec<[ScopedAddr; 2]> {
    let mut hops: SmallVec<[ScopedAddr; 2]> = [bits, bits / 7, bits / 49].map(address).into_iter().collect();
    hops.sort_unstable();
    hops.dedup();
    hops
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (any::<u8>(), any::<u8>()).prop_map(|(p, hops)| Op::Learn(p, hops)),
        3 => any::<u8>().prop_map(Op::Forget),
        1 => (any::<u8>(), any::<bool>()).prop_map(|(p, there)| Op::Foreign(p, there)),
        1 => (prop::sample::select(DEVICES.to_vec()), any::<bool>()).prop_map(|(l, up)| Op::Link(l, up)),
        1 => any::<u8>().prop_map(Op::Track),
        2 => (any::<u8>(), prop::option::weighted(0.7, any::<u8>())).prop_map(|(p, by)| Op::Gateway(p, by)),
    ]
}

fn fresh() -> State {
    let mut state = State::new(
        Mode::Program,
        Table::new(MARKS, true),
        crate::endpoints::Endpoints::new(179, 1790, std::time::Duration::ZERO),
    );
    for index in DEVICES {
        state.network.set_link(link(index, true));
        state.network.add_route(connected(index), false);
    }
    state
}

fn learn(state: &mut State, prefix: Cidr, next_hops: SmallVec<[ScopedAddr; 2]>) {
    state.learn(&[LearnedChange { prefix, next_hops, local_pref: None, change: ChangeId(1) }]);
}

fn event(state: &mut State, event: Event) {
    state.event(event, &mut Pending::default());
}

/// Sends an intent with these gateways to peers.
fn intend(state: &mut State, gateways: &BTreeMap<Cidr, ScopedAddr>) {
    let gateways = gateways.iter().map(|(peer, by)| (*peer, by.addr())).collect();
    state.accept_intent(Arc::new(KernelIntent {
        generation: 1,
        change: ChangeId(1),
        blackholes: BTreeMap::new(),
        tunnel: None,
        vxlan: Arc::default(),
        store_routes: Arc::new(StoreRoutes { gateways, ..StoreRoutes::default() }),
        view: Arc::default(),
    }));
}

/// The learned routes, the gateways to peers, the foreign routes, and the links that are down.
#[derive(Default)]
struct Origin {
    gateways: BTreeMap<Cidr, ScopedAddr>,
    learned: BTreeMap<Cidr, SmallVec<[ScopedAddr; 2]>>,
    foreign: BTreeSet<Cidr>,
    down: BTreeSet<u32>,
    tracked: BTreeSet<ScopedAddr>,
}

impl Origin {
    fn apply(&mut self, state: &mut State, op: &Op) {
        match *op {
            Op::Learn(p, bits) => {
                self.learned.insert(prefix(p), hops(bits));
                learn(state, prefix(p), hops(bits));
            }
            Op::Forget(p) => {
                self.learned.remove(&prefix(p));
                learn(state, prefix(p), SmallVec::new());
            }
            Op::Foreign(p, there) => {
                let route = foreign_route(prefix(p));
                if there && self.foreign.insert(prefix(p)) {
                    event(state, Event::Route { route, replaces: false, by: 7 });
                } else if !there && self.foreign.remove(&prefix(p)) {
                    event(state, Event::RouteGone { route, by: 7 });
                }
            }
            Op::Link(index, up) => {
                if up {
                    self.down.remove(&index);
                } else {
                    self.down.insert(index);
                }
                event(state, Event::Link(link(index, up)));
            }
            Op::Track(n) => {
                self.tracked.insert(address(n));
                state.track(address(n));
            }
            Op::Gateway(p, by) => {
                match by {
                    Some(by) => drop(self.gateways.insert(prefix(p), address(by))),
                    None => drop(self.gateways.remove(&prefix(p))),
                }
                intend(state, &self.gateways);
            }
        }
    }

    /// Returns the prefixes that were learned, or that are peers with a gateway.
    fn prefixes(&self) -> BTreeSet<Cidr> {
        self.learned.keys().chain(self.gateways.keys()).copied().collect()
    }

    /// Returns a state that received everything at once.
    fn recomputed(&self) -> State {
        let mut state = fresh();
        for index in &self.down {
            state.network.set_link(link(*index, false));
        }
        for prefix in &self.foreign {
            state.network.add_route(foreign_route(*prefix), false);
        }
        let change = |(prefix, hops): (&Cidr, &SmallVec<[ScopedAddr; 2]>)| LearnedChange {
            prefix: *prefix,
            next_hops: hops.clone(),
            local_pref: None,
            change: ChangeId(1),
        };
        state.learn(&self.learned.iter().map(change).collect::<Vec<_>>());
        intend(&mut state, &self.gateways);
        for addr in &self.tracked {
            state.track(*addr);
        }
        state.follow_next_hops();
        state
    }

    fn observed(&self, state: &mut State) -> (Vec<Option<KernelRoute>>, Vec<NextHopAnswer>) {
        let prefixes = self.prefixes();
        let routes = prefixes.iter().map(|prefix| state.explain(prefix).map(|(route, _)| route));
        let routes = routes.collect();
        let answers =
            self.tracked.iter().map(|addr| NextHopAnswer { over: SmallVec::new(), ..state.track(*addr) });
        (routes, answers.collect())
    }
}

/// After a restart, packets still use the routes found at the start, so next hops behind them resolve before
/// these are learned again.
#[test]
fn a_route_that_was_found_at_start_leads_until_it_is_swept() {
    for learned_again in [true, false] {
        let mut state = fresh();
        let gateway = "192.0.1.8".parse().ok();
        let leg = Leg { ifindex: 1, gateway, onlink: false };
        state.table.load(&own_route(prefix(0), RTN_UNICAST, 0, SmallVec::from_slice(&[leg])));
        let far = address(6);
        let leads = |state: &mut State| state.track(far).first().and_then(|way| way.gateway);
        assert_eq!(leads(&mut state), gateway);
        if learned_again {
            learn(&mut state, prefix(0), SmallVec::from_slice(&[address(1)]));
            assert_eq!(leads(&mut state), Some(address(1).addr()));
        }
        state.sweep();
        let moved = state.follow_next_hops();
        assert_eq!(leads(&mut state), learned_again.then(|| address(1).addr()));
        assert!(moved.iter().any(|(addr, _)| *addr == far));
    }
}

/// The resolutions for routes to a learned prefix use addresses that the main resolution does not.
#[test]
fn what_the_ways_inside_a_prefix_rest_on_is_followed_too() {
    let ops = [Op::Learn(15, 175), Op::Learn(72, 64), Op::Learn(13, 0), Op::Learn(18, 0), Op::Track(88)];
    let (mut state, mut origin) = (fresh(), Origin::default());
    for op in &ops {
        origin.apply(&mut state, op);
        state.follow_next_hops();
    }
    let mut recomputed = origin.recomputed();
    assert_eq!(origin.observed(&mut state), origin.observed(&mut recomputed));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// After any sequence of changes, routes and resolutions equal those of a host that received everything
    /// at once, and earlier decisions equal the decisions made now.
    #[test]
    fn followed_step_by_step_next_hops_end_as_from_scratch(ops in prop::collection::vec(op(), 1..40)) {
        let (mut origin, mut state) = (Origin::default(), fresh());
        for op in &ops {
            origin.apply(&mut state, op);
            state.follow_next_hops();
        }
        let mut whole = origin.recomputed();
        prop_assert_eq!(origin.observed(&mut state), origin.observed(&mut whole), "{:?}", ops);
        for prefix in &origin.prefixes() {
            let desired = |state: &State| {
                use crate::fib::route_state::Desired;
                match state.table.entries().get(prefix).map(|entry| entry.desired()) {
                    Some(Desired::Via(target, _)) => state.table.objects().hops(target).to_vec(),
                    _ => Vec::new(),
                }
            };
            let explained = match state.explain(prefix) {
                Some((KernelRoute::Via { hops, .. }, _)) => hops,
                _ => Vec::new(),
            };
            prop_assert_eq!(&desired(&state), &explained, "{}", prefix);
            prop_assert_eq!(desired(&state), desired(&whole), "{}", prefix);
        }
    }
}
