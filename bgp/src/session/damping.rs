//! Peers whose connections fail again and again (RFC 4271 8.1.1, DampPeerOscillations): after some of them in a row new ones
//! are let in at a slow pace only, because each costs an OPEN, an event for the embedder, and perhaps a reevaluation of the tables.
//!
//! It concerns connections that the peer opens. How often we dial is a matter of the retry timer.

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
        self.clear_at.is_some_and(|at| at > now + PACE * AT_ONCE)
    }
}
