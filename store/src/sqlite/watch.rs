//! Watch on SQLite: waits for the wake file, reads new revisions, returns them as events.

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

/// Polling interval without a wake-up: a writer may die between its commit and the wake-up, and leases expire
/// on their own.
const POLL: Duration = Duration::from_secs(1);
/// Pause before another read after a wake-up without new revisions: first value and upper limit.
const BACK_OFF: (Duration, Duration) = (Duration::from_micros(500), Duration::from_millis(50));

/// A running watch on SQLite.
pub(super) struct SqliteWatch {
    files: Arc<Files>,
    reader: Arc<Worker<Reader>>,
    prefixes: Arc<[String]>,
    /// Everything up to this revision was returned or is in `pending`.
    seen: Revision,
    /// Identity of the store to which the revision belongs.
    of: String,
    pending: VecDeque<WatchEvent>,
    wake: Arc<Notify>,
    /// Set after a wake-up without new revisions.
    back_off: Option<Duration>,
    /// Time of the last event; after [`POLL`] without one, a progress event proves freshness.
    last_progress: Instant,
    /// True if the next read must not wait.
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
        // Subscribed before the first read, so that no commit is missed between the two.
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

    /// Queues the result of one read.
    fn take(&mut self, found: Changes) {
        // Another file, or one restored from an older copy: the caller must list again.
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

    /// Waits for a wake-up or a timeout; returns true after a wake-up.
    async fn wait(&self) -> bool {
        tokio::time::timeout(self.back_off.unwrap_or(POLL), self.wake.notified()).await.is_ok()
    }

    /// Removes the keys of ended leases through a writer, since readers write nothing.
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
            // Stays set until the read is done: a caller may drop this future in between.
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
