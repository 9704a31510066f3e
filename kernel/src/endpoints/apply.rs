//! What carries the work out: one batch of requests for each step, sysctls, connections.

use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::conntrack::Conntrack;
use super::{Ends, GATEWAY, Name, Work, sysctl};
use crate::counters::Counters;
use crate::facts::{KernelFact, Sink};
use crate::fib::foreign_changes::External;
use crate::fib::request::Surroundings;
use crate::fib::resolve::Picture;
use crate::netlink::dump;
use crate::netlink::event::Event;
use crate::netlink::neighbour;
use crate::netlink::route::{self, Leg, RTN_UNICAST, Route};
use crate::netlink::socket::{Refusal, Socket};
use tortie_metrics::Histogram;

/// First pause before what failed is tried again; doubles up to the last.
const RETRY_FIRST: Duration = Duration::from_secs(1);
const RETRY_LAST: Duration = Duration::from_secs(30);
/// Connections of addresses that nobody has yet are deleted together with those of other addresses in this time: one
/// reading of the tracker costs as much for a thousand addresses as for one.
const GATHER: Duration = Duration::from_millis(100);
/// Sysctls are read again this often.
const SYSCTLS_EVERY: Duration = Duration::from_secs(60);
/// A deletion may make another interface's addition possible.
const ROUNDS: usize = 4;

/// What the requests of endpoints are read from, and what their answers go to.
pub(crate) struct Context<'a> {
    /// Requests are sent.
    pub(crate) program: bool,
    pub(crate) ends: &'a mut Ends,
    pub(crate) picture: &'a mut Picture,
    pub(crate) counters: &'a mut Counters,
    pub(crate) external: &'a mut External,
    /// How long batches of routes took.
    pub(crate) route_batch: &'a mut Histogram,
}

/// The sockets and clocks of this room.
pub(crate) struct Driver {
    conntrack: Conntrack,
    left_due: Option<Instant>,
    /// How long the last deletion took: they take at most a fifth of the time.
    left_took: Duration,
    retry_due: Option<Instant>,
    retry_pause: Duration,
    sysctls_due: Instant,
    /// Reverse path filtering of interfaces to come was set.
    filtered: bool,
    /// What was said about loose reverse path filtering.
    loose: Option<String>,
    looked_at_loose: bool,
    ignores_loose: bool,
}

impl Driver {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            conntrack: Conntrack::default(),
            left_due: None,
            left_took: Duration::ZERO,
            retry_due: None,
            retry_pause: RETRY_FIRST,
            sysctls_due: now + SYSCTLS_EVERY,
            filtered: false,
            loose: None,
            looked_at_loose: false,
            ignores_loose: false,
        }
    }

    /// When [`Driver::timers`] has something to do.
    pub(crate) fn due(&self, ends: &Ends) -> Option<Instant> {
        [self.left_due, self.retry_due, ends.waits(), Some(self.sysctls_due)].into_iter().flatten().min()
    }

    /// What became due; true when [`Driver::write`] is to be called.
    pub(crate) fn timers(&mut self, ends: &mut Ends, now: Instant) -> bool {
        let mut due = self.left_due.is_some_and(|at| at <= now);
        if self.retry_due.is_some_and(|at| at <= now) {
            self.retry_due = None;
            self.retry_pause = (self.retry_pause * 2).min(RETRY_LAST);
            ends.retry();
            due = true;
        }
        if self.sysctls_due <= now {
            self.sysctls_due = now + SYSCTLS_EVERY;
            self.looked_at_loose = false;
            ends.doubt_sysctls();
            due = true;
        }
        due | ends.end_waits(now)
    }

    /// Writes everything that is due and tells what became of endpoints; true when their conditions changed.
    pub(crate) fn write(
        &mut self,
        state: &mut Context<'_>,
        writer: &mut Socket,
        sink: &mut Sink,
    ) -> io::Result<bool> {
        let program = state.program;
        let mut names: BTreeSet<Name> = BTreeSet::new();
        self.host_sysctls(state.ends, program, sink);
        for _ in 0..ROUNDS {
            let unreachable = state.picture.resolve(GATEWAY.into()).is_none();
            let batch = state.ends.take_work(Instant::now(), unreachable);
            let taken_again = state.ends.is_taken_again(&batch.names);
            names.extend(batch.names);
            if !program {
                state.ends.left.clear();
                for work in &batch.sysctls {
                    look_at_sysctls(state.ends, work);
                }
                break;
            }
            send(state, writer, &batch.removals)?;
            if taken_again || self.left_due.is_some_and(|at| at <= Instant::now()) {
                self.delete_connections(state, sink)?;
            }
            for work in &batch.sysctls {
                set_sysctls(state, work);
            }
            send(state, writer, &batch.additions)?;
            if state.ends.dirty.is_empty() {
                break;
            }
        }
        if state.ends.left.is_empty() {
            self.left_due = None;
        } else if self.left_due.is_none() {
            self.left_due = Some(Instant::now() + GATHER.max(self.left_took * 4));
        }
        if !state.ends.has_refused() {
            (self.retry_due, self.retry_pause) = (None, RETRY_FIRST);
        } else if self.retry_due.is_none() {
            self.retry_due = Some(Instant::now() + self.retry_pause);
        }
        let names: Vec<Name> = names.into_iter().collect();
        state.ends.conclude(&names);
        let changed = state.ends.take_changed();
        let moved = !changed.is_empty();
        if moved {
            sink(KernelFact::Endpoints(changed));
        }
        Ok(moved)
    }

    fn delete_connections(&mut self, state: &mut Context<'_>, sink: &mut Sink) -> io::Result<()> {
        let left: Vec<_> = std::mem::take(&mut state.ends.left).into_iter().collect();
        self.left_due = None;
        let begin = Instant::now();
        let deleted = self.conntrack.delete(&left)?;
        self.left_took = begin.elapsed();
        if let Err(refusal) = deleted {
            let first = left.first().map(ToString::to_string).unwrap_or_default();
            let count = left.len();
            sink(KernelFact::Mishap(format!(
                "connections of {count} addresses without endpoint ({first}, ...) may live on: {refusal}"
            )));
        }
        Ok(())
    }

    /// Sysctls of the host, once policy has spoken.
    fn host_sysctls(&mut self, ends: &Ends, program: bool, sink: &mut Sink) {
        if !ends.told {
            return;
        }
        if program
            && !std::mem::replace(&mut self.filtered, true)
            && let Err(text) = sysctl::filter_by_default()
        {
            sink(KernelFact::Trouble { about: "reverse path filter of new interfaces", text: Some(text) });
        }
        let looked = self.looked_at_loose && self.ignores_loose == ends.ignore_loose;
        if looked {
            return;
        }
        (self.looked_at_loose, self.ignores_loose) = (true, ends.ignore_loose);
        let loose = sysctl::loose().filter(|_| !ends.ignore_loose);
        if loose != self.loose {
            self.loose.clone_from(&loose);
            sink(KernelFact::Trouble { about: "reverse path filter", text: loose });
        }
    }
}

impl Ends {
    /// When routes that are left alone for now are looked at again.
    fn waits(&self) -> Option<Instant> {
        self.first_wait
    }

    /// Interfaces whose routes need not be left alone any longer are looked at again; true when there is one.
    fn end_waits(&mut self, now: Instant) -> bool {
        if self.first_wait.is_none_or(|at| at > now) {
            return false;
        }
        let over = self.places.iter().filter(|(_, place)| place.waits.is_some_and(|at| at <= now));
        self.dirty.extend(over.map(|(name, _)| Name::clone(name)));
        self.first_wait = self.places.values().filter_map(|place| place.waits).filter(|at| *at > now).min();
        true
    }
}

/// All neighbours.
pub(crate) fn neighbours(socket: &mut Socket) -> io::Result<Vec<super::Neighbour>> {
    dump::all(socket, neighbour::encode_dump, neighbour::decode)
}

fn send(state: &mut Context<'_>, writer: &mut Socket, works: &[Work]) -> io::Result<()> {
    if works.is_empty() {
        return Ok(());
    }
    let (begin, protocol) = (Instant::now(), state.ends.protocol);
    let Context { ends, picture, counters, external, route_batch, .. } = state;
    let mut unexplained = Vec::new();
    writer.batch(
        works,
        |work, buf, flags, seq| encode(work, protocol, buf, flags, seq),
        |work, result| {
            let kind = match work {
                Work::PutRoute { .. } => Some(0),
                Work::DeleteRoute { .. } => Some(2),
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
                Ok(()) => show(work, protocol, ends, picture),
                Err(refusal) => {
                    if let Work::PutRoute { prefix, .. } = work
                        && refusal.code == libc::EEXIST
                        && !is_explained(work, ends, picture)
                    {
                        unexplained.push(*prefix);
                    }
                }
            }
            ends.settle(work, &result);
        },
    )?;
    route_batch.time(begin.elapsed());
    // A plugin writes the route of its endpoint first: the word of it may be slower than the endpoint's.
    for prefix in unexplained {
        let mut found = None;
        let _ = writer.dump(
            |buf, seq| route::encode_ask(buf, seq, prefix.addr()),
            |message| found = route::decode(message),
        )?;
        match found.filter(|route| route.prefix == prefix) {
            Some(route) => ends.event(&Event::Route { route, replaces: false, by: 0 }, begin, external),
            None => ends.doubtful = true,
        }
    }
    Ok(())
}

fn encode(work: &Work, protocol: u8, buf: &mut Vec<u8>, flags: u16, seq: u32) {
    match work {
        Work::DeleteRoute { ifindex, prefix, metric, protocol } => {
            route::encode_delete_onlink(buf, flags, seq, prefix, *protocol, *metric, *ifindex);
        }
        Work::PutRoute { ifindex, prefix, metric } => {
            route::encode_add_onlink(buf, flags, seq, prefix, protocol, *metric, *ifindex);
        }
        Work::DeleteNeighbour { ifindex, addr } => {
            neighbour::encode_delete(buf, flags, seq, *ifindex, *addr);
        }
        Work::PutNeighbour { ifindex, addr, mac } => {
            neighbour::encode_put(buf, flags, seq, *ifindex, *addr, *mac, protocol);
        }
        // Not a request.
        Work::Sysctls { .. } => {}
    }
}

/// Next hops may lead to workloads: the picture of the network shows these routes, whoever wrote them.
fn show(work: &Work, own: u8, ends: &Ends, picture: &mut Picture) {
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
        Work::PutRoute { ifindex, prefix, metric } => {
            let route = route(*ifindex, *prefix, *metric, own);
            if !ends.is_gateway(&route) {
                picture.add_route(route, false);
            }
        }
        Work::DeleteRoute { ifindex, prefix, metric, protocol } => {
            picture.remove_route(route(*ifindex, *prefix, *metric, *protocol));
        }
        _ => {}
    }
}

/// Whether a route is known that is in the way of this one.
fn is_explained(work: &Work, ends: &Ends, picture: &Picture) -> bool {
    let Work::PutRoute { prefix, metric, .. } = work else { return false };
    !ends.known.spot(*prefix, *metric).is_empty() || picture.in_the_way(prefix, *metric).is_some()
}

fn set_sysctls(state: &mut Context<'_>, work: &Work) {
    let Work::Sysctls { name, ipv6 } = work else { return };
    let were_right = state.ends.sysctls_were_right(name);
    let wrong = if were_right { sysctl::wrong(name, *ipv6) } else { 0 };
    state.external.note(wrong, || format!("sysctls of {name} were changed"));
    let is_right = were_right && wrong == 0;
    let result = if is_right { Ok(()) } else { sysctl::apply(name, *ipv6) };
    let result = result.map_err(|text| Refusal { code: libc::EPERM, text });
    state.ends.settle(work, &result);
}

/// Reads without writing.
fn look_at_sysctls(ends: &mut Ends, work: &Work) {
    if let Work::Sysctls { name, ipv6 } = work
        && sysctl::wrong(name, *ipv6) == 0
    {
        ends.settle(work, &Ok(()));
    }
}
