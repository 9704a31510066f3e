//! Recorded errors, and the OPEN that follows a rejected one.

use std::net::SocketAddr;
use std::time::Duration;

use tortie_bgp::wire::{Capabilities, ErrorCode, Families, MessageKind, Notification, Open, Role};
use tortie_bgp::{
    ConnId, Dial, Down, DownCode, Event, Family, Input, LastError, LastErrorKind, PeerId, Reset, State,
};

use crate::raw::{CONN, Hand, bytes_of, open, update};
use crate::support::{greeting, ip, peer};

impl Hand {
    fn last_error(&self) -> Option<LastError> {
        self.speaker.peer(PeerId(1), self.now).unwrap().last_error
    }

    fn last_down(&self) -> Down {
        self.speaker.peer(PeerId(1), self.now).unwrap().last_down.unwrap().0
    }

    /// Returns our OPEN on this connection.
    fn offer(&mut self, conn: ConnId) -> Open {
        let sent = self.sent(conn);
        let (kind, body) = sent.first().unwrap();
        assert_eq!(*kind, MessageKind::Open);
        Open::decode(body).unwrap()
    }

    /// The peer rejects our OPEN with this NOTIFICATION.
    fn refuses(&mut self, conn: ConnId, refusal: &Notification) {
        let mut bytes = Vec::new();
        refusal.write(&mut bytes);
        self.events.clear();
        self.give(Input::Data(conn, &bytes));
    }
}

fn bytes(notification: &Notification) -> Vec<u8> {
    let mut bytes = Vec::new();
    notification.write(&mut bytes);
    bytes
}

#[test]
fn the_offending_octets_are_kept() {
    // RFC 4271 6.1: a bad header. The connection is gone, the octets are kept.
    let mut hand = Hand::new().up();
    assert_eq!(hand.last_error(), None);
    let mut junk = vec![0xff; 18];
    junk.extend([9; 30]);
    hand.refused(&junk);
    let error = hand.last_error().unwrap();
    assert_eq!((error.kind, error.code), (LastErrorKind::Sent, Some((1, 2))));
    assert_eq!(*error.message, junk[..]);
    // The second message of three is recorded, not the first or third.
    let mut hand = Hand::new().up();
    let mut bad = update(2..3);
    let end = bad.len();
    // ORIGIN 9.
    let origin = bad.windows(4).position(|w| w == [0x40, 1, 1, 0]).unwrap();
    bad[origin + 3] = 9;
    hand.give(Input::Data(CONN, &[update(1..2), bad.clone(), update(3..4)].concat()));
    let error = hand.last_error().unwrap();
    assert_eq!((error.kind, error.code), (LastErrorKind::Withdrawn, None));
    assert_eq!(*error.message, bad[..end]);
    assert!(error.text.contains("attribute 1"), "{}", error.text);
    // The error is kept after the session.
    hand.give(Input::Closed(CONN, "gone".into()));
    hand.wait(Duration::from_secs(100));
    let error = hand.last_error().unwrap();
    assert_eq!((error.kind, error.ago), (LastErrorKind::Withdrawn, Duration::from_secs(100)));
}

#[test]
fn what_is_kept_is_bounded() {
    let mut hand = Hand::new().up();
    let mut long = update(1..200);
    let origin = long.windows(4).position(|w| w == [0x40, 1, 1, 0]).unwrap();
    long[origin + 3] = 9;
    hand.give(Input::Data(CONN, &long));
    assert_eq!(*hand.last_error().unwrap().message, long[..512]);
    let data = vec![7; 3000];
    hand.give(Input::Data(CONN, &bytes(&Notification::with_data(ErrorCode::CEASE, &data))));
    let error = hand.last_error().unwrap();
    assert_eq!((error.kind, &*error.data, &*error.message), (LastErrorKind::Received, &data[..512], &[][..]));
}

/// RFC 9003: any contents are shown to people, and made safe to print.
#[test]
fn shutdown_communications_are_read_and_made_safe() {
    let text = |code: u8, data: &[u8]| {
        let mut hand = Hand::new().up();
        hand.give(Input::Data(CONN, &bytes(&Notification::with_data(ErrorCode(6, code), data))));
        let down = hand.last_down();
        assert_eq!((down.code, down.notification), (DownCode::NotificationReceived, Some((6, code))));
        down.text
    };
    assert!(text(2, b"\x0bmaintenance").ends_with(": maintenance"));
    assert!(text(4, b"\x04boot").ends_with(": boot"));
    // Control characters must not reach a terminal.
    let sneaky = text(2, b"\x0a\x1b[31mx\r\ny\xff");
    assert!(!sneaky.contains(|c: char| c.is_control()), "{sneaky:?}");
    // With a wrong length, the octets present are used.
    assert!(text(2, b"\xffshort").ends_with(": short"));
    // 255 octets, the maximum, and none.
    let long = [&[255][..], &[b'a'; 255]].concat();
    assert!(text(2, &long).ends_with(&"a".repeat(255)));
    assert!(!text(2, &[0]).contains(": "));
    // Other subcodes have no communication.
    assert!(!text(3, b"\x04text").contains("text"));
}

#[test]
fn a_reset_carries_its_reason() {
    for (text, sent) in [
        ("moving racks", "moving racks".to_owned()),
        ("", String::new()),
        (&"\u{e4}".repeat(200), "\u{e4}".repeat(127)),
    ] {
        let mut hand = Hand::new().up();
        hand.sent(CONN);
        hand.give(Input::Reset(PeerId(1), Reset::Hard(text.to_owned())));
        let (kind, body) = hand.sent(CONN).pop().unwrap();
        assert_eq!((kind, &body[..2]), (MessageKind::Notification, &[6, 4][..]));
        let expected = if sent.is_empty() { vec![] } else { [&[sent.len() as u8], sent.as_bytes()].concat() };
        assert_eq!(&body[2..], expected);
    }
}

fn dialled(hand: &mut Hand, conn: ConnId) {
    let local = SocketAddr::new(ip("192.0.2.1"), 40_000);
    hand.give(Input::Dialled { peer: PeerId(1), conn, local, remote: SocketAddr::new(ip("192.0.2.9"), 179) });
}

/// A peer that is dialled; the first attempt is `ConnId(10)`.
fn dialling() -> Hand {
    let mut hand = Hand::new();
    hand.give(Input::Closed(CONN, "gone".into()));
    let mut config = peer(ip("192.0.2.9"), 65001);
    config.dial = Dial::Now;
    config.extended_messages = true;
    hand.give(Input::Peer(PeerId(1), Box::new(config)));
    hand.wait(Duration::from_secs(20));
    assert!(hand.events.contains(&Event::Dial(PeerId(1))));
    dialled(&mut hand, ConnId(10));
    hand
}

#[test]
fn a_refused_capability_is_left_out_at_once() {
    let mut hand = dialling();
    let first = hand.offer(ConnId(10)).capabilities;
    assert!(first.graceful_restart.is_some() && first.extended_messages && first.enhanced_refresh);
    let refusal = Notification::with_data(ErrorCode::UNSUPPORTED_CAPABILITY, &[64, 2, 0, 120, 70, 0]);
    hand.refuses(ConnId(10), &refusal);
    hand.wait(Duration::from_millis(1001));
    assert!(hand.events.contains(&Event::Dial(PeerId(1))), "no waiting");
    dialled(&mut hand, ConnId(11));
    let second = hand.offer(ConnId(11)).capabilities;
    assert_eq!(second, Capabilities { graceful_restart: None, enhanced_refresh: false, ..first.clone() });
    hand.give(Input::Data(ConnId(11), &greeting(&open())));
    assert_eq!(hand.state(), State::Established);
    // After a session, all capabilities are offered again: the peer may support them now.
    hand.events.clear();
    hand.give(Input::Closed(ConnId(11), "restarted".into()));
    hand.wait(Duration::from_secs(2));
    dialled(&mut hand, ConnId(12));
    let again = hand.offer(ConnId(12)).capabilities;
    assert!(again.graceful_restart.is_some() && again.enhanced_refresh);
}

#[test]
fn a_speaker_without_capabilities_gets_none() {
    let mut hand = dialling();
    hand.refuses(ConnId(10), &Notification::new(ErrorCode::UNSUPPORTED_PARAMETER));
    hand.wait(Duration::from_millis(1001));
    dialled(&mut hand, ConnId(11));
    let bare = hand.sent(ConnId(11)).remove(0).1;
    // RFC 4271 4.2: version, AS, hold time, identifier, no optional parameters.
    assert_eq!(bare, [4, 0xfc, 0x00, 0, 90, 0, 0, 0, 1, 0]);
    let old = Open { capabilities: Capabilities::default(), ..open() };
    hand.give(Input::Data(ConnId(11), &greeting(&old)));
    assert_eq!(hand.state(), State::Established);
    assert!(!hand.speaker.peer(PeerId(1), hand.now).unwrap().session.unwrap().as4);
}

/// The capability fallback is not permanent: any other NOTIFICATION resets it.
#[test]
fn another_error_ends_what_is_left_out() {
    let mut hand = dialling();
    let first = hand.offer(ConnId(10));
    let nameless = Notification::new(ErrorCode::UNSUPPORTED_CAPABILITY);
    for conn in [10, 11] {
        hand.refuses(ConnId(conn), &nameless);
        hand.wait(Duration::from_millis(1001));
        dialled(&mut hand, ConnId(conn + 1));
    }
    assert_eq!(hand.offer(ConnId(12)).capabilities, Capabilities::default());
    hand.refuses(ConnId(12), &Notification::new(ErrorCode::BAD_PEER_AS));
    hand.wait(Duration::from_secs(6));
    dialled(&mut hand, ConnId(13));
    assert_eq!(hand.offer(ConnId(13)), first);
}

/// RFC 5492 5: a NOTIFICATION to a peer without a common family lists our families, even if our OPEN did not.
#[test]
fn the_missing_family_is_named_without_capabilities_too() {
    let mut hand = dialling();
    hand.refuses(ConnId(10), &Notification::new(ErrorCode::UNSUPPORTED_PARAMETER));
    hand.wait(Duration::from_millis(1001));
    dialled(&mut hand, ConnId(11));
    assert_eq!(hand.offer(ConnId(11)).capabilities, Capabilities::default());
    let mut theirs = open();
    theirs.capabilities.families = Families::NONE.with(Family::Ipv6Unicast);
    hand.give(Input::Data(ConnId(11), &bytes_of(&theirs)));
    let (kind, body) = hand.sent(ConnId(11)).pop().unwrap();
    assert_eq!((kind, &body[..]), (MessageKind::Notification, &[2, 7, 1, 4, 0, 1, 0, 1][..]));
}

/// The peer rejects capabilities without naming one: IPv4 unicast must not come up in place of IPv6.
#[test]
fn an_ipv6_peer_is_never_offered_a_session_of_ipv4() {
    let mut hand = dialling();
    let mut config = peer(ip("192.0.2.9"), 65001);
    config.dial = Dial::Now;
    config.families = vec![Family::Ipv6Unicast];
    hand.give(Input::Peer(PeerId(1), Box::new(config)));
    hand.wait(Duration::from_secs(20));
    let v6 = Families::NONE.with(Family::Ipv6Unicast);
    for conn in 11..14 {
        dialled(&mut hand, ConnId(conn));
        let offer = hand.offer(ConnId(conn)).capabilities;
        assert_eq!((offer.multiprotocol, offer.families), (true, v6), "{conn}");
        if conn < 13 {
            hand.refuses(ConnId(conn), &Notification::new(ErrorCode::UNSUPPORTED_CAPABILITY));
            hand.wait(Duration::from_secs(6));
        }
    }
    let mut theirs = open();
    theirs.capabilities.families = v6;
    hand.give(Input::Data(ConnId(13), &greeting(&theirs)));
    assert_eq!(hand.state(), State::Established);
}

/// RFC 9234 4.1 and 4.2: a rejection by the peer removes neither a required role of ours nor the requirement
/// of its own.
#[test]
fn a_refusal_does_not_switch_roles_off() {
    let refused_with = |strict: bool, refusals: &[&[u8]], theirs: Option<Role>| {
        let mut hand = dialling();
        let mut config = peer(ip("192.0.2.9"), 65001);
        config.dial = Dial::Now;
        config.role = Some(Role::Customer);
        config.role_strict = strict;
        hand.give(Input::Peer(PeerId(1), Box::new(config)));
        hand.wait(Duration::from_secs(20));
        let mut conn = 11;
        dialled(&mut hand, ConnId(conn));
        for data in refusals {
            hand.refuses(ConnId(conn), &Notification::with_data(ErrorCode::UNSUPPORTED_CAPABILITY, data));
            hand.wait(Duration::from_secs(20));
            conn += 1;
            dialled(&mut hand, ConnId(conn));
        }
        let offer = hand.offer(ConnId(conn)).capabilities;
        let mut open = open();
        open.capabilities.role = theirs;
        hand.give(Input::Data(ConnId(conn), &bytes_of(&open)));
        (offer.role, hand.last_down().notification)
    };
    let customer = Some(Role::Customer);
    assert_eq!(refused_with(true, &[&[9, 1, 3]], None), (customer, Some((2, 11))));
    assert_eq!(refused_with(true, &[&[], &[], &[]], None), (customer, Some((2, 11))));
    assert_eq!(refused_with(false, &[&[]], Some(Role::Peer)), (customer, Some((2, 11))));
    // Rejected by code, without strict mode: a role that the peer sends nevertheless has to match.
    assert_eq!(refused_with(false, &[&[9, 1, 3]], Some(Role::Peer)), (None, Some((2, 11))));
    // Without any capabilities, the last step if no role is required: a role that the peer sends has to
    // match.
    assert_eq!(refused_with(false, &[&[], &[]], Some(Role::Peer)), (None, Some((2, 11))));
}

/// A rejection that the fallback cannot resolve is treated as any other error: the retry interval grows.
#[test]
fn a_refusal_that_we_cannot_help_waits() {
    let mut hand = dialling();
    hand.offer(ConnId(10));
    hand.refuses(
        ConnId(10),
        &Notification::with_data(ErrorCode::UNSUPPORTED_CAPABILITY, &[1, 4, 0, 25, 0, 70]),
    );
    hand.wait(Duration::from_secs(3));
    assert!(!hand.events.contains(&Event::Dial(PeerId(1))));
    hand.wait(Duration::from_secs(3));
    assert!(hand.events.contains(&Event::Dial(PeerId(1))));
}

#[test]
fn a_configured_send_hold_time_counts_but_never_less_than_the_hold_time() {
    for (configured, from, to) in [(Some(100), 95, 125), (Some(10), 85, 115), (None, 475, 505)] {
        let mut hand = Hand::new();
        let mut config = peer(ip("192.0.2.9"), 65001);
        config.dial = Dial::Passive;
        config.send_hold_time = configured.map(Duration::from_secs);
        hand.give(Input::Peer(PeerId(1), Box::new(config)));
        let mut hand = hand.up();
        hand.sent(CONN);
        let start = hand.now;
        let mut keepalive = Vec::new();
        tortie_bgp::wire::write_keepalive(&mut keepalive);
        while hand.state() == State::Established {
            hand.wait(Duration::from_secs(5));
            hand.give(Input::Data(CONN, &keepalive));
        }
        // The timer starts when the first KEEPALIVE cannot be sent, after 22 to 30 s.
        let lasted = hand.now.duration_since(start).as_secs();
        assert!((from + 22..=to + 10).contains(&lasted), "{configured:?} {lasted}");
        assert_eq!(hand.last_down().notification, Some((8, 0)));
        let (kind, body) = hand.sent(CONN).pop().unwrap();
        assert_eq!((kind, &body[..]), (MessageKind::Notification, &[8, 0][..]));
    }
}

/// RFC 4271 6.8 and RFC 6286 2.3: of two connections, the one dialled by the higher identifier is kept; with
/// equal identifiers, that of the higher AS.
#[test]
fn of_two_connections_the_right_one_stays() {
    for (id, asn, ours_stays) in
        [(2, 65001, false), (1, 65001, false), (1, 64000, true), (0xffff_fff0, 64000, false)]
    {
        for outgoing_first in [true, false] {
            let mut hand = Hand::new();
            hand.give(Input::Closed(CONN, "gone".into()));
            let mut config = peer(ip("192.0.2.9"), asn);
            config.dial = Dial::Now;
            hand.give(Input::Peer(PeerId(1), Box::new(config)));
            hand.wait(Duration::from_secs(20));
            let (outgoing, incoming) = (ConnId(10), ConnId(11));
            dialled(&mut hand, outgoing);
            hand.accept(incoming);
            let theirs = bytes_of(&crate::support::open(asn, id));
            let order = if outgoing_first { [outgoing, incoming] } else { [incoming, outgoing] };
            for conn in order {
                hand.give(Input::Data(conn, &theirs));
            }
            let (stays, goes) = if ours_stays { (outgoing, incoming) } else { (incoming, outgoing) };
            assert!(hand.events.contains(&Event::Close(goes)), "{id} {asn} {outgoing_first}");
            assert!(!hand.events.contains(&Event::Close(stays)), "{id} {asn} {outgoing_first}");
            let (kind, body) = hand.sent(goes).pop().unwrap();
            assert_eq!((kind, &body[..]), (MessageKind::Notification, &[6, 7][..]));
            let mut keepalive = Vec::new();
            tortie_bgp::wire::write_keepalive(&mut keepalive);
            hand.give(Input::Data(stays, &keepalive));
            assert_eq!(hand.state(), State::Established);
        }
    }
}
