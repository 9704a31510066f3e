//! When the kernel is next compared.

use std::time::{Duration, Instant};

/// Silent changes are looked for this long after the event that hints at them.
pub(crate) const SOON: Duration = Duration::from_millis(200);
/// And in any case this often.
const EVERY: Duration = Duration::from_secs(60);

/// When the next comparison is due.
#[derive(Debug)]
pub(crate) struct Timing {
    pub(crate) due: Instant,
    /// Not before: comparing takes at most a fifth of the time when events ask for it.
    earliest: Instant,
    /// What asked for it.
    pub(super) reason: &'static str,
}

impl Timing {
    pub(crate) fn new(now: Instant) -> Self {
        Self { due: now + EVERY, earliest: now, reason: "timer" }
    }

    /// Compares after this pause, unless that is due before.
    pub(crate) fn soon(&mut self, pause: Duration, reason: &'static str) {
        let due = (Instant::now() + pause).max(self.earliest);
        if due < self.due {
            (self.due, self.reason) = (due, reason);
        }
    }

    /// Compares as soon as that is allowed, for this reason.
    pub(crate) fn next(&mut self, reason: &'static str) {
        (self.due, self.reason) = (self.earliest, reason);
    }

    /// A comparison ended that took so long.
    pub(super) fn finished(&mut self, now: Instant, took: Duration) {
        self.earliest = now + took * 4;
        // When nothing asks for it, a two-hundredth of the time.
        self.due = now + EVERY.max(took * 200);
    }
}
