//! Runs two clients in a chosen order of their operations on the store.

use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};
use std::time::Duration;

use super::memory::MemoryStore;

/// A client in the middle of its work; `None` once it has ended or was killed.
pub(super) type Running = Option<Pin<Box<dyn Future<Output = ()>>>>;

/// Lets a client make `steps` operations, fewer if it ends.
pub(super) async fn advance(store: &MemoryStore, client: &mut Running, steps: u64) {
    let until = store.steps.load(Ordering::Relaxed).saturating_add(steps);
    let mut idle = 0;
    while let Some(future) = client {
        let before = store.steps.load(Ordering::Relaxed);
        if before >= until {
            return;
        }
        if future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
            *client = None;
            return;
        }
        idle = if store.steps.load(Ordering::Relaxed) == before { idle + 1 } else { 0 };
        // The first poll only waits for a turn. After a conflict a client pauses.
        if idle > 1 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}
