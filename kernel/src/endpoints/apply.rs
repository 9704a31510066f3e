//! Executes the planned work for endpoints: batches of requests, sysctls, deletion of conntrack entries.

use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::conntrack::Conntrack;
use super::{EndpointRequest, Endpoints, GATEWAY, Name, sysctl};
use crate::counters::Counters;
use crate::facts::{KernelFact, Sink};
use crate::fib::foreign_changes::ForeignChanges;
use crate::fib::network::NetworkState;
use crate::fib::request::NetworkView;
use crate::netlink::dump;
use crate::netlink::event::Event;
use crate::netlink::neighbour;
use crate::netlink::route::{self, Leg, RTN_UNICAST, Route, RouteId};
use crate::netlink::socket::{Refusal, Socket};
use tortie_config::counted;
use tortie_metrics::Histogram;

/// First pause before a failed request is retried; it doubles up to `RETRY_LAST`.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LAST: Duration = Duration::from_secs(30);
/// Time during which vacated addresses without a new holder are collected, so that their conntrack entries
/// are deleted together: one dump of the conntrack table costs as much for a thousand addresses as for one.
const GATHER: Duration = Duration::from_millis(100);
/// Interval of checks of all sysctls.
const SYSCTLS_EVERY: Duration = Duration::from_secs(60);
/// Maximum number of rounds per write, since a deletion may enable the addition for another interface.
const ROUNDS: usize = 4;

/// State that the requests of endpoints are planned from and that their results are recorded in.
pub(crate) struct Context<'a> {
    /// True if requests are sent; false in observe mode.
    pub(crate) program: bool,
    pub(crate) endpoints: &'a mut Endpoints,
    pub(crate) network: &'a mut NetworkState,
    pub(crate) counters: &'a mut Counters,
    pub(crate) foreign_changes: &'a mut ForeignChanges,
    /// Durations of batches of routes.
    pub(crate) route_batch: &'a mut Histogram,
}

/// Conntrack socket and timers of the endpoints.
pub(crate) struct Applier {
    conntrack: Conntrack,
    conntrack_due: Option<Instant>,
    /// Duration of the last deletion: deletions take at most a fifth of the time.
    conntrack_duration: Duration,
    retry_due: Option<Instant>,
    retry_pause: Duration,
    sysctls_due: Instant,
    /// The reported text about loose reverse path filtering, if any.
    rp_filter_loose: Option<String>,
    rp_filter_read: bool,
    ignore_loose_rp_filter: bool,
}

impl Applier {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            conntrack: Conntrack::default(),
            conntrack_due: None,
            conntrack_duration: Duration::ZERO,
            retry_due: None,
            retry_pause: RETRY_FIRST,
            sysctls_due: now + SYSCTLS_EVERY,
            rp_filter_loose: None,
            rp_filter_read: false,
            ignore_loose_rp_filter: false,
        }
    }

    /// Returns the time of the next work for [`Applier::timers`].
    pub(crate) fn due(&self, endpoints: &Endpoints) -> Option<Instant> {
        [self.conntrack_due, self.retry_due, endpoints.next_grace_end(), Some(self.sysctls_due)]
            .into_iter()
            .flatten()
            .min()
    }

    /// Handles expired timers; returns true if [`Applier::write`] must be called.
    pub(crate) fn timers(&mut self, endpoints: &mut Endpoints, now: Instant) -> bool {
        let mut due = self.conntrack_due.is_some_and(|at| at <= now);
        if self.retry_due.is_some_and(|at| at <= now) {
            self.retry_due = None;
            self.retry_pause = (self.retry_pause * 2).min(RETRY_LAST);
            endpoints.retry();
            due = true;
        }
        if self.sysctls_due <= now {
            self.sysctls_due = now + SYSCTLS_EVERY;
            self.rp_filter_read = false;
            endpoints.mark_sysctls_unverified();
            due = true;
        }
        due | endpoints.end_grace(now)
    }

    /// Sends all pending requests and reports the conditions of endpoints; returns true if conditions
    /// changed.
    pub(crate) fn write(
        &mut self,
        state: &mut Context<'_>,
        writer: &mut Socket,
        sink: &mut Sink,
    ) -> io::Result<bool> {
        let program = state.program;
        let mut names: BTreeSet<Name> = BTreeSet::new();
        self.look_at_rp_filter(state.endpoints, sink);
        for _ in 0..ROUNDS {
            let unreachable = state.network.resolve(GATEWAY.into()).is_none();
            let batch = state.endpoints.take_requests(Instant::now(), unreachable);
            let taken_again = state.endpoints.is_reused(&batch.names);
            names.extend(batch.names);
            if !program {
                state.endpoints.vacated.clear();
                for work in &batch.sysctls {
                    check_sysctls(state.endpoints, work);
                }
                break;
            }
            send(state, writer, &batch.removals)?;
            if taken_again || self.conntrack_due.is_some_and(|at| at <= Instant::now()) {
                self.delete_connections(state, sink)?;
            }
            for work in &batch.sysctls {
                set_sysctls(state, work);
            }
            send(state, writer, &batch.additions)?;
            if state.endpoints.dirty.is_empty() {
                break;
            }
        }
        if state.endpoints.vacated.is_empty() {
            self.conntrack_due = None;
        } else if self.conntrack_due.is_none() {
            self.conntrack_due = Some(Instant::now() + GATHER.max(self.conntrack_duration * 4));
        }
        if !state.endpoints.has_refusals() {
            (self.retry_due, self.retry_pause) = (None, RETRY_FIRST);
        } else if self.retry_due.is_none() {
            self.retry_due = Some(Instant::now() + self.retry_pause);
        }
        let names: Vec<Name> = names.into_iter().collect();
        state.endpoints.update_conditions(&names);
        let changed = state.endpoints.take_changed();
        let moved = !changed.is_empty();
        if moved {
            sink(KernelFact::Endpoints(changed));
        }
        Ok(moved)
    }

    fn delete_connections(&mut self, state: &mut Context<'_>, sink: &mut Sink) -> io::Result<()> {
        let left: Vec<_> = std::mem::take(&mut state.endpoints.vacated).into_iter().collect();
        self.conntrack_due = None;
        let begin = Instant::now();
        let deleted = self.conntrack.delete(&left)?;
        self.conntrack_duration = begin.elapsed();
        if let Err(refusal) = deleted {
            let first = left.first().map(ToString::to_string).unwrap_or_default();
            let count = left.len();
            sink(KernelFact::Transient(format!(
                "connections of {} without endpoint ({first}, ...) may persist: {refusal}",
                counted(count, "address")
            )));
        }
        Ok(())
    }

    /// Checks the host's reverse path filter, once policy was received.
    fn look_at_rp_filter(&mut self, endpoints: &Endpoints, sink: &mut Sink) {
        if !endpoints.policy_received {
            return;
        }
        let looked = self.rp_filter_read && self.ignore_loose_rp_filter == endpoints.ignore_loose;
        if looked {
            return;
        }
        (self.rp_filter_read, self.ignore_loose_rp_filter) = (true, endpoints.ignore_loose);
        let loose = sysctl::loose().filter(|_| !endpoints.ignore_loose);
        if loose != self.rp_filter_loose {
            self.rp_filter_loose.clone_from(&loose);
            sink(KernelFact::Problem { about: "reverse path filter".into(), text: loose });
        }
    }
}

impl Endpoints {
    /// Returns the time at which the first grace period ends.
    fn next_grace_end(&self) -> Option<Instant> {
        self.next_wait
    }

    /// Marks interfaces whose grace period has ended; returns true if there may be one.
    fn end_grace(&mut self, now: Instant) -> bool {
        if self.next_wait.is_none_or(|at| at > now) {
            return false;
        }
        let over = self.interfaces.iter().filter(|(_, place)| place.not_before.is_some_and(|at| at <= now));
        self.dirty.extend(over.map(|(name, _)| Name::clone(name)));
        self.next_wait =
            self.interfaces.values().filter_map(|place| place.not_before).filter(|at| *at > now).min();
        true
    }
}

/// Lists all neighbours.
pub(crate) fn neighbours(socket: &mut Socket) -> io::Result<Vec<super::Neighbour>> {
    dump::all(socket, neighbour::encode_dump, neighbour::decode)
}

fn send(state: &mut Context<'_>, writer: &mut Socket, works: &[EndpointRequest]) -> io::Result<()> {
    if works.is_empty() {
        return Ok(());
    }
    let (begin, protocol) = (Instant::now(), state.endpoints.protocol);
    let Context { endpoints, network, counters, foreign_changes, route_batch, .. } = state;
    let mut unexplained = Vec::new();
    writer.batch(
        works,
        |work, buf, flags, seq| encode(work, protocol, buf, flags, seq),
        |work, result| {
            let kind = match work {
                EndpointRequest::PutRoute { .. } => Some(0),
                EndpointRequest::DeleteRoute { .. } => Some(2),
                _ => None,
            };
            let errno = result.as_ref().err().map(|refusal| refusal.code);
            if let Some(count) = kind
                .and_then(|kind| counters.ops.get_mut(kind))
                .and_then(|of| of.get_mut(crate::counters::class(errno)))
            {
                *count += 1;
            }
            match &result {
                Ok(()) => show_in_network(work, protocol, endpoints, network),
                Err(refusal) => {
                    if let EndpointRequest::PutRoute { prefix, .. } = work
                        && refusal.code == libc::EEXIST
                        && !is_explained(work, endpoints, network)
                    {
                        unexplained.push(*prefix);
                    }
                }
            }
            endpoints.settle(work, &result);
        },
    )?;
    route_batch.time(begin.elapsed());
    // A plugin adds the route of its endpoint first; its notification may arrive after the endpoint itself.
    for prefix in unexplained {
        let mut found = None;
        let _ = writer.dump(
            |buf, seq| route::encode_ask(buf, seq, prefix.addr()),
            |message| found = route::decode(message),
        )?;
        match found.filter(|route| route.prefix == prefix) {
            Some(route) => {
                endpoints.event(&Event::Route { route, replaces: false, by: 0 }, begin, foreign_changes)
            }
            None => endpoints.needs_resync = true,
        }
    }
    Ok(())
}

fn encode(work: &EndpointRequest, protocol: u8, buf: &mut Vec<u8>, flags: u16, seq: u32) {
    match work {
        EndpointRequest::DeleteRoute { ifindex, prefix, metric, protocol } => {
            let id = RouteId { prefix: *prefix, protocol: *protocol, metric: *metric };
            route::encode_delete_onlink(buf, flags, seq, &id, *ifindex);
        }
        EndpointRequest::PutRoute { ifindex, prefix, metric } => {
            let id = RouteId { prefix: *prefix, protocol, metric: *metric };
            route::encode_add_onlink(buf, flags, seq, &id, *ifindex);
        }
        EndpointRequest::DeleteNeighbour { ifindex, addr } => {
            neighbour::encode_delete(buf, flags, seq, *ifindex, *addr);
        }
        EndpointRequest::PutNeighbour { ifindex, addr, mac } => {
            neighbour::encode_put(buf, flags, seq, *ifindex, *addr, *mac, protocol);
        }
        // Sysctls are no netlink requests.
        EndpointRequest::Sysctls { .. } => {}
    }
}

/// Shows the written routes in the network state, since next hops may be reached over workloads.
fn show_in_network(work: &EndpointRequest, own: u8, endpoints: &Endpoints, network: &mut NetworkState) {
    let route = |ifindex: u32, prefix, metric, protocol| Route {
        prefix,
        tos: 0,
        protocol,
        kind: RTN_UNICAST,
        metric,
        nexthop: 0,
        legs: SmallVec::from_buf([Leg { ifindex, gateway: None, onlink: false }]),
    };
    match work {
        EndpointRequest::PutRoute { ifindex, prefix, metric } => {
            let route = route(*ifindex, *prefix, *metric, own);
            if !endpoints.is_gateway(&route) {
                network.add_route(route, false);
            }
        }
        EndpointRequest::DeleteRoute { ifindex, prefix, metric, protocol } => {
            network.remove_route(route(*ifindex, *prefix, *metric, *protocol));
        }
        _ => {}
    }
}

/// Returns true if a known route explains why the kernel refused this one as existing.
fn is_explained(work: &EndpointRequest, endpoints: &Endpoints, network: &NetworkState) -> bool {
    let EndpointRequest::PutRoute { prefix, metric, .. } = work else { return false };
    !endpoints.actual.holders_of(*prefix, *metric).is_empty()
        || network.conflicting_route(prefix, *metric).is_some()
}

fn set_sysctls(state: &mut Context<'_>, work: &EndpointRequest) {
    let EndpointRequest::Sysctls { name, ipv6 } = work else { return };
    let were_right = state.endpoints.sysctls_verified(name);
    let wrong = if were_right { sysctl::wrong_sysctls(name, *ipv6) } else { 0 };
    state.foreign_changes.note(wrong, || format!("sysctls of {name} were changed"));
    let is_right = were_right && wrong == 0;
    let result = if is_right { Ok(()) } else { sysctl::apply(name, *ipv6) };
    let result = result.map_err(|text| Refusal { code: libc::EPERM, text });
    state.endpoints.settle(work, &result);
}

/// Checks the sysctls without writing them.
fn check_sysctls(endpoints: &mut Endpoints, work: &EndpointRequest) {
    if let EndpointRequest::Sysctls { name, ipv6 } = work
        && sysctl::wrong_sysctls(name, *ipv6) == 0
    {
        endpoints.settle(work, &Ok(()));
    }
}
