//! The output of the core: the event loop carries the effects out, in their order. Lines of the log are effects, too.

use std::sync::Arc;

use tortie_net::{Cidr, ScopedAddr};

use crate::agent::core::recorder::NewEntry;
use tortie_engine::routing::{self, ChangeId, RoutingIntent};
use tortie_kernel::{KernelIntent, PolicyChange};

/// An action for the event loop or another thread.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::agent) enum Effect {
    /// The newest intent, for queries.
    Routing(Arc<RoutingIntent>),
    /// The kernel thread gets this intent.
    Kernel(Arc<KernelIntent>),
    /// The speaker gets this intent.
    Speaker(Arc<RoutingIntent>, ChangeId),
    /// The speaker may send End-of-RIB.
    LocalReady,
    /// The first snapshot is there: register the host and start the other threads.
    Loaded,
    /// The kernel sweeps what was not learned again.
    Sweep,
    /// Follow a next hop, or no more.
    Track(ScopedAddr, bool),
    /// A next hop for the speaker.
    NextHop(ScopedAddr, Option<routing::Resolved>),
    /// The same for routes to some prefixes alone.
    NextHopWithin(ScopedAddr, Vec<(Cidr, Option<routing::Resolved>)>),
    /// The kernel thread gets this change of endpoints and rules.
    Enforce(Arc<PolicyChange>),
    /// The own blocks: watch these keys too.
    Scope(Vec<String>),
    /// The snapshot of this generation, with what followed up to this revision, is believed: it may replace the cache
    /// on disk.
    Trust(u64, u64),
    /// The settings of the logs, or the BMP stations, may have changed.
    Logs,
    /// A line of the log.
    Log(LogLine),
    /// A new entry of the recorder, for those who follow it.
    Recorded(NewEntry),
}

/// The severity of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::agent) enum Severity {
    /// Of interest to those who look for it.
    Debug,
    /// A change.
    Info,
    /// Something is wrong.
    Warn,
}

/// The subject whose level decides (`tortie log level`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::agent) enum Subsystem {
    /// The agent.
    Agent,
    /// BGP, with a level of its own.
    Bgp,
    /// BFD.
    Bfd,
}

/// A line with its fields: journald and JSON find it by them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::agent) struct LogLine {
    pub(in crate::agent) severity: Severity,
    pub(in crate::agent) subsystem: Subsystem,
    pub(in crate::agent) change: Option<ChangeId>,
    pub(in crate::agent) revision: Option<u64>,
    pub(in crate::agent) peer: Option<String>,
    pub(in crate::agent) prefix: Option<String>,
    pub(in crate::agent) reason: Option<String>,
    pub(in crate::agent) text: String,
}

impl LogLine {
    /// A line without fields.
    pub(in crate::agent) fn new(severity: Severity, subsystem: Subsystem, text: String) -> Self {
        Self {
            severity,
            subsystem,
            change: None,
            revision: None,
            peer: None,
            prefix: None,
            reason: None,
            text,
        }
    }
}
