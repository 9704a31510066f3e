//! Learned routes, batch after batch: while one is with Linux the next one is made ready and waits behind it.
//!
//! ```text
//!   here      learn, plan, write 1 | the same 2 |      | settle, tell 1; learn, plan, write 3 |   | settle, tell 2; ...
//!   beside                           deliver 1 ........ | deliver 2 ........................... | deliver 3 ...........
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
use crate::fib::request::{Answer, Op};
use crate::fib::route_state::Want;
use crate::netlink::socket::{Letter, Limits, Socket};
use crate::options::Mode;
use crate::thread::messages::{ToKernel, newest};
use crate::thread::state::{Done, State};
use crate::thread::view::KernelView;
use crate::worker::in_turn;
use tortie_engine::routing::{LearnedBatch, LearnedChange};

/// Changes of the kernel thread's own prefixes that go into the single-prefix history, per batch.
const SAMPLE: usize = 64;

/// Batches that are with Linux: one that it works on, and one that it finds when it is through.
const UNDER_WAY: usize = 2;

/// A batch that was learned.
struct Begun {
    batch: LearnedBatch,
    begin: Instant,
}

impl Begun {
    /// Reports the outcome, and drops the batch: the speaker gets its credit back.
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

/// A batch that is with Linux.
struct Sent {
    begun: Begun,
    ops: Vec<Op>,
    /// The entries that are not to be touched until the answers are here.
    slots: FxHashSet<Slot>,
}

impl Sent {
    fn new(begun: Begun, ops: Vec<Op>) -> Self {
        let slot = |op: &Op| match op {
            Op::PutRoute { slot, .. } => Some(*slot),
            Op::DeleteRoute { slot, .. } => *slot,
            Op::PutNexthop { .. } | Op::DeleteNexthop { .. } => None,
        };
        let slots = ops.iter().filter_map(slot).collect();
        Self { begun, ops, slots }
    }

    /// Whether one of the prefixes is in one of its entries.
    fn is_touched(&self, state: &State, batch: &[LearnedChange]) -> bool {
        let entries = &state.table.entries;
        batch.iter().any(|c| entries.find(&c.prefix).is_some_and(|slot| self.slots.contains(&slot)))
    }
}

/// What the thread beside gives back.
struct Answered {
    /// For the requests of another batch.
    letters: Vec<Letter>,
    answers: Vec<Answer>,
    took: Duration,
}

/// Learns a batch.
fn begin(state: &mut State, batch: LearnedBatch) -> Begun {
    let begin = Instant::now();
    state.learn(&batch);
    Begun { batch, begin }
}

/// Whether a thread of its own is worth it.
fn is_many(state: &State, begun: &Begun) -> bool {
    state.mode == Mode::Program && begun.batch.len() >= MANY
}

/// The requests of a batch that was learned, where routes to objects that are there are all that is to be done.
fn requests(state: &mut State, begun: &Begun) -> Option<Vec<Op>> {
    if is_many(state, begun) { plan::routes_alone(&mut state.table, &state.picture) } else { None }
}

/// Writes requests down, into letters that are there already as far as they go.
fn write(state: &State, ops: &[Op], limits: Limits, old: Vec<Letter>) -> Vec<Letter> {
    let encode = |op: &Op, buf: &mut Vec<u8>, flags, seq| {
        op.encode(&state.table, &state.picture, buf, flags, seq);
    };
    let (mut letters, mut old, mut rest) = (Vec::new(), old.into_iter(), ops);
    while !rest.is_empty() {
        let mut letter = old.next().unwrap_or_default();
        rest = rest.split_at(letter.write(limits, rest, encode)).1;
        letters.push(letter);
    }
    letters
}

/// The kernel's answers to letters, one a message.
fn deliver(writer: &mut Socket, mut letters: Vec<Letter>) -> io::Result<Answered> {
    let begin = Instant::now();
    let mut answers = Vec::with_capacity(letters.iter().map(Letter::len).sum());
    for letter in &mut letters {
        writer.deliver(letter, |answer| answers.push(answer))?;
    }
    Ok(Answered { letters, answers, took: begin.elapsed() })
}

impl Thread {
    /// A batch of learned routes, and those behind it that can go ahead.
    pub(super) fn learned(&mut self, batch: LearnedBatch) -> io::Result<()> {
        let begun = begin(&mut self.state, batch);
        let mut ops = requests(&mut self.state, &begun);
        if ops.is_none() && is_many(&self.state, &begun) {
            self.put_nexthops()?;
            ops = requests(&mut self.state, &begun);
        }
        let last = match ops {
            None => Some((begun, Done::default())),
            Some(ops) => self.stream(Sent::new(begun, ops))?,
        };
        let flushed = self.flush()?;
        if let Some((begun, mut done)) = last {
            done += flushed;
            begun.tell(&self.state, done, &mut self.sink);
        }
        Ok(())
    }

    /// Has a batch carried out, and batches behind it; gives the last one, and what was done of it so far.
    fn stream(&mut self, first: Sent) -> io::Result<Option<(Begun, Done)>> {
        let deadline = self.deadline();
        let Self { state, inbox, writer, sink, firewall, turn, .. } = self;
        let limits = writer.limits();
        let mut first = Some(first);
        let carry = |letters| deliver(writer, letters);
        in_turn("routes", carry, |calls| {
            let (mut under_way, mut spare) = (VecDeque::new(), Vec::new());
            if let Some(first) = first.take() {
                calls.give(write(state, &first.ops, limits, Vec::new()));
                under_way.push_back(first);
            }
            // One that cannot go ahead, and one that was carried out when nothing was behind it.
            let (mut last, mut carried) = (None, None);
            let mut ahead = true;
            loop {
                ahead &= last.is_none() && !state.table.doubtful && Instant::now() < deadline;
                let view = KernelView { state, rules: Some(firewall) };
                let next = if ahead && under_way.len() < UNDER_WAY {
                    inbox.answer_until_learned(&view)
                } else {
                    inbox.answer(&view);
                    None
                };
                match next {
                    Some(batch) if under_way.iter().any(|sent: &Sent| sent.is_touched(state, &batch)) => {
                        inbox.put_back(ToKernel::Learned(batch));
                        ahead = false;
                    }
                    Some(batch) => {
                        let begun = begin(state, batch);
                        if let Some(ops) = requests(state, &begun) {
                            calls.give(write(state, &ops, limits, std::mem::take(&mut spare)));
                            under_way.push_back(Sent::new(begun, ops));
                        } else {
                            last = Some((begun, Done::default()));
                        }
                    }
                    None => {}
                }
                if under_way.is_empty() && last.is_none() {
                    return Ok(carried);
                }
                if let Some((begun, done)) = carried.take() {
                    go_on(begun, done, state, sink, turn);
                }
                if under_way.is_empty() {
                    return Ok(last);
                }
                let Some(Answered { letters, answers, took }) = calls.take().transpose()? else { continue };
                spare = letters;
                state.measures.route_batch.time(took);
                let Some(Sent { begun, ops, .. }) = under_way.pop_front() else { continue };
                let done = state.settle(&ops, &answers);
                if under_way.is_empty() {
                    carried = Some((begun, done));
                } else {
                    go_on(begun, done, state, sink, turn);
                }
            }
        })
    }
}

/// Says what became of a batch that others follow.
fn go_on(begun: Begun, done: Done, state: &mut State, sink: &mut Sink, turn: &mut Instant) {
    begun.tell(state, done, sink);
    state.measures.turns.time(turn.elapsed());
    *turn = Instant::now();
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
