//! Messages to the kernel thread.

use std::sync::Arc;

use tortie_net::ScopedAddr;

use super::view::KernelView;
use crate::arrival::Arrival;
use crate::intent::{KernelIntent, PolicyChange};
use tortie_engine::routing::{ChangeId, LearnedBatch, LearnedChange};

/// Wakes the kernel thread; the events themselves are in a queue shared with the watch thread.
#[derive(Debug)]
pub struct EventsReady(pub(crate) ());

/// A report of the thread that waits for workloads.
#[derive(Debug)]
pub struct ArrivalReport(pub(crate) Arrival);

/// A message to the kernel thread.
pub enum ToKernel {
    /// The whole desired state, except endpoints and rules.
    Intent(Arc<KernelIntent>),
    /// A change of endpoints and rules; acknowledged by
    /// [`KernelFact::Enforced`](crate::KernelFact::Enforced). The first one contains everything, and objects
    /// of an earlier process are not changed before it arrives.
    Policy(Arc<PolicyChange>),
    /// Learned routes; acknowledged by [`KernelFact::Learned`](crate::KernelFact::Learned), and then dropped
    /// with the speaker's credit. The speaker has credits for one more batch, which is prepared meanwhile;
    /// all other changes wait in the speaker, so that changes of one prefix are merged.
    Learned(LearnedBatch),
    /// Tracks this next hop: [`KernelFact::NextHop`](crate::KernelFact::NextHop) is reported at once and at
    /// each change.
    Track(ScopedAddr),
    /// Stops tracking this next hop.
    Untrack(ScopedAddr),
    /// Deletes Tortie's learned routes found at the start that are not desired since.
    SweepStale,
    /// Notifications were received by the watch thread (one or more).
    Events(EventsReady),
    /// A workload arrived on this host, or arrivals cannot be noticed.
    Arrival(ArrivalReport),
    /// Begins a drift hold for this time, at most one hour; `None` ends it and repairs everything. The
    /// closure runs when that is done.
    HoldDrift(Option<std::time::Duration>, Box<dyn FnOnce() + Send>),
    /// A query, answered by the closure (status, `route list`, `diff`). During a resync or a long transaction
    /// it is answered ahead of earlier messages, which wait for the end.
    Query(Box<dyn FnOnce(&KernelView<'_>) + Send>),
    /// Stops the thread; the kernel's state is not changed.
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
            Self::Arrival(report) => f.debug_tuple("Arrival").field(report).finish(),
            Self::Query(_) => f.write_str("Query"),
            Self::Stop => f.write_str("Stop"),
        }
    }
}

/// Returns the newest change of a batch; 0 for an empty one.
pub(crate) fn newest(batch: &[LearnedChange]) -> ChangeId {
    batch.iter().map(|c| c.change).max().unwrap_or_default()
}
