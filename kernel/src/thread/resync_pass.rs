//! State changes of a resync, the full comparison with the kernel. No I/O.

use tortie_net::Cidr;

use super::state::State;
use crate::endpoints::DumpData;
use crate::netlink::neighbour::Neighbour;
use crate::netlink::nexthop::{Content, Nexthop, NexthopList};
use crate::netlink::route::Route;

/// A resync in progress.
#[derive(Debug, Default)]
pub(crate) struct ResyncPass {
    /// Foreign routes, and Tortie's routes to endpoints.
    foreign: Vec<Route>,
    nexthops: Differences,
    routes: usize,
    first: Option<Cidr>,
}

/// Number of nexthop objects that differed, and of routes removed with them.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Differences {
    objects: usize,
    pub(crate) routes: usize,
}

impl State {
    /// Must be called before the first route. `nexthops` are all objects, if the kernel supports them and the
    /// dump was complete.
    pub(crate) fn begin_comparison(&mut self, nexthops: Option<&NexthopList>) -> ResyncPass {
        let nexthops = nexthops.map(|list| {
            let differing = self.take_nexthops(list);
            self.table.objects_mut().recompute();
            differing
        });
        self.table.begin_compare();
        ResyncPass { nexthops: nexthops.unwrap_or_default(), ..ResyncPass::default() }
    }

    /// Compares one route of the main table.
    pub(crate) fn compare_route(&mut self, found: &mut ResyncPass, route: Route) {
        if !self.is_of_the_table(&route) {
            found.foreign.push(route);
        } else if self.table.compare(&route) {
            found.routes += 1;
            found.first.get_or_insert(route.prefix);
        }
    }

    /// Must be called after the last route; `complete` if none was missing. Differences although no device
    /// `moved` were made by another process.
    pub(crate) fn end_comparison(
        &mut self,
        found: ResyncPass,
        neighbours: &[Neighbour],
        complete: bool,
        moved: bool,
    ) {
        let ResyncPass { foreign, nexthops, mut routes, mut first } = found;
        self.compare_foreign(foreign, neighbours, complete, moved);
        if complete {
            let (missing, example) = self.table.end_compare();
            routes += missing;
            first = first.or(example);
        }
        if moved {
            self.counters.vanished += (nexthops.routes + routes) as u64;
            return;
        }
        self.foreign_changes.note(nexthops.objects, || "nexthops differed in a comparison".to_owned());
        if let Some(prefix) = first {
            self.foreign_changes.note(routes, || format!("route {prefix} differed in a comparison"));
        }
    }

    /// Compares the routes and neighbours of this host's endpoints, and replaces the routes by which next
    /// hops resolve.
    pub(crate) fn compare_foreign(
        &mut self,
        mut foreign: Vec<Route>,
        neighbours: &[Neighbour],
        complete: bool,
        moved: bool,
    ) {
        let reading = DumpData { routes: &foreign, neighbours, complete, moved };
        self.endpoints.compare(&reading, &mut self.foreign_changes);
        let endpoints = &self.endpoints;
        foreign.retain(|route| !endpoints.is_gateway(route));
        self.network.replace_routes(foreign);
    }

    /// Compares Tortie's nexthop objects with a list of all objects.
    pub(crate) fn take_nexthops(&mut self, list: &NexthopList) -> Differences {
        let known: Vec<u32> = self.table.objects().present().map(|(id, _)| id).collect();
        let gone: Vec<u32> = known.into_iter().filter(|id| !list.contains_key(id)).collect();
        let mut changed = Vec::new();
        for nexthop in list.values() {
            if self.nexthop_is_ours(nexthop) {
                changed.push(nexthop);
            } else {
                self.table.objects_mut().reserve(nexthop.id);
            }
        }
        members_first(&mut changed);
        let routes = self.table.lose_objects(&gone);
        let news =
            changed.into_iter().filter(|n| self.table.objects_mut().adopt(n.id, &n.content, false)).count();
        Differences { objects: gone.len() + news, routes }
    }
}

/// Sorts members before groups, so that the content of a group can be interpreted.
pub(super) fn members_first(list: &mut [&Nexthop]) {
    list.sort_unstable_by_key(|n| (matches!(n.content, Content::Group(_)), n.id));
}
