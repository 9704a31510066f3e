//! A call into Linux that may take long, beside the thread that goes on with something else.
//!
//! Netlink requests are carried out inside of `sendmsg`, and the caller sits in it until they are through: a second while
//! the kernel doubles the trie of a large IPv4 table, longer where it loads modules. Nothing makes such a call come back
//! early, so it is made by another thread, which has nothing of its own and ends with it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// While the call is under way, other things are done this often.
const AGAIN: Duration = Duration::from_millis(1);

/// Makes the call on a thread of that name, and here does something else again and again until it is through.
pub(super) fn beside<T: Send>(
    name: &str,
    mut long: impl FnMut() -> T + Send,
    mut meanwhile: impl FnMut(),
) -> T {
    let here = thread::current();
    let through = AtomicBool::new(false);
    let done = thread::scope(|scope| {
        let work = || {
            let done = long();
            through.store(true, Ordering::Release);
            here.unpark();
            done
        };
        let other = thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, work).ok()?;
        loop {
            meanwhile();
            if through.load(Ordering::Acquire) || other.is_finished() {
                break;
            }
            thread::park_timeout(AGAIN);
        }
        Some(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    // No thread to be had: then nothing else is done.
    done.unwrap_or_else(long)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

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

    #[test]
    #[should_panic(expected = "inside")]
    fn a_panic_of_the_call_is_the_callers() {
        beside("long", || panic!("inside"), || ());
    }
}
