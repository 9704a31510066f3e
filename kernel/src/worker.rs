//! Worker thread for blocking calls into Linux, while the calling thread continues with other work.
//!
//! A netlink request is executed inside `sendmsg`, which blocks the caller until it is done: for a second
//! while the kernel doubles the trie of a large IPv4 table, longer while it loads modules. Such a call cannot
//! be interrupted, so another thread makes it. That thread has no state of its own, makes the calls one after
//! the other without further interaction, and ends after the last one.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

/// Interval at which the caller does other work during a call.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Submitted calls and their results.
pub(crate) struct Worker<'s, J, T>(WorkerKind<'s, J, T>);

enum WorkerKind<'s, J, T> {
    Thread {
        jobs: Sender<J>,
        done: Receiver<T>,
        thread: Option<ScopedJoinHandle<'s, ()>>,
    },
    /// No thread could be started: calls run at once on the caller's thread.
    Inline {
        call: &'s mut dyn FnMut(J) -> T,
        done: VecDeque<T>,
    },
}

impl<J, T> Worker<'_, J, T> {
    /// Submits a call, which runs after those before it.
    pub(crate) fn submit(&mut self, job: J) {
        match &mut self.0 {
            // If the thread is gone, `poll` reports the cause.
            WorkerKind::Thread { jobs, .. } => _ = jobs.send(job),
            WorkerKind::Inline { call, done } => done.push_back(call(job)),
        }
    }

    /// Returns the result of the next call, in the order of submission; waits for at most a millisecond. A
    /// panic of a call propagates to the caller.
    pub(crate) fn poll(&mut self) -> Option<T> {
        match &mut self.0 {
            WorkerKind::Inline { done, .. } => done.pop_front(),
            WorkerKind::Thread { done, thread, .. } => match done.recv_timeout(POLL_INTERVAL) {
                Ok(done) => Some(done),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => {
                    if let Some(Err(panic)) = thread.take().map(ScopedJoinHandle::join) {
                        std::panic::resume_unwind(panic);
                    }
                    None
                }
            },
        }
    }
}

/// Runs `here`, whose submitted calls run on a thread with this name.
pub(crate) fn run_in_order<J: Send, T: Send, R>(
    name: &str,
    mut call: impl FnMut(J) -> T + Send,
    mut here: impl FnMut(&mut Worker<'_, J, T>) -> R,
) -> R {
    let done = thread::scope(|scope| {
        let ((jobs, todo), (send_result, done)) = (channel(), channel());
        let call = &mut call;
        // Sending fails if the caller no longer waits.
        let work = move || _ = todo.into_iter().map(call).try_for_each(|answer| send_result.send(answer));
        let thread = Some(thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, work).ok()?);
        Some(here(&mut Worker(WorkerKind::Thread { jobs, done, thread })))
    });
    done.unwrap_or_else(|| here(&mut Worker(WorkerKind::Inline { call: &mut call, done: VecDeque::new() })))
}

/// Runs one call on a thread with this name, and `meanwhile` repeatedly until it is done.
pub(crate) fn with_worker<T: Send>(
    name: &str,
    mut long: impl FnMut() -> T + Send,
    mut meanwhile: impl FnMut(),
) -> T {
    run_in_order(
        name,
        |()| long(),
        |worker| {
            worker.submit(());
            loop {
                meanwhile();
                if let Some(done) = worker.poll() {
                    return done;
                }
            }
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_caller_goes_on_until_the_call_is_through() {
        let (rounds, received) = channel();
        let mut count = 0;
        // Done only after the caller has run three times.
        let long = move || (0..3).map(|_| received.recv().unwrap()).sum::<i32>();
        let sum = with_worker("long", long, || {
            count += 1;
            let _ = rounds.send(count);
        });
        assert_eq!(sum, 1 + 2 + 3);
    }

    /// Computes the squares of the numbers below five, with three submitted before the first result is taken.
    fn squares(worker: &mut Worker<'_, u32, u32>) -> Vec<u32> {
        let mut got = Vec::new();
        (0..3).for_each(|n| worker.submit(n));
        let mut later = 3..5;
        while got.len() < 5 {
            if let Some(square) = worker.poll() {
                got.push(square);
                later.next().into_iter().for_each(|n| worker.submit(n));
            }
        }
        got
    }

    #[test]
    fn calls_are_made_in_their_order_with_or_without_a_thread() {
        assert_eq!(run_in_order("squares", |n| n * n, squares), [0, 1, 4, 9, 16]);
        let mut call = |n| n * n;
        let mut worker = Worker(WorkerKind::Inline { call: &mut call, done: VecDeque::new() });
        assert_eq!(squares(&mut worker), [0, 1, 4, 9, 16]);
    }

    #[test]
    #[should_panic(expected = "inside")]
    fn a_panic_of_the_call_is_the_callers() {
        with_worker("long", || panic!("inside"), || ());
    }
}
