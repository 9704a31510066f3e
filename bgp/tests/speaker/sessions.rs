//! Session setup, collisions, and ends of sessions.

use std::time::Duration;

use tortie_bgp::{Dial, DownCode, Event, Input, PeerId, PrefixLimit, Reset, State};

use crate::net::Net;
use crate::support::{ip, peer};

fn pair(seed: u64) -> Net {
    let mut net = Net::new(seed);
    let (a, b) = (net.node(64512), net.node(64512));
    net.ready_all();
    net.join(a, b, |_, _| ());
    net
}

#[test]
fn two_speakers_that_dial_at_once_keep_one_session() {
    for seed in 0..300 {
        let mut net = pair(seed);
        net.secs(5);
        assert!(net.is_up(0, 1), "seed {seed}: {:?} {:?}", net.state(0, 1), net.state(1, 0));
        let flaps = net.status(0, 1).flaps + net.status(1, 0).flaps;
        assert_eq!(flaps, 0, "seed {seed}: {:#?}", net.nodes[0].events);
        let since = net.status(0, 1).uptime.unwrap();
        assert!(since >= Duration::from_secs(3), "seed {seed}: up only for {since:?}");
    }
}

#[test]
fn routes_reach_the_other_end_and_go_again() {
    let mut net = pair(1);
    net.originate(0, &["10.1.0.0/26", "10.1.0.64/26"]);
    net.secs(1);
    assert_eq!(net.best_prefixes(1), ["10.1.0.0/26", "10.1.0.64/26"]);
    assert_eq!(net.nodes[1].best.values().next().unwrap().next_hops[..], [ip("10.255.0.1")]);
    net.withdraw(0, &["10.1.0.0/26"]);
    net.secs(1);
    assert_eq!(net.best_prefixes(1), ["10.1.0.64/26"]);
    let status = net.status(1, 0);
    assert_eq!((status.families[0].received, status.families[0].best), (1, 1));
    assert!(status.families[0].end_of_rib_received);
    let status = net.status(0, 1);
    assert_eq!(status.families[0].advertised, 1);
}

#[test]
fn the_session_stays_up_while_nothing_happens() {
    let mut net = pair(2);
    net.secs(3600);
    assert!(net.is_up(0, 1));
    let status = net.status(0, 1);
    assert_eq!(status.flaps, 0);
    // A third of 90 s, with jitter down to three quarters: 120 to 160 in an hour.
    assert!((115..170).contains(&status.received.keepalive), "{}", status.received.keepalive);
}

#[test]
fn a_silent_peer_is_dropped_when_the_hold_time_is_over() {
    let mut net = pair(3);
    net.secs(2);
    net.nodes[1].stuck = true;
    net.secs(60);
    assert_eq!(net.state(0, 1), State::Established);
    net.secs(35);
    assert_ne!(net.state(0, 1), State::Established);
    let down = net.nodes[0].events.iter().find_map(|e| match e {
        Event::State { from: State::Established, down, .. } => down.clone(),
        _ => None,
    });
    let down = down.unwrap();
    assert_eq!((down.code, down.notification), (DownCode::HoldTimer, Some((4, 0))));
    assert!(!down.helper);
}

#[test]
fn the_passive_end_waits_and_the_delayed_one_comes_second() {
    let mut net = Net::new(4);
    let (a, b) = (net.node(64512), net.node(64512));
    net.ready_all();
    net.join(a, b, |n, c| c.dial = if n == 0 { Dial::After(Duration::from_secs(5)) } else { Dial::Passive });
    net.secs(4);
    assert_eq!((net.state(a, b), net.state(b, a)), (State::Active, State::Active));
    net.secs(2);
    assert!(net.is_up(a, b));
}

#[test]
fn a_lost_connection_comes_back() {
    for seed in 0..100 {
        let mut net = pair(seed);
        net.originate(0, &["10.1.0.0/26"]);
        net.secs(2);
        net.cut(0);
        net.secs(5);
        assert!(net.is_up(0, 1), "seed {seed}");
        assert_eq!(net.best_prefixes(1), ["10.1.0.0/26"]);
    }
}

#[test]
fn a_peer_that_is_away_is_tried_again_with_growing_pauses() {
    let mut net = pair(5);
    net.secs(1);
    net.kill(1);
    net.nodes[0].events.clear();
    net.secs(600);
    let dials = net.nodes[0].events.iter().filter(|e| matches!(e, Event::Dial(_))).count();
    // 1, 2, 4, 8, 16, 16, ... seconds with jitter.
    assert!((35..60).contains(&dials), "{dials}");
    assert!(net.status(0, 1).last_down.unwrap().0.code == DownCode::ConnectFailed);
}

#[test]
fn wrong_as_is_refused_with_2_2() {
    let mut net = Net::new(6);
    let (a, b) = (net.node(64512), net.node(64513));
    net.ready_all();
    net.join(a, b, |n, c| {
        if n == 1 {
            c.asn = 64999;
        } else {
            c.asn = 64513;
        }
    });
    net.secs(3);
    assert_ne!(net.state(a, b), State::Established);
    let down = net.status(b, a).last_down.unwrap().0;
    assert_eq!((down.code, down.notification), (DownCode::NotificationSent, Some((2, 2))));
    let down = net.status(a, b).last_down.unwrap().0;
    assert_eq!((down.code, down.notification), (DownCode::NotificationReceived, Some((2, 2))));
}

#[test]
fn equal_identifiers_inside_an_as_are_refused_and_between_ases_are_not() {
    for (asn, up) in [(64512, false), (64513, true)] {
        let mut net = Net::new(7);
        let a = net.node_at(
            ip("10.0.0.1"),
            crate::support::global(64512, 9),
            crate::support::policy(crate::support::TakeAll),
        );
        let b = net.node_at(
            ip("10.0.0.2"),
            crate::support::global(asn, 9),
            crate::support::policy(crate::support::TakeAll),
        );
        net.ready_all();
        net.join(a, b, |n, c| c.asn = if n == 0 { asn } else { 64512 });
        net.secs(5);
        assert_eq!(net.is_up(a, b), up);
        if !up {
            let seen: Vec<_> = [net.status(a, b), net.status(b, a)]
                .iter()
                .map(|s| s.last_down.clone().unwrap().0.notification)
                .collect();
            assert!(seen.contains(&Some((2, 3))), "{seen:?}");
        }
    }
}

#[test]
fn configuration_changes_reset_only_where_the_open_differs() {
    let mut net = pair(8);
    net.secs(2);
    let mut config = peer(ip("10.255.0.2"), 64512);
    config.policy_class = 7;
    config.next_hop = tortie_bgp::NextHopMode::Own;
    config.keepalive = Some(Duration::from_secs(10));
    config.name = "renamed".into();
    net.give(0, Input::Peer(PeerId(1), Box::new(config.clone())));
    net.secs(2);
    assert_eq!((net.is_up(0, 1), net.status(0, 1).flaps), (true, 0));
    assert_eq!(&*net.status(0, 1).name, "renamed");
    config.hold_time = Duration::from_secs(30);
    net.give(0, Input::Peer(PeerId(1), Box::new(config)));
    net.secs(5);
    assert_eq!((net.is_up(0, 1), net.status(0, 1).flaps), (true, 1));
    assert_eq!(net.status(0, 1).session.unwrap().hold_time, Duration::from_secs(30));
    assert_eq!(net.ended_with(1), [(6, 6)]);
}

/// RFC 4271 5.1.3: an address that becomes local is no valid next hop any more, for existing routes too.
#[test]
fn another_local_address_acts_on_routes_without_a_reset() {
    let mut net = pair(12);
    net.originate(1, &["10.1.0.0/24"]);
    net.secs(2);
    for (own, used) in [(Some("10.255.0.2"), 0), (None, 1), (Some("192.0.2.1"), 1)] {
        net.half(0, 1, &|_, c| c.local_v4 = own.map(ip));
        net.secs(1);
        assert_eq!(net.best_prefixes(0).len(), used, "{own:?}");
    }
    assert_eq!((net.is_up(0, 1), net.status(0, 1).flaps), (true, 0));
}

#[test]
fn administrators_and_deconfiguration_have_their_cease_codes() {
    let mut net = pair(9);
    net.secs(2);
    net.give(0, Input::Reset(PeerId(1), Reset::Hard(String::new())));
    net.secs(5);
    assert_eq!(net.ended_with(1), [(6, 4)]);
    assert!(net.is_up(0, 1));
    net.give(0, Input::RemovePeer(PeerId(1)));
    net.secs(1);
    assert_eq!(net.ended_with(1), [(6, 4), (6, 3)]);
    assert!(net.nodes[0].speaker.peer(PeerId(1), net.now).is_none());
    net.half(0, 1, &|_, _| ());
    net.secs(30);
    assert!(net.is_up(0, 1));
    net.give(0, Input::Shutdown { graceful: false, text: "maintenance".into() });
    net.secs(1);
    assert_eq!(net.ended_with(1).last(), Some(&(6, 2)));
    let said = |e: &Event| matches!(e, Event::State { down: Some(d), .. } if d.text.contains("maintenance"));
    assert!(net.nodes[1].events.iter().any(said));
    assert_eq!(net.state(0, 1), State::Idle);
}

#[test]
fn a_peer_that_is_shut_down_receives_cease_in_either_direction_and_comes_back() {
    let mut net = pair(11);
    let c = net.node(64512);
    net.ready_all();
    net.join(0, c, |_, _| ());
    net.originate(1, &["10.1.0.0/26"]);
    net.secs(3);
    assert_eq!(net.best_prefixes(0).len(), 1);
    let mut config = peer(ip("10.255.0.2"), 64512);
    config.shutdown = Some("until noon".into());
    net.give(0, Input::Peer(PeerId(1), Box::new(config.clone())));
    net.secs(1);
    assert_eq!(net.ended_with(1), [(6, 2)]);
    assert!(net.best_prefixes(0).is_empty());
    // The other end keeps dialling and is refused each time.
    net.secs(200);
    let said = |e: &&Event| {
        matches!(e, Event::State { down: Some(d), .. }
            if d.notification == Some((6, 2)) && d.text.contains("until noon"))
    };
    assert!(net.nodes[1].events.iter().filter(said).count() > 2);
    assert_eq!(net.state(0, 1), State::Idle);
    let dials = |net: &Net| net.nodes[0].events.iter().filter(|e| **e == Event::Dial(PeerId(1))).count();
    let before = dials(&net);
    // A changed text has no effect.
    config.shutdown = Some("until one".into());
    net.give(0, Input::Peer(PeerId(1), Box::new(config.clone())));
    net.secs(60);
    assert_eq!((net.state(0, 1), dials(&net)), (State::Idle, before));
    config.shutdown = None;
    net.give(0, Input::Peer(PeerId(1), Box::new(config)));
    net.secs(2);
    assert!(net.is_up(0, 1) && dials(&net) > before);
    assert_eq!(net.best_prefixes(0).len(), 1);
    assert_eq!((net.is_up(0, c), net.status(0, c).flaps), (true, 0));
}

#[test]
fn too_many_prefixes_end_the_session_with_6_1() {
    let mut net = Net::new(10);
    let (a, b) = (net.node(64512), net.node(64512));
    net.ready_all();
    net.join(a, b, |n, c| c.max_prefixes = (n == 1).then(|| PrefixLimit::new(2)));
    net.originate(a, &["10.0.0.0/24", "10.0.1.0/24"]);
    net.secs(5);
    assert!(net.is_up(a, b));
    net.originate(a, &["10.0.2.0/24"]);
    net.secs(1);
    assert_eq!(net.ended_with(a), [(6, 1)]);
    assert!(net.best_prefixes(b).is_empty());
    net.secs(30);
    assert!(!net.is_up(a, b), "left alone for a minute");
    net.withdraw(a, &["10.0.2.0/24"]);
    net.secs(60);
    assert!(net.is_up(a, b));
    assert_eq!(net.best_prefixes(b).len(), 2);
}
