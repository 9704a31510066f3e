//! JSON of BGP peers, peer ranges and routes, in the form that [`crate::api::status`] describes.

use serde::{Deserialize, Serialize};

use crate::api::problem::Problem;

/// A range of addresses from which the agent accepts sessions of dynamic peers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PeerRange {
    /// Stable name, such as `Global_range_192_0_2_0-24`.
    pub name: String,
    /// Prefix of the range.
    pub prefix: String,
    /// Store key that configures the range.
    pub reason: String,
    /// AS number that its peers must have; 0 accepts any AS except the local one.
    pub remote_as: u32,
    /// Number of dynamic peers of the range, including sessions that are starting and peers whose stale
    /// routes are retained.
    pub sessions: u32,
    /// Maximum number of sessions.
    pub max_sessions: u32,
    /// Number of connections that were refused because the range was full.
    pub refused: u64,
    /// Error that ended the last session or attempt of a peer of the range; the text begins with the peer's
    /// address.
    pub last_error: Option<PeerError>,
}

/// A BGP peer with its session and counters.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Peer {
    /// Stable name of the session, such as `Mesh_192_0_2_15`.
    pub session: String,
    /// Address of the peer, without port.
    pub address: String,
    /// TCP port that the agent connects to.
    pub port: u16,
    /// Side that opens the connection, in words.
    #[serde(default)]
    pub dials: String,
    /// Name of the node, or the address of a peer that is no node.
    pub name: String,
    /// Kind of peer: `mesh`, `global`, `node` or `dynamic`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Range that a dynamic peer belongs to.
    #[serde(default)]
    pub range: Option<String>,
    /// Reason why the peer is configured, with its store key.
    pub reason: String,
    /// AS number of the peer.
    pub remote_as: u32,
    /// State of the session by its name in RFC 4271. `Unreadable`: no session exists, because the value of
    /// the peer's key could never be parsed.
    pub state: String,
    /// Time of the last change of state.
    pub state_since: String,
    /// Seconds since the last change of state.
    pub state_seconds: u64,
    /// Number of sessions lost since the agent started.
    pub flaps: u64,
    /// Last error that ended a session or a connection attempt.
    pub last_error: Option<PeerError>,
    /// Last error in a message of either side, with the octets in question; it is kept after the session
    /// ends.
    #[serde(default)]
    pub last_message_error: Option<MessageError>,
    /// Counters per address family.
    pub families: Vec<PeerFamily>,
    /// Negotiated hold time in seconds; 0 before the session is established.
    pub hold_seconds: u64,
    /// Negotiated keepalive interval in seconds; 0 before the session is established.
    pub keepalive_seconds: u64,
    /// BGP identifier of the peer.
    pub router_id: Option<String>,
    /// Number of messages received.
    pub messages_in: u64,
    /// Number of messages sent.
    pub messages_out: u64,
    /// Names of the capabilities that the peer advertised.
    pub capabilities: Vec<String>,
    /// State of graceful restart: `none`, `helper` or `restarting`.
    pub graceful_restart: String,
    /// Graceful shutdown (RFC 8326): `off`, `announce` (all routes carry GRACEFUL_SHUTDOWN) or `withdraw`.
    #[serde(default)]
    pub drain: String,
    /// True if all messages of the drain were written and acknowledged by the peer's TCP.
    #[serde(default, rename = "drainTaken")]
    pub drain_sent: bool,
    /// Text of the shutdown communication, possibly empty, if the peer's value has `shutdown` and no session
    /// is wanted.
    #[serde(default)]
    pub shutdown: Option<String>,
    /// Notes: correct but unexpected conditions of the peer.
    #[serde(default)]
    pub notes: Vec<Problem>,
    /// BFD session, if the peer is configured with BFD.
    pub bfd: Option<PeerBfd>,
}

/// The BFD session of a peer (RFC 5880).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PeerBfd {
    /// `AdminDown`, `Down`, `Init`, `Up`, or `Waiting` while the path to the peer is unknown.
    pub state: String,
    /// Time of the last change of state.
    pub state_since: Option<String>,
    /// Seconds since the last change of state.
    pub state_seconds: u64,
    /// State that the peer's last packet reported.
    pub remote_state: Option<String>,
    /// Kind of path: `single-hop` (UDP port 3784, RFC 5881) or `multihop` (4784, RFC 5883).
    pub path: Option<String>,
    /// Transmit interval in milliseconds, before jitter; absent if the peer asks for no packets.
    pub transmit_millis: Option<u64>,
    /// Interval of the peer's packets in milliseconds.
    pub receive_millis: Option<u64>,
    /// Detection time in milliseconds; absent before the first packet.
    pub detection_millis: Option<u64>,
    /// Local diagnostic (RFC 5880 4.1), in words.
    pub diagnostic: Option<String>,
    /// Diagnostic that the peer reported.
    pub remote_diagnostic: Option<String>,
    /// Reason and time of the last transition from Up to another state.
    pub last_down: Option<PeerError>,
    /// Number of transitions to Up.
    pub ups: u64,
    /// Local discriminator (My Discriminator).
    pub discriminator: u32,
    /// Discriminator of the peer (Your Discriminator); 0 while unknown.
    pub remote_discriminator: u32,
    /// The C bit of the peer: its BFD is independent of its control plane (RFC 5880 4.1).
    pub remote_independent: bool,
    /// Number of packets accepted.
    pub packets_in: u64,
    /// Number of packets sent.
    pub packets_out: u64,
}

/// The last error of a peer's session or connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PeerError {
    /// Stable code, for programs.
    pub code: String,
    /// Description for people.
    pub text: String,
    /// Time of the error.
    pub time: String,
}

/// An error in a BGP message that one side sent to the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MessageError {
    /// Stable code: `notification_sent`, `notification_received`, `treat_as_withdraw` or `attribute_discard`.
    pub code: String,
    /// Description for people.
    pub text: String,
    /// Time of the error.
    pub time: String,
    /// Code and subcode of the NOTIFICATION, if one was sent.
    pub notification: Option<[u8; 2]>,
    /// Data of the NOTIFICATION in hex, at most 512 octets.
    pub data: String,
    /// The faulty message of the peer in hex, with its header, at most 512 octets.
    pub message: String,
}

/// Counters of one address family of a peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PeerFamily {
    /// Address family: `ipv4` or `ipv6`.
    pub afi: String,
    /// Subsequent address family: always `unicast`.
    pub safi: String,
    /// Number of prefixes received.
    pub received: u64,
    /// Number of received prefixes that import policy accepted.
    pub accepted: u64,
    /// Number of received prefixes whose path from this peer is the best.
    pub best: u64,
    /// Number of prefixes announced to the peer.
    pub advertised: u64,
    /// Number of stale prefixes retained during the peer's restart.
    pub stale: u64,
}

/// A prefix of the BGP table with its paths.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BgpRoute {
    /// Destination prefix.
    pub prefix: String,
    /// All paths, the best first.
    pub paths: Vec<BgpPath>,
}

/// One path of a prefix.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BgpPath {
    /// True for the best path.
    pub best: bool,
    /// True if the path is in the ECMP set of the best path.
    pub multipath: bool,
    /// True if the path is eligible as best path.
    pub usable: bool,
    /// Reason why the path is the best, or why it is not usable.
    pub reason: String,
    /// Name of the peer, or `local`.
    pub from: String,
    /// Path identifier (RFC 7911), if the session carries several paths of a prefix.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub path_id: Option<u32>,
    /// Origin of the path: `local`, `iBGP` or `eBGP`.
    pub source: String,
    /// Next hop (NEXT_HOP or MP_REACH_NLRI).
    pub next_hop: Option<String>,
    /// AS path as text, such as `64513 64512`.
    pub as_path: String,
    /// LOCAL_PREF attribute.
    pub local_pref: Option<u32>,
    /// MULTI_EXIT_DISC attribute.
    pub med: Option<u32>,
    /// ORIGIN attribute: `igp`, `egp` or `incomplete`.
    pub origin: String,
    /// Communities, in the form `65000:100`.
    pub communities: Vec<String>,
    /// Large communities, in the form `65000:1:2`.
    pub large_communities: Vec<String>,
    /// True if the path is retained during the peer's restart.
    pub stale: bool,
}
