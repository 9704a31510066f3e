//! Tests of endpoints against an in-memory kernel that other processes change too: after any sequence of
//! events the kernel has the state that a fresh start gives, and no address is routed to a new holder with
//! the connections of the old one.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use smallvec::SmallVec;
use tortie_config::key::EndpointKey;
use tortie_config::resource::{HostAction, MacAddr};
use tortie_net::Cidr;

use super::plan::default_metric;
use super::{EndpointRequest, Endpoints, Neighbour};
use crate::endpoints::events::DumpData;
use crate::facts::EndpointCondition;
use crate::fib::foreign_changes::ForeignChanges;
use crate::netlink::event::Event;
use crate::netlink::link::Link;
use crate::netlink::route::{Leg, RTN_UNICAST, Route};
use crate::netlink::socket::Refusal;
use tortie_engine::policy::{EndpointPolicy, Globals, Stages, WorkloadPolicy};

const GRACE: Duration = Duration::from_secs(10);
const OURS: u8 = 179;
const BOOT: u8 = 3;
/// The first is not a workload interface.
const NAMES: [&str; 4] = ["eth0", "cali1", "cali2", "cali3"];
const PREFIXES: [&str; 5] =
    ["10.65.0.1/32", "10.65.0.2/32", "10.65.0.8/29", "fd00:65::1/128", "198.51.100.1/32"];

fn prefix(at: usize) -> Cidr {
    PREFIXES[at].parse().unwrap()
}

fn key(at: usize) -> EndpointKey {
    EndpointKey::Workload {
        host: "h1".to_owned(),
        orchestrator: "cni".to_owned(),
        workload: format!("w{at}"),
        endpoint: "eth0".to_owned(),
    }
}

fn globals() -> Globals {
    Globals {
        dialect: tortie_config::Dialect::V1,
        interface_prefixes: vec!["cali".to_owned()],
        to_host: HostAction::Drop,
        mark_mask: 0xff00_0000,
        failsafe_inbound: vec![],
        failsafe_outbound: vec![],
        ipip_hosts: None,
        tunnel_addr: None,
        vxlan: None,
        services: None,
        pools: BTreeSet::new(),
        masquerade: BTreeSet::new(),
        drop_invalid: true,
        ipv6: true,
        first: true,
        ignore_loose_rpf: false,
        set_size: 1 << 20,
    }
}

/// Desired state of an endpoint, by indices.
#[derive(Debug, Clone)]
struct Asks {
    interface: usize,
    active: bool,
    nets: BTreeSet<usize>,
    floating_ips: bool,
    mac: Option<u8>,
}

impl Asks {
    fn policy(&self) -> EndpointPolicy {
        let inside = self.nets.iter().map(|n| prefix(*n)).find(|p| p.is_host() && p.is_v4());
        let outside: IpAddr = "198.51.100.1".parse().unwrap();
        EndpointPolicy::Workload(WorkloadPolicy {
            interface: NAMES[self.interface].parse().unwrap(),
            active: self.active,
            nets: self.nets.iter().map(|n| prefix(*n)).collect(),
            spoofed_sources: Vec::new(),
            mac: self.mac.map(|m| MacAddr([2, 0, 0, 0, 0, m])),
            nats: inside.filter(|_| self.floating_ips).map(|int| (int.addr(), outside)).into_iter().collect(),
            inbound: Stages::default(),
            outbound: Stages::default(),
        })
    }
}

/// One event of a test.
#[derive(Debug, Clone)]
enum TestStep {
    Endpoint(usize, Option<Asks>),
    /// The interface is up (`Some(true)`), down (`Some(false)`) or removed (`None`); it is created anew after
    /// a removal.
    Interface(usize, Option<bool>),
    /// Another process adds a route, or deletes an existing one.
    Route(usize, usize, bool),
    Neighbours(usize),
    Time(u64),
    Compare,
}

fn steps() -> impl Strategy<Value = Vec<TestStep>> {
    let asks = (
        0..NAMES.len(),
        prop::bool::weighted(0.8),
        prop::collection::btree_set(0..PREFIXES.len(), 0..4),
        any::<bool>(),
        prop::option::of(1..4u8),
    )
        .prop_map(|(interface, active, nets, floating_ips, mac)| Asks {
            interface,
            active,
            nets,
            floating_ips,
            mac,
        });
    let step = prop_oneof![
        4 => (0..4usize, prop::option::weighted(0.8, asks)).prop_map(|(k, asks)| TestStep::Endpoint(k, asks)),
        3 => (0..NAMES.len(), prop::option::weighted(0.7, prop::bool::weighted(0.8)))
            .prop_map(|(name, up)| TestStep::Interface(name, up)),
        3 => (0..NAMES.len(), 0..PREFIXES.len(), any::<bool>())
            .prop_map(|(name, prefix, add)| TestStep::Route(name, prefix, add)),
        1 => (0..NAMES.len()).prop_map(TestStep::Neighbours),
        1 => (0..15u64).prop_map(TestStep::Time),
        1 => Just(TestStep::Compare),
    ];
    prop::collection::vec(step, 1..40)
}

/// The properties of the kernel on which this module relies.
#[derive(Debug, Clone, Default)]
struct Fake {
    links: BTreeMap<u32, Link>,
    /// Interface and protocol by prefix, with one metric per family.
    routes: BTreeMap<Cidr, (u32, u8)>,
    neighbours: BTreeMap<(u32, IpAddr), ([u8; 6], u8)>,
    made: u32,
}

impl Fake {
    fn index(&self, name: &str) -> Option<u32> {
        self.links.values().find(|l| l.name == name).map(|l| l.index)
    }

    fn is_up(&self, ifindex: u32) -> bool {
        self.links.get(&ifindex).is_some_and(Link::is_up)
    }

    fn clear(&mut self, ifindex: u32) {
        self.routes.retain(|_, (i, _)| *i != ifindex);
        self.neighbours.retain(|(i, _), _| *i != ifindex);
    }

    fn route(&self, prefix: Cidr, ifindex: u32, protocol: u8) -> Route {
        Route {
            prefix,
            tos: 0,
            protocol,
            kind: RTN_UNICAST,
            metric: default_metric(&prefix),
            nexthop: 0,
            legs: SmallVec::from_iter([Leg { ifindex, gateway: None, onlink: false }]),
        }
    }

    fn carry_out(&mut self, work: &EndpointRequest) -> Result<(), Refusal> {
        let no = |code| Err(Refusal { code, text: format!("errno {code}") });
        match work {
            EndpointRequest::PutRoute { ifindex, .. } | EndpointRequest::PutNeighbour { ifindex, .. }
                if !self.is_up(*ifindex) =>
            {
                no(libc::ENETDOWN)
            }
            EndpointRequest::PutRoute { prefix, .. } if self.routes.contains_key(prefix) => no(libc::EEXIST),
            EndpointRequest::PutRoute { ifindex, prefix, .. } => {
                self.routes.insert(*prefix, (*ifindex, OURS));
                Ok(())
            }
            EndpointRequest::DeleteRoute { ifindex, prefix, protocol, .. } => match self.routes.get(prefix) {
                Some(there) if there == &(*ifindex, *protocol) => {
                    self.routes.remove(prefix);
                    Ok(())
                }
                _ => no(libc::ESRCH),
            },
            EndpointRequest::PutNeighbour { ifindex, addr, mac } => {
                self.neighbours.insert((*ifindex, *addr), (*mac, OURS));
                Ok(())
            }
            EndpointRequest::DeleteNeighbour { ifindex, addr } => {
                self.neighbours.remove(&(*ifindex, *addr)).map_or_else(|| no(libc::ENOENT), |_| Ok(()))
            }
            EndpointRequest::Sysctls { .. } => Ok(()),
        }
    }

    /// Returns the relevant result: the interface of each prefix, and the neighbours.
    fn outcome(&self) -> TestOutcome {
        let routes = self.routes.iter().map(|(p, (i, _))| (*p, *i)).collect();
        (routes, self.neighbours.iter().map(|(place, (mac, _))| (*place, *mac)).collect())
    }
}

/// Routes and neighbours, whatever their protocol.
type TestOutcome = (BTreeMap<Cidr, u32>, BTreeMap<(u32, IpAddr), [u8; 6]>);

struct Fixture {
    endpoints: Endpoints,
    fake: Fake,
    now: Instant,
    foreign_changes: ForeignChanges,
    /// The device of the existing connections of each prefix.
    connections: BTreeMap<Cidr, u32>,
}

impl Fixture {
    fn new(fake: Fake, now: Instant) -> Self {
        let mut endpoints = Endpoints::new(OURS, 1790, GRACE);
        endpoints.set_links(fake.links.values(), now);
        let mut world = Self {
            endpoints,
            fake,
            now,
            foreign_changes: ForeignChanges::default(),
            connections: BTreeMap::new(),
        };
        world.compare(true);
        world.endpoints.set_globals(&globals());
        world
    }

    fn compare(&mut self, moved: bool) {
        let routes: Vec<Route> =
            self.fake.routes.iter().map(|(p, (i, protocol))| self.fake.route(*p, *i, *protocol)).collect();
        let neighbours: Vec<Neighbour> = self
            .fake
            .neighbours
            .iter()
            .map(|((ifindex, addr), (mac, protocol))| Neighbour {
                ifindex: *ifindex,
                addr: *addr,
                mac: *mac,
                permanent: true,
                protocol: *protocol,
            })
            .collect();
        let reading = DumpData { routes: &routes, neighbours: &neighbours, complete: true, moved };
        self.endpoints.compare(&reading, &mut self.foreign_changes);
    }

    fn receive(&mut self, event: &Event) {
        self.endpoints.event(event, self.now, &mut self.foreign_changes);
    }

    fn happen(&mut self, step: &TestStep) {
        match step {
            TestStep::Endpoint(k, asks) => {
                self.endpoints.set_endpoint(&key(*k), asks.as_ref().map(Asks::policy).as_ref());
            }
            TestStep::Interface(name, None) => {
                if let Some(link) = self.fake.index(NAMES[*name]).and_then(|i| self.fake.links.remove(&i)) {
                    self.fake.clear(link.index);
                    self.receive(&Event::LinkGone(link));
                }
            }
            TestStep::Interface(name, Some(up)) => {
                let index = self.fake.index(NAMES[*name]).unwrap_or_else(|| {
                    self.fake.made += 1;
                    self.fake.made
                });
                let link = Link {
                    index,
                    name: NAMES[*name].to_owned(),
                    flags: u32::from(*up),
                    mtu: 1500,
                    is_bridge: false,
                };
                self.fake.links.insert(index, link.clone());
                if !up {
                    self.fake.clear(index);
                }
                self.receive(&Event::Link(link));
            }
            TestStep::Route(name, p, true) => {
                let prefix = prefix(*p);
                let Some(index) = self.fake.index(NAMES[*name]).filter(|i| self.fake.is_up(*i)) else {
                    return;
                };
                if let Entry::Vacant(place) = self.fake.routes.entry(prefix) {
                    place.insert((index, BOOT));
                    let route = self.fake.route(prefix, index, BOOT);
                    self.receive(&Event::Route { route, replaces: false, by: 7 });
                }
            }
            TestStep::Route(_, p, false) => {
                let prefix = prefix(*p);
                if let Some((index, protocol)) = self.fake.routes.remove(&prefix) {
                    let route = self.fake.route(prefix, index, protocol);
                    self.receive(&Event::RouteGone { route, by: 7 });
                }
            }
            TestStep::Neighbours(name) => {
                if let Some(index) = self.fake.index(NAMES[*name]) {
                    self.fake.neighbours.retain(|(i, _), _| *i != index);
                    self.compare(false);
                }
            }
            TestStep::Time(seconds) => self.now += Duration::from_secs(*seconds),
            TestStep::Compare => self.compare(false),
        }
    }

    fn forget_connections(&mut self) {
        let left = std::mem::take(&mut self.endpoints.vacated);
        self.connections.retain(|prefix, _| !left.iter().any(|l| l.overlaps(prefix)));
    }

    /// Does the work of [`Applier::write`].
    fn write(&mut self) {
        let mut names = Vec::new();
        if self.endpoints.next_wait.is_some_and(|at| at <= self.now) {
            self.endpoints.mark_all_dirty();
            self.endpoints.next_wait = None;
        }
        for _ in 0..4 {
            let batch = self.endpoints.take_requests(self.now, false);
            let taken_again = self.endpoints.is_reused(&batch.names);
            names.extend(batch.names);
            let carry_out = |world: &mut Self, works: &[EndpointRequest]| {
                for work in works {
                    let result = world.fake.carry_out(work);
                    world.endpoints.settle(work, &result);
                }
            };
            carry_out(self, &batch.removals);
            if taken_again {
                self.forget_connections();
            }
            carry_out(self, &batch.sysctls);
            carry_out(self, &batch.additions);
            if self.endpoints.dirty.is_empty() {
                break;
            }
        }
        self.endpoints.update_conditions(&names);
        self.check_connections();
    }

    /// Checks that no holder has connections of another.
    fn check_connections(&mut self) {
        for (prefix, (ifindex, _)) in &self.fake.routes {
            let Some(holder) = self.endpoints.holder(prefix).cloned() else { continue };
            let intent = &self.endpoints.intents[&holder];
            if self.fake.index(&intent.interface) != Some(*ifindex) {
                continue;
            }
            let before = *self.connections.entry(*prefix).or_insert(*ifindex);
            assert_eq!(before, *ifindex, "{prefix} leads to another with connections of its former holder");
        }
    }

    /// Lets grace periods and retries pass.
    fn settle_down(&mut self) {
        self.now += GRACE;
        for _ in 0..3 {
            self.endpoints.retry();
            self.endpoints.mark_all_dirty();
            self.write();
        }
        self.forget_connections();
        let held = |prefix: &Cidr| self.endpoints.holder(prefix).is_some();
        assert!(self.connections.keys().all(held), "connections of addresses that nobody has");
    }
}

proptest! {
    #[test]
    fn the_kernel_ends_up_with_what_a_fresh_start_gives(steps in steps()) {
        let start = Instant::now();
        let mut world = Fixture::new(Fake::default(), start);
        let mut asked: BTreeMap<usize, Asks> = BTreeMap::new();
        for step in &steps {
            if let TestStep::Endpoint(k, asks) = step {
                match asks {
                    Some(asks) => asked.insert(*k, asks.clone()),
                    None => asked.remove(k),
                };
            }
            world.happen(step);
            world.write();
        }
        world.settle_down();
        // A fresh start on the same kernel has nothing to do.
        let mut fresh = Fixture::new(world.fake.clone(), start);
        for (k, asks) in &asked {
            fresh.endpoints.set_endpoint(&key(*k), Some(&asks.policy()));
        }
        fresh.now = world.now;
        fresh.write();
        fresh.settle_down();
        prop_assert_eq!(fresh.fake.outcome(), world.fake.outcome());
        prop_assert_eq!(&fresh.endpoints.conditions, &world.endpoints.conditions);
        // A fresh start on an empty kernel gives the same result, except for foreign routes elsewhere.
        let eth0 = world.fake.index("eth0");
        let mut bare = world.fake.clone();
        bare.routes.retain(|_, (i, _)| Some(*i) == eth0);
        bare.neighbours.clear();
        let mut bare = Fixture::new(bare, start);
        for (k, asks) in asked.iter().rev() {
            bare.endpoints.set_endpoint(&key(*k), Some(&asks.policy()));
        }
        bare.write();
        bare.settle_down();
        prop_assert_eq!(bare.fake.outcome(), world.fake.outcome());
        prop_assert_eq!(&bare.endpoints.conditions, &world.endpoints.conditions);
        // The result is the desired state.
        for (key, condition) in &world.endpoints.conditions {
            let intent = &world.endpoints.intents[key];
            if *condition == EndpointCondition::Up {
                let index = world.fake.index(&intent.interface);
                for prefix in intent.prefixes() {
                    prop_assert_eq!(world.fake.routes.get(&prefix).map(|(i, _)| *i), index);
                }
            }
        }
        for (prefix, (index, _)) in &world.fake.routes {
            let name = &world.fake.links[index].name;
            prop_assert!(
                name == "eth0" || world.endpoints.is_held_by(prefix, name),
                "{} leads to {} and nobody there has it", prefix, name
            );
        }
    }
}

#[test]
fn nothing_is_touched_before_policy_has_spoken_and_routes_of_plugins_wait_for_the_grace() {
    let now = Instant::now();
    let mut endpoints = Endpoints::new(OURS, 1790, GRACE);
    let link = Link { index: 5, name: "cali1".to_owned(), flags: 1, mtu: 1500, is_bridge: false };
    endpoints.set_links(std::iter::once(&link), now);
    let mut foreign_changes = ForeignChanges::default();
    let fake = Fake::default();
    for (prefix, protocol) in [("10.65.0.1/32", BOOT), ("10.65.0.2/32", OURS)] {
        let route = fake.route(prefix.parse().unwrap(), 5, protocol);
        endpoints.event(&Event::Route { route, replaces: false, by: 7 }, now, &mut foreign_changes);
    }
    assert_eq!(endpoints.take_requests(now, true), super::plan::Batch::default());
    endpoints.set_globals(&globals());
    let gone = |prefix: &str, protocol| EndpointRequest::DeleteRoute {
        ifindex: 5,
        prefix: prefix.parse().unwrap(),
        metric: 0,
        protocol,
    };
    assert_eq!(endpoints.take_requests(now, false).removals, [gone("10.65.0.2/32", OURS)]);
    endpoints.settle(&gone("10.65.0.2/32", OURS), &Ok(()));
    assert_eq!(endpoints.next_wait, Some(now + GRACE));
    endpoints.mark_all_dirty();
    assert_eq!(endpoints.take_requests(now + GRACE / 2, false).removals, []);
    endpoints.mark_all_dirty();
    assert_eq!(endpoints.take_requests(now + GRACE, false).removals, [gone("10.65.0.1/32", BOOT)]);
    assert_eq!(foreign_changes.objects, 0);
}
