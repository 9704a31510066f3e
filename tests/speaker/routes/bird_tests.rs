//! Sessions with BIRD 2.

use std::time::Duration;

use tortie::speaker::SpeakerFact;
use tortie_bgp::State;

use crate::rig::bird::Bird;
use crate::rig::net;
use crate::rig::node::{Node, cidr, intent, peer, wait};

const US: &str = "192.0.2.1:1790";
const BIRD: &str = "192.0.2.9:1790";

/// Returns BIRD's configuration of the session with [`US`], with more options.
fn bgp(options: &str) -> String {
    format!(
        "protocol bgp tortie from quick {{ local 192.0.2.9 port 1790 as 65009; neighbor 192.0.2.1 port 1790 as 64512;
           ipv4 {{ import all; export where source = RTS_STATIC; }};
           ipv6 {{ import all; export where source = RTS_STATIC; next hop address 2001:db8::9; }};
           {options} }}"
    )
}

/// Starts a node with BIRD as its eBGP peer.
fn node() -> Node {
    Node::start(with_bird())
}

fn with_bird() -> tortie_engine::routing::RoutingIntent {
    let mut us = intent(US, 64512, &["10.1.0.0/26", "fd00:1::/122"]);
    let mut bird = peer(BIRD, "192.0.2.1", 65009);
    bird.local_v6 = Some("2001:db8::1".parse().unwrap());
    us.peers.insert("bird".into(), bird);
    us
}

#[test]
fn routes_of_both_families_go_both_ways_over_ipv4() {
    if !net::enter(&[]) {
        return;
    }
    let Some(bird) = Bird::start(&bgp("")) else { return };
    let a = node();
    a.wait_established("bird");
    a.wait_for_route("10.9.0.0/24", "192.0.2.9");
    a.wait_for_route("10.9.1.0/24", "192.0.2.9");
    a.wait_for_route("fd00:9::/64", "2001:db8::9");
    bird.wait_for_output("show route for 10.1.0.0/26 all", "BGP.next_hop: 192.0.2.1");
    bird.wait_for_output("show route for 10.1.0.0/26 all", "BGP.as_path: 64512");
    bird.wait_for_output("show route for fd00:1::/122 all", "BGP.next_hop: 2001:db8::1");
    bird.ask("disable s4");
    a.wait_for_no_route("10.9.0.0/24");
    assert!(a.route("fd00:9::/64").is_some());
    bird.ask("enable s4");
    a.wait_for_route("10.9.0.0/24", "192.0.2.9");
}

#[test]
fn an_ipv6_session_carries_ipv6_routes() {
    if !net::enter(&["2001:db8::1/128", "2001:db8::9/128"]) {
        return;
    }
    let config = "protocol bgp tortie from quick { local 2001:db8::9 port 1790 as 64512;
        neighbor 2001:db8::1 port 1790 as 64512;
        ipv6 { import all; export where source = RTS_STATIC; }; }";
    let Some(bird) = Bird::start(config) else { return };
    let mut us = intent("[2001:db8::1]:1790", 64512, &["fd00:1::/122"]);
    let mut to = peer("[2001:db8::9]:1790", "2001:db8::1", 64512);
    to.ipv4 = false;
    us.peers.insert("bird".into(), to);
    let a = Node::start(us);
    a.wait_for_route("fd00:9::/64", "2001:db8::9");
    bird.wait_for_output("show route for fd00:1::/122 all", "BGP.next_hop: 2001:db8::1");
}

#[test]
fn a_bird_that_dies_takes_its_routes_along_and_comes_back() {
    if !net::enter(&[]) {
        return;
    }
    let Some(mut bird) = Bird::start(&bgp("graceful restart off;")) else { return };
    let a = node();
    a.wait_for_route("10.9.0.0/24", "192.0.2.9");
    bird.kill();
    a.wait_for_no_route("10.9.0.0/24");
    a.fact("the end", |f| matches!(f, SpeakerFact::Peer { from: State::Established, down: Some(_), .. }));
    bird.start_again(&bgp("graceful restart off;"), &[]);
    a.wait_established("bird");
    a.wait_for_route("10.9.0.0/24", "192.0.2.9");
    bird.wait_for_output("show route for 10.1.0.0/26 all", "BGP.next_hop: 192.0.2.1");
    assert_eq!(a.peer("bird").unwrap().flaps, 1);
}

#[test]
fn a_bird_that_restarts_gracefully_keeps_its_routes_and_loses_those_it_no_longer_has() {
    if !net::enter(&[]) {
        return;
    }
    let Some(mut bird) = Bird::start(&bgp("graceful restart on;")) else { return };
    let a = node();
    a.wait_for_route("10.9.0.0/24", "192.0.2.9");
    a.wait_for_route("10.9.1.0/24", "192.0.2.9");
    bird.kill();
    a.fact(
        "helper",
        |f| matches!(f, SpeakerFact::Peer { from: State::Established, down: Some(d), .. } if d.helper),
    );
    std::thread::sleep(Duration::from_secs(1));
    assert!(a.route("10.9.0.0/24").is_some() && a.route("10.9.1.0/24").is_some());
    // It returns without one of its routes: that one is removed at End-of-RIB, the other is never removed.
    let less = "filter less { if net = 10.9.1.0/24 then reject; accept; }\n".to_owned()
        + &bgp("graceful restart on;").replacen("export where source = RTS_STATIC", "export filter less", 1);
    bird.start_again(&less, &["-R"]);
    a.wait_established("bird");
    a.wait_for_no_route("10.9.1.0/24");
    a.wait_for_route("10.9.0.0/24", "192.0.2.9");
    let gone = a
        .facts()
        .iter()
        .any(|f| matches!(f, SpeakerFact::Problems { .. } | SpeakerFact::TransientProblem(_)));
    assert!(!gone, "{:#?}", a.facts());
}

#[test]
fn ttl_security_takes_neighbours_and_refuses_those_from_afar() {
    if !net::enter(&[]) {
        return;
    }
    let Some(mut bird) = Bird::start(&bgp("ttl security on; multihop 1;")) else { return };
    let mut us = with_bird();
    us.peers.get_mut("bird").unwrap().ttl_security = Some(1);
    // Another peer without GTSM: the listener itself must not require it.
    us.peers.insert("other".into(), peer("192.0.2.7:1790", "192.0.2.1", 65007));
    let mut a = Node::start(us);
    a.wait_established("bird");
    a.wait_for_route("10.9.0.0/24", "192.0.2.9");
    bird.kill();
    // Now its segments have TTL 5, as from 250 hops away. A BIRD that has our OPEN stops dialling, so each
    // direction is tested separately. First ours: BIRD's listener answers with TTL 255, and its later
    // segments are dropped.
    bird.start_again(&bgp("multihop 5; passive on;"), &[]);
    a.fact("down", |f| matches!(f, SpeakerFact::Peer { from: State::Established, down: Some(_), .. }));
    bird.wait_for_output("show protocols all tortie", "OpenConfirm");
    for _ in 0..20 {
        assert_eq!(a.state("bird"), Some(State::OpenSent));
        std::thread::sleep(Duration::from_millis(50));
    }
    // Then BIRD's: its SYN is dropped.
    a.intent.peers.get_mut("bird").unwrap().dial_after = None;
    a.apply();
    bird.kill();
    bird.start_again(&bgp("multihop 5;"), &[]);
    wait("a refusal", || match a.ask(|v| v.counters()) {
        c if c.refused_ttl > 0 => Ok(()),
        c => Err(format!("{c:?}\n{}", bird.ask("show protocols all tortie"))),
    });
    assert_ne!(a.state("bird"), Some(State::Established));
    a.intent.peers.get_mut("bird").unwrap().ttl_security = None;
    a.apply();
    a.wait_established("bird");
}

#[test]
fn what_is_announced_is_explained_by_the_gate() {
    if !net::enter(&[]) {
        return;
    }
    let Some(_bird) = Bird::start(&bgp("")) else { return };
    let a = node();
    a.wait_established("bird");
    a.wait_for_route("10.9.0.0/24", "192.0.2.9");
    let gate = |prefix: &'static str| {
        a.ask(move |v| v.explain_export("bird", cidr(prefix)))
            .unwrap()
            .steps
            .into_iter()
            .find(|s| s.step == "own-block")
            .map(|s| (s.pass, s.verdict))
    };
    let (pass, verdict) = gate("10.1.0.0/26").unwrap();
    assert!(pass && verdict.contains("is a block of this host"), "{verdict}");
}
