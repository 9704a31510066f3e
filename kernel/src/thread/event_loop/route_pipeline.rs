//! Learned routes, batch after batch: while one is with Linux the next one is made ready and waits behind it.
//!
//! ```text
//!   kernel thread  learn, plan, write 1 | the same 2 | settle, report 1; learn, plan, write 3 | settle, report 2; ...
//!   worker                                 send 1 .. | send 2 ............................... | send 3 ...........
//! ```
//!
//! A batch goes ahead where it touches nothing that is with Linux: it has no prefix in common with those before it, and
//! needs nothing but routes to nexthop objects that are there; those of the first one are made before it. All else (objects,
//! what another message brings, a timer) waits until every answer is here, and takes the way of `Thread::flush`.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use rustc_hash::FxHashSet;
use tortie_net::Cidr;

use super::{MANY, Thread, micros_since};
use crate::facts::KernelFact;
use crate::facts::Sink;
use crate::fib::entries::Slot;
use crate::fib::plan;
use crate::fib::request::{Outcome, Request};
use crate::fib::route_state::Desired;
use crate::netlink::socket::{Limits, RequestBuffer, Socket};
use crate::options::Mode;
use crate::thread::messages::{ToKernel, newest};
use crate::thread::state::{State, Written};
use crate::thread::view::KernelView;
use crate::worker::run_in_order;
use tortie_engine::routing::{LearnedBatch, LearnedChange};

/// Changes of the kernel thread's own prefixes that go into the single-prefix history, per batch.
const SAMPLE: usize = 64;

/// Batches that are with Linux: one that it works on, and one that it finds when it is through.
const IN_FLIGHT_MAX: usize = 2;

/// A batch that was learned.
struct PreparedBatch {
    batch: LearnedBatch,
    begin: Instant,
}

impl PreparedBatch {
    /// Reports the outcome, and drops the batch: the speaker gets its credit back.
    fn report(self, state: &State, done: Written, sink: &mut Sink) {
        let failed = |c: &LearnedChange| Some((c.prefix, state.table.failure(&c.prefix)?.to_string()));
        let sample = self.batch.iter().skip(self.batch.len().saturating_sub(SAMPLE));
        sink(KernelFact::Learned {
            change: newest(&self.batch),
            prefixes: self.batch.len(),
            written: done.written,
            deleted: done.deleted,
            failed: self.batch.iter().filter_map(failed).collect(),
            sample: sample.map(|c| (c.prefix, c.change, outcome(state, &c.prefix).into())).collect(),
            micros: micros_since(self.begin),
        });
    }
}

/// A batch that is with Linux.
struct BatchInFlight {
    prepared: PreparedBatch,
    requests: Vec<Request>,
    /// The entries that are not to be touched until the answers are here.
    slots: FxHashSet<Slot>,
}

impl BatchInFlight {
    fn new(prepared: PreparedBatch, requests: Vec<Request>) -> Self {
        let slot = |request: &Request| match request {
            Request::PutRoute { slot, .. } => Some(*slot),
            Request::DeleteRoute { slot, .. } => *slot,
            Request::PutNexthop { .. } | Request::DeleteNexthop { .. } => None,
        };
        let slots = requests.iter().filter_map(slot).collect();
        Self { prepared, requests, slots }
    }

    /// Whether one of the prefixes is in one of its entries.
    fn is_touched(&self, state: &State, batch: &[LearnedChange]) -> bool {
        let entries = state.table.entries();
        batch.iter().any(|c| entries.find(&c.prefix).is_some_and(|slot| self.slots.contains(&slot)))
    }
}

/// What the worker gives back.
struct BatchResult {
    /// For the requests of another batch.
    buffers: Vec<RequestBuffer>,
    answers: Vec<Outcome>,
    duration: Duration,
}

/// Learns a batch.
fn begin(state: &mut State, batch: LearnedBatch) -> PreparedBatch {
    let begin = Instant::now();
    state.learn(&batch);
    PreparedBatch { batch, begin }
}

/// Whether a thread of its own is worth it.
fn is_many(state: &State, prepared: &PreparedBatch) -> bool {
    state.mode == Mode::Program && prepared.batch.len() >= MANY
}

/// The requests of a batch that was learned, where routes to objects that are there are all that is to be done.
fn plan_requests(state: &mut State, prepared: &PreparedBatch) -> Option<Vec<Request>> {
    if is_many(state, prepared) { plan::routes_alone(&mut state.table, &state.network) } else { None }
}

/// Writes requests down, into buffers that are there already as far as they go.
fn write(state: &State, requests: &[Request], limits: Limits, old: Vec<RequestBuffer>) -> Vec<RequestBuffer> {
    let encode = |request: &Request, buf: &mut Vec<u8>, flags, seq| {
        request.encode(&state.table, &state.network, buf, flags, seq);
    };
    let (mut buffers, mut old, mut rest) = (Vec::new(), old.into_iter(), requests);
    while !rest.is_empty() {
        let mut buffer = old.next().unwrap_or_default();
        rest = rest.split_at(buffer.write(limits, rest, encode)).1;
        buffers.push(buffer);
    }
    buffers
}

/// The kernel's answers to buffers, one a message.
fn deliver(writer: &mut Socket, mut buffers: Vec<RequestBuffer>) -> io::Result<BatchResult> {
    let begin = Instant::now();
    let mut answers = Vec::with_capacity(buffers.iter().map(RequestBuffer::len).sum());
    for buffer in &mut buffers {
        writer.send_buffer(buffer, |answer| answers.push(answer))?;
    }
    Ok(BatchResult { buffers, answers, duration: begin.elapsed() })
}

impl Thread {
    /// A batch of learned routes, and those behind it that can go ahead.
    pub(super) fn learned(&mut self, batch: LearnedBatch) -> io::Result<()> {
        let prepared = begin(&mut self.state, batch);
        self.follow_next_hops();
        let mut requests = plan_requests(&mut self.state, &prepared);
        if requests.is_none() && is_many(&self.state, &prepared) {
            self.put_nexthops()?;
            requests = plan_requests(&mut self.state, &prepared);
        }
        let last = match requests {
            None => Some((prepared, Written::default())),
            Some(requests) => self.run_pipeline(BatchInFlight::new(prepared, requests))?,
        };
        // Of batches that went ahead.
        self.follow_next_hops();
        let flushed = self.flush()?;
        if let Some((prepared, mut done)) = last {
            done += flushed;
            prepared.report(&self.state, done, &mut self.sink);
        }
        Ok(())
    }

    /// Has a batch carried out, and batches behind it; gives the last one, and what was done of it so far.
    fn run_pipeline(&mut self, first: BatchInFlight) -> io::Result<Option<(PreparedBatch, Written)>> {
        let deadline = self.deadline();
        let Self { state, inbox, writer, sink, firewall, iteration_start, .. } = self;
        let limits = writer.limits();
        let mut first = Some(first);
        let carry = |buffers| deliver(writer, buffers);
        run_in_order("routes", carry, |calls| {
            let (mut in_flight, mut spare) = (VecDeque::new(), Vec::new());
            if let Some(first) = first.take() {
                calls.submit(write(state, &first.requests, limits, Vec::new()));
                in_flight.push_back(first);
            }
            // One that cannot go ahead, and one that was carried out when nothing was behind it.
            let (mut last, mut sent) = (None, None);
            let mut ahead = true;
            loop {
                ahead &= last.is_none() && !state.table.needs_resync() && Instant::now() < deadline;
                let view = KernelView { state, rules: Some(firewall) };
                let next = if ahead && in_flight.len() < IN_FLIGHT_MAX {
                    inbox.answer_until_learned(&view)
                } else {
                    inbox.answer_queries(&view);
                    None
                };
                match next {
                    Some(batch)
                        if in_flight.iter().any(|sent: &BatchInFlight| sent.is_touched(state, &batch)) =>
                    {
                        inbox.put_back(ToKernel::Learned(batch));
                        ahead = false;
                    }
                    Some(batch) => {
                        let prepared = begin(state, batch);
                        // Routes of batches that are with Linux may have to be decided again.
                        let requests =
                            if state.has_moved_hops() { None } else { plan_requests(state, &prepared) };
                        if let Some(requests) = requests {
                            calls.submit(write(state, &requests, limits, std::mem::take(&mut spare)));
                            in_flight.push_back(BatchInFlight::new(prepared, requests));
                        } else {
                            last = Some((prepared, Written::default()));
                        }
                    }
                    None => {}
                }
                if in_flight.is_empty() && last.is_none() {
                    return Ok(sent);
                }
                if let Some((prepared, done)) = sent.take() {
                    continue_pipeline(prepared, done, state, sink, iteration_start);
                }
                if in_flight.is_empty() {
                    return Ok(last);
                }
                let Some(BatchResult { buffers, answers, duration }) = calls.poll().transpose()? else {
                    continue;
                };
                spare = buffers;
                state.metrics.route_batch.time(duration);
                let Some(BatchInFlight { prepared, requests, .. }) = in_flight.pop_front() else { continue };
                let done = state.settle(&requests, &answers);
                if in_flight.is_empty() {
                    sent = Some((prepared, done));
                } else {
                    continue_pipeline(prepared, done, state, sink, iteration_start);
                }
            }
        })
    }
}

/// Says what became of a batch that others follow.
fn continue_pipeline(
    prepared: PreparedBatch,
    done: Written,
    state: &mut State,
    sink: &mut Sink,
    iteration_start: &mut Instant,
) {
    prepared.report(state, done, sink);
    state.metrics.iterations.time(iteration_start.elapsed());
    *iteration_start = Instant::now();
}

/// What became of a learned prefix, in a word.
fn outcome(state: &State, prefix: &Cidr) -> &'static str {
    let table = &state.table;
    let Some(entry) = table.entries().get(prefix) else { return "gone" };
    match entry.desired() {
        _ if table.failure(prefix).is_some() => "failed",
        Desired::Nothing(Some(reason)) => table.reason(reason),
        Desired::Nothing(None) => "gone",
        Desired::Blackhole => "own-block",
        Desired::Via(..) if table.is_in_sync(entry) => "installed",
        Desired::Via(..) => "pending",
    }
}
