//! Background tasks that make the store match what the core derives, each a `Controller` (`life_cycle`) with one life: it starts with
//! the agent on the io threads, follows the newest desired state, and is stopped with the agent. They report to the core
//! by [`Input`]s and never read it.
//!
//! Beside them: `register_node` makes the host known once, `evidence` reads which addresses are in use for the collector.

pub(super) mod evidence;
pub(super) mod felix_status;
pub(super) mod ipam_gc;
mod life_cycle;
pub(super) mod node_status;
pub(super) mod pool_usage;
pub(super) mod register_node;
pub(super) mod tunnel_address;

use std::sync::Arc;

use tortie_store::Store;

pub(super) use self::life_cycle::Context;
use self::life_cycle::{Report, Running};
use crate::agent::core::input::Input;

/// The controllers of an agent.
pub(super) struct Controllers {
    node_status: Running<node_status::NodeStatusController>,
    felix_status: Running<felix_status::FelixStatusController>,
    tunnel_address: Running<tunnel_address::TunnelAddressController>,
    ipam_gc: Running<ipam_gc::IpamGc>,
    pool_usage: Running<pool_usage::PoolUsageController>,
}

impl Controllers {
    /// Starts those that this agent may have. `report` hands an input to the core.
    pub(super) fn start(
        io: &tokio::runtime::Handle,
        store: &Arc<dyn Store>,
        node: &str,
        writes: bool,
        report: impl Fn(Input) + Clone + Send + Sync + 'static,
    ) -> Self {
        let report: Report = Arc::new(report);
        let (store, again) = (|| Arc::clone(store), || Arc::clone(&report));
        Self {
            node_status: Running::start(io, writes, node_status::NodeStatusController::new(store(), node)),
            felix_status: Running::start(io, writes, felix_status::FelixStatusController::new(store(), node)),
            tunnel_address: Running::start(
                io,
                writes,
                tunnel_address::TunnelAddressController::new(store(), node, again()),
            ),
            ipam_gc: Running::start(io, writes, ipam_gc::IpamGc::new(store(), node, again())),
            pool_usage: Running::start(io, writes, pool_usage::PoolUsageController::new(store(), again())),
        }
    }

    /// Gives each its desired state.
    pub(super) fn follow(&self, context: &Context<'_>) {
        self.node_status.follow(context);
        self.felix_status.follow(context);
        self.tunnel_address.follow(context);
        self.ipam_gc.follow(context);
        self.pool_usage.follow(context);
    }

    /// Stops them; leased keys go if the store answers in time.
    pub(super) async fn stop(&mut self) {
        self.node_status.stop().await;
        self.felix_status.stop().await;
        self.tunnel_address.stop().await;
        self.ipam_gc.stop().await;
        self.pool_usage.stop().await;
    }
}
