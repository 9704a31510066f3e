//! Notices workloads that arrive on this host with a live migration, by the packets that they send.
//!
//! A thread of its own waits for them, on sockets that exist only while a workload is expected.

mod packet;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::SyncSender;
use std::sync::{Mutex, PoisonError};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use socket2::{Domain, Protocol, Socket, Type};
use tortie_config::key::EndpointKey;

pub(crate) use packet::Awaited;

/// The workloads that are expected, by endpoint.
pub(crate) type AwaitedWorkloads = BTreeMap<EndpointKey, Awaited>;

/// Maximum number of packets that are read from a socket in a row.
const PACKETS_MAX: usize = 64;

/// A report of the thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// The workload of this endpoint sent a packet.
    Seen(EndpointKey),
    /// Arrivals cannot be noticed, with the reason; `None`: they can.
    Problem(Option<String>),
}

/// Workloads to wait for, shared by the kernel thread and the thread that waits.
#[derive(Debug)]
pub(crate) struct ArrivalWatch {
    awaited: Mutex<AwaitedWorkloads>,
    wake: OwnedFd,
}

impl ArrivalWatch {
    pub(crate) fn new() -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { awaited: Mutex::default(), wake })
    }

    /// Replaces the workloads to wait for.
    pub(crate) fn set(&self, awaited: AwaitedWorkloads) {
        let mut now = self.awaited.lock().unwrap_or_else(PoisonError::into_inner);
        if *now != awaited {
            *now = awaited;
            // It fails only if the counter is full: then the thread is awake.
            let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        }
    }

    fn get(&self) -> AwaitedWorkloads {
        let _ = rustix::io::read(&self.wake, &mut [0_u8; 8]);
        self.awaited.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A workload with the sockets that receive its packets.
struct Waiting {
    awaited: Awaited,
    sockets: Vec<Socket>,
}

/// Reports arrivals until `stop` is readable or nobody takes the reports.
pub(crate) fn run<T>(
    watch: &ArrivalWatch,
    stop: &OwnedFd,
    reports: &SyncSender<T>,
    message: impl Fn(Arrival) -> T,
) -> io::Result<()> {
    let mut waiting: BTreeMap<EndpointKey, Waiting> = BTreeMap::new();
    let mut problem = None;
    loop {
        let mut fds = vec![PollFd::new(stop, PollFlags::IN), PollFd::new(&watch.wake, PollFlags::IN)];
        let sockets = waiting.values().flat_map(|waiting| &waiting.sockets);
        fds.extend(sockets.map(|socket| PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN)));
        match poll(&mut fds, None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        if fds.first().is_some_and(|fd| !fd.revents().is_empty()) {
            return Ok(());
        }
        let changed = fds.get(1).is_some_and(|fd| !fd.revents().is_empty());
        let mut out = Vec::new();
        let seen = |(key, waiting): (&EndpointKey, &Waiting)| waiting.has_sent().then(|| key.clone());
        let arrived: Vec<EndpointKey> = waiting.iter().filter_map(seen).collect();
        for key in arrived {
            // Nothing else is expected of it, until it is set again.
            if let Some(waiting) = waiting.get_mut(&key) {
                waiting.sockets.clear();
            }
            out.push(Arrival::Seen(key));
        }
        if changed {
            let before = std::mem::replace(&mut problem, follow(&mut waiting, watch.get()));
            if before != problem {
                out.push(Arrival::Problem(problem.clone()));
            }
        }
        for arrival in out {
            if reports.send(message(arrival)).is_err() {
                return Ok(());
            }
        }
    }
}

/// Opens and closes sockets. Returns the reason if some cannot be opened.
fn follow(waiting: &mut BTreeMap<EndpointKey, Waiting>, wanted: AwaitedWorkloads) -> Option<String> {
    waiting.retain(|key, there| wanted.get(key) == Some(&there.awaited));
    let mut problem = None;
    for (key, awaited) in wanted {
        if waiting.contains_key(&key) {
            continue;
        }
        match packet::ETHER_TYPES.into_iter().map(|kind| open(kind, awaited.ifindex)).collect() {
            Ok(sockets) => drop(waiting.insert(key, Waiting { awaited, sockets })),
            Err(error) => {
                problem = Some(format!(
                    "the packets of a workload that moves to this host are not seen, so that it is routed only \
                     when the migration ends: a packet socket cannot be opened ({error}); give the agent \
                     CAP_NET_RAW and AF_PACKET"
                ));
            }
        }
    }
    problem
}

/// Opens a socket that receives the packets of one kind from one interface.
fn open(kind: u16, ifindex: u32) -> io::Result<Socket> {
    let protocol = Protocol::from(i32::from(kind.to_be()));
    let socket = Socket::new(Domain::PACKET, Type::RAW.nonblocking().cloexec(), Some(protocol))?;
    socket.attach_filter(&packet::filter(ifindex))?;
    Ok(socket)
}

impl Waiting {
    /// Reads the packets that were received; returns true if the workload sent one. Those received before the
    /// filter was in force may be of other interfaces: their addresses tell.
    fn has_sent(&self) -> bool {
        self.sockets.iter().any(|socket| {
            let frames = std::iter::from_fn(|| read(socket)).take(PACKETS_MAX);
            frames.filter(|frame| self.awaited.sent(frame)).count() > 0
        })
    }
}

/// Reads the beginning of a packet; `None` if there is none.
fn read(socket: &Socket) -> Option<Vec<u8>> {
    let mut frame = vec![0; usize::from(packet::LENGTH)];
    let read = rustix::net::recv(socket, frame.as_mut_slice(), rustix::net::RecvFlags::DONTWAIT).ok()?;
    frame.truncate(read.0);
    Some(frame)
}
