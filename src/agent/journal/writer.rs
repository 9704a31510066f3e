//! Content of the journal in bounded memory: two segments, each a base with the inputs after it, as members
//! of gzip (RFC 1952, section 2.2).
//!
//! Inputs are added to the newer segment. Once it is full, a checkpoint of the core starts the next one and
//! the older one is dropped, so that at least one full segment of inputs is always kept. The base of a
//! checkpoint contains the store's entries. They are computed from the older base and the inputs since, only
//! when they are needed.

use std::io::Write;
use std::time::Instant;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::decisions::Decisions;
use super::entries::StoreEntries;
use super::format::{Base, FORMAT, Header, Line, Lines, Step, Time};
use super::redact::Redactor;
use crate::agent::core::checkpoint::Checkpoint;
use crate::agent::core::effect::Effect;
use crate::agent::core::input::{Input, Now};
use crate::agent::core::options::CoreOptions;

/// Size of a full segment, in compressed octets of inputs.
pub(super) const SEGMENT: usize = 1 << 20;
/// Hard limit in compressed octets of inputs: beyond it, without a checkpoint, new inputs are lost.
const MOST: usize = 4 * SEGMENT;
/// Size of a gzip member in uncompressed octets; the last member is kept uncompressed until it is full.
pub(super) const MEMBER: usize = 256 << 10;

/// A base with the inputs after it.
struct Segment {
    /// Compressed lines before the first input, without the header.
    base: Vec<u8>,
    /// Complete gzip members.
    inputs: Vec<u8>,
    /// Uncompressed lines that do not fill a member yet.
    open: Vec<u8>,
}

impl Segment {
    fn new(base: Vec<u8>) -> Self {
        Self { base, inputs: Vec::new(), open: Vec::new() }
    }

    fn push(&mut self, line: &Line, member: usize) {
        write_line(&mut self.open, line);
        if self.open.len() >= member {
            self.close();
        }
    }

    fn close(&mut self) {
        if !self.open.is_empty() {
            self.inputs.extend(compressed(&self.open));
            self.open = Vec::new();
        }
    }
}

/// Records inputs.
pub(super) struct Writer {
    header: Header,
    started: Instant,
    redactor: Redactor,
    decisions: Decisions,
    older: Option<Segment>,
    newer: Segment,
    /// Number of lost inputs since the last recorded one; until the next checkpoint all inputs are lost.
    lost: u64,
    /// The store's entries, followed while inputs are lost.
    store: Option<StoreEntries>,
    segment: usize,
    member: usize,
}

impl Writer {
    /// Creates an empty journal that begins at the start of the agent.
    pub(super) fn new(options: CoreOptions, started: Now) -> Self {
        Self::with_sizes(options, started, SEGMENT, MEMBER)
    }

    /// Creates a journal with these sizes: compressed octets of a segment, uncompressed octets of a member.
    pub(super) fn with_sizes(options: CoreOptions, started: Now, segment: usize, member: usize) -> Self {
        let header = Header {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started: started.wall.as_microsecond(),
            options,
            lost: 0,
        };
        Self {
            header,
            started: started.mono,
            redactor: Redactor::new(),
            decisions: Decisions::new(),
            older: None,
            newer: Segment::new(Vec::new()),
            lost: 0,
            store: None,
            segment,
            member,
        }
    }

    /// Counts inputs that did not reach the journal, none of them feed events.
    pub(super) fn lose(&mut self, inputs: u64) {
        self.lost += inputs;
    }

    /// Records an input with its effects.
    pub(super) fn input(&mut self, now: Now, input: Input, effects: &[Effect]) {
        let input = self.redactor.input(input);
        if self.lost > 0 || self.newer.inputs.len() > MOST {
            self.lost += 1;
            if let Input::Feed(event) = input {
                let mut store = self.store.take().unwrap_or_else(|| self.recorded_entries());
                store.follow(event);
                self.store = Some(store);
            }
            return;
        }
        let decisions = self.decisions.lines(effects);
        let step = Step { time: Time::of(now, self.started), input, decisions };
        self.newer.push(&Line::Input(Box::new(step)), self.member);
    }

    /// True if the journal needs a checkpoint.
    pub(super) fn wants_checkpoint(&self) -> bool {
        self.lost > 0 || self.newer.inputs.len() >= self.segment
    }

    /// Starts the next segment. Inputs lost before it are no longer part of the journal.
    pub(super) fn checkpoint(&mut self, now: Now, core: Checkpoint) {
        // A second checkpoint for the same request would drop the segment that has just begun.
        if !self.wants_checkpoint() {
            return;
        }
        let store = self.store.take().unwrap_or_else(|| self.recorded_entries());
        let base = Base { time: Time::of(now, self.started), core, entries: store.entries() };
        let mut text = Vec::new();
        write_line(&mut text, &Line::Checkpoint(Box::new(base)));
        let mut next = Segment::new(compressed(&text));
        next.push(&Line::Boundary, self.member);
        self.decisions.forget();
        let mut older = std::mem::replace(&mut self.newer, next);
        older.close();
        self.header.lost += self.lost;
        self.older = (std::mem::take(&mut self.lost) == 0).then_some(older);
    }

    /// Returns the store's entries after all recorded inputs.
    fn recorded_entries(&mut self) -> StoreEntries {
        self.newer.close();
        let whole = [&*self.newer.base, &*self.newer.inputs].concat();
        let mut lines = Lines::of(&whole);
        let mut store = StoreEntries::default();
        loop {
            match lines.next() {
                Ok(Some(Line::Checkpoint(base))) => store = StoreEntries::of(base.entries),
                Ok(Some(Line::Input(step))) => {
                    if let Input::Feed(event) = step.input {
                        store.follow(event);
                    }
                }
                Ok(Some(Line::Journal(_) | Line::Boundary)) => {}
                Ok(None) => return store,
                Err(error) => {
                    tracing::warn!(target: "tortie", "the journal of inputs cannot be read again: {error}");
                    return store;
                }
            }
        }
    }

    /// Returns the whole journal as one file.
    pub(super) fn export(&mut self) -> Vec<u8> {
        self.newer.close();
        let mut text = Vec::new();
        write_line(&mut text, &Line::Journal(Box::new(self.header.clone())));
        let mut out = compressed(&text);
        match &self.older {
            Some(older) => out.extend([&*older.base, &*older.inputs].concat()),
            None => out.extend(&self.newer.base),
        }
        out.extend(&self.newer.inputs);
        out
    }
}

fn write_line(to: &mut Vec<u8>, line: &Line) {
    let start = to.len();
    match serde_json::to_writer(&mut *to, line) {
        Ok(()) => to.push(b'\n'),
        Err(error) => {
            to.truncate(start);
            tracing::warn!(target: "tortie", "an input cannot be recorded in the journal: {error}");
        }
    }
}

/// Compresses one gzip member, at the fast level: a journal is always written and rarely read.
fn compressed(octets: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    // Writing to a vector cannot fail.
    let written = encoder.write_all(octets).and_then(|()| encoder.finish());
    written.unwrap_or_default()
}
