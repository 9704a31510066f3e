//! Rules for tests of one process that may run at the same time.
//!
//! libtest runs as many tests at once as there are processors. Some tests measure delays; others load the
//! whole machine (an emulated PC, 50,000 route changes per second under the kernel's single routing lock) and
//! would make the first kind fail. Tests of one [`Group`] run in parallel up to a limit; tests of different
//! groups never do. A test without a group runs in parallel with all.

use std::cell::Cell;
use std::io::{ErrorKind, Result};
use std::sync::{Condvar, Mutex, PoisonError};

/// Repeats a read that a signal interrupts. Each read of a socket with a timeout needs this: the kernel does not
/// restart it (signal(7)), and a test that starts a program while another of its programs ends interrupts the
/// reads of all threads, although nobody handles SIGCHLD. [`Read::read_exact`](std::io::Read::read_exact) and
/// the others that fill a buffer do it themselves.
pub(crate) fn uninterrupted<T>(mut read: impl FnMut() -> Result<T>) -> Result<T> {
    loop {
        match read() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

/// Tests that may run at the same time.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Group {
    name: &'static str,
    at_once: usize,
}

/// Hosts with agents, with generous time limits.
pub(crate) static LABS: Group = Group { name: "labs", at_once: usize::MAX };
/// Whole labs that measure convergence: the start of a second lab would distort the result.
pub(crate) static MEASURED_LABS: Group = Group { name: "measured labs", at_once: 1 };
/// Emulated machines: each uses all processors for minutes.
pub(crate) static EMULATED: Group = Group { name: "emulated machines", at_once: usize::MAX };
/// Floods of route changes: each takes the kernel's routing lock tens of thousands of times per second.
pub(crate) static ROUTE_FLOODS: Group = Group { name: "route floods", at_once: 2 };
/// Kernel threads with time limits of a few seconds.
pub(crate) static KERNEL_THREADS: Group = Group { name: "kernel threads", at_once: usize::MAX };
/// Tens of thousands of packets, each searched for on every interface.
pub(crate) static PACKETS: Group = Group { name: "packets", at_once: usize::MAX };

/// The running group, and the number of its tests.
static RUNNING: Mutex<Option<(&Group, usize)>> = Mutex::new(None);
static CHANGED: Condvar = Condvar::new();

thread_local! {
    static JOINED: Cell<bool> = const { Cell::new(false) };
}

/// Membership of a test in a group, until dropped.
#[derive(Debug)]
pub(crate) struct Membership {
    /// False if the thread was in a group already, whose membership counts.
    counted: bool,
}

impl Group {
    /// Waits until no other group runs and this one has room. A thread that is in a group stays in it.
    pub(crate) fn join(&'static self) -> Membership {
        if JOINED.replace(true) {
            return Membership { counted: false };
        }
        let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        let mut running = CHANGED
            .wait_while(running, |running| {
                running.is_some_and(|(group, count)| group != self || count >= self.at_once)
            })
            .unwrap_or_else(PoisonError::into_inner);
        let count = running.map_or(0, |(_, count)| count);
        *running = Some((self, count + 1));
        Membership { counted: true }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        if self.counted {
            JOINED.set(false);
            let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
            *running = running.and_then(|(group, count)| (count > 1).then_some((group, count - 1)));
            CHANGED.notify_all();
        }
    }
}
