//! Facts from the speaker thread to the agent.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use tortie_bgp::{Down, Family, State, bfd};
use tortie_net::{Cidr, ScopedAddr};

use tortie_engine::routing::{ChangeId, DynamicPeer};

/// From the speaker thread.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum SpeakerFact {
    /// A peer changed its state.
    Peer {
        /// Its name.
        name: Arc<str>,
        /// Before.
        from: State,
        /// Now.
        to: State,
        /// Why, when a session or an attempt ended.
        down: Option<Down>,
    },
    /// A peer came from a range; before any other fact about it.
    DynamicPeer(DynamicPeer),
    /// Nothing is left of the dynamic peer of this name.
    DynamicPeerGone(Arc<str>),
    /// The BFD session of a peer changed its state.
    Bfd {
        /// The peer's name.
        peer: Arc<str>,
        /// Before.
        from: bfd::State,
        /// Now.
        to: bfd::State,
        /// Why.
        cause: bfd::Cause,
        /// When the thread of BFD noticed; for measurements in this process, and no part of what is recorded.
        #[serde(skip, default = "Instant::now")]
        at: Instant,
    },
    /// Effect of UPDATEs of a peer.
    Learned {
        /// From whom.
        peer: Arc<str>,
        /// Prefixes announced or replaced.
        announced: u32,
        /// Prefixes withdrawn.
        withdrawn: u32,
        /// Announcements refused by import policy or loop checks.
        rejected: u32,
        /// UPDATEs that were treated as withdrawals (RFC 7606).
        malformed: u32,
    },
    /// A peer announces nearly as many prefixes as it may (`max_prefixes`).
    PrefixWarning {
        /// Which.
        peer: Arc<str>,
        /// In this family.
        family: Family,
        /// So many.
        received: u32,
        /// Of so many.
        max: u32,
    },
    /// A batch of changed best paths went to the kernel thread.
    Batch {
        /// The id that its changes carry when no input had one.
        change: ChangeId,
        /// How many prefixes.
        prefixes: usize,
        /// The first of them.
        first: Cidr,
    },
    /// Resolve this next hop and follow it: [`ToSpeaker::NextHop`](crate::speaker::ToSpeaker::NextHop) at once and at each change.
    TrackNextHop(ScopedAddr),
    /// Follow it no more.
    UntrackNextHop(ScopedAddr),
    /// Stale kernel routes that were not learned again can be swept (RFC 4724 4.1).
    RestartDone,
    /// Connections are accepted here.
    Listening(SocketAddr),
    /// No longer listening here, as the configuration wants.
    ListenEnded(SocketAddr),
    /// Cannot listen here; tried again each two seconds.
    ListenFailed {
        /// Where.
        addr: SocketAddr,
        /// Why, in words.
        error: String,
    },
    /// The configuration of a peer or a range cannot be used as it is (a password file that others can read); `None`:
    /// it can again.
    PeerProblem {
        /// Its name.
        name: Arc<str>,
        /// The cause and the next step.
        problem: Option<String>,
    },
    /// All problems with one subject that the thread cannot repair by itself; it goes on. Empty: they are over.
    Problems {
        /// The subject, in words.
        about: Cow<'static, str>,
        /// Cause and next step of each.
        texts: Vec<String>,
    },
    /// A problem that is over already.
    TransientProblem(String),
    /// The thread has closed its sockets and ends.
    Stopped,
}

/// Takes facts; must not block.
pub type FactSink = Box<dyn FnMut(SpeakerFact) + Send>;
