//! Runs many BGP sessions in one thread.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, EventFlags as F};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::received::Universe;
use super::session::{READ, Session, Stage, Target};

const KEEPALIVE: Duration = Duration::from_secs(30);
const RETRY: Duration = Duration::from_millis(200);

pub(crate) struct Load {
    target: SocketAddr,
    universe: Universe,
    poll: OwnedFd,
    pub(crate) sessions: Vec<Session>,
    busy: VecDeque<usize>,
    again: VecDeque<(Instant, usize)>,
    keepalives: Instant,
    scratch: Vec<u8>,
    /// Number of established sessions.
    pub(crate) up: usize,
    /// Number of connections whose session is not established yet.
    pub(crate) under_way: usize,
    /// Number of sessions that have reached their target.
    pub(crate) met: usize,
    /// Number of sessions or connections that ended and were retried.
    pub(crate) retries: usize,
    /// Number of established sessions among `retries`.
    pub(crate) lost: usize,
    /// Error that ended the last session or connection.
    pub(crate) why: Option<io::Error>,
}

impl Load {
    pub(crate) fn new(target: SocketAddr, universe: Universe) -> io::Result<Self> {
        Ok(Self {
            target,
            universe,
            poll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            sessions: Vec::new(),
            busy: VecDeque::new(),
            again: VecDeque::new(),
            keepalives: Instant::now() + KEEPALIVE,
            scratch: vec![0; READ + 65536],
            up: 0,
            under_way: 0,
            met: 0,
            retries: 0,
            lost: 0,
            why: None,
        })
    }

    /// Begins to connect a session.
    pub(crate) fn start(&mut self, index: usize) -> io::Result<()> {
        let Some(session) = self.sessions.get_mut(index) else { return Ok(()) };
        let domain = Domain::for_address(self.target);
        let socket = Socket::new(domain, Type::STREAM.nonblocking().cloexec(), Some(Protocol::TCP))?;
        socket.set_tcp_nodelay(true)?;
        socket.bind(&SockAddr::from(SocketAddr::from((session.source, 0))))?;
        match socket.connect(&SockAddr::from(self.target)) {
            Err(e) if e.raw_os_error() != Some(libc::EINPROGRESS) => return Err(e),
            _ => {}
        }
        self.adopt(index, socket, Stage::Connecting)
    }

    /// Attaches a connection to a session.
    fn adopt(&mut self, index: usize, socket: Socket, stage: Stage) -> io::Result<()> {
        let Some(session) = self.sessions.get_mut(index) else { return Ok(()) };
        let token = epoll::EventData::new_u64(index as u64);
        epoll::add(&self.poll, &socket, token, F::IN | F::OUT | F::RDHUP | F::ET)?;
        session.socket = Some(socket);
        session.stage = stage;
        self.under_way += 1;
        Ok(())
    }

    /// Accepts a connection of the daemon for this session.
    pub(crate) fn accept(&mut self, index: usize, deadline: Instant) -> io::Result<()> {
        let Some(session) = self.sessions.get_mut(index) else { return Ok(()) };
        let listener =
            Socket::new(Domain::for_address(self.target), Type::STREAM.cloexec(), Some(Protocol::TCP))?;
        listener.set_reuse_address(true)?;
        listener.bind(&SockAddr::from(SocketAddr::from((session.source, self.target.port()))))?;
        listener.set_read_timeout(Some(deadline.saturating_duration_since(Instant::now())))?;
        listener.listen(16)?;
        let (socket, _) = listener.accept()?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        session.open();
        self.adopt(index, socket, Stage::OpenSent)?;
        self.serve(index);
        Ok(())
    }

    /// Closes a session's connection with a TCP reset.
    pub(crate) fn reset(&mut self, index: usize) -> io::Result<()> {
        let Some(session) = self.sessions.get_mut(index) else { return Ok(()) };
        if let Some(socket) = &session.socket {
            socket.set_linger(Some(Duration::ZERO))?;
        }
        self.up -= usize::from(session.stage == Stage::Up);
        session.clear();
        Ok(())
    }

    /// Sets the targets of watching sessions.
    pub(crate) fn aim(&mut self, target: impl Fn(usize) -> Target) {
        self.met = 0;
        for (index, session) in self.sessions.iter_mut().enumerate() {
            session.target = target(index);
            (session.met, session.met_at) = (false, None);
            self.met += usize::from(settle(session));
        }
    }

    /// Sends a KEEPALIVE on a session.
    pub(crate) fn keepalive(&mut self, index: usize) {
        if let Some(session) = self.sessions.get_mut(index) {
            session.keepalive();
            self.serve(index);
        }
    }

    /// Queues a session for writing.
    pub(crate) fn poke(&mut self, index: usize) {
        self.busy.push_back(index);
    }

    pub(crate) fn run_for(&mut self, time: Duration) -> io::Result<()> {
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            self.step(left.min(Duration::from_millis(20)))?;
        }
    }

    /// Waits at most `wait` for events, and handles them.
    pub(crate) fn step(&mut self, wait: Duration) -> io::Result<()> {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(512);
        let wait = if self.busy.is_empty() { wait } else { Duration::ZERO };
        let timeout = Timespec { tv_sec: 0, tv_nsec: wait.subsec_nanos().into() };
        match epoll::wait(&self.poll, rustix::buffer::spare_capacity(&mut events), Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        for _ in 0..self.busy.len() {
            let Some(index) = self.busy.pop_front() else { break };
            self.serve(index);
        }
        for event in &events {
            self.serve(usize::try_from(event.data.u64()).unwrap_or(usize::MAX));
        }
        let now = Instant::now();
        while self.again.front().is_some_and(|(at, _)| *at <= now) {
            let Some((_, index)) = self.again.pop_front() else { break };
            self.start(index)?;
        }
        if self.keepalives <= now {
            self.keepalives = now + KEEPALIVE;
            for index in 0..self.sessions.len() {
                self.keepalive(index);
            }
        }
        Ok(())
    }

    fn serve(&mut self, index: usize) {
        let Some(session) = self.sessions.get_mut(index) else { return };
        let before = session.stage;
        let alive = session.advance(&self.universe, &mut self.scratch);
        if before != Stage::Up && session.stage == Stage::Up {
            self.under_way = self.under_way.saturating_sub(1);
            self.up += 1;
        }
        self.met += usize::from(settle(session));
        match alive {
            Ok(true) => self.busy.push_back(index),
            Ok(false) => {}
            Err(why) => {
                if session.stage == Stage::Up {
                    self.up = self.up.saturating_sub(1);
                    self.lost += 1;
                } else {
                    self.under_way = self.under_way.saturating_sub(1);
                }
                self.met -= usize::from(std::mem::take(&mut session.met));
                self.retries += 1;
                self.why = Some(why);
                session.clear();
                self.again.push_back((Instant::now() + RETRY, index));
            }
        }
    }
}

/// Records the time at which a session reaches its target; true if it just did.
fn settle(session: &mut Session) -> bool {
    let has = match session.target {
        _ if !session.watches => false,
        Target::Nothing => false,
        Target::AtLeast(count) => session.stage == Stage::Up && session.received.count >= count,
        Target::AtMost(count) => session.received.count <= count,
        Target::Marks(count) => session.received.marks >= count,
    };
    if has && !session.met {
        session.met = true;
        session.met_at = Some(Instant::now());
        return true;
    }
    false
}
