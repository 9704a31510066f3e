//! Expensive peers: their load is bounded, and a peer that recovers is accepted again.

use std::net::SocketAddr;
use std::time::Duration;

use tortie_bgp::{ConnId, Dial, Event, Input, PeerId, State};

use crate::raw::{CONN, Hand, update};
use crate::support::{greeting, ip, open as open_of, peer};

/// First connection of peers other than that of [`CONN`].
const OTHERS: u64 = 1000;

/// Adds a second, passive peer to the one with a session.
fn with_another() -> Hand {
    let mut hand = Hand::new().up();
    let mut config = peer(ip("192.0.2.10"), 65001);
    config.dial = Dial::Passive;
    hand.give(Input::Peer(PeerId(2), Box::new(config)));
    hand
}

fn remote() -> SocketAddr {
    SocketAddr::new(ip("192.0.2.10"), 40_000)
}

fn accept(hand: &mut Hand, conn: ConnId) {
    let local = SocketAddr::new(ip("192.0.2.1"), 179);
    hand.give(Input::Accepted { conn, local, remote: remote() });
}

/// Returns true if the speaker accepts this connection of the second peer.
fn is_let_in(hand: &mut Hand, conn: ConnId) -> bool {
    let admitted = hand.speaker.admits(remote(), hand.now);
    hand.events.clear();
    accept(hand, conn);
    let let_in = !hand.events.contains(&Event::Close(conn));
    assert_eq!(admitted, let_in, "what an embedder is told beforehand");
    let_in
}

fn state(hand: &Hand) -> State {
    hand.speaker.peer(PeerId(2), hand.now).unwrap().state
}

/// Runs `attempt` 500 times per second for a minute. Returns the number of accepted connections.
fn storm(hand: &mut Hand, mut attempt: impl FnMut(&mut Hand, ConnId)) -> usize {
    let mut let_in = 0;
    for n in 0..30_000 {
        let conn = ConnId(OTHERS + n);
        if is_let_in(hand, conn) {
            let_in += 1;
            attempt(hand, conn);
        }
        hand.now += Duration::from_millis(2);
        hand.rest();
    }
    let_in
}

/// After the storm the peer is accepted again, and its session comes up.
fn recovers(hand: &mut Hand) {
    hand.wait(Duration::from_secs(6));
    let conn = ConnId(OTHERS - 1);
    assert!(is_let_in(hand, conn));
    hand.give(Input::Data(conn, &greeting(&open_of(65001, 10))));
    assert_eq!(state(hand), State::Established);
}

#[test]
fn connections_that_only_end_are_let_in_at_a_slow_pace() {
    let mut hand = with_another();
    let let_in = storm(&mut hand, |hand, conn| hand.give(Input::Closed(conn, "gone".into())));
    assert!((11..=24).contains(&let_in), "{let_in} of 30,000");
    recovers(&mut hand);
}

#[test]
fn connections_that_replace_each_other_are_let_in_at_a_slow_pace() {
    let mut hand = with_another();
    let let_in = storm(&mut hand, |_, _| ());
    assert!((11..=24).contains(&let_in), "{let_in} of 30,000");
    recovers(&mut hand);
}

#[test]
fn connections_parallel_to_a_session_are_accepted_at_a_slow_rate() {
    let mut hand = with_another();
    let conn = ConnId(OTHERS - 2);
    assert!(is_let_in(&mut hand, conn));
    hand.give(Input::Data(conn, &greeting(&open_of(65001, 10))));
    assert_eq!(state(&hand), State::Established);
    let let_in = storm(&mut hand, |_, _| ());
    assert!((11..=24).contains(&let_in), "{let_in} of 30,000");
    assert_eq!(state(&hand), State::Established);
    hand.give(Input::Closed(conn, "gone".into()));
    recovers(&mut hand);
}

#[test]
fn sessions_that_end_in_garbage_are_let_in_at_a_slow_pace() {
    let mut hand = with_another();
    let let_in = storm(&mut hand, |hand, conn| {
        hand.give(Input::Data(conn, &greeting(&open_of(65001, 10))));
        assert_eq!(state(hand), State::Established);
        hand.give(Input::Data(conn, &[7; 40]));
        assert!(hand.events.contains(&Event::Close(conn)));
        hand.give(Input::Closed(conn, "gone".into()));
    });
    assert!((11..=24).contains(&let_in), "{let_in} of 30,000");
    recovers(&mut hand);
}

#[test]
fn an_administrator_lets_it_in_at_once() {
    let mut hand = with_another();
    storm(&mut hand, |hand, conn| hand.give(Input::Closed(conn, "gone".into())));
    while is_let_in(&mut hand, ConnId(10)) {
        hand.give(Input::Closed(ConnId(10), "gone".into()));
    }
    hand.give(Input::Reset(PeerId(2), tortie_bgp::Reset::Hard(String::new())));
    assert!(is_let_in(&mut hand, ConnId(11)));
}

/// Only a peer that leaves routes behind causes a reevaluation.
#[test]
fn a_session_without_a_route_ends_without_work() {
    let mut hand = with_another();
    for n in 0..20 {
        hand.give(Input::Data(CONN, &update(n * 500..(n + 1) * 500)));
    }
    let mut best = Vec::new();
    while hand.speaker.take_best(1000, &mut best) {}
    hand.wait(Duration::from_secs(1));
    let works = |hand: &Hand| hand.speaker.poll_timeout().is_some_and(|at| at <= hand.now);
    assert!(!works(&hand));
    let conn = ConnId(OTHERS);
    accept(&mut hand, conn);
    hand.give(Input::Data(conn, &greeting(&open_of(65001, 10))));
    assert_eq!(state(&hand), State::Established);
    hand.give(Input::Closed(conn, "gone".into()));
    assert_eq!(state(&hand), State::Active);
    assert!(!works(&hand));
    // A peer with routes causes one.
    hand.give(Input::Closed(CONN, "gone".into()));
    assert!(works(&hand));
    hand.rest();
    assert_eq!(hand.speaker.totals().paths, [0, 0]);
}

/// A reevaluation does not delay the input of others: it waits for ticks.
#[test]
fn a_walk_waits_while_messages_come_in() {
    let mut hand = with_another();
    for n in 0..20 {
        hand.give(Input::Data(CONN, &update(n * 500..(n + 1) * 500)));
    }
    let conn = ConnId(OTHERS);
    accept(&mut hand, conn);
    hand.give(Input::Data(conn, &greeting(&open_of(65001, 10))));
    hand.give(Input::Closed(CONN, "gone".into()));
    let left = hand.speaker.totals().paths;
    let mut keepalive = Vec::new();
    tortie_bgp::wire::write_keepalive(&mut keepalive);
    for _ in 0..100 {
        hand.give(Input::Data(conn, &keepalive));
    }
    assert_eq!(hand.speaker.totals().paths, left);
    hand.rest();
    assert_eq!(hand.speaker.totals().paths, [0, 0]);
}
