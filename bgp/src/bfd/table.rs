//! All sessions of a host: which packet belongs to which, whose time has come, and what is to be sent.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::Instant;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::packet::{PACKET_LEN, Packet, Refused, State};
use super::random::mix;
use super::session::{Session, Transition};
use super::status::{Cause, Parameters, Status};

/// How the other end is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Path {
    /// RFC 5881: UDP port 3784; sent with TTL 255, and taken with TTL 255 only.
    SingleHop,
    /// RFC 5883: UDP port 4784.
    Multihop,
}

impl Path {
    /// The UDP port that both ends listen on.
    #[must_use]
    pub fn port(self) -> u16 {
        match self {
            Self::SingleHop => 3784,
            Self::Multihop => 4784,
        }
    }

    /// `single-hop` or `multihop`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SingleHop => "single-hop",
            Self::Multihop => "multihop",
        }
    }
}

/// The endpoint that a session watches; no two sessions have an equal one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Endpoint {
    /// The other end.
    pub remote: IpAddr,
    /// Our end; `None`: the kernel's choice.
    pub local: Option<IpAddr>,
    /// The interface of a link-local `remote`, else 0.
    pub interface: u32,
    /// Over one link or several.
    pub path: Path,
}

/// A datagram that came in.
#[derive(Debug, Clone, Copy)]
pub struct Received<'a> {
    /// By the port that it came to.
    pub path: Path,
    /// Sender.
    pub source: IpAddr,
    /// Receiver, an address of ours.
    pub destination: IpAddr,
    /// The interface that it came in on.
    pub interface: u32,
    /// TTL or hop limit; `None` (not given) counts as wrong where it matters.
    pub ttl: Option<u8>,
    /// UDP payload.
    pub payload: &'a [u8],
}

/// A datagram to send, to the port of the endpoint's path, with TTL or hop limit 255, from the session's own source port
/// between 49152 and 65535 (RFC 5881 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transmit {
    /// Where to.
    pub endpoint: Endpoint,
    /// UDP payload.
    pub payload: [u8; PACKET_LEN],
}

/// A change of a session's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// Which.
    pub endpoint: Endpoint,
    /// Before.
    pub from: State,
    /// Now.
    pub to: State,
    /// Why.
    pub cause: Cause,
    /// The other end's C bit: its BFD goes on while its control plane restarts, so its silence means that nothing is
    /// forwarded (RFC 5882 4.3.1).
    pub remote_independent: bool,
}

impl Change {
    /// The path was there and is lost: what relies on it ends now (RFC 5882 3.2). Not so when an end was taken out of
    /// service on purpose, or when the neighbor's BFD merely began anew.
    #[must_use]
    pub fn is_loss(&self) -> bool {
        self.from == State::Up && matches!(self.cause, Cause::Expired | Cause::NeighborDown(_))
    }
}

#[derive(Debug)]
struct Entry {
    session: Session,
    endpoint: Endpoint,
    /// It stands in `timers` with this time.
    armed: Option<Instant>,
    queued: bool,
}

/// The sessions of a host.
#[derive(Debug)]
pub struct Bfd {
    /// By our discriminator.
    sessions: FxHashMap<u32, Entry>,
    ids: BTreeMap<Endpoint, u32>,
    by_remote: BTreeMap<(IpAddr, Path), SmallVec<[u32; 1]>>,
    timers: BTreeSet<(Instant, u32)>,
    /// Sessions that may have something to send.
    ready: VecDeque<u32>,
    changes: VecDeque<Change>,
    refused: [u64; Refused::ALL.len()],
    random: u64,
}

impl Bfd {
    /// No sessions yet. Discriminators and jitter come from `seed`, which should be unpredictable: a discriminator is all
    /// that a multihop packet is known by.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            sessions: FxHashMap::default(),
            ids: BTreeMap::new(),
            by_remote: BTreeMap::new(),
            timers: BTreeSet::new(),
            ready: VecDeque::new(),
            changes: VecDeque::new(),
            refused: [0; Refused::ALL.len()],
            random: seed,
        }
    }

    /// Watches this endpoint, or changes how. A new session begins in Down, with a packet at once.
    pub fn set(&mut self, endpoint: Endpoint, parameters: Parameters, now: Instant) {
        if let Some(id) = self.ids.get(&endpoint).copied() {
            self.with(id, |session| session.set(parameters, now));
            return;
        }
        let id = loop {
            let id = u32::try_from(self.draw() >> 32).unwrap_or(0);
            if id != 0 && !self.sessions.contains_key(&id) {
                break id;
            }
        };
        let session = Session::new(id, parameters, now, self.draw());
        self.sessions.insert(id, Entry { session, endpoint, armed: None, queued: false });
        self.ids.insert(endpoint, id);
        self.by_remote.entry((endpoint.remote, endpoint.path)).or_default().push(id);
        self.with(id, |_| None);
    }

    /// Watches it no more: AdminDown is said for a Detection Time of the other end, then the session is forgotten.
    pub fn remove(&mut self, endpoint: &Endpoint, now: Instant) {
        if let Some(id) = self.ids.get(endpoint).copied() {
            self.with(id, |session| session.leave(now));
        }
    }

    /// Removes all; done when [`Self::is_empty`], which a process that stops need not wait for: each session says AdminDown at once.
    pub fn shutdown(&mut self, now: Instant) {
        let ids: Vec<u32> = self.sessions.keys().copied().collect();
        for id in ids {
            self.with(id, |session| session.leave(now));
        }
    }

    /// No session is left, not even one that says farewell.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// Takes a datagram (RFC 5880 6.8.6).
    ///
    /// # Errors
    /// Why it was discarded; counted in [`Self::refused`] too.
    pub fn receive(&mut self, datagram: &Received<'_>, now: Instant) -> Result<(), Refused> {
        let done = self.take(datagram, now);
        if let Err(why) = done
            && let Some(count) = self.refused.get_mut(why.index())
        {
            *count += 1;
        }
        done
    }

    /// Does what is due. Read what waits in the sockets first: silence is judged by what was received.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some((at, id)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, id));
            if let Some(entry) = self.sessions.get_mut(&id) {
                entry.armed = None;
            }
            self.with(id, |session| session.handle_timeout(now));
        }
    }

    /// Says that this host was not able to look in time: [`Self::handle_timeout`] comes later than
    /// [`Self::poll_timeout`] asked for by a good part of a packet interval. A host that stood still, or a processor that was taken
    /// away, says nothing about the path, and what arrived meanwhile may not be in the sockets yet: sessions whose
    /// detection time is over get one more packet interval of the other end, once until a packet arrives.
    pub fn late(&mut self, now: Instant) {
        let due: Vec<u32> = self.timers.iter().take_while(|(at, _)| *at <= now).map(|(_, id)| *id).collect();
        for id in due {
            self.with(id, |session| session.extend_detection(now));
        }
    }

    /// When to call [`Self::handle_timeout`] at the latest.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// The next datagram to send.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Transmit> {
        while let Some(id) = self.ready.pop_front() {
            let Some(entry) = self.sessions.get_mut(&id) else { continue };
            entry.queued = false;
            let endpoint = entry.endpoint;
            let packet = entry.session.transmit(now);
            self.with(id, |_| None);
            if let Some(packet) = packet {
                return Some(Transmit { endpoint, payload: packet.encode() });
            }
        }
        None
    }

    /// Changes of sessions' states, oldest first.
    pub fn poll_event(&mut self) -> Option<Change> {
        self.changes.pop_front()
    }

    /// One session.
    #[must_use]
    pub fn status(&self, endpoint: &Endpoint, now: Instant) -> Option<Status> {
        Some(self.sessions.get(self.ids.get(endpoint)?)?.session.status(now))
    }

    /// All sessions but those that say farewell, by endpoint.
    pub fn sessions(&self, now: Instant) -> impl Iterator<Item = (Endpoint, Status)> {
        self.ids
            .iter()
            .filter_map(move |(endpoint, id)| Some((*endpoint, self.sessions.get(id)?)))
            .filter(|(_, entry)| !entry.session.is_leaving())
            .map(move |(endpoint, entry)| (endpoint, entry.session.status(now)))
    }

    /// Packets discarded since the start, by reason.
    pub fn refused(&self) -> impl Iterator<Item = (Refused, u64)> {
        Refused::ALL.into_iter().zip(self.refused)
    }

    fn take(&mut self, datagram: &Received<'_>, now: Instant) -> Result<(), Refused> {
        if datagram.path == Path::SingleHop && datagram.ttl != Some(255) {
            return Err(Refused::Ttl);
        }
        let packet = Packet::decode(datagram.payload)?;
        let id = self.find(datagram, packet.your_discriminator).ok_or(Refused::UnknownSession)?;
        let mut done = Ok(());
        self.with(id, |session| {
            session.receive(&packet, now).unwrap_or_else(|why| {
                done = Err(why);
                None
            })
        });
        done
    }

    /// RFC 5880 6.3 lets the discriminator alone decide. The endpoint has to fit as well here: its addresses are
    /// configured, and a stranger who guesses a discriminator gets no further.
    fn find(&self, datagram: &Received<'_>, your_discriminator: u32) -> Option<u32> {
        let fits = |id: &u32| {
            self.sessions.get(id).is_some_and(|entry| {
                let end = &entry.endpoint;
                end.path == datagram.path
                    && end.remote == datagram.source
                    && end.local.is_none_or(|local| local == datagram.destination)
                    && (end.interface == 0 || end.interface == datagram.interface)
            })
        };
        if your_discriminator != 0 {
            return Some(your_discriminator).filter(|id| fits(id));
        }
        let candidates = self.by_remote.get(&(datagram.source, datagram.path))?;
        // One with a local address of its own is closer than one without.
        let fitting = || candidates.iter().filter(|id| fits(id));
        let exact = |id: &&u32| self.sessions.get(*id).is_some_and(|e| e.endpoint.local.is_some());
        fitting().find(exact).or_else(|| fitting().next()).copied()
    }

    /// Does something to a session and draws the consequences.
    fn with(&mut self, id: u32, act: impl FnOnce(&mut Session) -> Transition) {
        let Some(entry) = self.sessions.get_mut(&id) else { return };
        if let Some((from, cause)) = act(&mut entry.session) {
            self.changes.push_back(Change {
                endpoint: entry.endpoint,
                from,
                to: entry.session.state(),
                cause,
                remote_independent: entry.session.remote_independent(),
            });
        }
        if entry.session.is_gone() {
            self.forget(id);
            return;
        }
        if entry.session.wants_transmit() && !std::mem::replace(&mut entry.queued, true) {
            self.ready.push_back(id);
        }
        // A timer that fires early is set again; only an earlier time has to be put in at once.
        if let Some(at) = entry.session.timeout()
            && entry.armed.is_none_or(|armed| at < armed)
        {
            if let Some(armed) = entry.armed.replace(at) {
                self.timers.remove(&(armed, id));
            }
            self.timers.insert((at, id));
        }
    }

    fn forget(&mut self, id: u32) {
        let Some(entry) = self.sessions.remove(&id) else { return };
        if let Some(armed) = entry.armed {
            self.timers.remove(&(armed, id));
        }
        self.ids.remove(&entry.endpoint);
        let key = (entry.endpoint.remote, entry.endpoint.path);
        if let Some(list) = self.by_remote.get_mut(&key) {
            list.retain(|other| *other != id);
            if list.is_empty() {
                self.by_remote.remove(&key);
            }
        }
    }

    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.random)
    }
}
