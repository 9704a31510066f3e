//! Pipeline for batches of learned routes: while the kernel processes one batch, the next one is prepared and
//! queued.
//!
//! ```text
//!   kernel thread  learn, plan, encode 1 | same for 2 | settle, report 1; same for 3 | settle, report 2; ...
//!   worker         send 1 .. | send 2 ............................... | send 3 ...........
//! ```
//!
//! A batch may overtake the answers to earlier ones only if it shares no prefix with them and needs only
//! routes to existing nexthop objects; those of the first batch are written before it. All other work
//! (objects, other messages, timers) waits until every answer has arrived, and uses `Thread::flush`.

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

/// Maximum number of route changes per batch that are reported for the history of single prefixes.
const SAMPLE: usize = 64;

/// Maximum number of batches in flight: one that the kernel processes, and the next one.
const IN_FLIGHT_MAX: usize = 2;

/// A batch that was learned.
struct PreparedBatch {
    batch: LearnedBatch,
    begin: Instant,
}

impl PreparedBatch {
    /// Reports the result and drops the batch, which returns the speaker's credit.
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

/// A batch in flight to the kernel.
struct BatchInFlight {
    prepared: PreparedBatch,
    requests: Vec<Request>,
    /// Entries that must not change until the answers arrive.
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

    /// Returns true if one of the prefixes belongs to an entry in flight.
    fn is_touched(&self, state: &State, batch: &[LearnedChange]) -> bool {
        let entries = state.table.entries();
        batch.iter().any(|c| entries.find(&c.prefix).is_some_and(|slot| self.slots.contains(&slot)))
    }
}

/// Result of the worker.
struct BatchResult {
    /// Buffers for reuse.
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

/// Returns true if the batch is large enough for the worker thread.
fn is_many(state: &State, prepared: &PreparedBatch) -> bool {
    state.mode == Mode::Program && prepared.batch.len() >= MANY
}

/// Plans the requests of a learned batch; `None` if it needs more than routes to existing nexthop objects.
fn plan_requests(state: &mut State, prepared: &PreparedBatch) -> Option<Vec<Request>> {
    if is_many(state, prepared) { plan::routes_alone(&mut state.table, &state.network) } else { None }
}

/// Encodes requests, reusing spare buffers.
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

/// Sends buffers and returns the kernel's answers, one per message.
fn deliver(writer: &mut Socket, mut buffers: Vec<RequestBuffer>) -> io::Result<BatchResult> {
    let begin = Instant::now();
    let mut answers = Vec::with_capacity(buffers.iter().map(RequestBuffer::len).sum());
    for buffer in &mut buffers {
        writer.send_buffer(buffer, |answer| answers.push(answer))?;
    }
    Ok(BatchResult { buffers, answers, duration: begin.elapsed() })
}

impl Thread {
    /// Processes a batch of learned routes, and those behind it that can enter the pipeline.
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
        // Changes caused by batches in the pipeline.
        self.follow_next_hops();
        let flushed = self.flush()?;
        if let Some((prepared, mut done)) = last {
            done += flushed;
            prepared.report(&self.state, done, &mut self.sink);
        }
        Ok(())
    }

    /// Runs the pipeline, beginning with one batch. Returns the last batch, with the changes made so far.
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
            // `last` cannot enter the pipeline; `sent` was answered and has no successor yet.
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
                        // Routes of batches in flight may have to be decided again.
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

/// Reports a batch that has a successor.
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

/// Returns the result for a learned prefix, as one word.
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
