//! Observed state: the last report of each thread and controller, as the core keeps it.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tortie_engine::model::AttachedRoute;
use tortie_engine::routing::{DynamicPeer, NodeOptions};
use tortie_kernel::ConnectedNetwork;
use tortie_net::{Cidr, ScopedAddr};

use crate::api::nodes::NodeStatus;
use crate::api::problem::Problem;

/// The last report of each thread and controller. Part of a journal's checkpoint.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ObservedState {
    /// Reasons why the speaker cannot run a peer, by session.
    pub(super) peer_problems: BTreeMap<String, String>,
    /// Dynamic peers by session.
    pub(super) dynamic: BTreeMap<Arc<str>, DynamicPeer>,
    pub(super) listening: BTreeSet<SocketAddr>,
    pub(super) listen_failed: BTreeMap<SocketAddr, String>,
    /// Reason why the tunnel device differs from the intent.
    pub(super) tunnel_problem: Option<String>,
    /// Reasons why this host has no tunnel address, by kind of tunnel.
    pub(super) tunnel_address_problems: BTreeMap<String, String>,
    pub(super) gc: GcTotals,
    /// Usage of all pools; `None` if the controller of another host reads it.
    pub(super) pool_usage: Option<PoolUsages>,
    /// Problems of threads without a code of their own, by subject.
    pub(super) thread_problems: BTreeMap<Cow<'static, str>, Vec<String>>,
    /// Problems that the host checks found.
    pub(super) host_problems: Vec<Problem>,
    /// Next hops that the kernel cannot reach.
    pub(super) unreachable: BTreeSet<ScopedAddr>,
    /// Status of other hosts' agents, as far as it was read.
    pub(super) versions: Vec<NodeStatus>,
    /// With a SQLite store: hosts with a running agent.
    pub(super) present_hosts: Option<Vec<String>>,
    /// The graceful restart is over: the initial updates of all peers arrived, or there was no session to
    /// wait for.
    pub(super) restart_done: bool,
    /// Endpoint routes found at start; emptied after the comparison with the store.
    #[serde(default)]
    pub(super) attached: Vec<AttachedRoute>,
    /// Host to which the cache on disk belongs; `None` after the comparison with the store.
    #[serde(default)]
    pub(super) cache_of: Option<String>,
    /// The store contains objects of Calico 3.
    #[serde(default)]
    pub(super) calico_3: bool,
    /// Connected networks and addresses of the host; `None` before the kernel thread has reported them.
    #[serde(default)]
    pub(super) connected: Option<Vec<ConnectedNetwork>>,
    /// The store is unavailable because its file is damaged.
    #[serde(default)]
    pub(super) store_damaged: bool,
    /// Reason why the cache on disk cannot be written.
    #[serde(default)]
    pub(super) cache_problem: Option<String>,
    /// Reason why the file with the MTU of workloads cannot be written.
    #[serde(default)]
    pub(super) mtu_file_problem: Option<String>,
    /// Routes that the kernel rejected, with the error; at most 1,000.
    pub(super) failed_routes: BTreeMap<Cidr, String>,
}

impl ObservedState {
    /// Returns this host's options with the connected networks that the kernel thread reported, if blackholes
    /// are written.
    pub(super) fn node_options(&self, node: &NodeOptions, writes: bool) -> NodeOptions {
        let connected = self.connected.as_deref().filter(|_| writes).map(networks_of);
        NodeOptions { connected: connected.unwrap_or_else(|| node.connected.clone()), ..node.clone() }
    }
}

/// Returns the networks; single addresses are not in one.
pub(super) fn networks_of(connected: &[ConnectedNetwork]) -> Vec<Cidr> {
    let networks = connected.iter().map(|found| found.network).filter(|network| !network.is_host());
    networks.collect()
}

/// Usage of one pool by all hosts. Address counts are inexact beyond 2^53.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub(in crate::agent) struct PoolUsage {
    /// Number of addresses in the pool.
    pub(in crate::agent) total: f64,
    /// Number of allocated addresses.
    pub(in crate::agent) used: usize,
    /// Number of addresses allocated only on explicit request (`reservedCIDRs`).
    pub(in crate::agent) reserved: f64,
    /// Number of blocks with an affinity of any host.
    pub(in crate::agent) owned: usize,
    /// Number of existing blocks without an affinity.
    pub(in crate::agent) ownerless: usize,
    /// Number of blocks that do not exist yet or have no affinity.
    pub(in crate::agent) unclaimed: f64,
    /// Findings of the IPAM check, by kind.
    pub(in crate::agent) suspects: BTreeMap<Cow<'static, str>, usize>,
}

/// Usage of all pools by prefix.
pub(in crate::agent) type PoolUsages = BTreeMap<Cidr, PoolUsage>;

/// Result of one garbage collection pass.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(in crate::agent) struct GcPass {
    /// Addresses that are probably leaked and not released yet.
    pub(in crate::agent) leak_candidates: Vec<IpAddr>,
    /// Addresses released in this pass, with the evidence for each.
    pub(in crate::agent) released: Vec<(IpAddr, String)>,
    /// Reason for a failed pass.
    pub(in crate::agent) error: Option<String>,
}

/// Totals of garbage collection since the agent started.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(in crate::agent) struct GcTotals {
    /// Addresses that are leaked now and not released yet.
    pub(in crate::agent) leak_candidates: Vec<IpAddr>,
    /// Number of released addresses.
    pub(in crate::agent) released: u64,
    /// Reason why the last pass failed.
    pub(in crate::agent) error: Option<String>,
}

/// State of the tunnel address, reported by its controller.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(in crate::agent) enum TunnelAddressReport {
    /// Description of an action that was carried out.
    Done(String),
    /// Reason why the host has no address for this kind of tunnel; `None` if it has one or needs none.
    Problem(String, Option<String>),
}
