//! A thread that owns one database connection and runs blocking jobs one after the other.

use std::sync::mpsc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::super::StoreError;

/// Limit for a call: a process that was stopped while it holds the lock must not block all others for ever.
const DEADLINE: Duration = Duration::from_secs(10);

type Job<S> = Box<dyn FnOnce(&mut S) + Send>;

/// Handle of the thread, which ends when the handle is dropped.
pub(super) struct Worker<S> {
    jobs: mpsc::Sender<Job<S>>,
}

impl<S: 'static> Worker<S> {
    /// Starts the thread and creates its state on it.
    pub(super) async fn start(
        name: &str,
        init: impl FnOnce() -> Result<S, StoreError> + Send + 'static,
    ) -> Result<Self, StoreError> {
        let (jobs, queue) = mpsc::channel::<Job<S>>();
        let (ready, started) = oneshot::channel();
        let run = move || {
            let mut state = match init() {
                Ok(state) => state,
                Err(e) => return drop(ready.send(Err(e))),
            };
            if ready.send(Ok(())).is_ok() {
                queue.into_iter().for_each(|job| job(&mut state));
            }
        };
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(run)
            .map_err(|e| StoreError::Unreachable(format!("cannot start a thread: {e}")))?;
        wait(started).await?;
        Ok(Self { jobs })
    }

    /// Runs one job and waits for its result. The job can query if its caller has given up; a job that has
    /// not begun its transaction then must not begin it.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut S, &dyn Fn() -> bool) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (answer, answered) = oneshot::channel();
        let job = move |state: &mut S| {
            if !answer.is_closed() {
                let result = work(state, &|| answer.is_closed());
                // The receiver is gone if the caller has given up.
                let _ = answer.send(result);
            }
        };
        self.jobs.send(Box::new(job)).map_err(|_| ended())?;
        wait(answered).await
    }
}

async fn wait<T>(answer: oneshot::Receiver<Result<T, StoreError>>) -> Result<T, StoreError> {
    match tokio::time::timeout(DEADLINE, answer).await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(ended()),
        Err(_) => Err(StoreError::Unreachable(format!(
            "no answer in {} s: the disk hangs, or a stopped process holds the lock file (see it with lslocks)",
            DEADLINE.as_secs()
        ))),
    }
}

fn ended() -> StoreError {
    StoreError::Unusable("the thread of the store has ended".into())
}
