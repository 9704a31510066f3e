//! The state of the kernel thread, and how each message and event changes it. No I/O: the event loop sends what
//! becomes due.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tortie_net::{Cidr, ScopedAddr};

use super::metrics::KernelMetrics;
use crate::counters::{self, Counters};
use crate::endpoints::{self, Endpoints};
use crate::fib::foreign_changes::ForeignChanges;
use crate::fib::ipip_tunnel;
use crate::fib::network::NetworkState;
use crate::fib::plan;
use crate::fib::request::{Outcome, Request};
use crate::fib::table::Table;
use crate::intent::KernelIntent;
use crate::netlink::event::Event;
use crate::netlink::link::{Address, Link};
use crate::netlink::nexthop::Nexthop;
use crate::netlink::route::Route;
use crate::options::Mode;
use crate::options::Options;
use tortie_engine::routing::LearnedChange;
use tortie_engine::routing::{
    ChangeId, KernelRoute, Resolved, RoutingView, Step, explain_kernel_route, kernel_route,
};

/// Routes that were written and deleted.
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

/// What is due after events.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Pending {
    /// Own nexthop objects may have vanished: list them now.
    pub(crate) nexthops: bool,
    /// Silent changes are possible: compare everything soon.
    pub(crate) compare: bool,
    /// The tunnel device may have changed.
    pub(crate) tunnel: bool,
    /// What failed may work now.
    pub(crate) retry: bool,
    /// Interfaces came, went, or have other names or addresses.
    pub(crate) interfaces: bool,
}

/// The state of the kernel thread.
pub(crate) struct State {
    pub(super) mode: Mode,
    pub(super) table: Table,
    pub(super) network: NetworkState,
    pub(super) endpoints: Endpoints,
    pub(super) intent: Option<Arc<KernelIntent>>,
    view: Arc<RoutingView>,
    tunnel_present: bool,
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
            intent: None,
            view: Arc::default(),
            tunnel_present: false,
            tunnel_problem: None,
            counters: Counters::default(),
            metrics: KernelMetrics::default(),
            foreign_changes: ForeignChanges::default(),
            last_compare: None,
        }
    }

    /// A state without kernel: empty tables.
    pub(crate) fn empty(options: &Options, nexthop_objects: bool) -> Self {
        let endpoints = Endpoints::new(options.marks.protocol, options.marks.metric, options.grace);
        Self::new(options.mode, Table::new(options.marks, nexthop_objects), endpoints)
    }

    /// What the requests of endpoints are read from, and what their answers go to.
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

    /// Runs `change` on the table with the decision function over the present network state.
    fn with_decide(&mut self, change: impl FnOnce(&mut Table, &mut crate::fib::table::Decide<'_>)) {
        let (network, view, tunnel) = (&mut self.network, &self.view, self.tunnel_present);
        let mut decide = |prefix: Cidr, hops: &[ScopedAddr]| -> KernelRoute {
            for hop in hops {
                network.track(*hop, false);
            }
            kernel_route(view, prefix, hops, |hop| network.answer(hop), tunnel)
        };
        change(&mut self.table, &mut decide);
    }

    /// A new intent: decisions are made again where they may differ.
    pub(crate) fn accept_intent(&mut self, intent: Arc<KernelIntent>) {
        let old = std::mem::replace(&mut self.view, Arc::clone(&intent.view));
        let same = old.pools == self.view.pools
            && old.network_v4 == self.view.network_v4
            && (old.node_v4, old.node_v6) == (self.view.node_v4, self.view.node_v6);
        self.with_decide(|table, decide| {
            table.set_blackholes(&intent.blackholes, intent.change, decide);
            if !same {
                table.decide_again(&|_| true, intent.change, decide);
            }
        });
        self.intent = Some(intent);
        self.check_tunnel();
    }

    /// A batch of learned routes.
    pub(crate) fn learn(&mut self, batch: &[LearnedChange]) {
        self.with_decide(|table, decide| {
            for change in batch {
                table.learn(change.prefix, &change.next_hops, change.change, decide);
            }
        });
    }

    /// Takes the kernel's answers over into the actual state.
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

    /// The decision about a learned prefix, with somebody listening; `None`: nothing was learned.
    pub(crate) fn explain(&self, prefix: &Cidr) -> Option<(KernelRoute, Vec<Step>)> {
        let hops = self.table.learned(self.table.entries().get(prefix)?)?;
        let resolve = |hop| self.network.answer(hop);
        Some(explain_kernel_route(&self.view, *prefix, hops, resolve, self.tunnel_present))
    }

    /// Whether the tunnel device is there and up; decisions are made again when that changed.
    pub(crate) fn check_tunnel(&mut self) {
        let device = self.network.link_named(ipip_tunnel::DEVICE);
        let wanted = self.intent.as_ref().is_some_and(|i| i.tunnel.is_some());
        let present = wanted && device.is_some_and(Link::is_up);
        let ifindex = device.map_or(0, |l| l.index);
        self.table.objects_mut().set_tunnel(ifindex);
        if present != self.tunnel_present {
            self.tunnel_present = present;
            let moved = ChangeId::default();
            self.with_decide(|table, decide| table.decide_again(&|_| true, moved, decide));
        }
    }

    /// Follows next hops to where the network moved them; gives the changes that were asked for.
    pub(crate) fn follow_next_hops(&mut self) -> Vec<(ScopedAddr, Option<Resolved>)> {
        let changes = self.network.changes();
        if changes.is_empty() {
            return Vec::new();
        }
        let moved: BTreeSet<ScopedAddr> = changes.iter().map(|(a, ..)| *a).collect();
        self.with_decide(|table, decide| {
            let concerned = |hops: &[ScopedAddr]| hops.iter().any(|h| moved.contains(h));
            table.decide_again(&concerned, ChangeId::default(), decide);
        });
        changes.into_iter().filter(|(.., tracked)| *tracked).map(|(a, r, _)| (a, r)).collect()
    }

    /// Next hops that nobody uses any more are followed no longer.
    pub(crate) fn forget_next_hops(&mut self) {
        let used: BTreeSet<ScopedAddr> = self.table.next_hops().collect();
        self.network.forget_unused(&used);
    }

    /// One event of the watch thread.
    pub(crate) fn event(&mut self, event: Event, due: &mut Pending) {
        match event {
            Event::Link(link) => {
                let (index, can_carry, up) = (link.index, link.can_carry(), link.is_up());
                due.tunnel |= link.name == ipip_tunnel::DEVICE;
                let mtu = link.mtu;
                let name = link.name.clone();
                let old = self.network.set_link(link);
                due.interfaces |= old.as_ref().is_none_or(|o| o.name != name);
                // The device under a new name, or the link below it with another MTU.
                due.tunnel |= old.as_ref().is_some_and(|o| o.name == ipip_tunnel::DEVICE || o.mtu != mtu);
                let moved = old.is_none_or(|o| o.can_carry() != can_carry || o.is_up() != up);
                if moved {
                    due.nexthops |= self.table.objects().uses_device(index);
                    due.compare = true;
                    due.retry |= can_carry;
                }
            }
            Event::LinkGone(link) => {
                due.tunnel |= link.name == ipip_tunnel::DEVICE;
                due.nexthops |= self.table.objects().uses_device(link.index);
                due.compare = true;
                due.interfaces = true;
                self.network.remove_link(link.index);
            }
            Event::Address(address) => {
                due.tunnel |= self.concerns_tunnel(&address);
                due.retry = true;
                due.interfaces = true;
                self.network.add_address(address);
            }
            Event::AddressGone(address) => {
                due.tunnel |= self.concerns_tunnel(&address);
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
                // Of the legs of IPv6 only one carries its protocol.
                due.compare |= !prefix.is_v4() && route.legs.len() > 1;
                self.network.add_route(route, replaces);
                if replaces && is_at_own_metric && self.table.lose(prefix) {
                    self.table.drift_hold_mut().record(prefix, "replaced", by);
                    self.foreign_changes.note(1, || format!("route {prefix} was replaced by port {by}"));
                }
            }
            Event::RouteGone { route, by } if self.is_of_the_table(&route) => {
                let prefix = route.prefix;
                if route.metric == self.table.marks().metric && route.tos == 0 {
                    let wanted = self.is_entry_in_sync(&prefix);
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
                // Legs of ours may stand next to it.
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
                    // Groups that held it shrank; which ones the list shows. What was refused because it was not there
                    // can be written again with it.
                    due.nexthops = true;
                    due.retry = true;
                } else {
                    due.compare |= self.network.uses_object(id);
                }
            }
        }
    }

    /// A nexthop is ours by protocol and id; one that we wrote stays ours when another process replaces it.
    pub(crate) fn nexthop_is_ours(&self, nexthop: &Nexthop) -> bool {
        self.table.objects().is_own(nexthop, self.table.marks().protocol)
            || self.table.objects().is_written(nexthop.id)
    }

    /// Own routes, but for those to this host's own endpoints.
    pub(crate) fn is_of_the_table(&self, route: &Route) -> bool {
        route.protocol == self.table.marks().protocol && !self.endpoints.is_ours(route)
    }

    fn is_at_own_metric(&self, route: &Route) -> bool {
        route.metric == self.table.marks().metric && route.tos == 0
    }

    /// An address of the device, or the node's own, by which the link below is found.
    fn concerns_tunnel(&self, address: &Address) -> bool {
        self.view.node_v4 == Some(address.addr)
            || self.network.link(address.ifindex).is_some_and(|l| l.name == ipip_tunnel::DEVICE)
    }

    fn is_entry_in_sync(&self, prefix: &Cidr) -> bool {
        self.table.entries().get(prefix).is_none_or(|e| self.table.is_in_sync(e))
    }
}
