//! The event loop's view of the kernel thread: not started yet, or running.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use tortie_kernel::{KernelHandle, KernelIntent, PolicyChange, ToKernel};

/// Delay between the last End-of-RIB and the removal of stale routes: FRR 8.4 sends its `default-originate`
/// 0.6 s after End-of-RIB.
const SWEEP_DELAY: Duration = Duration::from_secs(2);
/// Maximum wait for the end of the thread.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Handle of the kernel thread. The newest intent and all policy changes are held until the thread starts;
/// other messages are dropped before.
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

    /// Records that the thread runs, and sends it the held messages.
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

    /// Sends or holds a policy change. Each one counts, so none is dropped before the thread starts.
    pub(super) fn send_policy(&mut self, change: Arc<PolicyChange>) {
        let message = ToKernel::Policy(change);
        if self.is_started() { self.send(message) } else { self.held_policy.push(message) }
    }

    pub(super) fn send(&self, message: ToKernel) {
        if let Some(handle) = &self.handle {
            // The thread ends only with the process, so a failed send needs no handling.
            let _ = handle.sender().send(message);
        }
    }

    /// Removes stale routes after a delay.
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
