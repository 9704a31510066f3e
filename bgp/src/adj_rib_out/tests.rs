//! Update groups under random load, with tiny log, ring and pages, so that members lag, leave the ring and
//! catch up.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use proptest::prelude::*;
use smallvec::SmallVec;
use tortie_net::{Cidr, HashKey};

use super::export::{GroupKey, Representative};
use super::member::Produced;
use super::segment::Cursor;
use crate::api::{Export, Import, NextHopMode, NextHopState, PeerId, PeerView, Policy, RouteView};
use crate::attr::{AsPath, Attributes};
use crate::rib::Shared;
use crate::rib::reevaluate::Job;
use crate::rib::source::{Source, SourceFamily};
use crate::ribs::family::FamilyRib;
use crate::types::Family;
use crate::wire::{Entry, Families, Frame, Negotiated, Update};

#[path = "../../tests/support/mod.rs"]
mod support;
use support::{policy, session};

/// AS number of source 0.
const FIRST_AS: u32 = 65100;

struct Every(u64);

impl Policy for Every {
    fn import(&self, _: &PeerView<'_>, _: Cidr, _: &Attributes) -> Import {
        Import::Accept
    }

    fn export(&self, to: &PeerView<'_>, route: &RouteView<'_>) -> Export {
        let IpAddr::V4(a) = route.prefix.addr() else { unreachable!() };
        let accept = !(u64::from(u32::from(a) >> 8) + self.0 + to.class).is_multiple_of(5);
        if accept { Export::announce("every") } else { Export::withhold("every") }
    }
}

/// Returns negotiated parameters with add-path in both directions.
fn add_path() -> Negotiated {
    let families = Families::NONE.with(Family::Ipv4Unicast);
    Negotiated { add_path_receive: families, add_path_send: families, ..session(true) }
}

/// Returns the key of a group. `planes`: 1 if the session has one path per prefix.
fn key(class: u64, plane: u8, planes: u8) -> GroupKey {
    GroupKey {
        family: Family::Ipv4Unicast,
        session: if planes > 1 { add_path() } else { session(true) },
        asn: 65000,
        local_asn: 64512,
        client: None,
        drain: crate::api::Drain::Off,
        long_lived: false,
        next_hop: NextHopMode::Auto,
        own: Some(Ipv4Addr::new(192, 0, 2, 1).into()),
        class,
        role: None,
        closed: false,
        plane,
    }
}

fn representative() -> Representative {
    Representative { id: PeerId(0), name: "representative".into() }
}

/// A receiving peer: its groups, and the routes that it holds.
#[derive(Default)]
struct Receiver {
    /// One group per plane.
    groups: Vec<u32>,
    class: u64,
    /// Routes by prefix and path identifier.
    routes: BTreeMap<(Cidr, u32), Attributes>,
    /// Number of withdrawals of routes that it did not hold.
    idle_withdrawals: usize,
    withdrawn: BTreeSet<(Cidr, u32)>,
}

struct World {
    rib: FamilyRib<u32>,
    shared: Shared,
    receivers: Vec<Receiver>,
    policy: u64,
    woken: Vec<u32>,
    waiting: BTreeSet<u32>,
}

impl World {
    fn new(sources: u32) -> Self {
        let mut shared = Shared::new(64512, 1, policy(Every(0)), HashKey::new([1, 2]));
        (shared.local_ready, shared.transit) = (true, true);
        for n in 0..sources {
            shared.sources.insert(Source {
                id: PeerId(n),
                name: "s".into(),
                address: Ipv4Addr::from(n).into(),
                asn: 65000,
                local_asn: 64512,
                class: 0,
                client: None,
                reflection: 0,
                allow_own_as: 0,
                role: None,
                ebgp_policy: true,
                drained: false,
                router_id: n + 1,
                own: SmallVec::new(),
                families: [SourceFamily::default(); 2],
                removed: false,
            });
        }
        let receivers = (0..sources).map(|_| Receiver::default()).collect();
        let mut rib = FamilyRib::new(HashKey::new([1, 2]));
        rib.end_of_rib_after = Some(0);
        Self { rib, shared, receivers, policy: 0, woken: Vec::new(), waiting: BTreeSet::new() }
    }

    fn announce(&mut self, source: u32, prefix: u32, med: u32) {
        let mut a = Attributes::new(IpAddr::V4(Ipv4Addr::from(0x0a00_0000 + source)));
        a.med = Some(med);
        a.as_path = AsPath::from_sequence(&[FIRST_AS + source]);
        let attr = self.shared.attrs.intern(a.clone(), false, &mut self.shared.next_hops);
        self.shared.next_hops.set(a.next_hop, NextHopState::Reachable { metric: 0, on_link: true });
        self.rib.table.announce(&mut self.shared, (source, 0), (prefix << 8, 24), attr, 0);
        self.shared.attrs.release(attr, &mut self.shared.next_hops);
    }

    /// Adds a receiver to groups. The number of planes is constant during a session.
    fn join(&mut self, n: u32, class: u64, planes: u8) {
        let receiver = &mut self.receivers[n as usize];
        let old = std::mem::take(&mut receiver.groups);
        let planes = if old.is_empty() { planes } else { u8::try_from(old.len()).unwrap() };
        let previous: Vec<_> = old.into_iter().map(|g| self.rib.leave(&mut self.shared, g, n)).collect();
        receiver.class = class;
        let mut previous = previous.into_iter();
        for plane in 0..planes {
            let previous = previous.next().flatten();
            receiver.groups.push(self.rib.join(key(class, plane, planes), representative(), n, previous));
        }
        self.waiting.insert(n);
    }

    /// One step of transmission. Returns false if there is no output.
    fn produce(&mut self, n: u32) -> bool {
        let groups = self.receivers[n as usize].groups.clone();
        let produced = self.rib.produce(&mut self.shared, &groups, n, &mut self.woken);
        self.waiting.extend(self.woken.drain(..));
        let segment = match produced {
            Produced::Idle => {
                self.waiting.remove(&n);
                return false;
            }
            Produced::Working | Produced::PassComplete | Produced::EndOfRib => return true,
            Produced::Segment(segment) => segment,
        };
        let own = segment.private(n).cloned();
        for segment in own.into_iter().chain([segment]) {
            let mut bytes = Vec::new();
            let mut cursor = Cursor::new(segment, n);
            while !cursor.copy(&mut bytes, 100).1 {}
            self.receive(n, &bytes);
        }
        true
    }

    fn receive(&mut self, n: u32, mut bytes: &[u8]) {
        let receiver = &mut self.receivers[n as usize];
        while let Some(frame) = Frame::next(bytes, false).unwrap() {
            let session = if receiver.groups.len() > 1 { add_path() } else { session(true) };
            let update = Update::decode(frame.body, &session).unwrap();
            assert!(update.malformed.is_none());
            let route = |e: Entry<u32>| (Cidr::v4(e.prefix.0.into(), e.prefix.1), e.path_id);
            for route in update.withdrawn.iter().flat_map(|w| w.v4()).map(route) {
                receiver.idle_withdrawals += usize::from(receiver.routes.remove(&route).is_none());
                receiver.withdrawn.insert(route);
            }
            for reach in &update.reach {
                receiver.routes.extend(reach.nlri.v4().map(|e| (route(e), reach.attributes.clone())));
            }
            bytes = &bytes[frame.len..];
        }
        assert!(bytes.is_empty());
    }

    fn work(&mut self) {
        self.rib.work(&mut self.shared, true, &mut self.woken, |_| ());
        self.waiting.extend(self.woken.drain(..));
    }

    fn settle(&mut self) {
        for _ in 0..100_000 {
            if self.rib.has_work(&self.shared) {
                self.work();
            } else if let Some(n) = self.waiting.first().copied() {
                self.produce(n);
            } else {
                return;
            }
        }
        panic!("no rest");
    }

    /// Returns the expected routes of a receiver with their sources: for each prefix the first paths that are
    /// not its own and that policy accepts. Every path is from another AS, so here the decision depends on
    /// the source alone.
    fn expected(&self, n: u32) -> BTreeMap<(Cidr, u32), u32> {
        let class = self.receivers[n as usize].class;
        let planes = self.receivers[n as usize].groups.len();
        let all = self.rib.table.iter().flat_map(|(_, e)| {
            let mut paths: Vec<_> = self.rib.table.paths(e).collect();
            paths.sort_by_key(|p| p.source);
            let id = |at: usize| if planes > 1 { u32::try_from(at).unwrap() + 1 } else { 0 };
            let cidr = e.cidr();
            paths.into_iter().take(planes).enumerate().map(move |(at, p)| (cidr, id(at), p.source))
        });
        let passes = |p: &Cidr| {
            let IpAddr::V4(a) = p.addr() else { unreachable!() };
            !(u64::from(u32::from(a) >> 8) + self.policy + class).is_multiple_of(5)
        };
        all.filter(|(p, _, source)| *source != n && passes(p))
            .map(|(p, id, source)| ((p, id), source))
            .collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_member_ends_with_what_the_table_says(ops in prop::collection::vec(any::<(u8, u16, u16)>(), 1..900)) {
        let mut world = World::new(4);
        for (op, x, y) in ops {
            let n = u32::from(x) % 4;
            let prefix = u32::from(y) % 120;
            match op % 16 {
                0..=4 => {
                    for k in 0..u32::from(op / 16) {
                        world.announce(n, (prefix + k) % 120, u32::from(x) / 4 % 3);
                    }
                }
                5..=7 => {
                    for k in 0..u32::from(op / 16) {
                        world.rib.table.withdraw(&mut world.shared, (n, 0), (((prefix + k) % 120) << 8, 24));
                    }
                }
                8 => world.join(n, u64::from(y) % 3, 1 + u8::try_from(y / 3 % 3).unwrap()),
                9 if y % 4 == 0 => {
                    // The session ends; the next one starts from scratch.
                    let receiver = &mut world.receivers[n as usize];
                    for group in std::mem::take(receiver).groups {
                        world.rib.leave(&mut world.shared, group, n);
                    }
                    world.waiting.remove(&n);
                }
                9 => {
                    // More changes than the log holds, before any group can follow.
                    for k in 0..120 {
                        world.rib.table.withdraw(&mut world.shared, (n, 0), (k << 8, 24));
                    }
                }
                10 if y % 4 == 0 => {
                    world.policy = u64::from(y) % 5;
                    world.shared.policy = policy(Every(world.policy));
                    world.rib.request(Job::Reexport);
                }
                11 if y % 4 == 0 => {
                    for group in &world.receivers[n as usize].groups {
                        world.rib.resend(*group, n);
                        world.waiting.insert(n);
                    }
                }
                12 | 13 => world.work(),
                _ => {
                    for _ in 0..x % 4 {
                        world.produce(n);
                    }
                }
            }
            while world.rib.table.pop_dirty().is_some() {}
        }
        world.settle();
        for n in 0..4 {
            let receiver = &world.receivers[n as usize];
            if receiver.groups.is_empty() {
                continue;
            }
            let source = |a: &Attributes| a.as_path.ases().nth(1).unwrap() - FIRST_AS;
            let have: BTreeMap<_, _> = receiver.routes.iter().map(|(r, a)| (*r, source(a))).collect();
            prop_assert_eq!(&have, &world.expected(n), "member {}", n);
            let groups = receiver.groups.iter().map(|g| world.rib.group(*g).unwrap());
            let advertised: u32 = groups.map(|g| g.advertised_count(n, g.attr_sets.of_source(n))).sum();
            prop_assert_eq!(advertised as usize, have.len());
        }
        // Without routes and members, nothing is allocated.
        for n in 0..4 {
            for prefix in 0..120 {
                world.rib.table.withdraw(&mut world.shared, (n, 0), (prefix << 8, 24));
            }
        }
        while world.rib.table.pop_dirty().is_some() {}
        world.settle();
        prop_assert!(world.receivers.iter().all(|r| r.routes.is_empty()));
        prop_assert_eq!(world.shared.attrs.len(), 0);
        prop_assert!(!world.rib.table.has_vacant());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// A member that changes its group never loses a route that both groups announce, whatever part of the
    /// table changed before the new group evaluated it, and whether or not the group has other members.
    #[test]
    fn a_change_of_group_takes_nothing_away_that_stays(ops in prop::collection::vec(any::<(u8, u8, u8)>(), 1..80)) {
        let mut world = World::new(5);
        let announce = |world: &mut World, from: u32, count: u32, med: u32| {
            for k in 0..count {
                world.announce(4, (from + k) % 60, med);
            }
            while world.rib.table.pop_dirty().is_some() {}
        };
        announce(&mut world, 0, 60, 0);
        for n in 0..4 {
            world.join(n, u64::from(n) % 3, 1);
        }
        world.settle();
        for (op, x, y) in ops {
            let n = u32::from(x) % 4;
            match op % 8 {
                0 => announce(&mut world, u32::from(y), u32::from(x % 16), u32::from(op) / 8),
                1 => world.rib.request(Job::Reexport),
                2 => world.work(),
                3 => {
                    world.settle();
                    let before = world.expected(n);
                    world.receivers[n as usize].withdrawn.clear();
                    world.join(n, u64::from(y) % 4, 1);
                    if y & 4 != 0 {
                        world.rib.request(Job::Reexport);
                    }
                    if y & 8 != 0 {
                        announce(&mut world, u32::from(x), 20, u32::from(op) / 8);
                    }
                    for _ in 0..(y >> 4) % 4 {
                        world.work();
                    }
                    world.settle();
                    let after = world.expected(n);
                    let taken = &world.receivers[n as usize].withdrawn;
                    let stays = taken.iter().find(|r| before.contains_key(r) && after.contains_key(r));
                    prop_assert_eq!(stays, None, "member {}", n);
                }
                _ => {
                    world.produce(n);
                }
            }
        }
    }
}

/// Members in step receive no withdrawal of a route that they did not hold.
#[test]
fn members_in_step_get_no_idle_withdrawals() {
    let mut world = World::new(4);
    for n in 0..4 {
        world.join(n, 0, 1 + u8::try_from(n % 2).unwrap());
    }
    world.settle();
    for round in 0..20u32 {
        for prefix in 0..6 {
            match (round + prefix) % 3 {
                0 => world.announce(prefix % 4, prefix, round % 2),
                1 => {
                    world.rib.table.withdraw(&mut world.shared, (prefix % 4, 0), (prefix << 8, 24));
                }
                _ => world.announce((prefix + 1) % 4, prefix, 0),
            }
            while world.rib.table.pop_dirty().is_some() {}
            world.settle();
        }
    }
    assert!(world.receivers.iter().all(|r| r.idle_withdrawals == 0));
}

/// If a prefix changes again with an equal result (here: a path is added that is not the best one), the group
/// sends nothing. A member served separately has to receive the current state.
#[test]
fn a_lagging_member_is_sent_a_prefix_that_changed_again_to_the_same() {
    let mut world = World::new(4);
    let announce = |world: &mut World, source, prefixes: std::ops::Range<u32>| {
        prefixes.for_each(|prefix| world.announce(source, prefix, 0));
        while world.rib.table.pop_dirty().is_some() {}
    };
    let take = |world: &mut World| {
        for _ in 0..3 {
            world.produce(3);
        }
    };
    world.join(0, 2, 2);
    announce(&mut world, 1, 0..5);
    world.join(3, 2, 2);
    // Member 3 is in step, and the ring drops segments that member 0 has not taken.
    for prefixes in [90..99, 4..13] {
        take(&mut world);
        announce(&mut world, 2, prefixes);
    }
    take(&mut world);
    announce(&mut world, 2, 0..1);
    world.settle();
    let have = &world.receivers[0].routes;
    assert!(have.keys().eq(world.expected(0).keys()), "{:?}", have.keys());
}

/// An idle member is sent changes that left the log, whichever member of the group detects the loss first.
#[test]
fn a_resting_member_is_sent_the_withdrawal_that_another_member_finds() {
    let mut world = World::new(4);
    let announce = |world: &mut World, prefixes: std::ops::Range<u32>| {
        prefixes.for_each(|prefix| world.announce(1, prefix, 0));
        while world.rib.table.pop_dirty().is_some() {}
    };
    world.join(0, 2, 1);
    world.join(3, 2, 1);
    announce(&mut world, 0..60);
    world.settle();
    assert!(world.receivers[3].routes.len() > 40);
    for prefix in 0..60 {
        world.rib.table.withdraw(&mut world.shared, (1, 0), (prefix << 8, 24));
    }
    announce(&mut world, 60..70);
    while world.produce(0) {}
    world.settle();
    for n in [0, 3] {
        assert!(world.receivers[n as usize].routes.keys().eq(world.expected(n).keys()), "member {n}");
    }
}
