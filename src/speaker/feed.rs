//! Changed best paths on their way to the kernel thread: one batch that it works on and one that it finds when it is done.
//!
//! Meanwhile changed prefixes stay in the speaker's set, where a prefix that changes ten times is still one.

use std::time::{Duration, Instant};

use tortie_bgp::{BestChange, Speaker};
use tortie_config::Cidr;

use crate::routing::{ChangeId, LearnedChange};

use super::api::{ChangeIds, FactSink, LearnedSink, SpeakerFact};

/// Prefixes in a batch.
const BATCH: usize = 1024;

/// Batches that are with the kernel thread.
const OUT: usize = 2;

/// How long after the kernel thread had no room for a batch it is offered again.
const RETRY: Duration = Duration::from_millis(10);

pub(super) struct Feed {
    sink: LearnedSink,
    /// There is a kernel thread.
    on: bool,
    changes: ChangeIds,
    dirty: bool,
    /// Batches that are with the kernel thread now.
    out: usize,
    /// A batch that found no room, and when to offer it again.
    held: Option<(Vec<LearnedChange>, Instant)>,
    scratch: Vec<BestChange>,
}

impl Feed {
    pub(super) fn new(sink: LearnedSink, on: bool, changes: ChangeIds) -> Self {
        Self { sink, on, changes, dirty: false, out: 0, held: None, scratch: Vec::new() }
    }

    pub(super) fn changed(&mut self) {
        self.dirty = true;
    }

    /// The kernel thread is done with so many batches.
    pub(super) fn took(&mut self, batches: usize) {
        self.out = self.out.saturating_sub(batches);
    }

    /// When [`Self::run`] wants to be called though nothing happened.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.held.as_ref().map(|(_, at)| *at)
    }

    /// Something can be done at once.
    pub(super) fn busy(&self) -> bool {
        self.dirty && self.out < OUT && self.held.is_none()
    }

    /// `listens`: somebody who is told the prefixes, too.
    pub(super) fn run(
        &mut self,
        speaker: &mut Speaker,
        facts: &mut FactSink,
        now: Instant,
        listens: Option<&mut Vec<Cidr>>,
    ) {
        if let Some((batch, at)) = self.held.take() {
            if at > now {
                self.held = Some((batch, at));
                return;
            }
            self.offer(batch, now);
        }
        if !self.busy() {
            return;
        }
        if !self.on && listens.is_none() {
            self.dirty = speaker.drop_best(BATCH);
            return;
        }
        self.scratch.clear();
        let more = speaker.take_best(BATCH, &mut self.scratch);
        // Nothing is given while the selection is deferred; the speaker tells when it no longer is.
        self.dirty = more && !self.scratch.is_empty();
        let Some(first) = self.scratch.first().map(|c| c.prefix) else { return };
        if let Some(list) = listens {
            list.extend(self.scratch.iter().map(|c| c.prefix));
        }
        if !self.on {
            return;
        }
        let fresh = self.changes.next();
        let batch: Vec<LearnedChange> = self
            .scratch
            .drain(..)
            .map(|c| LearnedChange {
                prefix: c.prefix,
                next_hops: c.best.map(|b| b.next_hops).unwrap_or_default(),
                change: if c.tag.0 == 0 { fresh } else { ChangeId(c.tag.0) },
            })
            .collect();
        facts(SpeakerFact::Batch { change: fresh, prefixes: batch.len(), first });
        self.offer(batch, now);
    }

    fn offer(&mut self, batch: Vec<LearnedChange>, now: Instant) {
        match (self.sink)(batch) {
            Ok(()) => self.out += 1,
            Err(batch) => self.held = Some((batch, now + RETRY)),
        }
    }
}
