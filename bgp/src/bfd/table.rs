//! All BFD sessions of a host: packet demultiplexing, timers and transmission.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::time::Instant;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::packet::{PACKET_LEN, Packet, Refused, State};
use super::random::mix;
use super::session::{Session, Transition};
use super::status::{Cause, Parameters, Status};

/// Type of path to the neighbor, which determines the UDP port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Path {
    /// Single hop (RFC 5881), UDP port 3784: packets are sent with TTL 255, and accepted only with TTL 255.
    SingleHop,
    /// Multihop (RFC 5883), UDP port 4784.
    Multihop,
}

impl Path {
    /// Returns the UDP port that both ends listen on.
    #[must_use]
    pub fn port(self) -> u16 {
        match self {
            Self::SingleHop => 3784,
            Self::Multihop => 4784,
        }
    }

    /// Returns the path type as text: `single-hop` or `multihop`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SingleHop => "single-hop",
            Self::Multihop => "multihop",
        }
    }
}

/// Endpoint of a session. Each endpoint has one session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Endpoint {
    /// Address of the neighbor.
    pub remote: IpAddr,
    /// Local address. `None`: selected by the kernel.
    pub local: Option<IpAddr>,
    /// Interface index for a link-local `remote`, else 0.
    pub interface: u32,
    /// Single hop or multihop.
    pub path: Path,
}

/// A received datagram.
#[derive(Debug, Clone, Copy)]
pub struct Received<'a> {
    /// Path type of the local port.
    pub path: Path,
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// Index of the receiving interface.
    pub interface: u32,
    /// TTL or hop limit. `None` (unknown) is rejected where 255 is required.
    pub ttl: Option<u8>,
    /// UDP payload.
    pub payload: &'a [u8],
}

/// A datagram to send, to the port of the endpoint's path type, with TTL or hop limit 255, from the session's
/// own source port in the range 49152 to 65535 (RFC 5881 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transmit {
    /// Destination, with the local address to use.
    pub endpoint: Endpoint,
    /// UDP payload.
    pub payload: [u8; PACKET_LEN],
}

/// A state change of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// Endpoint of the session.
    pub endpoint: Endpoint,
    /// The previous state.
    pub from: State,
    /// The new state.
    pub to: State,
    /// Cause of the change.
    pub cause: Cause,
    /// C bit of the neighbor: its BFD continues while its control plane restarts, so expiry of the detection
    /// time means that forwarding has failed (RFC 5882 4.3.1).
    pub remote_independent: bool,
}

impl Change {
    /// Returns true if the path was up and has failed, so that dependent sessions have to end (RFC 5882 3.2).
    /// False if an end was administratively shut down or the neighbor's BFD restarted.
    #[must_use]
    pub fn is_loss(&self) -> bool {
        self.from == State::Up && matches!(self.cause, Cause::Expired | Cause::NeighborDown(_))
    }
}

#[derive(Debug)]
struct Entry {
    session: Session,
    endpoint: Endpoint,
    /// Time of the entry in `timers`.
    armed: Option<Instant>,
    queued: bool,
}

/// All BFD sessions of a host.
#[derive(Debug)]
pub struct Bfd {
    /// Sessions by local discriminator.
    sessions: FxHashMap<u32, Entry>,
    ids: BTreeMap<Endpoint, u32>,
    by_remote: BTreeMap<(IpAddr, Path), SmallVec<[u32; 1]>>,
    timers: BTreeSet<(Instant, u32)>,
    /// Sessions that may have a packet to send.
    ready: VecDeque<u32>,
    changes: VecDeque<Change>,
    refused: [u64; Refused::ALL.len()],
    random: u64,
}

impl Bfd {
    /// Creates an empty table. Discriminators and jitter derive from `seed`, which should be unpredictable: a
    /// multihop packet is authenticated by its discriminator alone.
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

    /// Adds an endpoint or changes its parameters. A new session starts in Down and sends a packet at once.
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

    /// Removes an endpoint. AdminDown packets are sent for one Detection Time of the neighbor, then the
    /// session is deleted.
    pub fn remove(&mut self, endpoint: &Endpoint, now: Instant) {
        if let Some(id) = self.ids.get(endpoint).copied() {
            self.with(id, |session| session.leave(now));
        }
    }

    /// Removes all endpoints. Complete when [`Self::is_empty`] returns true, but a stopping process need not
    /// wait: each session sends its first AdminDown packet at once.
    pub fn shutdown(&mut self, now: Instant) {
        let ids: Vec<u32> = self.sessions.keys().copied().collect();
        for id in ids {
            self.with(id, |session| session.leave(now));
        }
    }

    /// Returns true if no session is left, including sessions that send AdminDown packets.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// Processes a received datagram (RFC 5880 6.8.6).
    ///
    /// # Errors
    /// Reason for the discard, which is also counted in [`Self::refused`].
    pub fn receive(&mut self, datagram: &Received<'_>, now: Instant) -> Result<(), Refused> {
        let done = self.take(datagram, now);
        if let Err(why) = done
            && let Some(count) = self.refused.get_mut(why.index())
        {
            *count += 1;
        }
        done
    }

    /// Handles due timers. Read the sockets first, or a session may expire although its packets have arrived.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some((at, id)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, id));
            if let Some(entry) = self.sessions.get_mut(&id) {
                entry.armed = None;
            }
            self.with(id, |session| session.handle_timeout(now));
        }
    }

    /// Reports that the host is late: [`Self::handle_timeout`] is called later than [`Self::poll_timeout`] by
    /// a substantial part of a packet interval. A suspended host or a preempted process says nothing about
    /// the path, and packets may not have reached the sockets yet. Sessions whose detection time has expired
    /// are extended by one packet interval of the neighbor, once until a packet arrives.
    pub fn late(&mut self, now: Instant) {
        let due: Vec<u32> = self.timers.iter().take_while(|(at, _)| *at <= now).map(|(_, id)| *id).collect();
        for id in due {
            self.with(id, |session| session.extend_detection(now));
        }
    }

    /// Returns the latest time of the next [`Self::handle_timeout`] call.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Returns the next datagram to send.
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

    /// Returns the oldest state change not taken yet.
    pub fn poll_event(&mut self) -> Option<Change> {
        self.changes.pop_front()
    }

    /// Returns the status of one session.
    #[must_use]
    pub fn status(&self, endpoint: &Endpoint, now: Instant) -> Option<Status> {
        Some(self.sessions.get(self.ids.get(endpoint)?)?.session.status(now))
    }

    /// Returns all sessions by endpoint, except those being removed.
    pub fn sessions(&self, now: Instant) -> impl Iterator<Item = (Endpoint, Status)> {
        self.ids
            .iter()
            .filter_map(move |(endpoint, id)| Some((*endpoint, self.sessions.get(id)?)))
            .filter(|(_, entry)| !entry.session.is_leaving())
            .map(move |(endpoint, entry)| (endpoint, entry.session.status(now)))
    }

    /// Returns the number of packets discarded since the start, by reason.
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

    /// Finds the session of a packet. RFC 5880 6.3 uses the discriminator alone. Here the configured
    /// addresses have to match too, so that an attacker who guesses a discriminator is still rejected.
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
        // A session with a local address is more specific than one without.
        let fitting = || candidates.iter().filter(|id| fits(id));
        let exact = |id: &&u32| self.sessions.get(*id).is_some_and(|e| e.endpoint.local.is_some());
        fitting().find(exact).or_else(|| fitting().next()).copied()
    }

    /// Applies an operation to a session, then updates events, transmit queue and timers.
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
        // A timer that fires early is set again, so only an earlier time requires an update.
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
