//! Deadlines in a heap.
//!
//! A deadline that moves, as the hold timer does with each message, is not moved in the heap: when the old entry comes up, its
//! owner compares the real deadline and sets it again. So a message costs nothing here.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

use crate::api::ConnId;

/// A timer of a connection (by id), a peer (by source number) or the speaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Timer {
    /// HoldTimer.
    Hold(ConnId),
    /// KeepaliveTimer.
    Keepalive(ConnId),
    /// SendHoldTimer (RFC 9687).
    SendHold(ConnId),
    /// How long an OPEN that would lose a collision waits for the one that would win.
    Collision(ConnId),
    /// ConnectRetryTimer, which includes the delay before the first attempt: when to dial.
    ConnectRetry(u32),
    /// Restart and stale timer (RFC 4724 4.2).
    Restart(u32),
    /// A refresh that the peer asked for too soon after others.
    RefreshOut(ConnId),
    /// The end of a refresh did not come (RFC 7313 4).
    Refresh(u32),
    /// End of the selection deferral (RFC 4724 4.1).
    Deferral,
}

/// All deadlines.
#[derive(Debug, Default)]
pub(crate) struct Timers(BinaryHeap<Reverse<(Instant, Timer)>>);

impl Timers {
    pub(crate) fn set(&mut self, timer: Timer, at: Instant) {
        self.0.push(Reverse((at, timer)));
    }

    /// The earliest one.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.0.peek().map(|Reverse((at, _))| *at)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Forgets those whose owner is gone. It costs a look at each: the caller waits until most of them are.
    pub(crate) fn retain(&mut self, mut is_owned: impl FnMut(Timer) -> bool) {
        self.0.retain(|Reverse((_, timer))| is_owned(*timer));
        self.0.shrink_to(self.0.len() * 2);
    }

    /// Takes the earliest one if it has come.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<Timer> {
        if self.next()? > now {
            return None;
        }
        self.0.pop().map(|Reverse((_, timer))| timer)
    }
}
