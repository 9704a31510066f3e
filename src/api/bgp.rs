//! The JSON of BGP: peers, ranges of peers, routes. Its form is that of [`crate::api::status`].

use serde::{Deserialize, Serialize};

use crate::api::problem::Problem;

/// A range of addresses from which sessions are taken.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PeerRange {
    /// The stable name: `Global_range_192_0_2_0-24`.
    pub name: String,
    /// The addresses.
    pub prefix: String,
    /// The store key.
    pub reason: String,
    /// The AS of its peers; 0: any other than ours.
    pub remote_as: u32,
    /// Sessions that are there because of it, those included that come up and those whose routes are kept.
    pub sessions: u32,
    /// How many there may be.
    pub max_sessions: u32,
    /// Connections turned away because it was full.
    pub refused: u64,
    /// Why the last session or attempt of any of its peers ended; the text begins with its address.
    pub last_error: Option<PeerError>,
}

/// One BGP peer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Peer {
    /// The stable name of the session: `Mesh_192_0_2_15`.
    pub session: String,
    /// Address without port.
    pub address: String,
    /// Port dialled.
    pub port: u16,
    /// Which end dials, in words.
    #[serde(default)]
    pub dials: String,
    /// The node's name, or the address.
    pub name: String,
    /// `mesh`, `global`, `node` or `dynamic`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The range that a dynamic peer came from.
    #[serde(default)]
    pub range: Option<String>,
    /// Why this peer is wanted.
    pub reason: String,
    /// The peer's AS.
    pub remote_as: u32,
    /// RFC 4271 state name; `Unreadable`: there is no session, because the value of its key could never be read.
    pub state: String,
    /// When the state was entered.
    pub state_since: String,
    /// Seconds in that state.
    pub state_seconds: u64,
    /// Sessions lost since the start.
    pub flaps: u64,
    /// The last end of a session or failed attempt.
    pub last_error: Option<PeerError>,
    /// The last error in what either end said, with the octets that it is about; it outlives sessions.
    #[serde(default)]
    pub last_message_error: Option<MessageError>,
    /// Per family.
    pub families: Vec<PeerFamily>,
    /// Negotiated hold time, 0 before.
    pub hold_seconds: u64,
    /// Negotiated keepalive interval, 0 before.
    pub keepalive_seconds: u64,
    /// The peer's BGP identifier.
    pub router_id: Option<String>,
    /// Messages received.
    pub messages_in: u64,
    /// Messages sent.
    pub messages_out: u64,
    /// Capabilities of the peer, by name.
    pub capabilities: Vec<String>,
    /// `none`, `helper`, `restarting`.
    pub graceful_restart: String,
    /// What it is told before maintenance (RFC 8326): `off`, `announce` (all routes carry GRACEFUL_SHUTDOWN) or `withdraw`.
    #[serde(default)]
    pub drain: String,
    /// All of that was written and acknowledged by its TCP.
    #[serde(default, rename = "drainTaken")]
    pub drain_sent: bool,
    /// It is to have no session (`shutdown` in its value), and what it is told of that, possibly nothing.
    #[serde(default)]
    pub shutdown: Option<String>,
    /// What is right but surprising.
    #[serde(default)]
    pub notes: Vec<Problem>,
    /// Forwarding detection, where the peer wants it.
    pub bfd: Option<PeerBfd>,
}

/// The BFD session of a peer (RFC 5880).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PeerBfd {
    /// `AdminDown`, `Down`, `Init`, `Up`, or `Waiting` while it is not known how the peer is reached.
    pub state: String,
    /// When the state was entered.
    pub state_since: Option<String>,
    /// Seconds in that state.
    pub state_seconds: u64,
    /// The state that the peer last told.
    pub remote_state: Option<String>,
    /// `single-hop` (UDP port 3784, RFC 5881) or `multihop` (4784, RFC 5883).
    pub path: Option<String>,
    /// Milliseconds between our packets, before jitter; absent: the peer wants none.
    pub transmit_millis: Option<u64>,
    /// Milliseconds between the peer's packets.
    pub receive_millis: Option<u64>,
    /// Milliseconds of silence after which the session is down; absent before the first packet.
    pub detection_millis: Option<u64>,
    /// Our diagnostic (RFC 5880 4.1), in words.
    pub diagnostic: Option<String>,
    /// The peer's diagnostic.
    pub remote_diagnostic: Option<String>,
    /// Why it last left Up, and when.
    pub last_down: Option<PeerError>,
    /// Times that it came up.
    pub ups: u64,
    /// My Discriminator.
    pub discriminator: u32,
    /// Your Discriminator, 0 while unknown.
    pub remote_discriminator: u32,
    /// The peer's C bit: its BFD survives its control plane.
    pub remote_independent: bool,
    /// Packets accepted.
    pub packets_in: u64,
    /// Packets sent.
    pub packets_out: u64,
}

/// The last error of a peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PeerError {
    /// Stable.
    pub code: String,
    /// For people.
    pub text: String,
    /// When.
    pub time: String,
}

/// An error in a message between us and a peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MessageError {
    /// `notification_sent`, `notification_received`, `treat_as_withdraw` or `attribute_discard`.
    pub code: String,
    /// For people.
    pub text: String,
    /// When.
    pub time: String,
    /// Code and subcode of the NOTIFICATION, where there was one.
    pub notification: Option<[u8; 2]>,
    /// Data of the NOTIFICATION in hex, at most 512 octets of it.
    pub data: String,
    /// The peer's message that was wrong in hex, header first, at most 512 octets of it.
    pub message: String,
}

/// Counters of a family of a peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PeerFamily {
    /// `ipv4` or `ipv6`.
    pub afi: String,
    /// `unicast`.
    pub safi: String,
    /// Prefixes received.
    pub received: u64,
    /// Of those, used.
    pub accepted: u64,
    /// Of those, best.
    pub best: u64,
    /// Prefixes announced to the peer.
    pub advertised: u64,
    /// Kept over the peer's restart.
    pub stale: u64,
}

/// One prefix of the BGP table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BgpRoute {
    /// The prefix.
    pub prefix: String,
    /// All paths, best first.
    pub paths: Vec<BgpPath>,
}

/// One path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BgpPath {
    /// The best path.
    pub best: bool,
    /// Part of the ECMP set of the best.
    pub multipath: bool,
    /// May be best.
    pub usable: bool,
    /// Why it is best, or why it is not usable.
    pub reason: String,
    /// The peer's name, or `local`.
    pub from: String,
    /// The path identifier (RFC 7911), where the session has several paths of a prefix.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub path_id: Option<u32>,
    /// `local`, `iBGP` or `eBGP`.
    pub source: String,
    /// Next hop.
    pub next_hop: Option<String>,
    /// As text, such as `64513 64512`.
    pub as_path: String,
    /// LOCAL_PREF.
    pub local_pref: Option<u32>,
    /// MED.
    pub med: Option<u32>,
    /// `igp`, `egp` or `incomplete`.
    pub origin: String,
    /// As `65000:100`.
    pub communities: Vec<String>,
    /// As `65000:1:2`.
    pub large_communities: Vec<String>,
    /// Kept over the peer's restart.
    pub stale: bool,
}
