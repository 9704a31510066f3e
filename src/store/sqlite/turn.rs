//! Getting in line: those who read, decide and then write would fail each other's comparisons all the time.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::files::{Files, Lock};

/// A stopped process must not hold up the others: after this time they go without a turn, and the comparisons decide.
const PATIENCE: Duration = Duration::from_secs(3);

/// Waits for the turn; `None` when it cannot be had. Held until the answer is dropped: a closed file is unlocked.
pub(super) async fn take(files: &Arc<Files>) -> Option<std::fs::File> {
    let files = Arc::clone(files);
    let (ready, taken) = oneshot::channel();
    let wait = move || {
        let Ok(file) = files.open_turn() else { return };
        if Lock::take(&file, files.turn()).map(Lock::keep).is_ok() {
            // Whoever has given up drops the file.
            let _ = ready.send(file);
        }
    };
    std::thread::Builder::new().name("store-turn".to_owned()).spawn(wait).ok()?;
    tokio::time::timeout(PATIENCE, taken).await.ok()?.ok()
}
