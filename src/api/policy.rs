//! JSON of endpoints, policies, verdicts and differences, in the form that [`api`](crate::api::status)
//! describes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// An endpoint, without its rules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// Full store key.
    pub key: String,
    /// Name of the endpoint: `orchestrator/workload/endpoint`, or the id of a host endpoint.
    pub name: String,
    /// Kind of endpoint: `workload` or `host`.
    pub kind: String,
    /// Host of the endpoint.
    pub host: String,
    /// Interface on the host; `None` for a host endpoint that is found by its addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// `up`, `down` or `failed` as the kernel thread reports it; `active` or `inactive` if only the store is
    /// known.
    pub state: String,
    /// Reason why the endpoint is not up.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Addresses of the endpoint.
    pub addresses: Vec<String>,
    /// MAC address inside the workload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// Names of its profiles, in order of evaluation.
    pub profiles: Vec<String>,
    /// Labels of the endpoint itself, without inherited ones.
    pub labels: BTreeMap<String, String>,
    /// Number of policies that select it; `None` for an endpoint of another host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policies: Option<usize>,
    /// Store revision of the last write of its key.
    pub revision: u64,
}

/// An endpoint with the policies and profiles that its packets pass.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointDetail {
    /// The endpoint itself.
    #[serde(flatten)]
    pub endpoint: Endpoint,
    /// Floating addresses in force: internal address, external address.
    pub nats: Vec<(String, String)>,
    /// Stages that packets pass, in order; empty for an endpoint of another host.
    pub stages: Vec<Stage>,
    /// Port mappings of this host to the endpoint, such as `*:8080 -> 80/tcp`; only from the agent of the
    /// endpoint's host.
    #[serde(default)]
    pub ports: Vec<String>,
    /// Policies that may select the endpoint, but whose values could never be parsed. They have no effect.
    #[serde(default)]
    pub unreadable_policies: Vec<String>,
    /// Labels that selectors match against, including tags, ordered by name.
    #[serde(default)]
    pub effective_labels: Vec<EffectiveLabel>,
}

/// A label of an endpoint as selectors see it, with its origin.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EffectiveLabel {
    /// Name of the label.
    pub name: String,
    /// Value of the label; empty for a tag.
    pub value: String,
    /// Origin: `endpoint`, `profile NAME` or `tag of profile NAME`. If several have the label, the first in
    /// this order wins.
    pub from: String,
}

/// Endpoints that a selector matches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SelectorMatch {
    /// Canonical text of the selector.
    pub selector: String,
    /// Matching endpoints on all hosts.
    pub endpoints: Vec<Endpoint>,
    /// Members of the address set of this selector on this host; `None` if no rule here uses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set: Option<Vec<String>>,
}

/// One stage in the evaluation of an endpoint's rules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Stage {
    /// Kind of stage: `untracked`, `pre-dnat`, `tier`, `profiles`, or `forward` for a tier that applies to
    /// forwarded packets.
    pub kind: String,
    /// Direction of the packets: `inbound` (to the endpoint) or `outbound`.
    pub direction: String,
    /// Name of the tier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<String>,
    /// Policies or profiles of the stage, in order.
    pub chains: Vec<ChainRules>,
    /// Outcome for packets that no rule decides: `deny`, `pass` (the next tier or the profiles decide) or
    /// `continues`.
    pub end: String,
}

/// The rules of one policy or profile in one direction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChainRules {
    /// Name of the chain: `policy NAME`, `policy TIER/NAME` or `profile NAME`.
    pub name: String,
    /// Rules in words, numbered from 0.
    pub rules: Vec<String>,
    /// Reason why the chain fails closed and denies everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Option<String>,
}

/// A policy or a profile, without its rules.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Policy {
    /// Full store key.
    pub key: String,
    /// Kind: `policy` or `profile`; in a Calico 3 store `GlobalNetworkPolicy` or `NetworkPolicy` for a policy.
    pub kind: String,
    /// Name of the policy or profile.
    pub name: String,
    /// Tier of a policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<String>,
    /// Order within the tier; `None` sorts last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<f64>,
    /// Selector of the endpoints that the policy applies to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Types of traffic that the policy applies to: `ingress`, `egress`, `untracked`, `pre-dnat`.
    pub types: Vec<String>,
    /// Number of rules for traffic to endpoints.
    pub inbound: usize,
    /// Number of rules for traffic from endpoints.
    pub outbound: usize,
    /// Number of endpoints of this host that it applies to.
    pub endpoints: usize,
    /// Reason why the value is not, or not completely, in force.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub problem: String,
    /// Store revision of the last write of its key.
    pub revision: u64,
}

/// A policy or a profile with its rules.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyDetail {
    /// The policy or profile itself.
    #[serde(flatten)]
    pub policy: Policy,
    /// Rules for traffic to endpoints, in words, numbered from 0.
    pub inbound_rules: Vec<String>,
    /// Rules for traffic from endpoints, in words, numbered from 0.
    pub outbound_rules: Vec<String>,
    /// Names of the endpoints of this host that it applies to.
    pub acts_on: Vec<String>,
    /// Labels that a profile passes on to its endpoints.
    pub labels: BTreeMap<String, String>,
    /// Tags of a profile.
    pub tags: Vec<String>,
    /// Counters of its rules on this host; `None` if the rules are not in the kernel or the kernel was not
    /// queried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted: Option<PolicyCounted>,
}

/// Counters of the rules of a policy or profile since the rules were written to the kernel, by rule number.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyCounted {
    /// Counters of rules for traffic to endpoints; empty if no packet can reach them on this host.
    pub inbound: Vec<Counted>,
    /// Counters of rules for traffic from endpoints.
    pub outbound: Vec<Counted>,
}

/// Counters of one rule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Counted {
    /// Number of matching packets. Of a connection only the first packet counts, because later ones are
    /// accepted before policy.
    pub packets: u64,
    /// Number of octets in these packets.
    pub bytes: u64,
}

/// Rules and endpoints in `status`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyStatus {
    /// Mode of enforcement: `program`, `observe` or `off`.
    pub mode: String,
    /// Number of endpoints of this host.
    pub endpoints: usize,
    /// Number of endpoints that are not active.
    pub inactive: usize,
    /// Number of endpoints that are not in their desired state.
    pub failed: usize,
    /// Number of policies that apply to an endpoint of this host.
    pub policies: usize,
    /// Number of profiles that apply to an endpoint of this host.
    pub profiles: usize,
    /// Number of rules in these policies and profiles.
    pub rules: usize,
    /// Number of address sets that these rules use.
    pub sets: usize,
    /// True if the kernel has acknowledged all changes.
    pub in_sync: bool,
    /// Time in microseconds that the kernel took to apply the last change.
    pub apply_micros: u64,
    /// State of the kernel's table; `None` if Tortie writes no table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<TableStatus>,
}

/// The nftables table `inet tortie`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TableStatus {
    /// Number of desired chains.
    pub chains: usize,
    /// Number of desired rules.
    pub rules: usize,
    /// Number of desired sets and maps.
    pub sets: usize,
    /// Number of desired elements of sets and maps.
    pub elements: usize,
    /// Number of objects with drift that is not repaired.
    pub drifted: usize,
    /// Number of own objects that another process changed or removed since the agent started.
    pub external_changes: u64,
}

/// Description of a packet to trace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TraceQuery {
    /// Source: an endpoint by any of its names, or an address.
    pub from: String,
    /// Destination: an endpoint by any of its names, or an address.
    pub to: String,
    /// Protocol: `tcp`, `udp`, `icmp`, `icmpv6`, `sctp`, `udplite` or a number.
    pub proto: String,
    /// Destination port, for protocols with ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dport: Option<u16>,
    /// Source port, for protocols with ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sport: Option<u16>,
    /// ICMP type, with a code after a slash if needed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub icmp: Option<String>,
    /// True for a later packet of a connection that conntrack knows.
    #[serde(default)]
    pub established: bool,
}

/// Verdict on a packet, with the steps that led to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Trace {
    /// Verdict: `allow` or `deny`.
    pub verdict: String,
    /// Source of the packet.
    pub from: TraceEnd,
    /// Destination of the packet.
    pub to: TraceEnd,
    /// Protocol with port or ICMP type, such as `tcp/5432`.
    pub what: String,
    /// True if the packet belongs to a known connection; otherwise it opens a new one.
    #[serde(default)]
    pub established: bool,
    /// Rule or step that decided, in words.
    pub by: String,
    /// Evaluation on each host that was examined, in order.
    pub hosts: Vec<TraceHost>,
    /// For a denied packet: the smallest changes of labels and rules that would allow it, the closest first.
    /// Each was tested on a copy of the rules.
    #[serde(default)]
    pub closest_changes: Vec<String>,
    /// Aspects that the answer does not cover.
    pub not_looked_at: Vec<String>,
    /// Keys that may affect the verdict but whose values could never be parsed; the answer is then partial.
    #[serde(default)]
    pub unreadable: Vec<String>,
}

/// Source or destination of a packet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TraceEnd {
    /// IP address of this end.
    pub address: String,
    /// Name of the endpoint with this address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Host of the endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

/// Evaluation of a packet on one host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TraceHost {
    /// Name of the host.
    pub host: String,
    /// True for the host whose agent answers.
    pub here: bool,
    /// True if this is the tunnel packet that encapsulates the traced packet.
    pub outer: bool,
    /// Verdict of this host: `allow` or `deny`.
    pub verdict: String,
    /// Hooks and chains that the packet passes.
    pub steps: Vec<TraceStep>,
}

/// One hook or chain that a packet passes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TraceStep {
    /// Name of the step, such as `from-workload`.
    pub stage: String,
    /// Name of the endpoint whose rules were evaluated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// `allow` or `deny`; `None` if the next step decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<String>,
    /// Reason, in words.
    pub text: String,
    /// Rules that were evaluated, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<TraceRule>,
    /// True if this step decided the verdict.
    pub decisive: bool,
}

/// Result of evaluating one policy or profile.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TraceRule {
    /// Tier of the policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<String>,
    /// Name: `policy NAME`, `profile NAME`, or empty for the end of a tier or of the profiles.
    pub chain: String,
    /// Number of the matching rule, from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<usize>,
    /// The rule in words, or the reason why none matched.
    pub text: String,
    /// `allow`, `deny`, `next-tier` or `log`; `None` if no rule matched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
}

/// Body of `POST /v1/policy/dry-run`: a write to simulate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DryRunRequest {
    /// Full store key.
    pub key: String,
    /// New value; `None` deletes the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// Effects of a simulated write on this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DryRun {
    /// Full store key.
    pub key: String,
    /// Revision of the current value; `None` if the key does not exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// Policy that a staged policy stands for: the answer is what its enforcement would change. The staged
    /// policy itself is never enforced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview_of: Option<String>,
    /// True if the simulated write deletes the key.
    pub delete: bool,
    /// Names of the endpoints of this host whose rules would change.
    pub endpoints: Vec<String>,
    /// Chains whose rules would change.
    pub chains: Vec<ChainChange>,
    /// Endpoints whose list of chains would change; `name` lists the endpoints.
    pub orders: Vec<ChainChange>,
    /// Address sets that would change.
    pub sets: Vec<MemberChange>,
    /// True if settings, pools or hosts that rules depend on would change.
    pub frame: bool,
    /// Effect on existing connections; `None` if the kernel could not be queried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<Connections>,
    /// Effect on BGP sessions and routes; `None` if the write does not affect BGP, or its effect could not be
    /// determined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bgp: Option<BgpDryRun>,
    /// Aspects that the answer does not cover.
    pub not_looked_at: Vec<String>,
}

/// Effects of a simulated write on BGP sessions and routes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BgpDryRun {
    /// Sessions that the write would add.
    pub come: Vec<String>,
    /// Sessions that the write would remove.
    pub end: Vec<String>,
    /// Established sessions that the write would reset.
    pub reset: Vec<String>,
    /// Peers with changes in the routes announced to them or used from them.
    pub peers: Vec<PeerDryRun>,
}

/// Changes in the routes of one peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PeerDryRun {
    /// Name of the session.
    pub session: String,
    /// Changes in the routes announced to the peer.
    pub announced: RouteDifference,
    /// Changes in the routes used from the peer.
    pub used: RouteDifference,
}

/// Counts of prefixes gained, lost and changed, with the first of each.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RouteDifference {
    /// Number of prefixes gained.
    pub gained: usize,
    /// Number of prefixes lost.
    pub lost: usize,
    /// Number of prefixes with other attributes or another path.
    pub changed: usize,
    /// First prefixes gained.
    pub gain: Vec<String>,
    /// First prefixes lost.
    pub lose: Vec<String>,
    /// First prefixes changed.
    pub change: Vec<String>,
}

/// Changes in a list of lines, such as the rules of a chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChainChange {
    /// Name of the chain, or of the endpoints.
    pub name: String,
    /// Kind of change: `new`, `changed` or `gone`.
    pub what: String,
    /// Lines with `+`, `-` or a blank in front.
    pub lines: Vec<String>,
}

/// Changes in an address set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberChange {
    /// Selector whose addresses the set holds.
    pub selector: String,
    /// Kind of change: `new`, `changed` or `gone`.
    pub what: String,
    /// Number of members that would be added.
    pub added: usize,
    /// Number of members that would be removed.
    pub removed: usize,
    /// First members that would be added.
    pub add: Vec<String>,
    /// First members that would be removed.
    pub remove: Vec<String>,
}

/// Effect on existing connections, evaluated as if each were opened under the new rules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Connections {
    /// Number of tracked connections.
    pub tracked: usize,
    /// Number of connections that are allowed now and would be denied.
    pub refused: usize,
    /// The first of these connections, with the rule that would deny each.
    pub first: Vec<String>,
}

/// Differences between the kernel and the intent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Diff {
    /// Sections for routes, sets and rules; in observe mode also for BGP sessions.
    pub sections: Vec<DiffSection>,
    /// Seconds since the last full comparison of routes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compared_seconds: Option<u64>,
    /// Remaining seconds of the drift hold; `None` if drift is repaired automatically.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_seconds: Option<u64>,
    /// Objects that observe mode could not read, with the error.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unseen: Vec<String>,
    /// Changes by other processes in the last minutes, as `status` reports them; they were repaired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lately: Option<crate::api::problem::Problem>,
}

/// One difference between the kernel and the intent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DiffLine {
    /// `-` missing in the kernel, `~` different in the kernel, `+` in the kernel but not in the intent, `?`
    /// not compared.
    pub mark: String,
    /// Description in words.
    pub text: String,
    /// Seconds since the difference arose, if the agent received a notification of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_seconds: Option<u64>,
    /// Likely author, as far as the kernel reports one. A netlink port id is often a process id, which is a
    /// hint and no proof.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// True if a drift hold prevents the repair.
    #[serde(default)]
    pub held: bool,
}

/// Body of `POST /v1/diff`: repair drift now, or begin a drift hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DiffRequest {
    /// Duration of the drift hold in seconds, at most one hour; `None` repairs all drift now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_seconds: Option<u64>,
}

/// Differences of one kind of object in [`Diff`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DiffSection {
    /// `routes` (including routes of endpoints and their neighbour entries), `sets` or `rules`.
    pub what: String,
    /// Mode for these objects: `program`, `observe` or `off`.
    pub mode: String,
    /// Number of differences.
    pub count: usize,
    /// The first differences, up to the requested maximum.
    pub lines: Vec<DiffLine>,
    /// Reason why the objects cannot reach their desired state at all.
    #[serde(default, rename = "trouble", skip_serializing_if = "String::is_empty")]
    pub problem: String,
    /// Number of equal objects, in observe mode only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub equal: Option<usize>,
    /// Number of objects that cannot be compared, in observe mode only; they never count as equal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_judged: Option<usize>,
}

/// Dropped packets of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DropRow {
    /// Number of logged packets; at most ten per second and rule are logged.
    pub count: u64,
    /// Seconds since the first packet.
    pub first_seconds: u64,
    /// Seconds since the last packet.
    pub last_seconds: u64,
    /// Source address.
    pub from: String,
    /// Endpoint with the source address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_endpoint: Option<String>,
    /// Destination address.
    pub to: String,
    /// Endpoint with the destination address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_endpoint: Option<String>,
    /// Protocol with port or ICMP type, such as `tcp/5432`.
    pub what: String,
    /// Rule that dropped the packets.
    pub rule: String,
}

/// Body of `POST /v1/policy/live`: packets that the kernel traces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LiveTraceRequest {
    /// The packets to trace; without a source port, packets of any source port match.
    pub packet: TraceQuery,
    /// Duration in seconds, 1 to 60.
    pub seconds: u64,
}

/// Actual verdicts of traced packets, compared with the expected ones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LiveTrace {
    /// `agrees`; `differs` for at least one packet; `established` or `changed`: no packet could be compared
    /// (see [`LivePacket::result`]); `none`: no matching packet.
    pub result: String,
    /// `deny` if any packet was dropped, otherwise `allow`; `None` without a matching packet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<String>,
    /// Source of the packets.
    pub from: TraceEnd,
    /// Destination of the packets.
    pub to: TraceEnd,
    /// Protocol with port or ICMP type, such as `tcp/5432`.
    pub what: String,
    /// Maximum duration of the trace in seconds.
    pub seconds: u64,
    /// Traced packets in order, at most 32; above ten per second some are omitted.
    pub packets: Vec<LivePacket>,
    /// True if the kernel sent more trace messages than could be read, so steps are missing.
    pub lost: bool,
}

/// A traced packet with its actual and expected verdict.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LivePacket {
    /// Milliseconds from the start of the trace to the packet.
    pub after_millis: u64,
    /// Source port, for protocols with ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sport: Option<u16>,
    /// Actual verdict: `allow` or `deny`.
    pub verdict: String,
    /// Rule or chain that decided, in words.
    pub by: String,
    /// `agrees` or `differs`; `established`: the packet belongs to a connection that was allowed when it was
    /// opened; `changed`: a rule that it passed has changed since.
    pub result: String,
    /// Expected verdict for a new connection.
    pub expected: String,
    /// Rule that decides the expected verdict, in words.
    pub expected_by: String,
    /// Reason for a possible difference.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// Rules that matched, and ends of chains.
    pub steps: Vec<LiveStep>,
}

/// A rule that a packet matched, or the end of a chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LiveStep {
    /// Family and name of the table, such as `inet tortie`.
    pub table: String,
    /// Name of the chain.
    pub chain: String,
    /// Position of the rule in its chain, from 0; only for Tortie's table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<usize>,
    /// The kernel's handle of the rule; `None` at the end of a chain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handle: Option<u64>,
    /// Origin of the rule, such as `policy NAME, rule N`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub of: String,
    /// The rule in nft syntax; only for Tortie's table.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// Verdict of the rule: `accept`, `drop`, `continue`, `return`, `jump CHAIN` or `goto CHAIN`.
    pub verdict: String,
}
