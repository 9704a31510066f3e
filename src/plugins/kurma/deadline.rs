//! Time limits of calls.

use std::time::Duration;

use super::error::KurmaError;

/// Limit of a call, after which it is undone; the daemon waits at most 60 s.
pub(super) const LIMIT: Duration = Duration::from_secs(45);
/// Limit of undoing a call.
pub(super) const CLEANUP: Duration = Duration::from_secs(10);

/// Runs `work` with a time limit.
pub(super) async fn within<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, KurmaError>>,
) -> Result<T, KurmaError> {
    let late = |_| KurmaError(format!("not done within {} s: is the store reachable?", limit.as_secs()));
    tokio::time::timeout(limit, work).await.map_err(late)?
}
