//! Foreign routes of the main table by prefix, and the number of them per nexthop object.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smallvec::SmallVec;
use tortie_net::Cidr;

use super::tries::Tries;
use crate::netlink::route::{Leg, RTN_UNICAST, Route};

/// A route of another process in the main table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignRoute {
    /// Protocol of the route (`rtm_protocol`).
    pub protocol: u8,
    /// Metric of the route.
    pub metric: u32,
    /// True for a unicast route; false for a blackhole or another type that drops packets.
    pub unicast: bool,
}

/// A foreign route; the prefix is its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ForeignEntry {
    pub(super) metric: u32,
    pub(super) protocol: u8,
    pub(super) tos: u8,
    pub(super) kind: u8,
    nexthop: u32,
    pub(super) legs: SmallVec<[Leg; 1]>,
}

impl ForeignEntry {
    fn of(route: Route) -> (Cidr, Self) {
        let Route { prefix, tos, protocol, kind, metric, nexthop, legs } = route;
        (prefix, Self { metric, protocol, tos, kind, nexthop, legs })
    }

    /// Returns true if the legs are routes by themselves, as in IPv6: they are added and removed separately,
    /// each with its own protocol, and no two legs of one metric are equal. A notification of a growing set
    /// contains all legs.
    fn has_own_legs(&self, prefix: &Cidr) -> bool {
        !prefix.is_v4() && self.nexthop == 0 && !self.legs.is_empty()
    }

    /// Returns true if both belong to the set of legs that the kernel forms of one metric.
    pub(super) fn is_sibling(&self, other: &Self) -> bool {
        self.nexthop == 0 && other.nexthop == 0 && self.metric == other.metric && self.tos == other.tos
    }
}

/// Number of foreign routes.
#[derive(Debug, Default)]
struct Counts {
    all: usize,
    /// Number of routes by nexthop object.
    over: BTreeMap<u32, usize>,
}

impl Counts {
    fn add(&mut self, routes: &[ForeignEntry]) {
        self.all += routes.len();
        for route in routes.iter().filter(|f| f.nexthop != 0) {
            *self.over.entry(route.nexthop).or_default() += 1;
        }
    }

    fn take(&mut self, routes: &[ForeignEntry]) {
        self.all -= routes.len();
        for route in routes.iter().filter(|f| f.nexthop != 0) {
            if let Entry::Occupied(mut over) = self.over.entry(route.nexthop) {
                *over.get_mut() -= 1;
                if *over.get() == 0 {
                    over.remove();
                }
            }
        }
    }
}

/// The foreign routes of both families.
#[derive(Debug, Default)]
pub(super) struct ForeignRoutes {
    by_prefix: Tries<SmallVec<[ForeignEntry; 1]>>,
    counts: Counts,
}

impl ForeignRoutes {
    /// Returns the links of default routes.
    pub(super) fn default_links(&self) -> impl Iterator<Item = u32> {
        [Cidr::v4(Ipv4Addr::UNSPECIFIED, 0), Cidr::v6(Ipv6Addr::UNSPECIFIED, 0)]
            .into_iter()
            .filter_map(|prefix| self.by_prefix.get(&prefix))
            .flatten()
            .flat_map(|entry| entry.legs.iter().map(|leg| leg.ifindex))
    }

    /// Adds a foreign route; with `replaces`, it replaces the first one with its metric.
    pub(super) fn add(&mut self, route: Route, replaces: bool) {
        let (prefix, new) = ForeignEntry::of(route);
        let Some(there) = self.by_prefix.get_mut(&prefix) else {
            let new = SmallVec::from_iter([new]);
            self.counts.add(&new);
            self.by_prefix.insert(&prefix, new);
            return;
        };
        self.counts.take(there);
        if replaces && let Some(first) = there.iter_mut().find(|f| f.metric == new.metric && f.tos == new.tos)
        {
            *first = new;
        } else if !there.contains(&new) {
            if new.has_own_legs(&prefix) {
                // The smaller set that it replaces.
                let inside = |f: &ForeignEntry| f.legs.iter().all(|leg| new.legs.contains(leg));
                there.retain(|f| !(f.is_sibling(&new) && f.has_own_legs(&prefix) && inside(f)));
            }
            there.push(new);
        }
        self.counts.add(there);
    }

    /// Removes a foreign route; `false` if the known route was different.
    pub(super) fn remove(&mut self, route: Route) -> bool {
        let (prefix, gone) = ForeignEntry::of(route);
        let Some(there) = self.by_prefix.get_mut(&prefix) else { return true };
        self.counts.take(there);
        let alike =
            |f: &ForeignEntry| f.metric == gone.metric && f.protocol == gone.protocol && f.tos == gone.tos;
        let mut known = true;
        if let Some(at) = there.iter().position(|f| *f == gone) {
            there.remove(at);
        } else if gone.has_own_legs(&prefix) {
            let mut left = gone.legs.len();
            there.retain(|f| {
                if !f.is_sibling(&gone) || !f.has_own_legs(&prefix) {
                    return true;
                }
                let legs = f.legs.len();
                f.legs.retain(|leg| !gone.legs.contains(leg));
                left = left.saturating_sub(legs - f.legs.len());
                !f.legs.is_empty()
            });
            known = left == 0;
        } else {
            known = false;
            if let Some(at) = there.iter().position(alike) {
                there.remove(at);
            }
        }
        self.counts.add(there);
        if there.is_empty() {
            self.by_prefix.remove(&prefix);
        }
        known
    }

    /// Returns the foreign routes for exactly this prefix, as a view.
    pub(super) fn at(&self, prefix: &Cidr) -> Vec<ForeignRoute> {
        let routes = self.get(prefix).iter().filter(|f| f.tos == 0);
        let shown = |f: &ForeignEntry| ForeignRoute {
            protocol: f.protocol,
            metric: f.metric,
            unicast: f.kind == RTN_UNICAST,
        };
        routes.map(shown).collect()
    }

    /// Returns the routes that cover an address, longest prefix first.
    pub(super) fn covering(&self, addr: IpAddr) -> impl Iterator<Item = (Cidr, &[ForeignEntry])> {
        self.by_prefix.covering(addr).into_iter().map(|(prefix, routes)| (prefix, routes.as_slice()))
    }

    /// Returns the routes for exactly this prefix.
    pub(super) fn get(&self, prefix: &Cidr) -> &[ForeignEntry] {
        self.by_prefix.get(prefix).map_or(&[], SmallVec::as_slice)
    }

    pub(super) fn count(&self) -> usize {
        self.counts.all
    }

    /// Returns true if a route uses this nexthop object.
    pub(super) fn uses_object(&self, id: u32) -> bool {
        self.counts.over.contains_key(&id)
    }
}
