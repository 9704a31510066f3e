//! Calls into Linux that may take long, next to the thread that goes on with something else.
//!
//! Netlink requests are carried out inside of `sendmsg`, and the caller sits in it until they are through: a second while
//! the kernel doubles the trie of a large IPv4 table, longer where it loads modules. Nothing makes such a call come back
//! early, so it is made by another thread, which has nothing of its own and ends with the last of them. It makes them one
//! after the other, and goes on with the next without a word from here.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;

/// While a call is under way, other things are done this often.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Calls that were asked for, and what they gave.
pub(crate) struct Worker<'s, J, T>(WorkerKind<'s, J, T>);

enum WorkerKind<'s, J, T> {
    Thread {
        jobs: Sender<J>,
        done: Receiver<T>,
        thread: Option<ScopedJoinHandle<'s, ()>>,
    },
    /// There was no thread to be had: at once, and by the caller.
    Inline {
        call: &'s mut dyn FnMut(J) -> T,
        done: VecDeque<T>,
    },
}

impl<J, T> Worker<'_, J, T> {
    /// Asks for a call, which is made when those before it are through.
    pub(crate) fn submit(&mut self, job: J) {
        match &mut self.0 {
            // Where the thread is gone `poll` gives the cause.
            WorkerKind::Thread { jobs, .. } => _ = jobs.send(job),
            WorkerKind::Inline { call, done } => done.push_back(call(job)),
        }
    }

    /// What the next call gave, in the order in which they were asked for; waits for it a millisecond at most. A panic of a
    /// call is the caller's.
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

/// Does `here`, whose calls are made on a thread of that name.
pub(crate) fn run_in_order<J: Send, T: Send, R>(
    name: &str,
    mut call: impl FnMut(J) -> T + Send,
    mut here: impl FnMut(&mut Worker<'_, J, T>) -> R,
) -> R {
    let done = thread::scope(|scope| {
        let ((jobs, todo), (send_result, done)) = (channel(), channel());
        let call = &mut call;
        // Sending fails where nobody waits any more.
        let work = move || _ = todo.into_iter().map(call).try_for_each(|answer| send_result.send(answer));
        let thread = Some(thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, work).ok()?);
        Some(here(&mut Worker(WorkerKind::Thread { jobs, done, thread })))
    });
    done.unwrap_or_else(|| here(&mut Worker(WorkerKind::Inline { call: &mut call, done: VecDeque::new() })))
}

/// Makes one call on a thread of that name, and here does something else again and again until it is through.
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
        // Through only when the caller has been at something else three times.
        let long = move || (0..3).map(|_| received.recv().unwrap()).sum::<i32>();
        let sum = with_worker("long", long, || {
            count += 1;
            let _ = rounds.send(count);
        });
        assert_eq!(sum, 1 + 2 + 3);
    }

    /// The squares of the numbers below five, three of which are asked for before the first is taken.
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
