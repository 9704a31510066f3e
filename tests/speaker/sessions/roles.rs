//! Roles (RFC 9234) on sessions with BIRD, FRR and OpenBGPD: permitted routes, added attributes, and rejected
//! routes.

use tortie_bgp::{State, Unusable};
use tortie_engine::routing::{PeerIntent, Role};

use crate::rig::node::{Node, wait};
use crate::rig::{Kind, PeerDaemon, SessionSetup, V4, our_intent};

/// Starts a node with the daemon as its eBGP peer.
fn node(kind: Kind, edit: impl FnOnce(&mut PeerIntent)) -> Node {
    let mut us = our_intent(kind, SessionSetup::IPV4);
    edit(us.peers.get_mut("daemon").unwrap());
    Node::start(us)
}

fn start(kind: Kind, neighbour: &'static str) -> Option<PeerDaemon> {
    PeerDaemon::start(kind, SessionSetup { neighbour, ..SessionSetup::IPV4 })
}

fn has_role(ours: Role) -> impl FnOnce(&mut PeerIntent) {
    move |p| p.role = Some(ours)
}

/// Returns ONLY_TO_CUSTOMER of a route of the peer, and the reason why it is unusable.
fn received(a: &Node, prefix: &str) -> Option<(Option<u32>, Option<Unusable>)> {
    let path = a.received("daemon", prefix)?;
    Some((path.attributes.otc(), path.unusable))
}

/// The same for its first route, after import.
fn receives(a: &Node, peer_daemon: &PeerDaemon) -> (Option<u32>, Option<Unusable>) {
    let mut got = None;
    let prefix = peer_daemon.kind.v4();
    wait(&format!("a route {prefix}"), || {
        got = received(a, &prefix);
        // Its next hop may not be resolved yet.
        let settled = got.is_some_and(|(_, unusable)| unusable != Some(Unusable::NextHop));
        if settled { Ok(()) } else { Err(format!("{:#?}\n{}", a.facts().last(), peer_daemon.log())) }
    });
    got.unwrap()
}

/// Checks that the session ended with this NOTIFICATION, sent or received.
fn ends_with(a: &Node, code: (u8, u8), peer_daemon: &PeerDaemon) {
    wait(&format!("the end with {code:?}"), || match a.peer("daemon").and_then(|p| p.last_down) {
        Some((down, _)) if down.notification == Some(code) => Ok(()),
        other => Err(format!("{other:?}\n{}", peer_daemon.log())),
    });
}

/// Routes to a customer have our ONLY_TO_CUSTOMER. A customer adds a missing attribute, so only without a
/// role is the observed one certainly ours.
fn marks(kind: Kind, customer: &'static str, command: &str, mark: &str) {
    for neighbour in ["", customer] {
        let Some(peer_daemon) = start(kind, neighbour) else { return };
        let a = node(kind, |p| (p.role, p.role_strict) = (Some(Role::Provider), !neighbour.is_empty()));
        assert_eq!(receives(&a, &peer_daemon).0, None);
        peer_daemon.wait_for_output(command, mark);
    }
}

#[test]
fn role_customer_towards_bird_is_sent_its_mark() {
    let Some(bird) = start(Kind::Bird, "local role provider; require roles on;") else { return };
    let a = node(Kind::Bird, has_role(Role::Customer));
    let (otc, unusable) = receives(&a, &bird);
    assert_eq!((otc, unusable), (Some(65009), None));
    bird.wait_for_output("show route for 10.1.0.0/26 all", "BGP.as_path: 64512");
    assert!(!bird.ask("show route for 10.1.0.0/26 all").contains("otc"));
}

#[test]
fn role_provider_towards_bird_marks_what_it_sends() {
    marks(
        Kind::Bird,
        "local role customer; require roles on;",
        "show route for 10.1.0.0/26 all",
        "otc: 64512",
    );
}

#[test]
fn role_mismatch_with_bird_is_refused() {
    let Some(bird) = start(Kind::Bird, "local role provider;") else { return };
    let a = node(Kind::Bird, has_role(Role::Provider));
    ends_with(&a, (2, 11), &bird);
    assert_ne!(a.state("daemon"), Some(State::Established));
}

#[test]
fn role_strict_refuses_bird_without_one_and_bird_refuses_us() {
    let Some(silent) = start(Kind::Bird, "") else { return };
    let a = node(Kind::Bird, |p| (p.role, p.role_strict) = (Some(Role::Customer), true));
    ends_with(&a, (2, 11), &silent);
    drop((a, silent));
    let Some(strict) = start(Kind::Bird, "local role provider; require roles on;") else { return };
    let a = node(Kind::Bird, |_| ());
    ends_with(&a, (2, 11), &strict);
}

/// BIRD without a role leaks a route.
#[test]
fn role_leak_from_bird_is_not_used() {
    let leak = "export filter { if source != RTS_STATIC then reject; bgp_otc = 65001; accept; };";
    let Some(bird) = PeerDaemon::start(Kind::Bird, SessionSetup { family: leak, ..SessionSetup::IPV4 })
    else {
        return;
    };
    let a = node(Kind::Bird, has_role(Role::Provider));
    let (otc, unusable) = receives(&a, &bird);
    assert_eq!((otc, unusable), (Some(65001), Some(Unusable::Filtered("route_leak"))));
    assert_eq!(a.route("10.9.0.0/24"), None);
}

#[test]
fn role_both_ways_with_frr() {
    let Some(frr) = start(Kind::Frr, "neighbor 192.0.2.1 local-role provider strict-mode") else { return };
    let mut a = node(Kind::Frr, has_role(Role::Customer));
    let (otc, unusable) = receives(&a, &frr);
    assert_eq!((otc, unusable), (Some(65011), None));
    // A role that does not match.
    a.intent.peers.get_mut("daemon").unwrap().role = Some(Role::Peer);
    a.apply();
    ends_with(&a, (2, 11), &frr);
}

#[test]
fn role_provider_towards_frr_marks_what_it_sends() {
    let customer = "neighbor 192.0.2.1 local-role customer";
    marks(Kind::Frr, customer, "show bgp ipv4 unicast 10.1.0.0/26", "otc 64512");
}

#[test]
fn role_both_ways_with_openbgpd() {
    let Some(peer_daemon) = start(Kind::Openbgpd, "announce policy provider enforce\n") else { return };
    let mut a = node(Kind::Openbgpd, |p| (p.role, p.role_strict) = (Some(Role::Customer), true));
    let (otc, unusable) = receives(&a, &peer_daemon);
    assert_eq!((otc, unusable), (Some(65012), None));
    peer_daemon.wait_for_route(V4, &[V4]);
    a.intent.peers.get_mut("daemon").unwrap().role = Some(Role::Provider);
    a.apply();
    ends_with(&a, (2, 11), &peer_daemon);
}

#[test]
fn role_provider_towards_openbgpd_marks_what_it_sends() {
    marks(Kind::Openbgpd, "announce policy customer enforce\n", "show rib detail 10.1.0.0/26", "OTC: 64512");
}
