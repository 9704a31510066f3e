//! TCP connection of a session with each daemon: direction of dialling, MD5 and GTSM, over IPv4 and IPv6; and
//! IPv6 routes over either.

use std::time::Duration;

use tortie::speaker::SpeakerFact;
use tortie_bgp::State;
use tortie_engine::routing::{Password, RoutingIntent};

use crate::rig::node::{Node, peer, wait};
use crate::rig::{Kind, PASSWORD, PeerDaemon, SessionSetup, V4, V6, our_intent};
use crate::sessions::ranges::refused;

/// Starts a node with the wrong password.
fn mistaken(mut us: RoutingIntent) -> Node {
    us.peers.get_mut("daemon").unwrap().password = Some(Password::Text("wrong".into()));
    Node::start(us)
}

/// Waits until a segment was dropped for its signature, with no session; then sets the right password.
fn corrected(a: &mut Node, peer_daemon: &PeerDaemon) {
    wait("a segment with a wrong signature", || match refused() {
        (0, _) => Err(peer_daemon.log()),
        _ => Ok(()),
    });
    assert!(matches!(a.state("daemon"), None | Some(State::Idle | State::Connect | State::Active)));
    a.intent.peers.get_mut("daemon").unwrap().password = Some(Password::Text(PASSWORD.into()));
    a.apply();
}

/// We dial and the daemon is passive: over IPv4 with MD5, routes of both families in both directions.
fn we_dial(kind: Kind) {
    let setup = SessionSetup { md5: true, passive: true, ..SessionSetup::default() };
    let Some(peer_daemon) = PeerDaemon::start(kind, setup) else { return };
    let mut a = mistaken(our_intent(kind, setup));
    corrected(&mut a, &peer_daemon);
    peer_daemon.wait_established(&a);
    assert_eq!(a.peer("daemon").unwrap().session.unwrap().remote.port(), 1790, "we dialled");
    a.wait_for_route(&kind.v4(), &format!("192.0.2.{}", kind.last()));
    a.wait_for_route(&kind.v6(), &format!("2001:db8::{}", kind.last()));
    peer_daemon.wait_for_route(V4, &["192.0.2.1"]);
    peer_daemon.wait_for_route(V6, &["2001:db8::1"]);
}

/// The daemon dials and we are passive: over IPv6 with MD5, IPv6 routes in both directions. For GoBGP, which
/// is slow, see `range_dialled_over_ipv6_by_gobgp`.
fn they_dial(kind: Kind) {
    let setup = SessionSetup { md5: true, over_ipv6: true, ..SessionSetup::default() };
    if !PeerDaemon::enter(kind) {
        return;
    }
    let mut us = our_intent(kind, setup);
    let peer = us.peers.get_mut("daemon").unwrap();
    (peer.dial_after, peer.ipv4) = (None, false);
    let mut a = mistaken(us);
    a.fact("listening", |f| matches!(f, SpeakerFact::Listening(_)));
    let Some(peer_daemon) = PeerDaemon::start_here(kind, setup) else { return };
    corrected(&mut a, &peer_daemon);
    peer_daemon.wait_established(&a);
    assert_ne!(a.peer("daemon").unwrap().session.unwrap().remote.port(), 1790, "it dialled");
    a.wait_for_route(&kind.v6(), &format!("2001:db8::{}", kind.last()));
    peer_daemon.wait_for_route(V6, &["2001:db8::1"]);
}

/// With a lower TTL the daemon is refused. With TTL 255 the session comes up, with GTSM at both ends.
fn ttl_security(kind: Kind) {
    let far = SessionSetup::default();
    let near = SessionSetup { ttl_security: true, ..far };
    if !PeerDaemon::enter(kind) {
        return;
    }
    let mut us = our_intent(kind, near);
    us.peers.get_mut("daemon").unwrap().dial_after = None;
    // Another peer without GTSM: the listener itself must not require it, or the kernel drops segments
    // without counting them.
    us.peers.insert("other".into(), peer("192.0.2.7:1790", "192.0.2.1", 65007));
    let mut a = Node::start(us);
    a.fact("listening", |f| matches!(f, SpeakerFact::Listening(_)));
    // OpenBGPD dials once and then not for two minutes.
    let Some(peer_daemon) = PeerDaemon::start_here(kind, far) else { return };
    wait("a refusal", || match a.ask(|v| v.counters()) {
        c if c.refused_ttl > 0 => Ok(()),
        c => Err(format!("{c:?}\n{}", peer_daemon.log())),
    });
    assert_ne!(a.state("daemon"), Some(State::Established));
    drop(peer_daemon);
    let Some(peer_daemon) = PeerDaemon::start_here(kind, near) else { return };
    a.intent.peers.get_mut("daemon").unwrap().dial_after = Some(Duration::ZERO);
    a.apply();
    peer_daemon.wait_established(&a);
    a.wait_for_route(&kind.v4(), &format!("192.0.2.{}", kind.last()));
    peer_daemon.wait_for_route(V4, &["192.0.2.1"]);
}

#[test]
fn we_dial_with_md5_and_both_families_over_ipv4_bird() {
    we_dial(Kind::Bird);
}

#[test]
fn we_dial_with_md5_and_both_families_over_ipv4_frr() {
    we_dial(Kind::Frr);
}

#[test]
fn we_dial_with_md5_and_both_families_over_ipv4_gobgp() {
    we_dial(Kind::Gobgp);
}

#[test]
fn we_dial_with_md5_and_both_families_over_ipv4_openbgpd() {
    we_dial(Kind::Openbgpd);
}

#[test]
fn we_dial_with_md5_and_both_families_over_ipv4_exabgp() {
    we_dial(Kind::Exabgp);
}

#[test]
fn they_dial_with_md5_over_ipv6_bird() {
    they_dial(Kind::Bird);
}

#[test]
fn they_dial_with_md5_over_ipv6_frr() {
    they_dial(Kind::Frr);
}

#[test]
fn they_dial_with_md5_over_ipv6_openbgpd() {
    they_dial(Kind::Openbgpd);
}

#[test]
fn they_dial_with_md5_over_ipv6_exabgp() {
    they_dial(Kind::Exabgp);
}

#[test]
fn ttl_security_bird() {
    ttl_security(Kind::Bird);
}

#[test]
fn ttl_security_frr() {
    ttl_security(Kind::Frr);
}

#[test]
fn ttl_security_gobgp() {
    ttl_security(Kind::Gobgp);
}

#[test]
fn ttl_security_openbgpd() {
    ttl_security(Kind::Openbgpd);
}

#[test]
fn ttl_security_exabgp() {
    ttl_security(Kind::Exabgp);
}
