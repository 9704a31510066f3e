//! How long calls may take.

use std::time::Duration;

use super::error::KurmaError;

/// The daemon waits 60 s at most; a call of ours is given up after this, and then taken back.
pub(super) const LIMIT: Duration = Duration::from_secs(45);
/// The longest that taking back may take.
pub(super) const CLEANUP: Duration = Duration::from_secs(10);

/// Gives up after `limit`.
pub(super) async fn within<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, KurmaError>>,
) -> Result<T, KurmaError> {
    let late = |_| KurmaError(format!("not done within {} s: is the store reachable?", limit.as_secs()));
    tokio::time::timeout(limit, work).await.map_err(late)?
}
