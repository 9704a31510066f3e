//! Life cycle of a controller: start, new desired states, stop.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use crate::agent::core::input::Input;
use crate::agent::core::view::CoreView;
use crate::api::nodes::NodeStatus;

/// Maximum wait for the store during a stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// State from which controllers derive their desired states.
pub(in crate::agent) struct Context<'a> {
    /// View of the core's state.
    pub(in crate::agent) core: CoreView<'a>,
    /// New value of the status key; `None` keeps the last one.
    pub(in crate::agent) node_status: Option<NodeStatus>,
}

/// A background task that follows a desired state.
pub(super) trait Controller: Send + Sized + 'static {
    /// Desired state of the task. The default requests nothing.
    type Desired: Clone + Default + PartialEq + Send + Sync + 'static;

    /// True if the controller writes to the store; such controllers do not run in observe mode.
    const WRITES: bool;

    /// Derives the desired state; `None` keeps the last one.
    fn desired(context: &Context<'_>) -> Option<Self::Desired>;

    /// True if the task must act on this change at once.
    fn is_significant(old: &Self::Desired, new: &Self::Desired) -> bool {
        old != new
    }

    /// Follows the desired state until the agent stops.
    fn run(self, handle: ControllerHandle<Self::Desired>) -> impl Future<Output = ()> + Send;
}

/// The task's end of a controller: receives the newest desired state and the stop request.
pub(super) struct ControllerHandle<T> {
    desired: watch::Receiver<T>,
    stop: oneshot::Receiver<()>,
}

/// Reason for the end of a controller's wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wake {
    /// The desired state changed.
    Changed,
    /// The awaited time was reached.
    Due,
    /// The agent stops.
    Stopped,
}

impl<T: Clone> ControllerHandle<T> {
    /// Returns the newest desired state.
    pub(super) fn desired(&mut self) -> T {
        self.desired.borrow_and_update().clone()
    }

    /// Waits until `due` completes, the desired state changes, or the agent stops.
    pub(super) async fn wait(&mut self, due: impl Future<Output = ()>) -> Wake {
        tokio::select! {
            _ = &mut self.stop => Wake::Stopped,
            changed = self.desired.changed() => if changed.is_ok() { Wake::Changed } else { Wake::Stopped },
            () = due => Wake::Due,
        }
    }
}

/// The agent's end of a running controller.
pub(super) struct RunningController<C: Controller> {
    desired: watch::Sender<C::Desired>,
    task: Option<(JoinHandle<()>, oneshot::Sender<()>)>,
}

impl<C: Controller> RunningController<C> {
    pub(super) fn start(io: &tokio::runtime::Handle, writes: bool, controller: C) -> Self {
        let (desired, follow) = watch::channel(C::Desired::default());
        let task = (writes || !C::WRITES).then(|| {
            let (end, stop) = oneshot::channel();
            (io.spawn(controller.run(ControllerHandle { desired: follow, stop })), end)
        });
        Self { desired, task }
    }

    pub(super) fn update(&self, context: &Context<'_>) {
        if let Some(new) = C::desired(context) {
            self.set_desired(new);
        }
    }

    pub(super) fn set_desired(&self, new: C::Desired) {
        self.desired.send_if_modified(|old| {
            let news = C::is_significant(old, &new);
            *old = new;
            news
        });
    }

    pub(super) async fn stop(&mut self) {
        if let Some((task, end)) = self.task.take() {
            let _ = end.send(());
            let _ = tokio::time::timeout(STOP_TIMEOUT, task).await;
        }
    }
}

/// Sends an input to the core.
pub(super) type Report = Arc<dyn Fn(Input) + Send + Sync>;
