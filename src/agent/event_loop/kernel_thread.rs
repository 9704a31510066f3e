//! The kernel thread as the event loop has it: not started yet, or running.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use tortie_kernel::{KernelHandle, KernelIntent, PolicyChange, ToKernel};

/// From the last End-of-RIB to the sweep of stale routes: FRR 8.4 sends its `default-originate` 0.6 s after it.
const SWEEP_DELAY: Duration = Duration::from_secs(2);
/// Longest wait for its end.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Before the thread starts, the newest intent and all changes of policy are held for it. Other messages are for a thread that
/// runs, and dropped.
#[derive(Default)]
pub(super) struct KernelThread {
    handle: Option<KernelHandle>,
    intent: Option<Arc<KernelIntent>>,
    held_policy: Vec<ToKernel>,
}

impl KernelThread {
    pub(super) fn is_started(&self) -> bool {
        self.handle.is_some()
    }

    pub(super) fn sender(&self) -> Option<SyncSender<ToKernel>> {
        self.handle.as_ref().map(KernelHandle::sender)
    }

    /// The thread runs now: it gets what was held.
    pub(super) fn on_start(&mut self, handle: KernelHandle) {
        self.handle = Some(handle);
        if let Some(intent) = self.intent.clone() {
            self.send(ToKernel::Intent(intent));
        }
        for message in std::mem::take(&mut self.held_policy) {
            self.send(message);
        }
    }

    pub(super) fn send_intent(&mut self, intent: Arc<KernelIntent>) {
        self.intent = Some(Arc::clone(&intent));
        self.send(ToKernel::Intent(intent));
    }

    /// Every one of them counts, and the thread starts when the host is known.
    pub(super) fn send_policy(&mut self, change: Arc<PolicyChange>) {
        let message = ToKernel::Policy(change);
        if self.is_started() { self.send(message) } else { self.held_policy.push(message) }
    }

    pub(super) fn send(&self, message: ToKernel) {
        if let Some(handle) = &self.handle {
            // The thread only ends with the process, which ends when it is gone.
            let _ = handle.sender().send(message);
        }
    }

    /// Sweeps stale routes after a delay.
    pub(super) fn sweep_later(&self) {
        if let Some(sender) = self.sender() {
            tokio::spawn(async move {
                tokio::time::sleep(SWEEP_DELAY).await;
                let _ = sender.send(ToKernel::SweepStale);
            });
        }
    }

    pub(super) async fn stop(&mut self) {
        if let Some(handle) = self.handle.take() {
            let ended = tokio::task::spawn_blocking(move || handle.stop());
            let _ = tokio::time::timeout(STOP_TIMEOUT, ended).await;
        }
    }
}
