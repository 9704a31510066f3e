//! A speaker and a peer that is played by hand, octet by octet.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tortie_bgp::wire::{
    Capabilities, Families, Frame, GracefulRestart, MessageKind, Negotiated, Open, Update, write_end_of_rib,
    write_keepalive,
};
use tortie_bgp::{
    ConnId, Dial, DownCode, Event, Family, GlobalConfig, Input, NextHopState, PeerId, RouterId, Speaker,
    State, Transmit,
};

use crate::support::{
    self, TakeAll, announce, attributes, cidr, global, greeting, ip, peer, policy, route, session,
};

pub(crate) struct Hand {
    pub(crate) speaker: Speaker,
    pub(crate) now: Instant,
    pub(crate) events: Vec<Event>,
}

pub(crate) const CONN: ConnId = ConnId(1);

impl Hand {
    pub(crate) fn new() -> Self {
        Self::with(global(64512, 1))
    }

    pub(crate) fn with(config: GlobalConfig) -> Self {
        let now = Instant::now();
        let mut hand = Self { speaker: Speaker::new(config, policy(TakeAll), now), now, events: vec![] };
        hand.give(Input::LocalReady);
        let mut config = peer(ip("192.0.2.9"), 65001);
        config.dial = Dial::Passive;
        hand.give(Input::Peer(PeerId(1), Box::new(config)));
        hand.accept(CONN);
        hand
    }

    pub(crate) fn accept(&mut self, conn: ConnId) {
        let local = SocketAddr::new(ip("192.0.2.1"), 179);
        self.give(Input::Accepted { conn, local, remote: SocketAddr::new(ip("192.0.2.9"), 40_000) });
    }

    pub(crate) fn give(&mut self, input: Input<'_>) {
        self.give_at(input, self.now);
    }

    /// Passes a tick with the time of an earlier poll of the sockets.
    pub(crate) fn tick_at(&mut self, looked: Instant) {
        self.give_at(Input::Tick, looked);
    }

    fn give_at(&mut self, input: Input<'_>, time: Instant) {
        self.speaker.handle(input, time);
        while let Some(event) = self.speaker.poll_event() {
            if let Event::TrackNextHop(a) = event {
                self.speaker.handle(
                    Input::NextHop(a, NextHopState::Reachable { metric: 0, on_link: true }),
                    self.now,
                );
            }
            self.events.push(event);
        }
    }

    pub(crate) fn rest(&mut self) {
        while self.speaker.poll_timeout().is_some_and(|t| t <= self.now) {
            self.give(Input::Tick);
        }
    }

    pub(crate) fn wait(&mut self, time: Duration) {
        self.calls(time);
    }

    /// Waits; returns how often the speaker wanted to be called meanwhile.
    pub(crate) fn calls(&mut self, time: Duration) -> usize {
        let (until, mut calls) = (self.now + time, 0);
        while let Some(at) = self.speaker.poll_timeout().filter(|at| *at <= until) {
            self.now = self.now.max(at);
            self.give(Input::Tick);
            calls += 1;
        }
        self.now = until;
        calls
    }

    pub(crate) fn sent(&mut self, conn: ConnId) -> Vec<(MessageKind, Vec<u8>)> {
        let mut bytes = Vec::new();
        while self.speaker.poll_transmit(conn, &mut bytes, 4096, self.now) == Transmit::More {}
        let mut rest = &bytes[..];
        let mut all = Vec::new();
        while let Some(frame) = Frame::next(rest, false).unwrap() {
            all.push((frame.kind, frame.body.to_vec()));
            rest = &rest[frame.len..];
        }
        all
    }

    pub(crate) fn up(self) -> Self {
        self.up_with(&open())
    }

    /// The peer says this OPEN and the session comes up.
    pub(crate) fn up_with(mut self, open: &Open) -> Self {
        let bytes = greeting(open);
        self.give(Input::Data(CONN, &bytes));
        assert_eq!(self.state(), State::Established);
        self
    }

    pub(crate) fn state(&self) -> State {
        self.speaker.peer(PeerId(1), self.now).unwrap().state
    }

    /// The NOTIFICATION that ended the connection; it was closed after it.
    pub(crate) fn refused(&mut self, bytes: &[u8]) -> (u8, u8) {
        let (code, _) = self.refused_with(bytes);
        (code[0], code[1])
    }

    /// Its code and data.
    pub(crate) fn refused_with(&mut self, bytes: &[u8]) -> (Vec<u8>, Vec<u8>) {
        self.give(Input::Data(CONN, bytes));
        assert!(self.events.contains(&Event::Close(CONN)), "not closed");
        let sent = self.sent(CONN);
        let (kind, body) = sent.last().unwrap();
        assert_eq!(*kind, MessageKind::Notification);
        let (code, data) = body.split_at(2);
        (code.to_vec(), data.to_vec())
    }
}

pub(crate) fn open() -> Open {
    support::open(65001, 9)
}

pub(crate) fn bytes_of(open: &Open) -> Vec<u8> {
    let mut bytes = Vec::new();
    open.write(&mut bytes);
    bytes
}

/// A NOTIFICATION: code, subcode, data.
pub(crate) fn notification(body: &[u8]) -> Vec<u8> {
    let mut message = vec![0xff; 16];
    message.extend_from_slice(&u16::try_from(19 + body.len()).unwrap().to_be_bytes());
    message.push(3);
    message.extend_from_slice(body);
    message
}

pub(crate) fn update(prefixes: std::ops::Range<u32>) -> Vec<u8> {
    let mut out = Vec::new();
    let attributes = attributes(ip("192.0.2.9"), &[65001]);
    announce(&mut out, &session(true), &attributes, prefixes.map(|n| (0x0a00_0000 + (n << 8), 24)));
    out
}

#[test]
fn our_open_offers_what_it_should() {
    let mut hand = Hand::new();
    let sent = hand.sent(CONN);
    assert_eq!(sent.len(), 1);
    let open = Open::decode(&sent[0].1).unwrap();
    assert_eq!((open.asn, open.hold_time, open.router_id), (64512, 90, RouterId(1)));
    let c = open.capabilities;
    assert_eq!(
        (c.as4, c.route_refresh, c.extended_messages, c.enhanced_refresh),
        (Some(64512), true, false, true)
    );
    let gr = GracefulRestart {
        restarted: false,
        notification: true,
        time: 120,
        families: [(Family::Ipv4Unicast, false)].into_iter().collect(),
    };
    assert_eq!(c.graceful_restart, Some(gr));
}

/// Workloads that ran throughout the start are reached through the same kernel; nothing learned was kept.
#[test]
fn a_start_that_forwarded_all_the_time_sets_the_f_bit_alone() {
    let mut config = global(64512, 1);
    config.forwarding = vec![Family::Ipv4Unicast];
    let mut hand = Hand::with(config);
    let flags = |hand: &mut Hand, conn| {
        let sent = hand.sent(conn);
        let graceful = Open::decode(&sent[0].1).unwrap().capabilities.graceful_restart.unwrap();
        (graceful.restarted, graceful.families.into_iter().next())
    };
    assert_eq!(flags(&mut hand, CONN), (false, Some((Family::Ipv4Unicast, true))));
    hand.give(Input::Closed(CONN, "gone".into()));
    // Nobody has routes from before the start any more.
    hand.wait(Duration::from_secs(150));
    hand.accept(ConnId(2));
    assert_eq!(flags(&mut hand, ConnId(2)), (false, Some((Family::Ipv4Unicast, false))));
}

/// FRR sets the R bit for two minutes after its start and sends its routes a second after the session is up.
#[test]
fn the_end_of_the_restart_waits_for_a_peer_that_restarts_too_but_not_for_ever() {
    let restarting = || {
        let mut open = open();
        open.capabilities.graceful_restart =
            Some(GracefulRestart { restarted: true, time: 120, ..GracefulRestart::default() });
        greeting(&open)
    };
    let done = |hand: &Hand| hand.events.contains(&Event::RestartDone);
    let mut hand = Hand::new();
    hand.give(Input::Data(CONN, &restarting()));
    assert_eq!(hand.state(), State::Established);
    hand.wait(Duration::from_secs(1));
    assert!(!done(&hand), "its routes are still to come");
    let mut bytes = update(0..1);
    hand.give(Input::Data(CONN, &bytes));
    hand.wait(Duration::from_secs(1));
    assert!(hand.events.contains(&Event::BestChanged), "the selection does not wait (RFC 4724 4.1)");
    assert!(!done(&hand));
    bytes.clear();
    write_end_of_rib(Family::Ipv4Unicast, &mut bytes);
    hand.give(Input::Data(CONN, &bytes));
    while hand.speaker.take_best(10, &mut Vec::new()) {}
    hand.give(Input::Tick);
    assert!(done(&hand));

    let mut silent = Hand::new();
    silent.give(Input::Data(CONN, &restarting()));
    silent.wait(Duration::from_secs(29));
    assert!(!done(&silent));
    silent.wait(Duration::from_secs(2));
    assert!(done(&silent));
}

/// The end of a start is looked at when something comes that it may wait for, not again and again.
#[test]
fn a_speaker_whose_peers_are_all_away_sleeps() {
    let mut hand = Hand::new();
    hand.give(Input::Closed(CONN, "gone".into()));
    for n in 2..10 {
        let mut config = peer(ip(&format!("192.0.2.{}", 10 + n)), 65001);
        config.dial = Dial::Passive;
        hand.give(Input::Peer(PeerId(n), Box::new(config)));
        hand.wait(Duration::from_secs(1));
    }
    let calls = hand.calls(Duration::from_secs(110));
    assert!(calls < 10, "{calls} calls in 110 s");
    assert!(!hand.events.contains(&Event::RestartDone));
    hand.wait(Duration::from_secs(5));
    assert!(hand.events.contains(&Event::RestartDone));
}

#[test]
fn the_end_of_the_restart_waits_for_nobody_who_is_shut_down() {
    let mut hand = Hand::new();
    hand.give(Input::Closed(CONN, "gone".into()));
    hand.wait(Duration::from_secs(20));
    assert!(!hand.events.contains(&Event::RestartDone));
    let mut config = peer(ip("192.0.2.9"), 65001);
    config.shutdown = Some("moved".into());
    hand.give(Input::Peer(PeerId(1), Box::new(config)));
    hand.wait(Duration::from_secs(1));
    assert!(hand.events.contains(&Event::RestartDone));
}

#[test]
fn errors_have_the_codes_of_rfc_4271_and_6608() {
    let mut keepalive = Vec::new();
    write_keepalive(&mut keepalive);
    assert_eq!(Hand::new().refused(&keepalive), (5, 1));
    let mut twice = bytes_of(&open());
    twice.extend(bytes_of(&open()));
    assert_eq!(Hand::new().refused(&twice), (5, 2));
    assert_eq!(Hand::new().up().refused(&bytes_of(&open())), (5, 3));
    assert_eq!(Hand::new().refused(&[0; 19]), (1, 1));
    let mut version = bytes_of(&open());
    version[19] = 3;
    assert_eq!(Hand::new().refused(&version), (2, 1));
    assert_eq!(Hand::new().refused(&bytes_of(&Open { hold_time: 2, ..open() })), (2, 6));
    let mut as2 = open();
    as2.asn = 65009;
    as2.capabilities.as4 = Some(65009);
    assert_eq!(Hand::new().refused(&bytes_of(&as2)), (2, 2));
    let mut v6 = open();
    v6.capabilities.families = Families::NONE.with(Family::Ipv6Unicast);
    assert_eq!(Hand::new().refused(&bytes_of(&v6)), (2, 7));
    let mut kind = keepalive.clone();
    kind[18] = 9;
    assert_eq!(Hand::new().up().refused(&kind), (1, 3));
}

#[test]
fn a_peer_without_capabilities_gets_ipv4_and_two_octet_paths() {
    let mut hand = Hand::new();
    let old = Open { capabilities: Capabilities::default(), ..open() };
    hand.give(Input::Data(CONN, &greeting(&old)));
    hand.give(Input::Local(&[(cidr("10.1.0.0/24"), Some(route()))]));
    let sent = hand.sent(CONN);
    let updates: Vec<_> = sent.iter().filter(|(k, _)| *k == MessageKind::Update).collect();
    let as2 = Negotiated { as4: false, ..session(true) };
    let first = Update::decode(&updates[0].1, &as2).unwrap();
    assert_eq!(first.reach[0].attributes.as_path.ases().collect::<Vec<_>>(), [64512]);
    assert_eq!(Update::decode(&updates[1].1, &as2).unwrap().end_of_rib, Some(Family::Ipv4Unicast));
}

#[test]
fn a_malformed_attribute_withdraws_its_routes_and_keeps_the_session() {
    let mut hand = Hand::new().up();
    let good = update(0..3);
    hand.give(Input::Data(CONN, &good));
    let received = |h: &Hand| h.speaker.peer(PeerId(1), h.now).unwrap().families[0].received;
    assert_eq!(received(&hand), 3);
    let mut bad = update(1..2);
    // The value of ORIGIN: flags, type, length, value right behind the two length fields.
    let origin = bad.windows(3).position(|w| w == [0x40, 1, 1]).unwrap() + 3;
    bad[origin] = 7;
    hand.give(Input::Data(CONN, &bad));
    assert_eq!((hand.state(), received(&hand)), (State::Established, 2));
    assert_eq!(hand.speaker.totals().update_errors[0], ("treat_as_withdraw", 1));
    assert!(hand.events.iter().any(|e| matches!(e, Event::Learned { malformed: 1, withdrawn: 1, .. })));
}

#[test]
fn octets_may_come_in_any_pieces() {
    let mut stream = greeting(&open());
    stream.extend(update(0..500));
    for size in [1, 7, 19, 64, 1000, 5000] {
        let mut hand = Hand::new();
        for piece in stream.chunks(size) {
            hand.give(Input::Data(CONN, piece));
            hand.rest();
        }
        assert_eq!(hand.speaker.peer(PeerId(1), hand.now).unwrap().families[0].received, 500, "{size}");
    }
}

#[test]
fn one_call_reads_a_bounded_number_of_messages_and_says_so() {
    let mut hand = Hand::new().up();
    let feed: Vec<u8> = (0..2000).flat_map(|n| update(n..n + 1)).collect();
    let received = |h: &Hand| h.speaker.peer(PeerId(1), h.now).unwrap().families[0].received;
    hand.give(Input::Data(CONN, &feed));
    // As it comes, as what waits, and as what waits when the next hop is known.
    assert!(received(&hand) <= 3 * 512, "{}", received(&hand));
    assert_eq!(hand.speaker.read_room(CONN), 0, "no more before this is read");
    assert!(hand.speaker.poll_timeout().unwrap() <= hand.now);
    hand.rest();
    assert_eq!(received(&hand), 2000);
    assert!(hand.speaker.read_room(CONN) > 0);
}

#[test]
fn a_peer_that_takes_nothing_is_dropped_by_the_send_hold_timer() {
    let mut hand = Hand::new().up();
    hand.sent(CONN);
    let mut keepalive = Vec::new();
    write_keepalive(&mut keepalive);
    // It says that it lives, but its window stays shut.
    for n in 0..60 {
        hand.wait(Duration::from_secs(20));
        hand.give(Input::Data(CONN, &keepalive));
        if hand.state() != State::Established {
            assert!((24..28).contains(&n), "after {} s", n * 20);
            let down = hand.speaker.peer(PeerId(1), hand.now).unwrap().last_down.unwrap().0;
            assert_eq!((down.code, down.notification), (DownCode::SendHoldTimer, Some((8, 0))));
            return;
        }
    }
    panic!("still up");
}

#[test]
fn keepalives_go_before_routes() {
    let mut hand = Hand::new().up();
    hand.sent(CONN);
    let locals: Vec<_> =
        (0..5000u32).map(|n| (cidr(&format!("10.{}.{}.0/24", n / 256, n % 256)), Some(route()))).collect();
    hand.give(Input::Local(&locals));
    let mut bytes = Vec::new();
    assert_eq!(hand.speaker.poll_transmit(CONN, &mut bytes, 5000, hand.now), Transmit::More);
    assert!(bytes.len() <= 5000 + 4096);
    hand.wait(Duration::from_secs(31));
    let first = hand.sent(CONN).first().map(|m| m.0);
    assert_eq!(first, Some(MessageKind::Keepalive));
}

/// A peer that dials again beside its session hears OPEN there and nothing else: routes are for the session.
#[test]
fn a_second_connection_takes_nothing_that_waits_for_the_session() {
    let mut hand = Hand::new().up();
    hand.give(Input::Local(&[(cidr("10.1.0.0/26"), Some(route()))]));
    let second = ConnId(2);
    hand.accept(second);
    let kinds =
        |sent: Vec<(MessageKind, Vec<u8>)>| sent.into_iter().map(|(kind, _)| kind).collect::<Vec<_>>();
    assert_eq!(kinds(hand.sent(second)), [MessageKind::Open]);
    hand.rest();
    assert_eq!(kinds(hand.sent(second)), []);
    // OPEN and KEEPALIVE, the route, End-of-RIB.
    use MessageKind::{Keepalive, Open, Update};
    assert_eq!(kinds(hand.sent(CONN)), [Open, Keepalive, Update, Update]);
}

/// A peer has at most one connection in addition to its session: a newer one replaces it.
#[test]
fn a_third_connection_takes_the_place_of_the_second() {
    let mut hand = Hand::new().up();
    let (second, third) = (ConnId(2), ConnId(3));
    hand.accept(second);
    hand.accept(third);
    assert!(hand.events.contains(&Event::Close(second)) && !hand.events.contains(&Event::Close(third)));
    assert_eq!(hand.state(), State::Established);
    hand.give(Input::RemovePeer(PeerId(1)));
    assert!(hand.events.contains(&Event::Close(CONN)) && hand.events.contains(&Event::Close(third)));
    // A later peer with the same id inherits nothing.
    let mut config = peer(ip("192.0.2.9"), 65001);
    config.dial = Dial::Passive;
    hand.give(Input::Peer(PeerId(1), Box::new(config)));
    for conn in [second, third] {
        hand.give(Input::Data(conn, &greeting(&open())));
    }
    assert_eq!(hand.state(), State::Active);
}

/// An outgoing connection from before the session, which is open after its end, gives way to the peer's own one.
#[test]
fn a_slow_dial_gives_way_to_the_connection_that_outlived_a_session() {
    let mut hand = Hand::new();
    hand.give(Input::Peer(PeerId(1), Box::new(peer(ip("192.0.2.9"), 65001))));
    hand.rest();
    assert!(hand.events.contains(&Event::Dial(PeerId(1))));
    let mut hand = hand.up();
    let (second, third) = (ConnId(2), ConnId(3));
    hand.accept(second);
    hand.give(Input::Closed(CONN, "gone".into()));
    let (local, remote) = (SocketAddr::new(ip("192.0.2.1"), 40_000), SocketAddr::new(ip("192.0.2.9"), 179));
    hand.give(Input::Dialled { peer: PeerId(1), conn: third, local, remote });
    assert!(hand.events.contains(&Event::Close(third)));
    hand.give(Input::Data(second, &greeting(&open())));
    assert_eq!(hand.state(), State::Established);
    hand.give(Input::RemovePeer(PeerId(1)));
    assert!(hand.events.contains(&Event::Close(second)));
}

#[test]
fn strangers_are_closed() {
    let mut hand = Hand::new();
    let local = SocketAddr::new(ip("192.0.2.1"), 179);
    let remote = SocketAddr::new(ip("198.51.100.1"), 1);
    assert!(!hand.speaker.admits(remote, hand.now));
    hand.give(Input::Accepted { conn: ConnId(7), local, remote });
    assert!(hand.events.contains(&Event::Close(ConnId(7))));
    hand.give(Input::Data(ConnId(7), &[1, 2, 3]));
    hand.give(Input::Closed(ConnId(7), "gone".into()));
    assert_eq!(hand.speaker.read_room(ConnId(7)), 0);
}

#[test]
fn as_many_sessions_end_as_an_octet_cannot_count() {
    let mut hand = Hand::new();
    for n in 2..700 {
        hand.accept(ConnId(n));
        let mut bytes = greeting(&open());
        bytes.extend(update(n as u32 % 5..n as u32 % 5 + 1));
        hand.give(Input::Data(ConnId(n), &bytes));
        let status = hand.speaker.peer(PeerId(1), hand.now).unwrap();
        assert_eq!((status.state, status.families[0].received), (State::Established, 1), "{n}");
        hand.give(Input::Closed(ConnId(n), "reset".into()));
        // Sessions that end at once are let in at this pace only.
        hand.now += Duration::from_secs(5);
    }
    hand.rest();
    assert_eq!(hand.speaker.totals().paths, [0, 0]);
}
