//! Log lines of the core: it makes them, the event loop writes them.

use tortie_engine::routing::ChangeId;

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
