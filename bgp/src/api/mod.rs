//! Inputs and events of a [`Speaker`](crate::Speaker): its interface to the embedder.

mod config;
mod policy;
mod query;

use std::net::SocketAddr;
use std::sync::Arc;

use smallvec::SmallVec;
use tortie_net::{Cidr, ScopedAddr};

use crate::types::Family;

pub use config::{
    ADD_PATH_MAX, ANY_EXTERNAL, Dial, GlobalConfig, Multipath, NextHopMode, PeerConfig, PrefixLimit,
    RangeConfig,
};
pub use policy::{Export, Import, PeerView, Policy, PolicyHandle, RouteView};
pub use query::*;

/// Identifier of a peer. The embedder chooses those of configured peers, below 2^31, and never reuses one for
/// another peer in the lifetime of the speaker. The speaker assigns those of dynamic peers, from 2^31 up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u32);

impl PeerId {
    pub(crate) const DYNAMIC: u32 = 1 << 31;

    /// Returns true for a dynamic peer, which connected from a range ([`Input::Range`]).
    #[must_use]
    pub fn is_dynamic(self) -> bool {
        self.0 >= Self::DYNAMIC
    }
}

/// Identifier of a range of dynamic peers, chosen by the embedder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RangeId(pub u32);

/// Identifier of one TCP connection. The embedder chooses it and never reuses it in the lifetime of the
/// speaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(pub u64);

/// Opaque marker of an input, such as a change id. The embedder sets it and receives it again with the
/// results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Tag(pub u64);

/// Attributes of a route that this speaker originates. The default has no communities.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Origination {
    /// Communities (RFC 1997) to attach.
    pub communities: Vec<u32>,
    /// Large communities (RFC 8092) to attach.
    pub large_communities: Vec<[u32; 3]>,
    /// LOCAL_PREF with which the route takes part in the decision process: a learned path with a greater one is
    /// preferred. While that is an iBGP path, the route stays announced to iBGP peers
    /// (draft-ietf-idr-best-external). `None`: the route is preferred to every learned path.
    pub local_pref: Option<u32>,
    /// Type of local route, passed to [`Policy::export`]; the speaker does not interpret it.
    pub kind: u32,
    /// Marker of the changes that this origination causes ([`BestChange::tag`]).
    pub tag: Tag,
}

/// Resolution of a next hop, supplied by the embedder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextHopState {
    /// The next hop is reachable.
    Reachable {
        /// Interior cost in the decision process (RFC 4271 9.1.2.2 e). Lower is better.
        metric: u32,
        /// The next hop is on a connected network.
        on_link: bool,
    },
    /// No route to the next hop: paths through it are unusable.
    Unreachable,
}

/// Graceful shutdown before maintenance (RFC 8326). In any mode other than `Off`, routes received from eBGP
/// peers get LOCAL_PREF 0 and are passed on with the GRACEFUL_SHUTDOWN community (section 4.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Drain {
    /// No maintenance.
    #[default]
    Off,
    /// All routes are announced with the GRACEFUL_SHUTDOWN community, towards iBGP peers also with LOCAL_PREF
    /// 0. Traffic moves to other paths where these exist.
    Announce,
    /// All routes are withdrawn. Sessions stay up.
    Withdraw,
}

/// Method of a session reset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reset {
    /// Ends the session with Cease subcode 4 and this shutdown communication (RFC 9003: at most 255 octets;
    /// if empty, none is sent), then dials again.
    Hard(String),
    /// Requests the routes of the peer again with ROUTE-REFRESH (RFC 2918).
    SoftIn,
    /// Sends all routes to the peer again.
    SoftOut,
}

/// An input of the speaker: configuration, transport events, requests, time.
#[derive(Debug)]
#[non_exhaustive]
pub enum Input<'a> {
    /// Time has passed: runs timers and queued work. The time of this input is the time before the last poll of
    /// the sockets, from which everything was passed as [`Input::Data`]; it may be earlier than that of other
    /// inputs. Hold and restart timers expire by it alone: after a pause of the process (SIGSTOP), octets that
    /// arrived meanwhile still wait in the sockets.
    Tick,
    /// The global configuration. A changed AS or router id resets the sessions whose OPEN it changes.
    Global(GlobalConfig),
    /// A new or changed peer.
    Peer(PeerId, Box<PeerConfig>),
    /// Removes a peer. Its session ends with Cease subcode 3 (de-configured).
    RemovePeer(PeerId),
    /// A new or changed range. Its dynamic peers adopt changes that leave the OPEN equal. They are removed
    /// (Cease subcode 3), and may reconnect, if another parameter changes or if their address no longer
    /// belongs to this range.
    Range(RangeId, Box<RangeConfig>),
    /// Removes a range and its dynamic peers, whose sessions end with Cease subcode 3 (de-configured).
    RemoveRange(RangeId),
    /// Replaces the policy. All routes are re-evaluated in bounded slices. Sessions stay up.
    Policy(PolicyHandle),
    /// Replaces the policy by one whose answers differ for these prefixes only. They are re-evaluated at
    /// once, and no others.
    PolicyAbout(PolicyHandle, &'a [Cidr]),
    /// Local routes to originate (`Some`) or withdraw (`None`).
    Local(&'a [(Cidr, Option<Origination>)]),
    /// All local routes of the start have been passed in. No route and no End-of-RIB is sent before this
    /// input.
    LocalReady,
    /// New state of a tracked next hop.
    NextHop(ScopedAddr, NextHopState),
    /// State of a tracked next hop for routes to the listed prefixes, which replaces the list passed before.
    /// For all other prefixes [`Input::NextHop`] applies. Reason: a next hop may resolve through a learned
    /// route, and a route to that same prefix must not depend on itself (RFC 4271 9.1.2.1). Without it, the
    /// next hop resolves differently or not at all.
    NextHopWithin(ScopedAddr, Vec<(Cidr, NextHopState)>),
    /// Successful answer to [`Event::Dial`].
    Dialled {
        /// The peer dialled.
        peer: PeerId,
        /// Identifier of the new connection.
        conn: ConnId,
        /// Local address and port.
        local: SocketAddr,
        /// Remote address and port.
        remote: SocketAddr,
    },
    /// Answer to [`Event::Dial`] after a failed connect.
    DialFailed {
        /// The peer dialled.
        peer: PeerId,
        /// Error text for reports.
        error: String,
    },
    /// An incoming connection was accepted.
    Accepted {
        /// Identifier of the new connection.
        conn: ConnId,
        /// Local address and port.
        local: SocketAddr,
        /// Remote address and port.
        remote: SocketAddr,
    },
    /// Octets read from a connection; never more than [`Speaker::read_room`](crate::Speaker::read_room).
    Data(ConnId, &'a [u8]),
    /// The transport ended the connection (end of file, reset, write error), with the error text.
    Closed(ConnId, String),
    /// An operator requests a reset.
    Reset(PeerId, Reset),
    /// Starts or ends maintenance of this peer. `None`: of all peers, including later ones.
    Drain(Option<PeerId>, Drain),
    /// BFD declares the peer down after it was up (RFC 5882). The session ends with Cease subcode 10 (RFC
    /// 9384), and its routes are removed at once, without graceful restart. Stale routes that are kept for a
    /// restarting peer stay, unless its BFD is independent of its control plane (C bit, RFC 5882 4.3).
    BfdDown {
        /// The peer that BFD lost.
        peer: PeerId,
        /// BFD diagnostic as text.
        text: String,
        /// C bit of the peer: its BFD is independent of its control plane.
        independent: bool,
    },
    /// The link to this peer is down. Its connections close without a NOTIFICATION, which could not be
    /// delivered. None of its routes is kept, even with graceful restart: the link forwards nothing, and a
    /// router that returns with the link may have lost power and its forwarding state.
    LinkDown {
        /// The peer behind the link.
        peer: PeerId,
        /// Description for reports.
        text: String,
    },
    /// The link to this peer is up again after [`Input::LinkDown`]. Failures during the outage do not count:
    /// a scheduled dial of a peer with [`Dial::Now`] takes place at once.
    LinkUp(PeerId),
    /// Evidence that a peer without a session has stopped forwarding. Its stale routes are removed: RFC 4724
    /// 4.2 keeps them only for a peer that preserves forwarding.
    NotForwarding(PeerId),
    /// The process stops. With `graceful`, TCP connections close without a NOTIFICATION, so that helpers keep
    /// our routes (RFC 4724). Otherwise sessions end with Cease subcode 2 and the text (RFC 9003).
    Shutdown {
        /// Leaves the routes in place on helper routers.
        graceful: bool,
        /// Shutdown communication, at most 255 octets; unused if `graceful`.
        text: String,
    },
}

/// An action for the embedder, or a report to it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// Dial this peer; answer with [`Input::Dialled`] or [`Input::DialFailed`].
    Dial(PeerId),
    /// Octets are ready for this connection: call [`Speaker::poll_transmit`](crate::Speaker::poll_transmit)
    /// when it is writable.
    WantWrite(ConnId),
    /// Close this connection after everything from `poll_transmit` is written. Its id is no longer valid.
    Close(ConnId),
    /// A dynamic peer was created from a range; reported before any other event of it.
    DynamicPeer {
        /// Identifier, assigned by the speaker.
        peer: PeerId,
        /// The range that contains its address.
        range: RangeId,
        /// Name: that of the range's template with the address appended.
        name: Arc<str>,
        /// Address of the peer, with the port of [`RangeConfig::peer`].
        remote: SocketAddr,
    },
    /// A dynamic peer was removed. No further event refers to it.
    DynamicPeerGone(PeerId),
    /// A peer changed its FSM state.
    State {
        /// Peer with the changed state.
        peer: PeerId,
        /// The previous state.
        from: State,
        /// The new state.
        to: State,
        /// Reason, if a session or an attempt ended.
        down: Option<Down>,
    },
    /// Resolve this next hop and track it: answer with [`Input::NextHop`] at once and at each change.
    TrackNextHop(ScopedAddr),
    /// No path uses this next hop any more: stop tracking it.
    UntrackNextHop(ScopedAddr),
    /// The set of changed best paths is no longer empty: call
    /// [`Speaker::take_best`](crate::Speaker::take_best).
    BestChanged,
    /// Counts of a batch of UPDATEs from one peer.
    Learned {
        /// The peer that sent them.
        peer: PeerId,
        /// Number of prefixes announced, including replacements.
        announced: u32,
        /// Number of prefixes withdrawn.
        withdrawn: u32,
        /// Number of announcements rejected by import policy or loop checks.
        rejected: u32,
        /// Number of UPDATEs handled as treat-as-withdraw (RFC 7606 2).
        malformed: u32,
    },
    /// The number of routes of a peer reached the warning threshold ([`PrefixLimit::warn`]). Reported again
    /// only after it was below the threshold in between.
    PrefixWarning {
        /// Peer that is near its limit.
        peer: PeerId,
        /// The family of the limit.
        family: Family,
        /// Number of routes received.
        received: u32,
        /// The limit, [`PrefixLimit::max`].
        max: u32,
    },
    /// Every peer in Established has sent End-of-RIB, or the deferral time has ended. Forwarding entries that
    /// were preserved over the restart and not learned again can now be removed (RFC 4724 4.1).
    RestartDone,
}

/// A state of the finite state machine (RFC 4271 8.2.2).
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// Refuses connections and does not dial.
    Idle,
    /// Opens a TCP connection.
    Connect,
    /// Waits for the next dial and accepts connections.
    Active,
    /// OPEN sent; waits for the OPEN of the peer.
    OpenSent,
    /// OPEN received and accepted; waits for KEEPALIVE.
    OpenConfirm,
    /// The session is up.
    Established,
}

impl State {
    /// Returns the name of the state in the spelling of RFC 4271.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "Idle",
            Self::Connect => "Connect",
            Self::Active => "Active",
            Self::OpenSent => "OpenSent",
            Self::OpenConfirm => "OpenConfirm",
            Self::Established => "Established",
        }
    }
}

/// Reason for the end of a session or an attempt.
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Down {
    /// Stable code, for metrics and programs.
    pub code: DownCode,
    /// Description for people, with text of the peer sanitised.
    pub text: String,
    /// Code and subcode of the NOTIFICATION sent or received. For a Hard Reset (RFC 8538), those of the
    /// enclosed NOTIFICATION.
    pub notification: Option<(u8, u8)>,
    /// True if this speaker keeps the routes of the peer as stale (helper of RFC 4724 and RFC 8538).
    pub helper: bool,
}

/// Stable code of [`Down`].
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DownCode {
    /// The TCP connect failed.
    ConnectFailed,
    /// The hold timer expired (RFC 4271 6.5).
    HoldTimer,
    /// The send hold timer expired: nothing could be sent (RFC 9687).
    SendHoldTimer,
    /// This speaker sent a NOTIFICATION.
    NotificationSent,
    /// The peer sent a NOTIFICATION.
    NotificationReceived,
    /// The TCP connection closed without a NOTIFICATION.
    TcpClosed,
    /// An operator requested it.
    Admin,
    /// The configuration changed.
    Config,
    /// The connection lost a collision (RFC 4271 6.8).
    Collision,
    /// BFD declared the peer down (RFC 9384).
    Bfd,
    /// The link to the peer is down.
    LinkDown,
}

impl DownCode {
    /// Returns the stable text for metrics and JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ConnectFailed => "connect_failed",
            Self::HoldTimer => "hold_timer",
            Self::SendHoldTimer => "send_hold_timer",
            Self::NotificationSent => "notification_sent",
            Self::NotificationReceived => "notification_received",
            Self::TcpClosed => "tcp_closed",
            Self::Admin => "admin",
            Self::Config => "config",
            Self::Collision => "collision",
            Self::Bfd => "bfd",
            Self::LinkDown => "link_down",
        }
    }
}

/// A change of the best path of a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BestChange {
    /// Destination prefix.
    pub prefix: Cidr,
    /// The learned best path. `None` if no path is usable or the best path is a local route.
    pub best: Option<Best>,
    /// Marker of the newest input that changed the best path.
    pub tag: Tag,
}

/// Learned best path of a prefix, with its ECMP next hops.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Best {
    /// Next hops of the best path and of the paths that share load with it (ECMP); sorted, without
    /// duplicates.
    pub next_hops: SmallVec<[ScopedAddr; 2]>,
    /// The peer that sent the best path.
    pub peer: PeerId,
    /// LOCAL_PREF of the best path, after import policy.
    pub local_pref: Option<u32>,
    /// True if the best path was learned by eBGP.
    pub ebgp: bool,
    /// True if the best path was stale (RFC 4724) at the time of this change. A path that only becomes stale
    /// causes no change.
    pub stale: bool,
}

/// Result of [`Speaker::poll_transmit`](crate::Speaker::poll_transmit).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transmit {
    /// Octets were appended, and more are ready.
    More,
    /// Nothing more is ready. Octets may have been appended.
    Done,
}
