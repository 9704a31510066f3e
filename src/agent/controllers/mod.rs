//! A task that keeps keys of the store as it is told, and takes its leave of them when the agent ends.

pub(super) mod evidence;
pub(super) mod felix_status;
pub(super) mod ipam_gc;
pub(super) mod node_status;
pub(super) mod pool_usage;
pub(super) mod register_node;
pub(super) mod tunnel_address;

use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

/// How long an end waits for the store.
const PATIENCE: Duration = Duration::from_secs(1);

/// The task, and what it is told: only the latest counts.
#[derive(Debug)]
pub(super) struct Keeper<T> {
    told: watch::Sender<T>,
    task: Option<(JoinHandle<()>, oneshot::Sender<()>)>,
}

impl<T: Default> Keeper<T> {
    /// Starts the task; an agent that only observes writes nothing and has none.
    pub(super) fn start<F>(
        io: &tokio::runtime::Handle,
        writes: bool,
        task: impl FnOnce(watch::Receiver<T>, oneshot::Receiver<()>) -> F,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (told, seen) = watch::channel(T::default());
        let task = writes.then(|| {
            let (end, ended) = oneshot::channel();
            (io.spawn(task(seen, ended)), end)
        });
        Self { told, task }
    }

    /// Tells the task; `differs` from what it was told before is a reason to write.
    pub(super) fn tell(&self, new: T, differs: impl FnOnce(&T, &T) -> bool) {
        self.told.send_if_modified(|old| {
            let differs = differs(old, &new);
            *old = new;
            differs
        });
    }

    /// Ends the task; leased keys go if the store answers in time.
    pub(super) async fn stop(&mut self) {
        if let Some((task, end)) = self.task.take() {
            let _ = end.send(());
            let _ = tokio::time::timeout(PATIENCE, task).await;
        }
    }
}
