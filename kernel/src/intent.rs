//! Intents for the kernel, sent by the agent's core.

use std::collections::BTreeMap;
use std::sync::Arc;

use tortie_config::key::EndpointKey;
use tortie_net::Cidr;

use tortie_engine::policy::{Globals, RulesetDelta};
use tortie_engine::routing::{
    ChangeId, EndpointRoutings, RoutingView, StoreRoutes, TunnelIntent, VxlanIntent,
};

/// Desired kernel state besides learned routes. The latest intent applies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelIntent {
    /// Number of the intent, which increases.
    pub generation: u64,
    /// The change that caused the intent.
    pub change: ChangeId,
    /// Blackholes of own blocks, each with the change that made it desired.
    pub blackholes: BTreeMap<Cidr, ChangeId>,
    /// The tunnel; `None` if Tortie uses none (an existing `tunl0` is not changed).
    pub tunnel: Option<TunnelIntent>,
    /// The VXLAN: its devices, and the ends of other hosts.
    pub vxlan: Arc<VxlanIntent>,
    /// Routes that the store gives.
    pub store_routes: Arc<StoreRoutes>,
    /// Input of `routing::kernel_route`.
    pub view: Arc<RoutingView>,
}

/// A change of the host's endpoints and rules. Every change must be applied, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyChange {
    /// Number of the change, which increases.
    pub serial: u64,
    /// The change of the store that caused it.
    pub change: ChangeId,
    /// Changes of sets, chains and endpoints.
    pub delta: RulesetDelta,
    /// Global settings, if they changed; always present in the first change.
    pub globals: Option<Arc<Globals>>,
    /// Routing of the endpoints whose workloads move, if it changed. It applies before the endpoints.
    pub routings: Option<Arc<EndpointRoutings>>,
}

impl PolicyChange {
    /// Returns true if host endpoints, or the interfaces they cover, may have changed.
    pub(crate) fn touches_hosts(&self) -> bool {
        let host = |key: &EndpointKey| matches!(key, EndpointKey::Host { .. });
        self.globals.is_some() || self.delta.endpoints.keys().any(host)
    }
}
