//! Next hops that the embedder resolves some time after a route arrived.

use std::net::IpAddr;

use tortie_bgp::{BestChange, Event, Input, NextHopState};
use tortie_net::ScopedAddr;

use crate::raw::{CONN, Hand};
use crate::support::{announce, attributes, cidr, ip, session, withdraw};

const PREFIX: (u32, u8) = (0x0a00_0000, 24);

fn update(next_hop: IpAddr) -> Vec<u8> {
    let mut out = Vec::new();
    announce(&mut out, &session(true), &attributes(next_hop, &[65001]), std::iter::once(PREFIX));
    out
}

/// Passes a message without an answer to the next hops that it brings. Returns those.
fn unanswered(hand: &mut Hand, message: &[u8]) -> Vec<ScopedAddr> {
    hand.speaker.handle(Input::Data(CONN, message), hand.now);
    let mut tracked = Vec::new();
    while let Some(event) = hand.speaker.poll_event() {
        if let Event::TrackNextHop(addr) = event {
            tracked.push(addr);
        }
    }
    tracked
}

fn best(hand: &mut Hand) -> Vec<Option<Vec<ScopedAddr>>> {
    let mut changes: Vec<BestChange> = Vec::new();
    while hand.speaker.take_best(10, &mut changes) {}
    assert!(changes.iter().all(|change| change.prefix == cidr("10.0.0.0/24")));
    changes.into_iter().map(|change| change.best.map(|best| best.next_hops.to_vec())).collect()
}

/// A path replaces the best one, or the best one ends, before the next hop of the new path is resolved.
#[test]
fn a_route_ends_only_when_no_path_waits_for_its_next_hop() {
    let (first, second) = (ip("192.0.2.9"), ip("192.0.2.77"));
    let reachable = NextHopState::Reachable { metric: 0, on_link: true };
    let begin = || {
        let mut hand = Hand::new().up();
        hand.give(Input::Data(CONN, &update(first)));
        assert_eq!(best(&mut hand), [Some(vec![first.into()])]);
        assert_eq!(unanswered(&mut hand, &update(second)), [ScopedAddr::from(second)]);
        assert_eq!(best(&mut hand), [], "the route stays until the next hop is resolved");
        hand
    };

    let mut hand = begin();
    hand.give(Input::NextHop(second.into(), reachable));
    assert_eq!(best(&mut hand), [Some(vec![second.into()])], "one change");

    let mut hand = begin();
    hand.give(Input::NextHop(second.into(), NextHopState::Unreachable));
    assert_eq!(best(&mut hand), [None]);
    hand.give(Input::NextHop(second.into(), reachable));
    hand.rest();
    assert_eq!(best(&mut hand), [Some(vec![second.into()])]);

    let mut hand = begin();
    let third = ip("192.0.2.78");
    assert_eq!(unanswered(&mut hand, &update(third)), [ScopedAddr::from(third)]);
    hand.give(Input::NextHop(third.into(), reachable));
    assert_eq!(best(&mut hand), [Some(vec![ScopedAddr::from(third)])]);

    let mut hand = begin();
    let mut withdrawn = Vec::new();
    withdraw(&mut withdrawn, &session(true), [PREFIX]);
    unanswered(&mut hand, &withdrawn);
    assert_eq!(best(&mut hand), [None], "the path that was waited for is gone");

    let mut hand = begin();
    hand.give(Input::Closed(CONN, "gone".into()));
    hand.rest();
    assert_eq!(best(&mut hand), [None]);
}
