//! Changed best paths on their way to the kernel thread: two batches that it works on (one is with Linux, one made ready)
//! and one that it finds when it is done with the first.
//!
//! Meanwhile changed prefixes stay in the speaker's set, where a prefix that changes ten times is still one.
//!
//! Each batch carries a [`Credit`], which comes back when the kernel thread drops the batch: acknowledged by Linux, or lost
//! with the thread. It is counted here and wakes the speaker's thread; nobody else takes part.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tortie_bgp::{BestChange, Speaker};
use tortie_net::Cidr;

use crate::speaker::facts::SpeakerFact;
use crate::speaker::faults::Reporter;
use crate::speaker::wakeup::Wakeup;
use tortie_engine::routing::{ChangeId, ChangeIds, Credit, LearnedBatch, LearnedChange};
use tortie_metrics::Histogram;

/// Hands a batch to the kernel thread without waiting; gives it back when there is no room now.
pub type LearnedSink = Box<dyn FnMut(LearnedBatch) -> Result<(), LearnedBatch> + Send>;

/// Prefixes in a batch: 10 ms of the kernel thread's, so that it has something to do while a processor is busy with others.
const BATCH: usize = 4096;

/// Credits: batches that may be with the kernel thread.
const OUT: usize = 3;

/// How long after the kernel thread had no room for a batch it is offered again.
const RETRY: Duration = Duration::from_millis(10);

/// A time, and the number of prefixes that had changed until then, since the start.
type Mark = (Instant, u64);

/// Metrics of changed best paths.
#[derive(Debug, Clone)]
pub(crate) struct FeedMetrics {
    /// From the turn in which a best path changed to the kernel's acknowledgement.
    pub(crate) convergence: Histogram,
    /// Prefixes in a batch.
    pub(crate) batches: Histogram,
}

pub(crate) struct Feed {
    sink: LearnedSink,
    /// There is a kernel thread.
    on: bool,
    changes: ChangeIds,
    dirty: bool,
    /// Batches that are with the kernel thread now.
    out: usize,
    /// Counts a credit that comes back, and wakes this thread.
    give_back: Arc<dyn Fn() + Send + Sync>,
    /// Credits that came back since [`Self::take_credits`].
    returned: Arc<AtomicUsize>,
    /// A batch that found no room, and when to offer it again.
    held: Option<(LearnedBatch, Instant)>,
    scratch: Vec<BestChange>,
    /// Prefixes that were taken, ever.
    taken: u64,
    /// Change times of those that were not taken yet. Prefixes are taken in the order in which they changed, so one
    /// mark a turn is enough, whatever their number.
    marks: VecDeque<Mark>,
    /// The batches that are with the kernel thread: change times and numbers of their prefixes.
    with_kernel: VecDeque<Vec<(Instant, u64)>>,
    metrics: FeedMetrics,
}

impl Feed {
    /// `on`: there is a kernel thread; `wakeup`: of this thread, for credits that come back.
    pub(crate) fn new(sink: LearnedSink, on: bool, wakeup: Arc<Wakeup>) -> Self {
        let returned = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&returned);
        let give_back = Arc::new(move || {
            count.fetch_add(1, Ordering::AcqRel);
            wakeup.wake();
        });
        Self {
            sink,
            on,
            changes: ChangeIds::of_speaker(),
            dirty: false,
            out: 0,
            give_back,
            returned,
            held: None,
            scratch: Vec::new(),
            taken: 0,
            marks: VecDeque::new(),
            with_kernel: VecDeque::new(),
            metrics: FeedMetrics { convergence: Histogram::seconds(), batches: Histogram::sizes() },
        }
    }

    pub(crate) fn changed(&mut self) {
        self.dirty = true;
    }

    /// Takes the credits that came back: the kernel thread is done with as many batches.
    pub(crate) fn take_credits(&mut self, now: Instant) {
        let batches = self.returned.swap(0, Ordering::AcqRel);
        self.out = self.out.saturating_sub(batches);
        for (changed, prefixes) in self.with_kernel.drain(..batches.min(self.with_kernel.len())).flatten() {
            let time = now.saturating_duration_since(changed);
            self.metrics.convergence.observe_many(time.as_secs_f64(), prefixes);
        }
    }

    /// When [`Self::run`] wants to be called though nothing happened.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.held.as_ref().map(|(_, at)| *at)
    }

    /// [`Self::run`] has something to do at once.
    pub(crate) fn is_ready(&self) -> bool {
        self.dirty && self.out < OUT && self.held.is_none()
    }

    pub(crate) fn metrics(&self) -> &FeedMetrics {
        &self.metrics
    }

    /// Prefixes whose best path changed in the turn that began `woke` are marked with it.
    fn mark(&mut self, speaker: &Speaker, woke: Instant) {
        let changed = self.taken + speaker.pending_best() as u64;
        if self.marks.back().map_or(self.taken, |(_, upto)| *upto) < changed {
            self.marks.push_back((woke, changed));
        }
    }

    /// Change times and numbers of the prefixes that are taken now.
    fn unmark(&mut self, taken: usize) -> Vec<(Instant, u64)> {
        let (mut from, upto) = (self.taken, self.taken + taken as u64);
        self.taken = upto;
        let mut parts = Vec::new();
        while let Some((at, last)) = self.marks.front().copied().filter(|_| from < upto) {
            let part = last.min(upto) - from;
            parts.push((at, part));
            from += part;
            if last <= upto {
                self.marks.pop_front();
            }
        }
        parts
    }

    /// Takes a batch and offers it to the kernel thread. `woke`: when the turn began; `changed`: gets the prefixes, too, for
    /// monitors.
    pub(crate) fn run(
        &mut self,
        speaker: &mut Speaker,
        reporter: &mut Reporter,
        now: Instant,
        woke: Instant,
        changed: Option<&mut Vec<Cidr>>,
    ) {
        if self.on {
            self.mark(speaker, woke);
        }
        if let Some((batch, at)) = self.held.take() {
            if at > now {
                self.held = Some((batch, at));
                return;
            }
            self.offer(batch, now);
        }
        if !self.is_ready() {
            return;
        }
        if !self.on && changed.is_none() {
            self.dirty = speaker.drop_best(BATCH);
            return;
        }
        self.scratch.clear();
        let waiting = speaker.pending_best();
        let more = speaker.take_best(BATCH, &mut self.scratch);
        let taken = waiting.saturating_sub(speaker.pending_best());
        let parts = if self.on { self.unmark(taken) } else { Vec::new() };
        // Nothing is given while the selection is deferred; an event of the core ends that.
        self.dirty = more && !self.scratch.is_empty();
        let Some(first) = self.scratch.first().map(|c| c.prefix) else { return };
        if self.on {
            self.with_kernel.push_back(parts);
            self.metrics.batches.observe_many(self.scratch.len() as f64, 1);
        }
        if let Some(list) = changed {
            list.extend(self.scratch.iter().map(|c| c.prefix));
        }
        if !self.on {
            return;
        }
        let fresh = self.changes.next_id();
        let batch: Vec<LearnedChange> = self
            .scratch
            .drain(..)
            .map(|c| LearnedChange {
                prefix: c.prefix,
                next_hops: c.best.map(|b| b.next_hops).unwrap_or_default(),
                change: if c.tag.0 == 0 { fresh } else { ChangeId(c.tag.0) },
            })
            .collect();
        reporter.fact(SpeakerFact::Batch { change: fresh, prefixes: batch.len(), first });
        self.offer(LearnedBatch::new(batch, Credit::new(Arc::clone(&self.give_back))), now);
    }

    fn offer(&mut self, batch: LearnedBatch, now: Instant) {
        match (self.sink)(batch) {
            Ok(()) => self.out += 1,
            Err(batch) => self.held = Some((batch, now + RETRY)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use smallvec::smallvec;

    use super::*;

    /// A kernel thread with room for so many batches.
    fn feed(room: usize) -> (Feed, Arc<Mutex<VecDeque<LearnedBatch>>>, Arc<Wakeup>) {
        let kernel = Arc::new(Mutex::new(VecDeque::new()));
        let taken = Arc::clone(&kernel);
        let sink = Box::new(move |batch| {
            let mut taken: std::sync::MutexGuard<'_, VecDeque<LearnedBatch>> = taken.lock().unwrap();
            if taken.len() >= room {
                return Err(batch);
            }
            taken.push_back(batch);
            Ok(())
        });
        let wakeup = Arc::new(Wakeup::new().unwrap());
        let mut feed = Feed::new(sink, true, Arc::clone(&wakeup));
        feed.dirty = true;
        (feed, kernel, wakeup)
    }

    fn offer(feed: &mut Feed, n: u8, now: Instant) {
        let prefix = Cidr::host([192, 0, 2, n].into());
        let change = LearnedChange { prefix, next_hops: smallvec![], change: ChangeId(1) };
        feed.with_kernel.push_back(vec![(now, 1)]);
        feed.offer(LearnedBatch::new(vec![change], Credit::new(Arc::clone(&feed.give_back))), now);
    }

    fn is_awake(wakeup: &Wakeup) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        poll(&mut [PollFd::new(wakeup, PollFlags::IN)], Some(&Timespec::default())).unwrap() > 0
    }

    #[test]
    fn each_batch_that_the_kernel_took_gives_one_credit_back() {
        let now = Instant::now();
        let (mut feed, kernel, wakeup) = feed(OUT);
        for n in 0..3 {
            assert!(feed.is_ready());
            offer(&mut feed, n, now);
        }
        assert!(!feed.is_ready() && !is_awake(&wakeup));
        kernel.lock().unwrap().pop_front();
        assert!(is_awake(&wakeup), "whoever drops the batch wakes the speaker");
        wakeup.clear();
        feed.take_credits(now);
        assert!(feed.is_ready());
        assert_eq!((feed.out, feed.with_kernel.len()), (2, 2));
        feed.take_credits(now);
        assert_eq!(feed.out, 2, "once");
        kernel.lock().unwrap().clear();
        feed.take_credits(now);
        assert_eq!((feed.out, feed.with_kernel.len()), (0, 0));
    }

    #[test]
    fn a_batch_for_which_there_is_no_room_is_kept_with_its_credit() {
        let now = Instant::now();
        let (mut feed, kernel, wakeup) = feed(1);
        offer(&mut feed, 1, now);
        offer(&mut feed, 2, now);
        assert_eq!((feed.out, feed.deadline()), (1, Some(now + RETRY)));
        assert!(!is_awake(&wakeup));
        let (batch, _) = feed.held.take().unwrap();
        assert_eq!(batch.first().map(|c| c.prefix), Some(Cidr::host([192, 0, 2, 2].into())));
        kernel.lock().unwrap().clear();
        feed.offer(batch, now);
        feed.take_credits(now);
        assert_eq!((feed.out, kernel.lock().unwrap().len()), (1, 1));
    }
}
