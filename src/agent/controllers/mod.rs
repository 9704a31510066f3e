//! Background tasks that make the store match what the core derives, each a [`Controller`] with one life: it starts with
//! the agent on the io threads, follows the newest desired state, and is stopped with the agent. They report to the core
//! by [`Input`]s and never read it.
//!
//! Beside them: `register_node` makes the host known once, `evidence` reads which addresses are in use for the collector.

pub(super) mod evidence;
pub(super) mod felix_status;
pub(super) mod ipam_gc;
pub(super) mod node_status;
pub(super) mod pool_usage;
pub(super) mod register_node;
pub(super) mod tunnel_address;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tortie_store::Store;

use crate::agent::core::Core;
use crate::agent::core::input::Input;
use crate::api::nodes::NodeStatus;

/// How long a stop waits for the store.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// What controllers derive their desired states from.
pub(super) struct Context<'a> {
    /// The core.
    pub(super) core: &'a Core,
    /// What others may know of this host; `None`: as before.
    pub(super) node_status: Option<NodeStatus>,
}

/// A background task that follows a desired state.
pub(super) trait Controller: Send + Sized + 'static {
    /// The desired state. The default asks for nothing.
    type Desired: Clone + Default + PartialEq + Send + Sync + 'static;

    /// Whether it writes to the store: an agent that only observes does not start those.
    const WRITES: bool;

    /// The desired state now; `None`: the last one stays.
    fn desired(context: &Context<'_>) -> Option<Self::Desired>;

    /// Whether the task acts on this change at once.
    fn is_news(old: &Self::Desired, new: &Self::Desired) -> bool {
        old != new
    }

    /// Follows the desired state until it is stopped.
    fn run(self, life: Life<Self::Desired>) -> impl Future<Output = ()> + Send;
}

/// A controller's side of its life: the newest desired state, and the stop.
pub(super) struct Life<T> {
    desired: watch::Receiver<T>,
    stop: oneshot::Receiver<()>,
}

/// Why a controller goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wake {
    /// The desired state changed.
    Changed,
    /// The time that it waited for has come.
    Due,
    /// The agent stops.
    Stopped,
}

impl<T: Clone> Life<T> {
    /// The newest desired state.
    fn desired(&mut self) -> T {
        self.desired.borrow_and_update().clone()
    }

    /// Waits until `due` completes, the desired state changes, or the agent stops.
    async fn wait(&mut self, due: impl Future<Output = ()>) -> Wake {
        tokio::select! {
            _ = &mut self.stop => Wake::Stopped,
            changed = self.desired.changed() => if changed.is_ok() { Wake::Changed } else { Wake::Stopped },
            () = due => Wake::Due,
        }
    }
}

/// A started controller.
struct Running<C: Controller> {
    desired: watch::Sender<C::Desired>,
    task: Option<(JoinHandle<()>, oneshot::Sender<()>)>,
}

impl<C: Controller> Running<C> {
    fn start(io: &tokio::runtime::Handle, writes: bool, controller: C) -> Self {
        let (desired, follow) = watch::channel(C::Desired::default());
        let task = (writes || !C::WRITES).then(|| {
            let (end, stop) = oneshot::channel();
            (io.spawn(controller.run(Life { desired: follow, stop })), end)
        });
        Self { desired, task }
    }

    fn follow(&self, context: &Context<'_>) {
        if let Some(new) = C::desired(context) {
            self.set_desired(new);
        }
    }

    fn set_desired(&self, new: C::Desired) {
        self.desired.send_if_modified(|old| {
            let news = C::is_news(old, &new);
            *old = new;
            news
        });
    }

    async fn stop(&mut self) {
        if let Some((task, end)) = self.task.take() {
            let _ = end.send(());
            let _ = tokio::time::timeout(STOP_TIMEOUT, task).await;
        }
    }
}

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

/// Hands an input to the core.
type Report = Arc<dyn Fn(Input) + Send + Sync>;
