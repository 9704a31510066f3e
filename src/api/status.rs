//! JSON of `status` and other answers of the agent, version `tortie/v1`: camelCase names, lists present even
//! if empty, times in RFC 3339, durations in seconds.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::bgp::{BgpRoute, PeerRange};
use super::machine::Machine;
use super::policy::PolicyStatus;
use super::problem::Problem;
use tortie_engine::ipam::Exclusions;

/// Version of the API in every answer.
pub const API_VERSION: &str = "tortie/v1";

/// Body of every error answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiError {
    /// Stable code, for programs: `not-found`, `invalid`, `busy` and others.
    pub code: String,
    /// Text for people, with the next step.
    pub text: String,
}

/// A list of items with the common members of an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct List<T> {
    /// Version of the API, see [`API_VERSION`].
    pub api_version: String,
    /// Kind of the list, such as `BGPPeerList`.
    pub kind: String,
    /// Host whose agent answers.
    pub node: String,
    /// Store revision on which the answer is based.
    pub revision: u64,
    /// Time of the answer.
    pub time: String,
    /// True if more items follow.
    #[serde(default)]
    pub more: bool,
    /// Value of `after` that requests the next page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// Items of the list.
    pub items: Vec<T>,
}

/// State of the agent and the host, for one screen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// Version of the API, see [`API_VERSION`].
    pub api_version: String,
    /// Kind of the answer: `Status`.
    pub kind: String,
    /// Name of the host.
    pub node: String,
    /// Version of the agent.
    pub version: String,
    /// Time of the answer.
    pub time: String,
    /// Seconds since the agent started.
    pub uptime_seconds: u64,
    /// True if the agent is ready: the first kernel state is complete, and the sessions were established or
    /// their time limit passed.
    pub ready: bool,
    /// Verdict: `ready`, `degraded`, `starting`, `frozen` or `not-ready`.
    pub verdict: String,
    /// Verdict in one sentence.
    pub summary: String,
    /// State of BGP sessions.
    pub bgp: BgpStatus,
    /// Counts of kernel routes.
    pub routes: RouteStatus,
    /// Blocks of this host.
    pub blocks: Vec<BlockStatus>,
    /// Pools, with the usage by this host.
    #[serde(default)]
    pub pools: Vec<PoolStatus>,
    /// State of packet filter rules and endpoints.
    #[serde(default)]
    pub policy: PolicyStatus,
    /// State of the store.
    pub store: StoreStatus,
    /// State of the kernel.
    pub dataplane: DataplaneStatus,
    /// State of BIRD and Felix, in observe mode.
    #[serde(default, rename = "beside", skip_serializing_if = "Option::is_none")]
    pub observed: Option<crate::api::observe::ObserveStatus>,
    /// Privileges that the agent's process has given up.
    #[serde(default)]
    pub protections: ProtectionStatus,
    /// Problems with their next steps.
    pub problems: Vec<Problem>,
    /// Notes: correct but unexpected conditions.
    pub notes: Vec<Problem>,
}

/// Privileges that the agent's process has given up, to limit the damage if it is compromised.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProtectionStatus {
    /// Linux capabilities that the process has kept.
    pub capabilities: Vec<String>,
    /// True if programs that it executes gain no privileges (prctl(2), no_new_privs).
    pub no_new_privs: bool,
    /// True if processes of the same user may read its memory, and a crash may write a core file.
    pub dumpable: bool,
    /// Restriction of the files that it may open.
    pub landlock: Landlock,
    /// ABI version of Landlock in this kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub landlock_abi: Option<u32>,
    /// True if a helper process enters network namespaces, so that the agent needs no privilege for that.
    pub helper: bool,
}

impl ProtectionStatus {
    /// Formats the privileges in one line.
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

/// State of landlock(7), which restricts the files that the agent may open.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Landlock {
    /// The agent may open only the files that it uses.
    Enforced,
    /// As `Enforced`, but this kernel lacks some of the access rights.
    Partial,
    /// The kernel has no Landlock.
    Unsupported,
    /// The kernel rejected the rules.
    Failed,
    /// Disabled by `--no-sandbox`, or an agent without support.
    #[default]
    Off,
}

impl Landlock {
    /// Describes the state in words.
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
    /// Local AS number.
    #[serde(rename = "as")]
    pub asn: u32,
    /// BGP identifier.
    pub router_id: String,
    /// Addresses and ports on which sessions are accepted.
    pub listen: Vec<String>,
    /// Established and configured sessions of the mesh.
    pub mesh: UpCount,
    /// Established and configured sessions with explicit peers (global and node).
    pub peers: UpCount,
    /// Dynamic peers: established, and all.
    #[serde(default)]
    pub dynamic: UpCount,
    /// Address ranges from which sessions of dynamic peers are accepted.
    #[serde(default)]
    pub ranges: Vec<PeerRange>,
    /// State of graceful restart: `idle`, `restarting` or `stopping`.
    pub graceful_restart: String,
    /// Number of best paths that export policy withholds now, by gate, summed over update groups.
    #[serde(default)]
    pub withheld: BTreeMap<String, u64>,
    /// Number of routes that import policy rejected since the agent started, by reason.
    #[serde(default)]
    pub refused: BTreeMap<String, u64>,
    /// Peers and ranges of other ASes without `max_prefixes`: only memory limits the number of prefixes that
    /// they may announce.
    #[serde(default)]
    pub without_prefix_limit: Vec<String>,
}

/// Established sessions of all configured ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UpCount {
    /// Number of established sessions.
    pub up: usize,
    /// Number of configured sessions.
    pub of: usize,
}

/// Kernel routes in `status`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RouteStatus {
    /// Number of routes that the kernel acknowledged.
    pub installed: usize,
    /// Number of routes not yet acknowledged.
    pub pending: usize,
    /// Number of routes that the kernel rejected.
    pub failed: usize,
    /// Number of desired routes that are withheld (next hop unresolved, no tunnel).
    pub withheld: usize,
    /// Number of routes that were retained over the restart and not yet learned again.
    pub stale: usize,
    /// Number of routes that differ from the intent (observe mode, or repair in progress).
    pub drifted: usize,
    /// Number of routes of other programs in the main table.
    pub foreign: usize,
    /// Number of changes by other processes to own routes since the agent started.
    pub external_changes: u64,
    /// Number of lost netlink notifications (overruns) since the agent started.
    pub overruns: u64,
}

/// A block in `status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BlockStatus {
    /// Prefix of the block.
    pub cidr: String,
    /// Kind of block: `own-block`, `borrowed` or `floating`.
    pub kind: String,
    /// True if the block is handed to the speaker for announcement.
    pub announced: bool,
    /// Store key of the block.
    pub key: String,
}

/// A pool in `status`, with the usage by this host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolStatus {
    /// Prefix of the pool, or `no pool` for blocks outside of all pools.
    pub pool: String,
    /// Number of blocks of this host.
    pub blocks: usize,
    /// Number of addresses in these blocks.
    pub addresses: u64,
    /// Number of allocated addresses.
    pub used: u64,
    /// Number of addresses that can be allocated.
    pub free: u64,
    /// Number of addresses that other hosts allocated in these blocks (borrowed).
    pub borrowed: u64,
    /// Number of allocated addresses that appear leaked: no endpoint or tunnel uses them.
    pub suspect: u64,
}

/// The store in `status`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoreStatus {
    /// Address of the store, without secrets.
    pub store: String,
    /// True if the store answers now.
    pub connected: bool,
    /// Last revision that the agent applied.
    pub revision: u64,
    /// Seconds since the last confirmation that the agent's copy is current.
    pub lag_seconds: f64,
    /// Reason why the store is unavailable.
    pub away: Option<String>,
    /// True if the agent runs on the cache, the last good state on disk.
    pub from_cache: bool,
    /// Reason for the freeze: the store changes, but the intent does not.
    pub frozen: Option<String>,
    /// Values that cannot be parsed; the last valid value of each stays in force.
    pub invalid: Vec<InvalidObject>,
    /// Number of keys that the agent holds.
    pub keys: usize,
}

/// A value that cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InvalidObject {
    /// Full store key.
    pub key: String,
    /// Error and its position in the value.
    pub error: String,
    /// Store revision of the invalid write.
    pub revision: u64,
    /// True if an earlier value is in force; false if no value could ever be parsed.
    #[serde(default)]
    pub last_good: bool,
    /// For a policy without effect: the endpoints of this host that it was possibly meant for.
    #[serde(default)]
    pub may_act_on: Vec<String>,
}

/// The kernel in `status`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DataplaneStatus {
    /// Mode of the kernel thread: `program`, `observe` or `off`.
    pub mode: String,
    /// Routing protocol number of own routes.
    pub protocol: u8,
    /// Representation of next hops: `nexthop-objects` or `plain-gateways`.
    pub nexthops: String,
    /// State of the tunnel: `none`, `up` or the error.
    pub tunnel: String,
    /// Seconds since the last full comparison with the kernel.
    pub compared_seconds: Option<u64>,
}

/// A prefix in the kernel's tables.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KernelRouteRow {
    /// Destination prefix.
    pub prefix: String,
    /// Kind of route: `learned`, `vxlan`, `ipip`, `gateway` or `blackhole`.
    pub kind: String,
    /// State of the route: `installed`, `pending`, `failed`, `withheld`, `stale` or `foreign`.
    pub state: String,
    /// Next hops, such as `via 192.0.2.12 dev eth0`.
    pub via: Vec<String>,
    /// For `installed`, the rule that produced the route (`own-block`, `plain`, `ipip-cross-subnet`, ...);
    /// otherwise the obstacle.
    pub reason: String,
    /// Id of the store or BGP change that caused the route, such as `c-7f31`; empty for a route from before
    /// the start.
    pub change: String,
}

/// Routing decision for packets to one address.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RouteGet {
    /// The requested address.
    pub address: String,
    /// Longest match in the BGP table.
    pub bgp: Option<BgpRoute>,
    /// State of that prefix in the kernel thread.
    pub kernel: Option<KernelRouteRow>,
    /// Result of the kernel's own route lookup.
    #[serde(rename = "kernelSays")]
    pub kernel_lookup: String,
}

/// One entry of the flight recorder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// Sequence number; it grows by one with every entry.
    pub seq: u64,
    /// Time of the entry.
    pub time: String,
    /// Id of the change that the entry belongs to, such as `c-7f31`.
    pub change: String,
    /// Part of the agent: `store`, `routing`, `policy`, `rib`, `kernel` or `agent`.
    pub plane: String,
    /// Kind of change: `+` (added), `-` (removed), `~` (changed) or `!` (error).
    pub mark: String,
    /// Subject: a key, a prefix or a peer.
    pub subject: String,
    /// Description in words.
    pub text: String,
    /// Store revision; 0 if none applies.
    pub revision: u64,
    /// Kinds for filters: `bgp`, `route`, `ipam`, `policy`, `store`, `kernel`, `agent`; an entry may have
    /// several.
    #[serde(default)]
    pub kinds: Vec<String>,
    /// Session that the entry concerns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// Prefix that the entry concerns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
}

/// Body of `POST /v1/applied`. Unknown members are ignored, because plugin and agent may have different
/// versions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AppliedRequest {
    /// Store key of the endpoint.
    pub key: String,
    /// Store revision of the endpoint.
    pub revision: u64,
    /// Maximum wait in milliseconds.
    #[serde(default)]
    pub wait_millis: u64,
    /// Milliseconds since the plugin was called for the endpoint; for `tortie_endpoint_ready_seconds`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elapsed_millis: Option<u64>,
}

/// Body of `POST /v1/told`: the result of a finished plugin call, for metrics.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PluginCall {
    /// Plugin: `cni` or `cni-ipam`.
    pub plugin: String,
    /// Operation: `add`, `del`, `check`, `gc` or `status`.
    pub op: String,
    /// Result: `ok` or `error`.
    pub result: String,
    /// Duration in microseconds.
    pub micros: u64,
    /// Allocation requests of the call.
    #[serde(default)]
    pub ipam: Vec<PluginRequests>,
    /// Number of transactions that failed because of a concurrent write, by kind of object.
    #[serde(default)]
    pub conflicts: std::collections::BTreeMap<String, u64>,
}

/// Allocation requests of one kind and result in a plugin call.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PluginRequests {
    /// Operation of IPAM: `assign`, `release`, `claim_block` or `release_block`.
    pub op: String,
    /// Result: `ok`, `exhausted`, `conflict` or `error`.
    pub result: String,
    /// Number of requests.
    pub count: u64,
    /// Total duration in microseconds.
    pub micros: u64,
}

/// The answer to [`AppliedRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Applied {
    /// Result: `applied`, `failed`, `frozen` or `timeout`.
    pub result: String,
    /// Reason, with `failed` and `frozen`.
    pub reason: Option<String>,
    /// Revision that the agent has applied.
    pub revision: u64,
}

/// Answer of `GET /v1/identity`, which a plugin requests before it writes: the host and machine of the agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentIdentity {
    /// Name of the host in the data model.
    pub node: String,
    /// Machine that runs the agent.
    pub machine: Machine,
    /// Reason for a freeze, if the agent is frozen.
    pub frozen: Option<String>,
    /// Addresses that are never allocated on this host, whatever the pools contain. An older agent does not
    /// list any.
    #[serde(default)]
    pub excluded: Exclusions,
}

/// Body of `POST /v1/bgp/reset`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ResetRequest {
    /// Session name, node name or address; `None` only with `all`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<String>,
    /// True to reset all sessions.
    #[serde(default)]
    pub all: bool,
    /// Kind of reset: `hard`, `soft-in` or `soft-out`.
    pub kind: String,
    /// Shutdown communication of a hard reset (RFC 9003), at most 255 octets.
    #[serde(default)]
    pub text: Option<String>,
}

/// Body of `POST /v1/bgp/drain`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DrainRequest {
    /// Session names, node names or addresses; an empty list means all sessions, including future ones.
    #[serde(default)]
    pub peers: Vec<String>,
    /// Step: `announce`, `withdraw` or `off`.
    pub drain: String,
}

/// Body of `POST /v1/log/level`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LogLevelRequest {
    /// `SUBJECT:LEVEL` or `SUBJECT.peer=NAME:LEVEL`; empty ends all temporary levels.
    pub rule: String,
    /// Duration in seconds.
    #[serde(default)]
    pub seconds: u64,
}

/// Answer to a request that changes state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ActionResult {
    /// Description of the result.
    pub text: String,
}
