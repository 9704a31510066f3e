//! Long queries: over a snapshot of the core's state, on another thread. They go through all endpoints or policies of a cluster, and the
//! core has a kernel, sessions and a watchdog to serve meanwhile.

use crate::agent::core::view::CoreView;
use crate::agent::handle::{Handle, busy, stopping};
use crate::agent::policy_view::{PolicySnapshot, PolicyView};
use crate::api::status::ApiError;

/// Asks for what stands in the model beside what is enforced.
///
/// # Errors
/// As [`off_core`].
pub(in crate::agent) async fn policy_view<T, Q>(handle: &Handle, query: Q) -> Result<T, ApiError>
where
    T: Send + 'static,
    Q: FnOnce(&PolicyView<'_>) -> Result<T, ApiError> + Send + 'static,
{
    // An agent without policy compiles it for the answer.
    let alone = handle.core().ask(|core| core.enforcement().policy().is_none()).await?;
    off_core(handle, alone, PolicySnapshot::of, |snapshot| snapshot.answer(query)).await
}

/// Has the core share what a query is about, which must cost it next to nothing, and works on that on another thread.
/// `alone`: while no other such query is worked on.
///
/// # Errors
/// `busy` before the store was read and while too many such queries wait, and as
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
    // The permit comes first: a query that waits with a snapshot in hand would make the core copy what it changes.
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

    /// However many long questions there are and however long each takes: the core shares something with as many as are worked on,
    /// and hears nothing of those that wait.
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
            // Those that wait get every chance to ask.
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
