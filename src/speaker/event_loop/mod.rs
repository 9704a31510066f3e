//! The thread: one epoll set, one turn after the other.
//!
//! Sockets are registered once, edge-triggered; what epoll told is remembered in the connection, and connections with
//! something to do stand in a queue. A turn works once through the queue: each connection gets one read and one write
//! of bounded size, so that neither a full feed nor a slow peer delays the others. Nothing in a turn depends on how
//! many peers there are.

mod intent;
mod transport;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll;
use socket2::Socket;
use tortie_bgp::{ConnId, Event, Input, NextHopState, PeerId, Speaker, State};
use tortie_net::ScopedAddr;

use tortie_metrics::Histogram;
use crate::speaker::api::{FactSink, SpeakerFact, SpeakerOptions};
use crate::speaker::bfd::Tie;
use crate::speaker::connections::table::{Conns, Stage};
use crate::speaker::faults::Standing;
use crate::speaker::feed::Feed;
use crate::speaker::inbox::{Inbox, Order};
use crate::speaker::peers::ranges::Ranges;
use crate::speaker::peers::table::Peers;
use crate::speaker::policy::Classes;
use crate::speaker::reachability::fallover::Fallover;
use crate::speaker::sockets::connect;
use crate::speaker::sockets::listen::Listeners;
use crate::speaker::unnumbered::Unnumbered;
use crate::speaker::view::{Counters, SpeakerView};

/// Connections set aside for lack of room that are looked at in a turn.
const UNSTALL: usize = 64;
/// The same when the whole process stops.
const LINGER_STOP: Duration = Duration::from_millis(500);
/// How often password files are looked at: one may be mended, or have another key, which nobody tells.
const SECRETS_LOOK: Duration = Duration::from_secs(10);

const BELL: u64 = u64::MAX;
/// The socket of router advertisements.
pub(crate) const ROUTERS: u64 = u64::MAX - 1;
const LISTENER: u64 = 1 << 63;

pub(crate) struct Driver {
    pub(crate) options: SpeakerOptions,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) facts: FactSink,
    pub(crate) standing: Standing,
    pub(crate) core: Option<Speaker>,
    pub(crate) peers: Peers,
    pub(crate) ranges: Ranges,
    pub(crate) bfd: Tie,
    pub(crate) fallover: Fallover,
    pub(crate) unnumbered: Unnumbered,
    pub(crate) classes: Classes,
    pub(crate) intent: crate::speaker::event_loop::intent::Current,
    pub(crate) listeners: Listeners,
    pub(crate) conns: Conns,
    pub(crate) poll: OwnedFd,
    pub(crate) counters: Counters,
    pub(crate) now: Instant,
    /// When the turn began.
    woke: Instant,
    /// How long turns take: how long anything else has to wait.
    turns: Histogram,
    /// What a read took: UPDATEs parsed, judged and chosen from.
    pub(crate) reads: Histogram,
    pub(crate) secrets_again: Option<Instant>,
    feed: Feed,
    /// Listeners that may have more to accept, and from when on.
    pub(crate) accepting: Vec<(usize, Instant)>,
    stopping: Option<Instant>,
    /// Connections that were set aside may have room again.
    pub(crate) unlooked: bool,
    pub(crate) listeners_of_taps: Vec<crate::speaker::monitor::TapSender>,
    pub(crate) input: Vec<u8>,
    pub(crate) output: Vec<u8>,
}

impl Driver {
    pub(crate) fn new(
        options: SpeakerOptions,
        inbox: Arc<Inbox>,
        facts: FactSink,
        feed: Feed,
    ) -> io::Result<Self> {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&poll, inbox.bell(), epoll::EventData::new_u64(BELL), epoll::EventFlags::IN)?;
        Ok(Self {
            options,
            inbox,
            facts,
            standing: Standing::default(),
            core: None,
            peers: Peers::default(),
            ranges: Ranges::default(),
            bfd: Tie::default(),
            fallover: Fallover::default(),
            unnumbered: Unnumbered::default(),
            classes: Classes::default(),
            intent: crate::speaker::event_loop::intent::Current::default(),
            listeners: Listeners::default(),
            conns: Conns::default(),
            poll,
            counters: Counters::default(),
            now: Instant::now(),
            woke: Instant::now(),
            turns: Histogram::seconds(),
            reads: Histogram::seconds(),
            secrets_again: None,
            feed,
            accepting: Vec::new(),
            stopping: None,
            unlooked: false,
            listeners_of_taps: Vec::new(),
            input: vec![0; transport::READ],
            output: Vec::with_capacity(transport::WRITE),
        })
    }

    /// Runs until a shutdown is done.
    pub(crate) fn run(mut self) {
        let mut events = Vec::with_capacity(512);
        loop {
            events.clear();
            let timeout = self.timeout();
            match epoll::wait(&self.poll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(e) => self.mishap(format!("epoll: {e}")),
            }
            self.now = Instant::now();
            self.woke = self.now;
            let mut bell = false;
            for event in &events {
                let (token, flags) = (event.data.u64(), event.flags);
                if token == BELL {
                    bell = true;
                } else if token == ROUTERS {
                    self.unnumbered_heard();
                } else if token & LISTENER != 0 {
                    let index = usize::try_from(token & !LISTENER).unwrap_or(usize::MAX);
                    if !self.accepting.iter().any(|(i, _)| *i == index) {
                        self.accepting.push((index, self.now));
                    }
                } else {
                    self.ready(ConnId(token), flags);
                }
            }
            if bell {
                self.inbox.hush();
                self.bfd_told();
                self.letters();
            }
            self.turn();
            self.turns.time(self.woke.elapsed());
            if self.stopping.is_some_and(|at| at <= self.now || self.conns.len() == 0) {
                self.inbox.end();
                self.bfd.join();
                (self.facts)(SpeakerFact::Stopped);
                return;
            }
        }
    }

    /// `None`: until something happens.
    fn timeout(&self) -> Option<Timespec> {
        let now = Instant::now();
        let feeding = self.core.is_some() && self.stopping.is_none();
        let at_once = self.conns.queued() > 0
            || (self.unlooked && self.conns.any_stalled())
            || (feeding && self.feed.busy());
        let at = if at_once {
            Some(now)
        } else {
            [
                self.core.as_ref().and_then(Speaker::poll_timeout),
                self.conns.deadline(),
                self.listeners.deadline(),
                self.feed.deadline().filter(|_| feeding),
                self.secrets_again,
                self.unnumbered.deadline(),
                self.fallover.deadline(),
                self.accepting.iter().map(|(_, at)| *at).min(),
                self.stopping,
            ]
            .into_iter()
            .flatten()
            .min()
        };
        at.map(|at| {
            let wait = at.saturating_duration_since(now);
            Timespec {
                tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: wait.subsec_nanos().into(),
            }
        })
    }

    /// What epoll told about a connection.
    fn ready(&mut self, id: ConnId, flags: epoll::EventFlags) {
        use epoll::EventFlags as F;
        let Some(conn) = self.conns.get_mut(id) else { return };
        let ended = flags.intersects(F::HUP | F::ERR | F::RDHUP);
        conn.readable |= ended || flags.contains(F::IN);
        conn.writable |= flags.intersects(F::OUT | F::HUP | F::ERR);
        conn.hangup |= ended;
        self.conns.enqueue(id);
    }

    fn letters(&mut self) {
        let letters = self.inbox.take();
        self.feed.took(letters.kernel_took, self.now);
        if let Some((intent, change)) = letters.intent.filter(|_| self.stopping.is_none()) {
            self.apply(intent, change);
        }
        for (addr, resolved) in letters.next_hops {
            let state = resolved.map_or(NextHopState::Unreachable, |r| NextHopState::Reachable {
                metric: r.metric,
                on_link: r.gateway.is_none(),
            });
            self.give(Input::NextHop(ScopedAddr::from_embedded(addr), state));
            self.bfd_hop(addr, resolved.map(|r| r.gateway.is_none()));
            self.fallover_hop(addr, resolved);
        }
        for order in letters.orders {
            // What a question finds stands behind what led to it.
            self.flush_taps();
            match order {
                Order::LocalReady => self.give(Input::LocalReady),
                Order::Reset(name, kind) => {
                    let ids: Vec<PeerId> = match name {
                        Some(name) => self.peers.id(&name).into_iter().collect(),
                        None => self.peers.ids().collect(),
                    };
                    for id in ids {
                        self.give(Input::Reset(id, kind.clone()));
                    }
                }
                Order::Drain(name, drain) => {
                    let id = name.as_deref().map(|name| self.peers.id(name));
                    // An unknown name is no order for all.
                    if id != Some(None) {
                        self.give(Input::Drain(id.flatten(), drain));
                    }
                }
                Order::Shutdown { graceful, text } => self.stop(graceful, text),
                Order::Tap(listener) => self.tap(listener),
                Order::Query(ask) => ask(&SpeakerView {
                    core: self.core.as_ref(),
                    peers: &self.peers,
                    ranges: &self.ranges,
                    bfd: &self.bfd,
                    counters: &self.counters,
                    conns: &self.conns,
                    measures: (self.feed.measures(), &self.turns, &self.reads),
                    now: self.now,
                }),
            }
        }
    }

    fn stop(&mut self, graceful: bool, text: String) {
        if self.stopping.is_some() {
            return;
        }
        self.stopping = Some(self.now + LINGER_STOP);
        self.bfd.stop();
        self.unnumbered = Unnumbered::default();
        self.listeners.follow(&[], self.now, |_, _| Ok(()));
        self.give(Input::Shutdown { graceful, text });
        // Attempts under way, which the speaker does not know.
        let dialling: Vec<ConnId> = self
            .conns
            .iter()
            .filter(|(_, c)| matches!(c.stage, Stage::Dialling(_)))
            .map(|(id, _)| id)
            .collect();
        for id in dialling {
            self.conns.remove(id);
        }
    }

    fn turn(&mut self) {
        self.deadlines();
        if self.core.as_ref().and_then(Speaker::poll_timeout).is_some_and(|at| at <= self.now) {
            self.give(Input::Tick);
        }
        if self.conns.any_stalled()
            && let Some(core) = &self.core
        {
            // What this turn does may make room, too: the next one looks until nothing has happened in between.
            self.unlooked = !self.conns.unstall(UNSTALL, |id| core.read_room(id) > 0);
        }
        for _ in 0..self.conns.queued() {
            let Some(id) = self.conns.dequeue() else { break };
            self.serve(id);
        }
        // After the sessions that are there: they shall not wait for one that dials a thousand times a second.
        self.accept_all();
        // What a stop takes out of the table stays in the kernel: routes outlive the process.
        if let Some(core) = self.core.as_mut().filter(|_| self.stopping.is_none()) {
            let mut best = Vec::new();
            let listens = (!self.listeners_of_taps.is_empty()).then_some(&mut best);
            self.feed.run(core, &mut self.facts, self.now, self.woke, listens);
            if !best.is_empty() {
                self.tap_best(&best);
            }
            self.events();
        }
        self.follow_dynamic();
        self.flush_taps();
    }

    /// Hands an input to the speaker and does what follows from it.
    pub(crate) fn give(&mut self, input: Input<'_>) {
        let Some(core) = &mut self.core else { return };
        core.handle(input, self.now);
        self.unlooked = true;
        self.events();
    }

    pub(crate) fn events(&mut self) {
        while let Some(event) = self.core.as_mut().and_then(Speaker::poll_event) {
            self.event(event);
        }
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Dial(peer) => self.dial(peer),
            Event::WantWrite(id) => {
                if let Some(conn) = self.conns.get_mut(id) {
                    conn.wants = true;
                    if conn.writable {
                        self.conns.enqueue(id);
                    }
                }
            }
            Event::Close(id) => self.close(id),
            Event::DynamicPeer { peer, range, name, remote } => {
                self.dynamic_peer(peer, range, &name, remote);
            }
            Event::DynamicPeerGone(peer) => self.dynamic_gone(peer),
            Event::State { peer, from, to, down } => {
                if let Some(peer) = self.peers.get(peer) {
                    (self.facts)(SpeakerFact::Peer { name: peer.name.clone(), from, to, down });
                }
                if to == State::Established && from != to {
                    self.bfd_session_up(peer);
                }
            }
            Event::TrackNextHop(addr) if self.options.kernel => {
                self.bfd.hop(addr.embedded(), true);
                (self.facts)(SpeakerFact::TrackNextHop(addr.embedded()));
            }
            Event::TrackNextHop(addr) => {
                if let Some(core) = &mut self.core {
                    let state = NextHopState::Reachable { metric: 0, on_link: true };
                    core.handle(Input::NextHop(addr, state), self.now);
                }
            }
            Event::UntrackNextHop(addr) => {
                let addr = addr.embedded();
                let unused = self.options.kernel && self.bfd.hop(addr, false) && !self.fallover.watches(addr);
                if unused {
                    (self.facts)(SpeakerFact::UntrackNextHop(addr));
                }
            }
            Event::BestChanged => self.feed.changed(),
            Event::Learned { peer, announced, withdrawn, rejected, malformed } => {
                if let Some(peer) = self.peers.get(peer) {
                    let peer = peer.name.clone();
                    (self.facts)(SpeakerFact::Learned { peer, announced, withdrawn, rejected, malformed });
                }
            }
            Event::PrefixWarning { peer, family, received, max } => {
                if let Some(peer) = self.peers.get(peer) {
                    let peer = peer.name.clone();
                    (self.facts)(SpeakerFact::PrefixWarning { peer, family, received, max });
                }
            }
            Event::RestartDone => (self.facts)(SpeakerFact::RestartDone),
            // The core may tell more than this thread has a use for.
            _ => {}
        }
    }

    fn dial(&mut self, id: PeerId) {
        self.abandon(id);
        let Some(peer) = self.peers.get_mut(id) else { return };
        let (remote, local) = (peer.config.remote, peer.config.local);
        let started = connect::start(remote, local, &peer.guard)
            .and_then(|socket| register(&self.poll, &mut self.conns, socket, remote, Stage::Dialling(id)));
        match started {
            Ok(conn) => {
                peer.dialling = Some(conn);
                self.conns.set_deadline(conn, self.now + connect::TIMEOUT);
            }
            Err(e) => {
                // Not `give`: events are being taken already, and those that follow from this are taken there.
                let error = connect::explain(remote, local, &e);
                peer.failures.count(&e);
                if let Some(core) = &mut self.core {
                    core.handle(Input::DialFailed { peer: id, error }, self.now);
                }
            }
        }
    }

    /// An attempt failed after it had begun.
    pub(crate) fn dial_ended(&mut self, id: ConnId, peer: PeerId, error: &io::Error) {
        let Some(conn) = self.conns.remove(id) else { return };
        let mut local = None;
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.dialling = None;
            peer.failures.count(error);
            local = peer.config.local;
        }
        self.give(Input::DialFailed { peer, error: connect::explain(conn.remote, local, error) });
    }

    /// Drops the attempt under way.
    fn abandon(&mut self, id: PeerId) -> bool {
        let dialling = self.peers.get_mut(id).and_then(|p| p.dialling.take());
        dialling.and_then(|conn| self.conns.remove(conn)).is_some()
    }

    /// Drops the attempt under way, if there is one, and says so: it goes to the wrong place or has the wrong key.
    pub(crate) fn redial(&mut self, id: PeerId, why: &str) {
        if self.abandon(id) {
            self.give(Input::DialFailed { peer: id, error: why.into() });
        }
    }

    /// Forgets attempts of a removed peer.
    pub(crate) fn removed(&mut self, id: PeerId) {
        self.abandon(id);
        self.peers.forget(id);
    }

    fn deadlines(&mut self) {
        while let Some(id) = self.conns.expired(self.now) {
            let Some(conn) = self.conns.get(id) else { continue };
            match conn.stage {
                Stage::Dialling(peer) => {
                    self.dial_ended(id, peer, &io::Error::from_raw_os_error(libc::ETIMEDOUT));
                }
                Stage::Flushing | Stage::Draining => {
                    self.conns.remove(id);
                }
                Stage::Open => {}
            }
        }
        if self.stopping.is_some() {
            self.secrets_again = None;
            return;
        }
        if self.listeners.deadline().is_some_and(|at| at <= self.now) {
            self.listen();
        }
        if self.unnumbered.deadline().is_some_and(|at| at <= self.now) {
            self.unnumbered_due();
        }
        self.fallover_due();
        if self.secrets_again.is_some_and(|at| at <= self.now) {
            self.secrets_again = None;
            if self.follow_peers() {
                self.follow_ends();
            }
        }
        if (self.peers.has_key_files() || self.ranges.has_key_files()) && self.secrets_again.is_none() {
            self.secrets_again = Some(self.now + SECRETS_LOOK);
        }
    }
}

/// Adds a connection to the table and the epoll set, for good.
pub(crate) fn register(
    poll: &OwnedFd,
    conns: &mut Conns,
    socket: Socket,
    remote: std::net::SocketAddr,
    stage: Stage,
) -> io::Result<ConnId> {
    use epoll::EventFlags as F;
    let id = conns.insert(socket, remote, stage).ok_or(io::ErrorKind::OutOfMemory)?;
    let added = match conns.get(id) {
        Some(conn) => {
            epoll::add(poll, &conn.socket, epoll::EventData::new_u64(id.0), F::IN | F::OUT | F::RDHUP | F::ET)
        }
        None => Ok(()),
    };
    if let Err(e) = added {
        conns.remove(id);
        return Err(e.into());
    }
    Ok(id)
}

/// Registers a listener.
pub(crate) fn register_listener(poll: &OwnedFd, index: usize, socket: &Socket) -> io::Result<()> {
    let token = LISTENER | u64::try_from(index).unwrap_or(0);
    epoll::add(
        poll,
        socket,
        epoll::EventData::new_u64(token),
        epoll::EventFlags::IN | epoll::EventFlags::ET,
    )?;
    Ok(())
}
