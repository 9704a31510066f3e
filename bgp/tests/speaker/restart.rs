//! Graceful restart (RFC 4724).

use tortie_bgp::{Event, Family, Input, PeerId, RestartPhase, State};

use crate::net::Net;
use crate::support::{TakeAll, global, policy};

fn pair(seed: u64) -> Net {
    let mut net = Net::new(seed);
    let (a, b) = (net.node(64512), net.node(64512));
    net.ready_all();
    net.join(a, b, |_, _| ());
    net.originate(0, &["10.0.0.0/24", "10.0.1.0/24"]);
    net.originate(1, &["10.1.0.0/24"]);
    net.secs(3);
    net
}

fn restarted(id: u32) -> tortie_bgp::GlobalConfig {
    tortie_bgp::GlobalConfig { restarting: Some(vec![Family::Ipv4Unicast]), ..global(64512, id) }
}

fn bring_back(net: &mut Net, restarting: bool, routes: &[&str]) {
    let global = if restarting { restarted(0x0aff_0001) } else { global(64512, 0x0aff_0001) };
    net.start(0, global, policy(TakeAll));
    net.half(0, 1, &|_, _| ());
    net.originate(0, routes);
    net.give(0, Input::LocalReady);
}

fn withdrawn(net: &Net, node: usize) -> u32 {
    let of = |e: &Event| if let Event::Learned { withdrawn, .. } = e { *withdrawn } else { 0 };
    net.nodes[node].events.iter().map(of).sum()
}

#[test]
fn the_helper_keeps_routes_and_sweeps_at_end_of_rib() {
    for seed in 0..50 {
        let mut net = pair(seed);
        net.kill(0);
        net.secs(1);
        let status = net.status(1, 0);
        assert_ne!(status.state, State::Established);
        assert!(matches!(status.restart, RestartPhase::Waiting(_)));
        assert_eq!((status.families[0].received, status.families[0].stale), (2, 2));
        assert!(status.last_down.is_some_and(|(d, _)| d.helper) || status.failed_attempts > 0);
        assert_eq!(net.nodes[1].best.len(), 2, "routes stay");
        bring_back(&mut net, true, &["10.0.0.0/24"]);
        net.secs(20);
        assert!(net.is_up(0, 1), "seed {seed}");
        assert_eq!(net.best_prefixes(1), ["10.0.0.0/24"], "what did not come again is swept");
        assert_eq!(net.status(1, 0).families[0].stale, 0);
        assert_eq!(net.status(1, 0).restart, RestartPhase::Idle);
        assert_eq!(withdrawn(&net, 1), 0);
        assert_eq!(net.best_prefixes(0), ["10.1.0.0/24"]);
        assert!(net.nodes[0].restart_done);
    }
}

#[test]
fn stale_routes_go_when_the_restart_time_is_over() {
    let mut net = pair(1);
    net.kill(0);
    net.secs(119);
    assert_eq!(net.nodes[1].best.len(), 2);
    net.secs(3);
    assert!(net.nodes[1].best.is_empty());
    assert_eq!(net.status(1, 0).restart, RestartPhase::Idle);
}

#[test]
fn a_peer_that_comes_back_without_forwarding_state_is_flushed_at_once() {
    let mut net = pair(2);
    net.kill(0);
    net.secs(1);
    bring_back(&mut net, false, &[]);
    net.nodes[0].room = 64;
    net.secs(3);
    assert!(net.is_up(0, 1));
    assert!(net.nodes[1].best.is_empty());
}

#[test]
fn a_family_that_is_missing_in_the_new_open_is_flushed_at_once() {
    let mut net = Net::new(3);
    let (a, b) = (net.node(64512), net.node(64512));
    net.ready_all();
    let both = |n: usize, c: &mut tortie_bgp::PeerConfig| {
        c.families = Family::ALL.to_vec();
        c.local_v6 = Some(format!("fd00::{}", n + 1).parse().unwrap());
    };
    net.join(a, b, both);
    net.originate(a, &["10.0.0.0/24", "fd00:1::/64"]);
    net.secs(2);
    assert_eq!(net.nodes[b].best.len(), 2);
    net.kill(a);
    net.secs(1);
    assert_eq!(net.nodes[b].best.len(), 2);
    net.start(a, restarted(0x0aff_0001), policy(TakeAll));
    net.half(a, b, &|_, c| c.families = vec![Family::Ipv4Unicast]);
    // Without LocalReady nothing is sent, so only the OPEN can have flushed the family.
    net.secs(20);
    assert!(net.is_up(a, b));
    assert_eq!(net.best_prefixes(b), ["10.0.0.0/24"]);
}

#[test]
fn a_second_restart_keeps_what_the_first_one_brought() {
    let mut net = pair(4);
    net.kill(0);
    net.secs(1);
    bring_back(&mut net, true, &["10.0.5.0/24"]);
    net.secs(20);
    assert_eq!(net.best_prefixes(1), ["10.0.5.0/24"]);
    net.kill(0);
    net.secs(1);
    assert_eq!(net.best_prefixes(1), ["10.0.5.0/24"]);
    bring_back(&mut net, true, &["10.0.5.0/24", "10.0.6.0/24"]);
    net.secs(20);
    assert_eq!(net.best_prefixes(1), ["10.0.5.0/24", "10.0.6.0/24"]);
}

#[test]
fn a_notification_flushes() {
    let mut net = pair(5);
    net.give(0, Input::Shutdown { graceful: false, text: String::new() });
    net.secs(1);
    assert!(net.nodes[1].best.is_empty());
    let mut net = pair(6);
    net.give(0, Input::Shutdown { graceful: true, text: String::new() });
    net.secs(1);
    assert_eq!(net.nodes[1].best.len(), 2, "a graceful stop keeps the routes");
}

#[test]
fn nothing_is_sent_before_the_local_routes_are_there() {
    let mut net = pair(7);
    net.kill(0);
    net.secs(1);
    net.start(0, restarted(0x0aff_0001), policy(TakeAll));
    net.half(0, 1, &|_, _| ());
    net.secs(60);
    assert!(net.is_up(0, 1));
    assert_eq!(net.nodes[1].best.len(), 2, "neither End-of-RIB nor withdrawal was sent");
    assert_eq!(net.status(0, 1).sent.update, 0);
    net.originate(0, &["10.0.0.0/24", "10.0.1.0/24"]);
    net.give(0, Input::LocalReady);
    net.secs(2);
    assert_eq!(net.nodes[1].best.len(), 2);
    assert_eq!(net.status(1, 0).families[0].stale, 0);
    assert_eq!(withdrawn(&net, 1), 0);
}

#[test]
fn the_restarted_one_gives_out_no_route_before_all_peers_are_done() {
    let mut net = Net::new(8);
    for _ in 0..3 {
        net.node(64512);
    }
    net.ready_all();
    for (a, b) in [(0, 1), (0, 2), (1, 2)] {
        net.join(a, b, |_, _| ());
    }
    // Both announce the same route, so the first one alone would be half of the ECMP set.
    net.originate(1, &["10.5.0.0/24"]);
    net.originate(2, &["10.5.0.0/24"]);
    net.secs(5);
    assert_eq!(net.nodes[0].best.values().next().unwrap().next_hops.len(), 2);
    net.kill(0);
    net.secs(1);
    net.start(0, restarted(0x0aff_0001), policy(TakeAll));
    net.nodes[2].stuck = true;
    net.half(0, 1, &|_, _| ());
    net.half(0, 2, &|_, _| ());
    net.give(0, Input::LocalReady);
    net.secs(8);
    assert!(net.is_up(0, 1));
    assert!(net.nodes[0].best.is_empty() && !net.nodes[0].restart_done);
    net.nodes[2].stuck = false;
    net.secs(10);
    assert!(net.nodes[0].restart_done);
    assert_eq!(net.nodes[0].best.values().next().unwrap().next_hops.len(), 2);
    let changes = net.nodes[0].events.iter().filter(|e| matches!(e, Event::BestChanged)).count();
    assert_eq!(changes, 1, "one write for the kernel");
}

#[test]
fn the_deferral_ends_without_a_peer_that_stays_away() {
    let mut net = Net::new(9);
    for _ in 0..3 {
        net.node(64512);
    }
    net.ready_all();
    net.start(0, restarted(0x0aff_0001), policy(TakeAll));
    net.nodes[2].up = false;
    net.join(0, 1, |_, _| ());
    net.half(0, 2, &|_, _| ());
    net.originate(1, &["10.5.0.0/24"]);
    net.give(0, Input::LocalReady);
    net.secs(5);
    assert!(!net.nodes[0].restart_done);
    net.secs(26);
    assert!(net.nodes[0].restart_done);
    assert_eq!(net.nodes[0].best.len(), 1);
}

#[test]
fn a_new_connection_replaces_a_session_that_is_dead_without_notice() {
    let mut net = pair(10);
    net.secs(60);
    // The host of node 0 loses power: no packet ends the connection.
    net.vanish(0);
    net.nodes[1].events.clear();
    bring_back(&mut net, true, &["10.0.0.0/24", "10.0.1.0/24"]);
    net.secs(20);
    assert!(net.is_up(0, 1));
    assert_eq!(net.nodes[1].best.len(), 2);
    assert_eq!(withdrawn(&net, 1), 0);
    let down = net.nodes[1].events.iter().find_map(|e| match e {
        Event::State { peer: PeerId(0), down: Some(d), .. } if d.helper => Some(d.text.clone()),
        _ => None,
    });
    assert!(down.is_some_and(|d| d.contains("came back")));
}
