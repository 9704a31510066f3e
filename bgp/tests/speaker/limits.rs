//! Prefix limits, received and sent (RFC 4486 4).

use std::time::Duration;

use tortie_bgp::wire::{RefreshKind, RouteRefresh};
use tortie_bgp::{Dial, DownCode, Event, Family, Input, LastErrorKind, PeerId, PrefixLimit, State};

use crate::net::Net;
use crate::raw::{CONN, Hand, open, update};
use crate::support::{ip, peer};

/// Node 1 has this limit for node 0.
fn limited(limit: PrefixLimit) -> Net {
    let mut net = Net::new(1);
    let (a, b) = (net.node(64512), net.node(64512));
    net.ready_all();
    net.join(a, b, |n, c| c.max_prefixes = (n == 1).then_some(limit));
    net
}

fn prefixes(count: u32) -> Vec<String> {
    (0..count).map(|n| format!("10.0.{n}.0/24")).collect()
}

fn give(net: &mut Net, node: usize, count: u32) {
    let all = prefixes(count);
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    net.originate(node, &all);
}

fn warnings(net: &Net, node: usize) -> Vec<(u32, u32)> {
    let warning = |e: &Event| match e {
        Event::PrefixWarning { peer: PeerId(0), family: Family::Ipv4Unicast, received, max } => {
            Some((*received, *max))
        }
        _ => None,
    };
    net.nodes[node].events.iter().filter_map(warning).collect()
}

#[test]
fn the_session_ends_with_family_and_limit_and_rests_as_long_as_configured() {
    let mut limit = PrefixLimit::new(2);
    limit.restart = Duration::from_secs(300);
    let mut net = limited(limit);
    give(&mut net, 0, 3);
    net.secs(5);
    // RFC 4486 4: AFI, SAFI, upper bound.
    let sent = net.status(1, 0).last_error.unwrap();
    assert_eq!((sent.kind, sent.code), (LastErrorKind::Sent, Some((6, 1))));
    assert_eq!(*sent.data, [0, 1, 1, 0, 0, 0, 2]);
    let received = net.status(0, 1).last_error.unwrap();
    // Enclosed in a Hard Reset, because both ends set the N bit (RFC 8538).
    let whole: Box<[u8]> = [&[6, 1], &*sent.data].concat().into();
    assert_eq!((received.kind, received.code, received.data), (LastErrorKind::Received, Some((6, 9)), whole));
    net.withdraw(0, &["10.0.2.0/24"]);
    net.secs(250);
    assert!(!net.is_up(0, 1));
    assert_eq!(net.status(1, 0).state, State::Idle);
    net.secs(80);
    assert!(net.is_up(0, 1));
    assert_eq!(net.best_prefixes(1).len(), 2);
}

#[test]
fn a_warning_comes_once_and_again_when_it_had_become_fewer() {
    let mut net = limited(PrefixLimit::new(8));
    give(&mut net, 0, 5);
    net.secs(3);
    assert_eq!(warnings(&net, 1), []);
    give(&mut net, 0, 6);
    net.secs(1);
    give(&mut net, 0, 8);
    net.secs(1);
    assert_eq!(warnings(&net, 1), [(6, 8)]);
    net.withdraw(0, &["10.0.3.0/24", "10.0.4.0/24", "10.0.5.0/24", "10.0.6.0/24", "10.0.7.0/24"]);
    net.secs(1);
    give(&mut net, 0, 7);
    net.secs(1);
    assert_eq!(warnings(&net, 1).len(), 2);
    assert_eq!(net.status(1, 0).flaps, 0);
}

#[test]
fn a_lowered_limit_acts_at_once() {
    let mut net = limited(PrefixLimit::new(8));
    give(&mut net, 0, 5);
    net.secs(3);
    let mut config = peer(net.address(0), 64512);
    config.max_prefixes = Some(PrefixLimit::new(4));
    net.give(1, Input::Peer(PeerId(0), Box::new(config)));
    net.secs(1);
    assert_eq!(net.ended_with(0), [(6, 1)]);
}

/// A peer that rejected the number of our prefixes is not dialled for a minute, but accepted.
#[test]
fn a_peer_that_has_enough_is_left_alone() {
    let mut limit = PrefixLimit::new(2);
    limit.restart = Duration::ZERO;
    let mut net = limited(limit);
    // Node 1 never dials.
    net.half(1, 0, &|_, c| {
        c.max_prefixes = Some(limit);
        c.dial = tortie_bgp::Dial::Passive;
    });
    give(&mut net, 0, 3);
    net.secs(3);
    net.nodes[0].events.clear();
    net.secs(40);
    assert!(!net.nodes[0].events.iter().any(|e| matches!(e, Event::Dial(_))));
    net.secs(30);
    assert!(net.nodes[0].events.iter().any(|e| matches!(e, Event::Dial(_))));
}

#[test]
fn more_than_may_be_sent_ends_the_session_before_it_is_sent() {
    let mut net = Net::new(3);
    let (a, b) = (net.node(64512), net.node(64512));
    net.ready_all();
    net.join(a, b, |n, c| c.max_prefixes_out = (n == 0).then_some(3));
    give(&mut net, 0, 3);
    net.originate(1, &["192.0.2.0/24", "198.51.100.0/24"]);
    net.secs(3);
    // Routes of the peer itself do not count.
    assert!(net.is_up(a, b));
    assert_eq!(net.best_prefixes(1).len(), 3);
    give(&mut net, 0, 4);
    net.secs(1);
    let down = net.status(0, 1).last_down.unwrap().0;
    assert_eq!((down.code, down.notification), (DownCode::NotificationSent, Some((6, 1))));
    assert!(net.nodes[1].best.is_empty());
    net.withdraw(0, &["10.0.0.0/24"]);
    net.secs(70);
    assert_eq!(net.best_prefixes(1).len(), 3);
}

/// Routes that a refresh made stale count until EoRR, and refreshed ones count once.
#[test]
fn a_refresh_makes_no_room_for_more() {
    for (again, within) in [(0..2, true), (2..4, false)] {
        let mut hand = Hand::new();
        let mut config = peer(ip("192.0.2.9"), 65001);
        config.dial = Dial::Passive;
        config.max_prefixes = Some(PrefixLimit::new(2));
        hand.give(Input::Peer(PeerId(1), Box::new(config)));
        let mut open = open();
        open.capabilities.route_refresh = true;
        open.capabilities.enhanced_refresh = true;
        let mut hand = hand.up_with(&open);
        let mut bytes = update(0..2);
        RouteRefresh { family: Family::Ipv4Unicast, kind: RefreshKind::Begin }.write(&mut bytes);
        hand.give(Input::Data(CONN, &bytes));
        let again = update(again);
        if within {
            hand.give(Input::Data(CONN, &again));
            assert_eq!(hand.state(), State::Established);
        } else {
            assert_eq!(hand.refused(&again), (6, 1));
        }
    }
}
