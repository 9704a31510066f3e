//! Route refresh (RFC 2918) and its beginning and end markers (RFC 7313).

use std::time::Duration;

use tortie_bgp::wire::{MessageKind, Open, RefreshKind, RouteRefresh, Update, write_end_of_rib};
use tortie_bgp::{ConnId, Event, Family, Input, PeerId, RouteMatch, RouteQuery, RouteTable, State};

use crate::raw::{CONN, Hand, open, update};
use crate::support::{cidr, greeting, route, session};

const V4: Family = Family::Ipv4Unicast;

fn enhanced() -> Open {
    let mut open = open();
    open.capabilities.route_refresh = true;
    open.capabilities.enhanced_refresh = true;
    open
}

fn refresh(kind: RefreshKind) -> Vec<u8> {
    let mut out = Vec::new();
    RouteRefresh { family: V4, kind }.write(&mut out);
    out
}

fn end_of_rib() -> Vec<u8> {
    let mut out = Vec::new();
    write_end_of_rib(V4, &mut out);
    out
}

impl Hand {
    fn says(&mut self, bytes: &[u8]) {
        self.give(Input::Data(CONN, bytes));
        self.rest();
    }

    /// Returns the third octets of the routes 10.0.N.0/24 from the peer, and the number of stale ones.
    fn has(&self) -> (Vec<u8>, u32) {
        let query = RouteQuery { table: RouteTable::AdjIn(PeerId(1)), matching: RouteMatch::All(V4) };
        let routes = self.speaker.routes(&query, None, 100);
        let octet = |c: tortie_net::Cidr| match c.addr() {
            std::net::IpAddr::V4(a) => a.octets()[2],
            std::net::IpAddr::V6(_) => unreachable!(),
        };
        let stale = self.speaker.peer(PeerId(1), self.now).unwrap().families[0].stale;
        (routes.into_iter().map(|r| octet(r.prefix)).collect(), stale)
    }

    /// Returns the messages sent: `U` routes, `E` End-of-RIB, `B` BoRR, `e` EoRR.
    fn sent_kinds(&mut self) -> String {
        let read = |(kind, body): (MessageKind, Vec<u8>)| match kind {
            MessageKind::Update => {
                let end = Update::decode(&body, &session(true)).unwrap().end_of_rib.is_some();
                if end { "E" } else { "U" }
            }
            MessageKind::RouteRefresh => match RouteRefresh::decode(&body, true).unwrap().unwrap().kind {
                RefreshKind::Request => "?",
                RefreshKind::Begin => "B",
                RefreshKind::End => "e",
            },
            _ => "",
        };
        self.sent(CONN).into_iter().map(read).collect()
    }
}

#[test]
fn what_does_not_come_again_is_gone_at_the_end_and_not_before() {
    let mut hand = Hand::new().up_with(&enhanced());
    hand.says(&update(1..5));
    hand.events.clear();
    hand.says(&refresh(RefreshKind::Begin));
    assert_eq!(hand.has(), (vec![1, 2, 3, 4], 4));
    hand.says(&update(2..4));
    assert_eq!(hand.has(), (vec![1, 2, 3, 4], 2));
    assert!(!hand.events.contains(&Event::BestChanged), "nothing changed so far");
    hand.says(&refresh(RefreshKind::End));
    assert_eq!(hand.has(), (vec![2, 3], 0));
    assert_eq!(hand.state(), State::Established);
}

#[test]
fn a_second_beginning_starts_over() {
    let mut hand = Hand::new().up_with(&enhanced());
    hand.says(&update(1..5));
    hand.says(&refresh(RefreshKind::Begin));
    hand.says(&update(1..3));
    hand.says(&refresh(RefreshKind::Begin));
    assert_eq!(hand.has(), (vec![1, 2, 3, 4], 4));
    hand.says(&update(2..4));
    hand.says(&refresh(RefreshKind::End));
    assert_eq!(hand.has(), (vec![2, 3], 0));
    // Any number of BoRRs without EoRR.
    for _ in 0..600 {
        hand.says(&refresh(RefreshKind::Begin));
    }
    assert_eq!(hand.has().0, [2, 3]);
    hand.says(&update(3..4));
    hand.says(&refresh(RefreshKind::End));
    assert_eq!(hand.has(), (vec![3], 0));
}

#[test]
fn demarcations_out_of_place_say_nothing() {
    // Not negotiated: BoRR marks nothing.
    let mut hand = Hand::new().up();
    hand.says(&update(1..3));
    hand.says(&refresh(RefreshKind::Begin));
    hand.says(&refresh(RefreshKind::End));
    assert_eq!(hand.has(), (vec![1, 2], 0));
    // EoRR without BoRR.
    let mut hand = Hand::new().up_with(&enhanced());
    hand.says(&update(1..3));
    hand.says(&refresh(RefreshKind::End));
    assert_eq!(hand.has(), (vec![1, 2], 0));
    // A family that the session does not carry.
    let mut foreign = Vec::new();
    for kind in [RefreshKind::Begin, RefreshKind::End, RefreshKind::Request] {
        RouteRefresh { family: Family::Ipv6Unicast, kind }.write(&mut foreign);
    }
    hand.sent_kinds();
    hand.says(&foreign);
    assert_eq!((hand.has(), hand.sent_kinds()), ((vec![1, 2], 0), String::new()));
    // Before the End-of-RIB of a peer with graceful restart (RFC 7313 4).
    let mut open = enhanced();
    open.capabilities.graceful_restart = Some(Default::default());
    let mut hand = Hand::new().up_with(&open);
    hand.says(&update(1..3));
    hand.says(&refresh(RefreshKind::Begin));
    hand.says(&refresh(RefreshKind::End));
    assert_eq!(hand.has(), (vec![1, 2], 0));
    hand.says(&end_of_rib());
    hand.says(&refresh(RefreshKind::Begin));
    assert_eq!(hand.has(), (vec![1, 2], 2));
    // End-of-RIB does not end a refresh.
    hand.says(&end_of_rib());
    assert_eq!(hand.has(), (vec![1, 2], 2));
    hand.says(&refresh(RefreshKind::End));
    assert_eq!(hand.has(), (vec![], 0));
}

#[test]
fn an_end_that_never_comes_is_not_waited_for_for_ever() {
    let mut hand = Hand::new().up_with(&enhanced());
    hand.says(&update(1..3));
    hand.says(&refresh(RefreshKind::Begin));
    let mut keepalive = Vec::new();
    tortie_bgp::wire::write_keepalive(&mut keepalive);
    for _ in 0..17 {
        hand.wait(Duration::from_secs(20));
        hand.says(&keepalive);
    }
    hand.says(&update(2..3));
    assert_eq!(hand.has(), (vec![1, 2], 1));
    hand.wait(Duration::from_secs(30));
    hand.rest();
    assert_eq!(hand.has(), (vec![2], 0));
}

#[test]
fn a_session_that_ends_within_a_refresh_takes_all_along() {
    let mut hand = Hand::new().up_with(&enhanced());
    hand.says(&update(1..3));
    hand.says(&refresh(RefreshKind::Begin));
    hand.says(&update(2..3));
    hand.give(Input::Closed(CONN, "reset".into()));
    hand.rest();
    assert_eq!(hand.speaker.totals().paths, [0, 0]);
    hand.accept(ConnId(2));
    hand.give(Input::Data(ConnId(2), &greeting(&enhanced())));
    hand.give(Input::Data(ConnId(2), &update(5..6)));
    hand.wait(Duration::from_secs(60));
    assert_eq!(hand.has(), (vec![5], 0));
}

#[test]
fn an_answer_has_its_beginning_and_its_end_where_both_can() {
    let locals: Vec<_> = (1..4).map(|n| (cidr(&format!("10.9.{n}.0/24")), Some(route()))).collect();
    for (open, answer) in [(enhanced(), "BUe"), (open(), "U")] {
        let mut hand = Hand::new().up_with(&open);
        hand.give(Input::Local(&locals));
        hand.rest();
        assert_eq!(hand.sent_kinds(), "UE");
        hand.says(&refresh(RefreshKind::Request));
        assert_eq!(hand.sent_kinds(), answer);
        // Two requests at once are answered once.
        hand.says(&[refresh(RefreshKind::Request), refresh(RefreshKind::Request)].concat());
        assert_eq!(hand.sent_kinds(), answer);
        assert_eq!(hand.sent_kinds(), "");
    }
}

/// RFC 7313 4: no BoRR before End-of-RIB.
#[test]
fn a_request_before_end_of_rib_is_answered_after_it() {
    let mut hand = Hand::new();
    hand.give(Input::Local(&[(cidr("10.9.1.0/24"), Some(route()))]));
    let bytes = [greeting(&enhanced()), refresh(RefreshKind::Request)].concat();
    hand.says(&bytes);
    assert_eq!(hand.sent_kinds(), "UEBUe");
}

#[test]
fn an_empty_table_is_refreshed_too() {
    let mut hand = Hand::new().up_with(&enhanced());
    assert_eq!(hand.sent_kinds(), "E");
    hand.says(&refresh(RefreshKind::Request));
    assert_eq!(hand.sent_kinds(), "Be");
}

/// RFC 7313 5: a BoRR or EoRR of wrong length is returned whole.
#[test]
fn a_demarcation_of_a_wrong_length_ends_the_session() {
    let mut hand = Hand::new().up_with(&enhanced());
    let mut long = refresh(RefreshKind::Begin);
    long.push(7);
    long[17] = 24;
    assert_eq!(hand.refused_with(&long), (vec![7, 1], long));
}

/// A peer that repeats its request without reading receives one answer.
#[test]
fn any_number_of_requests_without_an_answer_are_one() {
    let mut hand = Hand::new().up_with(&enhanced());
    hand.give(Input::Local(&[(cidr("10.9.1.0/24"), Some(route()))]));
    hand.rest();
    assert_eq!(hand.sent_kinds(), "UE");
    for _ in 0..10_000 {
        hand.says(&refresh(RefreshKind::Request));
    }
    assert_eq!(hand.sent_kinds(), "BUe");
}

/// A peer that reads is limited too: each request would cost a whole table.
#[test]
fn requests_without_end_are_answered_at_a_pace_and_the_last_one_is_answered() {
    let mut hand = Hand::new().up_with(&enhanced());
    hand.give(Input::Local(&[(cidr("10.9.1.0/24"), Some(route()))]));
    hand.rest();
    assert_eq!(hand.sent_kinds(), "UE");
    let mut answers = 0;
    for _ in 0..600 {
        hand.says(&refresh(RefreshKind::Request));
        answers += hand.sent_kinds().matches("BUe").count();
        hand.wait(Duration::from_millis(100));
    }
    assert!((15..=22).contains(&answers), "{answers} in a minute");
    hand.wait(Duration::from_secs(5));
    assert_eq!(hand.sent_kinds(), "BUe");
    hand.wait(Duration::from_secs(60));
    assert_eq!(hand.sent_kinds(), "");
    hand.says(&refresh(RefreshKind::Request));
    assert_eq!(hand.sent_kinds(), "BUe");
}

/// Repeated BoRRs share one timer.
#[test]
fn any_number_of_beginnings_have_one_deadline() {
    let mut hand = Hand::new().up_with(&Open { hold_time: 0, ..enhanced() });
    hand.says(&update(1..3));
    for _ in 0..10_000 {
        hand.says(&refresh(RefreshKind::Begin));
        hand.wait(Duration::from_millis(1));
    }
    hand.says(&update(2..3));
    hand.wait(Duration::from_secs(340));
    assert_eq!(hand.has(), (vec![1, 2], 1));
    let calls = hand.calls(Duration::from_secs(60));
    assert!(calls < 20, "{calls} calls");
    assert_eq!(hand.has(), (vec![2], 0));
}

/// Without enhanced refresh the subtype octet is reserved (RFC 2918 3), and its errors do not apply (RFC 7313
/// 5).
#[test]
fn the_octet_means_something_where_both_ends_said_so() {
    // Both ends offered it, subtype octet, trailing octets; expected output or NOTIFICATION.
    let table = [
        (true, 0, false, "BUe"),
        (true, 1, false, ""),
        (true, 2, false, ""),
        (true, 3, false, ""),
        (true, 255, false, ""),
        (true, 0, true, ""),
        (true, 1, true, "7/1"),
        (true, 2, true, "7/1"),
        (true, 3, true, ""),
        (false, 0, false, "U"),
        (false, 1, false, "U"),
        (false, 2, false, "U"),
        (false, 3, false, "U"),
        (false, 255, false, "U"),
        // Outbound route filters, which were not offered.
        (false, 0, true, ""),
        (false, 1, true, ""),
        (false, 2, true, ""),
    ];
    for (both, octet, more, want) in table {
        let mut hand = Hand::new().up_with(&if both { enhanced() } else { open() });
        hand.give(Input::Local(&[(cidr("10.9.1.0/24"), Some(route()))]));
        hand.rest();
        hand.sent_kinds();
        let mut message = refresh(RefreshKind::Request);
        message[21] = octet;
        if more {
            message.push(7);
            message[17] = 24;
        }
        let row = format!("{both} {octet} {more}");
        if want == "7/1" {
            assert_eq!(hand.refused(&message), (7, 1), "{row}");
            continue;
        }
        hand.says(&message);
        assert_eq!((hand.sent_kinds().as_str(), hand.state()), (want, State::Established), "{row}");
    }
}
