//! The core's record of a BGP peer and its last session.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tortie_bgp::State;

/// Last state of a peer and counters of its sessions.
#[derive(Debug, Clone, Default)]
pub(in crate::agent) struct PeerRecord {
    pub(in crate::agent) state: Option<State>,
    pub(in crate::agent) since: Option<Instant>,
    pub(in crate::agent) error: Option<String>,
    pub(in crate::agent) flaps: BTreeMap<&'static str, u64>,
    /// The last established session, once it has ended.
    pub(in crate::agent) ended: Option<EndedSession>,
    /// Connection attempts that failed between OPEN and Established.
    pub(in crate::agent) open_errors: u64,
    /// NOTIFICATION counts by direction, code and subcode.
    pub(in crate::agent) notifications: BTreeMap<(&'static str, u8, u8), u64>,
    /// Time of the session's loss, or of the agent's start if it never was up; `None` while it is up.
    pub(in crate::agent) down_since: Option<Instant>,
    /// True after a loss or a slow start; the peer then keeps its metric series for a while after it is back.
    pub(in crate::agent) missed: bool,
}

/// End of the last session.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(in crate::agent) struct EndedSession {
    /// Time of the end, RFC 3339.
    pub(in crate::agent) time: String,
    /// Description of the reason.
    pub(in crate::agent) text: String,
    /// Duration of the session.
    pub(in crate::agent) lasted: Duration,
    /// True if the routes were kept for a graceful restart.
    pub(in crate::agent) helper: bool,
}
