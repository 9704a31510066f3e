//! Results that controllers report to the core, and the core's record of an ended session: values that modules above make or
//! read.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use tortie_net::Cidr;

/// How the last session ended.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(in crate::agent) struct EndedSession {
    /// When, RFC 3339.
    pub(in crate::agent) time: String,
    /// Why, in words.
    pub(in crate::agent) text: String,
    /// How long it had been up.
    pub(in crate::agent) lasted: Duration,
    /// Its routes were kept.
    pub(in crate::agent) helper: bool,
}

/// Usage of one pool by all hosts. Numbers of addresses are not exact beyond 2^53.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub(in crate::agent) struct PoolUsage {
    /// Addresses of the pool.
    pub(in crate::agent) total: f64,
    /// Allocated.
    pub(in crate::agent) used: usize,
    /// Never given out unless asked for (`reservedCIDRs`).
    pub(in crate::agent) reserved: f64,
    /// Blocks of this host's and of others.
    pub(in crate::agent) owned: usize,
    /// Blocks that are there and nobody's.
    pub(in crate::agent) ownerless: usize,
    /// Blocks that are not there yet, and those that nobody owns.
    pub(in crate::agent) unclaimed: f64,
    /// Findings of the IPAM check, by kind.
    pub(in crate::agent) suspects: BTreeMap<Cow<'static, str>, usize>,
}

/// All pools, in the order of their prefixes.
pub(in crate::agent) type PoolUsages = BTreeMap<Cidr, PoolUsage>;

/// The result of one garbage collection pass.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(in crate::agent) struct GcPass {
    /// Addresses that are leaked as far as is known, and not released yet.
    pub(in crate::agent) leak_candidates: Vec<IpAddr>,
    /// Released in this pass, with the evidence for each.
    pub(in crate::agent) released: Vec<(IpAddr, String)>,
    /// Why the pass failed.
    pub(in crate::agent) error: Option<String>,
}

/// Garbage collection since the agent started.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(in crate::agent) struct GcTotals {
    /// Leaked now, and not released yet.
    pub(in crate::agent) leak_candidates: Vec<IpAddr>,
    /// Released in all.
    pub(in crate::agent) released: u64,
    /// Why the last pass failed.
    pub(in crate::agent) error: Option<String>,
}

/// The state of the tunnel address, reported by its controller.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(in crate::agent) enum TunnelAddressReport {
    /// An action that was done, in words.
    Done(String),
    /// Why the host has no tunnel address; `None`: it has one again, or needs none.
    Problem(Option<String>),
}
