//! Inputs and events of a [`Speaker`](crate::Speaker): the contract with the embedder.

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

/// A configured peer; chosen by the embedder below 2^31, never reused for another peer while the speaker lives. The speaker
/// itself names peers that come from a range from 2^31 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u32);

impl PeerId {
    pub(crate) const DYNAMIC: u32 = 1 << 31;

    /// A peer that came from a range ([`Input::Range`]).
    #[must_use]
    pub fn is_dynamic(self) -> bool {
        self.0 >= Self::DYNAMIC
    }
}

/// A range of addresses from which sessions are taken; chosen by the embedder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RangeId(pub u32);

/// One TCP connection; chosen by the embedder, never reused while the speaker lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(pub u64);

/// An opaque mark that the embedder puts on an input and finds again on what follows from it (a change id).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Tag(pub u64);

/// A route that this speaker originates; by default without communities.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Origination {
    /// Communities (RFC 1997) to attach.
    pub communities: Vec<u32>,
    /// Large communities (RFC 8092) to attach.
    pub large_communities: Vec<[u32; 3]>,
    /// Opaque to the speaker, handed to [`Policy::export`] (what kind of local route this is).
    pub kind: u32,
    /// Mark for what follows.
    pub tag: Tag,
}

/// The resolution of a next hop by the embedder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextHopState {
    /// Reachable; the metric is the IGP step of the decision (RFC 4271 9.1.2.2 e).
    Reachable {
        /// Lower is better.
        metric: u32,
        /// On a connected network.
        on_link: bool,
    },
    /// No route to it: paths through it are unusable.
    Unreachable,
}

/// What is announced before maintenance (RFC 8326). Unless it is off, what eBGP peers announce is used last: with local
/// preference 0, and passed on with GRACEFUL_SHUTDOWN (4.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Drain {
    /// Nothing: all is as usual.
    #[default]
    Off,
    /// All routes are announced with GRACEFUL_SHUTDOWN, inside the AS with local preference 0 too: traffic goes elsewhere
    /// where there is an elsewhere.
    Announce,
    /// All routes are withdrawn; sessions stay.
    Withdraw,
}

/// How a session is to be reset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reset {
    /// Cease 4 with this shutdown communication (RFC 9003; at most 255 octets, empty: none), and dial again.
    Hard(String),
    /// Ask the peer for its routes again (RFC 2918).
    SoftIn,
    /// Send all routes again.
    SoftOut,
}

/// An event from outside.
#[derive(Debug)]
#[non_exhaustive]
pub enum Input<'a> {
    /// Nothing but time has passed: timers and queued work run. Its time is the one from before the last look at the sockets, all of
    /// which was handed over as [`Input::Data`], and may be earlier than that of other inputs: hold and restart timers are judged
    /// by it alone, because after a pause of the process the octets that came meanwhile wait in the sockets.
    Tick,
    /// The global configuration; a changed AS or router id resets the sessions whose OPEN it changes.
    Global(GlobalConfig),
    /// A new or changed peer.
    Peer(PeerId, Box<PeerConfig>),
    /// The peer is gone: Cease 3 (de-configured).
    RemovePeer(PeerId),
    /// A new or changed range. Its peers follow what changes no OPEN; for any other change of what they have in common, and
    /// where it is no longer the range of their address, they are removed (Cease 3) and may come again.
    Range(RangeId, Box<RangeConfig>),
    /// The range is gone, and so are its peers: Cease 3 (de-configured).
    RemoveRange(RangeId),
    /// Decide anew with this policy; routes are re-evaluated in slices, sessions stay.
    Policy(PolicyHandle),
    /// The same for a policy that answers otherwise about these prefixes alone: only they are decided anew, at once.
    PolicyAbout(PolicyHandle, &'a [Cidr]),
    /// Local routes that come (`Some`) and go (`None`).
    Local(&'a [(Cidr, Option<Origination>)]),
    /// All local routes of the start have been given: End-of-RIB may be sent after them. Nothing is sent before.
    LocalReady,
    /// A tracked next hop changed.
    NextHop(ScopedAddr, NextHopState),
    /// The state of a tracked next hop for routes to these prefixes, replacing what was said of it before; for all others [`Input::NextHop`]
    /// counts. A next hop may be reached by a learned route, on which a route to the same prefix must not rest (RFC 4271
    /// 9.1.2.1): without its own prefix it is reached otherwise, or not at all.
    NextHopWithin(ScopedAddr, Vec<(Cidr, NextHopState)>),
    /// The answer to [`Event::Dial`].
    Dialled {
        /// The peer that was dialled.
        peer: PeerId,
        /// The new connection.
        conn: ConnId,
        /// Our end.
        local: SocketAddr,
        /// Their end.
        remote: SocketAddr,
    },
    /// The other answer to [`Event::Dial`].
    DialFailed {
        /// The peer that was dialled.
        peer: PeerId,
        /// In words, shown to people.
        error: String,
    },
    /// A connection came in.
    Accepted {
        /// The new connection.
        conn: ConnId,
        /// Our end.
        local: SocketAddr,
        /// Their end.
        remote: SocketAddr,
    },
    /// Bytes were read; never more than [`Speaker::read_room`](crate::Speaker::read_room).
    Data(ConnId, &'a [u8]),
    /// The connection ended from outside (end of file, reset, write error).
    Closed(ConnId, String),
    /// Somebody asks for a reset.
    Reset(PeerId, Reset),
    /// Maintenance of this peer begins or ends; `None`: of all, also of those to come.
    Drain(Option<PeerId>, Drain),
    /// BFD lost this peer after it had reached it (RFC 5882): a session ends with Cease 10 (RFC 9384), and its routes go
    /// at once, whatever was agreed on graceful restart. Routes that are kept because the peer restarts already stay,
    /// unless its BFD is independent of its control plane (the C bit, RFC 5882 4.3).
    BfdDown {
        /// The peer.
        peer: PeerId,
        /// The diagnostic in words.
        text: String,
        /// The peer's C bit.
        independent: bool,
    },
    /// The link to this peer is gone: its connections end without NOTIFICATION, which nobody would get, and none of its routes
    /// is kept, whatever was agreed on graceful restart: nothing is forwarded over that link, and a router that is back with it
    /// may have been without power.
    LinkDown {
        /// The peer.
        peer: PeerId,
        /// In words, shown to people.
        text: String,
    },
    /// The link to this peer is there again after [`Input::LinkDown`]: what failed meanwhile says nothing, so that it is
    /// dialled at once, where it is dialled at all.
    LinkUp(PeerId),
    /// There is evidence that this peer, which has no session, does not forward: routes that are kept because it restarts go
    /// (RFC 4724 4.2 keeps them for a peer that goes on forwarding).
    NotForwarding(PeerId),
    /// The process stops. `graceful`: close TCP without NOTIFICATION so that helpers keep our routes (RFC 4724);
    /// else Cease 2 with the text (RFC 9003).
    Shutdown {
        /// Keep our routes at helpers.
        graceful: bool,
        /// Shutdown communication, at most 255 octets.
        text: String,
    },
}

/// An action that the embedder has to take, or news for it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// Dial this peer; answer with [`Input::Dialled`] or [`Input::DialFailed`].
    Dial(PeerId),
    /// Bytes wait for this connection: call [`Speaker::poll_transmit`](crate::Speaker::poll_transmit) when it can be written.
    WantWrite(ConnId),
    /// Close once everything from `poll_transmit` is written; the connection is unknown from now on.
    Close(ConnId),
    /// A peer came from a range; reported before anything else of it.
    DynamicPeer {
        /// Its id, given by the speaker.
        peer: PeerId,
        /// Where it came from.
        range: RangeId,
        /// Its name.
        name: Arc<str>,
        /// Its address; the port is that of [`RangeConfig::peer`].
        remote: SocketAddr,
    },
    /// A peer that came from a range is forgotten: nothing more is reported of it.
    DynamicPeerGone(PeerId),
    /// A peer changed its state.
    State {
        /// Which.
        peer: PeerId,
        /// Before.
        from: State,
        /// Now.
        to: State,
        /// Why, when a session or an attempt ended.
        down: Option<Down>,
    },
    /// Resolve this next hop and follow it: [`Input::NextHop`] at once and at each change.
    TrackNextHop(ScopedAddr),
    /// No path uses it any more.
    UntrackNextHop(ScopedAddr),
    /// The set of changed best paths is no longer empty: [`Speaker::take_best`](crate::Speaker::take_best).
    BestChanged,
    /// Counts of a batch of UPDATEs from one peer.
    Learned {
        /// From whom.
        peer: PeerId,
        /// Prefixes announced or replaced.
        announced: u32,
        /// Prefixes withdrawn.
        withdrawn: u32,
        /// Announcements refused by import policy or loop checks.
        rejected: u32,
        /// UPDATEs that were treated as withdrawals (RFC 7606).
        malformed: u32,
    },
    /// A peer announces nearly as many prefixes as it may ([`PrefixLimit::warn`]); given again only when they had become
    /// fewer.
    PrefixWarning {
        /// Which.
        peer: PeerId,
        /// In this family.
        family: Family,
        /// So many.
        received: u32,
        /// Of so many.
        max: u32,
    },
    /// Every peer that is up sent End-of-RIB, or the deferral time ended: routes kept over the restart that were not
    /// learned again can be swept (RFC 4724 4.1).
    RestartDone,
}

/// RFC 4271 8.2.2.
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// Refuses connections, tries none.
    Idle,
    /// Dials.
    Connect,
    /// Waits to dial again, listens.
    Active,
    /// OPEN sent.
    OpenSent,
    /// OPEN accepted, waits for KEEPALIVE.
    OpenConfirm,
    /// Up.
    Established,
}

impl State {
    /// The name as RFC 4271 writes it.
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

/// Why a session or an attempt ended.
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Down {
    /// Stable, for metrics and machines.
    pub code: DownCode,
    /// For people; sanitised.
    pub text: String,
    /// NOTIFICATION code and subcode, when one was sent or received; of a Hard Reset (RFC 8538) what it encloses.
    pub notification: Option<(u8, u8)>,
    /// Routes are kept as stale (helper of RFC 4724 and RFC 8538).
    pub helper: bool,
}

/// The kinds of [`Down`].
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum DownCode {
    /// The TCP connect failed.
    ConnectFailed,
    /// Hold timer (RFC 4271 6.5) expired.
    HoldTimer,
    /// Nothing could be sent for too long (RFC 9687).
    SendHoldTimer,
    /// We sent a NOTIFICATION.
    NotificationSent,
    /// The peer sent a NOTIFICATION.
    NotificationReceived,
    /// TCP closed without NOTIFICATION.
    TcpClosed,
    /// Somebody asked for it.
    Admin,
    /// The configuration changed.
    Config,
    /// Lost a connection collision (RFC 4271 6.8).
    Collision,
    /// BFD lost the peer (RFC 9384).
    Bfd,
    /// The link to the peer is down.
    LinkDown,
}

impl DownCode {
    /// Stable text for metrics and JSON.
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

/// A changed best path.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BestChange {
    /// The prefix.
    pub prefix: Cidr,
    /// The learned best path, or `None` when none is usable or the best is a local route.
    pub best: Option<Best>,
    /// The mark of the newest input that changed it.
    pub tag: Tag,
}

/// The learned best path(s) of a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Best {
    /// Next hops of the best path and of those that tie with it (ECMP), sorted, without duplicates.
    pub next_hops: SmallVec<[ScopedAddr; 2]>,
    /// The peer that sent the best path.
    pub peer: PeerId,
    /// It was learned by eBGP.
    pub ebgp: bool,
    /// Kept from a peer that restarts (RFC 4724). As of this change: that a path becomes so changes nothing of
    /// what is best.
    pub stale: bool,
}

/// The answer of [`Speaker::poll_transmit`](crate::Speaker::poll_transmit).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transmit {
    /// Bytes were appended and more wait.
    More,
    /// Bytes were appended or not; nothing waits now.
    Done,
}
