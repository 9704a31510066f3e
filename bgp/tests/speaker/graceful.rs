//! Ends of a session that start a graceful restart (RFC 4724 4.2, RFC 8538), with NOTIFICATIONs octet by
//! octet.

use std::net::SocketAddr;
use std::time::Duration;

use tortie_bgp::wire::{GracefulRestart, MessageKind, Update, write_end_of_rib, write_keepalive};
use tortie_bgp::{ConnId, DownCode, Family, Input, PeerConfig, PeerId, Reset, RestartPhase, State};

use crate::net::Net;
use crate::raw::{CONN, Hand, notification, open, update};
use crate::support::{cidr, greeting, ip, peer};

const SECOND: ConnId = ConnId(2);

/// Returns the graceful restart capability of the peer: N bit, and F bit for IPv4.
fn graceful(notification: bool, forwarding: bool) -> GracefulRestart {
    GracefulRestart {
        restarted: false,
        notification,
        time: 60,
        families: [(Family::Ipv4Unicast, forwarding)].into_iter().collect(),
    }
}

fn greet(graceful: Option<GracefulRestart>) -> Vec<u8> {
    let mut open = open();
    open.capabilities.graceful_restart = graceful;
    greeting(&open)
}

/// A session on which the peer announced two routes and sent End-of-RIB.
fn session(graceful: Option<GracefulRestart>) -> Hand {
    let mut hand = Hand::new();
    hand.give(Input::Data(CONN, &greet(graceful)));
    assert_eq!(hand.state(), State::Established);
    hand.give(Input::Data(CONN, &update(0..2)));
    let mut end = Vec::new();
    write_end_of_rib(Family::Ipv4Unicast, &mut end);
    hand.give(Input::Data(CONN, &end));
    hand.rest();
    hand.sent(CONN);
    assert_eq!(counts(&hand), (2, 0));
    hand
}

/// Returns the number of routes, and of stale ones.
fn counts(hand: &Hand) -> (u32, u32) {
    let family = &hand.speaker.peer(PeerId(1), hand.now).unwrap().families[0];
    (family.received, family.stale)
}

/// Returns the body of the NOTIFICATION sent last.
fn last_notification(hand: &mut Hand, conn: ConnId) -> Option<Vec<u8>> {
    let (kind, body) = hand.sent(conn).pop()?;
    (kind == MessageKind::Notification).then_some(body)
}

#[test]
fn a_received_notification_keeps_routes_where_both_have_the_n_bit_and_it_is_no_hard_reset() {
    // NOTIFICATION body; true if routes are kept with the N bit.
    let table: &[(&[u8], bool)] = &[
        (&[4, 0], true),
        (&[8, 0], true),
        (&[3, 1], true),
        (&[3, 5, 0x40, 3, 1, 9], true),
        (&[5, 3, 5], true),
        (&[6, 0], true),
        (&[6, 1, 0, 1, 1, 0, 0, 0, 9], true),
        (&[6, 2], true),
        (&[6, 2, 3, b'b', b'y', b'e'], true),
        (&[6, 4], true),
        (&[6, 5], true),
        (&[6, 6], true),
        (&[6, 7], true),
        (&[6, 8], true),
        (&[6, 10], true),
        (&[6, 200], true),
        (&[6, 9], false),
        (&[6, 9, 6, 2, 3, b'b', b'y', b'e'], false),
        (&[6, 9, 4, 0], false),
        // Too short for a subcode: still a NOTIFICATION, and no Hard Reset.
        (&[6], true),
        (&[], true),
    ];
    for (body, kept) in table {
        for said in [None, Some(false), Some(true)] {
            let mut hand = session(said.map(|n| graceful(n, true)));
            hand.give(Input::Data(CONN, &notification(body)));
            hand.rest();
            let want = if said == Some(true) && *kept { (2, 2) } else { (0, 0) };
            assert_eq!(counts(&hand), want, "{body:?} N {said:?}");
            let down = hand.speaker.peer(PeerId(1), hand.now).unwrap().last_down.unwrap().0;
            assert_eq!(down.helper, want.1 > 0, "{body:?}");
            hand.wait(Duration::from_secs(61));
            assert_eq!(counts(&hand), (0, 0), "the restart time is over: {body:?}");
        }
    }
}

#[test]
fn the_notification_inside_a_hard_reset_is_reported() {
    let mut hand = session(Some(graceful(true, true)));
    hand.give(Input::Data(CONN, &notification(&[6, 9, 6, 2, 3, b'b', b'y', b'e'])));
    let down = hand.speaker.peer(PeerId(1), hand.now).unwrap().last_down.unwrap().0;
    assert_eq!(down.code, DownCode::NotificationReceived);
    assert_eq!(down.notification, Some((6, 2)));
    assert_eq!(down.text, "received NOTIFICATION 6/9 hard reset (6/2 administrative shutdown): bye");
}

/// Ends the session from this side.
type Ending = fn(&mut Hand);

fn change(hand: &mut Hand, edit: impl Fn(&mut PeerConfig)) {
    let mut config = peer(ip("192.0.2.9"), 65001);
    config.dial = tortie_bgp::Dial::Passive;
    edit(&mut config);
    hand.give(Input::Peer(PeerId(1), Box::new(config)));
}

fn bfd(hand: &mut Hand) {
    hand.give(Input::BfdDown { peer: PeerId(1), text: "detection time".into(), independent: false });
}

#[test]
fn our_ends_are_hard_or_not_and_say_so() {
    // Cause, body sent with N on both sides, body sent without, routes kept with N.
    type Row = (&'static str, Ending, &'static [u8], &'static [u8], bool);
    let table: &[Row] = &[
        ("hold timer", |h| h.wait(Duration::from_secs(91)), &[4, 0], &[4, 0], true),
        ("malformed UPDATE", |h| h.give(Input::Data(CONN, &bad_update())), &[3, 1], &[3, 1], true),
        ("unexpected OPEN", |h| h.give(Input::Data(CONN, &greet(None))), &[5, 3, 1], &[5, 3, 1], true),
        (
            "hold time changed",
            |h| change(h, |c| c.hold_time = Duration::from_secs(30)),
            &[6, 6],
            &[6, 6],
            true,
        ),
        ("AS changed", |h| change(h, |c| c.asn = 65002), &[6, 9, 6, 6], &[6, 6], false),
        (
            "limit",
            |h| change(h, |c| c.max_prefixes = Some(tortie_bgp::PrefixLimit::new(1))),
            &[6, 9, 6, 1, 0, 1, 1, 0, 0, 0, 1],
            &[6, 1, 0, 1, 1, 0, 0, 0, 1],
            false,
        ),
        (
            "reset",
            |h| h.give(Input::Reset(PeerId(1), Reset::Hard(String::new()))),
            &[6, 9, 6, 4],
            &[6, 4],
            false,
        ),
        ("BFD", bfd, &[6, 9, 6, 10], &[6, 10], false),
        (
            "shutdown",
            |h| h.give(Input::Shutdown { graceful: false, text: "bye".into() }),
            &[6, 9, 6, 2, 3, b'b', b'y', b'e'],
            &[6, 2, 3, b'b', b'y', b'e'],
            false,
        ),
    ];
    for (name, end, with, without, kept) in table {
        for both in [true, false] {
            let mut hand = session(Some(graceful(both, true)));
            end(&mut hand);
            hand.rest();
            let sent = last_notification(&mut hand, CONN);
            assert_eq!(sent.as_deref(), Some(if both { *with } else { *without }), "{name} N {both}");
            let want = if both && *kept { (2, 2) } else { (0, 0) };
            assert_eq!(counts(&hand), want, "{name} N {both}");
        }
    }
    let mut hand = session(Some(graceful(true, true)));
    hand.give(Input::RemovePeer(PeerId(1)));
    assert_eq!(last_notification(&mut hand, CONN), Some(vec![6, 9, 6, 3]));
}

/// The length of the attributes exceeds the message.
fn bad_update() -> Vec<u8> {
    let mut message = vec![0xff; 16];
    message.extend_from_slice(&[0, 23, 2, 0, 0, 0, 9]);
    message
}

#[test]
fn a_peer_without_the_capability_is_never_helped() {
    // No capability, and one without families (default of BIRD, FRR as helper).
    for said in [None, Some(GracefulRestart { families: [].into_iter().collect(), ..graceful(true, true) })] {
        let mut hand = session(said);
        hand.give(Input::Closed(CONN, "reset".into()));
        hand.rest();
        assert_eq!(counts(&hand), (0, 0));
    }
    // Restart time 0.
    let mut hand = session(Some(GracefulRestart { time: 0, ..graceful(true, true) }));
    hand.give(Input::Closed(CONN, "reset".into()));
    hand.rest();
    assert_eq!(counts(&hand), (0, 0));
}

#[test]
fn a_second_end_before_end_of_rib_deletes_old_routes_or_keeps_them() {
    for (both, kept) in [(false, 1), (true, 2)] {
        let mut hand = session(Some(graceful(both, true)));
        hand.give(Input::Closed(CONN, "reset".into()));
        hand.accept(SECOND);
        hand.give(Input::Data(SECOND, &greet(Some(graceful(both, true)))));
        assert_eq!((hand.state(), counts(&hand)), (State::Established, (2, 2)));
        // One of the two routes was announced again.
        hand.give(Input::Data(SECOND, &update(0..1)));
        assert_eq!(counts(&hand), (2, 1));
        hand.give(Input::Closed(SECOND, "reset".into()));
        hand.rest();
        // RFC 4724 4.2 deletes routes that were stale before; RFC 8538 4.1 keeps them.
        assert_eq!(counts(&hand), (kept, kept), "N {both}");
        hand.wait(Duration::from_secs(61));
        assert_eq!(counts(&hand), (0, 0));
    }
}

#[test]
fn a_session_that_comes_and_goes_for_ever_keeps_no_more_than_it_gave() {
    let mut hand = session(Some(graceful(true, true)));
    hand.give(Input::Closed(CONN, "reset".into()));
    for n in 2..700 {
        hand.accept(ConnId(n));
        hand.give(Input::Data(ConnId(n), &greet(Some(graceful(true, true)))));
        let one = (n % 5) as u32;
        hand.give(Input::Data(ConnId(n), &update(one..one + 1)));
        hand.give(Input::Closed(ConnId(n), "reset".into()));
        hand.rest();
        let (received, stale) = counts(&hand);
        assert_eq!(received, stale);
        assert!((1..=5).contains(&received), "{received} after {n}");
    }
    assert_eq!(hand.speaker.totals().paths[0], u64::from(counts(&hand).0));
    hand.wait(Duration::from_secs(61));
    assert_eq!((counts(&hand), hand.speaker.totals().paths), ((0, 0), [0, 0]));
}

#[test]
fn end_of_rib_that_never_comes_is_waited_for_to_an_end() {
    let mut hand = session(Some(graceful(true, true)));
    hand.give(Input::Closed(CONN, "reset".into()));
    hand.accept(SECOND);
    hand.give(Input::Data(SECOND, &greet(Some(graceful(true, true)))));
    let mut keepalive = Vec::new();
    write_keepalive(&mut keepalive);
    for _ in 0..5 {
        assert_eq!(counts(&hand), (2, 2));
        assert!(matches!(phase(&hand), RestartPhase::Refreshing(_)));
        hand.wait(Duration::from_secs(25));
        hand.give(Input::Data(SECOND, &keepalive));
    }
    hand.rest();
    assert_eq!((hand.state(), counts(&hand)), (State::Established, (0, 0)));
    assert_eq!(phase(&hand), RestartPhase::Idle);
}

/// RFC 8538 4.1: successive restarts do not extend the time for which stale routes are kept.
#[test]
fn a_route_that_never_comes_again_goes_although_its_sender_restarts_again_and_again() {
    // Seconds without and with a session; routes left at the end of the time, with the session up or down.
    for (away, back, left) in [(25, 25, 1), (50, 5, 0)] {
        let mut hand = session(Some(graceful(true, true)));
        hand.give(Input::Closed(CONN, "reset".into()));
        let lost = hand.now;
        // One restart takes at most 60 s until the session is up, and 120 s until End-of-RIB.
        for n in 2.. {
            let conn = ConnId(n);
            hand.wait(Duration::from_secs(away));
            if hand.now - lost > Duration::from_secs(180) {
                break;
            }
            hand.accept(conn);
            hand.give(Input::Data(conn, &greet(Some(graceful(true, true)))));
            hand.give(Input::Data(conn, &update(1..2)));
            assert_eq!((hand.state(), counts(&hand)), (State::Established, (2, 1)), "{:?}", hand.now - lost);
            hand.wait(Duration::from_secs(back));
            hand.give(Input::Closed(conn, "reset".into()));
            hand.rest();
        }
        hand.rest();
        assert_eq!(counts(&hand), (left, left), "away {away} s, back {back} s");
        // The next restart has the full time.
        let last = ConnId(1000);
        hand.accept(last);
        hand.give(Input::Data(last, &greet(Some(graceful(true, true)))));
        let mut bytes = update(0..2);
        write_end_of_rib(Family::Ipv4Unicast, &mut bytes);
        hand.give(Input::Data(last, &bytes));
        hand.give(Input::Closed(last, "reset".into()));
        hand.wait(Duration::from_secs(59));
        assert_eq!(counts(&hand), (2, 2));
    }
}

/// Stale routes follow a changed BGP identifier of their peer: the decision process uses the new one (RFC
/// 4271 9.1.2.2 f), and so does ORIGINATOR_ID of reflected routes (RFC 4456 8).
#[test]
fn another_identifier_after_a_restart_acts_on_routes_that_come_again_as_they_were() {
    const LISTENER: ConnId = ConnId(10);
    let mut hand = Hand::new();
    let come = |hand: &mut Hand, address: &str, conn: ConnId, id: u32| {
        let (local, remote) = (ip("192.0.2.1"), ip(address));
        let (local, remote) = (SocketAddr::new(local, 179), SocketAddr::new(remote, 40_000));
        hand.give(Input::Accepted { conn, local, remote });
        let mut open = crate::support::open(64512, id);
        open.capabilities.graceful_restart = Some(graceful(true, true));
        hand.give(Input::Data(conn, &greeting(&open)));
        let mut bytes = Vec::new();
        if conn != LISTENER {
            let mut attributes = crate::support::attributes(ip("192.0.2.200"), &[65001]);
            attributes.local_pref = Some(100);
            let session = crate::support::session(false);
            crate::support::announce(&mut bytes, &session, &attributes, [(0x0a00_0000, 24)]);
        }
        write_end_of_rib(Family::Ipv4Unicast, &mut bytes);
        hand.give(Input::Data(conn, &bytes));
        hand.rest();
    };
    for (n, client) in [(1, Some(5)), (2, None), (3, Some(5))] {
        let mut config = peer(ip(&format!("192.0.2.{}", 8 + n)), 64512);
        config.dial = tortie_bgp::Dial::Passive;
        config.reflector_client = client;
        hand.give(Input::Peer(PeerId(n), Box::new(config)));
    }
    let originators = |hand: &mut Hand| -> Vec<Option<u32>> {
        let updates = hand.sent(LISTENER).into_iter().filter(|(kind, _)| *kind == MessageKind::Update);
        let read = |(_, body): (MessageKind, Vec<u8>)| {
            let update = Update::decode(&body, &crate::support::session(false)).unwrap();
            update.reach.into_iter().map(|r| r.attributes.originator_id()).collect::<Vec<_>>()
        };
        updates.flat_map(read).collect()
    };
    come(&mut hand, "192.0.2.10", LISTENER, 100);
    come(&mut hand, "192.0.2.9", ConnId(2), 9);
    assert_eq!(originators(&mut hand), [Some(9)]);
    hand.give(Input::Closed(ConnId(2), "reset".into()));
    come(&mut hand, "192.0.2.9", ConnId(3), 11);
    assert_eq!(originators(&mut hand), [Some(11)]);
    // The lowest identifier is best, until the other peer returns with a lower one.
    come(&mut hand, "192.0.2.11", ConnId(4), 10);
    assert_eq!(originators(&mut hand), [Some(10)]);
    hand.give(Input::Closed(ConnId(3), "reset".into()));
    come(&mut hand, "192.0.2.9", ConnId(5), 8);
    assert_eq!(originators(&mut hand), [Some(8)]);
}

fn phase(hand: &Hand) -> RestartPhase {
    hand.speaker.peer(PeerId(1), hand.now).unwrap().restart
}

#[test]
fn a_peer_that_lost_its_forwarding_state_or_the_capability_is_flushed_when_it_is_back() {
    for said in [None, Some(graceful(true, false))] {
        let mut hand = session(Some(graceful(true, true)));
        hand.give(Input::Data(CONN, &notification(&[6, 8])));
        assert_eq!(counts(&hand), (2, 2));
        hand.accept(SECOND);
        hand.give(Input::Data(SECOND, &greet(said)));
        hand.rest();
        assert_eq!(counts(&hand), (0, 0));
    }
}

/// RFC 5882 4.3: with the C bit, BFD down means that forwarding has failed and ends a restart. Without it,
/// BFD may have failed with the restarting control plane.
#[test]
fn bfd_down_ends_a_restart_where_it_is_independent_of_the_control_plane() {
    for (independent, left) in [(true, 0), (false, 2)] {
        let mut hand = session(Some(graceful(true, true)));
        hand.give(Input::Closed(CONN, "reset".into()));
        hand.give(Input::BfdDown { peer: PeerId(1), text: "detection time".into(), independent });
        hand.rest();
        assert_eq!(counts(&hand), (left, left), "C {independent}");
    }
}

/// Evidence that the peer does not forward ends its restart. Other failures do not, nor does evidence about a
/// peer in Established.
#[test]
fn stale_routes_go_with_evidence_that_their_sender_does_not_forward() {
    let link_down = || Input::LinkDown { peer: PeerId(1), text: "interface eth0 is down".into() };
    let refused = || Input::DialFailed { peer: PeerId(1), error: "connection refused".into() };
    let closed = || Input::Closed(CONN, "reset".into());
    let table: [(Vec<Input<'_>>, u32); 6] = [
        (vec![closed()], 2),
        (vec![closed(), refused(), Input::LinkUp(PeerId(1))], 2),
        (vec![closed(), Input::NotForwarding(PeerId(1))], 0),
        (vec![closed(), link_down(), Input::LinkUp(PeerId(1))], 0),
        (vec![link_down()], 0),
        (vec![Input::NotForwarding(PeerId(1)), closed()], 2),
    ];
    for (inputs, left) in table {
        let mut hand = session(Some(graceful(true, true)));
        let shown = format!("{inputs:?}");
        for input in inputs {
            hand.give(input);
        }
        hand.rest();
        assert_eq!(counts(&hand), (left, left), "{shown}");
    }
}

/// RFC 4724 keeps the routes of a restarting peer in use; they do not share load with those of a running
/// session.
#[test]
fn a_stale_path_never_equals_a_fresh_one() {
    let mut net = Net::new(3);
    let a = net.node(64512);
    let (b, c) = (net.node(64512), net.node(64512));
    net.ready_all();
    for peer in [b, c] {
        net.join(a, peer, |_, _| ());
        net.originate(peer, &["10.5.0.0/24"]);
    }
    net.originate(b, &["10.6.0.0/24"]);
    net.secs(3);
    let hops = |net: &Net, prefix: &str| {
        net.nodes[a].best[&cidr(prefix)].next_hops.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(hops(&net, "10.5.0.0/24"), ["10.255.0.2", "10.255.0.3"]);
    net.nodes[b].up = false;
    net.cut(b);
    net.secs(3);
    assert_eq!(hops(&net, "10.5.0.0/24"), ["10.255.0.3"], "the better known one");
    assert_eq!(hops(&net, "10.6.0.0/24"), ["10.255.0.2"], "there is no other");
    let best = &net.nodes[a].best[&cidr("10.6.0.0/24")];
    assert!(best.stale || net.status(a, b).families[0].stale == 2);
    net.nodes[b].up = true;
    net.secs(60);
    assert_eq!(hops(&net, "10.5.0.0/24"), ["10.255.0.2", "10.255.0.3"], "it is back");
}

#[test]
fn a_reset_between_two_of_ours_drops_routes_at_both_ends_and_a_new_hold_time_at_none() {
    for hard in [true, false] {
        let mut net = Net::new(1);
        let (a, b) = (net.node(64512), net.node(64512));
        net.ready_all();
        net.join(a, b, |_, _| ());
        net.originate(a, &["10.0.0.0/24"]);
        net.originate(b, &["10.1.0.0/24"]);
        net.secs(3);
        if hard {
            net.give(a, Input::Reset(PeerId(1), Reset::Hard(String::new())));
        } else {
            net.half(a, b, &|_, c| c.hold_time = Duration::from_secs(30));
        }
        net.some(100);
        let stale = |n: usize, m: usize| net.status(n, m).last_down.is_some_and(|(d, _)| d.helper);
        assert_eq!((stale(a, b), stale(b, a)), (!hard, !hard));
        assert!(hard || net.nodes.iter().all(|n| n.best.len() == 1), "routes stay");
        net.secs(20);
        assert!(net.is_up(a, b));
        assert_eq!(
            (net.best_prefixes(a), net.best_prefixes(b)),
            (vec!["10.1.0.0/24".into()], vec!["10.0.0.0/24".into()])
        );
    }
}
