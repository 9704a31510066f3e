//! What the kernel should hold, as the agent sends it.

use std::collections::BTreeMap;
use std::sync::Arc;

use tortie_config::key::EndpointKey;
use tortie_net::Cidr;

use tortie_engine::policy::{Globals, RulesetDelta};
use tortie_engine::routing::{ChangeId, RoutingView, TunnelIntent};

/// What the kernel should hold besides learned routes. The latest wins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelIntent {
    /// Grows with every intent.
    pub generation: u64,
    /// The change that brought it.
    pub change: ChangeId,
    /// Blackholes of own blocks, each with the change that made it wanted.
    pub blackholes: BTreeMap<Cidr, ChangeId>,
    /// The tunnel; `None`: none of ours (an existing `tunl0` is left alone).
    pub tunnel: Option<TunnelIntent>,
    /// What `routing::kernel_route` reads.
    pub view: Arc<RoutingView>,
}

/// What the host's endpoints and rules should become. Every one counts; they are taken in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyChange {
    /// Grows with every one.
    pub serial: u64,
    /// The change that brought it.
    pub change: ChangeId,
    /// What became of sets, chains and endpoints.
    pub delta: RulesetDelta,
    /// The frame, when it is another; always in the first one.
    pub globals: Option<Arc<Globals>>,
}

impl PolicyChange {
    /// Whether host endpoints may govern other interfaces than before, or are others.
    pub(crate) fn touches_hosts(&self) -> bool {
        let host = |key: &EndpointKey| matches!(key, EndpointKey::Host { .. });
        self.globals.is_some() || self.delta.endpoints.keys().any(host)
    }
}
