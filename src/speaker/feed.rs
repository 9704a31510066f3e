//! Sends changed best paths to the kernel thread in batches with flow control.
//!
//! Two batches are in work there (Linux processes one while the next is prepared), and a third is queued.
//! Meanwhile changed prefixes stay in the speaker's set, in which a prefix is stored once, however often it
//! changes.
//!
//! Each batch carries a [`Credit`], which returns when the kernel thread drops the batch: acknowledged by
//! Linux, or lost with the thread. Returned credits are counted here and wake the speaker's thread; no other
//! part is involved.

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

/// Passes a batch to the kernel thread without waiting; returns the batch if there is no room.
pub type LearnedSink = Box<dyn FnMut(LearnedBatch) -> Result<(), LearnedBatch> + Send>;

/// Maximum number of prefixes in a batch: 10 ms of work, so that the kernel thread stays busy while other
/// threads hold the processor.
const BATCH: usize = 4096;

/// Number of credits: batches that the kernel thread may hold.
const OUT: usize = 3;

/// Retry interval after the kernel thread had no room for a batch.
const RETRY: Duration = Duration::from_millis(10);

/// A time, and the total number of prefixes that had changed by then.
type Mark = (Instant, u64);

/// Metrics of changed best paths.
#[derive(Debug, Clone)]
pub(crate) struct FeedMetrics {
    /// Time from the iteration in which a best path changed to the kernel's acknowledgement.
    pub(crate) convergence: Histogram,
    /// Number of prefixes per batch.
    pub(crate) batches: Histogram,
}

pub(crate) struct Feed {
    sink: LearnedSink,
    /// True if there is a kernel thread.
    on: bool,
    changes: ChangeIds,
    dirty: bool,
    /// Number of batches that the kernel thread holds.
    out: usize,
    /// Counts a returned credit and wakes this thread.
    give_back: Arc<dyn Fn() + Send + Sync>,
    /// Credits returned since [`Self::take_credits`].
    returned: Arc<AtomicUsize>,
    /// A batch that found no room, and the time to offer it again.
    held: Option<(LearnedBatch, Instant)>,
    scratch: Vec<BestChange>,
    /// Total number of prefixes taken from the core.
    taken: u64,
    /// Change times of prefixes that were not taken yet. Prefixes are taken in the order in which they
    /// changed, so one mark per iteration suffices.
    marks: VecDeque<Mark>,
    /// Change times and numbers of prefixes, per batch that the kernel thread holds.
    with_kernel: VecDeque<Vec<(Instant, u64)>>,
    metrics: FeedMetrics,
}

impl Feed {
    /// Creates the feed. `on`: there is a kernel thread; `wakeup` wakes this thread for returned credits.
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

    /// Processes returned credits: the kernel thread has finished as many batches.
    pub(crate) fn take_credits(&mut self, now: Instant) {
        let batches = self.returned.swap(0, Ordering::AcqRel);
        self.out = self.out.saturating_sub(batches);
        for (changed, prefixes) in self.with_kernel.drain(..batches.min(self.with_kernel.len())).flatten() {
            let time = now.saturating_duration_since(changed);
            self.metrics.convergence.observe_many(time.as_secs_f64(), prefixes);
        }
    }

    /// Returns the time at which [`Self::run`] must be called without another event.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.held.as_ref().map(|(_, at)| *at)
    }

    /// True if [`Self::run`] has work now.
    pub(crate) fn is_ready(&self) -> bool {
        self.dirty && self.out < OUT && self.held.is_none()
    }

    pub(crate) fn metrics(&self) -> &FeedMetrics {
        &self.metrics
    }

    /// Marks prefixes whose best path changed in the iteration that began at `woke`.
    fn mark(&mut self, speaker: &Speaker, woke: Instant) {
        let changed = self.taken + speaker.pending_best() as u64;
        if self.marks.back().map_or(self.taken, |(_, upto)| *upto) < changed {
            self.marks.push_back((woke, changed));
        }
    }

    /// Returns the change times and numbers of the prefixes that are taken now.
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

    /// Takes a batch from the core and offers it to the kernel thread. `woke` is the start of the iteration;
    /// `changed` collects the prefixes for monitors.
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
        // The core returns nothing while best-path selection is deferred; one of its events ends that.
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
                local_pref: c.best.as_ref().and_then(|best| best.local_pref),
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

    /// Simulates a kernel thread with room for this many batches.
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
        let change = LearnedChange { prefix, next_hops: smallvec![], local_pref: None, change: ChangeId(1) };
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
