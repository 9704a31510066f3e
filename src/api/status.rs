//! The JSON that the agent answers and the command line reads: version `tortie/v1`, camelCase, lists present when empty,
//! times RFC 3339, durations in seconds.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::bgp::{BgpRoute, PeerRange};
use super::machine::Machine;
use super::policy::PolicyStatus;
use super::problem::Problem;
use tortie_engine::ipam::Exclusions;

/// The version that stands in every answer.
pub const API_VERSION: &str = "tortie/v1";

/// An error, in every place where one is answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiError {
    /// Stable, for machines: `not-found`, `invalid`, `busy`, ...
    pub code: String,
    /// For people, with the next step.
    pub text: String,
}

/// A list with its frame.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct List<T> {
    /// [`API_VERSION`].
    pub api_version: String,
    /// Such as `BGPPeerList`.
    pub kind: String,
    /// The host that answers.
    pub node: String,
    /// The store revision that the answer rests on.
    pub revision: u64,
    /// When it was made.
    pub time: String,
    /// There are more.
    #[serde(default)]
    pub more: bool,
    /// Ask again with `after` = this to go on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The elements.
    pub items: Vec<T>,
}

/// The one-screen verdict.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// [`API_VERSION`].
    pub api_version: String,
    /// `Status`.
    pub kind: String,
    /// The host.
    pub node: String,
    /// Of the agent.
    pub version: String,
    /// When this was made.
    pub time: String,
    /// Since the agent started.
    pub uptime_seconds: u64,
    /// Serving: the first kernel state is complete and the sessions were given their time.
    pub ready: bool,
    /// `ready`, `degraded`, `starting`, `frozen` or `not-ready`.
    pub verdict: String,
    /// The verdict in a sentence.
    pub summary: String,
    /// BGP.
    pub bgp: BgpStatus,
    /// Kernel routes.
    pub routes: RouteStatus,
    /// Blocks of this host.
    pub blocks: Vec<BlockStatus>,
    /// Pools, with what this host has of each.
    #[serde(default)]
    pub pools: Vec<PoolStatus>,
    /// Rules and endpoints.
    #[serde(default)]
    pub policy: PolicyStatus,
    /// The store.
    pub store: StoreStatus,
    /// The kernel.
    pub dataplane: DataplaneStatus,
    /// What BIRD and Felix have, of an agent that observes.
    #[serde(default, rename = "beside", skip_serializing_if = "Option::is_none")]
    pub observed: Option<crate::api::observe::ObserveStatus>,
    /// What the agent's process has given up.
    #[serde(default)]
    pub protections: ProtectionStatus,
    /// What is wrong, with the next command.
    pub problems: Vec<Problem>,
    /// What is right but surprising.
    pub notes: Vec<Problem>,
}

/// What the agent's process has given up, so that who takes it over gets little with it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProtectionStatus {
    /// The Linux capabilities that it kept.
    pub capabilities: Vec<String>,
    /// No program that it runs has more rights than itself (prctl(2), no_new_privs).
    pub no_new_privs: bool,
    /// Processes of its user may read its memory, and a crash may leave a core file.
    pub dumpable: bool,
    /// Which files it may open.
    pub landlock: Landlock,
    /// The version of Landlock's interface in this kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub landlock_abi: Option<u32>,
    /// A helper enters network namespaces, so that this process need not be able to.
    pub helper: bool,
}

impl ProtectionStatus {
    /// In one line.
    #[must_use]
    pub fn text(&self) -> String {
        let helper = if self.helper { "helper for network namespaces" } else { "no helper" };
        let privs = if self.no_new_privs { "no_new_privs" } else { "new privileges possible" };
        let dump = if self.dumpable { "dumpable" } else { "not dumpable" };
        let kept = if self.capabilities.is_empty() {
            "no capabilities".to_owned()
        } else {
            self.capabilities.join(" ")
        };
        format!("{kept}   {privs}, {dump}, {}, {helper}", self.landlock.as_str())
    }
}

/// Whether landlock(7) restricts which files the agent opens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Landlock {
    /// Those that it uses.
    Enforced,
    /// Those that it uses; this kernel lacks some of the rights.
    Partial,
    /// The kernel has no Landlock.
    Unsupported,
    /// The kernel refused.
    Failed,
    /// `--no-sandbox`, or an agent that does not know of it.
    #[default]
    Off,
}

impl Landlock {
    /// In words.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Enforced => "files by Landlock",
            Self::Partial => "files by an early Landlock",
            Self::Unsupported => "all files (this kernel has no Landlock)",
            Self::Failed => "all files (Landlock failed)",
            Self::Off => "all files (--no-sandbox)",
        }
    }
}

/// BGP in `status`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BgpStatus {
    /// The local AS.
    #[serde(rename = "as")]
    pub asn: u32,
    /// The BGP identifier.
    pub router_id: String,
    /// Where sessions are accepted.
    pub listen: Vec<String>,
    /// Sessions of the mesh.
    pub mesh: UpCount,
    /// Sessions with explicit peers (global and node).
    pub peers: UpCount,
    /// Peers that came from ranges: established, and all that there are.
    #[serde(default)]
    pub dynamic: UpCount,
    /// Ranges of addresses from which sessions are taken.
    #[serde(default)]
    pub ranges: Vec<PeerRange>,
    /// `idle`, `restarting` or `stopping`.
    pub graceful_restart: String,
    /// Best paths that export policy withholds now, by gate, summed over groups of peers.
    #[serde(default)]
    pub withheld: BTreeMap<String, u64>,
    /// Routes that import refused since the start, by reason.
    #[serde(default)]
    pub refused: BTreeMap<String, u64>,
    /// Peers and ranges of other ASes without `max_prefixes`: how many prefixes they may announce is bounded by memory alone.
    #[serde(default)]
    pub without_prefix_limit: Vec<String>,
}

/// How many of how many.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UpCount {
    /// Established.
    pub up: usize,
    /// Wanted.
    pub of: usize,
}

/// Kernel routes in `status`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RouteStatus {
    /// Acknowledged by the kernel.
    pub installed: usize,
    /// On the way.
    pub pending: usize,
    /// Refused by the kernel.
    pub failed: usize,
    /// Wanted but withheld (next hop unresolved, no tunnel).
    pub withheld: usize,
    /// Kept from before the restart, not learned again yet.
    pub stale: usize,
    /// Different from what is wanted (observe mode, or repair under way).
    pub drifted: usize,
    /// Of others, in the main table.
    pub foreign: usize,
    /// Changes made by others to own routes since the start.
    pub external_changes: u64,
    /// Notifications lost since the start.
    pub overruns: u64,
}

/// A block in `status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BlockStatus {
    /// The prefix.
    pub cidr: String,
    /// `own-block`, `borrowed` or `floating`.
    pub kind: String,
    /// Given to the speaker.
    pub announced: bool,
    /// The store key.
    pub key: String,
}

/// A pool in `status`: what this host has of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolStatus {
    /// Its prefix, or `no pool` for blocks outside of every one.
    pub pool: String,
    /// Blocks of this host.
    pub blocks: usize,
    /// Addresses of those.
    pub addresses: u64,
    /// Assigned ones.
    pub used: u64,
    /// Those that can be assigned.
    pub free: u64,
    /// Assigned ones that other hosts borrowed.
    pub borrowed: u64,
    /// Assigned ones that nobody seems to have.
    pub suspect: u64,
}

/// The store in `status`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoreStatus {
    /// Without secrets.
    pub store: String,
    /// Answering now.
    pub connected: bool,
    /// The last revision applied.
    pub revision: u64,
    /// Since the newest proof of freshness.
    pub lag_seconds: f64,
    /// Why it is away.
    pub away: Option<String>,
    /// Running on the last good state on disk.
    pub from_cache: bool,
    /// Why nothing is changed although the store changes.
    pub frozen: Option<String>,
    /// Values that cannot be read; the last good value of each stays in force.
    pub invalid: Vec<InvalidObject>,
    /// Keys known.
    pub keys: usize,
}

/// A value that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InvalidObject {
    /// The full key.
    pub key: String,
    /// What is wrong and where.
    pub error: String,
    /// The revision of the bad write.
    pub revision: u64,
    /// An earlier value is in force; else none could ever be read.
    #[serde(default)]
    pub last_good: bool,
    /// Of a policy that acts on nothing: the endpoints of this host that it may have been meant for.
    #[serde(default)]
    pub may_act_on: Vec<String>,
}

/// The kernel in `status`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DataplaneStatus {
    /// `program`, `observe` or `off`.
    pub mode: String,
    /// Protocol number of own routes.
    pub protocol: u8,
    /// `nexthop-objects` or `plain-gateways`.
    pub nexthops: String,
    /// `none`, `up` or what is wrong.
    pub tunnel: String,
    /// Since the last full compare with the kernel.
    pub compared_seconds: Option<u64>,
}

/// One prefix in the kernel room.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KernelRouteRow {
    /// The prefix.
    pub prefix: String,
    /// `learned` or `blackhole`.
    pub kind: String,
    /// `installed`, `pending`, `failed`, `withheld`, `stale` or `foreign`.
    pub state: String,
    /// How: `via 192.0.2.12 dev eth0`, or several.
    pub via: Vec<String>,
    /// Why so: with `installed` the rule (`own-block`, `plain`, `ipip-cross-subnet`, ...), else what is in the way.
    pub reason: String,
    /// The change of the store or of BGP that it comes from: `c-7f31`; empty for a route from before the start.
    pub change: String,
}

/// What happens to a packet for an address.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RouteGet {
    /// The address asked for.
    pub address: String,
    /// Longest match in the BGP table.
    pub bgp: Option<BgpRoute>,
    /// What this host holds in the kernel for that prefix.
    pub kernel: Option<KernelRouteRow>,
    /// What the kernel itself answers for the address.
    #[serde(rename = "kernelSays")]
    pub kernel_lookup: String,
}

/// One entry of the flight recorder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// Grows by one with every entry.
    pub seq: u64,
    /// When.
    pub time: String,
    /// The change it belongs to: `c-7f31`.
    pub change: String,
    /// `store`, `routing`, `policy`, `rib`, `kernel` or `agent`.
    pub plane: String,
    /// `+`, `-`, `~` or `!`.
    pub mark: String,
    /// A key, a prefix, a peer.
    pub subject: String,
    /// In words.
    pub text: String,
    /// Store revision, 0 when none.
    pub revision: u64,
    /// What it is about, for filters: `bgp`, `route`, `ipam`, `policy`, `store`, `kernel`, `agent`; an entry may be several.
    #[serde(default)]
    pub kinds: Vec<String>,
    /// The session that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// The prefix that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
}

/// `POST /v1/applied`. Fields that are not known are passed over: plugin and agent may be of different versions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AppliedRequest {
    /// The endpoint's key.
    pub key: String,
    /// Its store revision.
    pub revision: u64,
    /// Longest wait, in milliseconds.
    #[serde(default)]
    pub wait_millis: u64,
    /// How long ago the plugin was asked for the endpoint, in milliseconds; for `tortie_endpoint_ready_seconds`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elapsed_millis: Option<u64>,
}

/// `POST /v1/told`: what a plugin that ends did, for metrics.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PluginCall {
    /// `cni` or `cni-ipam`.
    pub plugin: String,
    /// `add`, `del`, `check`, `gc` or `status`.
    pub op: String,
    /// `ok` or `error`.
    pub result: String,
    /// How long it took.
    pub micros: u64,
    /// Its requests for addresses.
    #[serde(default)]
    pub ipam: Vec<PluginRequests>,
    /// Transactions that others were faster than, by kind of object.
    #[serde(default)]
    pub conflicts: std::collections::BTreeMap<String, u64>,
}

/// One request for addresses of a plugin.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PluginRequests {
    /// `assign`, `release`, `claim_block` or `release_block`.
    pub op: String,
    /// `ok`, `exhausted`, `conflict` or `error`.
    pub result: String,
    /// How many.
    pub count: u64,
    /// How long they took in all.
    pub micros: u64,
}

/// The answer to [`AppliedRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Applied {
    /// `applied`, `failed`, `frozen` or `timeout`.
    pub result: String,
    /// With `failed` and `frozen`.
    pub reason: Option<String>,
    /// The revision that the agent has applied.
    pub revision: u64,
}

/// `GET /v1/identity`: whose agent this is, for plugins, before they write anything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentIdentity {
    /// This host's name in the data model.
    pub node: String,
    /// The machine.
    pub machine: Machine,
    /// Why nothing is acted on, if so.
    pub frozen: Option<String>,
    /// Addresses that no pool gives on this host. An agent of an older version says nothing of them.
    #[serde(default)]
    pub excluded: Exclusions,
}

/// `POST /v1/bgp/reset`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ResetRequest {
    /// Session name, node name or address; none only with `all`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// All sessions.
    #[serde(default)]
    pub all: bool,
    /// `hard`, `soft-in` or `soft-out`.
    pub kind: String,
    /// What a hard reset tells the peer's operators (RFC 9003), at most 255 octets.
    #[serde(default)]
    pub text: Option<String>,
}

/// `POST /v1/bgp/drain`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DrainRequest {
    /// Session names, node names or addresses; none: all sessions, also those to come.
    #[serde(default)]
    pub peers: Vec<String>,
    /// `announce`, `withdraw` or `off`.
    pub drain: String,
}

/// `POST /v1/log/level`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LogLevelRequest {
    /// `SUBJECT:LEVEL` or `SUBJECT.peer=NAME:LEVEL`; empty: end all that were asked for.
    pub rule: String,
    /// For how long, in seconds.
    #[serde(default)]
    pub seconds: u64,
}

/// Answer to a write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ActionResult {
    /// What happened, in words.
    pub text: String,
}
