//! The kernel: routes, nexthop objects, the tunnel device and the sysctls that routing needs, over netlink.
//!
//! What it does not: it decides no routes (`routing::kernel_route` does), knows no BGP and no store, and never touches
//! what others wrote: own objects carry our protocol number, our metric and ids of our range. Netlink types stay inside.
//! Routes stay in the kernel when the thread ends.
//!
//! ```text
//!   core --Intent-->  +---------------- kernel thread (only writer) ----------------+
//!                     | state: table (wanted beside known), picture (links, foreign |
//!   speaker --------> | routes, next hops)                                          |--facts--> core, speaker
//!     Learned, Track  |   plan -> nexthops, routes, leftovers -> netlink batches    |
//!                     +-------------------------------------------------------------+
//!                          ^ mailbox of events                        |
//!                     watch thread <------- notifications -------- Linux
//! ```
//!
//! Whatever may have changed is first taken over into what is *known* (answers to our requests, notifications, dumps);
//! entries whose wanted and known sides differ are dirty and are written. Start, steady state and recovery from lost
//! notifications are the same function with more or fewer dirty entries.

#![warn(missing_docs)]

pub mod container;
mod endpoints;
pub mod fib;
pub mod inspect;
pub mod maintenance;
mod messages;
pub mod netlink;
mod nft;
mod sysctl;
mod thread;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{self, SyncSender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

#[cfg(feature = "test-hooks")]
#[doc(hidden)]
pub use self::nft::Rehearsal;
pub use self::nft::{
    Denial, DropKind, Dropped, Drops, Meaning, RuleCounts, RuleHits, RulePlace, RuleView, Traced, TracedFlow,
    TracedPacket, TracedStep, TracedVerdict, trace,
};
pub use crate::endpoints::EndpointView;
pub use crate::fib::drift_hold::{Difference, LONGEST_HOLD};
pub use crate::fib::resolve::Covering;
pub use crate::inspect::address_use::{Place, Sighting, Sightings, sightings};
pub use crate::inspect::capabilities::{Ability, Outcome, try_abilities};
pub use crate::inspect::default_address::{HostAddress, default_addresses};
pub use crate::inspect::lookup::{ForeignRoute, LinkView, NeighbourEntry, neighbour, protocol_name};
pub use crate::inspect::snapshot::{Look, MainHop, MainRoute, RouteKind};
pub use crate::maintenance::purge::{Purge, Purged, links_named, purge};
pub use crate::messages::*;
pub use crate::netlink::conntrack::{Connection, connections};
pub use crate::thread::metrics::{Compared, DriftCounts, Measures, OPS, RESULTS, RuleDrift, RuleMeasures};
pub use crate::thread::monitor::WatchBatch;
pub use crate::thread::view::{Counters, Counts, Drift, KernelView, RouteCondition, RouteState};

/// Takes facts. It runs on the kernel thread and must not wait for somebody who sends to that thread.
pub type Sink = Box<dyn FnMut(KernelFact) + Send>;

/// Messages that may wait for the kernel thread.
const INBOX: usize = 1024;

/// How the kernel thread runs.
#[derive(Debug, Clone)]
pub struct Options {
    /// What may be done to the kernel's routes.
    pub mode: Mode,
    /// What may be done to its packet rules.
    pub policy: Mode,
    /// Numbers that mark what is ours.
    pub marks: Marks,
    /// Where rules that log send packets: a log group; `None`: the kernel's own log, which network namespaces do not reach.
    pub log_group: Option<u16>,
    /// Nexthop objects: `None` tries whether the kernel has them.
    pub nexthop_objects: Option<bool>,
    /// Receive buffer of the watch thread in bytes, as far as allowed.
    pub watch_buffer: usize,
    /// How long routes on a workload interface are left alone after it was first seen: a plugin writes them before the
    /// store tells of the endpoint.
    pub grace: Duration,
}

impl Options {
    /// Defaults of a real host: protocol 179, metric 1790, nexthop ids from 0x54000000, 8 MiB of buffer, 10 s of grace.
    #[must_use]
    pub fn new(mode: Mode) -> Self {
        Self {
            mode,
            policy: mode,
            log_group: None,
            marks: Marks { protocol: 179, metric: 1790, nexthop_base: 0x5400_0000 },
            nexthop_objects: None,
            watch_buffer: 8 << 20,
            grace: Duration::from_secs(10),
        }
    }
}

/// The running threads. Dropping it ends them; the kernel stays as it is.
#[derive(Debug)]
pub struct KernelHandle {
    sender: SyncSender<ToKernel>,
    stop_watch: Option<Arc<OwnedFd>>,
    drops: Arc<Drops>,
    threads: Vec<JoinHandle<()>>,
}

impl KernelHandle {
    /// Where messages go. Sending waits while 1,024 of them wait.
    #[must_use]
    pub fn sender(&self) -> SyncSender<ToKernel> {
        self.sender.clone()
    }

    /// What packet rules drop.
    #[must_use]
    pub fn drops(&self) -> Arc<Drops> {
        Arc::clone(&self.drops)
    }

    /// Ends the threads and waits for them.
    ///
    /// # Errors
    /// When one of them panicked.
    pub fn stop(mut self) -> std::thread::Result<()> {
        self.end();
        self.threads.drain(..).try_for_each(JoinHandle::join)
    }

    fn end(&mut self) {
        let _ = self.sender.send(ToKernel::Stop);
        if let Some(stop) = self.stop_watch.take() {
            let _ = rustix::io::write(&*stop, &1u64.to_ne_bytes());
        }
    }
}

impl Drop for KernelHandle {
    fn drop(&mut self) {
        self.end();
    }
}

/// Starts the kernel thread and the watch thread in the network namespace of the caller. The first fact is
/// [`KernelFact::Started`].
///
/// # Errors
/// When the netlink sockets cannot be opened.
pub fn spawn(options: &Options, sink: Sink) -> io::Result<KernelHandle> {
    let (sender, inbox) = mpsc::sync_channel(INBOX);
    if options.mode == Mode::Off {
        let state = thread::blank(options, false);
        let kernel = start("kernel", move || crate::thread::off::run_off(&inbox, sink, &state))?;
        let drops = Arc::new(Drops::default());
        drops.worry("the kernel is left alone (--kernel off)".to_owned());
        return Ok(KernelHandle { sender, stop_watch: None, drops, threads: vec![kernel] });
    }
    let writer = crate::netlink::socket::Socket::open()?;
    let mut reader = crate::netlink::socket::Socket::open()?;
    let mailbox = Arc::new(crate::thread::monitor::Mailbox::default());
    // Subscribed before anything is read, so that no change falls between.
    let watcher =
        crate::thread::monitor::Watcher::open(writer.port(), options.watch_buffer, Arc::clone(&mailbox))?;
    let nexthops = match options.nexthop_objects {
        Some(forced) => forced,
        None => thread::has_nexthop_objects(&mut reader)?,
    };
    let stop_watch = Some(watcher.stop());
    let wake = sender.clone();
    let state = thread::blank(options, nexthops);
    let rules = nft::Options { log_group: options.log_group, deny_group: nft::DENY_GROUP };
    let firewall = nft::Firewall::open(options.policy, rules, Instant::now());
    let kernel = thread::Thread::new(
        state,
        crate::thread::inbox::Inbox::new(inbox),
        writer,
        reader,
        mailbox,
        sink,
        firewall,
    );
    let stop = watcher.stop();
    let mut threads = vec![
        start("kernel", move || run("kernel", || kernel.run()))?,
        start("watch", move || run("watch", || watcher.run(&wake)))?,
    ];
    if options.policy == Mode::Program {
        nft::tidy();
    }
    let drops = Arc::new(Drops::default());
    match options.policy {
        Mode::Program => match nft::Listener::open(nft::DENY_GROUP, Arc::clone(&drops)) {
            Ok(listener) => {
                let told = Arc::clone(&drops);
                // Nothing is wrong with forwarding when nobody hears of drops.
                threads.push(start("drops", move || {
                    if let Err(error) = listener.run(&stop) {
                        told.worry(format!("the log group cannot be read any more: {error}"));
                    }
                })?);
            }
            Err(error) => drops.worry(format!("log group {} cannot be read: {error}", nft::DENY_GROUP)),
        },
        Mode::Observe | Mode::Off => drops.worry("this agent writes no packet rules (--policy)".to_owned()),
    }
    Ok(KernelHandle { sender, stop_watch, drops, threads })
}

fn start(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(body)
}

/// A netlink socket that fails leaves nothing to go on with: the process ends, routes stay, graceful restart covers it.
#[expect(clippy::panic, reason = "documented: a panic in any thread ends the process")]
fn run(name: &str, body: impl FnOnce() -> io::Result<()>) {
    if let Err(error) = body() {
        panic!("the {name} thread cannot go on: {error}");
    }
}
