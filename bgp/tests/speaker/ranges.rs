//! Dynamic peers: ranges of addresses whose connections are accepted.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tortie_bgp::{
    ANY_EXTERNAL, ConnId, Dial, Event, Input, PeerId, PeerStatus, PrefixLimit, RangeConfig, RangeId,
    RangeStatus, RestartPhase, State,
};

use crate::net::Net;
use crate::raw::Hand;
use crate::support::{cidr, ip, peer};

const RANGE: RangeId = RangeId(1);

fn range(prefix: &str, asn: u32) -> RangeConfig {
    let mut config = RangeConfig::new(cidr(prefix), asn);
    config.peer.ebgp_policy = true;
    config.peer.name = "range-".into();
    config
}

fn set(net: &mut Net, node: usize, id: u32, config: RangeConfig) {
    net.give(node, Input::Range(RangeId(id), Box::new(config)));
}

/// Node 0 accepts connections from this range; the others, in an AS each, have it as their peer.
fn hub(seed: u64, config: RangeConfig, others: usize) -> Net {
    let mut net = Net::new(seed);
    net.node(64512);
    for n in 0..others {
        net.node(65001 + n as u32);
    }
    net.ready_all();
    set(&mut net, 0, 1, config);
    for other in 1..=others {
        dial(&mut net, other);
        net.originate(other, &[&format!("10.{other}.0.0/24")]);
    }
    net.secs(2);
    net
}

fn dial(net: &mut Net, node: usize) {
    net.half(node, 0, &|_, c| c.asn = 64512);
}

fn peers(net: &Net) -> Vec<PeerStatus> {
    net.nodes[0].speaker.peers(net.now).collect()
}

fn names(net: &Net) -> Vec<String> {
    let mut names: Vec<String> = peers(net).iter().map(|p| p.name.to_string()).collect();
    names.sort();
    names
}

fn status(net: &Net, id: u32) -> RangeStatus {
    net.nodes[0].speaker.ranges(net.now).find(|r| r.id == RangeId(id)).unwrap()
}

fn dials(net: &Net) -> usize {
    net.nodes[0].events.iter().filter(|e| matches!(e, Event::Dial(_))).count()
}

#[test]
fn peers_come_from_a_range_and_go_with_their_sessions() {
    let mut net = hub(1, range("10.255.0.0/24", ANY_EXTERNAL), 2);
    assert_eq!(names(&net), ["range-10.255.0.2", "range-10.255.0.3"]);
    for p in peers(&net) {
        assert_eq!((p.state, p.range, p.id.is_dynamic()), (State::Established, Some(RANGE), true));
        assert!([65001, 65002].contains(&p.asn), "the OPEN says which");
    }
    assert_eq!(net.best_prefixes(0), ["10.1.0.0/24", "10.2.0.0/24"]);
    assert_eq!(net.best_prefixes(1), ["10.2.0.0/24"], "what one sent reaches the other");
    let made = |e: &Event| {
        matches!(e, Event::DynamicPeer { range: RANGE, name, remote, .. }
        if &**name == "range-10.255.0.2" && *remote == SocketAddr::new(ip("10.255.0.2"), 179))
    };
    let events = &net.nodes[0].events;
    let (first, state) =
        (events.iter().position(made), events.iter().position(|e| matches!(e, Event::State { .. })));
    assert!(first < state && first.is_some(), "it is told before all else");

    net.give(1, Input::Shutdown { graceful: false, text: String::new() });
    net.secs(1);
    assert_eq!(names(&net), ["range-10.255.0.3"]);
    assert_eq!(net.best_prefixes(0), ["10.2.0.0/24"]);
    assert!(net.nodes[0].events.iter().any(|e| matches!(e, Event::DynamicPeerGone(_))));
    net.give(2, Input::Shutdown { graceful: false, text: String::new() });
    net.secs(1);
    let totals = net.nodes[0].speaker.totals();
    assert_eq!((names(&net).len(), totals.paths[0], totals.update_groups), (0, 0, 0));
    let status = status(&net, 1);
    assert_eq!((status.peers, status.max_peers, status.refused), (0, 100, 0));
    assert_eq!(status.last_down.unwrap().1.notification, Some((6, 2)));
    net.secs(600);
    assert_eq!(dials(&net), 0, "they are never dialled");
}

#[test]
fn a_peer_that_restarts_stays_until_its_time_is_over() {
    let mut net = hub(2, range("10.255.0.0/24", ANY_EXTERNAL), 1);
    let id = peers(&net)[0].id;
    net.cut(1);
    net.secs(5);
    assert_eq!((peers(&net)[0].id, peers(&net)[0].state, peers(&net)[0].flaps), (id, State::Established, 1));
    net.vanish(1);
    net.secs(95);
    assert!(matches!(peers(&net)[0].restart, RestartPhase::Waiting(_)), "the hold timer is over");
    assert_eq!(net.best_prefixes(0), ["10.1.0.0/24"]);
    net.secs(125);
    assert_eq!((names(&net).len(), net.best_prefixes(0).len()), (0, 0));
    assert_eq!(status(&net, 1).peers, 0);
}

#[test]
fn configured_peers_and_longer_prefixes_come_first() {
    let mut net = hub(3, range("10.0.0.0/8", ANY_EXTERNAL), 3);
    assert_eq!(names(&net).len(), 3);
    // A longer prefix takes over the addresses inside it.
    let mut inner = range("10.255.0.2/31", ANY_EXTERNAL);
    inner.peer.name = "inner-".into();
    set(&mut net, 0, 2, inner);
    net.secs(20);
    assert_eq!(names(&net), ["inner-10.255.0.2", "inner-10.255.0.3", "range-10.255.0.4"]);
    assert_eq!((net.ended_with(1), net.ended_with(3)), (vec![(6, 3)], vec![]));
    // A configured peer takes over its address.
    let mut configured = peer(ip("10.255.0.4"), 65003);
    configured.dial = Dial::Passive;
    net.give(0, Input::Peer(PeerId(7), Box::new(configured)));
    net.secs(20);
    assert_eq!(names(&net), ["inner-10.255.0.2", "inner-10.255.0.3", "peer-10.255.0.4"]);
    assert_eq!((net.ended_with(3), net.state(0, 7)), (vec![(6, 3)], State::Established));
    // And releases it.
    net.give(0, Input::RemovePeer(PeerId(7)));
    net.secs(20);
    assert_eq!(names(&net), ["inner-10.255.0.2", "inner-10.255.0.3", "range-10.255.0.4"]);
}

#[test]
fn a_range_takes_as_many_as_it_may_and_says_so_to_others() {
    let mut config = range("10.255.0.0/24", ANY_EXTERNAL);
    config.max_peers = 2;
    let mut net = hub(4, config.clone(), 3);
    assert_eq!(names(&net).len(), 2);
    let refused = status(&net, 1).refused;
    assert!(refused > 0);
    let outside = (1..4).find(|n| net.state(*n, 0) != State::Established).unwrap();
    let last = net.status(outside, 0).last_down.unwrap().0;
    assert_eq!(last.notification, Some((6, 5)));
    let inside = (1..4).find(|n| *n != outside).unwrap();
    net.give(inside, Input::Shutdown { graceful: false, text: String::new() });
    net.secs(20);
    assert!(net.is_established(outside), "there is room again");
    config.max_peers = 1;
    set(&mut net, 0, 1, config);
    net.secs(1);
    assert_eq!(names(&net).len(), 1);
    assert_eq!(net.ended_with(outside), [(6, 3)], "who came last goes first");
}

#[test]
fn what_changes_no_open_costs_no_session_and_all_else_ends_those_of_the_range_alone() {
    let mut net = hub(5, range("10.255.0.2/32", 65001), 2);
    set(&mut net, 0, 2, range("10.255.0.3/32", 65002));
    net.secs(20);
    assert_eq!(names(&net), ["range-10.255.0.2", "range-10.255.0.3"]);
    let mut config = range("10.255.0.2/32", 65001);
    config.peer.policy_class = 5;
    config.max_peers = 7;
    set(&mut net, 0, 1, config.clone());
    net.secs(1);
    assert!(net.ended_with(1).is_empty());
    config.peer.hold_time = Duration::from_secs(30);
    set(&mut net, 0, 1, config.clone());
    net.secs(20);
    assert_eq!(net.ended_with(1), [(6, 3)]);
    let session = peers(&net).into_iter().find(|p| &*p.name == "range-10.255.0.2").unwrap().session;
    assert_eq!(session.unwrap().hold_time, Duration::from_secs(30), "it came again");
    config.peer.asn = 65009;
    set(&mut net, 0, 1, config);
    net.secs(20);
    assert_eq!(names(&net), ["range-10.255.0.3"]);
    assert_eq!(status(&net, 1).last_down.unwrap().1.notification, Some((2, 2)), "another AS is not let in");
    net.give(0, Input::RemoveRange(RangeId(2)));
    net.secs(30);
    assert_eq!(net.ended_with(2), [(6, 3)]);
    assert!(names(&net).is_empty() && net.ended_with(1).len() == 2);
}

#[test]
fn a_flood_of_prefixes_keeps_its_sender_out() {
    let mut config = range("10.255.0.0/24", ANY_EXTERNAL);
    config.peer.max_prefixes = Some(PrefixLimit::new(2));
    let mut net = hub(6, config, 1);
    net.originate(1, &["10.8.0.0/24", "10.8.1.0/24"]);
    net.secs(1);
    assert_eq!(net.ended_with(1), [(6, 1)]);
    net.secs(50);
    assert!(net.best_prefixes(0).is_empty() && !net.is_established(1));
    assert_eq!(peers(&net)[0].state, State::Idle);
    net.withdraw(1, &["10.8.0.0/24", "10.8.1.0/24"]);
    net.secs(60);
    assert!(net.is_established(1));
}

/// The dynamic peer was removed, but forwarding was not interrupted: the peer, which kept our routes, must
/// not flush them (RFC 4724 4.2).
#[test]
fn a_returning_peer_receives_the_forwarding_state_bit() {
    let open = |graceful: Option<tortie_bgp::wire::GracefulRestart>| {
        let mut open = crate::support::open(65001, 9);
        open.capabilities.graceful_restart = graceful;
        open
    };
    // Capability without families: none of its routes is kept. No capability: it keeps none of ours.
    for graceful in [Some(Default::default()), None] {
        for restarting in [None, Some(vec![])] {
            let mut hand = Hand::new();
            let mut global = crate::support::global(64512, 1);
            global.restarting = restarting.clone();
            hand.speaker =
                tortie_bgp::Speaker::new(global, crate::support::policy(crate::support::TakeAll), hand.now);
            hand.give(Input::LocalReady);
            let mut config = range("192.0.2.0/24", ANY_EXTERNAL);
            config.max_peers = 3;
            hand.give(Input::Range(RANGE, Box::new(config)));
            // R bit and F bit of our OPEN.
            let says = |hand: &mut Hand, conn: u64, up: bool| {
                let conn = ConnId(conn);
                hand.accept(conn);
                let sent = hand.sent(conn);
                let ours = tortie_bgp::wire::Open::decode(&sent[0].1).unwrap();
                if up {
                    hand.give(Input::Data(conn, &crate::support::greeting(&open(graceful.clone()))));
                    assert!(hand.speaker.peers(hand.now).any(|p| p.state == State::Established));
                }
                hand.give(Input::Closed(conn, "gone".into()));
                hand.wait(Duration::from_secs(1));
                assert_eq!(hand.speaker.peers(hand.now).count(), 0);
                let said = ours.capabilities.graceful_restart.unwrap();
                (said.restarted, said.families[0].1)
            };
            let first = (restarting.is_some(), false);
            assert_eq!(says(&mut hand, 2, false), first, "nobody there was told anything");
            assert_eq!(says(&mut hand, 3, true), first);
            // The same after failed attempts.
            assert_eq!(says(&mut hand, 4, false), (false, true));
            assert_eq!(says(&mut hand, 5, true), (false, true));
        }
    }
}

/// An address that connects again and again leaves nothing behind, with or without a session.
#[test]
fn those_that_come_and_go_leave_nothing() {
    let mut hand = Hand::new();
    let mut config = range("10.0.0.0/8", ANY_EXTERNAL);
    config.max_peers = 3;
    hand.give(Input::Range(RANGE, Box::new(config)));
    let start = hand.speaker.totals().memory;
    let local = SocketAddr::new(ip("192.0.2.1"), 179);
    for n in 0..5000_u32 {
        let conn = ConnId(100 + u64::from(n));
        let address = IpAddr::V4(std::net::Ipv4Addr::from(0x0a00_0000 + n));
        hand.give(Input::Accepted { conn, local, remote: SocketAddr::new(address, 40_000) });
        if n % 3 == 0 {
            let mut bytes = crate::support::greeting(&crate::support::open(65001, 9));
            bytes.extend(crate::raw::update(n..n + 1));
            hand.give(Input::Data(conn, &bytes));
            assert_eq!(hand.speaker.totals().paths[0], 1);
        }
        assert_eq!(hand.speaker.peers(hand.now).count(), 2);
        hand.give(Input::Closed(conn, "gone".into()));
        assert_eq!(hand.speaker.peers(hand.now).count(), 1, "{n}");
        hand.rest();
        hand.events.clear();
        while hand.speaker.take_best(10, &mut Vec::new()) {}
        hand.rest();
    }
    let totals = hand.speaker.totals();
    assert_eq!((totals.paths[0], totals.update_groups, totals.prefixes[0]), (0, 0, 0));
    assert!(totals.memory < start + 64 * 1024, "{} octets, {start} before", totals.memory);
}

#[test]
fn who_says_nothing_soon_makes_room() {
    let mut hand = Hand::new();
    let mut config = range("10.0.0.0/8", ANY_EXTERNAL);
    config.max_peers = 1;
    hand.give(Input::Range(RANGE, Box::new(config)));
    let local = SocketAddr::new(ip("192.0.2.1"), 179);
    let come = |hand: &mut Hand, conn: u64, from: &str| {
        hand.give(Input::Accepted { conn: ConnId(conn), local, remote: SocketAddr::new(ip(from), 40_000) });
    };
    come(&mut hand, 100, "10.0.0.1");
    hand.wait(Duration::from_secs(29));
    come(&mut hand, 101, "10.0.0.2");
    assert_eq!(hand.speaker.ranges(hand.now).next().unwrap().refused, 1);
    hand.wait(Duration::from_secs(2));
    assert_eq!(hand.sent(ConnId(100)).pop().unwrap().1[..2], [4, 0]);
    come(&mut hand, 102, "10.0.0.2");
    let status = hand.speaker.ranges(hand.now).next().unwrap();
    assert_eq!((status.peers, status.refused), (1, 1));
}

/// After our restart, dynamic peers are not known in advance: stale kernel routes are not swept before these
/// had time to connect.
#[test]
fn the_end_of_our_restart_waits_for_those_that_may_come() {
    let mut net = Net::new(9);
    let mut restarting = crate::support::global(64512, 0x0aff_0001);
    restarting.restarting = Some(tortie_bgp::Family::ALL.to_vec());
    net.node_at(ip("10.255.0.1"), restarting, crate::support::policy(crate::support::TakeAll));
    net.node(65001);
    net.ready_all();
    set(&mut net, 0, 1, range("10.255.0.0/24", ANY_EXTERNAL));
    net.originate(1, &["10.1.0.0/24"]);
    net.secs(5);
    assert!(!net.nodes[0].restart_done);
    dial(&mut net, 1);
    net.secs(4);
    assert_eq!(net.best_prefixes(0), [""; 0], "the selection waits");
    net.secs(5);
    assert_eq!(net.best_prefixes(0), ["10.1.0.0/24"]);
    net.secs(1);
    assert!(net.nodes[0].restart_done);
}
