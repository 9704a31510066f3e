//! The JSON of endpoints, policies and verdicts: the same form as in [`api`](crate::api::status).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// An endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// Its full key.
    pub key: String,
    /// `orchestrator/workload/endpoint`, or the id of a host endpoint.
    pub name: String,
    /// `workload` or `host`.
    pub kind: String,
    /// Its host.
    pub host: String,
    /// The interface on the host; none: whichever has one of the addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// `up`, `down` or `failed` as the kernel thread says; `active` or `inactive` where only the store is known.
    pub state: String,
    /// Why it is not up.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Its addresses.
    pub addresses: Vec<String>,
    /// The MAC address inside the workload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<String>,
    /// Its profiles, in order.
    pub profiles: Vec<String>,
    /// Its own labels.
    pub labels: BTreeMap<String, String>,
    /// How many policies select it; none: it is another host's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policies: Option<usize>,
    /// Revision of the last write of its key.
    pub revision: u64,
}

/// An endpoint of this host with what its packets pass.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointDetail {
    /// The endpoint.
    #[serde(flatten)]
    pub endpoint: Endpoint,
    /// Floating addresses that are in force: inside, outside.
    pub nats: Vec<(String, String)>,
    /// What packets pass, in order; empty for another host's.
    pub stages: Vec<Stage>,
    /// Ports of this host that lead to it: `*:8080 -> 80/tcp`; of the running agent's host only.
    #[serde(default)]
    pub ports: Vec<String>,
    /// Policies that may be for it, no value of which could ever be read: they act on nothing.
    #[serde(default)]
    pub unreadable_policies: Vec<String>,
    /// The labels that selectors see, tags among them, by name.
    #[serde(default)]
    pub effective_labels: Vec<EffectiveLabel>,
}

/// A label that selectors see on an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EffectiveLabel {
    /// Its name.
    pub name: String,
    /// Its value; a tag has the empty one.
    pub value: String,
    /// `endpoint`, `profile NAME` or `tag of profile NAME`: the first place that has it counts.
    pub from: String,
}

/// What a selector selects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SelectorMatch {
    /// The selector in its canonical text.
    pub selector: String,
    /// The endpoints of all hosts that it selects.
    pub endpoints: Vec<Endpoint>,
    /// What the address set of this selector holds on this host; none: no rule here uses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub set: Option<Vec<String>>,
}

/// A part of the way through an endpoint's rules.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Stage {
    /// `untracked`, `pre-dnat`, `tier` or `profiles`.
    pub kind: String,
    /// `inbound` or `outbound`.
    pub direction: String,
    /// The tier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<String>,
    /// Policies or profiles, in order.
    pub chains: Vec<ChainRules>,
    /// What becomes of a packet that no rule decides: `deny` or `goes on`.
    pub end: String,
}

/// The rules of one policy or profile in one direction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChainRules {
    /// `policy NAME`, `policy TIER/NAME` or `profile NAME`.
    pub name: String,
    /// Its rules in words, counted from 0.
    pub rules: Vec<String>,
    /// Why it denies everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Option<String>,
}

/// A policy or a profile.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Policy {
    /// Its full key.
    pub key: String,
    /// `policy` or `profile`.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its tier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<String>,
    /// Its place in the tier; none: last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<f64>,
    /// Whom it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// `ingress`, `egress`, `untracked`, `pre-dnat`: what it governs.
    pub types: Vec<String>,
    /// Rules for traffic to endpoints.
    pub inbound: usize,
    /// Rules for traffic from endpoints.
    pub outbound: usize,
    /// On how many endpoints of this host it acts.
    pub endpoints: usize,
    /// Why its value is not, or not wholly, in force.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub problem: String,
    /// Revision of the last write of its key.
    pub revision: u64,
}

/// A policy or a profile with its rules.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyDetail {
    /// The policy.
    #[serde(flatten)]
    pub policy: Policy,
    /// Its rules for traffic to endpoints, in words, counted from 0.
    pub inbound_rules: Vec<String>,
    /// Its rules for traffic from endpoints.
    pub outbound_rules: Vec<String>,
    /// The endpoints of this host that it acts on, by name.
    pub acts_on: Vec<String>,
    /// Labels that a profile's endpoints inherit.
    pub labels: BTreeMap<String, String>,
    /// Tags of a profile.
    pub tags: Vec<String>,
    /// What its rules counted on this host; none: they are not in the kernel, or nobody asked it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counted: Option<PolicyCounted>,
}

/// What the rules of a policy or a profile counted since they were written to the kernel, by their number.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyCounted {
    /// Those for traffic to endpoints; empty when no packet can meet them here.
    pub inbound: Vec<Counted>,
    /// Those for traffic from endpoints.
    pub outbound: Vec<Counted>,
}

/// What one rule counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Counted {
    /// Packets that it matched: of a connection the first, as the rest is let through before policy.
    pub packets: u64,
    /// Their octets.
    pub bytes: u64,
}

/// What `status` says of rules and endpoints.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyStatus {
    /// `program`, `observe` or `off`.
    pub mode: String,
    /// Endpoints of this host.
    pub endpoints: usize,
    /// Those that are not active.
    pub inactive: usize,
    /// Those that are not as they should be.
    pub failed: usize,
    /// Policies that act on an endpoint here.
    pub policies: usize,
    /// Profiles that act on an endpoint here.
    pub profiles: usize,
    /// Rules of those.
    pub rules: usize,
    /// Address sets that those use.
    pub sets: usize,
    /// Everything that was told is acknowledged.
    pub in_sync: bool,
    /// How long the kernel took for the last change, in microseconds.
    pub apply_micros: u64,
    /// The kernel's table; none: nothing is written to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<TableStatus>,
}

/// The table `inet tortie`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TableStatus {
    /// Chains wanted.
    pub chains: usize,
    /// Rules wanted.
    pub rules: usize,
    /// Sets and maps wanted.
    pub sets: usize,
    /// Their elements.
    pub elements: usize,
    /// Objects that differ and are not repaired.
    pub drifted: usize,
    /// Own objects that somebody else changed or removed, since the start.
    pub external_changes: u64,
}

/// Which packet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TraceQuery {
    /// An endpoint by any of its names, or an address.
    pub from: String,
    /// Likewise.
    pub to: String,
    /// `tcp`, `udp`, `icmp`, `icmpv6`, `sctp`, `udplite` or a number.
    pub proto: String,
    /// The destination port, of protocols that have them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dport: Option<u16>,
    /// The source port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sport: Option<u16>,
    /// ICMP type, and code after a slash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub icmp: Option<String>,
    /// A later packet of a connection that connection tracking knows.
    #[serde(default)]
    pub established: bool,
}

/// What becomes of a packet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Trace {
    /// `allow` or `deny`.
    pub verdict: String,
    /// Where it comes from.
    pub from: TraceEnd,
    /// Where it goes.
    pub to: TraceEnd,
    /// Protocol with port or type: `tcp/5432`.
    pub what: String,
    /// It belongs to a known connection; else it is the first of a new one.
    #[serde(default)]
    pub established: bool,
    /// Who decided, in words.
    pub by: String,
    /// Its way through each host that was looked at, in order.
    pub hosts: Vec<TraceHost>,
    /// Of a denied packet: the changes of labels and rules that are closest to letting it pass, nearest first. Each was tried
    /// on a copy of the rules.
    #[serde(default)]
    pub closest_changes: Vec<String>,
    /// What this answer does not know.
    pub not_looked_at: Vec<String>,
    /// Keys that may decide about the packet, no value of which could ever be read: the answer is partial.
    #[serde(default)]
    pub unreadable: Vec<String>,
}

/// One end of a packet's way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TraceEnd {
    /// Its address.
    pub address: String,
    /// Its endpoint, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// The host of the endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

/// The way through one host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TraceHost {
    /// The host.
    pub host: String,
    /// It is the host that answers.
    pub here: bool,
    /// This is the packet that tunnels the one asked about.
    pub outer: bool,
    /// `allow` or `deny`.
    pub verdict: String,
    /// The places on the way.
    pub steps: Vec<TraceStep>,
}

/// A place on the way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TraceStep {
    /// Such as `from-workload`.
    pub stage: String,
    /// Whose rules they are, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// `allow`, `deny`; none: left to the next place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<String>,
    /// Why, in words.
    pub text: String,
    /// The rules that were asked, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<TraceRule>,
    /// This place decided.
    pub decisive: bool,
}

/// A policy or profile that was asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TraceRule {
    /// The tier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<String>,
    /// `policy NAME`, `profile NAME`, or empty for the end of a tier or of the profiles.
    pub chain: String,
    /// The rule that matched, counted from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<usize>,
    /// The rule in words, or what happened instead.
    pub text: String,
    /// `allow`, `deny`, `next-tier` or `log`; none: it did not match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
}

/// `POST /v1/policy/dry-run`: what a value would change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DryRunRequest {
    /// The full key.
    pub key: String,
    /// The value; none: the key is deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// What a value would change on this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DryRun {
    /// The full key.
    pub key: String,
    /// The revision of what stands there now; none: nothing does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// It would be deleted.
    pub delete: bool,
    /// Endpoints of this host whose rules would be others, by name.
    pub endpoints: Vec<String>,
    /// Chains of rules that would be others.
    pub chains: Vec<ChainChange>,
    /// Which chains endpoints would pass, where that would differ; `name` lists the endpoints.
    pub orders: Vec<ChainChange>,
    /// Address sets that would be others.
    pub sets: Vec<MemberChange>,
    /// Settings, pools or hosts that rules depend on would be others.
    pub frame: bool,
    /// Connections of now; none: nobody could ask the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<Connections>,
    /// Sessions and routes of BGP; none: it does not concern them, or they could not be judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bgp: Option<BgpDryRun>,
    /// What this answer does not know.
    pub not_looked_at: Vec<String>,
}

/// Sessions and routes of BGP that would be others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BgpDryRun {
    /// Sessions that would be configured and are not.
    pub come: Vec<String>,
    /// Sessions that would end and not come back.
    pub end: Vec<String>,
    /// Sessions that are up and would be reset.
    pub reset: Vec<String>,
    /// What peers are sent and what is used of theirs, where it would be another.
    pub peers: Vec<PeerDryRun>,
}

/// Routes to and from one peer that would be others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PeerDryRun {
    /// The session.
    pub session: String,
    /// What it is sent.
    pub announced: RouteDifference,
    /// What is used of what it sent.
    pub used: RouteDifference,
}

/// How many prefixes would be gained, lost, and have other attributes, with the first of each.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RouteDifference {
    /// How many come.
    pub gained: usize,
    /// How many go.
    pub lost: usize,
    /// How many have other attributes or another path.
    pub changed: usize,
    /// The first of those that come.
    pub gain: Vec<String>,
    /// The first of those that go.
    pub lose: Vec<String>,
    /// The first of those that change.
    pub change: Vec<String>,
}

/// What would become of a list of lines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChainChange {
    /// Whose lines.
    pub name: String,
    /// `new`, `changed` or `gone`.
    pub what: String,
    /// The lines, with `+`, `-` or a blank in front.
    pub lines: Vec<String>,
}

/// What would become of an address set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberChange {
    /// Whose addresses it holds.
    pub selector: String,
    /// `new`, `changed` or `gone`.
    pub what: String,
    /// How many members would come.
    pub added: usize,
    /// How many would go.
    pub removed: usize,
    /// The first of those that would come.
    pub add: Vec<String>,
    /// The first of those that would go.
    pub remove: Vec<String>,
}

/// What would become of the connections that there are, were they opened then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Connections {
    /// How many are tracked.
    pub tracked: usize,
    /// How many are allowed now and would be refused.
    pub refused: usize,
    /// The first of those, with what would refuse them.
    pub first: Vec<String>,
}

/// How the kernel differs from what is wanted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Diff {
    /// Routes, sets and rules, each by itself; of an agent that observes sessions, too.
    pub sections: Vec<DiffSection>,
    /// How long the last full comparison of routes is ago.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compared_seconds: Option<u64>,
    /// How long differences are still left for study; none: they are repaired by themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_seconds: Option<u64>,
    /// What an agent that observes could not look at, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unseen: Vec<String>,
    /// What others changed in the last minutes, as `status` tells it; it was put right again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lately: Option<crate::api::problem::Problem>,
}

/// One difference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DiffLine {
    /// `-` missing in the kernel, `~` different there, `+` there and not wanted, `?` not judged.
    pub mark: String,
    /// In words.
    pub text: String,
    /// How long ago it came about, as far as that was heard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_seconds: Option<u64>,
    /// Who did it, as far as the kernel tells: a netlink port is often the number of the process, which is a hint and no proof.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// It is left for study.
    #[serde(default)]
    pub held: bool,
}

/// `POST /v1/diff`: repair now, or leave differences for study.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DiffRequest {
    /// For so long what others change is left as it is, at most an hour; none: everything is repaired now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_seconds: Option<u64>,
}

/// One kind of objects in [`Diff`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DiffSection {
    /// `routes` (those of endpoints and their neighbours included), `sets` or `rules`.
    pub what: String,
    /// `program`, `observe` or `off`.
    pub mode: String,
    /// How many differ.
    pub count: usize,
    /// The first of them.
    pub lines: Vec<DiffLine>,
    /// Why they cannot be as wanted at all.
    #[serde(default, rename = "trouble", skip_serializing_if = "String::is_empty")]
    pub problem: String,
    /// Of an agent that observes: how many are as wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub equal: Option<usize>,
    /// Of an agent that observes: how many cannot be known; they never count as equal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_judged: Option<usize>,
}

/// Packets of one kind that rules dropped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DropRow {
    /// How many were logged: at most ten a second and rule are.
    pub count: u64,
    /// How long the first one is ago.
    pub first_seconds: u64,
    /// How long the last one is ago.
    pub last_seconds: u64,
    /// Where they came from.
    pub from: String,
    /// Who has that address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_endpoint: Option<String>,
    /// Where they went.
    pub to: String,
    /// Who has that address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_endpoint: Option<String>,
    /// Protocol with port or ICMP type: `tcp/5432`.
    pub what: String,
    /// The rule that dropped them.
    pub rule: String,
}

/// `POST /v1/policy/live`: which packets the kernel traces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LiveTraceRequest {
    /// The packets; without a source port those of any.
    pub packet: TraceQuery,
    /// For how long: 1 to 60 seconds.
    pub seconds: u64,
}

/// What became of packets, beside what should have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LiveTrace {
    /// `agrees`; `differs`: for one packet at least; `established`, `changed`: nothing could be compared (as of a packet);
    /// `none`: no such packet came.
    pub result: String,
    /// `deny` when a packet was dropped, else `allow`; none: no such packet came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<String>,
    /// Where the packets come from.
    pub from: TraceEnd,
    /// Where they go.
    pub to: TraceEnd,
    /// Protocol with port or type: `tcp/5432`.
    pub what: String,
    /// For how long the trace was armed at most.
    pub seconds: u64,
    /// At most 32, in order; of more than ten a second some are left out.
    pub packets: Vec<LivePacket>,
    /// The kernel told more than could be read: steps are missing.
    pub lost: bool,
}

/// A packet that was traced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LivePacket {
    /// When it came, in milliseconds from the beginning of the trace.
    pub after_millis: u64,
    /// Its source port, of protocols that have them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sport: Option<u16>,
    /// `allow`, `deny`: what became of it.
    pub verdict: String,
    /// Who decided, in words.
    pub by: String,
    /// `agrees`, `differs`; `established`: it is of a connection that was allowed when it began; `changed`: a rule that it
    /// met is another by now.
    pub result: String,
    /// What should become of a new connection.
    pub expected: String,
    /// By whose decision, in words.
    pub expected_by: String,
    /// Why it may differ.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// The rules that matched, and the ends of chains.
    pub steps: Vec<LiveStep>,
}

/// A rule that a packet met, or the end of a chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LiveStep {
    /// Family and name: `inet tortie`.
    pub table: String,
    /// The chain.
    pub chain: String,
    /// The place of the rule in the chain, counted from 0, of our table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<usize>,
    /// The kernel's number of the rule; none: the end of the chain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub handle: Option<u64>,
    /// What the rule stands for: `policy NAME, rule N`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub of: String,
    /// The rule as nft writes it, of our table.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// `accept`, `drop`, `continue`, `return`, `jump CHAIN`, `goto CHAIN`.
    pub verdict: String,
}
