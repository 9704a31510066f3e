//! Peers whose connections fail again and again (RFC 4271 8.1.1, DampPeerOscillations): after some of them in a row new ones
//! are let in at a slow pace only, because each costs an OPEN, an event for the embedder, and perhaps a reevaluation of the tables.
//!
//! It concerns connections that the peer opens. How often we dial is a matter of the retry timer. And peers that ask for all routes
//! again and again, which are answered at a slow pace likewise.

use std::time::{Duration, Instant};

/// The pace at which failures are forgotten, and so the one at which a peer that only fails is let in.
const PACE: Duration = Duration::from_secs(5);
/// This many may fail at once.
const AT_ONCE: u32 = 10;
/// A session that ends sooner counts as a failure.
pub(crate) const YOUNG: Duration = Duration::from_secs(5);

/// How a peer's connections fared lately.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Damping {
    /// When all failures will be forgotten.
    clear_at: Option<Instant>,
}

impl Damping {
    /// A connection of the peer failed.
    pub(crate) fn note_failure(&mut self, now: Instant) {
        let from = self.clear_at.map_or(now, |at| at.max(now));
        self.clear_at = Some(from + PACE);
    }

    /// A new connection is not let in now.
    pub(crate) fn refuses(&self, now: Instant) -> bool {
        self.left(now).is_some()
    }

    /// For how long none is let in.
    pub(crate) fn left(&self, now: Instant) -> Option<Duration> {
        let left = self.clear_at?.checked_duration_since(now + PACE * AT_ONCE)?;
        Some(left).filter(|left| !left.is_zero())
    }
}

/// The pace at which requests are forgotten, and so the one of a peer that never stops.
const REFRESH_PACE: Duration = Duration::from_secs(5);
/// This many are answered at once.
const REFRESHES_AT_ONCE: u32 = 10;

/// The requests of a connection for all routes (RFC 2918) lately. A request is 23 octets and its answer the whole table: some are answered at
/// once, then one in five seconds, with which those are answered that came before it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RefreshPace {
    /// When all of them will be forgotten.
    clear_at: Option<Instant>,
    /// Families for which one waits.
    waiting: [bool; 2],
}

/// When a request is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RefreshTime {
    Now,
    /// Then: there was none that waits.
    At(Instant),
    /// With one that waits.
    WithAnother,
}

impl RefreshPace {
    /// Takes a request for a family, by its index.
    pub(crate) fn request(&mut self, family: usize, now: Instant) -> RefreshTime {
        let from = self.clear_at.map_or(now, |at| at.max(now));
        let first = from.checked_sub(REFRESH_PACE * (REFRESHES_AT_ONCE - 1)).filter(|first| *first > now);
        let Some(first) = first else {
            self.clear_at = Some(from + REFRESH_PACE);
            return RefreshTime::Now;
        };
        let is_first = !self.waiting.contains(&true);
        if let Some(waiting) = self.waiting.get_mut(family) {
            *waiting = true;
        }
        if is_first { RefreshTime::At(first) } else { RefreshTime::WithAnother }
    }

    /// The families for which a request waited, in the order of their indexes; each is to be requested again.
    pub(crate) fn take_waiting(&mut self) -> [bool; 2] {
        std::mem::take(&mut self.waiting)
    }
}
