//! The core's record of a BGP peer and of its last session.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tortie_bgp::State;

/// The last state of a peer and the counters of its sessions.
#[derive(Debug, Clone, Default)]
pub(in crate::agent) struct PeerRecord {
    pub(in crate::agent) state: Option<State>,
    pub(in crate::agent) since: Option<Instant>,
    pub(in crate::agent) error: Option<String>,
    pub(in crate::agent) flaps: BTreeMap<&'static str, u64>,
    /// The last session that was established, once it ended.
    pub(in crate::agent) ended: Option<EndedSession>,
    /// Attempts that ended between OPEN and Established.
    pub(in crate::agent) open_errors: u64,
    /// By direction, code and subcode.
    pub(in crate::agent) notifications: BTreeMap<(&'static str, u8, u8), u64>,
    /// When it was lost, or the start when it never was up; `None`: it is up.
    pub(in crate::agent) down_since: Option<Instant>,
    /// It was down for longer than a start takes, or lost: it keeps its series for a while after its return.
    pub(in crate::agent) missed: bool,
}

/// How the last session ended.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(in crate::agent) struct EndedSession {
    /// When, RFC 3339.
    pub(in crate::agent) time: String,
    /// Why, in words.
    pub(in crate::agent) text: String,
    /// How long it had been up.
    pub(in crate::agent) lasted: Duration,
    /// Its routes were kept.
    pub(in crate::agent) helper: bool,
}
