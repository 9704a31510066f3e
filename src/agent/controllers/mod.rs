//! Background tasks that make the store match what the core derives, each a `Controller` (`life_cycle`): it starts
//! with the agent on the io threads, follows the newest desired state, and is stopped with the agent. They report to the
//! core by [`Input`]s and never read it.
//!
//! `register_node` registers the host once at the start; `evidence` reads for the garbage collection which addresses are in
//! use.

pub(super) mod evidence;
pub(super) mod felix_status;
pub(super) mod ipam_gc;
mod life_cycle;
pub(super) mod node_status;
pub(super) mod pool_usage;
pub(super) mod register_node;
pub(super) mod tunnel_address;

use std::sync::Arc;

use tortie_kernel::Namespaces;
use tortie_store::Store;

pub(super) use self::life_cycle::Context;
use self::life_cycle::{Report, RunningController};
use crate::agent::core::input::Input;
use crate::api::machine::Machine;

/// The controllers of an agent.
pub(super) struct Controllers {
    node_status: RunningController<node_status::NodeStatusController>,
    felix_status: RunningController<felix_status::FelixStatusController>,
    tunnel_address: RunningController<tunnel_address::TunnelAddressController>,
    ipam_gc: RunningController<ipam_gc::IpamGc>,
    pool_usage: RunningController<pool_usage::PoolUsageController>,
}

impl Controllers {
    /// Starts those that this agent may have. `report` hands an input to the core.
    pub(super) fn start(
        io: &tokio::runtime::Handle,
        store: &Arc<dyn Store>,
        (node, machine): (&str, &Machine),
        writes: bool,
        namespaces: Namespaces,
        report: impl Fn(Input) + Clone + Send + Sync + 'static,
    ) -> Self {
        let report: Report = Arc::new(report);
        let (store, again) = (|| Arc::clone(store), || Arc::clone(&report));
        Self {
            node_status: RunningController::start(
                io,
                writes,
                node_status::NodeStatusController::new(store(), node, machine, again()),
            ),
            felix_status: RunningController::start(
                io,
                writes,
                felix_status::FelixStatusController::new(store(), node),
            ),
            tunnel_address: RunningController::start(
                io,
                writes,
                tunnel_address::TunnelAddressController::new(store(), node, again()),
            ),
            ipam_gc: RunningController::start(
                io,
                writes,
                ipam_gc::IpamGc::new(store(), node, namespaces, again()),
            ),
            pool_usage: RunningController::start(
                io,
                writes,
                pool_usage::PoolUsageController::new(store(), again()),
            ),
        }
    }

    /// Gives each its desired state.
    pub(super) fn update(&self, context: &Context<'_>) {
        self.node_status.update(context);
        self.felix_status.update(context);
        self.tunnel_address.update(context);
        self.ipam_gc.update(context);
        self.pool_usage.update(context);
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
