//! Long queries over a snapshot of the core's state, run on another thread.
//!
//! They iterate over all endpoints or policies of a cluster, and the core must serve kernel, sessions and
//! watchdog in the meantime.

use crate::agent::core::view::CoreView;
use crate::agent::handle::{Handle, busy, stopping};
use crate::agent::policy_view::{PolicySnapshot, PolicyView};
use crate::api::status::ApiError;

/// Runs a query over the model and the enforced policy.
///
/// # Errors
/// As [`off_core`].
pub(in crate::agent) async fn policy_view<T, Q>(handle: &Handle, query: Q) -> Result<T, ApiError>
where
    T: Send + 'static,
    Q: FnOnce(&PolicyView<'_>) -> Result<T, ApiError> + Send + 'static,
{
    // An agent that enforces no policy compiles it for the answer, which takes much memory.
    let alone = handle.core().ask(|core| core.enforcement().policy().is_none()).await?;
    off_core(handle, alone, PolicySnapshot::of, |snapshot| snapshot.answer(query)).await
}

/// Runs a query on another thread over a snapshot that the core shares at almost no cost. `alone` excludes
/// other long queries for its duration.
///
/// # Errors
/// Returns `busy` before the store was read and while too many long queries wait, and the errors of
/// [`Asker::ask`](crate::agent::handle::Asker::ask).
async fn off_core<S, T>(
    handle: &Handle,
    alone: bool,
    share: impl FnOnce(&CoreView<'_>) -> Option<S> + Send + 'static,
    query: impl FnOnce(S) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError>
where
    S: Send + 'static,
    T: Send + 'static,
{
    // The permit comes first: a query that waits while it holds a snapshot forces the core to copy it on the
    // next change.
    let permit = handle.long_query_permit(alone).await?;
    let snapshot = handle.core().ask(share).await?;
    let snapshot = snapshot.ok_or_else(|| busy("the store has not been read yet"))?;
    let work = move || {
        let answer = query(snapshot);
        drop(permit);
        answer
    };
    tokio::task::spawn_blocking(work).await.map_err(|_| stopping())?
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex, mpsc};
    use std::time::Instant;

    use super::*;
    use crate::agent::core::Core;
    use crate::agent::core::options::CoreOptions;
    use crate::agent::handle::{CoreRequest, LONG_QUERIES};
    use crate::agent::time;
    use crate::api::machine::Machine;

    /// Any number of slow queries leads to at most `LONG_QUERIES` snapshots at a time; waiting queries do not
    /// reach the core.
    #[tokio::test]
    async fn questions_without_end_ask_the_core_for_no_more_than_is_worked_on() {
        const QUESTIONS: usize = 40;
        const AT_ONCE: usize = LONG_QUERIES as usize;
        let (requests, mut inbox) = tokio::sync::mpsc::channel(1_024);
        let handle = Arc::new(Handle::new(
            "h1",
            Machine::default(),
            Default::default(),
            Instant::now(),
            requests,
            false,
        ));
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let core = tokio::spawn(async move {
            let options = CoreOptions {
                name: "h1".to_owned(),
                node: Default::default(),
                observes: false,
                data_model: Default::default(),
                kernel_writes: true,
                policy: tortie_kernel::Mode::Program,
            };
            let core = Core::new(&options, time::now());
            while let Some(request) = inbox.recv().await {
                if let CoreRequest::Query(query) = request {
                    count.fetch_add(1, Ordering::SeqCst);
                    query(&CoreView::of(&core));
                }
            }
        });
        let (started, mut begun) = tokio::sync::mpsc::unbounded_channel();
        let (release, released) = mpsc::channel::<()>();
        let released = Arc::new(Mutex::new(released));
        let questions: Vec<_> = (0..QUESTIONS)
            .map(|_| {
                let (handle, started, released) =
                    (Arc::clone(&handle), started.clone(), Arc::clone(&released));
                let work = move |()| {
                    started.send(()).unwrap();
                    released.lock().unwrap().recv().unwrap();
                    Ok(())
                };
                tokio::spawn(async move { off_core(&handle, false, |_| Some(()), work).await })
            })
            .collect();
        let mut in_work = 0;
        for done in 0..QUESTIONS {
            while in_work < (done + AT_ONCE).min(QUESTIONS) {
                begun.recv().await.unwrap();
                in_work += 1;
            }
            // Gives the waiting queries every chance to reach the core.
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            let asked = asked.load(Ordering::SeqCst);
            assert!(asked <= done + AT_ONCE, "{asked} asked for something, {done} are answered");
            release.send(()).unwrap();
        }
        for question in questions {
            question.await.unwrap().unwrap();
        }
        assert_eq!(asked.load(Ordering::SeqCst), QUESTIONS);
        core.abort();
    }
}
