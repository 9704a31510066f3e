//! Watching: sleep on the wake file, look, hand out.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::super::{Revision, StoreError, Watch, WatchEvent};
use super::files::Files;
use super::read::{Changes, Reader};
use super::wake;
use super::worker::Worker;
use super::write::Writer;

/// Looks without being woken: a writer may die between its commit and its wake-up, and leases end by themselves.
const POLL: Duration = Duration::from_secs(1);
/// Looks again after a wake-up that showed nothing.
const BACK_OFF: (Duration, Duration) = (Duration::from_micros(500), Duration::from_millis(50));

/// A running watch.
pub(super) struct SqliteWatch {
    files: Arc<Files>,
    reader: Arc<Worker<Reader>>,
    prefixes: Arc<[String]>,
    /// Everything up to here was handed out or is pending.
    seen: Revision,
    /// The store whose revision that is.
    of: String,
    pending: VecDeque<WatchEvent>,
    wake: Arc<Notify>,
    /// Set after a wake-up that showed nothing.
    back_off: Option<Duration>,
    /// When something was handed out last; silence is broken each [`POLL`] by a proof of freshness.
    last_progress: Instant,
    /// A look is due without waiting.
    poll_due: bool,
    ended: bool,
}

impl SqliteWatch {
    pub(super) async fn start(
        files: Arc<Files>,
        reader: Arc<Worker<Reader>>,
        prefixes: Vec<String>,
        after: Revision,
        of: Option<String>,
    ) -> Result<Self, StoreError> {
        // Before the first look, so that no commit falls between the two.
        let wake = wake::start(&files)?;
        let prefixes: Arc<[String]> = prefixes.into();
        let looked = Arc::clone(&prefixes);
        let first = reader.run(move |reader, _| reader.changes(&looked, after)).await?;
        let mut watch = Self {
            files,
            reader,
            prefixes,
            seen: after,
            of: of.unwrap_or_else(|| first.store_id.clone()),
            pending: VecDeque::new(),
            wake,
            back_off: None,
            last_progress: Instant::now(),
            poll_due: true,
            ended: false,
        };
        watch.take(first);
        Ok(watch)
    }

    /// Keeps what one look showed.
    fn take(&mut self, found: Changes) {
        // Another file, or one that was restored from an older copy: list again.
        if found.store_id != self.of
            || self.seen.saturating_add(1) < found.oldest
            || found.current < self.seen
        {
            self.pending.push_back(WatchEvent::Compacted { oldest: found.oldest });
            self.ended = true;
            return;
        }
        let last = found.deltas.last().map_or(self.seen, |delta| delta.revision);
        self.pending.extend(found.deltas.into_iter().map(WatchEvent::Delta));
        if found.upto > last || (self.pending.is_empty() && self.last_progress.elapsed() >= POLL) {
            self.pending.push_back(WatchEvent::Progress(found.upto));
        }
        self.poll_due = found.upto < found.current;
        self.seen = found.upto;
    }

    /// Waits until a look is worth while; says whether the wake file moved.
    async fn wait(&self) -> bool {
        tokio::time::timeout(self.back_off.unwrap_or(POLL), self.wake.notified()).await.is_ok()
    }

    /// Readers write nothing; a watcher that sees an ended lease has a writer take its keys away.
    async fn purge(&self) {
        let files = Arc::clone(&self.files);
        let purge = async {
            let writer = Worker::start("store-purge", move || Writer::open(files)).await?;
            writer.run(|writer, given_up| writer.expire(given_up)).await
        };
        if let Err(e) = purge.await {
            tracing::debug!(target: "tortie::store", error = %e, "expired keys were not removed");
        }
    }
}

#[async_trait::async_trait]
impl Watch for SqliteWatch {
    async fn next(&mut self) -> Result<WatchEvent, StoreError> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                self.last_progress = Instant::now();
                return Ok(event);
            }
            if self.ended {
                return Err(StoreError::Unreachable("the watch is over".into()));
            }
            let woken = if self.poll_due { false } else { self.wait().await };
            // Stays set until the look is done: a caller may drop this future in the middle.
            self.poll_due = true;
            let (prefixes, seen) = (Arc::clone(&self.prefixes), self.seen);
            let found = self.reader.run(move |reader, _| reader.changes(&prefixes, seen)).await?;
            let (moved, expired) = (found.upto > seen, found.expired);
            self.take(found);
            self.back_off = match self.back_off {
                _ if moved => None,
                None if woken => Some(BACK_OFF.0),
                Some(pause) if pause < BACK_OFF.1 => Some((pause * 2).min(BACK_OFF.1)),
                _ => None,
            };
            if expired {
                self.purge().await;
            }
        }
    }
}
