//! Background tasks that make the store match the state that the core derives.
//!
//! Each is a `Controller` (`life_cycle`): it starts and stops with the agent, runs on the I/O threads and
//! follows the newest desired state. Controllers report to the core by [`Input`]s and never read it.
//!
//! `register_node` registers the host once at start. `evidence` reads the addresses in use for the garbage
//! collection.

pub(super) mod evidence;
pub(super) mod felix_status;
pub(super) mod ipam_gc;
mod life_cycle;
pub(super) mod mtu_file;
pub(super) mod node_status;
pub(super) mod pool_usage;
pub(super) mod register_node;
pub(super) mod tunnel_address;
mod tunnel_kinds;

use std::path::PathBuf;
use std::sync::Arc;

use tortie_kernel::Namespaces;
use tortie_store::Store;

pub(super) use self::life_cycle::Context;
use self::life_cycle::{Report, RunningController};
use self::tunnel_address::TunnelAddressController;
use self::tunnel_kinds::{Ipip, Vxlan, VxlanV6};
use crate::agent::core::input::Input;
use crate::api::machine::Machine;

/// Controllers of an agent.
pub(super) struct Controllers {
    node_status: RunningController<node_status::NodeStatusController>,
    felix_status: RunningController<felix_status::FelixStatusController>,
    ipip_address: RunningController<TunnelAddressController<Ipip>>,
    vxlan_address: RunningController<TunnelAddressController<Vxlan>>,
    vxlan_v6_address: RunningController<TunnelAddressController<VxlanV6>>,
    ipam_gc: RunningController<ipam_gc::IpamGc>,
    pool_usage: RunningController<pool_usage::PoolUsageController>,
    mtu_file: RunningController<mtu_file::MtuFileController>,
}

impl Controllers {
    /// Starts the controllers, without those that write if `writes` is false. `report` sends an input to the
    /// core.
    pub(super) fn start(
        io: &tokio::runtime::Handle,
        store: &Arc<dyn Store>,
        (node, machine): (&str, &Machine),
        writes: bool,
        (namespaces, mtu_file): (Namespaces, PathBuf),
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
            ipip_address: RunningController::start(
                io,
                writes,
                TunnelAddressController::new(store(), node, again()),
            ),
            vxlan_address: RunningController::start(
                io,
                writes,
                TunnelAddressController::new(store(), node, again()),
            ),
            vxlan_v6_address: RunningController::start(
                io,
                writes,
                TunnelAddressController::new(store(), node, again()),
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
            mtu_file: RunningController::start(
                io,
                writes,
                mtu_file::MtuFileController::new(mtu_file, again()),
            ),
        }
    }

    /// Derives and passes on the desired state of each controller.
    pub(super) fn update(&self, context: &Context<'_>) {
        self.node_status.update(context);
        self.felix_status.update(context);
        self.ipip_address.update(context);
        self.vxlan_address.update(context);
        self.vxlan_v6_address.update(context);
        self.ipam_gc.update(context);
        self.pool_usage.update(context);
        self.mtu_file.update(context);
    }

    /// Stops all controllers; their leased keys are deleted if the store answers in time.
    pub(super) async fn stop(&mut self) {
        self.node_status.stop().await;
        self.felix_status.stop().await;
        self.ipip_address.stop().await;
        self.vxlan_address.stop().await;
        self.vxlan_v6_address.stop().await;
        self.ipam_gc.stop().await;
        self.pool_usage.stop().await;
        self.mtu_file.stop().await;
    }
}
