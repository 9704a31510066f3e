//! What goes to the kernel thread.

use std::sync::Arc;

use tortie_net::ScopedAddr;

use super::view::KernelView;
use crate::intent::{KernelIntent, PolicyChange};
use tortie_engine::routing::{ChangeId, LearnedBatch, LearnedChange};

/// Wakes the kernel thread; the events themselves wait in a queue that the watch thread shares with it.
#[derive(Debug)]
pub struct EventsReady(pub(crate) ());

/// To the kernel thread.
pub enum ToKernel {
    /// The wanted state, as a whole.
    Intent(Arc<KernelIntent>),
    /// Endpoints and rules; answered by [`KernelFact::Enforced`](crate::KernelFact::Enforced). The first one is
    /// the whole of it, and nothing that was
    /// left by a former process is touched before it comes.
    Policy(Arc<PolicyChange>),
    /// Learned routes; answered by [`KernelFact::Learned`](crate::KernelFact::Learned) when acknowledged, and dropped then,
    /// with the speaker's credit.
    /// The speaker has credits for one more to be made ready meanwhile; all else waits there, so that dirty prefixes
    /// coalesce.
    Learned(LearnedBatch),
    /// Follow this next hop: [`KernelFact::NextHop`](crate::KernelFact::NextHop) at once and at each change.
    Track(ScopedAddr),
    /// Follow it no more.
    Untrack(ScopedAddr),
    /// Own learned routes that were found at start and not wanted since are deleted now.
    SweepStale,
    /// Notifications of the watch thread (a coalesced set of them).
    Events(EventsReady),
    /// Leave differences that others make as they are, for this long and at most an hour; `None`: no longer, all is repaired now.
    /// The closure runs when that is done.
    HoldDrift(Option<std::time::Duration>, Box<dyn FnOnce() + Send>),
    /// A question, answered by the closure (status, `route list`, `diff`). While a comparison or a long transaction is under
    /// way it is answered ahead of the messages before it, which wait for the end of that.
    Query(Box<dyn FnOnce(&KernelView<'_>) + Send>),
    /// End the thread; the kernel stays as it is.
    Stop,
}

impl std::fmt::Debug for ToKernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Intent(intent) => f.debug_tuple("Intent").field(&intent.generation).finish(),
            Self::Policy(policy) => f.debug_tuple("Policy").field(&policy.serial).finish(),
            Self::Learned(batch) => f.debug_tuple("Learned").field(&batch.len()).finish(),
            Self::Track(addr) => f.debug_tuple("Track").field(addr).finish(),
            Self::Untrack(addr) => f.debug_tuple("Untrack").field(addr).finish(),
            Self::SweepStale => f.write_str("SweepStale"),
            Self::HoldDrift(span, _) => f.debug_tuple("HoldDrift").field(span).finish(),
            Self::Events(_) => f.write_str("Events"),
            Self::Query(_) => f.write_str("Query"),
            Self::Stop => f.write_str("Stop"),
        }
    }
}

/// The newest change of a batch; 0 of an empty one.
pub(crate) fn newest(batch: &[LearnedChange]) -> ChangeId {
    batch.iter().map(|c| c.change).max().unwrap_or_default()
}
