//! A member of an update group: its position in log and Adj-RIB-Out.

use std::sync::Arc;

use super::advertised::Advertised;
use super::segment::Segment;

/// Source of a member's next output.
#[derive(Debug, Clone)]
pub(crate) enum Mode {
    /// A pass over the pages of the Adj-RIB-Out.
    Pages(Pages),
    /// The log from this position on, encoded for this member alone.
    Log(u64),
    /// In step: the shared segment with this number.
    Ring(u64),
}

/// A pass over the pages of the Adj-RIB-Out.
#[derive(Debug, Clone)]
pub(crate) struct Pages {
    pub(crate) next: u32,
    pub(crate) end: u32,
    /// True to send all announced routes, false to send changes only.
    pub(crate) all: bool,
    /// Entries that changed at this log position or later may have to be withdrawn. `None`: no withdrawals.
    pub(crate) since: Option<u64>,
    /// Log position at which the member continues after the pass.
    pub(crate) resume: u64,
}

/// State of End-of-RIB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndOfRib {
    Due,
    Sent,
}

/// A member of an update group.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub(crate) mode: Mode,
    /// Routes sent through the previous group; those not announced any more have to be withdrawn.
    pub(crate) previous: Option<Advertised>,
    /// Log position up to which the member has been sent all changes.
    pub(crate) synced: u64,
    pub(crate) end_of_rib: EndOfRib,
    /// True if the member is up to date and in the idle list of its group.
    pub(crate) idle: bool,
}

/// Output of [`Group::produce`](super::group::Group::produce) for a member.
#[derive(Debug, Clone)]
pub(crate) enum Produced {
    /// Encoded messages.
    Segment(Arc<Segment>),
    /// End of a pass over all announced routes.
    PassComplete,
    /// End-of-RIB, once per session.
    EndOfRib,
    /// No output in this call, but more work is left.
    Working,
    /// No output until the next change.
    Idle,
}
