//! Sockets, timers, TCP MD5 and TTL security around the speaker of `tortie-bgp`: one plain thread.
//!
//! It owns every BGP socket and the only clock that BGP sees. It decides nothing about routes (that is `routing`,
//! through `policy`) and nothing about sessions (that is `tortie-bgp`), and it never waits for anybody: letters to it
//! are merged in its `inbox`, facts go to a sink that must not wait, learned routes to the kernel thread in batches,
//! two of them at a time.
//!
//! ```text
//!  agent  --ToSpeaker--> inbox --+                     +--> SpeakerFact --> agent
//!                                v                     |
//!  sockets --epoll--> driver: Input -> tortie_bgp -> Event, take_best --> LearnedChange --> kernel thread
//!                       ^  |                                                              |
//!                       |  +-- poll_transmit --> sockets          KernelTook (agent) <----+
//!                       +-- poll_timeout     bfd: a thread of its own, see there
//!                       +-- take_tapped --> tap: listeners (BMP, MRT), each with a bounded queue
//! ```
//!
//! epoll is used through rustix, which is here anyway: mio would add its registry and its waker for the three calls
//! that this thread makes.

mod abilities;
mod api;
mod bfd;
mod connections;
mod event_loop;
mod faults;
mod feed;
mod inbox;
mod monitor;
mod peers;
mod policy;
mod reachability;
mod sockets;
mod unnumbered;
mod view;

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

pub use abilities::{SocketAbility, try_sockets};
pub use api::{ChangeIds, FactSink, LearnedSink, Refused, SpeakerFact, SpeakerOptions, ToSpeaker};
pub use bfd::{BfdPriority, BfdView};
pub use monitor::{Heard, Identity, RouteOf, TapReceiver, TapSender, tap_queue};
pub use peers::ranges::RangeView;
pub use policy::origin_kind;
pub use sockets::connect::dial_failure;
pub use sockets::secret::SECRETS;
pub use view::{Counters, Measures, SpeakerView};

use inbox::Inbox;

/// Talks to the speaker thread; cheap to clone.
#[derive(Clone)]
pub struct SpeakerHandle(Arc<Inbox>);

impl SpeakerHandle {
    /// Gives a letter; never waits.
    ///
    /// # Errors
    /// [`Refused::Busy`] for resets and questions when thousands wait; [`Refused::Stopped`] after the end.
    pub fn send(&self, message: ToSpeaker) -> Result<(), Refused> {
        self.0.put(message)
    }
}

/// Starts the thread. It listens and dials from the first [`ToSpeaker::Intent`] on and runs until
/// [`ToSpeaker::Shutdown`] is done; join it then.
///
/// Raises the process's soft limit of open files to the hard one: each peer takes a socket.
///
/// # Errors
/// When epoll, eventfd or the thread cannot be had.
pub fn spawn(
    options: SpeakerOptions,
    facts: FactSink,
    learned: LearnedSink,
) -> io::Result<(SpeakerHandle, JoinHandle<()>)> {
    raise_file_limit();
    let inbox = Arc::new(Inbox::new()?);
    let feed = feed::Feed::new(learned, options.kernel, options.changes.clone());
    let driver = event_loop::Driver::new(options, inbox.clone(), facts, feed)?;
    let thread = std::thread::Builder::new().name("speaker".into()).spawn(move || driver.run())?;
    Ok((SpeakerHandle(inbox), thread))
}

fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // Without it there are as many sockets as the soft limit allows; running out is reported where it happens.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
