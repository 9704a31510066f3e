//! Event loop of the BFD thread: reads all pending packets, then handles timeouts, then sends.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use rand::Rng;
use rustix::event::Timespec;
use rustix::event::epoll;
use socket2::Socket;
use tortie_bgp::bfd::{self, Bfd, Change, Endpoint, Parameters, Path};

use super::socket;
use super::view::{BfdPriority, BfdView};
use crate::speaker::sockets::{datagram, poller};
use crate::speaker::wakeup::Wakeup;

/// Maximum time that a stop waits for AdminDown packets; each session sends its first one at once.
pub(super) const FAREWELL: Duration = Duration::from_millis(250);
/// Maximum number of packets read from a socket per iteration.
const PACKETS_PER_ITERATION: usize = 1024;
/// Delay from a state change to its publication.
const PUBLISH: Duration = Duration::from_millis(100);
/// Interval at which counters are published while packets flow.
const REFRESH: Duration = Duration::from_secs(1);
/// Delay after a socket could not be opened.
const RETRY: Duration = Duration::from_secs(1);
/// Source ports (RFC 5881, section 4).
const SOURCE_PORTS: std::ops::RangeInclusive<u16> = 49152..=65535;
/// If the thread wakes up later than this, a missing packet proves no failure of the path.
const LATE: Duration = Duration::from_millis(15);
/// Receive buffer in octets; a packet has 24, a longer one is invalid or padded.
const BUFFER: usize = 256;

const WAKEUP: u64 = u64::MAX;

/// Message to the BFD thread.
pub(super) enum Order {
    /// Complete set of intended sessions.
    Follow(Vec<(Endpoint, Parameters)>),
    /// Send AdminDown and end.
    Stop,
}

/// Message from the BFD thread.
pub(super) enum Report {
    /// A session changed its state at this time.
    Change(Change, Instant),
    /// All current faults.
    Faults(Vec<String>),
    /// A problem that is over already.
    Transient(String),
}

/// Listening socket; one per family and path that sessions need.
struct Listener {
    v6: bool,
    path: Path,
    socket: Socket,
}

/// Sending socket of a session.
struct Sending {
    /// Socket and source port; `None` until it could be opened.
    socket: Option<(Socket, u16)>,
    again: Option<Instant>,
    /// Reason why it could not be opened.
    fault: Option<String>,
}

pub(super) struct BfdThread {
    core: Bfd,
    poll: OwnedFd,
    wakeup: Arc<Wakeup>,
    orders: Receiver<Order>,
    reports: Sender<Report>,
    speaker: Arc<Wakeup>,
    view: Arc<ArcSwap<BfdView>>,
    wanted: BTreeMap<Endpoint, Parameters>,
    listeners: Vec<Listener>,
    listen_again: Option<Instant>,
    sending: BTreeMap<Endpoint, Sending>,
    ports: BTreeSet<u16>,
    /// Reasons why a family and path have no listener.
    listen_faults: BTreeMap<(bool, Path), String>,
    /// Faults changed since the last report.
    faults_changed: bool,
    unsent: u64,
    late: u64,
    priority: BfdPriority,
    published: Instant,
    dirty: bool,
    stopping: Option<Instant>,
}

impl BfdThread {
    pub(super) fn new(
        wakeup: Arc<Wakeup>,
        orders: Receiver<Order>,
        reports: Sender<Report>,
        speaker: Arc<Wakeup>,
        view: Arc<ArcSwap<BfdView>>,
    ) -> io::Result<Self> {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&poll, &*wakeup, epoll::EventData::new_u64(WAKEUP), epoll::EventFlags::IN)?;
        Ok(Self {
            core: Bfd::new(rand::rng().random()),
            poll,
            wakeup,
            orders,
            reports,
            speaker,
            view,
            wanted: BTreeMap::new(),
            listeners: Vec::new(),
            listen_again: None,
            sending: BTreeMap::new(),
            ports: BTreeSet::new(),
            listen_faults: BTreeMap::new(),
            faults_changed: false,
            unsent: 0,
            late: 0,
            priority: BfdPriority::Normal,
            published: Instant::now(),
            dirty: true,
            stopping: None,
        })
    }

    pub(super) fn run(mut self) {
        self.priority = socket::prioritise();
        tracing::info!(target: "tortie::bfd", "scheduled as {}", self.priority.as_str());
        let mut events = Vec::with_capacity(8);
        let mut buffer = [0_u8; BUFFER];
        loop {
            events.clear();
            let due = self.core.poll_timeout();
            let timeout = self.timeout();
            match epoll::wait(&self.poll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => {
                    let _ = self.reports.send(Report::Transient(format!("BFD: epoll: {e}")));
                    self.speaker.wake();
                }
            }
            if events.iter().any(|event| event.data.u64() == WAKEUP) && !self.orders() {
                return;
            }
            // Packets are read before timeouts are handled: after a scheduling delay, packets waiting in the
            // sockets must not count as missing.
            self.read(&mut buffer);
            let now = Instant::now();
            self.check_lateness(due, now);
            self.core.handle_timeout(now);
            if self.listen_again.is_some_and(|at| at <= now) {
                self.listen(now);
            }
            self.send();
            self.report();
            self.publish(now);
            if self.core.is_empty() && self.wanted.is_empty() {
                self.listeners.clear();
                self.faults_changed |=
                    std::mem::take(&mut self.sending).into_values().any(|sending| sending.fault.is_some());
                self.ports.clear();
            }
            if self.stopping.is_some_and(|at| at <= now || self.core.is_empty()) {
                return;
            }
        }
    }

    /// Checks whether the thread runs later than `due`.
    fn check_lateness(&mut self, due: Option<Instant>, now: Instant) {
        let late = due.map(|due| now.saturating_duration_since(due)).unwrap_or_default();
        if late >= LATE {
            tracing::debug!(target: "tortie::bfd", "ran {} ms late: missing packets during that time do not \
                                                    count as a loss", late.as_millis());
            self.late += 1;
            self.core.late(now);
        }
    }

    fn timeout(&self) -> Option<Timespec> {
        let publish = self.dirty.then(|| self.published + PUBLISH);
        let report = self.faults_changed.then(Instant::now);
        let at = [self.core.poll_timeout(), self.listen_again, self.stopping, publish, report];
        at.into_iter().flatten().min().map(poller::until)
    }

    /// Processes orders; returns false if the speaker is gone.
    fn orders(&mut self) -> bool {
        self.wakeup.clear();
        loop {
            match self.orders.try_recv() {
                Ok(Order::Follow(wanted)) if self.stopping.is_none() => self.follow(wanted),
                Ok(Order::Follow(_)) => {}
                Ok(Order::Stop) => {
                    let now = Instant::now();
                    self.core.shutdown(now);
                    self.stopping = Some(now + FAREWELL);
                }
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return self.stopping.is_some(),
            }
        }
    }

    fn follow(&mut self, wanted: Vec<(Endpoint, Parameters)>) {
        let now = Instant::now();
        let wanted: BTreeMap<Endpoint, Parameters> = wanted.into_iter().collect();
        for endpoint in self.wanted.keys().filter(|e| !wanted.contains_key(e)) {
            self.core.remove(endpoint, now);
        }
        for (endpoint, parameters) in &wanted {
            if self.wanted.get(endpoint) != Some(parameters) {
                self.core.set(*endpoint, *parameters, now);
            }
        }
        self.wanted = wanted;
        self.dirty = true;
        self.listen(now);
    }

    /// Opens the listeners that the sessions need; they stay open until the last session is gone.
    fn listen(&mut self, now: Instant) {
        self.listen_again = None;
        for (v6, path) in [
            (false, Path::SingleHop),
            (true, Path::SingleHop),
            (false, Path::Multihop),
            (true, Path::Multihop),
        ] {
            let needed = self.wanted.keys().any(|e| e.path == path && e.remote.is_ipv6() == v6);
            if !needed || self.listeners.iter().any(|l| l.v6 == v6 && l.path == path) {
                self.faults_changed |= self.listen_faults.remove(&(v6, path)).is_some();
                continue;
            }
            let opened = socket::listen(v6, path).and_then(|socket| {
                let token = epoll::EventData::new_u64(0);
                epoll::add(&self.poll, &socket, token, epoll::EventFlags::IN)?;
                Ok(socket)
            });
            match opened {
                Ok(socket) => {
                    self.faults_changed |= self.listen_faults.remove(&(v6, path)).is_some();
                    self.listeners.push(Listener { v6, path, socket });
                }
                Err(e) => {
                    self.listen_again = Some(now + RETRY);
                    let fault = explain_listen(path.port(), &e);
                    self.faults_changed |= self.listen_faults.get(&(v6, path)) != Some(&fault);
                    self.listen_faults.insert((v6, path), fault);
                }
            }
        }
    }

    fn read(&mut self, buffer: &mut [u8]) {
        for listener in &self.listeners {
            for _ in 0..PACKETS_PER_ITERATION {
                let got = match datagram::receive(&listener.socket, buffer) {
                    Ok(Some(got)) => got,
                    Ok(None) => continue,
                    // Any other error belongs to a single packet (ICMP); the next call reads the next packet.
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                    Err(_) => continue,
                };
                let datagram = bfd::Received {
                    path: listener.path,
                    source: got.source,
                    destination: got.destination,
                    interface: got.interface,
                    ttl: got.ttl,
                    payload: buffer.get(..got.len).unwrap_or_default(),
                };
                // The core counts rejected packets.
                let _ = self.core.receive(&datagram, Instant::now());
            }
        }
    }

    fn send(&mut self) {
        let mut now = Instant::now();
        while let Some(transmit) = self.core.poll_transmit(now) {
            let sent = self.sender(&transmit.endpoint, now).is_some_and(|socket| {
                socket.send_to(&transmit.payload, &socket::destination(&transmit.endpoint)).is_ok()
            });
            self.unsent += u64::from(!sent);
            now = Instant::now();
        }
    }

    /// Returns the session's socket, and opens it if necessary.
    fn sender(&mut self, endpoint: &Endpoint, now: Instant) -> Option<&Socket> {
        let sending =
            self.sending.entry(*endpoint).or_insert(Sending { socket: None, again: None, fault: None });
        if sending.socket.is_none() && sending.again.is_none_or(|at| at <= now) {
            match open(endpoint, &self.ports) {
                Ok((socket, port)) => {
                    self.ports.insert(port);
                    sending.socket = Some((socket, port));
                    self.faults_changed |= sending.fault.take().is_some();
                }
                Err(e) => {
                    sending.again = Some(now + RETRY);
                    let fault = Some(explain_send(endpoint, &e));
                    self.faults_changed |= sending.fault != fault;
                    sending.fault = fault;
                }
            }
        }
        self.sending.get(endpoint)?.socket.as_ref().map(|(socket, _)| socket)
    }

    fn report(&mut self) {
        let mut reported = false;
        let now = Instant::now();
        while let Some(change) = self.core.poll_event() {
            reported |= self.reports.send(Report::Change(change, now)).is_ok();
            self.dirty = true;
        }
        if std::mem::take(&mut self.faults_changed) {
            let unsent = self.sending.values().filter_map(|sending| sending.fault.as_ref());
            let mut texts: Vec<String> = self.listen_faults.values().chain(unsent).cloned().collect();
            texts.sort_unstable();
            texts.dedup();
            reported |= self.reports.send(Report::Faults(texts)).is_ok();
        }
        if reported {
            self.speaker.wake();
        }
    }

    fn publish(&mut self, now: Instant) {
        let age = now.saturating_duration_since(self.published);
        if age < if self.dirty { PUBLISH } else { REFRESH } {
            return;
        }
        self.published = now;
        self.dirty = false;
        let sessions: std::collections::BTreeMap<_, _> = self.core.sessions(now).collect();
        // Closes the sockets of sessions whose AdminDown was sent.
        if self.sending.len() > sessions.len() {
            let core = &self.core;
            let ports = &mut self.ports;
            self.sending.retain(|endpoint, sending| {
                let keep = core.status(endpoint, now).is_some();
                if let (false, Some((_, port))) = (keep, &sending.socket) {
                    ports.remove(port);
                }
                self.faults_changed |= !keep && sending.fault.is_some();
                keep
            });
        }
        self.view.store(Arc::new(BfdView {
            sessions,
            refused: self.core.refused().collect(),
            unsent: self.unsent,
            late: self.late,
            priority: self.priority,
        }));
    }
}

/// Opens a socket on a source port that no other session uses (RFC 5881, section 4), as long as enough ports
/// are free.
fn open(endpoint: &Endpoint, taken: &BTreeSet<u16>) -> io::Result<(Socket, u16)> {
    let scarce = taken.len() >= SOURCE_PORTS.len() / 2;
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for _ in 0..256 {
        let port = rand::rng().random_range(SOURCE_PORTS);
        if taken.contains(&port) && !scarce {
            continue;
        }
        match socket::sender(endpoint, port) {
            Ok(socket) => return Ok((socket, port)),
            Err(e) if e.kind() == io::ErrorKind::AddrInUse => last = e,
            Err(e) => return Err(e),
        }
    }
    Err(last)
}

fn explain_listen(port: u16, error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!(
                "BFD: another process listens on UDP port {port} (another BFD daemon?); tried again each second"
            )
        }
        _ => format!("BFD: UDP port {port}: {error}; tried again each second"),
    }
}

fn explain_send(endpoint: &Endpoint, error: &io::Error) -> String {
    let local = endpoint.local.map(|local: IpAddr| local.to_string()).unwrap_or_default();
    match error.kind() {
        io::ErrorKind::AddrNotAvailable => {
            format!("BFD with {}: no interface has the local address {local}", endpoint.remote)
        }
        _ => format!("BFD with {}: no socket: {error}", endpoint.remote),
    }
}
