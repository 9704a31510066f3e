//! Answers of a [`Speaker`](crate::Speaker) to questions: plain values, made for each call.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tortie_net::{Cidr, ScopedAddr};

use crate::api::{ConnId, Down, Drain, NextHopState, PeerId, RangeId, State};
use crate::attr::Attributes;
use crate::types::{Family, RouterId};

/// Messages by type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct MessageCounts {
    /// OPEN.
    pub open: u64,
    /// UPDATE.
    pub update: u64,
    /// NOTIFICATION.
    pub notification: u64,
    /// KEEPALIVE.
    pub keepalive: u64,
    /// ROUTE-REFRESH.
    pub route_refresh: u64,
}

impl MessageCounts {
    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.open + self.update + self.notification + self.keepalive + self.route_refresh
    }
}

/// Parameters negotiated by a session in OpenConfirm or Established.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct SessionStatus {
    /// Our end.
    pub local: SocketAddr,
    /// Their end.
    pub remote: SocketAddr,
    /// The peer's BGP identifier.
    pub router_id: RouterId,
    /// Negotiated hold time; 0: none.
    pub hold_time: Duration,
    /// The least part (0 to 1) of it that was left when a message came, in the last minutes; `None`: there is no hold timer.
    pub hold_margin: Option<f32>,
    /// Interval of our keepalives; 0: none.
    pub keepalive: Duration,
    /// Families that both ends offered.
    pub families: Vec<Family>,
    /// Four-octet AS numbers (RFC 6793).
    pub as4: bool,
    /// Extended messages (RFC 8654).
    pub extended_messages: bool,
    /// IPv4 routes may have IPv6 next hops (RFC 8950).
    pub extended_next_hop: bool,
    /// Families in which the peer sends several paths of a prefix (RFC 7911).
    pub add_path_receive: Vec<Family>,
    /// Families in which we may send several paths of a prefix.
    pub add_path_send: Vec<Family>,
    /// The peer takes ROUTE-REFRESH (RFC 2918).
    pub route_refresh: bool,
    /// Both ends mark beginning and end of a refresh (RFC 7313).
    pub enhanced_refresh: bool,
    /// The peer's restart time, when it offered graceful restart (RFC 4724).
    pub graceful_restart: Option<Duration>,
}

/// The routes of one family of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct FamilyStatus {
    /// Which.
    pub family: Family,
    /// Routes in its Adj-RIB-In: prefixes, or paths where the session has several of a prefix (RFC 7911).
    pub received: u32,
    /// Of these, those that import policy and loop checks took.
    pub accepted: u32,
    /// Of these, those that were refused.
    pub filtered: u32,
    /// Prefixes whose best path is this peer's.
    pub best: u32,
    /// Routes announced to it: prefixes, or paths where the session has several of a prefix.
    pub advertised: u32,
    /// Routes kept from before its restart (RFC 4724).
    pub stale: u32,
    /// It sent End-of-RIB in this session.
    pub end_of_rib_received: bool,
    /// We sent End-of-RIB in this session.
    pub end_of_rib_sent: bool,
}

/// Graceful restart as seen of one peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RestartPhase {
    /// No restart is under way.
    Idle,
    /// The peer went away; its routes are kept for at most this long (RFC 4724 4.2).
    Waiting(Duration),
    /// The peer stayed away longer than its restart time; its routes are kept as the least preferred ones for at most this
    /// long (RFC 9494).
    LongLived(Duration),
    /// The peer is back; its stale routes wait for End-of-RIB for at most this long.
    Refreshing(Duration),
}

/// How an error was handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LastErrorKind {
    /// We sent a NOTIFICATION.
    Sent,
    /// The peer sent one.
    Received,
    /// The routes of an UPDATE were treated as withdrawn (RFC 7606 2).
    Withdrawn,
    /// An attribute was left out (RFC 7606 2).
    Discarded,
}

impl LastErrorKind {
    /// Stable text for machines.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sent => "notification_sent",
            Self::Received => "notification_received",
            Self::Withdrawn => "treat_as_withdraw",
            Self::Discarded => "attribute_discard",
        }
    }
}

/// An error with the octets that it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LastError {
    /// How it was handled.
    pub kind: LastErrorKind,
    /// Code and subcode of the NOTIFICATION, where there was one.
    pub code: Option<(u8, u8)>,
    /// For people; sanitised.
    pub text: String,
    /// The data of the NOTIFICATION, at most 512 octets of it.
    pub data: Box<[u8]>,
    /// The message of the peer that was wrong, header included, at most its first 512 octets. Empty where none was.
    pub message: Box<[u8]>,
    /// How long ago.
    pub ago: Duration,
}

/// A configured peer and its session.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct PeerStatus {
    /// Which.
    pub id: PeerId,
    /// Its configured name.
    pub name: Arc<str>,
    /// The range that it came from; `None`: it is configured.
    pub range: Option<RangeId>,
    /// Where it listens.
    pub remote: SocketAddr,
    /// Its configured AS.
    pub asn: u32,
    /// Our AS towards it.
    pub local_asn: u32,
    /// State of the furthest connection.
    pub state: State,
    /// How long it is in this state.
    pub since: Duration,
    /// How long the session is up.
    pub uptime: Option<Duration>,
    /// Negotiated parameters, in OpenConfirm and Established.
    pub session: Option<SessionStatus>,
    /// Messages received since the peer was configured.
    pub received: MessageCounts,
    /// Messages sent since the peer was configured.
    pub sent: MessageCounts,
    /// Announcements that import policy or loop checks refused since the peer was configured, repeated ones included.
    pub rejected: u64,
    /// Its routes, by family in AFI order (configured families only).
    pub families: Vec<FamilyStatus>,
    /// How often the session left Established.
    pub flaps: u32,
    /// How many connection attempts failed since the session was last up.
    pub failed_attempts: u32,
    /// Why the last session or attempt ended, and how long ago.
    pub last_down: Option<(Down, Duration)>,
    /// The last error in what either end said, however long ago; it outlives sessions.
    pub last_error: Option<LastError>,
    /// Time until the next attempt to dial, when one is planned.
    pub next_attempt: Option<Duration>,
    /// Time for which its connections are refused, because too many failed in a row or an error needs people.
    pub refused: Option<Duration>,
    /// Graceful restart of the peer.
    pub restart: RestartPhase,
    /// What is announced to it before maintenance (RFC 8326).
    pub drain: Drain,
    /// Its session was given all there is for it: nothing waits in the speaker.
    pub up_to_date: bool,
    /// Its session.
    pub conn: Option<ConnId>,
}

/// A range of addresses from which sessions are taken.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RangeStatus {
    /// Which.
    pub id: RangeId,
    /// Its addresses.
    pub prefix: Cidr,
    /// Peers that are there because of it.
    pub peers: u32,
    /// How many there may be.
    pub max_peers: u32,
    /// Connections that were turned away because it was full.
    pub refused: u64,
    /// Why the last session or attempt of any of its peers ended, whose, and how long ago; it outlives the peer.
    pub last_down: Option<(ScopedAddr, Down, Duration)>,
}

/// Which table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteTable {
    /// All paths, best first.
    Loc,
    /// Routes received from this peer (Adj-RIB-In).
    AdjIn(PeerId),
    /// The same after import policy; what that refused is [`Unusable::Filtered`].
    AdjInPost(PeerId),
    /// Routes announced to this peer (Adj-RIB-Out).
    AdjOut(PeerId),
}

/// Which prefixes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteMatch {
    /// All of a family.
    All(Family),
    /// This one.
    Exact(Cidr),
    /// The longest one that contains the address.
    Longest(IpAddr),
    /// This one and all inside it.
    Within(Cidr),
}

/// A question for routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteQuery {
    /// Of which table.
    pub table: RouteTable,
    /// Which prefixes.
    pub matching: RouteMatch,
}

/// A prefix and its paths.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RouteInfo {
    /// The prefix.
    pub prefix: Cidr,
    /// Its paths; the best one first, if any is usable.
    pub paths: Vec<PathInfo>,
}

/// Why a path is no candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unusable {
    /// Import policy or a loop check refused it, with the stable reason.
    Filtered(&'static str),
    /// Its next hop is not reachable, or not resolved.
    NextHop,
}

/// The origin of a path: this speaker, or a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathSource {
    /// This speaker originates it.
    Local {
        /// [`Origination::kind`](crate::Origination::kind).
        kind: u32,
    },
    /// Learned.
    Peer {
        /// From whom.
        id: PeerId,
        /// Its name.
        name: Arc<str>,
        /// By eBGP.
        ebgp: bool,
    },
}

/// A path.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathInfo {
    /// Where it comes from.
    pub source: PathSource,
    /// Its attributes: after import policy; as received where the table is [`RouteTable::AdjIn`], and as they are sent
    /// where it is [`RouteTable::AdjOut`].
    pub attributes: Arc<Attributes>,
    /// Its path identifier (RFC 7911): the peer's, or ours where the table is [`RouteTable::AdjOut`]. `None`: the session
    /// has one path of a prefix.
    pub path_id: Option<u32>,
    /// The best path.
    pub best: bool,
    /// Used together with the best one (ECMP); true for the best one too.
    pub multipath: bool,
    /// Kept from before the peer's restart.
    pub stale: bool,
    /// Why it is no candidate.
    pub unusable: Option<Unusable>,
    /// The resolution of its next hop; `None` for a local path, and while the embedder has not answered.
    pub next_hop: Option<NextHopState>,
    /// For the best path: the step that separated it from the last rival. For others: the step at which it lost.
    /// `None` where there was no rival.
    pub decided_by: Option<Step>,
}

/// The steps of the decision process, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Step {
    /// Routes that this speaker originates win.
    Local,
    /// Long-lived stale routes come last (RFC 9494 4.4).
    LongLivedStale,
    /// Highest LOCAL_PREF (RFC 4271 9.1.1).
    LocalPref,
    /// Shortest AS_PATH (RFC 4271 9.1.2.2 a).
    AsPathLength,
    /// Lowest ORIGIN (9.1.2.2 b).
    Origin,
    /// Lowest MULTI_EXIT_DISC among routes of one neighbouring AS (9.1.2.2 c).
    Med,
    /// eBGP before iBGP (9.1.2.2 d).
    Ebgp,
    /// Lowest interior cost of the next hop (9.1.2.2 e).
    IgpMetric,
    /// Routes kept from a session that ended (RFC 4724) share no load with those of a running one: their sender may be gone.
    Stale,
    /// Lowest BGP identifier, or ORIGINATOR_ID (9.1.2.2 f, RFC 4456 9).
    RouterId,
    /// Shortest CLUSTER_LIST (RFC 4456 9).
    ClusterListLength,
    /// Lowest peer address (9.1.2.2 g).
    PeerAddress,
    /// Lowest path identifier (RFC 7911), of the running session before that of the one before its restart.
    PathId,
}

impl Step {
    /// Stable text with the section it comes from.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local route",
            Self::LongLivedStale => "long-lived stale (RFC 9494 4.4)",
            Self::LocalPref => "LOCAL_PREF (RFC 4271 9.1.1)",
            Self::AsPathLength => "AS_PATH length (RFC 4271 9.1.2.2 a)",
            Self::Origin => "ORIGIN (RFC 4271 9.1.2.2 b)",
            Self::Med => "MULTI_EXIT_DISC (RFC 4271 9.1.2.2 c)",
            Self::Ebgp => "eBGP over iBGP (RFC 4271 9.1.2.2 d)",
            Self::IgpMetric => "interior cost (RFC 4271 9.1.2.2 e)",
            Self::Stale => "stale (RFC 4724)",
            Self::RouterId => "BGP identifier (RFC 4271 9.1.2.2 f)",
            Self::ClusterListLength => "CLUSTER_LIST length (RFC 4456 9)",
            Self::PeerAddress => "peer address (RFC 4271 9.1.2.2 g)",
            Self::PathId => "path identifier (RFC 7911)",
        }
    }
}

/// One rung of [`ExportTrace::steps`] and [`ImportTrace::steps`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportStep {
    /// Stable name of the check: `session`, `family`, `best`, `split-horizon`, `deferral`, `ebgp-policy`, `role`,
    /// `well-known`, `reflection`, `next-hop`, `policy`, `size`.
    pub step: &'static str,
    /// It lets the route pass.
    pub pass: bool,
    /// The facts it decided by, for people. In the place of `policy` stand the steps that [`Policy`](crate::Policy) has itself, where it
    /// has some.
    pub verdict: String,
}

/// Why a prefix is announced to a peer or not: the live export function, recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExportTrace {
    /// The checks in order, up to the one that refused.
    pub steps: Vec<ExportStep>,
    /// The attributes that are sent; `None`: it is not announced.
    pub announced: Option<Arc<Attributes>>,
}

/// Import of a route of a peer: the live functions, recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImportTrace {
    /// The checks in order, up to the one that refused: `loop`, `prefix` where that is it, `policy`, `next-hop`.
    pub steps: Vec<ExportStep>,
    /// As it came.
    pub received: Arc<Attributes>,
    /// As it is used; `None`: it is not.
    pub used: Option<Arc<Attributes>>,
}

/// Sums over everything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Totals {
    /// Prefixes with at least one path, by [`Family::index`].
    pub prefixes: [u64; 2],
    /// Paths, local ones included, by [`Family::index`].
    pub paths: [u64; 2],
    /// Local routes, by [`Family::index`].
    pub local: [u64; 2],
    /// Distinct attribute sets.
    pub attribute_sets: u64,
    /// Update groups.
    pub update_groups: u64,
    /// Octets that tables, attributes and update groups take, estimated.
    pub memory: u64,
    /// The same by what they are for: `loc` (paths as received and as used share it), `adj_out`, `attributes`.
    pub memory_of: [(&'static str, u64); 3],
    /// Best paths that export policy now withholds, by gate, summed over update groups.
    pub withheld: Vec<(&'static str, u64)>,
    /// Routes that import refused since the start, by reason.
    pub rejected: Vec<(&'static str, u64)>,
    /// UPDATE errors since the start, by what was done (RFC 7606): `treat_as_withdraw`, `attribute_discard`,
    /// `session_reset`.
    pub update_errors: [(&'static str, u64); 3],
    /// Routes announced, replaced and withdrawn by peers since the start, by [`Family::index`].
    pub learned: [RouteChanges; 2],
}

/// Counts of announcements and withdrawals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RouteChanges {
    /// New prefixes.
    pub announced: u64,
    /// Prefixes that were there, with other attributes.
    pub replaced: u64,
    /// Withdrawn prefixes.
    pub withdrawn: u64,
    /// Announcements that changed nothing.
    pub repeated: u64,
}

/// Next hops with ECMP; most prefixes have one or two.
pub type NextHops = SmallVec<[ScopedAddr; 2]>;
