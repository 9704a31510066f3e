//! Many small BGP sessions from one thread: peers with a few routes each, and an observer that counts what it is sent.
//!
//! Encodes and decodes the little it needs by itself, so that it measures the daemon and shares no bug with it.

use std::collections::{HashSet, VecDeque};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

/// Our keepalives; the hold time is 90 s.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// What to run against a daemon.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// Where the daemon listens.
    pub(crate) target: SocketAddr,
    /// AS of the daemon and of the peers.
    pub(crate) asn: u32,
    /// Addresses (and BGP identifiers) of the peers.
    pub(crate) peers: Vec<Ipv4Addr>,
    /// /26 blocks that each peer announces, consecutive from `base` on.
    pub(crate) blocks: u32,
    /// The first block.
    pub(crate) base: Ipv4Addr,
    /// Address and AS of an eBGP observer.
    pub(crate) observer: Option<(Ipv4Addr, u32)>,
    /// Prefixes that the daemon itself announces.
    pub(crate) originated: usize,
    /// Connects under way at a time; a connect is done when the session is established.
    pub(crate) at_once: usize,
    /// Give up after this time.
    pub(crate) timeout: Duration,
    /// Keep the sessions for this time afterwards and measure the daemon idle.
    pub(crate) idle: Duration,
    /// The daemon's process.
    pub(crate) pid: Option<u32>,
    /// Also wait until the kernel of the daemon's namespace has a route for every block of every peer.
    pub(crate) fib: bool,
}

/// What came out; times in seconds since the first connect of a peer, `None` where the plan's time ran out.
#[derive(Debug, Clone, Default)]
pub(crate) struct Report {
    /// All peers established.
    pub(crate) up: Option<f64>,
    /// The observer has every block of every peer and what the daemon originates.
    pub(crate) observer: Option<f64>,
    /// Every peer has what the daemon originates.
    pub(crate) peers: Option<f64>,
    /// The kernel has every block of every peer.
    pub(crate) fib: Option<f64>,
    /// Peers established at the end.
    pub(crate) established: usize,
    /// Prefixes at the observer at the end.
    pub(crate) observed: usize,
    /// Sessions or connects that ended and were tried again.
    pub(crate) retries: usize,
    /// Of these, established sessions.
    pub(crate) lost: usize,
    /// CPU seconds of the daemon until the last of the above.
    pub(crate) cpu: Option<f64>,
    /// Peak resident memory of the daemon, MB.
    pub(crate) peak_mb: Option<f64>,
    /// Resident memory after the idle time, MB.
    pub(crate) idle_mb: Option<f64>,
    /// Share of a core while idle, percent.
    pub(crate) idle_percent: Option<f64>,
}

#[derive(PartialEq, Eq, Clone, Copy)]
enum Stage {
    Down,
    Connecting,
    OpenSent,
    Up,
}

struct Session {
    source: Ipv4Addr,
    asn: u32,
    ebgp: bool,
    /// First block and how many.
    blocks: (u32, u32),
    socket: Option<Socket>,
    stage: Stage,
    input: Vec<u8>,
    output: Vec<u8>,
    prefixes: HashSet<(u32, u8)>,
    served: bool,
}

/// Runs the plan to its end.
///
/// # Errors
/// When the machine refuses sockets or addresses, or the process cannot be measured.
pub(crate) fn run(plan: &Plan) -> io::Result<Report> {
    let mut load = Load::new(plan)?;
    if let Some((source, asn)) = plan.observer {
        load.add(source, asn, true, (0, 0));
        load.start(0)?;
        let deadline = Instant::now() + plan.timeout;
        while load.up == 0 {
            if Instant::now() > deadline {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the observer's session did not come up",
                ));
            }
            load.step(Duration::from_millis(20))?;
        }
    }
    let first = load.sessions.len();
    (load.up, load.under_way) = (0, 0);
    for (i, source) in (0_u32..).zip(&plan.peers) {
        load.add(*source, plan.asn, false, (i * plan.blocks, plan.blocks));
    }
    let mut waiting: VecDeque<usize> = (first..load.sessions.len()).collect();
    let before = plan.pid.map(cpu_seconds).transpose()?;
    let everything = plan.peers.len() * plan.blocks as usize + plan.originated;
    let mut report = Report::default();
    let fib = plan.pid.filter(|_| plan.fib);
    let routes = fib.map(fib_prefixes).transpose()?.unwrap_or(0) + plan.peers.len() * plan.blocks as usize;
    let mut fib_again = Instant::now();
    let begin = Instant::now();
    while begin.elapsed() < plan.timeout {
        while load.under_way < plan.at_once
            && let Some(next) = waiting.pop_front()
        {
            load.start(next)?;
        }
        load.step(Duration::from_millis(5))?;
        let now = Some(begin.elapsed().as_secs_f64());
        if load.up == plan.peers.len() {
            report.up = report.up.or(now);
        }
        if load.served >= plan.peers.len() {
            report.peers = report.peers.or(now);
        }
        if load.observed() >= everything || plan.observer.is_none() {
            report.observer = report.observer.or(now);
        }
        if let Some(pid) = fib.filter(|_| report.fib.is_none() && fib_again <= Instant::now()) {
            fib_again = Instant::now() + Duration::from_millis(20);
            if fib_prefixes(pid)? >= routes {
                report.fib = now;
            }
        }
        let all = report.up.is_some() && report.peers.is_some() && report.observer.is_some();
        if all && (fib.is_none() || report.fib.is_some()) {
            break;
        }
    }
    report.established = load.up;
    report.observed = load.observed();
    if let (Some(pid), Some(before)) = (plan.pid, before) {
        report.cpu = Some(cpu_seconds(pid)? - before);
        report.peak_mb = Some(memory_mb(pid, "VmHWM:")?);
    }
    if !plan.idle.is_zero() {
        // What is still written or computed is not idle.
        load.run_for(Duration::from_secs(2))?;
        let before = plan.pid.map(cpu_seconds).transpose()?;
        load.run_for(plan.idle)?;
        if let (Some(pid), Some(before)) = (plan.pid, before) {
            report.idle_percent = Some((cpu_seconds(pid)? - before) / plan.idle.as_secs_f64() * 100.0);
            report.idle_mb = Some(memory_mb(pid, "VmRSS:")?);
        }
    }
    report.retries = load.retries;
    report.lost = load.lost;
    Ok(report)
}

struct Load<'a> {
    plan: &'a Plan,
    poll: OwnedFd,
    sessions: Vec<Session>,
    again: VecDeque<(Instant, usize)>,
    keepalives: Instant,
    /// Peers that are established.
    up: usize,
    /// Connects that are not established yet.
    under_way: usize,
    /// Peers that have all that the daemon originates.
    served: usize,
    retries: usize,
    lost: usize,
}

impl<'a> Load<'a> {
    fn new(plan: &'a Plan) -> io::Result<Self> {
        Ok(Self {
            plan,
            poll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            sessions: Vec::new(),
            again: VecDeque::new(),
            keepalives: Instant::now() + KEEPALIVE,
            up: 0,
            under_way: 0,
            served: 0,
            retries: 0,
            lost: 0,
        })
    }

    fn add(&mut self, source: Ipv4Addr, asn: u32, ebgp: bool, blocks: (u32, u32)) {
        self.sessions.push(Session {
            source,
            asn,
            ebgp,
            blocks,
            socket: None,
            stage: Stage::Down,
            input: Vec::new(),
            output: Vec::new(),
            prefixes: HashSet::new(),
            served: false,
        });
    }

    fn observed(&self) -> usize {
        self.sessions.first().filter(|s| s.ebgp).map_or(0, |o| o.prefixes.len())
    }

    fn start(&mut self, index: usize) -> io::Result<()> {
        let Some(session) = self.sessions.get_mut(index) else { return Ok(()) };
        let socket = Socket::new(Domain::IPV4, Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))?;
        socket.set_tcp_nodelay(true)?;
        socket.bind(&SockAddr::from(SocketAddr::from((session.source, 0))))?;
        match socket.connect(&SockAddr::from(self.plan.target)) {
            Err(e) if e.raw_os_error() != Some(libc::EINPROGRESS) => return Err(e),
            _ => {}
        }
        use epoll::EventFlags as F;
        let token = epoll::EventData::new_u64(index as u64);
        epoll::add(&self.poll, &socket, token, F::IN | F::OUT | F::RDHUP | F::ET)?;
        session.socket = Some(socket);
        session.stage = Stage::Connecting;
        self.under_way += 1;
        Ok(())
    }

    fn run_for(&mut self, time: Duration) -> io::Result<()> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.step(Duration::from_millis(50))?;
        }
        Ok(())
    }

    fn step(&mut self, wait: Duration) -> io::Result<()> {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(256);
        let timeout = Timespec { tv_sec: 0, tv_nsec: wait.subsec_nanos().into() };
        match epoll::wait(&self.poll, rustix::buffer::spare_capacity(&mut events), Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        for event in &events {
            let index = usize::try_from(event.data.u64()).unwrap_or(usize::MAX);
            self.serve(index);
        }
        let now = Instant::now();
        while self.again.front().is_some_and(|(at, _)| *at <= now) {
            let Some((_, index)) = self.again.pop_front() else { break };
            self.start(index)?;
        }
        if self.keepalives <= now {
            self.keepalives = now + KEEPALIVE;
            for index in 0..self.sessions.len() {
                if let Some(session) = self.sessions.get_mut(index)
                    && session.stage == Stage::Up
                {
                    session.output.extend(message(4, &[]));
                    self.serve(index);
                }
            }
        }
        Ok(())
    }

    fn serve(&mut self, index: usize) {
        let Some(session) = self.sessions.get_mut(index) else { return };
        let before = session.stage;
        let alive = session.advance(self.plan);
        if before != Stage::Up && session.stage == Stage::Up {
            self.under_way = self.under_way.saturating_sub(1);
            self.up += 1;
        }
        if !session.ebgp
            && !session.served
            && session.stage == Stage::Up
            && session.prefixes.len() >= self.plan.originated
        {
            session.served = true;
            self.served += 1;
        }
        if alive.is_err() {
            if session.stage == Stage::Up {
                self.up = self.up.saturating_sub(1);
                self.lost += 1;
                if std::mem::take(&mut session.served) {
                    self.served -= 1;
                }
            } else {
                self.under_way = self.under_way.saturating_sub(1);
            }
            self.retries += 1;
            session.socket = None;
            session.stage = Stage::Down;
            session.input.clear();
            session.output.clear();
            session.prefixes.clear();
            self.again.push_back((Instant::now() + Duration::from_millis(200), index));
        }
    }
}

impl Session {
    /// Connects, reads and writes as far as it goes.
    fn advance(&mut self, plan: &Plan) -> io::Result<()> {
        let Some(socket) = &self.socket else { return Ok(()) };
        if self.stage == Stage::Connecting {
            if let Some(e) = socket.take_error()? {
                return Err(e);
            }
            if socket.peer_addr().is_err() {
                return Ok(());
            }
            self.stage = Stage::OpenSent;
            self.output.extend(open(self.asn, self.source));
        }
        let mut buffer = [0; 65536];
        let ended = loop {
            match (&mut &*socket).read(&mut buffer) {
                Ok(0) => break Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => self.input.extend_from_slice(buffer.get(..n).unwrap_or_default()),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break Ok(()),
                Err(e) => break Err(e),
            }
        };
        let mut used = 0;
        while let Some(rest) = self.input.get(used..)
            && let Some(len) = rest.get(16..18).map(|b| usize::from(u16::from_be_bytes([b[0], b[1]])))
            && let Some(body) = rest.get(19..len)
        {
            match rest.get(18) {
                Some(1) => self.output.extend(message(4, &[])),
                Some(4) if self.stage == Stage::OpenSent => {
                    self.stage = Stage::Up;
                    if self.blocks.1 > 0 {
                        self.output.extend(update(plan.base, self.blocks, self.source));
                    }
                    // End-of-RIB.
                    self.output.extend(message(2, &[0, 0, 0, 0]));
                }
                Some(2) => count(body, &mut self.prefixes),
                Some(3) => return Err(io::ErrorKind::ConnectionAborted.into()),
                _ => {}
            }
            used += len.max(19);
        }
        self.input.drain(..used.min(self.input.len()));
        while !self.output.is_empty() {
            match (&mut &*socket).write(&self.output) {
                Ok(n) => drop(self.output.drain(..n)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) => return Err(e),
            }
        }
        ended
    }
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![0xff; 16];
    let len = u16::try_from(19 + body.len()).unwrap_or(u16::MAX);
    out.extend(len.to_be_bytes());
    out.push(kind);
    out.extend(body);
    out
}

/// OPEN with hold time 90 s, IPv4 unicast and four-octet AS numbers.
fn open(asn: u32, id: Ipv4Addr) -> Vec<u8> {
    let mut body = vec![4];
    body.extend(u16::try_from(asn).unwrap_or(23456).to_be_bytes());
    body.extend(90_u16.to_be_bytes());
    body.extend(id.octets());
    let mut capabilities = vec![1, 4, 0, 1, 0, 1, 65, 4];
    capabilities.extend(asn.to_be_bytes());
    let len = u8::try_from(capabilities.len()).unwrap_or(0);
    body.extend([len + 2, 2, len]);
    body.extend(capabilities);
    message(1, &body)
}

/// One iBGP UPDATE with consecutive /26 blocks.
fn update(base: Ipv4Addr, (first, blocks): (u32, u32), next_hop: Ipv4Addr) -> Vec<u8> {
    let mut attributes = vec![0x40, 1, 1, 0, 0x40, 2, 0, 0x40, 3, 4];
    attributes.extend(next_hop.octets());
    attributes.extend([0x40, 5, 4, 0, 0, 0, 100]);
    let mut body = vec![0, 0];
    body.extend(u16::try_from(attributes.len()).unwrap_or(0).to_be_bytes());
    body.extend(attributes);
    for block in first..first + blocks {
        body.push(26);
        body.extend((u32::from(base) + block * 64).to_be_bytes());
    }
    message(2, &body)
}

/// Adds and removes the IPv4 prefixes of an UPDATE.
fn count(body: &[u8], prefixes: &mut HashSet<(u32, u8)>) {
    let length =
        |at: usize| body.get(at..at + 2).map_or(0, |b| usize::from(u16::from_be_bytes([b[0], b[1]])));
    let withdrawn = length(0);
    let attributes = length(2 + withdrawn);
    for prefix in list(body.get(2..2 + withdrawn).unwrap_or_default()) {
        prefixes.remove(&prefix);
    }
    prefixes.extend(list(body.get(4 + withdrawn + attributes..).unwrap_or_default()));
}

fn list(mut bytes: &[u8]) -> Vec<(u32, u8)> {
    let mut out = Vec::new();
    while let Some((len, rest)) = bytes.split_first() {
        let octets = usize::from(len.div_ceil(8));
        let Some(prefix) = rest.get(..octets) else { break };
        let mut whole = [0; 4];
        for (to, from) in whole.iter_mut().zip(prefix) {
            *to = *from;
        }
        out.push((u32::from_be_bytes(whole), *len));
        bytes = rest.get(octets..).unwrap_or_default();
    }
    out
}

/// User and system time of all threads.
fn cpu_seconds(pid: u32) -> io::Result<f64> {
    let mut nanoseconds = 0_u64;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
        nanoseconds += text.split_whitespace().next().and_then(|t| t.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(Duration::from_nanos(nanoseconds).as_secs_f64())
}

/// IPv4 prefixes in the main table of the process's namespace.
fn fib_prefixes(pid: u32) -> io::Result<usize> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/net/fib_triestat"))?;
    let main = text.split_once("Main:").map_or("", |(_, rest)| rest);
    let prefixes = main.lines().find_map(|l| l.trim().strip_prefix("Prefixes:")?.trim().parse().ok());
    Ok(prefixes.unwrap_or(0))
}

fn memory_mb(pid: u32, field: &str) -> io::Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let kb = text.lines().find_map(|l| l.strip_prefix(field)?.split_whitespace().next()?.parse::<f64>().ok());
    Ok(kb.unwrap_or(0.0) / 1024.0)
}
