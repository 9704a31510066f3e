//! Rate limits per peer: for failing connections (DampPeerOscillations, RFC 4271 8.1.1) and for route refresh
//! requests.
//!
//! After several failures in a row, connections of the peer are accepted at a slow rate, because each costs
//! an OPEN, an event for the embedder and possibly a reevaluation of the tables. The limit applies to
//! incoming connections. Outgoing ones are limited by the ConnectRetryTimer. Repeated requests for all routes
//! are limited in the same way.

use std::time::{Duration, Instant};

/// Time after which one failure expires, and thus the interval between accepted connections of a peer that
/// always fails.
const PACE: Duration = Duration::from_secs(5);
/// Number of failures before the limit applies.
const AT_ONCE: u32 = 10;
/// A session shorter than this counts as a failure.
pub(crate) const YOUNG: Duration = Duration::from_secs(5);

/// Rate limit for incoming connections of a peer.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Damping {
    /// Time at which all recorded failures have expired.
    clear_at: Option<Instant>,
}

impl Damping {
    /// Records a failed connection.
    pub(crate) fn note_failure(&mut self, now: Instant) {
        let from = self.clear_at.map_or(now, |at| at.max(now));
        self.clear_at = Some(from + PACE);
    }

    /// Returns true if a new connection is refused now.
    pub(crate) fn refuses(&self, now: Instant) -> bool {
        self.left(now).is_some()
    }

    /// Returns the remaining time for which connections are refused.
    pub(crate) fn left(&self, now: Instant) -> Option<Duration> {
        let left = self.clear_at?.checked_duration_since(now + PACE * AT_ONCE)?;
        Some(left).filter(|left| !left.is_zero())
    }
}

/// Time after which one request expires, and thus the interval between answers to a peer that never stops.
const REFRESH_PACE: Duration = Duration::from_secs(5);
/// Number of requests that are answered without delay.
const REFRESHES_AT_ONCE: u32 = 10;

/// Rate limit for the route refresh requests of a connection (RFC 2918). A request has 23 octets, its answer
/// is the whole table. The first ten are answered at once, then one every 5 s, which also answers all
/// requests that arrived before it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RefreshPace {
    /// Time at which all recorded requests have expired.
    clear_at: Option<Instant>,
    /// Families with a delayed request.
    waiting: [bool; 2],
}

/// Time of the answer to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RefreshTime {
    Now,
    /// At this time; no other request was delayed.
    At(Instant),
    /// Together with a request that is delayed already.
    WithAnother,
}

impl RefreshPace {
    /// Records a request for a family, given by its index.
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

    /// Takes the families with a delayed request, by index. The caller requests each of them again.
    pub(crate) fn take_waiting(&mut self) -> [bool; 2] {
        std::mem::take(&mut self.waiting)
    }
}
