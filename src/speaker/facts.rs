//! Facts that the speaker thread reports to the agent.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use tortie_bgp::{Down, Family, State, bfd};
use tortie_net::{Cidr, ScopedAddr};

use tortie_engine::routing::{ChangeId, DynamicPeer};

/// A fact of the speaker thread.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum SpeakerFact {
    /// A peer changed its state.
    Peer {
        /// Session name of the peer.
        name: Arc<str>,
        /// Previous state.
        from: State,
        /// New state.
        to: State,
        /// Reason, if a session or an attempt ended.
        down: Option<Down>,
    },
    /// A dynamic peer appeared; sent before any other fact about it.
    DynamicPeer(DynamicPeer),
    /// The dynamic peer of this name was removed completely.
    DynamicPeerGone(Arc<str>),
    /// The BFD session of a peer changed its state.
    Bfd {
        /// Session name of the peer.
        peer: Arc<str>,
        /// Previous state.
        from: bfd::State,
        /// New state.
        to: bfd::State,
        /// Cause of the change.
        cause: bfd::Cause,
        /// Time at which the BFD thread noticed; used for measurements in this process and not recorded.
        #[serde(skip, default = "Instant::now")]
        at: Instant,
    },
    /// Result of UPDATEs of a peer.
    Learned {
        /// Session name of the peer.
        peer: Arc<str>,
        /// Number of prefixes announced or replaced.
        announced: u32,
        /// Number of prefixes withdrawn.
        withdrawn: u32,
        /// Number of announcements rejected by import policy or loop checks.
        rejected: u32,
        /// Number of UPDATEs treated as withdrawals (RFC 7606).
        malformed: u32,
    },
    /// A peer is near its prefix limit (`max_prefixes`).
    PrefixWarning {
        /// Session name of the peer.
        peer: Arc<str>,
        /// Address family.
        family: Family,
        /// Number of received prefixes.
        received: u32,
        /// Limit.
        max: u32,
    },
    /// A batch of changed best paths was sent to the kernel thread.
    Batch {
        /// Change id of the batch, for changes that no input caused.
        change: ChangeId,
        /// Number of prefixes.
        prefixes: usize,
        /// The first prefix of the batch.
        first: Cidr,
    },
    /// Request to resolve and track this next hop; answered by
    /// [`ToSpeaker::NextHop`](crate::speaker::ToSpeaker::NextHop) at once and on each change.
    TrackNextHop(ScopedAddr),
    /// Request to stop tracking this next hop.
    UntrackNextHop(ScopedAddr),
    /// Stale kernel routes that were not learned again may be removed (RFC 4724, section 4.1).
    RestartDone,
    /// Connections are accepted on this address.
    Listening(SocketAddr),
    /// This address is no longer listened on, as configured.
    ListenEnded(SocketAddr),
    /// Listening on this address failed; it is retried every two seconds.
    ListenFailed {
        /// Address of the listener.
        addr: SocketAddr,
        /// Description of the error.
        error: String,
    },
    /// The configuration of a peer or range cannot be used, for example a password file that other users can
    /// read; `None`: it can be used again.
    PeerProblem {
        /// Name of the peer or range.
        name: Arc<str>,
        /// Cause and next step.
        problem: Option<String>,
    },
    /// All problems of one subject that the thread cannot repair, while it continues; empty: they are over.
    Problems {
        /// Subject of the problems.
        about: Cow<'static, str>,
        /// Cause and next step of each problem.
        texts: Vec<String>,
    },
    /// A problem that is over already.
    TransientProblem(String),
    /// The thread has closed its sockets and ends.
    Stopped,
}

/// Receives facts; must not block.
pub type FactSink = Box<dyn FnMut(SpeakerFact) + Send>;
