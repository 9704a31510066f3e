//! Calls into Linux that may take long, beside the thread that goes on with something else.
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
const AGAIN: Duration = Duration::from_millis(1);

/// Calls that were asked for, and what they gave.
pub(crate) struct Calls<'s, J, T>(Made<'s, J, T>);

enum Made<'s, J, T> {
    Beside {
        jobs: Sender<J>,
        done: Receiver<T>,
        thread: Option<ScopedJoinHandle<'s, ()>>,
    },
    /// There was no thread to be had: at once, and by the caller.
    Here {
        call: &'s mut dyn FnMut(J) -> T,
        done: VecDeque<T>,
    },
}

impl<J, T> Calls<'_, J, T> {
    /// Asks for a call, which is made when those before it are through.
    pub(crate) fn give(&mut self, job: J) {
        match &mut self.0 {
            // Where the thread is gone `take` tells why.
            Made::Beside { jobs, .. } => _ = jobs.send(job),
            Made::Here { call, done } => done.push_back(call(job)),
        }
    }

    /// What the next call gave, in the order in which they were asked for; waits for it a millisecond at most. A panic of a
    /// call is the caller's.
    pub(crate) fn take(&mut self) -> Option<T> {
        match &mut self.0 {
            Made::Here { done, .. } => done.pop_front(),
            Made::Beside { done, thread, .. } => match done.recv_timeout(AGAIN) {
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
pub(crate) fn in_turn<J: Send, T: Send, R>(
    name: &str,
    mut call: impl FnMut(J) -> T + Send,
    mut here: impl FnMut(&mut Calls<'_, J, T>) -> R,
) -> R {
    let done = thread::scope(|scope| {
        let ((jobs, todo), (tell, done)) = (channel(), channel());
        let call = &mut call;
        // Telling fails where nobody waits any more.
        let work = move || _ = todo.into_iter().map(call).try_for_each(|answer| tell.send(answer));
        let thread = Some(thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, work).ok()?);
        Some(here(&mut Calls(Made::Beside { jobs, done, thread })))
    });
    done.unwrap_or_else(|| here(&mut Calls(Made::Here { call: &mut call, done: VecDeque::new() })))
}

/// Makes one call on a thread of that name, and here does something else again and again until it is through.
pub(crate) fn beside<T: Send>(
    name: &str,
    mut long: impl FnMut() -> T + Send,
    mut meanwhile: impl FnMut(),
) -> T {
    in_turn(
        name,
        |()| long(),
        |calls| {
            calls.give(());
            loop {
                meanwhile();
                if let Some(done) = calls.take() {
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
        let (rounds, told) = channel();
        let mut count = 0;
        // Through only when the caller has been at something else three times.
        let long = move || (0..3).map(|_| told.recv().unwrap()).sum::<i32>();
        let sum = beside("long", long, || {
            count += 1;
            let _ = rounds.send(count);
        });
        assert_eq!(sum, 1 + 2 + 3);
    }

    /// The squares of the numbers below five, three of which are asked for before the first is taken.
    fn squares(calls: &mut Calls<'_, u32, u32>) -> Vec<u32> {
        let mut got = Vec::new();
        (0..3).for_each(|n| calls.give(n));
        let mut later = 3..5;
        while got.len() < 5 {
            if let Some(square) = calls.take() {
                got.push(square);
                later.next().into_iter().for_each(|n| calls.give(n));
            }
        }
        got
    }

    #[test]
    fn calls_are_made_in_their_order_with_or_without_a_thread() {
        assert_eq!(in_turn("squares", |n| n * n, squares), [0, 1, 4, 9, 16]);
        let mut call = |n| n * n;
        let mut calls = Calls(Made::Here { call: &mut call, done: VecDeque::new() });
        assert_eq!(squares(&mut calls), [0, 1, 4, 9, 16]);
    }

    #[test]
    #[should_panic(expected = "inside")]
    fn a_panic_of_the_call_is_the_callers() {
        beside("long", || panic!("inside"), || ());
    }
}
