//! The epoll set of the speaker thread.
//!
//! epoll is used through rustix, which is a dependency anyway; mio would add its registry and waker for the
//! three calls that this thread makes.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use rustix::event::Timespec;
use rustix::event::epoll;
use tortie_bgp::ConnId;

const WAKEUP: u64 = u64::MAX;
const ADVERTISEMENTS: u64 = u64::MAX - 1;
const LISTENER: u64 = 1 << 63;

/// A source of events in the set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// Messages to the thread; level-triggered.
    Wakeup,
    /// The socket of router advertisements; level-triggered.
    Advertisements,
    /// The listener with this index; edge-triggered.
    Listener(usize),
    /// A connection; edge-triggered.
    Connection(ConnId),
}

impl Source {
    fn token(self) -> u64 {
        match self {
            Self::Wakeup => WAKEUP,
            Self::Advertisements => ADVERTISEMENTS,
            Self::Listener(index) => LISTENER | u64::try_from(index).unwrap_or(0),
            Self::Connection(id) => id.0,
        }
    }

    fn of(token: u64) -> Self {
        match token {
            WAKEUP => Self::Wakeup,
            ADVERTISEMENTS => Self::Advertisements,
            _ if token & LISTENER != 0 => {
                Self::Listener(usize::try_from(token & !LISTENER).unwrap_or(usize::MAX))
            }
            _ => Self::Connection(ConnId(token)),
        }
    }
}

/// Readiness of a socket as epoll reports it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Readiness {
    /// True if data or the end of the stream may be readable.
    pub(crate) readable: bool,
    /// True if the socket may be writable, or has an error.
    pub(crate) writable: bool,
    /// True if the remote side closed or the connection failed.
    pub(crate) hangup: bool,
}

/// Events of one wait; the buffer is reused.
pub(crate) struct Events(Vec<epoll::Event>);

impl Events {
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self(Vec::with_capacity(capacity))
    }

    /// True if more events may be pending.
    pub(crate) fn is_full(&self) -> bool {
        self.0.len() == self.0.capacity()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Source, Readiness)> {
        use epoll::EventFlags as F;
        self.0.iter().map(|event| {
            let (token, flags) = (event.data.u64(), event.flags);
            let hangup = flags.intersects(F::HUP | F::ERR | F::RDHUP);
            let readiness = Readiness {
                readable: hangup || flags.contains(F::IN),
                writable: flags.intersects(F::OUT | F::HUP | F::ERR),
                hangup,
            };
            (Source::of(token), readiness)
        })
    }
}

/// The epoll set.
pub(crate) struct Poller(OwnedFd);

impl Poller {
    pub(crate) fn new() -> io::Result<Self> {
        epoll::create(epoll::CreateFlags::CLOEXEC).map(Self).map_err(Into::into)
    }

    /// Registers a file descriptor until it is closed.
    pub(crate) fn add(&self, source: Source, fd: impl AsFd) -> io::Result<()> {
        use epoll::EventFlags as F;
        let flags = match source {
            Source::Wakeup | Source::Advertisements => F::IN,
            Source::Listener(_) => F::IN | F::ET,
            Source::Connection(_) => F::IN | F::OUT | F::RDHUP | F::ET,
        };
        epoll::add(&self.0, fd, epoll::EventData::new_u64(source.token()), flags).map_err(Into::into)
    }

    /// Waits for events until the deadline (`None`: without limit), and stores them in `events`.
    pub(crate) fn wait(&self, events: &mut Events, deadline: Option<Instant>) -> io::Result<()> {
        events.0.clear();
        let timeout = deadline.map(until);
        match epoll::wait(&self.0, rustix::buffer::spare_capacity(&mut events.0), timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}

/// Returns the time left until a deadline.
pub(crate) fn until(deadline: Instant) -> Timespec {
    let wait = deadline.saturating_duration_since(Instant::now());
    Timespec {
        tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: wait.subsec_nanos().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_names_its_source() {
        for source in [
            Source::Wakeup,
            Source::Advertisements,
            Source::Listener(0),
            Source::Listener(70_000),
            Source::Connection(ConnId(7 << 20 | 3)),
        ] {
            assert_eq!(Source::of(source.token()), source);
        }
    }
}
