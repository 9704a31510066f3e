//! The thread `bfd`: sockets and a clock around `tortie_bgp::bfd`, and what ties its sessions to peers.
//!
//! It decides nothing about sessions (that is `tortie-bgp`) and knows no peers (that is [`bindings`], on the speaker's
//! thread). Nothing that the speaker does delays it: it shares no lock with anybody, runs with real-time priority where
//! that is allowed, and what it knows is published by swapping a pointer. It is started with the first peer that wants
//! it.
//!
//! ```text
//!  intent --> bindings (speaker thread) --Wanted, bell--> thread: Bfd <--> UDP 3784, 4784 and a socket for each session
//!               ^   |                                   |  |
//!   BfdDown <---+   `-- status <------ View (swap) -----'  |
//!   (speaker)   `---------------- Told, the speaker's bell-'
//! ```
//!
//! Sessions are those of RFC 5881 (one hop, TTL 255 sent and required) and RFC 5883. A session belongs to a pair of
//! addresses: peers that differ by their port share it. Which of the two it is: several hops with iBGP peers, as BIRD
//! and Junos have it, and with eBGP peers behind a router; one hop with eBGP peers that are on-link when the session
//! begins. `multihop` in the peer's `bfd` decides otherwise (FRR takes on-link iBGP peers for single hop).
//!
//! BFD is not waited for: BGP comes up without it, and ends when it was Up and is lost. An AdminDown of the peer and a
//! BFD that merely began anew end nothing (RFC 5882 3.2). A stop says AdminDown first.

mod bindings;
mod socket;
mod thread;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Instant;

use arc_swap::ArcSwap;
use rustix::event::{EventfdFlags, eventfd};
use tortie_bgp::bfd::{Change, Endpoint, Parameters, Refused, Status};

pub(crate) use self::socket::prioritise;
use crate::speaker::inbox::Inbox;

pub(crate) use bindings::Tie;
pub(crate) use socket::receive as datagram;

/// To the thread.
enum Order {
    /// All sessions that are wanted from now on.
    Follow(Vec<(Endpoint, Parameters)>),
    /// Say farewell and end.
    Stop,
}

/// From the thread.
enum Told {
    /// A session changed its state, at this time.
    Change(Change, Instant),
    /// All that it cannot repair by itself.
    Trouble(Vec<String>),
    /// Something went wrong, and is over.
    Mishap(String),
}

/// How the thread is scheduled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BfdPriority {
    /// SCHED_FIFO.
    RealTime,
    /// A nice value below 0.
    Nice,
    /// Like any other thread: a loaded host can lose sessions.
    #[default]
    Normal,
}

impl BfdPriority {
    /// `realtime`, `nice` or `normal`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RealTime => "realtime",
            Self::Nice => "nice",
            Self::Normal => "normal",
        }
    }
}

/// All sessions a moment ago: at most 100 ms after a change of state, else a second.
#[derive(Debug, Clone, Default)]
pub struct BfdView {
    /// Each session.
    pub sessions: BTreeMap<Endpoint, Status>,
    /// Packets discarded, by reason.
    pub refused: Vec<(Refused, u64)>,
    /// Packets that the kernel did not take.
    pub unsent: u64,
    /// Times that the thread looked so late that silence was no sign of a loss.
    pub late: u64,
    /// How the thread is scheduled.
    pub priority: BfdPriority,
}

/// Talks to the thread.
struct Handle {
    orders: Sender<Order>,
    bell: Arc<OwnedFd>,
    told: Receiver<Told>,
    view: Arc<ArcSwap<BfdView>>,
    thread: Option<JoinHandle<()>>,
}

impl Handle {
    /// Starts the thread, which rings the speaker's bell when it has something to tell.
    fn start(speaker: Arc<Inbox>) -> io::Result<Self> {
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (orders, orders_in) = channel();
        let (told_out, told) = channel();
        let view = Arc::new(ArcSwap::default());
        let driver = thread::Driver::new(bell.clone(), orders_in, told_out, speaker, view.clone())?;
        let thread = std::thread::Builder::new().name("bfd".into()).spawn(move || driver.run())?;
        Ok(Self { orders, bell, told, view, thread: Some(thread) })
    }

    fn order(&self, order: Order) {
        // It ends on `Stop` only, and nothing is ordered after that.
        let _ = self.orders.send(order);
        // An eventfd write fails only when its counter is full, and then it is readable already.
        let _ = rustix::io::write(&*self.bell, &1_u64.to_ne_bytes());
    }

    /// Waits for the end, at most for [`thread::FAREWELL`] after [`Order::Stop`].
    fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
