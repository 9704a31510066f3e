//! Published state of all BFD sessions.

use std::collections::BTreeMap;

use tortie_bgp::bfd::{Endpoint, Refused, Status};

/// Scheduling class of the BFD thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BfdPriority {
    /// SCHED_FIFO.
    RealTime,
    /// A negative nice value.
    Nice,
    /// Default scheduling: a loaded host can lose sessions.
    #[default]
    Normal,
}

impl BfdPriority {
    /// Returns `realtime`, `nice` or `normal`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RealTime => "realtime",
            Self::Nice => "nice",
            Self::Normal => "normal",
        }
    }
}

/// Snapshot of all sessions, at most 100 ms old after a state change, else at most one second.
#[derive(Debug, Clone, Default)]
pub struct BfdView {
    /// State of each session.
    pub sessions: BTreeMap<Endpoint, Status>,
    /// Discarded packets by reason.
    pub refused: Vec<(Refused, u64)>,
    /// Number of packets that the kernel rejected.
    pub unsent: u64,
    /// Number of iterations that ran so late that missing packets did not count.
    pub late: u64,
    /// Scheduling class of the thread.
    pub priority: BfdPriority,
}
