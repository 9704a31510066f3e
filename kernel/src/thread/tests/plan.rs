//! Tests of the planner with the in-memory kernel of `fake_kernel`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use proptest::prelude::*;
use smallvec::SmallVec;
use tortie_net::{Cidr, ScopedAddr};

use super::fake_kernel::{
    DEVICES, FakeKernel, Fate, InstalledRoute, MARKS, connected, foreign_route, link, no, own_route,
};
use crate::fib::plan;
use crate::fib::request::Request;
use crate::fib::route_state::Desired;
use crate::fib::table::Table;
use crate::intent::KernelIntent;
use crate::netlink::event::Event;
use crate::netlink::nexthop::{Content, Nexthop};
use crate::netlink::route::{RTN_BLACKHOLE, RTN_UNICAST, Route};
use crate::netlink::socket::Refusal;
use crate::options::Mode;
use crate::thread::state::{Pending, State};
use tortie_engine::routing::ChangeId;
use tortie_engine::routing::{Calico3View, LearnedChange, RoutingView};

/// Device 1 has the network 192.0.1.0/24, device 2 has 192.0.2.0/24.
pub(super) fn fresh(nexthop_objects: bool) -> State {
    let mut state = State::new(
        Mode::Program,
        Table::new(MARKS, nexthop_objects),
        crate::endpoints::Endpoints::new(179, 1790, std::time::Duration::ZERO),
    );
    for index in DEVICES {
        state.network.set_link(link(index, true));
        state.network.add_route(connected(index), false);
    }
    state
}

type Fates<'a> = dyn Iterator<Item = Fate> + 'a;

fn send(
    table: &Table,
    fake: &mut FakeKernel,
    fates: &mut Fates<'_>,
    requests: &[Request],
) -> Vec<crate::fib::request::Outcome> {
    let mut send = |request: &Request| {
        fake.requests += 1;
        match fates.next().unwrap_or(Fate::Fair) {
            Fate::Fair => fake.carry_out(table, request),
            Fate::Refused => no(libc::ENOMEM),
            Fate::LostUndone => Err(Refusal::lost()),
            Fate::LostDone => {
                let _ = fake.carry_out(table, request);
                Err(Refusal::lost())
            }
        }
    };
    requests.iter().map(&mut send).collect()
}

fn flush(state: &mut State, fake: &mut FakeKernel, fates: &mut Fates<'_>) {
    let mut rounds = plan::PlanRounds::default();
    while let Some(requests) = rounds.next(&mut state.table, &state.network) {
        let answers = send(&state.table, fake, fates, &requests);
        state.settle(&requests, &answers);
    }
}

/// Learns batches of one prefix each, as `route_pipeline.rs` does: one is learned and planned while another
/// is in flight, with two in flight at a time. The answers to the first are applied when the second is in
/// flight.
fn learn_on_heels(
    state: &mut State,
    fake: &mut FakeKernel,
    fates: &mut Fates<'_>,
    wanted: &mut Intent,
    batches: &[(u8, u8)],
) {
    let mut under_way: VecDeque<(Vec<Request>, Vec<crate::fib::request::Outcome>)> = VecDeque::new();
    let take_over = |state: &mut State,
                     under_way: &mut VecDeque<(Vec<Request>, Vec<crate::fib::request::Outcome>)>,
                     left| {
        while under_way.len() > left
            && let Some((requests, answers)) = under_way.pop_front()
        {
            state.settle(&requests, &answers);
        }
    };
    for (p, hops) in batches {
        take_over(state, &mut under_way, 1);
        let is_touched = |request: &Request| matches!(request, Request::PutRoute { prefix: q, .. } | Request::DeleteRoute { prefix: q, .. } if *q == prefix(*p));
        if state.table.needs_resync() || under_way.iter().any(|(requests, _)| requests.iter().any(is_touched))
        {
            take_over(state, &mut under_way, 0);
            flush(state, fake, fates);
        }
        wanted.learned.insert(*p, *hops);
        want(state, wanted, std::iter::once(*p));
        match plan::routes_alone(&mut state.table, &state.network) {
            Some(requests) => {
                let answers = send(&state.table, fake, fates, &requests);
                under_way.push_back((requests, answers));
            }
            // The nexthop objects of the first batch are written before it.
            None if under_way.is_empty() => {
                let requests = plan::nexthops(&mut state.table, &state.network);
                let answers = send(&state.table, fake, fates, &requests);
                state.settle(&requests, &answers);
                if let Some(requests) = plan::routes_alone(&mut state.table, &state.network) {
                    let answers = send(&state.table, fake, fates, &requests);
                    under_way.push_back((requests, answers));
                } else {
                    flush(state, fake, fates);
                }
            }
            None => {
                take_over(state, &mut under_way, 0);
                flush(state, fake, fates);
            }
        }
    }
    take_over(state, &mut under_way, 0);
    flush(state, fake, fates);
}

pub(super) fn compare(state: &mut State, fake: &FakeKernel) {
    let mut found = state.begin_comparison(Some(&fake.nexthop_list()));
    let foreign = fake.foreign.iter().map(|prefix| foreign_route(*prefix));
    let routes = DEVICES.into_iter().map(connected).chain(foreign).chain(fake.route_list());
    routes.for_each(|route| state.compare_route(&mut found, route));
    state.end_comparison(found, &[], true, false);
}

/// Settles as the thread does: a resync if needed, then a retry of failed requests.
pub(super) fn settle(state: &mut State, fake: &mut FakeKernel, fates: &mut Fates<'_>) {
    state.follow_next_hops();
    flush(state, fake, fates);
    if state.table.needs_resync() {
        compare(state, fake);
        flush(state, fake, fates);
    }
    assert_eq!(state.table.sums(), walked(&state.table), "what is counted is what there is");
}

fn prefix(index: u8) -> Cidr {
    Cidr::v4([10, 65, 0, index * 64].into(), 26)
}

fn next_hops(bits: u8) -> SmallVec<[ScopedAddr; 2]> {
    let all = ["192.0.1.8", "192.0.1.9", "192.0.2.8", "192.0.2.9"];
    (0..4).filter(|i| bits & (1 << i) != 0).map(|i| all[i].parse().unwrap()).collect()
}

/// Returns the LOCAL_PREF of a learned route: two of them are those of workloads in a live migration.
fn local_pref(bits: u8) -> Option<u32> {
    [Some(2_147_482_623), Some(2_147_483_135), None].get(usize::from(bits >> 4)).copied().flatten()
}

/// The whole desired state.
#[derive(Clone, Default)]
struct Intent {
    learned: BTreeMap<u8, u8>,
    blackholes: BTreeSet<u8>,
    /// True in a store of Calico 3, where learned routes have metrics of their own.
    calico3: bool,
}

fn want(state: &mut State, wanted: &Intent, indexes: impl Iterator<Item = u8>) {
    let batch: Vec<LearnedChange> = indexes
        .map(|i| LearnedChange {
            prefix: prefix(i),
            next_hops: next_hops(wanted.learned.get(&i).copied().unwrap_or_default()),
            local_pref: local_pref(wanted.learned.get(&i).copied().unwrap_or_default()),
            change: ChangeId(0),
        })
        .collect();
    state.learn(&batch);
}

fn intend(state: &mut State, wanted: &Intent) {
    let calico3 = wanted.calico3.then(Calico3View::default);
    state.accept_intent(Arc::new(KernelIntent {
        generation: 1,
        change: ChangeId(0),
        blackholes: wanted.blackholes.iter().map(|i| (prefix(*i), ChangeId(0))).collect(),
        tunnel: None,
        vxlan: Arc::default(),
        store_routes: Arc::default(),
        view: Arc::new(RoutingView { calico3, ..RoutingView::default() }),
    }));
}

#[derive(Clone, Debug)]
enum Step {
    Learn(u8, u8),
    Blackhole(u8, bool),
    Device(u32, bool),
    StealRoute(u8),
    StealNexthop(usize),
    ChangeRoute(u8),
    Foreign(u8, bool),
    Retry,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..4u8, 0..48u8).prop_map(|(p, h)| Step::Learn(p, h)),
        2 => (0..4u8, any::<bool>()).prop_map(|(p, b)| Step::Blackhole(p, b)),
        2 => (1..3u32, any::<bool>()).prop_map(|(d, up)| Step::Device(d, up)),
        1 => (0..4u8).prop_map(Step::StealRoute),
        2 => (0..8usize).prop_map(Step::StealNexthop),
        1 => (0..4u8).prop_map(Step::ChangeRoute),
        1 => (0..4u8, any::<bool>()).prop_map(|(p, there)| Step::Foreign(p, there)),
        1 => Just(Step::Retry),
    ]
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        12 => Just(Fate::Fair),
        1 => Just(Fate::Refused),
        1 => Just(Fate::LostUndone),
        1 => Just(Fate::LostDone),
    ]
}

fn take(state: &mut State, fake: &mut FakeKernel, wanted: &mut Intent, step: &Step) {
    let mut due = Pending::default();
    match *step {
        Step::Learn(p, hops) => {
            wanted.learned.insert(p, hops);
            want(state, wanted, std::iter::once(p));
        }
        Step::Blackhole(p, there) => {
            if there {
                wanted.blackholes.insert(p)
            } else {
                wanted.blackholes.remove(&p)
            };
            intend(state, wanted);
        }
        Step::Device(device, up) => {
            if up {
                fake.down.remove(&device);
            } else {
                fake.device_down(device);
            }
            state.event(Event::Link(link(device, up)), &mut due);
        }
        Step::StealRoute(p) => {
            if let Some((metric, _)) = fake.route_of(prefix(p)) {
                fake.routes.remove(&(prefix(p), metric));
                let route = Route { metric, ..own_route(prefix(p), RTN_UNICAST, 0, SmallVec::new()) };
                state.event(Event::RouteGone { route, by: 77 }, &mut due);
            }
        }
        Step::StealNexthop(n) => {
            if let Some(id) = fake.nexthops.keys().nth(n).copied() {
                let nexthop = Nexthop { id, protocol: MARKS.protocol, content: fake.nexthops[&id].clone() };
                fake.drop_nexthop(id);
                state.event(Event::NexthopGone { nexthop, by: 77 }, &mut due);
            }
        }
        Step::ChangeRoute(p) => {
            if let Some((metric, said)) = fake.route_of(prefix(p)) {
                *said = InstalledRoute::Blackhole;
                let route = Route { metric, ..own_route(prefix(p), RTN_BLACKHOLE, 0, SmallVec::new()) };
                state.event(Event::Route { route, replaces: true, by: 77 }, &mut due);
            }
        }
        Step::Foreign(p, true) => {
            // The foreign route replaces Tortie's.
            if fake.foreign.insert(prefix(p)) {
                fake.routes.remove(&(prefix(p), MARKS.metric));
                state.event(
                    Event::Route { route: foreign_route(prefix(p)), replaces: true, by: 77 },
                    &mut due,
                );
            }
        }
        Step::Foreign(p, false) => {
            if fake.foreign.remove(&prefix(p)) {
                state.event(Event::RouteGone { route: foreign_route(prefix(p)), by: 77 }, &mut due);
            }
        }
        Step::Retry => state.table.retry(),
    }
    if due.nexthops {
        state.take_nexthops(&fake.nexthop_list());
    }
    if due.retry {
        state.table.retry();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// After any sequence of events, refusals and lost answers: once the faults end, the kernel has the state
    /// that a fresh start would write, with no more objects than needed, and a restart writes nothing.
    #[test]
    fn incremental_equals_from_scratch(
        steps in prop::collection::vec((step(), prop::collection::vec((0..4u8, 0..48u8), 0..6)), 1..40),
        fates in prop::collection::vec(fate(), 0..80),
        nexthop_objects in prop::bool::weighted(0.8),
        calico3 in any::<bool>(),
    ) {
        let (mut state, mut fake) = (fresh(nexthop_objects), FakeKernel::default());
        let mut wanted = Intent { calico3, ..Intent::default() };
        intend(&mut state, &wanted);
        state.table.sweep();
        let mut fates = fates.into_iter();
        for (step, batches) in &steps {
            take(&mut state, &mut fake, &mut wanted, step);
            learn_on_heels(&mut state, &mut fake, &mut fates, &mut wanted, batches);
            settle(&mut state, &mut fake, &mut fates);
        }
        for device in DEVICES {
            take(&mut state, &mut fake, &mut wanted, &Step::Device(device, true));
        }
        for index in 0..4 {
            take(&mut state, &mut fake, &mut wanted, &Step::Foreign(index, false));
        }
        // A timer retries, and a periodic resync removes the remains of refused deletions.
        for _ in 0..3 {
            compare(&mut state, &fake);
            state.table.retry();
            settle(&mut state, &mut fake, &mut std::iter::empty());
        }

        let (mut scratch, mut clean) = (fresh(nexthop_objects), FakeKernel::default());
        scratch.table.sweep();
        intend(&mut scratch, &wanted);
        want(&mut scratch, &wanted, 0..4);
        settle(&mut scratch, &mut clean, &mut std::iter::empty());
        prop_assert_eq!(fake.meaning(), clean.meaning());
        prop_assert_eq!(fake.nexthops.len(), clean.nexthops.len(), "{:?}", fake.nexthops);
        prop_assert!(state.table.failures() == 0);
        let counts = crate::thread::view::KernelView { state: &state, rules: None }.counts();
        prop_assert_eq!(counts.installed, fake.routes.len());

        let mut again = fresh(nexthop_objects);
        let mut list: Vec<Nexthop> = fake.nexthop_list().into_values().collect();
        list.sort_unstable_by_key(|n| (matches!(n.content, Content::Group(_)), n.id));
        for nexthop in list {
            again.table.objects_mut().adopt(nexthop.id, &nexthop.content, true);
        }
        fake.route_list().iter().for_each(|r| again.table.load(r));
        let before = fake.requests;
        intend(&mut again, &wanted);
        want(&mut again, &wanted, 0..4);
        settle(&mut again, &mut fake, &mut std::iter::empty());
        again.table.sweep();
        settle(&mut again, &mut fake, &mut std::iter::empty());
        prop_assert_eq!(fake.requests, before, "a restart writes nothing that was right");
    }
}

/// Computes [`Table::sums`] by iterating over all entries.
fn walked(table: &Table) -> crate::fib::counts::Sums {
    let mut sums = crate::fib::counts::Sums::default();
    for (_, _, entry) in table.entries().iter() {
        let (there, nothing) = (entry.actual().is_there(), matches!(entry.desired(), Desired::Nothing(_)));
        let place = match (nothing, there) {
            (true, true) if entry.is_stale() => &mut sums.stale,
            (true, true) => &mut sums.extra,
            (true, false) if entry.desired() == Desired::Nothing(None) => continue,
            (true, false) => &mut sums.withheld,
            (false, false) => &mut sums.missing,
            (false, true) if table.is_in_sync(entry) => &mut sums.in_sync,
            (false, true) => &mut sums.different,
        };
        *place += 1;
    }
    sums
}

#[test]
fn a_taken_id_is_left_alone_and_another_one_used() {
    let (mut state, mut fake, mut wanted) = (fresh(true), FakeKernel::default(), Intent::default());
    // A foreign object that was never notified.
    let strange = Content::Single { gateway: "192.0.1.66".parse().unwrap(), ifindex: 1, onlink: false };
    fake.nexthops.insert(MARKS.nexthop_base, strange.clone());
    take(&mut state, &mut fake, &mut wanted, &Step::Learn(0, 1));
    settle(&mut state, &mut fake, &mut std::iter::empty());
    assert_eq!(fake.nexthops[&MARKS.nexthop_base], strange);
    assert_eq!(fake.routes[&(prefix(0), MARKS.metric)], InstalledRoute::Nexthop(MARKS.nexthop_base + 1));
}

/// A group loses a member while it is not desired and its deletion was refused; then a batch desires it
/// again.
#[test]
fn an_object_that_nothing_wanted_is_put_right_when_it_is_wanted_again() {
    let (mut state, mut fake, mut wanted) = (fresh(true), FakeKernel::default(), Intent::default());
    take(&mut state, &mut fake, &mut wanted, &Step::Learn(0, 0b1010));
    settle(&mut state, &mut fake, &mut std::iter::empty());
    let both = fake.meaning()[&(prefix(0), MARKS.metric)].clone();
    let first = both.as_ref().and_then(|both| both.first().copied()).unwrap();
    // Requests: a nexthop, the route over it, the deletion of the unused group.
    take(&mut state, &mut fake, &mut wanted, &Step::Learn(0, 0b0100));
    flush(&mut state, &mut fake, &mut [Fate::Fair, Fate::Fair, Fate::Refused].into_iter());
    let is_first = |c: &Content| matches!(c, Content::Single { gateway, .. } if *gateway == first);
    let member = fake.nexthops.values().position(is_first).unwrap();
    take(&mut state, &mut fake, &mut wanted, &Step::StealNexthop(member));
    settle(&mut state, &mut fake, &mut std::iter::empty());
    assert_eq!(fake.nexthops.values().filter(|c| matches!(c, Content::Group(_))).count(), 1);
    learn_on_heels(&mut state, &mut fake, &mut std::iter::empty(), &mut wanted, &[(1, 0b1010)]);
    assert_eq!(fake.meaning()[&(prefix(1), MARKS.metric)], both);
}

#[test]
fn a_refused_route_does_not_hold_up_the_others_and_is_said() {
    let (mut state, mut fake, mut wanted) = (fresh(true), FakeKernel::default(), Intent::default());
    for index in 0..3 {
        take(&mut state, &mut fake, &mut wanted, &Step::Learn(index, 1));
    }
    // Requests: one nexthop, then the first route.
    flush(&mut state, &mut fake, &mut [Fate::Fair, Fate::Refused].into_iter());
    assert_eq!(fake.routes.len(), 2);
    assert_eq!(state.table.failure(&prefix(0)), Some("errno 12"));
    state.table.retry();
    flush(&mut state, &mut fake, &mut std::iter::empty());
    assert_eq!((fake.routes.len(), state.table.failures()), (3, 0));
}

#[test]
fn an_unchanged_blackhole_wins_over_a_learned_route() {
    let (mut state, mut fake, mut wanted) = (fresh(true), FakeKernel::default(), Intent::default());
    take(&mut state, &mut fake, &mut wanted, &Step::Blackhole(1, true));
    take(&mut state, &mut fake, &mut wanted, &Step::Learn(1, 3));
    settle(&mut state, &mut fake, &mut std::iter::empty());
    assert_eq!(fake.routes[&(prefix(1), MARKS.metric)], InstalledRoute::Blackhole);
    take(&mut state, &mut fake, &mut wanted, &Step::Blackhole(1, false));
    settle(&mut state, &mut fake, &mut std::iter::empty());
    assert_eq!(fake.meaning()[&(prefix(1), MARKS.metric)].as_ref().map(BTreeSet::len), Some(2));
}
