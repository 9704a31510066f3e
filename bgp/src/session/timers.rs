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

impl Timer {
    /// Its expiry says that nothing came, or that nothing could be sent: what waits in the sockets has to be served before.
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

/// All deadlines.
#[derive(Debug, Clone, Default)]
pub(crate) struct Timers {
    /// See [`Timer::judges_silence`].
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

    /// The earliest one.
    pub(crate) fn next(&self) -> Option<Instant> {
        first(&self.of_silence).into_iter().chain(first(&self.others)).min()
    }

    pub(crate) fn len(&self) -> usize {
        self.of_silence.len() + self.others.len()
    }

    /// Forgets those whose owner is gone. It costs a look at each: the caller waits until most of them are.
    pub(crate) fn retain(&mut self, mut is_owned: impl FnMut(Timer) -> bool) {
        for heap in [&mut self.of_silence, &mut self.others] {
            heap.retain(|Reverse((_, timer))| is_owned(*timer));
            heap.shrink_to(heap.len() * 2);
        }
    }

    /// Takes the earliest one that is due. `served`: the time by which silence is judged.
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
