//! The speaker's clock and its timers. The clock has the latest time that the embedder passed; it never goes
//! back.

use std::time::{Duration, Instant};

use crate::session::connections::Connections;
use crate::session::jitter::Jitter;
use crate::session::timers::{Timer, Timers};

/// Usual maximum of timers per connection or peer, and an allowance for the rest: more timers than these are
/// mostly stale.
const TIMERS_PER_OWNER: usize = 6;
const TIMERS_FREE: usize = 1024;

/// Clock, timers and jitter of a speaker.
#[derive(Debug, Clone)]
pub(super) struct Scheduler {
    now: Instant,
    /// See [`Self::served`].
    served: Instant,
    started: Instant,
    timers: Timers,
    jitter: Jitter,
}

impl Scheduler {
    pub(super) fn new(now: Instant, seed: u64) -> Self {
        Self { now, served: now, started: now, timers: Timers::default(), jitter: Jitter::new(seed) }
    }

    pub(super) fn now(&self) -> Instant {
        self.now
    }

    /// Returns the time up to which the embedder has passed all octets of its sockets. Silence is judged by it.
    /// After a pause of the process it lags behind [`Self::now`] until the embedder has polled its sockets again.
    pub(super) fn served(&self) -> Instant {
        self.served
    }

    /// Returns the time at which the speaker was created.
    pub(super) fn started(&self) -> Instant {
        self.started
    }

    /// Moves the clock forward; an earlier time changes nothing.
    pub(super) fn advance(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    /// The embedder has passed all octets that arrived before this time.
    pub(super) fn advance_served(&mut self, served: Instant) {
        self.served = self.served.max(served);
    }

    pub(super) fn set(&mut self, timer: Timer, at: Instant) {
        self.timers.set(timer, at);
    }

    /// Sets a timer to expire after `time`, and returns its deadline.
    pub(super) fn set_after(&mut self, timer: Timer, time: Duration) -> Instant {
        let at = self.now + time;
        self.timers.set(timer, at);
        at
    }

    /// Returns a random duration from 75 % to 100 % of `time` (RFC 4271 10).
    pub(super) fn jittered(&mut self, time: Duration) -> Duration {
        self.jitter.apply(time)
    }

    /// Returns the earliest deadline.
    pub(super) fn next(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Removes and returns the earliest timer that is due.
    pub(super) fn pop_due(&mut self) -> Option<Timer> {
        self.timers.pop(self.now, self.served)
    }

    /// Removes the timers of closed connections if they are most of the heap. Otherwise they stay until their
    /// deadline, which costs less than a search.
    pub(super) fn prune(&mut self, connections: &Connections, peers: usize) {
        if self.timers.len() > TIMERS_PER_OWNER * (connections.len() + peers) + TIMERS_FREE {
            self.timers.retain(|timer| match timer {
                Timer::Hold(id)
                | Timer::Keepalive(id)
                | Timer::SendHold(id)
                | Timer::Collision(id)
                | Timer::RefreshOut(id) => connections.contains(id),
                Timer::ConnectRetry(_) | Timer::Restart(_) | Timer::Refresh(_) | Timer::Deferral => true,
            });
        }
    }
}
