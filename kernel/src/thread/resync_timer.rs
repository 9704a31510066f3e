//! Schedule of resyncs.

use std::time::{Duration, Instant};

/// Pause between an event that indicates silent changes and the resync.
pub(crate) const SOON: Duration = Duration::from_millis(200);
/// Interval of resyncs without such events.
const EVERY: Duration = Duration::from_secs(60);

/// Time and reason of the next resync.
#[derive(Debug)]
pub(crate) struct Timing {
    pub(crate) due: Instant,
    /// Earliest time: resyncs caused by events take at most a fifth of the time.
    earliest: Instant,
    /// Reason of the next resync.
    pub(super) reason: &'static str,
}

impl Timing {
    pub(crate) fn new(now: Instant) -> Self {
        Self { due: now + EVERY, earliest: now, reason: "timer" }
    }

    /// Requests a resync after this pause, unless one is due earlier.
    pub(crate) fn soon(&mut self, pause: Duration, reason: &'static str) {
        let due = (Instant::now() + pause).max(self.earliest);
        if due < self.due {
            (self.due, self.reason) = (due, reason);
        }
    }

    /// Requests a resync as soon as permitted.
    pub(crate) fn next(&mut self, reason: &'static str) {
        (self.due, self.reason) = (self.earliest, reason);
    }

    /// Records the end of a resync and its duration.
    pub(super) fn finished(&mut self, now: Instant, took: Duration) {
        self.earliest = now + took * 4;
        // Without events, resyncs take at most a two-hundredth of the time.
        self.due = now + EVERY.max(took * 200);
    }
}
