//! The speaker thread: sockets, timers, TCP MD5 and TTL security around the BGP speaker of `tortie-bgp`.
//!
//! It owns every BGP socket and the only clock that BGP uses. Decisions about routes are made by `routing`,
//! through `policy`; decisions about sessions by `tortie-bgp`. The thread never blocks: messages to it are
//! merged in its `inbox`, facts go to a non-blocking sink, and learned routes go to the kernel thread in a
//! bounded number of batches.
//!
//! ```text
//!  agent  --ToSpeaker--> inbox --+                         +--> SpeakerFact --> agent
//!                                v                         |
//!  sockets --epoll--> event_loop: Input -> tortie_bgp -> Event, take_best -> LearnedChange -> kernel thread
//!                       ^  |                                                                |
//!                       |  +-- poll_transmit --> sockets               Credit, wake-up <---+
//!                       +-- poll_timeout     bfd: a thread of its own, see `bfd`
//!                       +-- take_tapped --> monitor: subscribers (BMP, MRT), each with a bounded queue
//! ```
//!
//! Order of use, lowest first; a part uses only those before it:
//!
//! 1. `wakeup`, `facts`, `sockets`, `policy`
//! 2. `options`, `faults`, `connections`
//! 3. `peers`
//! 4. `reachability`
//! 5. `bfd`, `unnumbered`
//! 6. `monitor`, `feed`, `abilities`
//! 7. `intent`
//! 8. `rehearsal`
//! 9. `view`
//! 10. `messages`
//! 11. `inbox`
//! 12. `event_loop`, which alone has all parts and the BGP core.

mod abilities;
mod bfd;
mod connections;
mod event_loop;
mod facts;
mod faults;
mod feed;
mod inbox;
mod intent;
mod messages;
mod monitor;
mod options;
mod peers;
mod policy;
mod reachability;
mod rehearsal;
mod sockets;
mod unnumbered;
mod view;
mod wakeup;

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

pub use abilities::{SocketAbility, try_sockets};
pub use bfd::{BfdPriority, BfdView};
pub use facts::{FactSink, SpeakerFact};
pub use feed::LearnedSink;
pub use messages::{Refused, ToSpeaker};
pub use monitor::{Identity, MonitorEvent, MonitorReceiver, MonitorSender, RouteOf, monitor_queue};
pub use options::SpeakerOptions;
pub use peers::RangeView;
pub use policy::origin_kind;
pub use rehearsal::{BgpChanges, PeerRoutes, Rehearsal, RouteChanges};
pub use sockets::connect::connect_failure;
pub use sockets::secret::SECRETS;
pub use view::{Counters, SpeakerMetrics, SpeakerView};

use inbox::Inbox;
use wakeup::Wakeup;

/// Handle of the speaker thread; cheap to clone.
#[derive(Clone)]
pub struct SpeakerHandle(Arc<Inbox>);

impl SpeakerHandle {
    /// Sends a message; never blocks.
    ///
    /// # Errors
    /// Returns [`Refused::Busy`] for resets and queries while thousands are queued, and [`Refused::Stopped`]
    /// after the end.
    pub fn send(&self, message: ToSpeaker) -> Result<(), Refused> {
        self.0.put(message)
    }
}

/// Starts the thread. It listens and connects from the first [`ToSpeaker::Intent`] on and runs until
/// [`ToSpeaker::Shutdown`] is processed; join it afterwards.
///
/// Raises the process's soft limit of open files to the hard limit, since each peer needs a socket.
///
/// # Errors
/// Returns an error when epoll, eventfd or the thread cannot be created.
pub fn spawn(
    options: SpeakerOptions,
    facts: FactSink,
    learned: LearnedSink,
) -> io::Result<(SpeakerHandle, JoinHandle<()>)> {
    raise_file_limit();
    let wakeup = Arc::new(Wakeup::new()?);
    let inbox = Arc::new(Inbox::new(wakeup.clone()));
    let feed = feed::Feed::new(learned, options.kernel, wakeup.clone());
    let event_loop = event_loop::EventLoop::new(options, inbox.clone(), wakeup, facts, feed)?;
    let thread = std::thread::Builder::new().name("speaker".into()).spawn(move || event_loop.run())?;
    Ok((SpeakerHandle(inbox), thread))
}

fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // If raising fails, the soft limit applies; running out of descriptors is reported where it occurs.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
