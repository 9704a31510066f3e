//! What goes into a [`Speaker`](crate::Speaker) and what comes out: the contract with the embedder.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tortie_config::Cidr;

use crate::attr::{Attributes, Edits};
use crate::types::{Family, RouterId};
use crate::wire::Role;

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

/// What concerns all peers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlobalConfig {
    /// The local AS (RFC 6793: four octets), not 0.
    pub asn: u32,
    /// The BGP identifier (RFC 6286), not 0.
    pub router_id: RouterId,
    /// Restart time that is advertised with RFC 4724, in whole seconds (at most 4095).
    pub restart_time: Duration,
    /// This start is a restart whose forwarding state was kept: R bit set, and F bit for the families named.
    /// `None`: a first start, R bit clear.
    pub restarting: Option<Vec<Family>>,
}

/// Who dials first; both ends of a session accept at any time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dial {
    /// At once.
    #[default]
    Now,
    /// After this delay, and only when no session came up until then.
    After(Duration),
    /// Never.
    Passive,
}

/// How the next hop of announced routes is chosen (RFC 4271 5.1.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum NextHopMode {
    /// Self, except on reflected routes, which keep theirs.
    #[default]
    Auto,
    /// Always the local address.
    Own,
    /// Keep what was received, also towards eBGP peers.
    Keep,
}

/// One peer. A change of a field moves only the sessions of this peer, and resets them only where the OPEN or the
/// transport would differ.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerConfig {
    /// Address and port to dial; incoming connections are matched by address. A link-local address needs its scope id
    /// (RFC 4007): next hops on such a session are on that link, and come out as
    /// [`tortie_config::link_local`] writes them.
    pub remote: SocketAddr,
    /// Local address to dial from and to announce as next hop; `None`: the connection's own.
    pub local: Option<IpAddr>,
    /// The peer's AS, or [`ANY_EXTERNAL`].
    pub asn: u32,
    /// Another local AS towards this peer, else the global one.
    pub local_asn: Option<u32>,
    /// Families to offer; a session carries those that both ends offer.
    pub families: Vec<Family>,
    /// Who dials first.
    pub dial: Dial,
    /// Hold time to propose; 0 or at least 3 s (RFC 4271 4.2).
    pub hold_time: Duration,
    /// Keepalive interval; `None`: a third of the negotiated hold time.
    pub keepalive: Option<Duration>,
    /// Next hop rule.
    pub next_hop: NextHopMode,
    /// Own next hop of the other family (dual stack over one session); `None`: see RFC 4760 and RFC 8950 rules.
    pub local_v4: Option<IpAddr>,
    /// See `local_v4`.
    pub local_v6: Option<IpAddr>,
    /// We reflect for this peer (RFC 4456) with this cluster id.
    pub reflector_client: Option<u32>,
    /// How often the own AS may stand in a received path (allowas-in).
    pub allow_own_as: u8,
    /// Offer graceful restart (RFC 4724) with this restart time; `None`: the global one.
    pub restart_time: Option<Duration>,
    /// Offer long-lived graceful restart (RFC 9494) with this time, in whole seconds (at most 16,777,215), and keep the
    /// peer's routes for what it offers, at most as long. `None`: neither.
    pub long_lived_restart_time: Option<Duration>,
    /// Offer extended messages (RFC 8654).
    pub extended_messages: bool,
    /// Offer to take several paths of a prefix (RFC 7911).
    pub add_path_receive: bool,
    /// Paths of a prefix to send where the peer takes several (RFC 7911): 1 to [`ADD_PATH_MAX`], in the order of the
    /// decision process. 0: not offered.
    pub add_path_send: u8,
    /// How many routes the peer may announce in a family. With several paths of a prefix (RFC 7911) each counts, as with
    /// BIRD, FRR, GoBGP and OpenBGPD.
    pub max_prefixes: Option<PrefixLimit>,
    /// How many prefixes are announced to the peer in a family; more ends the session with Cease 1 before they are sent,
    /// and it is left alone for a minute: a filter is missing, and the peer must not learn of it.
    pub max_prefixes_out: Option<u32>,
    /// How long nothing may be sent before the peer counts as dead (RFC 9687), at least the negotiated hold time. `None`:
    /// the greater of eight minutes and twice the hold time.
    pub send_hold_time: Option<Duration>,
    /// Distinguishes peers for policy; two peers with equal class and equal session parameters share an update group.
    pub policy_class: u64,
    /// Our role on the session (RFC 9234). It acts on eBGP sessions only: it is offered, has to fit the peer's, and routes
    /// are marked with and judged by ONLY_TO_CUSTOMER (section 5).
    pub role: Option<Role>,
    /// Refuse an eBGP peer that offers no role (RFC 9234 4.2, strict mode). Without a role of ours it does nothing.
    pub role_strict: bool,
    /// The embedder's policy was written with this peer in mind. Without that an eBGP peer is neither taken routes from
    /// nor sent any, while End-of-RIB is sent all the same (RFC 8212). iBGP peers do not need it.
    pub ebgp_policy: bool,
    /// Text of the peer's name, for reports only.
    pub name: Arc<str>,
}

impl PeerConfig {
    /// A peer that is dialled at once and carries IPv4 unicast, with a hold time of 90 s, without any option, and (see
    /// [`PeerConfig::ebgp_policy`]) closed when it is an eBGP peer. Its name is its address.
    #[must_use]
    pub fn new(remote: SocketAddr, asn: u32) -> Self {
        Self {
            remote,
            local: None,
            asn,
            local_asn: None,
            families: vec![Family::Ipv4Unicast],
            dial: Dial::Now,
            hold_time: Duration::from_secs(90),
            keepalive: None,
            next_hop: NextHopMode::Auto,
            local_v4: None,
            local_v6: None,
            reflector_client: None,
            allow_own_as: 0,
            restart_time: None,
            long_lived_restart_time: None,
            extended_messages: false,
            add_path_receive: false,
            add_path_send: 0,
            max_prefixes: None,
            max_prefixes_out: None,
            send_hold_time: None,
            policy_class: 0,
            role: None,
            role_strict: false,
            ebgp_policy: false,
            name: remote.ip().to_string().into(),
        }
    }
}

/// Addresses from which sessions are taken although no peer is configured there: dynamic neighbours, or listen ranges. Each
/// that comes makes a peer, which is never dialled, and which is forgotten when its session is over and none of its routes
/// is kept (RFC 4724 4.2).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RangeConfig {
    /// The addresses. Of several ranges that hold an address the one with the longest prefix counts; a configured peer
    /// counts before all ranges.
    pub prefix: Cidr,
    /// Peers at one time, those included that are coming up and those whose routes are kept. Further connections are told
    /// Cease 5 (RFC 4486).
    pub max_peers: u32,
    /// What its peers have in common. Each gets the address that it comes from, and that behind `name` as its name;
    /// `remote` (but for the port that is shown) and `dial` do not count.
    pub peer: PeerConfig,
}

impl RangeConfig {
    /// A range of at most 100 peers of this AS (or [`ANY_EXTERNAL`]), as [`PeerConfig::new`] makes them, in the unicast
    /// family of the prefix. Their names are their addresses.
    #[must_use]
    pub fn new(prefix: Cidr, asn: u32) -> Self {
        let mut peer = PeerConfig::new(SocketAddr::new(prefix.addr(), 179), asn);
        peer.families = vec![if prefix.is_v4() { Family::Ipv4Unicast } else { Family::Ipv6Unicast }];
        peer.dial = Dial::Passive;
        peer.name = "".into();
        Self { prefix, max_peers: 100, peer }
    }
}

/// As [`PeerConfig::asn`]: any AS but our own towards the peer; which, its OPEN says.
pub const ANY_EXTERNAL: u32 = 0;

/// Most paths of a prefix that are sent to a peer (RFC 7911).
pub const ADD_PATH_MAX: u8 = 8;

/// A limit of received prefixes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrefixLimit {
    /// More than these in a family end the session with Cease 1 (RFC 4486), family and limit in its data.
    pub max: u32,
    /// From this share of `max` on, in percent, [`Event::PrefixWarning`] tells of it once; `None`: never.
    pub warn: Option<u8>,
    /// How long the peer is neither dialled nor let in after that.
    pub restart: Duration,
}

impl PrefixLimit {
    /// A limit that warns at three quarters, and a minute until the next session.
    #[must_use]
    pub fn new(max: u32) -> Self {
        Self { max, warn: Some(75), restart: Duration::from_secs(60) }
    }
}

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

/// What the embedder knows of a next hop.
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

/// What peers are told before maintenance (RFC 8326).
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
    /// Nothing but time has passed: timers and queued work run.
    Tick,
    /// The global configuration; a changed AS or router id resets the sessions whose OPEN it changes.
    Global(GlobalConfig),
    /// A new or changed peer.
    Peer(PeerId, Box<PeerConfig>),
    /// The peer is gone: Cease 3 (de-configured).
    RemovePeer(PeerId),
    /// A new or changed range. Its peers follow what changes no OPEN; for any other change, and where another range now
    /// has a longer prefix for their address, they are removed (Cease 3) and may come again.
    Range(RangeId, Box<RangeConfig>),
    /// The range is gone, and so are its peers: Cease 3 (de-configured).
    RemoveRange(RangeId),
    /// Decide anew with this policy; routes are re-evaluated in slices, sessions stay.
    Policy(PolicyHandle),
    /// Local routes that come (`Some`) and go (`None`).
    Local(&'a [(Cidr, Option<Origination>)]),
    /// All local routes of the start have been given: End-of-RIB may be sent after them. Nothing is sent before.
    LocalReady,
    /// A tracked next hop changed.
    NextHop(IpAddr, NextHopState),
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
    /// The link to this peer is gone: its connections end without NOTIFICATION, which nobody would get, and its routes
    /// are kept or not as after any loss of TCP (RFC 4724 4.2).
    LinkDown {
        /// The peer.
        peer: PeerId,
        /// In words, shown to people.
        text: String,
    },
    /// The link to this peer is there again after [`Input::LinkDown`]: what failed meanwhile says nothing, so that it is
    /// dialled at once, where it is dialled at all.
    LinkUp(PeerId),
    /// The process stops. `graceful`: close TCP without NOTIFICATION so that helpers keep our routes (RFC 4724);
    /// else Cease 2 with the text (RFC 9003).
    Shutdown {
        /// Keep our routes at helpers.
        graceful: bool,
        /// Shutdown communication, at most 255 octets.
        text: String,
    },
}

/// What the embedder has to do or may want to know.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// Dial this peer; answer with [`Input::Dialled`] or [`Input::DialFailed`].
    Dial(PeerId),
    /// Bytes wait for this connection: call [`Speaker::poll_transmit`](crate::Speaker::poll_transmit) when it can be written.
    WantWrite(ConnId),
    /// Close once everything from `poll_transmit` is written; the connection is unknown from now on.
    Close(ConnId),
    /// A peer came from a range; told before anything else of it.
    DynamicPeer {
        /// What the speaker calls it.
        peer: PeerId,
        /// Where it came from.
        range: RangeId,
        /// Its name.
        name: Arc<str>,
        /// Its address; the port is that of [`RangeConfig::peer`].
        remote: SocketAddr,
    },
    /// A peer that came from a range is forgotten: nothing more is told of it.
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
    TrackNextHop(IpAddr),
    /// No path uses it any more.
    UntrackNextHop(IpAddr),
    /// The set of changed best paths is no longer empty: [`Speaker::take_best`](crate::Speaker::take_best).
    BestChanged,
    /// What an UPDATE batch of one peer did, for the record.
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
    /// A peer announces nearly as many prefixes as it may ([`PrefixLimit::warn`]); told again only when they had become
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
    pub next_hops: SmallVec<[IpAddr; 2]>,
    /// Who sent the best path.
    pub peer: PeerId,
    /// It was learned by eBGP.
    pub ebgp: bool,
    /// Kept from a peer that restarts (RFC 4724).
    pub stale: bool,
}

/// How the outside decides about routes. Pure: equal questions get equal answers until [`Input::Policy`] brings another.
pub trait Policy: Send + Sync {
    /// Whether a received route is used.
    fn import(&self, from: &PeerView<'_>, prefix: Cidr, attributes: &Attributes) -> Import;
    /// Whether a best path is announced to peers of this class, and with what added.
    fn export(&self, to: &PeerView<'_>, route: &RouteView<'_>) -> Export;
    /// The same answer as [`Policy::import`] in words, for explanations; asked only by people.
    fn describe_import(&self, from: &PeerView<'_>, prefix: Cidr, attributes: &Attributes) -> String {
        match self.import(from, prefix, attributes) {
            Import::Accept | Import::AcceptWith(_) => "accepted".into(),
            Import::Reject(reason) => reason.into(),
        }
    }
    /// The same answer as [`Policy::export`] in words, beginning with the gate.
    fn describe_export(&self, to: &PeerView<'_>, route: &RouteView<'_>) -> String {
        self.export(to, route).gate.into()
    }
}

/// A shared [`Policy`].
#[derive(Clone)]
pub struct PolicyHandle(pub Arc<dyn Policy>);

impl PolicyHandle {
    /// A policy that takes and announces everything: for tools and tests. eBGP peers stay closed all the same until
    /// [`PeerConfig::ebgp_policy`] opens them (RFC 8212).
    #[must_use]
    pub fn accept_all() -> Self {
        Self(Arc::new(AcceptAll))
    }
}

/// See [`PolicyHandle::accept_all`].
struct AcceptAll;

impl Policy for AcceptAll {
    fn import(&self, _: &PeerView<'_>, _: Cidr, _: &Attributes) -> Import {
        Import::Accept
    }

    fn export(&self, _: &PeerView<'_>, _: &RouteView<'_>) -> Export {
        Export::announce("accept-all")
    }
}

impl std::fmt::Debug for PolicyHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PolicyHandle")
    }
}

/// What a policy sees of a peer. On export only the fields that make the update group are meaningful:
/// `ebgp`, `asn`, `local_asn`, `class` and `role`.
#[derive(Debug, Clone, Copy)]
pub struct PeerView<'a> {
    /// The peer; on export the first of its group.
    pub id: PeerId,
    /// Its name, for reasons shown to people.
    pub name: &'a str,
    /// Another AS than ours.
    pub ebgp: bool,
    /// Its AS.
    pub asn: u32,
    /// Our AS towards it.
    pub local_asn: u32,
    /// [`PeerConfig::policy_class`].
    pub class: u64,
    /// Our role towards it (RFC 9234); `None` also where it does not act because the peer is iBGP.
    pub role: Option<Role>,
}

/// What a policy sees of a route.
#[derive(Debug, Clone, Copy)]
pub struct RouteView<'a> {
    /// The prefix.
    pub prefix: Cidr,
    /// Its attributes.
    pub attributes: &'a Attributes,
    /// [`Origination::kind`] of a local route, `None` for a learned one.
    pub local: Option<u32>,
    /// Whom a learned route came from.
    pub from: Option<PeerView<'a>>,
}

/// The answer of [`Policy::import`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Import {
    /// Use it as received.
    Accept,
    /// Use it with these changes. What was received is kept beside, so that another policy can decide anew.
    AcceptWith(Edits),
    /// Keep it as filtered, with a stable reason.
    Reject(&'static str),
}

/// The answer of [`Policy::export`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Export {
    /// Announce it.
    pub accept: bool,
    /// The gate that decided, stable: the same word in metrics and explanations.
    pub gate: &'static str,
    /// Changes of the attributes: on those of the table, before the session's own rewriting (AS, next hop, LOCAL_PREF).
    pub edits: Edits,
    /// Communities to add, after the changes.
    pub communities: SmallVec<[u32; 2]>,
    /// Large communities to add, after the changes.
    pub large_communities: SmallVec<[[u32; 3]; 1]>,
}

impl Export {
    /// Announce it as it is.
    #[must_use]
    pub fn announce(gate: &'static str) -> Self {
        Self {
            accept: true,
            gate,
            edits: Edits::NONE,
            communities: SmallVec::new(),
            large_communities: SmallVec::new(),
        }
    }

    /// Withhold it.
    #[must_use]
    pub fn withhold(gate: &'static str) -> Self {
        Self { accept: false, ..Self::announce(gate) }
    }

    /// With these changes.
    #[must_use]
    pub fn with_edits(mut self, edits: Edits) -> Self {
        self.edits = edits;
        self
    }

    /// With these communities and large communities added.
    #[must_use]
    pub fn with_communities(
        mut self,
        communities: impl IntoIterator<Item = u32>,
        large: impl IntoIterator<Item = [u32; 3]>,
    ) -> Self {
        self.communities = communities.into_iter().collect();
        self.large_communities = large.into_iter().collect();
        self
    }
}

/// The answer of [`Speaker::poll_transmit`](crate::Speaker::poll_transmit).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transmit {
    /// Bytes were appended and more wait.
    More,
    /// Bytes were appended or not; nothing waits now.
    Done,
}
