//! Queries of the policy view: over a snapshot of the core's state, on another thread. They go through all endpoints or policies of a
//! cluster, and the core has a kernel, sessions and a watchdog to serve meanwhile.

use crate::agent::handle::{Handle, busy, stopping};
use crate::agent::policy_view::{PolicySnapshot, PolicyView};
use crate::api::status::ApiError;

/// Asks for what stands in the model beside what is enforced.
///
/// # Errors
/// `busy` before the store was read and while too many such queries wait, and as
/// [`Asker::ask`](crate::agent::handle::Asker::ask).
pub(in crate::agent) async fn policy_view<T, Q>(handle: &Handle, query: Q) -> Result<T, ApiError>
where
    T: Send + 'static,
    Q: FnOnce(&PolicyView<'_>) -> Result<T, ApiError> + Send + 'static,
{
    // The permit comes first: a query that waits with a snapshot in hand would make the core copy what it changes.
    let permit = handle.long_query_permit().await?;
    let snapshot = handle.core().ask(PolicySnapshot::of).await?;
    let snapshot = snapshot.ok_or_else(|| busy("the store has not been read yet"))?;
    let work = move || {
        let answer = snapshot.answer(query);
        drop(permit);
        answer
    };
    tokio::task::spawn_blocking(work).await.map_err(|_| stopping())?
}
