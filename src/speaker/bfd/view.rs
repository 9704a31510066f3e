//! The published state of all BFD sessions.

use std::collections::BTreeMap;

use tortie_bgp::bfd::{Endpoint, Refused, Status};

/// Scheduling of the thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BfdPriority {
    /// SCHED_FIFO.
    RealTime,
    /// A nice value below 0.
    Nice,
    /// Like any other thread: a loaded host can lose sessions.
    #[default]
    Normal,
}

impl BfdPriority {
    /// `realtime`, `nice` or `normal`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RealTime => "realtime",
            Self::Nice => "nice",
            Self::Normal => "normal",
        }
    }
}

/// All sessions a moment ago: at most 100 ms after a change of state, else a second.
#[derive(Debug, Clone, Default)]
pub struct BfdView {
    /// Each session.
    pub sessions: BTreeMap<Endpoint, Status>,
    /// Packets discarded, by reason.
    pub refused: Vec<(Refused, u64)>,
    /// Packets that the kernel did not take.
    pub unsent: u64,
    /// Times that the thread ran so late that silence was no sign of a loss.
    pub late: u64,
    /// Scheduling of the thread.
    pub priority: BfdPriority,
}
