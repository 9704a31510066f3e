//! Starts and stops the threads: the kernel thread, the watch thread, and the reader of the log group.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{self, SyncSender};
use std::thread::JoinHandle;
use std::time::Instant;

use super::event_loop::Thread;
use super::inbox::{INBOX, Inbox};
use super::messages::{ArrivalReport, ToKernel};
use super::monitor::{EventQueue, MonitorThread};
use super::off::run_off;
use super::state::State;
use crate::arrival::{self, ArrivalWatch};
use crate::facts::Sink;
use crate::netlink::nexthop;
use crate::netlink::socket::Socket;
use crate::nft::{self, DropLog};
use crate::options::{Mode, Options};

/// The running threads. Dropping it stops them; the kernel's state is not changed.
#[derive(Debug)]
pub struct KernelHandle {
    sender: SyncSender<ToKernel>,
    stop_watch: Option<Arc<OwnedFd>>,
    drops: Arc<DropLog>,
    threads: Vec<JoinHandle<()>>,
}

impl KernelHandle {
    /// Returns the sender for messages. It blocks while 1,024 messages wait.
    #[must_use]
    pub fn sender(&self) -> SyncSender<ToKernel> {
        self.sender.clone()
    }

    /// Returns the log of packets dropped by rules.
    #[must_use]
    pub fn drops(&self) -> Arc<DropLog> {
        Arc::clone(&self.drops)
    }

    /// Stops the threads and waits for them.
    ///
    /// # Errors
    /// A thread panicked.
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
/// [`KernelFact::Started`](crate::KernelFact::Started).
///
/// # Errors
/// The netlink sockets cannot be opened.
pub fn spawn(options: &Options, sink: Sink) -> io::Result<KernelHandle> {
    let (sender, inbox) = mpsc::sync_channel(INBOX);
    if options.mode == Mode::Off {
        let state = State::empty(options, false);
        let kernel = start("kernel", move || run_off(&inbox, sink, &state))?;
        let drops = Arc::new(DropLog::default());
        drops.set_problem("the kernel is not used (--kernel off)".to_owned());
        return Ok(KernelHandle { sender, stop_watch: None, drops, threads: vec![kernel] });
    }
    let writer = Socket::open()?;
    let mut reader = Socket::open()?;
    let event_queue = Arc::new(EventQueue::default());
    // Subscribed before the first dump, so that no change is missed in between.
    let monitor_thread = MonitorThread::open(writer.port(), options.watch_buffer, Arc::clone(&event_queue))?;
    let nexthops = match options.nexthop_objects {
        Some(forced) => forced,
        None => has_nexthop_objects(&mut reader)?,
    };
    let stop_watch = Some(monitor_thread.stop());
    let wake = sender.clone();
    let state = State::empty(options, nexthops);
    let rules = nft::Options { log_group: options.log_group, deny_group: nft::DENY_GROUP };
    let firewall = nft::Firewall::open(options.policy, rules, Instant::now());
    let arrivals = Arc::new(ArrivalWatch::new()?);
    let inbox = Inbox::new(inbox);
    let kernel =
        Thread::new(state, inbox, (writer, reader), event_queue, sink, firewall, Arc::clone(&arrivals));
    let (stop, monitor_stop) = (monitor_thread.stop(), monitor_thread.stop());
    let mut threads = vec![
        start("kernel", move || run("kernel", || kernel.run()))?,
        start("watch", move || run("watch", || monitor_thread.run(&wake)))?,
    ];
    let (reports, stop_arrivals) = (sender.clone(), monitor_stop);
    threads.push(start("arrivals", move || {
        let message = |arrival| ToKernel::Arrival(ArrivalReport(arrival));
        run("arrivals", || arrival::run(&arrivals, &stop_arrivals, &reports, message));
    })?);
    if options.policy == Mode::Program {
        nft::tidy();
    }
    let drops = Arc::new(DropLog::default());
    match options.policy {
        Mode::Program => match nft::Listener::open(nft::DENY_GROUP, Arc::clone(&drops)) {
            Ok(listener) => {
                let drop_log = Arc::clone(&drops);
                // Forwarding works even if drops are not counted.
                threads.push(start("drops", move || {
                    if let Err(error) = listener.run(&stop) {
                        drop_log.set_problem(format!("the log group cannot be read any more: {error}"));
                    }
                })?);
            }
            Err(error) => drops.set_problem(format!("log group {} cannot be read: {error}", nft::DENY_GROUP)),
        },
        Mode::Observe | Mode::Off => {
            drops.set_problem("this agent writes no packet rules (--policy)".to_owned())
        }
    }
    Ok(KernelHandle { sender, stop_watch, drops, threads })
}

fn start(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(body)
}

/// A failed netlink socket is fatal: the process ends, routes stay, and graceful restart bridges the time.
#[expect(clippy::panic, reason = "documented: a panic in any thread ends the process")]
fn run(name: &str, body: impl FnOnce() -> io::Result<()>) {
    if let Err(error) = body() {
        panic!("the {name} thread cannot go on: {error}");
    }
}

/// Returns true if the kernel supports nexthop objects, by a test rather than by its version.
fn has_nexthop_objects(socket: &mut Socket) -> io::Result<bool> {
    Ok(socket.dump(nexthop::encode_dump, |_| {})?.is_ok())
}
