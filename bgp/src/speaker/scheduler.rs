//! The speaker's clock and its deadlines. Time is what the embedder said last; it never goes back.

use std::time::{Duration, Instant};

use crate::session::connections::Connections;
use crate::session::jitter::Jitter;
use crate::session::timers::{Timer, Timers};

/// Deadlines that a connection or a peer has at most, most of the time, and those that are too few to matter.
const TIMERS_PER_OWNER: usize = 6;
const TIMERS_FREE: usize = 1024;

/// See the module.
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

    /// Octets that had come by then were handed over. Silence is judged by this time, which a pause of the process leaves behind
    /// [`Self::now`] until the embedder has looked at its sockets again.
    pub(super) fn served(&self) -> Instant {
        self.served
    }

    /// When the speaker was made.
    pub(super) fn started(&self) -> Instant {
        self.started
    }

    /// Time has passed.
    pub(super) fn advance(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    /// The embedder had handed over what had come by then.
    pub(super) fn advance_served(&mut self, served: Instant) {
        self.served = self.served.max(served);
    }

    pub(super) fn set(&mut self, timer: Timer, at: Instant) {
        self.timers.set(timer, at);
    }

    /// Sets a timer to a time from now; returns when that is.
    pub(super) fn set_after(&mut self, timer: Timer, time: Duration) -> Instant {
        let at = self.now + time;
        self.timers.set(timer, at);
        at
    }

    /// Between three quarters and all of `time` (RFC 4271 10).
    pub(super) fn jittered(&mut self, time: Duration) -> Duration {
        self.jitter.apply(time)
    }

    /// The earliest deadline.
    pub(super) fn next(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Takes the earliest timer that is due.
    pub(super) fn pop_due(&mut self) -> Option<Timer> {
        self.timers.pop(self.now, self.served)
    }

    /// Deadlines of connections that are gone stay in the heap until their time. Where these are most of it, because
    /// connections come and go, they are taken out.
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
