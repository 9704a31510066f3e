//! Heap of timer deadlines.
//!
//! A deadline that moves, as that of the hold timer does with each message, is not moved in the heap. When
//! the old entry expires, its owner compares the current deadline and sets the timer again. A message thus
//! costs no heap operation.

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
    /// Time for which a connection that would lose a collision waits for the OPEN of the other one.
    Collision(ConnId),
    /// ConnectRetryTimer, including the delay before the first attempt.
    ConnectRetry(u32),
    /// Restart time, long-lived stale time or wait for End-of-RIB (RFC 4724 4.2, RFC 9494 4.2).
    Restart(u32),
    /// Delayed answer to a refresh request over the rate limit.
    RefreshOut(ConnId),
    /// Latest end of a peer's route refresh (RFC 7313 4).
    Refresh(u32),
    /// End of the route selection deferral (RFC 4724 4.1).
    Deferral,
}

impl Timer {
    /// Returns true if expiry means that nothing arrived or that nothing could be sent. Pending data of the
    /// sockets has to be processed before.
    fn judges_silence(self) -> bool {
        match self {
            Self::Keepalive(_) | Self::ConnectRetry(_) | Self::RefreshOut(_) => false,
            Self::Hold(_)
            | Self::SendHold(_)
            | Self::Collision(_)
            | Self::Restart(_)
            | Self::Refresh(_)
            | Self::Deferral => true,
        }
    }
}

type Heap = BinaryHeap<Reverse<(Instant, Timer)>>;

/// All deadlines, in two heaps.
#[derive(Debug, Clone, Default)]
pub(crate) struct Timers {
    /// Timers for which [`Timer::judges_silence`] is true.
    of_silence: Heap,
    others: Heap,
}

fn first(heap: &Heap) -> Option<Instant> {
    heap.peek().map(|Reverse((at, _))| *at)
}

impl Timers {
    pub(crate) fn set(&mut self, timer: Timer, at: Instant) {
        let heap = if timer.judges_silence() { &mut self.of_silence } else { &mut self.others };
        heap.push(Reverse((at, timer)));
    }

    /// Returns the earliest deadline.
    pub(crate) fn next(&self) -> Option<Instant> {
        first(&self.of_silence).into_iter().chain(first(&self.others)).min()
    }

    pub(crate) fn len(&self) -> usize {
        self.of_silence.len() + self.others.len()
    }

    /// Removes the timers of removed owners. Visits every entry, so the caller waits until most are stale.
    pub(crate) fn retain(&mut self, mut is_owned: impl FnMut(Timer) -> bool) {
        for heap in [&mut self.of_silence, &mut self.others] {
            heap.retain(|Reverse((_, timer))| is_owned(*timer));
            heap.shrink_to(heap.len() * 2);
        }
    }

    /// Removes and returns the earliest timer that is due. Timers of silence expire by `served`, the others by
    /// `now`.
    pub(crate) fn pop(&mut self, now: Instant, served: Instant) -> Option<Timer> {
        let silence = first(&self.of_silence).filter(|at| *at <= served);
        let other = first(&self.others).filter(|at| *at <= now);
        let heap = match (silence, other) {
            (Some(silence), Some(other)) if silence > other => &mut self.others,
            (Some(_), _) => &mut self.of_silence,
            (None, Some(_)) => &mut self.others,
            (None, None) => return None,
        };
        heap.pop().map(|Reverse((_, timer))| timer)
    }
}
