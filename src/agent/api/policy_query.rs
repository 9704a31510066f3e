//! Queries of the policy view: on the core's thread as long as policy is on, else over a copy of the model, beside it.

use crate::agent::handle::{Handle, busy, stopping};
use crate::agent::policy_view::{OfflinePolicyView, PolicyView};
use crate::api::status::ApiError;
use tortie_engine::model::Model;

/// The core's reply to a query of the policy view.
enum CoreReply<T, Q> {
    Answer(T),
    /// Policy is off: the query runs over a copy of the model.
    UseCopy(Q, Box<Model>),
    /// The store has not been read.
    NotLoaded,
}

/// Asks for what stands in the model beside what is enforced.
///
/// # Errors
/// `busy` before the store was read, and as [`Asker::ask`](crate::agent::handle::Asker::ask).
pub(in crate::agent) async fn policy_view<T, Q>(handle: &Handle, query: Q) -> Result<T, ApiError>
where
    T: Send + 'static,
    Q: FnOnce(&PolicyView<'_>) -> Result<T, ApiError> + Send + 'static,
{
    let reply = handle.core().ask(move |core| match PolicyView::of_core(core) {
        Some(view) => CoreReply::Answer(query(&view)),
        None if core.loaded() => CoreReply::UseCopy(query, Box::new(core.model().clone())),
        None => CoreReply::NotLoaded,
    });
    match reply.await? {
        CoreReply::Answer(answer) => answer,
        CoreReply::UseCopy(query, model) => {
            let work = move || query(&OfflinePolicyView::from_model(*model).view());
            tokio::task::spawn_blocking(work).await.map_err(|_| stopping())?
        }
        CoreReply::NotLoaded => Err(busy("the store has not been read yet")),
    }
}
