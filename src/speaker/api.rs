//! What goes to the speaker thread and what comes back.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tortie_bgp::{Down, Drain, Family, Reset, State, bfd};
use tortie_net::Cidr;

use tortie_engine::routing::{ChangeId, DynamicPeer, LearnedChange, Resolved, RoutingIntent};

use crate::speaker::monitor::TapSender;
use crate::speaker::view::SpeakerView;

/// How the thread starts.
#[derive(Debug, Clone)]
pub struct SpeakerOptions {
    /// Listen here whatever the intent says; empty: follow [`RoutingIntent::listen`].
    pub listen: Vec<SocketAddr>,
    /// Learned routes go to the kernel thread, which resolves next hops. `false`: a pure speaker, for which every next
    /// hop is reachable.
    pub kernel: bool,
    /// This start is a restart: R bit, and F bit for the families whose routes the kernel kept (RFC 4724).
    pub restarting: Option<Vec<Family>>,
    /// Restart time to advertise where a peer has none of its own; whole seconds, at most 4095.
    pub restart_time: Duration,
    /// Where password files lie; [`SECRETS`](super::SECRETS) but for tests.
    pub secrets: PathBuf,
    /// Where change ids of learned routes come from.
    pub changes: ChangeIds,
}

impl Default for SpeakerOptions {
    fn default() -> Self {
        Self {
            listen: Vec::new(),
            kernel: true,
            restarting: None,
            restart_time: Duration::from_secs(120),
            secrets: PathBuf::from(super::SECRETS),
            changes: ChangeIds::default(),
        }
    }
}

/// The process's source of change ids, shared by all who start changes.
#[derive(Debug, Clone, Default)]
pub struct ChangeIds(Arc<AtomicU64>);

impl ChangeIds {
    /// An id that nobody had yet.
    #[must_use]
    pub fn next(&self) -> ChangeId {
        ChangeId(self.0.fetch_add(1, Ordering::Relaxed).wrapping_add(1))
    }
}

/// To the speaker thread. Nothing here waits: intents and next hops replace what was not yet taken.
pub enum ToSpeaker {
    /// What the model wants, as a whole, with the change that brought it. The latest wins.
    Intent(Arc<RoutingIntent>, ChangeId),
    /// The intents so far name every local route of the start: routes and End-of-RIB may be sent.
    LocalReady,
    /// A tracked next hop; `None`: unreachable. The latest of an address wins.
    NextHop(IpAddr, Option<Resolved>),
    /// The kernel thread acknowledged the last batch of learned routes.
    KernelTook,
    /// Somebody asks for a reset of the peer of this name, or of all.
    Reset(Option<String>, Reset),
    /// Maintenance of the peer of this name begins or ends, or of all (RFC 8326). A restart of the thread ends it.
    Drain(Option<String>, Drain),
    /// End: flush what has to be said, close, [`SpeakerFact::Stopped`].
    Shutdown {
        /// Keep our routes at graceful-restart helpers: close without NOTIFICATION.
        graceful: bool,
        /// Shutdown communication (RFC 9003), at most 255 octets.
        text: String,
    },
    /// Somebody wants to hear what sessions say from now on.
    Tap(TapSender),
    /// A question, answered on the speaker's thread by the closure: keep it short.
    Query(Box<dyn FnOnce(&SpeakerView<'_>) + Send>),
}

/// Why an order was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Too many orders wait (resets, questions): try again.
    #[error("the speaker is busy; try again")]
    Busy,
    /// The thread has ended.
    #[error("the speaker has stopped")]
    Stopped,
}

/// From the speaker thread.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// A peer came from a range; told before anything else of it.
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
        /// When the thread of BFD noticed.
        at: Instant,
    },
    /// What UPDATEs of a peer did.
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
    /// Resolve this next hop and follow it: [`ToSpeaker::NextHop`] at once and at each change.
    TrackNextHop(IpAddr),
    /// Follow it no more.
    UntrackNextHop(IpAddr),
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
    /// The configuration of a peer or a range cannot be used as it is (a password file that others can read); `None`: it can again.
    PeerTrouble {
        /// Its name.
        name: Arc<str>,
        /// What is wrong and the next step.
        trouble: Option<String>,
    },
    /// What the thread cannot repair by itself, all of it that is about one thing; it goes on. Empty: that is over.
    Trouble {
        /// About what, in words.
        about: &'static str,
        /// What is wrong and the next step.
        texts: Vec<String>,
    },
    /// Something went wrong, and is over.
    Mishap(String),
    /// The thread has closed its sockets and ends.
    Stopped,
}

/// Takes facts; must not wait.
pub type FactSink = Box<dyn FnMut(SpeakerFact) + Send>;

/// Hands a batch to the kernel thread without waiting; gives it back when there is no room now.
pub type LearnedSink = Box<dyn FnMut(Vec<LearnedChange>) -> Result<(), Vec<LearnedChange>> + Send>;
