//! Updates the actual state of endpoints from notifications and dumps.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use tortie_net::Cidr;

use super::{EndpointRequest, Endpoints, GATEWAY, Name, Neighbour};
use crate::endpoints::actual::{Sysctls, onlink};
use crate::fib::foreign_changes::ForeignChanges;
use crate::netlink::event::Event;
use crate::netlink::link::Link;
use crate::netlink::route::Route;

/// Cause of the removal of a route.
#[derive(Debug, Clone, Copy)]
enum EventSource {
    Kernel,
    Port(u32),
    Comparison,
}

impl EventSource {
    fn port(port: u32) -> Self {
        if port == 0 { Self::Kernel } else { Self::Port(port) }
    }
}

/// Routes and neighbours from a dump.
pub(crate) struct DumpData<'a> {
    /// Every route of the main table, or only on-link ones.
    pub(crate) routes: &'a [Route],
    /// Every neighbour.
    pub(crate) neighbours: &'a [Neighbour],
    /// True if no on-link route is missing in `routes`.
    pub(crate) complete: bool,
    /// True if a device changed during the dump, which explains missing routes.
    pub(crate) moved: bool,
}

impl Endpoints {
    /// Returns true if a route with Tortie's protocol belongs to endpoints and not to the forwarding table.
    pub(crate) fn is_ours(&self, route: &Route) -> bool {
        route.protocol == self.protocol && route.metric != self.metric && onlink(route).is_some()
    }

    /// Returns true if a route is the one that makes the host answer for the gateway of workloads; it carries
    /// no traffic.
    pub(crate) fn is_gateway(&self, route: &Route) -> bool {
        route.protocol == self.protocol
            && route.prefix == Cidr::host(IpAddr::V4(GATEWAY))
            && self.is_ours(route)
    }

    /// Applies one event of the watch thread.
    pub(crate) fn event(&mut self, event: &Event, now: Instant, foreign_changes: &mut ForeignChanges) {
        match event {
            Event::Link(link) => self.set_link(link, now),
            Event::LinkGone(link) => {
                if let Some(name) = self.actual.remove_link(link.index) {
                    self.link_moved(&name);
                }
            }
            Event::Route { route, replaces, by } => {
                let place = onlink(route);
                if *replaces {
                    for other in self.actual.holders_of(route.prefix, route.metric).to_vec() {
                        if Some(other) != place {
                            self.mark_lost(
                                other,
                                route.prefix,
                                route.metric,
                                EventSource::port(*by),
                                "replaced",
                                foreign_changes,
                            );
                        }
                    }
                }
                if let Some(ifindex) = place
                    && self.actual.add_route(ifindex, route.prefix, route.metric, route.protocol)
                {
                    self.mark_device(ifindex);
                    self.mark_claimants(&route.prefix);
                }
            }
            Event::RouteGone { route, by } => {
                if let Some(ifindex) = onlink(route) {
                    self.mark_lost(
                        ifindex,
                        route.prefix,
                        route.metric,
                        EventSource::port(*by),
                        "deleted",
                        foreign_changes,
                    );
                }
                self.mark_claimants(&route.prefix);
            }
            Event::Address(_)
            | Event::AddressGone(_)
            | Event::Nexthop { .. }
            | Event::NexthopGone { .. }
            | Event::Neighbour { .. } => {}
        }
    }

    /// Replaces all links by a dump.
    pub(crate) fn set_links<'a>(&mut self, links: impl Iterator<Item = &'a Link>, now: Instant) {
        let mut there = BTreeSet::new();
        for link in links {
            there.insert(link.index);
            self.set_link(link, now);
        }
        let gone: Vec<u32> = self.actual.links().map(|(i, _)| i).filter(|i| !there.contains(i)).collect();
        for ifindex in gone {
            if let Some(name) = self.actual.remove_link(ifindex) {
                self.link_moved(&name);
            }
        }
    }

    /// Compares the actual state with a dump. A route that is missing although no device changed was removed
    /// by another process.
    pub(crate) fn compare(&mut self, reading: &DumpData<'_>, foreign_changes: &mut ForeignChanges) {
        self.needs_resync = false;
        let mut shown: BTreeMap<(u32, Cidr, u32), u8> = BTreeMap::new();
        for route in reading.routes {
            if let Some(ifindex) = onlink(route) {
                shown.insert((ifindex, route.prefix, route.metric), route.protocol);
            }
        }
        if reading.complete {
            let missing: Vec<(u32, Cidr, u32)> = self
                .actual
                .links()
                .flat_map(|(i, device)| device.routes.keys().map(move |(p, m)| (i, *p, *m)))
                .filter(|place| !shown.contains_key(place))
                .collect();
            for (ifindex, prefix, metric) in missing {
                let by = if reading.moved { EventSource::Kernel } else { EventSource::Comparison };
                self.mark_lost(ifindex, prefix, metric, by, "deleted", foreign_changes);
            }
        }
        for ((ifindex, prefix, metric), protocol) in shown {
            if self.actual.add_route(ifindex, prefix, metric, protocol) {
                self.mark_device(ifindex);
                self.mark_claimants(&prefix);
            }
        }
        let names: BTreeSet<Name> = self
            .actual
            .replace_neighbours(reading.neighbours)
            .into_iter()
            .filter_map(|ifindex| self.actual.link(ifindex).map(|device| Arc::clone(&device.name)))
            .collect();
        for name in names {
            let work = self.difference(&name, Instant::now()).work;
            let wrong = work.iter().filter(|w| matches!(w, EndpointRequest::PutNeighbour { .. })).count();
            if !reading.moved && !self.dirty.contains(&name) {
                foreign_changes.note(wrong, || format!("neighbours of {name} differed in a comparison"));
            }
            self.dirty.insert(name);
        }
    }

    /// Marks the sysctls of all interfaces for another check.
    pub(crate) fn mark_sysctls_unverified(&mut self) {
        let devices: Vec<u32> = self.actual.links().map(|(i, _)| i).collect();
        for ifindex in devices {
            if let Some(device) = self.actual.link_mut(ifindex)
                && matches!(device.sysctls, Sysctls::Verified { .. })
            {
                device.sysctls = Sysctls::Stale;
                self.dirty.insert(Arc::clone(&device.name));
            }
        }
    }

    /// Returns true if the sysctls of an interface were correct at the last check.
    pub(super) fn sysctls_verified(&self, name: &str) -> bool {
        self.actual.link_named(name).is_some_and(|(_, device)| device.sysctls == Sysctls::Stale)
    }

    /// Returns true if a resync is needed because the kernel disagreed with the actual state.
    pub(crate) fn needs_resync(&self) -> bool {
        self.needs_resync
    }

    fn set_link(&mut self, link: &Link, now: Instant) {
        for name in self.actual.set_link(link, now) {
            self.link_moved(&name);
        }
    }

    /// Handles a link that was added, removed, or set up or down: the holders of its prefixes may change.
    fn link_moved(&mut self, name: &Name) {
        self.mark(name);
        let prefixes: Vec<Cidr> = self
            .interfaces
            .get(name)
            .into_iter()
            .flat_map(|place| &place.endpoints)
            .filter_map(|key| self.intents.get(key))
            .flat_map(super::EndpointIntent::prefixes)
            .filter(|prefix| self.claims.of(prefix).len() > 1)
            .collect();
        for prefix in prefixes {
            self.mark_claimants(&prefix);
        }
    }

    fn mark_device(&mut self, ifindex: u32) {
        if let Some(device) = self.actual.link(ifindex) {
            self.dirty.insert(Arc::clone(&device.name));
        }
    }

    fn mark_lost(
        &mut self,
        ifindex: u32,
        prefix: Cidr,
        metric: u32,
        by: EventSource,
        verb: &str,
        foreign_changes: &mut ForeignChanges,
    ) {
        let gateway = prefix == Cidr::host(IpAddr::V4(GATEWAY));
        let right = self.actual.link(ifindex).is_some_and(|device| {
            device.up && (self.is_held_by(&prefix, &device.name) || (gateway && &*device.name == "lo"))
        });
        let name = self.actual.link(ifindex).map(|device| Arc::clone(&device.name));
        if self.actual.remove_route(ifindex, prefix, metric) {
            let name = name.as_deref().unwrap_or("?");
            match by {
                EventSource::Port(port) if right => {
                    foreign_changes
                        .note(1, || format!("route {prefix} dev {name} was {verb} by port {port}"));
                }
                EventSource::Comparison if right => {
                    foreign_changes
                        .note(1, || format!("route {prefix} dev {name} was missing in a comparison"));
                }
                _ => {}
            }
            self.mark_device(ifindex);
            self.mark_claimants(&prefix);
        }
    }
}
