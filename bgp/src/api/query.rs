//! Results of queries to a [`Speaker`](crate::Speaker): plain values, computed for each call.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tortie_net::{Cidr, ScopedAddr};

use crate::api::{ConnId, Down, Drain, NextHopState, PeerId, RangeId, State};
use crate::attr::Attributes;
use crate::types::{Family, RouterId};

/// Number of messages by type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct MessageCounts {
    /// Number of OPENs.
    pub open: u64,
    /// Number of UPDATEs.
    pub update: u64,
    /// Number of NOTIFICATIONs.
    pub notification: u64,
    /// Number of KEEPALIVEs.
    pub keepalive: u64,
    /// Number of ROUTE-REFRESHes.
    pub route_refresh: u64,
}

impl MessageCounts {
    /// Returns the number of messages of all types.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.open + self.update + self.notification + self.keepalive + self.route_refresh
    }
}

/// Parameters of a session in OpenConfirm or Established.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct SessionStatus {
    /// Local address and port.
    pub local: SocketAddr,
    /// Remote address and port.
    pub remote: SocketAddr,
    /// BGP identifier of the peer.
    pub router_id: RouterId,
    /// Negotiated hold time; 0 disables the hold timer.
    pub hold_time: Duration,
    /// Lowest fraction (0 to 1) of the hold time that was left when a message arrived, over the last 2.5 to 5
    /// minutes. `None` without a hold timer.
    pub hold_margin: Option<f32>,
    /// Interval of the KEEPALIVEs sent; 0: none are sent.
    pub keepalive: Duration,
    /// Families that both ends offered.
    pub families: Vec<Family>,
    /// Four-octet AS numbers (RFC 6793) are negotiated.
    pub as4: bool,
    /// Extended messages (RFC 8654) are negotiated.
    pub extended_messages: bool,
    /// IPv4 routes may have IPv6 next hops (RFC 8950).
    pub extended_next_hop: bool,
    /// Families in which the peer sends several paths per prefix (RFC 7911).
    pub add_path_receive: Vec<Family>,
    /// Families in which this speaker may send several paths per prefix (RFC 7911).
    pub add_path_send: Vec<Family>,
    /// The peer accepts ROUTE-REFRESH (RFC 2918).
    pub route_refresh: bool,
    /// Enhanced route refresh (RFC 7313): both ends mark beginning and end of a refresh.
    pub enhanced_refresh: bool,
    /// Restart time that the peer advertised (RFC 4724). `None`: no graceful restart capability.
    pub graceful_restart: Option<Duration>,
}

/// Routes of one family of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct FamilyStatus {
    /// The family that the counts belong to.
    pub family: Family,
    /// Number of routes in the Adj-RIB-In: prefixes, or paths with add-path (RFC 7911).
    pub received: u32,
    /// Number of received routes accepted by import policy and loop checks.
    pub accepted: u32,
    /// Number of received routes rejected by import policy or loop checks.
    pub filtered: u32,
    /// Number of prefixes whose best path comes from this peer.
    pub best: u32,
    /// Number of routes in the Adj-RIB-Out: prefixes, or paths with add-path (RFC 7911).
    pub advertised: u32,
    /// Number of stale routes, kept from before the peer's restart (RFC 4724).
    pub stale: u32,
    /// The peer has sent End-of-RIB in this session.
    pub end_of_rib_received: bool,
    /// This speaker has sent End-of-RIB in this session.
    pub end_of_rib_sent: bool,
}

/// Progress of a peer's graceful restart, with this speaker as helper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RestartPhase {
    /// The peer is not restarting.
    Idle,
    /// The session is down; stale routes are kept for this remaining time at most (RFC 4724 4.2).
    Waiting(Duration),
    /// The restart time has expired; stale routes are kept, as least preferred, for this remaining time at
    /// most (RFC 9494).
    LongLived(Duration),
    /// The session is up again; stale routes are kept until End-of-RIB, for this remaining time at most.
    Refreshing(Duration),
}

/// Handling of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LastErrorKind {
    /// This speaker sent a NOTIFICATION.
    Sent,
    /// The peer sent a NOTIFICATION.
    Received,
    /// Treat-as-withdraw: the routes of an UPDATE were withdrawn (RFC 7606 2).
    Withdrawn,
    /// Attribute discard: an attribute was removed (RFC 7606 2).
    Discarded,
}

impl LastErrorKind {
    /// Returns the stable text for programs.
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

/// A protocol error, with the octets that caused it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LastError {
    /// Handling of the error.
    pub kind: LastErrorKind,
    /// Code and subcode of the NOTIFICATION. `None` if none was sent or received.
    pub code: Option<(u8, u8)>,
    /// Description for people, with text of the peer sanitised.
    pub text: String,
    /// Data of the NOTIFICATION, at most its first 512 octets.
    pub data: Box<[u8]>,
    /// The peer's erroneous message, header included, at most its first 512 octets. Empty if no message
    /// caused the error.
    pub message: Box<[u8]>,
    /// Time since the error.
    pub ago: Duration,
}

/// State of a peer and its session.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct PeerStatus {
    /// Identifier of the peer.
    pub id: PeerId,
    /// Configured name.
    pub name: Arc<str>,
    /// Range of a dynamic peer. `None`: configured peer.
    pub range: Option<RangeId>,
    /// Configured address and port.
    pub remote: SocketAddr,
    /// Configured AS number.
    pub asn: u32,
    /// Local AS number towards the peer.
    pub local_asn: u32,
    /// FSM state of the connection that has progressed furthest.
    pub state: State,
    /// Time since the last state change.
    pub since: Duration,
    /// Time since the session came up. `None` outside Established.
    pub uptime: Option<Duration>,
    /// Negotiated parameters, in OpenConfirm and Established.
    pub session: Option<SessionStatus>,
    /// Messages received since the peer was configured.
    pub received: MessageCounts,
    /// Messages sent since the peer was configured.
    pub sent: MessageCounts,
    /// Announcements rejected by import policy or loop checks since the peer was configured, repetitions
    /// included.
    pub rejected: u64,
    /// Routes by family, in AFI order; configured families only.
    pub families: Vec<FamilyStatus>,
    /// Number of times the session left Established.
    pub flaps: u32,
    /// Number of failed connection attempts since the session was last up.
    pub failed_attempts: u32,
    /// Reason for the end of the last session or attempt, and the time since.
    pub last_down: Option<(Down, Duration)>,
    /// Last protocol error of either end. It is kept when the session ends.
    pub last_error: Option<LastError>,
    /// Time until the next dial, if one is scheduled.
    pub next_attempt: Option<Duration>,
    /// Remaining time for which connections of the peer are refused, after repeated failures or an error that
    /// needs an operator.
    pub refused: Option<Duration>,
    /// Graceful restart of the peer.
    pub restart: RestartPhase,
    /// Graceful shutdown mode towards the peer (RFC 8326).
    pub drain: Drain,
    /// True if all routes for the session have been handed to the embedder: nothing is queued in the speaker.
    pub up_to_date: bool,
    /// Connection of the session. `None` outside Established.
    pub conn: Option<ConnId>,
}

/// State of a range of dynamic peers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RangeStatus {
    /// Identifier of the range.
    pub id: RangeId,
    /// Prefix of accepted addresses.
    pub prefix: Cidr,
    /// Number of dynamic peers of the range.
    pub peers: u32,
    /// Maximum number of dynamic peers.
    pub max_peers: u32,
    /// Number of connections refused because the range was full.
    pub refused: u64,
    /// Address of the dynamic peer whose session or attempt ended last, the reason, and the time since. Kept
    /// when that peer is removed.
    pub last_down: Option<(ScopedAddr, Down, Duration)>,
}

/// The table to query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteTable {
    /// Loc-RIB: all paths, best first.
    Loc,
    /// Adj-RIB-In of this peer, pre-policy.
    AdjIn(PeerId),
    /// Adj-RIB-In of this peer, post-policy; rejected routes are [`Unusable::Filtered`].
    AdjInPost(PeerId),
    /// Adj-RIB-Out of this peer.
    AdjOut(PeerId),
}

/// Selection of prefixes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteMatch {
    /// All prefixes of a family.
    All(Family),
    /// Exactly this prefix.
    Exact(Cidr),
    /// The longest prefix that contains the address.
    Longest(IpAddr),
    /// This prefix and all more specific ones.
    Within(Cidr),
}

/// A query for routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteQuery {
    /// The table.
    pub table: RouteTable,
    /// The prefixes.
    pub matching: RouteMatch,
}

/// A prefix and its paths.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RouteInfo {
    /// Destination prefix.
    pub prefix: Cidr,
    /// Paths; the best one first, if any is usable.
    pub paths: Vec<PathInfo>,
}

/// Reason that excludes a path from the decision process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unusable {
    /// Rejected by import policy or a loop check, with the stable reason.
    Filtered(&'static str),
    /// The next hop is unreachable or not resolved yet.
    NextHop,
}

/// Origin of a path: this speaker, or a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathSource {
    /// Originated by this speaker.
    Local {
        /// Type of local route, [`Origination::kind`](crate::Origination::kind).
        kind: u32,
    },
    /// Learned from a peer.
    Peer {
        /// The peer.
        id: PeerId,
        /// Name of the peer.
        name: Arc<str>,
        /// True if learned by eBGP.
        ebgp: bool,
    },
}

/// One path of a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathInfo {
    /// Origin of the path.
    pub source: PathSource,
    /// Path attributes: as received for [`RouteTable::AdjIn`], as sent for [`RouteTable::AdjOut`], after
    /// import policy otherwise.
    pub attributes: Arc<Attributes>,
    /// Path identifier (RFC 7911): that of the peer, or the local one for [`RouteTable::AdjOut`]. `None`: the
    /// session has one path per prefix.
    pub path_id: Option<u32>,
    /// True for the best path.
    pub best: bool,
    /// True if the path is used for forwarding, together with the best path (ECMP); true for the best path
    /// too.
    pub multipath: bool,
    /// True for a stale path, kept from before the peer's restart (RFC 4724).
    pub stale: bool,
    /// Reason that excludes the path from the decision process.
    pub unusable: Option<Unusable>,
    /// Resolution of the next hop. `None` for a local path, and until the embedder answers.
    pub next_hop: Option<NextHopState>,
    /// Deciding step. For the best path: the step that ruled out the last competitor. For others: the step at
    /// which the path lost. `None` without a competitor.
    pub decided_by: Option<Step>,
}

/// Steps of the decision process, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Step {
    /// Local routes win over learned ones.
    Local,
    /// Long-lived stale routes are the least preferred (RFC 9494 4.4).
    LongLivedStale,
    /// Highest LOCAL_PREF (RFC 4271 9.1.1).
    LocalPref,
    /// Shortest AS_PATH (RFC 4271 9.1.2.2 a).
    AsPathLength,
    /// Lowest ORIGIN (RFC 4271 9.1.2.2 b).
    Origin,
    /// Lowest MULTI_EXIT_DISC among routes from one neighbouring AS (RFC 4271 9.1.2.2 c).
    Med,
    /// eBGP before iBGP (RFC 4271 9.1.2.2 d).
    Ebgp,
    /// Lowest interior cost of the next hop (RFC 4271 9.1.2.2 e).
    IgpMetric,
    /// Stale routes (RFC 4724) do not share load with those of a running session: the router that sent them
    /// may be down.
    Stale,
    /// Lowest BGP identifier, or ORIGINATOR_ID (RFC 4271 9.1.2.2 f, RFC 4456 9).
    RouterId,
    /// Shortest CLUSTER_LIST (RFC 4456 9).
    ClusterListLength,
    /// Lowest peer address (RFC 4271 9.1.2.2 g).
    PeerAddress,
    /// Lowest path identifier (RFC 7911); paths of the running session before those from before the restart.
    PathId,
}

impl Step {
    /// Returns the stable text, with the section of the RFC.
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

/// One check of [`ExportTrace::steps`] and [`ImportTrace::steps`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportStep {
    /// Stable name of the check: `session`, `family`, `best`, `split-horizon`, `deferral`, `ebgp-policy`,
    /// `role`, `well-known`, `reflection`, `next-hop`, `policy`, `size`.
    pub step: &'static str,
    /// True if the route passes the check.
    pub pass: bool,
    /// Facts that the check used, for people. The check `policy` is replaced by the steps of
    /// [`Policy::export_steps`](crate::Policy::export_steps) if the policy reports its own.
    pub verdict: String,
}

/// Explanation of why a prefix is or is not announced to a peer: a recorded run of the export code.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExportTrace {
    /// Checks in order, up to the one that rejected the route.
    pub steps: Vec<ExportStep>,
    /// Attributes as sent. `None`: not announced.
    pub announced: Option<Arc<Attributes>>,
}

/// Explanation of the import of a peer's route: a recorded run of the import code.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImportTrace {
    /// Checks in order, up to the one that rejected the route: `loop`, `prefix` (only if it rejects),
    /// `policy`, `next-hop`.
    pub steps: Vec<ExportStep>,
    /// Attributes as received.
    pub received: Arc<Attributes>,
    /// Attributes after import policy. `None`: the route is not used.
    pub used: Option<Arc<Attributes>>,
}

/// Totals of the speaker.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Totals {
    /// Number of prefixes with at least one path, by [`Family::index`].
    pub prefixes: [u64; 2],
    /// Number of paths, local ones included, by [`Family::index`].
    pub paths: [u64; 2],
    /// Number of local routes, by [`Family::index`].
    pub local: [u64; 2],
    /// Number of distinct attribute sets.
    pub attribute_sets: u64,
    /// Number of update groups.
    pub update_groups: u64,
    /// Estimated memory of tables, attributes and update groups, in octets.
    pub memory: u64,
    /// Estimated memory in octets by purpose: `loc` (received and accepted paths share it), `adj_out`,
    /// `attributes`.
    pub memory_of: [(&'static str, u64); 3],
    /// Number of best paths that export withholds now, by export gate, summed over update groups.
    pub withheld: Vec<(&'static str, u64)>,
    /// Number of routes rejected by import since the start, by reason.
    pub rejected: Vec<(&'static str, u64)>,
    /// Number of UPDATE errors since the start, by handling (RFC 7606): `treat_as_withdraw`,
    /// `attribute_discard`, `session_reset`.
    pub update_errors: [(&'static str, u64); 3],
    /// Routes announced, replaced and withdrawn by peers since the start, by [`Family::index`].
    pub learned: [RouteChanges; 2],
}

/// Number of announcements and withdrawals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RouteChanges {
    /// Number of announcements of new prefixes.
    pub announced: u64,
    /// Number of announcements that replaced the attributes of a known prefix.
    pub replaced: u64,
    /// Number of withdrawals.
    pub withdrawn: u64,
    /// Number of announcements without a change.
    pub repeated: u64,
}

/// ECMP next hops of a prefix; one or two are stored inline.
pub type NextHops = SmallVec<[ScopedAddr; 2]>;
