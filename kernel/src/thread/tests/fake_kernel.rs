//! An in-memory kernel with the properties on which the planner relies: it can refuse, lose answers, and be
//! changed by other processes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tortie_net::Cidr;

use crate::fib::request::{Request, RouteContent};
use crate::fib::table::Table;
use crate::netlink::codec::Put;
use crate::netlink::link::Link;
use crate::netlink::nexthop::{Content, Nexthop};
use crate::netlink::route::{Leg, RTN_BLACKHOLE, RTN_UNICAST, Route};
use crate::netlink::socket::Refusal;
use crate::options::Marks;

pub(super) const MARKS: Marks = Marks { protocol: 179, metric: 1790, nexthop_base: 0x5400_0000 };
pub(super) const DEVICES: [u32; 2] = [1, 2];

/// State of the in-memory kernel.
#[derive(Default)]
pub(super) struct FakeKernel {
    pub(super) nexthops: BTreeMap<u32, Content>,
    /// Tortie's routes, by prefix and metric.
    pub(super) routes: BTreeMap<(Cidr, u32), InstalledRoute>,
    pub(super) foreign: BTreeSet<Cidr>,
    pub(super) down: BTreeSet<u32>,
    pub(super) requests: usize,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum InstalledRoute {
    Blackhole,
    Nexthop(u32),
    Plain(Vec<Leg>),
}

/// Treatment of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fate {
    Fair,
    Refused,
    LostUndone,
    LostDone,
}

pub(super) fn no(code: i32) -> Result<(), Refusal> {
    Err(Refusal { code, text: format!("errno {code}") })
}

impl FakeKernel {
    pub(super) fn carry_out(&mut self, table: &Table, request: &Request) -> Result<(), Refusal> {
        match request {
            Request::PutNexthop { id, content, put } => {
                if *put == Put::Add && self.nexthops.contains_key(id) {
                    return no(libc::EEXIST);
                }
                match content {
                    Content::Single { ifindex, .. } if self.down.contains(ifindex) => {
                        return no(libc::ENETDOWN);
                    }
                    Content::Group(members) if members.iter().any(|m| !self.nexthops.contains_key(m)) => {
                        return no(libc::EINVAL);
                    }
                    _ => {}
                }
                self.nexthops.insert(*id, content.clone());
            }
            Request::DeleteNexthop { id } => {
                let used = self.routes.values().any(|r| *r == InstalledRoute::Nexthop(*id))
                    || self.nexthops.values().any(|c| matches!(c, Content::Group(m) if m.contains(id)));
                assert!(!used, "{id:#x} is deleted under a route or a group");
                return if self.nexthops.remove(id).is_some() { Ok(()) } else { no(libc::ENOENT) };
            }
            Request::PutRoute { prefix, metric, content, put, .. } => {
                let said = match content {
                    RouteContent::Blackhole => InstalledRoute::Blackhole,
                    RouteContent::Nexthop(id) if self.nexthops.contains_key(id) => {
                        InstalledRoute::Nexthop(*id)
                    }
                    RouteContent::Nexthop(_) => return no(libc::EINVAL),
                    RouteContent::Plain(target) => {
                        let legs = table.objects().legs(*target, &|_, _| false);
                        if legs.iter().any(|l| self.down.contains(&l.ifindex)) {
                            return no(libc::ENETDOWN);
                        }
                        InstalledRoute::Plain(legs.to_vec())
                    }
                };
                if self.foreign.contains(prefix) && *metric == MARKS.metric {
                    assert_eq!(*put, Put::Add, "{prefix}: a foreign route is replaced");
                    return no(libc::EEXIST);
                }
                let place = (*prefix, *metric);
                if *put == Put::Add && self.routes.contains_key(&place) {
                    return no(libc::EEXIST);
                }
                self.routes.insert(place, said);
            }
            Request::DeleteRoute { prefix, metric, .. } => {
                let removed = self.routes.remove(&(*prefix, *metric));
                return if removed.is_some() { Ok(()) } else { no(libc::ESRCH) };
            }
        }
        Ok(())
    }

    /// Removes an object and, silently, the objects and routes that depend on it.
    pub(super) fn drop_nexthop(&mut self, id: u32) {
        self.nexthops.remove(&id);
        self.routes.retain(|_, r| *r != InstalledRoute::Nexthop(id));
        let mut empty = Vec::new();
        for (gid, content) in &mut self.nexthops {
            if let Content::Group(members) = content {
                members.retain(|m| *m != id);
                if members.is_empty() {
                    empty.push(*gid);
                }
            }
        }
        empty.into_iter().for_each(|gid| self.drop_nexthop(gid));
    }

    pub(super) fn device_down(&mut self, ifindex: u32) {
        self.down.insert(ifindex);
        let dead: Vec<u32> = self
            .nexthops
            .iter()
            .filter(|(_, c)| matches!(c, Content::Single { ifindex: i, .. } if *i == ifindex))
            .map(|(id, _)| *id)
            .collect();
        dead.into_iter().for_each(|id| self.drop_nexthop(id));
        self.routes.retain(
            |_, r| !matches!(r, InstalledRoute::Plain(legs) if legs.iter().any(|l| l.ifindex == ifindex)),
        );
    }

    /// Returns a route of a prefix: its metric, and what it does.
    pub(super) fn route_of(&mut self, prefix: Cidr) -> Option<(u32, &mut InstalledRoute)> {
        let found = self.routes.range_mut((prefix, 0)..).next().filter(|((at, _), _)| *at == prefix)?;
        Some((found.0.1, found.1))
    }

    pub(super) fn nexthop_list(&self) -> FxHashMap<u32, Nexthop> {
        let one = |(id, content): (&u32, &Content)| {
            (*id, Nexthop { id: *id, protocol: MARKS.protocol, content: content.clone() })
        };
        self.nexthops.iter().map(one).collect()
    }

    pub(super) fn route_list(&self) -> Vec<Route> {
        let one = |((prefix, metric), said): (&(Cidr, u32), &InstalledRoute)| {
            let (kind, nexthop, legs) = match said {
                InstalledRoute::Blackhole => (RTN_BLACKHOLE, 0, SmallVec::new()),
                InstalledRoute::Nexthop(id) => (RTN_UNICAST, *id, SmallVec::new()),
                InstalledRoute::Plain(legs) => (RTN_UNICAST, 0, SmallVec::from_slice(legs)),
            };
            Route { metric: *metric, ..own_route(*prefix, kind, nexthop, legs) }
        };
        self.routes.iter().map(one).collect()
    }

    /// Returns the effect on packets: the gateways of each prefix and metric, `None` for a blackhole.
    pub(super) fn meaning(&self) -> BTreeMap<(Cidr, u32), Option<BTreeSet<IpAddr>>> {
        let gateways = |id: &u32| match &self.nexthops[id] {
            Content::Single { gateway, .. } => vec![*gateway],
            Content::Group(members) => members
                .iter()
                .map(|m| match &self.nexthops[m] {
                    Content::Single { gateway, .. } => *gateway,
                    other => panic!("a member is {other:?}"),
                })
                .collect(),
            Content::Other => vec![],
        };
        let one = |(place, said): (&(Cidr, u32), &InstalledRoute)| {
            let said = match said {
                InstalledRoute::Blackhole => None,
                InstalledRoute::Nexthop(id) => Some(gateways(id).into_iter().collect()),
                InstalledRoute::Plain(legs) => Some(legs.iter().filter_map(|l| l.gateway).collect()),
            };
            (*place, said)
        };
        self.routes.iter().map(one).collect()
    }
}

pub(super) fn own_route(prefix: Cidr, kind: u8, nexthop: u32, legs: SmallVec<[Leg; 1]>) -> Route {
    Route { prefix, tos: 0, protocol: MARKS.protocol, kind, metric: MARKS.metric, nexthop, legs }
}

pub(super) fn link(index: u32, up: bool) -> Link {
    let flags = if up { 0x1_0041 } else { 1 };
    Link { index, name: format!("eth{index}"), flags, mtu: 1500, is_bridge: false }
}

pub(super) fn connected(ifindex: u32) -> Route {
    let leg = Leg { ifindex, gateway: None, onlink: false };
    let prefix = format!("192.0.{ifindex}.0/24").parse().unwrap();
    let mut route = own_route(prefix, RTN_UNICAST, 0, SmallVec::from_slice(&[leg]));
    (route.protocol, route.metric) = (2, 0);
    route
}

pub(super) fn foreign_route(prefix: Cidr) -> Route {
    let mut route = own_route(prefix, RTN_BLACKHOLE, 0, SmallVec::new());
    route.protocol = 12;
    route
}
