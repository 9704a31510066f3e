//! A whole speaker under arbitrary octets, times and events.
//!
//! What has to hold: it comes to rest after each input within a bounded number of ticks, time goes on, nothing is sent that
//! cannot be framed, what it holds is bounded by what it was given, and when all peers are gone nothing is left.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tortie_bgp::attr::{Attributes, Edit};
use tortie_bgp::wire::{
    AddPath, Capabilities, Families, Frame, GracefulRestart, Open, Role, write_keepalive,
};
use tortie_bgp::{
    ANY_EXTERNAL, Cidr, ConnId, Dial, Event, Export, Family, GlobalConfig, Import, Input, Multipath,
    NextHopState, Origination, PeerConfig, PeerId, PeerView, Policy, PolicyHandle, RangeConfig, RangeId,
    Reset, RouteMatch, RouteQuery, RouteTable, RouteView, RouterId, Speaker, Tag, Transmit,
};

const PEERS: u8 = 4;
const OURS: u32 = 64_512;
/// Ticks within which a speaker rests after an input, and in one stretch of time.
const TICKS: usize = 20_000;

/// Decides by the prefix, so that some routes are refused, changed or withheld.
struct ByPrefix(u8);

fn last_octet(prefix: Cidr) -> u8 {
    match prefix.addr() {
        IpAddr::V4(a) => a.octets()[2],
        IpAddr::V6(a) => a.octets()[5],
    }
}

impl Policy for ByPrefix {
    fn import(&self, _: &PeerView<'_>, prefix: Cidr, _: &Attributes) -> Import {
        match last_octet(prefix) ^ self.0 {
            n if n.is_multiple_of(7) => Import::Reject("seven"),
            n if n.is_multiple_of(5) => {
                Import::AcceptWith([Edit::LocalPref(u32::from(n))].into_iter().collect())
            }
            _ => Import::Accept,
        }
    }

    fn export(&self, _: &PeerView<'_>, route: &RouteView<'_>) -> Export {
        if (last_octet(route.prefix) ^ self.0).is_multiple_of(3) {
            return Export::withhold("three");
        }
        Export::announce("open").with_communities([7], [])
    }
}

fn policy(n: u8) -> PolicyHandle {
    PolicyHandle(Arc::new(ByPrefix(n)))
}

fn address(peer: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1 + peer))
}

fn asn(peer: u8) -> u32 {
    if peer.is_multiple_of(2) { 64_496 + u32::from(peer) } else { OURS }
}

fn config(peer: u8, choice: u8) -> PeerConfig {
    let bit = |n: u8| choice & (1 << n) != 0;
    let mut c = PeerConfig::new(SocketAddr::new(address(peer), 179), asn(peer));
    c.families = if bit(0) { vec![Family::Ipv4Unicast] } else { Family::ALL.to_vec() };
    c.dial =
        [Dial::Now, Dial::Passive, Dial::After(Duration::from_secs(3)), Dial::Now][usize::from(peer % 4)];
    c.hold_time = Duration::from_secs(if bit(1) { 3 } else { 90 });
    c.local_v6 = Some(IpAddr::V6(0x2001_0db8_u128.rotate_right(32).into()));
    c.reflector_client = (bit(2) && peer == 1).then_some(9);
    c.allow_own_as = u8::from(bit(3));
    c.extended_messages = bit(4);
    c.add_path_receive = bit(5);
    c.add_path_send = if bit(5) { 3 } else { 0 };
    c.max_prefixes = bit(6).then(|| tortie_bgp::PrefixLimit::new(40));
    c.ebgp_policy = !bit(7);
    c.role = (peer == 2).then_some(Role::Customer);
    c.policy_class = u64::from(choice & 1);
    c
}

/// Takes the addresses of peers that are not configured.
fn range(choice: u8) -> RangeConfig {
    let mut range = RangeConfig::new(Cidr::v4(Ipv4Addr::new(192, 0, 2, 0), 29), ANY_EXTERNAL);
    range.peer = config(0, choice);
    range.peer.asn = if choice & 1 == 0 { ANY_EXTERNAL } else { OURS };
    range.max_peers = u32::from(choice % 4);
    range
}

fn greeting(peer: u8, choice: u8) -> Vec<u8> {
    let bit = |n: u8| choice & (1 << n) != 0;
    let both = AddPath { receive: bit(5), send: bit(5) };
    let open = Open {
        asn: asn(peer),
        hold_time: if bit(1) { 3 } else { 180 },
        router_id: RouterId(0xc000_0201 + u32::from(peer)),
        capabilities: Capabilities {
            multiprotocol: !bit(0),
            families: Families::ALL,
            as4: (!bit(2)).then_some(asn(peer)),
            route_refresh: true,
            enhanced_refresh: bit(3),
            extended_messages: bit(4),
            ext_nexthop: bit(3),
            graceful_restart: bit(6).then(|| GracefulRestart {
                restarted: bit(7),
                notification: bit(4),
                time: 30,
                families: Family::ALL.into_iter().map(|f| (f, bit(7))).collect(),
            }),
            add_paths: [both; 2],
            role: (peer == 2).then_some(Role::Provider),
            ..Capabilities::default()
        },
    };
    let mut out = Vec::new();
    open.write(&mut out);
    write_keepalive(&mut out);
    out
}

fn framed(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![0xff; 16];
    out.extend_from_slice(&u16::try_from(19 + body.len()).unwrap_or(u16::MAX).to_be_bytes());
    out.push(kind);
    out.extend_from_slice(body);
    out
}

struct Rig {
    speaker: Speaker,
    now: Instant,
    start: Instant,
    conns: Vec<ConnId>,
    next: u64,
    dialling: Vec<PeerId>,
    /// Octets and events that it was given.
    given: usize,
}

impl Rig {
    fn new(choice: u8) -> Self {
        let now = Instant::now();
        let restarting = (choice & 1 != 0).then(|| Family::ALL.to_vec());
        let multipath = Multipath { max: (choice & 2 != 0).then_some(1), relax: choice & 4 == 0 };
        let global = GlobalConfig { restarting, multipath, ..GlobalConfig::new(OURS, RouterId(1)) };
        let speaker = Speaker::new(global, policy(0), now);
        let mut rig = Self { speaker, now, start: now, conns: vec![], next: 0, dialling: vec![], given: 0 };
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
        let mut best = Vec::new();
        for n in 0.. {
            let Some(event) = self.speaker.poll_event() else { return };
            assert!(n < TICKS, "events without an end");
            match event {
                Event::Dial(peer) => self.dialling.push(peer),
                Event::Close(conn) => {
                    self.send(conn, 65_536);
                    self.conns.retain(|c| *c != conn);
                }
                // Some are known at once, some never, and some get lost later.
                Event::TrackNextHop(address) if !address.to_string().ends_with('7') => {
                    let state = NextHopState::Reachable { metric: 1, on_link: true };
                    self.speaker.handle(Input::NextHop(address, state), self.now);
                }
                Event::BestChanged => while self.speaker.take_best(16, &mut best) {},
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

    /// Takes what waits for a connection.
    fn send(&mut self, conn: ConnId, room: usize) {
        let mut out = Vec::new();
        for _ in 0..64 {
            let before = out.len();
            let answer = self.speaker.poll_transmit(conn, &mut out, room, self.now);
            // Whole messages, and of the last one at most.
            assert!(out.len() - before <= room + 65_535);
            if answer == Transmit::Done || room < 65_536 {
                break;
            }
        }
        let mut rest = &out[..];
        while !rest.is_empty() {
            let frame =
                Frame::next(rest, true).expect("sent what cannot be framed").expect("sent half a message");
            rest = &rest[frame.len..];
        }
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
        // A prefix of two octets is an entry, a path and an announcement for each group; tables grow by doubling.
        let most = 1_000_000 + 1000 * self.given as u64;
        assert!(memory < most, "{memory} octets of memory after {} octets of input", self.given);
    }
}

fn prefix(octet: u8) -> Cidr {
    let text = if octet & 1 == 0 { format!("10.0.{octet}.0/24") } else { format!("2001:db8:{octet:x}::/48") };
    text.parse().expect("a prefix")
}

/// The data is a list of events; the first octet chooses the configuration.
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
            // An UPDATE with good attributes and prefixes of the fuzzer's choice.
            (3 | 4, Some(conn)) => {
                let nlri = take(usize::from(op >> 4) * 2);
                let mut body = vec![0, 0, 0, 20, 0x40, 1, 1, 0, 0x40, 2, 6, 2, 1, 0, 0, 0xfb, 0xf0];
                body.extend_from_slice(&[0x40, 3, 4, 192, 0, 2, *arg]);
                body.extend_from_slice(nlri);
                rig.data(conn, &framed(2, &body));
            }
            (5, Some(conn)) => rig.data(conn, &framed(4, &[])),
            (6, Some(conn)) => {
                rig.send(conn, 1 + usize::from(op >> 4) * 300);
                rig.rest();
            }
            (7, Some(conn)) => {
                rig.conns.retain(|c| *c != conn);
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
                    kind: 1,
                    tag: Tag(u64::from(*arg)),
                };
                rig.give(Input::Local(&[(prefix(*arg), (op & 16 == 0).then_some(origination))]));
            }
            (12, _) => {
                let peer = PeerId(u32::from(peer));
                match op >> 4 {
                    0 | 1 => rig.give(Input::Reset(peer, Reset::SoftIn)),
                    2 | 3 => rig.give(Input::Reset(peer, Reset::SoftOut)),
                    4 => rig.give(Input::Reset(peer, Reset::Hard(String::new()))),
                    5 => rig.give(Input::RemovePeer(peer)),
                    6 => rig.give(Input::BfdDown { peer, text: "cut".into(), independent: arg & 4 != 0 }),
                    7 | 8 => rig.give(Input::Range(RangeId(u32::from(arg & 1)), Box::new(range(*op ^ arg)))),
                    9 => rig.give(Input::RemoveRange(RangeId(u32::from(arg & 1)))),
                    _ => {}
                }
            }
            (13, _) => rig.give(Input::Peer(PeerId(u32::from(peer)), Box::new(config(peer, *op ^ arg)))),
            (14, _) => {
                let address = IpAddr::V4(Ipv4Addr::new(192, 0, 2, *arg));
                let state = if op & 16 == 0 {
                    NextHopState::Unreachable
                } else {
                    NextHopState::Reachable { metric: u32::from(op >> 5), on_link: true }
                };
                rig.give(Input::NextHop(address, state));
            }
            (15, _) => rig.give(Input::Policy(policy(arg % 4))),
            _ => rig.open(peer, false),
        }
        // A process has so many file descriptors.
        if rig.conns.len() > 32 {
            let conn = rig.conns.remove(0);
            rig.give(Input::Closed(conn, "gone".into()));
        }
        // Sums over everything are not free.
        ops += 1;
        if ops % 16 == 0 {
            rig.check();
        }
    }
    rig.check();
    end(rig);
}

/// All peers and routes go: nothing is left.
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
        let query = RouteQuery { table: RouteTable::Loc, matching: RouteMatch::All(family) };
        assert!(rig.speaker.routes(&query, None, 1).is_empty(), "a route without a peer");
    }
    let totals = rig.speaker.totals();
    assert_eq!((totals.paths, totals.prefixes, totals.attribute_sets), ([0, 0], [0, 0], 0));
    assert!(totals.memory < 1_000_000, "{} octets for nothing", totals.memory);
}
