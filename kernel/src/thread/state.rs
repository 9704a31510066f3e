//! State of the kernel thread, and its changes by messages and events. No I/O: the event loop sends the
//! requests.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tortie_net::{Cidr, ScopedAddr};

use super::metrics::KernelMetrics;
use crate::counters::{self, Counters};
use crate::endpoints::{self, Endpoints};
use crate::fib::foreign_changes::ForeignChanges;
use crate::fib::ipip_tunnel;
use crate::fib::network::{NetworkState, NextHopAnswer};
use crate::fib::next_hops::MainTable;
use crate::fib::plan;
use crate::fib::request::{Outcome, Request, TunnelLinks};
use crate::fib::table::Table;
use crate::fib::table::store_routes::RemoteLinks;
use crate::intent::KernelIntent;
use crate::netlink::event::Event;
use crate::netlink::link::{Address, Link};
use crate::netlink::nexthop::Nexthop;
use crate::netlink::route::Route;
use crate::options::Mode;
use crate::options::Options;
use crate::vxlan;
use tortie_engine::routing::LearnedChange;
use tortie_engine::routing::{
    ChangeId, KernelRoute, RoutingView, Step, StepOutcome, explain_kernel_route, kernel_route, metric_of,
};

/// Numbers of written and deleted routes.
#[derive(Debug, Default)]
pub(crate) struct Written {
    pub(crate) written: usize,
    pub(crate) deleted: usize,
}

impl std::ops::AddAssign for Written {
    fn add_assign(&mut self, more: Self) {
        self.written += more.written;
        self.deleted += more.deleted;
    }
}

/// Work that is due after events.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Pending {
    /// Tortie's nexthop objects may have been removed: list them now.
    pub(crate) nexthops: bool,
    /// Silent changes are possible: resync soon.
    pub(crate) compare: bool,
    /// The IPIP device may have changed.
    pub(crate) tunnel: bool,
    /// A VXLAN device or its entries may have changed.
    pub(crate) vxlan: bool,
    /// Failed requests may succeed now.
    pub(crate) retry: bool,
    /// Interfaces were added, removed, renamed or readdressed.
    pub(crate) interfaces: bool,
}

/// The state of the kernel thread.
pub(crate) struct State {
    pub(super) mode: Mode,
    pub(super) table: Table,
    pub(super) network: NetworkState,
    /// Next hops whose resolution changed since the routes over them were decided.
    moved_hops: BTreeSet<ScopedAddr>,
    pub(super) endpoints: Endpoints,
    pub(super) intent: Option<Arc<KernelIntent>>,
    view: Arc<RoutingView>,
    pub(super) tunnel_problem: Option<String>,
    pub(super) counters: Counters,
    pub(super) metrics: KernelMetrics,
    pub(super) foreign_changes: ForeignChanges,
    pub(super) last_compare: Option<(Instant, Duration)>,
}

impl State {
    pub(crate) fn new(mode: Mode, table: Table, endpoints: Endpoints) -> Self {
        Self {
            mode,
            table,
            endpoints,
            network: NetworkState::default(),
            moved_hops: BTreeSet::new(),
            intent: None,
            view: Arc::default(),
            tunnel_problem: None,
            counters: Counters::default(),
            metrics: KernelMetrics::default(),
            foreign_changes: ForeignChanges::default(),
            last_compare: None,
        }
    }

    /// Creates an empty state.
    pub(crate) fn empty(options: &Options, nexthop_objects: bool) -> Self {
        let endpoints = Endpoints::new(options.marks.protocol, options.marks.metric, options.grace);
        Self::new(options.mode, Table::new(options.marks, nexthop_objects), endpoints)
    }

    /// Returns the parts of the state that requests of endpoints need.
    pub(crate) fn endpoint_context(&mut self) -> endpoints::Context<'_> {
        endpoints::Context {
            program: self.mode == Mode::Program,
            endpoints: &mut self.endpoints,
            network: &mut self.network,
            counters: &mut self.counters,
            foreign_changes: &mut self.foreign_changes,
            route_batch: &mut self.metrics.route_batch,
        }
    }

    /// Runs `change` on the table with the decision function for the present network state.
    fn with_decide<T>(
        &mut self,
        change: impl FnOnce(&mut Table, &mut crate::fib::table::Decide<'_>) -> T,
    ) -> T {
        let (network, view, tunnel) = (&mut self.network, &self.view, self.table.has_ipip());
        let mut decide = |prefix: Cidr, hops: &[ScopedAddr]| -> KernelRoute {
            for hop in hops {
                network.track(*hop, false);
            }
            let legs = |hop| network.answer(hop).map(|answer| answer.within(&prefix).iter().copied());
            kernel_route(view, prefix, hops, |hop| legs(hop).into_iter().flatten(), tunnel)
        };
        change(&mut self.table, &mut decide)
    }

    /// Returns the desired main table, for resolving next hops.
    pub(super) fn main_table(&self) -> MainTable<'_> {
        MainTable {
            network: &self.network,
            table: &self.table,
            view: &self.view,
            tunnel_present: self.table.has_ipip(),
        }
    }

    /// Returns the address of this host in a family.
    pub(crate) fn node_addr(&self, v4: bool) -> Option<IpAddr> {
        if v4 { self.view.node_v4 } else { self.view.node_v6 }
    }

    /// Accepts a new intent, and decides again on routes that may differ.
    pub(crate) fn accept_intent(&mut self, intent: Arc<KernelIntent>) {
        let old = std::mem::replace(&mut self.view, Arc::clone(&intent.view));
        let same = old.pools == self.view.pools
            && old.ipip_from_store == self.view.ipip_from_store
            && old.network_v4 == self.view.network_v4
            && (old.node_v4, old.node_v6) == (self.view.node_v4, self.view.node_v6);
        let moved = self.with_decide(|table, decide| {
            let mut moved = table.set_blackholes(&intent.blackholes, intent.change, decide);
            moved.extend(table.set_store_routes(&intent.store_routes, intent.change, decide));
            if !same {
                table.decide_again(&|_| true, intent.change, decide);
            }
            moved
        });
        for prefix in moved {
            self.network.mark_dirty_inside(&prefix);
        }
        if !same {
            self.network.mark_all_dirty();
        }
        self.intent = Some(intent);
        self.check_tunnel();
    }

    /// Learns a batch of routes and resolves the next hops that they cover. Consequences for other routes
    /// wait for [`State::follow_next_hops`].
    pub(crate) fn learn(&mut self, batch: &[LearnedChange]) {
        let view = Arc::clone(&self.view);
        // A route to a workload that moves is better than the one to its interface on this host. All others
        // have Tortie's usual metric: BIRD's routes, which Tortie leaves alone, may have that of LOCAL_PREF.
        let metric = |change: &LearnedChange| match (&view.calico3, change.local_pref) {
            (Some(store), Some(pref)) if store.is_better_than_normal(&change.prefix, pref) => {
                // The kernel's default of IPv6 routes takes the place of 0.
                metric_of(pref).max(1)
            }
            _ => 0,
        };
        let moved: Vec<Cidr> = self.with_decide(|table, decide| {
            let learn = |change: &&LearnedChange| {
                table.learn(change.prefix, &change.next_hops, metric(change), change.change, decide)
            };
            batch.iter().filter(learn).map(|change| change.prefix).collect()
        });
        for prefix in &moved {
            self.network.mark_dirty_inside(prefix);
        }
        self.resolve_next_hops();
    }

    /// Resolves next hops whose resolution may have changed.
    fn resolve_next_hops(&mut self) {
        let dirty = self.network.take_dirty();
        if dirty.is_empty() {
            return;
        }
        let table = self.main_table();
        let answers: Vec<(ScopedAddr, NextHopAnswer)> =
            dirty.into_iter().map(|addr| (addr, table.answer(addr))).collect();
        for (addr, answer) in answers {
            if self.network.set_answer(addr, answer) {
                self.moved_hops.insert(addr);
            }
        }
    }

    /// Marks stale routes for deletion and returns their number.
    pub(crate) fn sweep(&mut self) -> usize {
        self.network.mark_all_dirty();
        self.table.sweep()
    }

    /// Returns true if resolutions changed since the last [`State::follow_next_hops`].
    pub(crate) fn has_moved_hops(&self) -> bool {
        !self.moved_hops.is_empty()
    }

    /// Starts to track a next hop and returns its resolution.
    pub(crate) fn track(&mut self, addr: ScopedAddr) -> NextHopAnswer {
        self.network.track(addr, true);
        self.resolve_next_hops();
        self.network.answer(addr).cloned().unwrap_or_default()
    }

    /// Applies the kernel's answers to the actual state.
    pub(crate) fn settle(&mut self, requests: &[Request], answers: &[Outcome]) -> Written {
        let Self { table, counters, .. } = self;
        let mut done = Written::default();
        for (request, answer) in requests.iter().zip(answers) {
            let settled = plan::settle(table, request, answer).is_none();
            match request {
                Request::PutRoute { .. } if settled => done.written += 1,
                Request::DeleteRoute { .. } if settled => done.deleted += 1,
                _ => {}
            }
            let errno = answer.as_ref().err().map(|refusal| refusal.code);
            let of = counters.ops.get_mut(crate::fib::request::kind(request));
            if let Some(count) = of.and_then(|of| of.get_mut(counters::class(errno))) {
                *count += 1;
            }
        }
        done
    }

    /// Explains the decision on a prefix that was learned, or on a peer with a gateway, step by step; `None` if
    /// it is neither.
    pub(crate) fn explain(&self, prefix: &Cidr) -> Option<(KernelRoute, Vec<Step>)> {
        let hops = self.table.wanted_hops(prefix, self.table.entries().get(prefix)?)?;
        let answer = |hop| self.network.answer(hop).map(|answer| answer.within(prefix).iter().copied());
        let resolve = |hop| answer(hop).into_iter().flatten();
        let (route, mut steps) =
            explain_kernel_route(&self.view, *prefix, hops, resolve, self.table.has_ipip());
        steps.splice(0..0, hops.iter().filter_map(|hop| self.explain_next_hop(*hop, prefix)));
        Some((route, steps))
    }

    /// Explains the resolution of a next hop over learned routes, or its failure.
    fn explain_next_hop(&self, hop: ScopedAddr, prefix: &Cidr) -> Option<Step> {
        let resolution = self.main_table().resolution(hop, prefix);
        let through: Vec<String> = resolution.through.iter().map(Cidr::to_string).collect();
        let (outcome, text) = match (resolution.legs.is_empty(), resolution.looped) {
            (false, _) if through.is_empty() => return None,
            (false, _) => (
                StepOutcome::Passed,
                format!("{hop}: reached by the learned route {}", through.join(" over ")),
            ),
            (true, Some(looped)) => {
                let text = format!(
                    "{hop}: only the learned route {looped} covers it, which would resolve through itself"
                );
                (StepOutcome::No, text)
            }
            (true, None) => return None,
        };
        Some(Step { name: "recursion", outcome, text })
    }

    /// Checks if the tunnel device exists and is up; after a change, decides again on all routes.
    pub(crate) fn check_tunnel(&mut self) {
        let device = self.network.link_named(ipip_tunnel::DEVICE);
        let wanted = self.intent.as_ref().is_some_and(|i| i.tunnel.is_some());
        let present = wanted && device.is_some_and(Link::is_up);
        let ifindex = device.map_or(0, |l| l.index);
        let tunnels = TunnelLinks { ipip: ifindex, ..self.table.objects().tunnels() };
        self.table.objects_mut().set_tunnels(tunnels);
        if present != self.table.has_ipip() {
            self.table.set_ipip(present);
            let moved = ChangeId::default();
            self.with_decide(|table, decide| {
                table.decide_remotes(decide);
                table.decide_again(&|_| true, moved, decide);
            });
            self.network.mark_all_dirty();
        }
    }

    /// Sets the interfaces of the VXLAN, and decides again on the routes of the store if they changed.
    pub(crate) fn set_vxlan(&mut self, devices: [u32; 2], links: RemoteLinks) {
        let tunnels = TunnelLinks { vxlan: devices, ..self.table.objects().tunnels() };
        self.table.objects_mut().set_tunnels(tunnels);
        let moved = self.with_decide(|table, decide| table.set_remote_links(links, decide));
        for prefix in moved {
            self.network.mark_dirty_inside(&prefix);
        }
    }

    /// Finds the VXLAN devices that exist, before nexthop objects on them are adopted: whether they are right
    /// is known only with the intent.
    pub(crate) fn find_vxlan_devices(&mut self) {
        let index = |v4| self.network.link_named(vxlan::name(v4)).map_or(0, |link| link.index);
        let tunnels = TunnelLinks { vxlan: [index(true), index(false)], ..self.table.objects().tunnels() };
        self.table.objects_mut().set_tunnels(tunnels);
    }

    /// Returns true for the name of a VXLAN device.
    fn is_vxlan(name: &str) -> bool {
        [true, false].into_iter().any(|v4| vxlan::name(v4) == name)
    }

    /// Decides again on routes whose next hops changed; returns the changed next hops that are tracked.
    pub(crate) fn follow_next_hops(&mut self) -> Vec<(ScopedAddr, NextHopAnswer)> {
        self.resolve_next_hops();
        let moved = std::mem::take(&mut self.moved_hops);
        if moved.is_empty() {
            return Vec::new();
        }
        self.with_decide(|table, decide| {
            let concerned = |hops: &[ScopedAddr]| hops.iter().any(|h| moved.contains(h));
            table.decide_again(&concerned, ChangeId::default(), decide);
        });
        let tracked = moved.into_iter().filter(|addr| self.network.is_tracked(*addr));
        tracked.map(|addr| (addr, self.network.answer(addr).cloned().unwrap_or_default())).collect()
    }

    /// Stops tracking next hops that are unused.
    pub(crate) fn forget_next_hops(&mut self) {
        let used: BTreeSet<ScopedAddr> = self.table.next_hops().collect();
        self.network.forget_unused(&used);
    }

    /// Applies one event of the watch thread.
    pub(crate) fn event(&mut self, event: Event, due: &mut Pending) {
        match event {
            Event::Link(link) => {
                let (index, can_carry, up) = (link.index, link.can_carry(), link.is_up());
                due.tunnel |= link.name == ipip_tunnel::DEVICE;
                due.vxlan |= Self::is_vxlan(&link.name);
                let mtu = link.mtu;
                let name = link.name.clone();
                let old = self.network.set_link(link);
                due.interfaces |= old.as_ref().is_none_or(|o| o.name != name);
                // The device was renamed, or the underlying link has another MTU.
                due.tunnel |= old.as_ref().is_some_and(|o| o.name == ipip_tunnel::DEVICE || o.mtu != mtu);
                due.vxlan |= old.as_ref().is_some_and(|o| Self::is_vxlan(&o.name) || o.mtu != mtu);
                let moved = old.is_none_or(|o| o.can_carry() != can_carry || o.is_up() != up);
                if moved {
                    due.nexthops |= self.table.objects().uses_device(index);
                    due.compare = true;
                    due.retry |= can_carry;
                }
            }
            Event::LinkGone(link) => {
                due.tunnel |= link.name == ipip_tunnel::DEVICE;
                due.vxlan |= Self::is_vxlan(&link.name);
                due.nexthops |= self.table.objects().uses_device(link.index);
                due.compare = true;
                due.interfaces = true;
                self.network.remove_link(link.index);
            }
            Event::Address(address) => {
                due.tunnel |= self.concerns_tunnel(&address);
                due.vxlan |= self.concerns_vxlan(&address);
                due.retry = true;
                due.interfaces = true;
                self.network.add_address(address);
            }
            Event::AddressGone(address) => {
                due.tunnel |= self.concerns_tunnel(&address);
                due.vxlan |= self.concerns_vxlan(&address);
                due.nexthops |= self.table.objects().uses_device(address.ifindex);
                due.compare = true;
                due.interfaces = true;
                self.network.remove_address(&address);
            }
            Event::Route { route, replaces, by } if self.is_of_the_table(&route) => {
                let (prefix, stray) = (route.prefix, !self.is_at_own_metric(&route));
                let differs = self.table.compare(&route);
                let wrong = if stray { self.table.is_swept() } else { !self.is_entry_in_sync(&prefix) };
                if differs && by != 0 && wrong {
                    let verb = if replaces { "changed" } else { "added" };
                    if !stray {
                        self.table.drift_hold_mut().record(prefix, verb, by);
                    }
                    self.foreign_changes.note(1, || format!("route {prefix} was {verb} by port {by}"));
                }
            }
            Event::Route { route, .. } if self.endpoints.is_gateway(&route) => {}
            Event::Route { route, replaces, by } => {
                let (prefix, is_at_own_metric) = (route.prefix, self.is_at_own_metric(&route));
                // Only one leg of an IPv6 route carries its protocol.
                due.compare |= !prefix.is_v4() && route.legs.len() > 1;
                self.network.add_route(route, replaces);
                if replaces && is_at_own_metric && self.table.lose(prefix) {
                    self.table.drift_hold_mut().record(prefix, "replaced", by);
                    self.foreign_changes.note(1, || format!("route {prefix} was replaced by port {by}"));
                }
            }
            Event::RouteGone { route, by } if self.is_of_the_table(&route) => {
                let prefix = route.prefix;
                if self.is_at_own_metric(&route) {
                    let wanted = self.is_entry_in_sync(&prefix);
                    self.network.mark_dirty_inside(&prefix);
                    if self.table.lose(prefix) && by != 0 && wanted {
                        self.table.drift_hold_mut().record(prefix, "deleted", by);
                        self.foreign_changes.note(1, || format!("route {prefix} was deleted by port {by}"));
                    }
                } else {
                    self.table.remove_stray(prefix, route.metric);
                }
            }
            Event::RouteGone { route, .. } => {
                let (prefix, is_at_own_metric) = (route.prefix, self.is_at_own_metric(&route));
                // Legs of a Tortie route may be in the same set.
                due.compare |=
                    !prefix.is_v4() && !route.legs.is_empty() && route.nexthop == 0 && is_at_own_metric;
                due.compare |= !self.network.remove_route(route);
                if is_at_own_metric {
                    self.table.mark_prefix(&prefix);
                }
            }
            Event::Nexthop { nexthop, by } => {
                let id = nexthop.id;
                if self.nexthop_is_ours(&nexthop) {
                    if self.table.objects_mut().adopt(id, &nexthop.content, false) && by != 0 {
                        self.foreign_changes.note(1, || format!("nexthop {id:#x} was changed by port {by}"));
                    }
                } else {
                    due.compare |= self.network.uses_object(id);
                    self.table.objects_mut().reserve(id);
                }
            }
            Event::Neighbour { ifindex } => {
                due.vxlan |= self.table.objects().tunnels().vxlan.contains(&ifindex);
            }
            Event::NexthopGone { nexthop, by } => {
                let id = nexthop.id;
                if self.nexthop_is_ours(&nexthop) {
                    let routes = self.table.lose_objects(&[id]);
                    if by == 0 {
                        self.counters.vanished += routes as u64;
                    } else {
                        self.foreign_changes
                            .note(routes + 1, || format!("nexthop {id:#x} was deleted by port {by}"));
                    }
                    // Groups with it as a member have changed; the list shows which. Requests refused for its
                    // absence may succeed after it is written again.
                    due.nexthops = true;
                    due.retry = true;
                } else {
                    due.compare |= self.network.uses_object(id);
                }
            }
        }
    }

    /// Returns true if a nexthop object is Tortie's by protocol and ID. One that Tortie wrote stays Tortie's
    /// if another process replaces it.
    pub(crate) fn nexthop_is_ours(&self, nexthop: &Nexthop) -> bool {
        self.table.objects().is_own(nexthop, self.table.marks().protocol)
            || self.table.objects().is_written(nexthop.id)
    }

    /// Returns true for Tortie's routes, except those to this host's endpoints.
    pub(crate) fn is_of_the_table(&self, route: &Route) -> bool {
        route.protocol == self.table.marks().protocol && !self.endpoints.is_ours(route)
    }

    fn is_at_own_metric(&self, route: &Route) -> bool {
        self.table.is_metric_of(&route.prefix, route.metric) && route.tos == 0
    }

    /// Returns true for an address of the tunnel device, and for the node's own, which identifies the
    /// underlying link.
    fn concerns_tunnel(&self, address: &Address) -> bool {
        self.view.node_v4 == Some(address.addr)
            || self.network.link(address.ifindex).is_some_and(|l| l.name == ipip_tunnel::DEVICE)
    }

    /// Returns true for an address of a VXLAN device, and for the node's own.
    fn concerns_vxlan(&self, address: &Address) -> bool {
        [self.view.node_v4, self.view.node_v6].contains(&Some(address.addr))
            || self.network.link(address.ifindex).is_some_and(|link| Self::is_vxlan(&link.name))
    }

    fn is_entry_in_sync(&self, prefix: &Cidr) -> bool {
        self.table.entries().get(prefix).is_none_or(|e| self.table.is_in_sync(e))
    }
}
