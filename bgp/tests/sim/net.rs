//! Simulated network: speakers, connections with delay, and a virtual clock. All randomness derives from one
//! seed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use tortie_bgp::{
    Best, ConnId, Event, Family, GlobalConfig, Input, NextHopState, PeerId, Speaker, State, Transmit,
};
use tortie_net::Cidr;

use crate::support::{Rng, policy, route};
use crate::topology::{Policies, Topology};

/// Octets in transit per connection, above which the writer waits.
const WINDOW: usize = 24 * 1024;
/// Maximum number of calls of a speaker per microsecond; more is an endless loop.
const CALLS: u32 = 200_000;

/// One end of a TCP connection.
#[derive(Debug)]
struct End {
    node: usize,
    other: ConnId,
    link: usize,
    /// Octets in transit to this end, with their arrival times.
    incoming: VecDeque<(u64, Vec<u8>)>,
    waiting: usize,
    /// Time at which the other end's close arrives, after these octets.
    finished: Option<u64>,
    wants: bool,
    /// This end is closing.
    closing: bool,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Clone, Copy)]
enum Happening {
    Wake(usize),
    Read(ConnId),
    Write(ConnId),
    /// The other end reset the connection.
    Reset(ConnId),
    Connect {
        link: usize,
        from: usize,
        born: u64,
        refused: bool,
    },
    NextHop {
        node: usize,
        born: u64,
        address: IpAddr,
    },
    LocalReady {
        node: usize,
        born: u64,
    },
}

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) speaker: Speaker,
    pub(crate) up: bool,
    /// Number of the start, over all nodes.
    pub(crate) born: u64,
    /// The process is suspended: it neither reads nor writes.
    pub(crate) stuck: bool,
    pub(crate) origins: BTreeSet<Cidr>,
    /// Best paths reported by `take_best`.
    pub(crate) best: BTreeMap<Cidr, Best>,
    pub(crate) unreachable: BTreeSet<IpAddr>,
    tracked: BTreeSet<IpAddr>,
    wake_at: Option<u64>,
    calls: (u64, u32),
    /// Connections with octets that the speaker has not read yet.
    unread: BTreeSet<ConnId>,
}

#[derive(Debug, Clone)]
pub(crate) struct Link {
    pub(crate) a: usize,
    pub(crate) b: usize,
    /// One-way delay in microseconds.
    pub(crate) delay: u64,
    /// Connection attempts fail.
    pub(crate) refuses: bool,
    /// The link is blocked; octets are delayed, not lost, as in TCP.
    pub(crate) held: bool,
}

#[derive(Debug)]
pub(crate) struct Net {
    pub(crate) topology: Topology,
    pub(crate) nodes: Vec<Node>,
    pub(crate) links: Vec<Link>,
    pub(crate) rng: Rng,
    base: Instant,
    /// Microseconds since the start.
    pub(crate) now: u64,
    queue: BinaryHeap<Reverse<(u64, u64, Happening)>>,
    ends: BTreeMap<ConnId, End>,
    next_conn: u64,
    born: u64,
    /// Checksum of all events: equal for equal seeds.
    pub(crate) trace: u64,
    /// Number of sessions that came up.
    pub(crate) sessions: u64,
}

impl Net {
    pub(crate) fn new(topology: Topology, seed: u64) -> Self {
        let mut rng = Rng(seed);
        let base = Instant::now();
        let links = topology
            .links
            .iter()
            .map(|&(a, b, _)| {
                let delay = [50, 1000, 20_000, 150_000][rng.below(4)] + rng.micros(1000);
                Link { a, b, delay, refuses: false, held: false }
            })
            .collect();
        let mut net = Self {
            nodes: Vec::new(),
            links,
            rng,
            base,
            now: 0,
            queue: BinaryHeap::new(),
            ends: BTreeMap::new(),
            next_conn: 0,
            born: 0,
            trace: 0,
            sessions: 0,
            topology,
        };
        for node in 0..net.topology.routers.len() {
            let speaker = net.speaker(node, None);
            net.nodes.push(Node {
                speaker,
                up: false,
                born: 0,
                stuck: false,
                origins: BTreeSet::new(),
                best: BTreeMap::new(),
                unreachable: BTreeSet::new(),
                tracked: BTreeSet::new(),
                wake_at: None,
                calls: (0, 0),
                unread: BTreeSet::new(),
            });
        }
        for node in 0..net.nodes.len() {
            net.start(node, None);
        }
        net
    }

    fn speaker(&self, node: usize, restarting: Option<Vec<Family>>) -> Speaker {
        let router = &self.topology.routers[node];
        let global =
            GlobalConfig { restart_time: Duration::from_secs(20), restarting, ..router.global.clone() };
        Speaker::new(global, policy(Policies { relations: self.topology.relations }), self.instant())
    }

    fn instant(&self) -> Instant {
        self.base + Duration::from_micros(self.now)
    }

    fn at(&mut self, delay: u64, what: Happening) {
        // Events at the same microsecond occur in random order.
        let salt = self.rng.next();
        self.queue.push(Reverse((self.now + delay, salt, what)));
    }

    /// Starts the process of a node.
    pub(crate) fn start(&mut self, node: usize, restarting: Option<Vec<Family>>) {
        let speaker = self.speaker(node, restarting);
        self.born += 1;
        let born = self.born;
        let place = &mut self.nodes[node];
        place.speaker = speaker;
        place.up = true;
        place.born = born;
        place.stuck = false;
        place.best.clear();
        place.tracked.clear();
        place.wake_at = None;
        place.unread.clear();
        for (peer, config) in self.topology.peers(node) {
            self.give(node, Input::Peer(PeerId(peer as u32), Box::new(config)));
        }
        let origins: Vec<_> = self.nodes[node].origins.iter().map(|p| (*p, Some(route()))).collect();
        self.give(node, Input::Local(&origins));
        let delay = self.rng.micros(2_000_000);
        self.at(delay, Happening::LocalReady { node, born });
    }

    pub(crate) fn give(&mut self, node: usize, input: Input<'_>) {
        let now = self.instant();
        let place = &mut self.nodes[node];
        if !place.up {
            return;
        }
        place.calls = match place.calls {
            (at, n) if at == self.now => (at, n + 1),
            _ => (self.now, 1),
        };
        assert!(place.calls.1 < CALLS, "speaker {node} does not come to rest");
        place.speaker.handle(input, now);
        self.trace = (self.trace ^ self.now ^ node as u64).wrapping_mul(0x100_0000_01b3);
        self.after(node);
    }

    /// Carries out the actions of a speaker after a call.
    fn after(&mut self, node: usize) {
        while let Some(event) = self.nodes[node].speaker.poll_event() {
            self.event(node, event);
        }
        let place = &mut self.nodes[node];
        let Some(timeout) = place.speaker.poll_timeout() else { return };
        let since = timeout.saturating_duration_since(self.base);
        let mut at = (since.as_nanos().div_ceil(1000) as u64).max(self.now);
        if at == self.now {
            at += self.rng.micros(100);
        }
        let place = &mut self.nodes[node];
        if place.wake_at.is_none_or(|wake| wake > at) {
            place.wake_at = Some(at);
            self.at(at - self.now, Happening::Wake(node));
        }
    }

    fn event(&mut self, node: usize, event: Event) {
        let born = self.nodes[node].born;
        match event {
            Event::Dial(peer) => {
                let link = self.link(node, peer.0 as usize);
                let Link { delay, refuses, held, .. } = self.links[link];
                let far = self.nodes[peer.0 as usize].up && !refuses && !held;
                let wait = if held { 5_000_000 } else { 2 * delay };
                self.at(wait, Happening::Connect { link, from: node, born, refused: !far });
            }
            Event::WantWrite(conn) => {
                if let Some(end) = self.ends.get_mut(&conn) {
                    end.wants = true;
                    let delay = self.rng.micros(50);
                    self.at(delay, Happening::Write(conn));
                }
            }
            Event::Close(conn) => {
                if let Some(end) = self.ends.get_mut(&conn) {
                    end.wants = true;
                    end.closing = true;
                    self.at(0, Happening::Write(conn));
                }
            }
            Event::TrackNextHop(address) => {
                assert!(self.nodes[node].tracked.insert(address.addr()), "{address} tracked twice");
                let delay = self.rng.micros(20_000);
                self.at(delay, Happening::NextHop { node, born, address: address.addr() });
            }
            Event::UntrackNextHop(address) => {
                assert!(self.nodes[node].tracked.remove(&address.addr()), "{address} not tracked");
            }
            Event::BestChanged => {
                let mut out = Vec::new();
                while self.nodes[node].speaker.take_best(7, &mut out) {}
                for change in out {
                    match change.best {
                        Some(best) => self.nodes[node].best.insert(change.prefix, best),
                        None => self.nodes[node].best.remove(&change.prefix),
                    };
                }
            }
            Event::State { to: State::Established, .. } => self.sessions += 1,
            _ => {}
        }
    }

    /// Returns the link between two nodes.
    pub(crate) fn link(&self, a: usize, b: usize) -> usize {
        self.topology.adjacent[a].iter().find(|(peer, _)| *peer == b).unwrap().1
    }

    /// Processes the next event until `until`. Returns false if there is none.
    fn step(&mut self, until: u64) -> bool {
        match self.queue.peek() {
            Some(Reverse((at, ..))) if *at <= until => {}
            _ => return false,
        }
        let Some(Reverse((at, _, what))) = self.queue.pop() else { return false };
        assert!(at >= self.now);
        self.now = at;
        match what {
            Happening::Wake(node) => {
                if self.nodes[node].wake_at == Some(at) {
                    self.nodes[node].wake_at = None;
                    self.give(node, Input::Tick);
                    for conn in std::mem::take(&mut self.nodes[node].unread) {
                        self.read(conn);
                    }
                }
            }
            Happening::Read(conn) => self.read(conn),
            Happening::Write(conn) => self.write(conn),
            Happening::Reset(conn) => {
                let Some(link) = self.ends.get(&conn).map(|e| e.link) else { return true };
                if self.links[link].held {
                    self.at(500_000, what);
                } else {
                    self.drop_end(conn, "connection reset by peer");
                }
            }
            Happening::Connect { link, from, born, refused } => self.connected(link, from, born, refused),
            Happening::NextHop { node, born, address } => {
                if self.nodes[node].born == born {
                    self.report_next_hop(node, address);
                }
            }
            Happening::LocalReady { node, born } => {
                if self.nodes[node].born == born {
                    self.give(node, Input::LocalReady);
                }
            }
        }
        true
    }

    /// Reports the state of a next hop to a node again.
    pub(crate) fn report_next_hop(&mut self, node: usize, address: IpAddr) {
        let place = &self.nodes[node];
        if !place.tracked.contains(&address) {
            return;
        }
        let state = if place.unreachable.contains(&address) {
            NextHopState::Unreachable
        } else {
            NextHopState::Reachable { metric: self.topology.metric(node, address), on_link: true }
        };
        self.give(node, Input::NextHop(address.into(), state));
    }

    fn connected(&mut self, link: usize, from: usize, born: u64, refused: bool) {
        if self.nodes[from].born != born || !self.nodes[from].up {
            return;
        }
        let Link { a, b, refuses, held, .. } = self.links[link];
        let to = if a == from { b } else { a };
        let peer = PeerId(to as u32);
        if refused || refuses || held || !self.nodes[to].up {
            self.give(from, Input::DialFailed { peer, error: "connection refused".into() });
            return;
        }
        let (near, far) = (ConnId(self.next_conn), ConnId(self.next_conn + 1));
        self.next_conn += 2;
        let end = |node, other| End {
            node,
            other,
            link,
            incoming: VecDeque::new(),
            waiting: 0,
            finished: None,
            wants: false,
            closing: false,
        };
        self.ends.insert(near, end(from, far));
        self.ends.insert(far, end(to, near));
        let local = SocketAddr::new(self.topology.address(from), 40_000);
        let remote = SocketAddr::new(self.topology.address(to), 179);
        let dialled = Input::Dialled { peer, conn: near, local, remote };
        let accepted = Input::Accepted { conn: far, local: remote, remote: local };
        if self.rng.below(2) == 0 {
            self.give(from, dialled);
            self.give(to, accepted);
        } else {
            self.give(to, accepted);
            self.give(from, dialled);
        }
    }

    fn write(&mut self, conn: ConnId) {
        let Some(end) = self.ends.get_mut(&conn) else { return };
        let (node, other, link) = (end.node, end.other, end.link);
        if !end.wants || self.nodes[node].stuck {
            return;
        }
        let Some(queued) = self.ends.get(&other).map(|o| o.waiting) else {
            // The other end does not exist: a reset returns.
            let delay = self.links[link].delay;
            self.at(2 * delay, Happening::Reset(conn));
            return;
        };
        let Some(free) = WINDOW.checked_sub(queued).filter(|f| *f > 0) else { return };
        let room = (1 + self.rng.below([16, 500, 16 * 1024][self.rng.clone().below(3)])).min(free);
        let mut octets = Vec::new();
        let now = self.instant();
        let more = self.nodes[node].speaker.poll_transmit(conn, &mut octets, room, now) == Transmit::More;
        let arrival = self.now + self.links[link].delay + self.rng.micros(200);
        let Some(end) = self.ends.get_mut(&conn) else { return };
        end.wants = more;
        let closing = end.closing && !more;
        if let Some(other_end) = self.ends.get_mut(&other) {
            let arrival = other_end.incoming.back().map_or(arrival, |(last, _)| arrival.max(*last));
            other_end.waiting += octets.len();
            if !octets.is_empty() {
                other_end.incoming.push_back((arrival, octets));
            }
            if closing {
                other_end.finished = Some(arrival);
            }
            self.at(arrival - self.now, Happening::Read(other));
        }
        if closing {
            self.ends.remove(&conn);
        } else if more {
            let delay = self.rng.micros(200);
            self.at(delay, Happening::Write(conn));
        }
        self.after(node);
    }

    fn read(&mut self, conn: ConnId) {
        let Some(end) = self.ends.get_mut(&conn) else { return };
        let node = end.node;
        if self.links[end.link].held || self.nodes[node].stuck {
            return;
        }
        if end.closing {
            // Remaining input is ignored.
            end.incoming.clear();
            end.waiting = 0;
            return;
        }
        let now = self.now;
        if end.incoming.is_empty() {
            if end.finished.is_some_and(|at| at <= now) {
                self.drop_end(conn, "closed by the peer");
            }
            return;
        }
        let room = self.nodes[node].speaker.read_room(conn);
        if room == 0 {
            self.nodes[node].unread.insert(conn);
            return;
        }
        let most = room.min(1 + self.rng.below([3, 700, 8192][self.rng.clone().below(3)]));
        let mut octets: Vec<u8> = Vec::new();
        while let Some((arrival, chunk)) = end.incoming.front_mut()
            && *arrival <= now
            && octets.len() < most
        {
            let n = chunk.len().min(most - octets.len());
            octets.extend(chunk.drain(..n));
            if chunk.is_empty() {
                end.incoming.pop_front();
            }
        }
        end.waiting -= octets.len();
        let again = end.finished.is_some() || end.incoming.front().is_some_and(|(at, _)| *at <= now);
        let other = end.other;
        if !octets.is_empty() {
            self.give(node, Input::Data(conn, &octets));
            if self.ends.get(&other).is_some_and(|o| o.wants) {
                self.at(0, Happening::Write(other));
            }
        }
        if again {
            let next = self.ends.get(&conn).and_then(|e| e.incoming.front()).map_or(now, |(at, _)| *at);
            let delay = next.saturating_sub(now) + self.rng.micros(100);
            self.at(delay, Happening::Read(conn));
        }
    }

    /// Removes this end and reports its closing to the speaker.
    fn drop_end(&mut self, conn: ConnId, why: &str) {
        let Some(end) = self.ends.remove(&conn) else { return };
        self.give(end.node, Input::Closed(conn, why.into()));
    }

    pub(crate) fn run(&mut self, micros: u64) {
        let until = self.now + micros;
        while self.step(until) {}
        self.now = until;
    }

    /// Breaks the connections of a link; each end receives a reset.
    pub(crate) fn cut(&mut self, link: usize) {
        let broken: Vec<ConnId> = self.ends.iter().filter(|(_, e)| e.link == link).map(|(c, _)| *c).collect();
        for conn in broken {
            let delay = self.rng.micros(1000 + self.links[link].delay);
            self.at(delay, Happening::Reset(conn));
        }
    }

    /// Kills the process of a node.
    pub(crate) fn kill(&mut self, node: usize) {
        self.nodes[node].up = false;
        let mine: Vec<ConnId> = self.ends.iter().filter(|(_, e)| e.node == node).map(|(c, _)| *c).collect();
        for conn in mine {
            let Some(end) = self.ends.remove(&conn) else { continue };
            let delay = self.links[end.link].delay;
            self.at(delay, Happening::Reset(end.other));
        }
    }

    /// Resumes all delayed reads and writes.
    pub(crate) fn wake_all(&mut self) {
        let all: Vec<ConnId> = self.ends.keys().copied().collect();
        for conn in all {
            self.at(0, Happening::Read(conn));
            self.at(0, Happening::Write(conn));
        }
    }
}
