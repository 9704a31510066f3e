//! The observed state: results that threads and controllers hand to the core, and the last of each as the core keeps it.

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

/// The last report of each thread and controller. A journal's checkpoint has it as it is.
#[derive(Debug, Clone, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ObservedState {
    /// Why the speaker cannot run a peer, by session.
    pub(super) peer_problems: BTreeMap<String, String>,
    /// Peers that came from ranges, by session.
    pub(super) dynamic: BTreeMap<Arc<str>, DynamicPeer>,
    pub(super) listening: BTreeSet<SocketAddr>,
    pub(super) listen_failed: BTreeMap<SocketAddr, String>,
    /// Why the tunnel device is not as wanted.
    pub(super) tunnel_problem: Option<String>,
    /// Why this host has no tunnel address.
    pub(super) tunnel_address_problem: Option<String>,
    pub(super) gc: GcTotals,
    /// `None`: the controller of another host reads the pools.
    pub(super) pool_usage: Option<PoolUsages>,
    /// Problems of threads that have no code of their own, by subject.
    pub(super) thread_problems: BTreeMap<Cow<'static, str>, Vec<String>>,
    /// Problems that the host checks found.
    pub(super) host_problems: Vec<Problem>,
    /// Next hops that the kernel does not reach.
    pub(super) unreachable: BTreeSet<ScopedAddr>,
    /// Versions of the agents of other hosts, as far as they were read.
    pub(super) versions: Vec<NodeStatus>,
    /// With a SQLite store: the hosts whose agents run.
    pub(super) present_hosts: Option<Vec<String>>,
    /// The restart of BGP is over: the initial updates of all peers are in, or there was no session to wait for.
    pub(super) restart_done: bool,
    /// What was attached to this host at the start, until it was compared with the store.
    #[serde(default)]
    pub(super) attached: Vec<AttachedRoute>,
    /// The host that the cache on disk was of, until it was compared with the store.
    #[serde(default)]
    pub(super) cache_of: Option<String>,
    /// The store has objects of Calico 3.
    #[serde(default)]
    pub(super) calico_3: bool,
    /// The networks that the host is connected to, and its addresses; `None`: the kernel thread has not reported any.
    #[serde(default)]
    pub(super) connected: Option<Vec<ConnectedNetwork>>,
    /// The store is away because its file is damaged.
    #[serde(default)]
    pub(super) store_damaged: bool,
    /// Why the cache on disk cannot be written.
    #[serde(default)]
    pub(super) cache_problem: Option<String>,
    /// Routes that the kernel refused, with the error; at most 1,000.
    pub(super) failed_routes: BTreeMap<Cidr, String>,
}

impl ObservedState {
    /// This host's options with the networks that the kernel thread reported, where blackholes are written.
    pub(super) fn node_options(&self, node: &NodeOptions, writes: bool) -> NodeOptions {
        let connected = self.connected.as_deref().filter(|_| writes).map(networks_of);
        NodeOptions { connected: connected.unwrap_or_else(|| node.connected.clone()), ..node.clone() }
    }
}

/// The networks among these: single addresses are in none.
pub(super) fn networks_of(connected: &[ConnectedNetwork]) -> Vec<Cidr> {
    let networks = connected.iter().map(|found| found.network).filter(|network| !network.is_host());
    networks.collect()
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
