//! Speakers connected by byte queues on a virtual clock. The order in which octets move is derived from a
//! seed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tortie_bgp::attr::Attributes;
use tortie_bgp::{
    Best, BestChange, ConnId, Event, Family, GlobalConfig, Input, NextHopState, PathInfo, PeerConfig, PeerId,
    PeerStatus, PolicyHandle, RouteMatch, RouteQuery, RouteTable, Speaker, State, Tag, Transmit,
};
use tortie_net::Cidr;

use crate::support::{Rng, TakeAll, cidr, global, peer, policy, route};

/// One end of a TCP connection.
#[derive(Default)]
struct End {
    /// Node and connection of the other end.
    other: Option<(usize, ConnId)>,
    /// Octets in transit to this end.
    incoming: VecDeque<u8>,
    /// The other end closed after these octets.
    finished: bool,
    wants: bool,
    /// This end is closing.
    closing: bool,
}

pub(crate) struct Node {
    pub(crate) speaker: Speaker,
    pub(crate) address: IpAddr,
    pub(crate) best: BTreeMap<Cidr, Best>,
    pub(crate) tags: BTreeMap<Cidr, Tag>,
    pub(crate) events: Vec<Event>,
    pub(crate) up: bool,
    pub(crate) unreachable: BTreeSet<IpAddr>,
    pub(crate) metrics: BTreeMap<IpAddr, u32>,
    pub(crate) tracked: BTreeSet<IpAddr>,
    pub(crate) restart_done: bool,
    /// The process is suspended: it neither reads nor writes.
    pub(crate) stuck: bool,
    /// Maximum octets that its connections write per step.
    pub(crate) room: usize,
}

pub(crate) struct Net {
    pub(crate) nodes: Vec<Node>,
    pub(crate) now: Instant,
    pub(crate) start: Instant,
    ends: BTreeMap<(usize, ConnId), End>,
    next_conn: u64,
    pub(crate) rng: Rng,
    /// Number of calls of `handle`.
    pub(crate) calls: u64,
}

impl Net {
    pub(crate) fn new(seed: u64) -> Self {
        let now = Instant::now();
        Self {
            nodes: Vec::new(),
            now,
            start: now,
            ends: BTreeMap::new(),
            next_conn: 0,
            rng: Rng(seed),
            calls: 0,
        }
    }

    /// Adds a node with address and router id 10.255.0.N (N from 1).
    pub(crate) fn node(&mut self, asn: u32) -> usize {
        let n = u32::try_from(self.nodes.len()).unwrap() + 1;
        let id = 0x0aff_0000 + n;
        self.node_at(IpAddr::V4(Ipv4Addr::from(id)), global(asn, id), policy(TakeAll))
    }

    pub(crate) fn node_at(&mut self, address: IpAddr, global: GlobalConfig, policy: PolicyHandle) -> usize {
        self.nodes.push(Node {
            speaker: Speaker::new(global, policy, self.now),
            address,
            best: BTreeMap::new(),
            tags: BTreeMap::new(),
            events: Vec::new(),
            up: true,
            unreachable: BTreeSet::new(),
            metrics: BTreeMap::new(),
            tracked: BTreeSet::new(),
            restart_done: false,
            stuck: false,
            room: 16 * 1024,
        });
        self.nodes.len() - 1
    }

    pub(crate) fn address(&self, node: usize) -> IpAddr {
        self.nodes[node].address
    }

    pub(crate) fn give(&mut self, node: usize, input: Input<'_>) {
        self.calls += 1;
        let now = self.now;
        self.nodes[node].speaker.handle(input, now);
        self.events(node);
    }

    /// Makes two nodes peers of each other; the peer id of a node is its number.
    pub(crate) fn join(&mut self, a: usize, b: usize, edit: impl Fn(usize, &mut PeerConfig)) {
        self.half(a, b, &edit);
        self.half(b, a, &edit);
    }

    /// Configures `b` as a peer of `a`.
    pub(crate) fn half(&mut self, a: usize, b: usize, edit: &impl Fn(usize, &mut PeerConfig)) {
        let mut config = peer(self.address(b), 64512);
        edit(a, &mut config);
        self.give(a, Input::Peer(PeerId(b as u32), Box::new(config)));
    }

    pub(crate) fn originate(&mut self, node: usize, prefixes: &[&str]) {
        let all: Vec<_> = prefixes.iter().map(|p| (cidr(p), Some(route()))).collect();
        self.give(node, Input::Local(&all));
    }

    pub(crate) fn withdraw(&mut self, node: usize, prefixes: &[&str]) {
        let all: Vec<_> = prefixes.iter().map(|p| (cidr(p), None)).collect();
        self.give(node, Input::Local(&all));
    }

    pub(crate) fn ready_all(&mut self) {
        for node in 0..self.nodes.len() {
            self.give(node, Input::LocalReady);
        }
    }

    fn connect(&mut self, from: usize, peer: PeerId) {
        let status = self.nodes[from].speaker.peer(peer, self.now).unwrap();
        let target = self.nodes.iter().position(|n| n.address == status.remote.ip() && n.up);
        let Some(to) = target else {
            self.give(from, Input::DialFailed { peer, error: "connection refused".into() });
            return;
        };
        let (a, b) = (ConnId(self.next_conn), ConnId(self.next_conn + 1));
        self.next_conn += 2;
        self.ends.insert((from, a), End { other: Some((to, b)), ..End::default() });
        self.ends.insert((to, b), End { other: Some((from, a)), ..End::default() });
        let near = SocketAddr::new(self.address(from), 40_000);
        let far = status.remote;
        let dialled = Input::Dialled { peer, conn: a, local: near, remote: far };
        let accepted = Input::Accepted { conn: b, local: far, remote: near };
        if self.rng.below(2) == 0 {
            self.give(from, dialled);
            self.give(to, accepted);
        } else {
            self.give(to, accepted);
            self.give(from, dialled);
        }
    }

    fn events(&mut self, node: usize) {
        while let Some(event) = self.nodes[node].speaker.poll_event() {
            match &event {
                Event::Dial(peer) => self.connect(node, *peer),
                Event::WantWrite(conn) => {
                    if let Some(end) = self.ends.get_mut(&(node, *conn)) {
                        end.wants = true;
                    }
                }
                Event::Close(conn) => {
                    if let Some(end) = self.ends.get_mut(&(node, *conn)) {
                        end.wants = true;
                        end.closing = true;
                    }
                }
                Event::TrackNextHop(address) => {
                    assert!(self.nodes[node].tracked.insert(address.addr()), "{address} tracked twice");
                    let state = self.resolve(node, address.addr());
                    self.give(node, Input::NextHop(*address, state));
                }
                Event::UntrackNextHop(address) => {
                    assert!(self.nodes[node].tracked.remove(&address.addr()), "{address} not tracked");
                }
                Event::BestChanged => self.take_best(node),
                Event::RestartDone => self.nodes[node].restart_done = true,
                _ => {}
            }
            self.nodes[node].events.push(event);
        }
    }

    fn resolve(&self, node: usize, address: IpAddr) -> NextHopState {
        let node = &self.nodes[node];
        if node.unreachable.contains(&address) {
            return NextHopState::Unreachable;
        }
        NextHopState::Reachable { metric: node.metrics.get(&address).copied().unwrap_or(0), on_link: true }
    }

    /// Reports the state of a next hop to a node again.
    pub(crate) fn next_hop_changed(&mut self, node: usize, address: IpAddr) {
        if self.nodes[node].tracked.contains(&address) {
            let state = self.resolve(node, address);
            self.give(node, Input::NextHop(address.into(), state));
        }
    }

    fn take_best(&mut self, node: usize) {
        let node = &mut self.nodes[node];
        let mut out: Vec<BestChange> = Vec::new();
        while node.speaker.take_best(7, &mut out) {}
        for change in out {
            if change.tag != Tag(0) {
                node.tags.insert(change.prefix, change.tag);
            }
            match change.best {
                Some(best) => node.best.insert(change.prefix, best),
                None => node.best.remove(&change.prefix),
            };
        }
    }

    /// Performs one random possible event. Returns false if there is none.
    fn step(&mut self) -> bool {
        let due: Vec<usize> = (0..self.nodes.len())
            .filter(|n| {
                self.nodes[*n].up && self.nodes[*n].speaker.poll_timeout().is_some_and(|t| t <= self.now)
            })
            .collect();
        let moves: Vec<(usize, ConnId)> = self
            .ends
            .iter()
            .filter(|((n, c), e)| {
                let node = &self.nodes[*n];
                !node.stuck
                    && (e.wants
                        || (!e.closing
                            && ((!e.incoming.is_empty() && node.speaker.read_room(*c) > 0)
                                || (e.incoming.is_empty() && e.finished))))
            })
            .map(|(k, _)| *k)
            .collect();
        let choice = self.rng.below(due.len() + moves.len());
        if let Some(node) = due.get(choice) {
            self.give(*node, Input::Tick);
            return true;
        }
        let Some((node, conn)) = moves.get(choice - due.len().min(choice)).copied() else { return false };
        let write = self.ends[&(node, conn)].wants && self.rng.below(2) == 0;
        if write {
            self.write(node, conn)
        } else {
            self.read(node, conn)
        }
        true
    }

    fn write(&mut self, node: usize, conn: ConnId) {
        let room = 1 + self.rng.below(self.nodes[node].room);
        let mut bytes = Vec::new();
        let now = self.now;
        let more = self.nodes[node].speaker.poll_transmit(conn, &mut bytes, room, now) == Transmit::More;
        assert!(!more || !bytes.is_empty() || self.nodes[node].speaker.poll_timeout().is_some());
        let Some(end) = self.ends.get_mut(&(node, conn)) else { return };
        end.wants = more;
        let (other, closing) = (end.other, end.closing && !more);
        if let Some(other) = other.and_then(|o| self.ends.get_mut(&o)) {
            other.incoming.extend(bytes);
            other.finished |= closing;
        }
        if closing {
            self.ends.remove(&(node, conn));
        }
        self.events(node);
    }

    fn read(&mut self, node: usize, conn: ConnId) {
        let room = self.nodes[node].speaker.read_room(conn);
        let most = 1 + self.rng.below(8192);
        let Some(end) = self.ends.get_mut(&(node, conn)) else { return };
        if end.closing {
            self.write(node, conn);
            return;
        }
        let count = end.incoming.len().min(room).min(most);
        if count > 0 {
            let bytes: Vec<u8> = end.incoming.drain(..count).collect();
            self.give(node, Input::Data(conn, &bytes));
        } else if end.finished && end.incoming.is_empty() {
            self.ends.remove(&(node, conn));
            self.give(node, Input::Closed(conn, "closed by the peer".into()));
        }
    }

    /// Performs at most `steps` possible events.
    pub(crate) fn some(&mut self, steps: usize) {
        for _ in 0..steps {
            if !self.step() {
                return;
            }
        }
    }

    /// Advances the clock, with all events in between.
    pub(crate) fn run(&mut self, time: Duration) {
        let until = self.now + time;
        loop {
            let mut steps = 0;
            while self.step() {
                steps += 1;
                assert!(steps < 3_000_000, "no rest");
            }
            let next = self.nodes.iter().filter(|n| n.up).filter_map(|n| n.speaker.poll_timeout()).min();
            match next {
                Some(next) if next <= until => self.now = next.max(self.now),
                _ => {
                    self.now = until;
                    return;
                }
            }
        }
    }

    pub(crate) fn secs(&mut self, secs: u64) {
        self.run(Duration::from_secs(secs));
    }

    /// Breaks all connections of a node, as in a crash.
    pub(crate) fn cut(&mut self, node: usize) {
        let mine: Vec<(usize, ConnId)> = self.ends.keys().filter(|(n, _)| *n == node).copied().collect();
        for key in mine {
            let Some(end) = self.ends.remove(&key) else { continue };
            let other = end.other.filter(|o| self.ends.remove(o).is_some());
            if self.nodes[node].up {
                self.give(node, Input::Closed(key.1, "connection reset".into()));
            }
            if let Some((n, conn)) = other
                && self.nodes[n].up
            {
                self.give(n, Input::Closed(conn, "connection reset".into()));
            }
        }
    }

    /// Kills the process of a node; its address does not answer any more.
    pub(crate) fn kill(&mut self, node: usize) {
        self.nodes[node].up = false;
        self.cut(node);
    }

    /// Removes a node without notice: its connections hang.
    pub(crate) fn vanish(&mut self, node: usize) {
        self.nodes[node].up = false;
        self.ends.retain(|(n, _), _| *n != node);
        for end in self.ends.values_mut() {
            if end.other.is_some_and(|(n, _)| n == node) {
                end.other = None;
            }
        }
    }

    /// Restarts a node with this configuration; peers and routes have to be passed in again.
    pub(crate) fn start(&mut self, node: usize, global: GlobalConfig, policy: PolicyHandle) {
        let place = &mut self.nodes[node];
        place.speaker = Speaker::new(global, policy, self.now);
        place.up = true;
        place.restart_done = false;
        place.tracked.clear();
        place.events.clear();
        place.best.clear();
    }

    pub(crate) fn state(&self, node: usize, peer: usize) -> State {
        self.status(node, peer).state
    }

    pub(crate) fn status(&self, node: usize, peer: usize) -> PeerStatus {
        self.nodes[node].speaker.peer(PeerId(peer as u32), self.now).unwrap()
    }

    /// Returns true if the session of a node with node 0 is up.
    pub(crate) fn is_established(&self, node: usize) -> bool {
        self.state(node, 0) == State::Established
    }

    pub(crate) fn is_up(&self, a: usize, b: usize) -> bool {
        self.state(a, b) == State::Established && self.state(b, a) == State::Established
    }

    /// Returns the NOTIFICATIONs with which sessions of a node ended.
    pub(crate) fn ended_with(&self, node: usize) -> Vec<(u8, u8)> {
        let down = |e: &Event| match e {
            Event::State { from: State::Established, down: Some(down), .. } => down.notification,
            _ => None,
        };
        self.nodes[node].events.iter().filter_map(down).collect()
    }

    pub(crate) fn table(
        &self,
        node: usize,
        table: RouteTable,
        family: Family,
    ) -> BTreeMap<Cidr, Vec<PathInfo>> {
        let query = RouteQuery { table, matching: RouteMatch::All(family) };
        let mut all = BTreeMap::new();
        let mut after = None;
        loop {
            let page = self.nodes[node].speaker.routes(&query, after, 50);
            let Some(last) = page.last() else { return all };
            after = Some(last.prefix);
            all.extend(page.into_iter().map(|r| (r.prefix, r.paths)));
        }
    }

    /// Returns the Adj-RIB-In of `at` from the peer `from`: prefix and attributes.
    pub(crate) fn received(&self, at: usize, from: usize) -> BTreeMap<Cidr, Arc<Attributes>> {
        Family::ALL
            .into_iter()
            .flat_map(|f| self.table(at, RouteTable::AdjIn(PeerId(from as u32)), f))
            .map(|(prefix, paths)| (prefix, paths[0].attributes.clone()))
            .collect()
    }

    pub(crate) fn best_prefixes(&self, node: usize) -> Vec<String> {
        self.nodes[node].best.keys().map(ToString::to_string).collect()
    }
}
