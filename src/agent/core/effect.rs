//! Effects: the output of the core, which the event loop carries out in order. Log lines are effects, too.

use std::sync::Arc;

use tortie_net::{Cidr, ScopedAddr};

use crate::agent::core::recorder::NewEntry;
use tortie_engine::routing::{self, ChangeId, RoutingIntent};
use tortie_kernel::{KernelIntent, PolicyChange};

/// An action for the event loop or another thread.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::agent) enum Effect {
    /// Publish the newest intent for queries.
    Routing(Arc<RoutingIntent>),
    /// Send this intent to the kernel thread.
    Kernel(Arc<KernelIntent>),
    /// Send this intent to the speaker.
    Speaker(Arc<RoutingIntent>, ChangeId),
    /// Allow the speaker to send End-of-RIB.
    LocalReady,
    /// Create what says that the store is ready: a Calico 3 store lacks it.
    CreateCluster,
    /// Register the host and start the other threads: the first snapshot was read.
    Loaded,
    /// Remove stale kernel routes, those that were not learned again.
    Sweep,
    /// Start (true) or stop (false) tracking a next hop in the kernel.
    Track(ScopedAddr, bool),
    /// Report the resolution of a next hop to the speaker.
    NextHop(ScopedAddr, Option<routing::Resolved>),
    /// Report the resolution of a next hop to the speaker for these prefixes only.
    NextHopWithin(ScopedAddr, Vec<(Cidr, Option<routing::Resolved>)>),
    /// Send this change of endpoints and rules to the kernel thread.
    Enforce(Arc<PolicyChange>),
    /// Watch the keys of the own blocks, too.
    Scope(Vec<String>),
    /// Confirm the snapshot of this generation, with the changes up to this revision: it may replace the
    /// cache on disk.
    Trust(u64, u64),
    /// Apply log settings and BMP stations again; they may have changed.
    Logs,
    /// Write a log line.
    Log(LogLine),
    /// Send a new flight recorder entry to the followers.
    Recorded(NewEntry),
}

/// Severity of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::agent) enum Severity {
    /// Details for debugging.
    Debug,
    /// A normal change.
    Info,
    /// A problem.
    Warn,
}

/// Subsystem of a log line, which has its own level (`tortie log level`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::agent) enum Subsystem {
    /// The agent as a whole.
    Agent,
    /// BGP sessions and routes.
    Bgp,
    /// BFD sessions.
    Bfd,
}

/// A log line with its structured fields for journald and JSON.
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
    /// Creates a line without fields.
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
