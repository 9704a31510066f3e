//! Wakes a thread that waits in epoll, by an eventfd.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// Becomes readable by [`Self::wake`] and stays readable until [`Self::clear`].
pub(crate) struct Wakeup(OwnedFd);

impl Wakeup {
    pub(crate) fn new() -> io::Result<Self> {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map(Self).map_err(Into::into)
    }

    /// Wakes the thread, now or at its next wait.
    pub(crate) fn wake(&self) {
        // Writing to an eventfd fails only when its counter is full; then it is readable already.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Makes it unreadable. Must be called before the work that it announces is taken, so that a wake-up in
    /// between is not lost.
    pub(crate) fn clear(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.0, &mut count);
    }
}

impl AsFd for Wakeup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
