//! A whole speaker under arbitrary octets, times and events.
//!
//! Properties: the speaker becomes idle within a bounded number of ticks after each input; time advances; all
//! output is framed correctly; memory is bounded by the input; peers that read everything are sent
//! everything, and that equals the tables ([`ReceivedRoutes`]); and nothing is left when all peers are
//! removed. With `run`, logs and table pages are tiny (`cfg(fuzzing)`), so that slow readers fall behind.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use tortie_bgp::wire::{Frame, MessageKind};
use tortie_bgp::{
    ConnId, Drain, Event, Family, Input, NextHopState, Origination, PeerId, PeerStatus, RangeId, Reset,
    RouteTable, Speaker, State, Tag, Transmit,
};

use super::invariants::{BestPaths, check_counts, table};
use super::peers::{ByPrefix, address, config, framed, global, greeting, prefix, range, said};
use super::received::{ReceivedRoutes, theirs};

const PEERS: u8 = 4;
/// Maximum number of ticks until the speaker is idle after an input, and per time step.
const TICKS: usize = 20_000;

struct Rig {
    speaker: Speaker,
    now: Instant,
    start: Instant,
    conns: Vec<ConnId>,
    next: u64,
    dialling: Vec<PeerId>,
    policy: ByPrefix,
    /// Received routes by session.
    received: BTreeMap<ConnId, ReceivedRoutes>,
    best: BestPaths,
    /// Tracked next hops without an answer.
    unanswered: BTreeSet<String>,
    /// Number of octets and events passed in.
    given: usize,
}

impl Rig {
    fn new(choice: u8) -> Self {
        let now = Instant::now();
        let policy = ByPrefix::default();
        let mut rig = Self {
            speaker: Speaker::new(global(choice), policy.handle(), now),
            now,
            start: now,
            conns: vec![],
            next: 0,
            dialling: vec![],
            policy,
            received: BTreeMap::new(),
            best: BestPaths::default(),
            unanswered: BTreeSet::new(),
            given: 0,
        };
        for peer in 0..PEERS {
            rig.give(Input::Peer(PeerId(u32::from(peer)), Box::new(config(peer, choice))));
        }
        rig.give(Input::LocalReady);
        rig
    }

    fn give(&mut self, input: Input<'_>) {
        self.given += 64;
        self.speaker.handle(input, self.now);
        self.events();
        self.rest();
    }

    fn events(&mut self) {
        for n in 0.. {
            let Some(event) = self.speaker.poll_event() else { return };
            assert!(n < TICKS, "events without an end");
            match event {
                Event::Dial(peer) => self.dialling.push(peer),
                Event::Close(conn) => {
                    self.send(conn, 65_536);
                    self.forget(conn);
                }
                // Some next hops are resolved at once, some never, and some become unreachable later.
                Event::TrackNextHop(address) if !address.to_string().ends_with('7') => {
                    let state = NextHopState::Reachable { metric: 1, on_link: true };
                    self.speaker.handle(Input::NextHop(address, state), self.now);
                }
                Event::TrackNextHop(address) => drop(self.unanswered.insert(address.to_string())),
                Event::UntrackNextHop(address) => drop(self.unanswered.remove(&address.to_string())),
                Event::BestChanged => self.best.take(&mut self.speaker),
                _ => {}
            }
        }
    }

    fn rest(&mut self) {
        for _ in 0..TICKS {
            if self.speaker.poll_timeout().is_none_or(|at| at > self.now) {
                return;
            }
            self.speaker.handle(Input::Tick, self.now);
            self.events();
        }
        panic!("the speaker does not come to rest");
    }

    fn wait(&mut self, time: Duration) {
        let until = self.now + time;
        for _ in 0..TICKS {
            let Some(at) = self.speaker.poll_timeout().filter(|at| *at <= until) else {
                self.now = until;
                return;
            };
            self.now = self.now.max(at);
            self.speaker.handle(Input::Tick, self.now);
            self.events();
        }
        panic!("time stands still at {:?}", self.now - self.start);
    }

    /// Takes the output of a connection. Returns its length in octets.
    fn send(&mut self, conn: ConnId, room: usize) -> usize {
        let mut out = Vec::new();
        for _ in 0..64 {
            let before = out.len();
            let answer = self.speaker.poll_transmit(conn, &mut out, room, self.now);
            // Whole messages: `room` is exceeded by at most one message.
            assert!(out.len() - before <= room + 65_535);
            if answer == Transmit::Done || room < 65_536 {
                break;
            }
        }
        let mut rest = &out[..];
        while !rest.is_empty() {
            let frame =
                Frame::next(rest, true).expect("sent what cannot be framed").expect("sent half a message");
            if frame.kind == MessageKind::Update {
                self.receive(conn, frame.body);
            }
            rest = &rest[frame.len..];
        }
        out.len()
    }

    /// Returns the peer of this session.
    fn peer_of(&self, conn: ConnId) -> Option<PeerStatus> {
        self.speaker.peers(self.now).find(|p| p.conn == Some(conn))
    }

    fn receive(&mut self, conn: ConnId, body: &[u8]) {
        if !self.received.contains_key(&conn) {
            // A session that has just ended has no state any more.
            let Some(peer) = self.peer_of(conn) else { return };
            assert_eq!(peer.state, State::Established);
            self.received.insert(conn, ReceivedRoutes::new(&peer));
        }
        if let Some(received) = self.received.get_mut(&conn) {
            received.update(body);
        }
    }

    fn forget(&mut self, conn: ConnId) {
        self.conns.retain(|c| *c != conn);
        self.received.remove(&conn);
    }

    /// Lets all peers read everything, and compares the result with the tables.
    fn settle(&mut self) {
        for round in 0.. {
            assert!(round < TICKS, "there is always more to send");
            let sent: usize = self.conns.clone().into_iter().map(|conn| self.send(conn, 65_536)).sum();
            self.rest();
            if sent == 0 {
                break;
            }
        }
        let peers: Vec<PeerStatus> = self.speaker.peers(self.now).collect();
        for peer in peers.iter().filter(|p| p.state == State::Established) {
            assert!(peer.up_to_date, "{peer:?} waits for something");
            let conn = peer.conn.expect("a session has a connection");
            self.received.entry(conn).or_insert_with(|| ReceivedRoutes::new(peer)).check(&self.speaker, peer);
        }
        for peer in &peers {
            check_counts(&self.speaker, peer);
        }
        self.best.check(&self.speaker, &self.unanswered);
    }

    /// A peer announces or withdraws these prefixes in the format of its session.
    fn routes(&mut self, conn: ConnId, prefixes: &[u8], what: u8) {
        let Some(peer) = self.peer_of(conn) else { return };
        let Some(session) = theirs(&peer) else { return };
        self.data(conn, &said(&session, peer.asn, prefixes, what));
    }

    fn data(&mut self, conn: ConnId, octets: &[u8]) {
        let octets = &octets[..octets.len().min(self.speaker.read_room(conn))];
        self.given += octets.len();
        self.give(Input::Data(conn, octets));
    }

    fn open(&mut self, peer: u8, dialled: bool) {
        let conn = ConnId(self.next);
        self.next += 1;
        let (local, remote) =
            (SocketAddr::from(([192, 0, 2, 99], 179)), SocketAddr::new(address(peer), 40_000));
        self.conns.push(conn);
        if dialled {
            self.give(Input::Dialled { peer: PeerId(u32::from(peer)), conn, local, remote });
        } else {
            self.give(Input::Accepted { conn, local, remote });
        }
    }

    fn check(&self) {
        let memory = self.speaker.totals().memory;
        // A two-octet prefix creates an entry, a path and an announcement per group, and tables grow by
        // doubling.
        let most = 1_000_000 + 1000 * self.given as u64;
        assert!(memory < most, "{memory} octets of memory after {} octets of input", self.given);
    }
}

/// The data is a list of events; the first octet selects the configuration.
pub fn session(data: &[u8]) {
    let Some((choice, mut data)) = data.split_first() else { return };
    let (mut rig, mut ops) = (Rig::new(*choice), 0_u32);
    while let [op, arg, rest @ ..] = data {
        data = rest;
        let peer = arg % PEERS;
        let conn = rig.conns.get(usize::from(*arg) % rig.conns.len().max(1)).copied();
        let mut take = |n: usize| {
            let (taken, left) = data.split_at(n.min(data.len()));
            data = left;
            taken
        };
        match (op % 16, conn) {
            (0, Some(conn)) => {
                let octets = take(usize::from(op >> 4) * 16 + 1);
                rig.data(conn, octets);
            }
            (1 | 2, Some(conn)) => {
                let body = take(usize::from(op >> 4) * 8);
                rig.data(conn, &framed(arg % 7, body));
            }
            // An UPDATE with valid attributes and prefixes chosen by the fuzzer.
            (3, Some(conn)) => {
                let nlri = take(usize::from(op >> 4) * 2);
                let mut body = vec![0, 0, 0, 20, 0x40, 1, 1, 0, 0x40, 2, 6, 2, 1, 0, 0, 0xfb, 0xf0];
                body.extend_from_slice(&[0x40, 3, 4, 192, 0, 2, *arg]);
                body.extend_from_slice(nlri);
                rig.data(conn, &framed(2, &body));
            }
            (4, Some(conn)) => {
                let prefixes = take(usize::from(op >> 4) + 1).to_vec();
                let what = take(1).first().copied().unwrap_or(0);
                rig.routes(conn, &prefixes, what);
            }
            (5, Some(conn)) => rig.data(conn, &framed(4, &[])),
            (6, Some(conn)) => {
                rig.send(conn, 1 + usize::from(op >> 4) * 300);
                rig.rest();
            }
            (7, Some(conn)) => {
                rig.forget(conn);
                rig.give(Input::Closed(conn, "gone".into()));
            }
            (8, _) => {
                rig.open(peer, false);
                if let (Some(conn), [greet]) = (rig.conns.last().copied(), take(1)) {
                    rig.data(conn, &greeting(peer, *greet));
                }
            }
            (9, _) => rig.wait(Duration::from_millis(u64::from(*arg) << (op >> 4))),
            (10, _) => match rig.dialling.pop() {
                Some(PeerId(peer)) if op & 16 == 0 => {
                    rig.open(u8::try_from(peer).unwrap_or(0), true);
                }
                Some(peer) => rig.give(Input::DialFailed { peer, error: "refused".into() }),
                None => {}
            },
            (11, _) => {
                let origination = Origination {
                    communities: vec![u32::from(*op)],
                    large_communities: vec![],
                    local_pref: (op & 32 != 0).then_some(u32::from(*arg)),
                    kind: 1,
                    tag: Tag(u64::from(*arg)),
                };
                rig.give(Input::Local(&[(prefix(*arg), (op & 16 == 0).then_some(origination))]));
            }
            (12, _) => {
                let peer = PeerId(u32::from(peer));
                let drain = [Drain::Off, Drain::Announce, Drain::Withdraw][usize::from(arg >> 2) % 3];
                match op >> 4 {
                    0 | 1 => rig.give(Input::Reset(peer, Reset::SoftIn)),
                    2 | 3 => rig.give(Input::Reset(peer, Reset::SoftOut)),
                    4 => rig.give(Input::Reset(peer, Reset::Hard(String::new()))),
                    5 => rig.give(Input::RemovePeer(peer)),
                    6 => rig.give(Input::BfdDown { peer, text: "cut".into(), independent: arg & 4 != 0 }),
                    7 | 8 => rig.give(Input::Range(RangeId(u32::from(arg & 1)), Box::new(range(*op ^ arg)))),
                    9 => rig.give(Input::RemoveRange(RangeId(u32::from(arg & 1)))),
                    10 => rig.give(Input::Drain((arg & 128 == 0).then_some(peer), drain)),
                    11 => {
                        rig.policy.some.insert(prefix(*arg), arg >> 6);
                        rig.give(Input::PolicyAbout(rig.policy.handle(), &[prefix(*arg)]));
                    }
                    12 => rig.give(Input::LinkDown { peer, text: "no carrier".into() }),
                    13 => rig.give(Input::LinkUp(peer)),
                    14 => rig.give(Input::Global(global(*arg))),
                    _ => rig.settle(),
                }
            }
            (13, _) => rig.give(Input::Peer(PeerId(u32::from(peer)), Box::new(config(peer, *op ^ arg)))),
            (14, _) => {
                let address = if arg & 128 == 0 {
                    IpAddr::V4(Ipv4Addr::new(192, 0, 2, *arg))
                } else {
                    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, (arg & 7).into()))
                };
                let state = if op & 16 == 0 {
                    NextHopState::Unreachable
                } else {
                    NextHopState::Reachable { metric: u32::from(op >> 5), on_link: true }
                };
                rig.unanswered.remove(&address.to_string());
                rig.give(Input::NextHop(address.into(), state));
            }
            (15, _) => {
                rig.policy = ByPrefix { rest: arg % 4, some: BTreeMap::new() };
                rig.give(Input::Policy(rig.policy.handle()));
            }
            _ => rig.open(peer, false),
        }
        // The number of file descriptors of a process is limited.
        if rig.conns.len() > 32 {
            let conn = rig.conns[0];
            rig.forget(conn);
            rig.give(Input::Closed(conn, "gone".into()));
        }
        // Totals take time, so they are checked only now and then.
        ops += 1;
        if ops % 16 == 0 {
            rig.check();
        }
    }
    rig.check();
    rig.settle();
    end(rig);
}

/// Removes all peers and routes and checks that nothing is left.
fn end(mut rig: Rig) {
    for peer in 0..PEERS {
        rig.give(Input::RemovePeer(PeerId(u32::from(peer))));
    }
    for range in 0..2 {
        rig.give(Input::RemoveRange(RangeId(range)));
    }
    assert_eq!(rig.speaker.peers(rig.now).count(), 0, "a peer without a range");
    let none: Vec<_> = (0..=255).map(|n| (prefix(n), None)).collect();
    rig.give(Input::Local(&none));
    rig.wait(Duration::from_secs(600));
    for family in Family::ALL {
        assert!(table(&rig.speaker, RouteTable::Loc, family).is_empty(), "a route without a peer");
    }
    let totals = rig.speaker.totals();
    assert_eq!((totals.paths, totals.prefixes, totals.attribute_sets), ([0, 0], [0, 0], 0));
    assert!(totals.memory < 1_000_000, "{} octets for nothing", totals.memory);
}
