//! The JSON of endpoints, policies and verdicts: the same form as in [`api`](super::api).

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
}
