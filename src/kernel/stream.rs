//! Learned routes, batch after batch: while one is with Linux the next one is made ready.
//!
//! ```text
//!   batch 1   learn, plan, write | deliver ................ |              settle, tell
//!   batch 2                        ..., learn, plan, write  | deliver .................... | ...
//!   batch 3                                                   ..., learn, plan, write      | deliver
//! ```
//!
//! A batch goes ahead where it touches nothing that is with Linux: it has no prefix in common with the one before, and
//! needs nothing but routes to nexthop objects that are there. All else (objects, what another message brings, a timer)
//! waits until every answer is here, and takes the way of `Thread::flush`.

use std::io;
use std::time::{Duration, Instant};

use rustc_hash::FxHashSet;
use tortie_config::Cidr;

use super::Sink;
use super::api::{KernelFact, LearnedChange, Mode};
use super::beside::beside;
use super::entries::Slot;
use super::netlink::{Letter, Limits, Socket};
use super::plan::{self, Answer, Op};
use super::state::{Done, State};
use super::table::Want;
use super::thread::{MANY, Thread, micros_since};
use super::view::KernelView;
use crate::routing::ChangeId;

/// Changes of the kernel thread's own prefixes that go into the single-prefix history, per batch.
const SAMPLE: usize = 64;

type Batch = Vec<LearnedChange>;

/// A batch that was learned.
struct Begun {
    batch: Batch,
    begin: Instant,
    /// Its requests, where those are all that is to be done.
    requests: Option<Requests>,
}

/// Requests on paper.
struct Requests {
    ops: Vec<Op>,
    letters: Vec<Letter>,
}

impl Requests {
    fn write(state: &State, ops: Vec<Op>, limits: Limits) -> Self {
        let encode = |op: &Op, buf: &mut Vec<u8>, flags, seq| {
            op.encode(&state.table, &state.picture, buf, flags, seq);
        };
        let (mut letters, mut rest) = (Vec::new(), &*ops);
        while !rest.is_empty() {
            let mut letter = Letter::default();
            rest = rest.split_at(letter.write(limits, rest, encode)).1;
            letters.push(letter);
        }
        Self { ops, letters }
    }

    /// The entries that are not to be touched until the answers are here.
    fn slots(&self) -> FxHashSet<Slot> {
        let slot = |op: &Op| match op {
            Op::PutRoute { slot, .. } => Some(*slot),
            Op::DeleteRoute { slot, .. } => *slot,
            Op::PutNexthop { .. } | Op::DeleteNexthop { .. } => None,
        };
        self.ops.iter().filter_map(slot).collect()
    }
}

impl Begun {
    fn new(state: &mut State, batch: Batch, limits: Limits) -> Self {
        let begin = Instant::now();
        state.learn(&batch);
        let ops = if state.mode == Mode::Program && batch.len() >= MANY {
            plan::routes_alone(&mut state.table, &state.picture)
        } else {
            None
        };
        Self { batch, begin, requests: ops.map(|ops| Requests::write(state, ops, limits)) }
    }

    /// Says what became of it.
    fn tell(self, state: &State, done: Done, sink: &mut Sink) {
        let failed = |c: &LearnedChange| Some((c.prefix, state.table.failed.get(&c.prefix)?.to_string()));
        let sample = self.batch.iter().skip(self.batch.len().saturating_sub(SAMPLE));
        sink(KernelFact::Learned {
            change: newest(&self.batch),
            prefixes: self.batch.len(),
            written: done.written,
            deleted: done.deleted,
            failed: self.batch.iter().filter_map(failed).collect(),
            sample: sample.map(|c| (c.prefix, c.change, outcome(state, &c.prefix))).collect(),
            micros: micros_since(self.begin),
        });
    }
}

/// A batch that Linux is through with, and its answers.
struct Answered {
    begun: Begun,
    ops: Vec<Op>,
    answers: Vec<Answer>,
    took: Duration,
}

impl Answered {
    fn settle(&self, state: &mut State) -> Done {
        state.measures.route_batch.time(self.took);
        state.settle(&self.ops, &self.answers)
    }
}

impl Thread {
    /// A batch of learned routes, and those behind it that can go ahead.
    pub(super) fn learned(&mut self, batch: Batch) -> io::Result<()> {
        let limits = self.writer.limits();
        let deadline = self.deadline();
        let mut begun = Begun::new(&mut self.state, batch, limits);
        let mut answered: Option<Answered> = None;
        while let Some(mut requests) = begun.requests.take() {
            let slots = requests.slots();
            let (mut next, mut ahead) = (None, true);
            let Self { state, inbox, writer, sink, firewall, .. } = self;
            let deliver = || deliver(writer, &mut requests.letters);
            let (answers, took) = beside("routes", deliver, || {
                take_over(&mut answered, state, sink);
                ahead &= next.is_none() && !state.table.doubtful && Instant::now() < deadline;
                let view = KernelView { state, rules: Some(firewall) };
                if !ahead {
                    return inbox.answer(&view);
                }
                let Some(batch) = inbox.answer_until_learned(&view) else { return };
                if touches(state, &batch, &slots) {
                    inbox.put_back(super::ToKernel::Learned(batch));
                    ahead = false;
                } else {
                    next = Some(Begun::new(state, batch, limits));
                }
            })?;
            // Where there was no other thread to be had, nothing was done meanwhile.
            take_over(&mut answered, &mut self.state, &mut self.sink);
            let now = Answered { begun, ops: requests.ops, answers, took };
            let Some(next) = next else {
                let mut done = now.settle(&mut self.state);
                done += self.flush()?;
                now.begun.tell(&self.state, done, &mut self.sink);
                return Ok(());
            };
            begun = next;
            answered = Some(now);
            self.turn_over();
        }
        take_over(&mut answered, &mut self.state, &mut self.sink);
        let done = self.flush()?;
        begun.tell(&self.state, done, &mut self.sink);
        Ok(())
    }
}

/// Takes the answers over into what is known, and says what became of the batch.
fn take_over(answered: &mut Option<Answered>, state: &mut State, sink: &mut Sink) {
    if let Some(answered) = answered.take() {
        let done = answered.settle(state);
        answered.begun.tell(state, done, sink);
    }
}

/// Whether one of the prefixes is in one of these entries.
fn touches(state: &State, batch: &[LearnedChange], slots: &FxHashSet<Slot>) -> bool {
    let entries = &state.table.entries;
    batch.iter().any(|c| entries.find(&c.prefix).is_some_and(|slot| slots.contains(&slot)))
}

/// The kernel's answers to letters, one a message, and how long it took.
fn deliver(writer: &mut Socket, letters: &mut [Letter]) -> io::Result<(Vec<Answer>, Duration)> {
    let begin = Instant::now();
    let mut answers = Vec::new();
    for letter in letters {
        writer.deliver(letter, |answer| answers.push(answer))?;
    }
    Ok((answers, begin.elapsed()))
}

/// What became of a learned prefix, in a word.
fn outcome(state: &State, prefix: &Cidr) -> &'static str {
    let table = &state.table;
    let Some(entry) = table.entries.get(prefix) else { return "gone" };
    match entry.want {
        _ if table.failed.contains_key(prefix) => "failed",
        Want::Nothing(Some(reason)) => table.reason(reason),
        Want::Nothing(None) => "gone",
        Want::Blackhole => "own-block",
        Want::Via(..) if table.is_right(entry) => "installed",
        Want::Via(..) => "pending",
    }
}

pub(super) fn newest(batch: &[LearnedChange]) -> ChangeId {
    batch.iter().map(|c| c.change).max().unwrap_or_default()
}
