//! A member of a group: how much of the log it has been sent.

use std::sync::Arc;

use super::advertised::Advertised;
use super::segment::Segment;

/// Where a member takes its next bytes from.
#[derive(Debug, Clone)]
pub(crate) enum Mode {
    /// From the pages of the Adj-RIB-Out, one after the other.
    Pages(Pages),
    /// Alone from the log at this position, with the current Adj-RIB-Out.
    Log(u64),
    /// In step: the next shared segment is this one.
    Ring(u64),
}

/// A pass over the pages.
#[derive(Debug, Clone)]
pub(crate) struct Pages {
    pub(crate) next: u32,
    pub(crate) end: u32,
    /// All that is announced, not only what changed.
    pub(crate) all: bool,
    /// Entries that changed at this log position or later may have to be withdrawn; `None`: none can have to be.
    pub(crate) since: Option<u64>,
    /// Where in the log it goes on.
    pub(crate) resume: u64,
}

/// State of End-of-RIB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndOfRib {
    Due,
    Sent,
}

/// A member.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub(crate) mode: Mode,
    /// What it was sent in another group before: of it, what is no longer announced has to be withdrawn.
    pub(crate) previous: Option<Advertised>,
    /// It has been sent all changes below this log position.
    pub(crate) synced: u64,
    pub(crate) end_of_rib: EndOfRib,
    /// It was sent all there is: it is in the idle list of its group.
    pub(crate) idle: bool,
}

/// The next thing of [`Group::produce`](super::group::Group::produce) for a member.
#[derive(Debug, Clone)]
pub(crate) enum Produced {
    /// Messages.
    Segment(Arc<Segment>),
    /// A pass over everything that is announced came to its end.
    PassComplete,
    /// End-of-RIB, once in a session.
    EndOfRib,
    /// Nothing yet, but there is more to look at.
    Working,
    /// Nothing waits.
    Idle,
}
