//! Prefix limits (RFC 4486) at either end.

use tortie::speaker::SpeakerFact;
use tortie_bgp::PeerStatus;
use tortie_engine::routing::MaxPrefixes;

use crate::rig::node::{Node, intent, wait};
use crate::rig::{Kind, PeerDaemon, SessionSetup, V4, our_intent};

/// Waits until the session has ended with Cease subcode 1, sent or received. Returns the state then.
fn ends(a: &Node, peer_daemon: &PeerDaemon) -> PeerStatus {
    let mut ended = None;
    wait("Cease 1", || {
        let now = a.peer("daemon");
        match now.as_ref().and_then(|p| p.last_down.as_ref()) {
            Some((down, _)) if down.notification == Some((6, 1)) => {
                ended = now;
                Ok(())
            }
            other => Err(format!("{other:?}\n{}", peer_daemon.log())),
        }
    });
    ended.unwrap()
}

/// The daemon exceeds our limit.
fn it_exceeds_our_limit(kind: Kind) {
    let Some(peer_daemon) = PeerDaemon::start(kind, SessionSetup::IPV4) else { return };
    let mut us = our_intent(kind, SessionSetup::IPV4);
    let one = MaxPrefixes { limit: Some(1), ..MaxPrefixes::default() };
    us.peers.get_mut("daemon").unwrap().max_prefixes = Some(one);
    ends(&Node::start(us), &peer_daemon);
    match kind {
        Kind::Bird => wait("BIRD to have read why", || {
            let log = peer_daemon.log();
            if log.contains("Maximum number of prefixes reached") { Ok(()) } else { Err(log) }
        }),
        Kind::Frr => peer_daemon.wait_for_output("show bgp neighbors 192.0.2.1", "Cease/"),
        _ => {}
    }
}

/// We exceed the daemon's limit, record the reason for the reset, and do not dial for a while.
fn we_exceed_its_limit(kind: Kind) {
    let setup = SessionSetup { one_prefix: true, ..SessionSetup::IPV4 };
    let Some(peer_daemon) = PeerDaemon::start(kind, setup) else { return };
    let mut us = our_intent(kind, setup);
    let more = intent("192.0.2.1:1790", 64512, &[V4, "10.1.0.64/26", "10.1.0.128/26"]);
    (us.originated, us.view) = (more.originated, more.view);
    let a = Node::start(us);
    ends(&a, &peer_daemon);
    wait("the wait", || match a.peer("daemon") {
        Some(p) if p.next_attempt.is_some_and(|t| t.as_secs() > 30) => Ok(()),
        // The daemon may dial, be accepted, and end the session again.
        p => Err(format!("{p:#?}\n{}", peer_daemon.log())),
    });
}

/// Two routes with a limit of one sent prefix: the session ends before the daemon receives them.
fn ours_out(kind: Kind) {
    let Some(peer_daemon) = PeerDaemon::start(kind, SessionSetup::IPV4) else { return };
    let mut us = our_intent(kind, SessionSetup::IPV4);
    let more = intent("192.0.2.1:1790", 64512, &[V4, "10.1.0.64/26"]);
    (us.originated, us.view) = (more.originated, more.view);
    us.peers.get_mut("daemon").unwrap().max_prefixes =
        Some(MaxPrefixes { out: Some(1), ..MaxPrefixes::default() });
    let a = Node::start(us);
    let p = ends(&a, &peer_daemon);
    // The daemon dials again: the session may have ended more than once.
    assert!(p.sent.notification > 0, "{p:#?}");
    assert_eq!((p.received.notification, p.families[0].advertised), (0, 0), "{p:#?}");
    if kind != Kind::Exabgp {
        peer_daemon.wait_for_no_route(V4);
    }
}

/// The daemon has two routes and a limit of one sent prefix: it ends the session with this Cease subcode.
fn theirs_out(kind: Kind, setup: SessionSetup, subcode: u8) {
    let Some(peer_daemon) = PeerDaemon::start(kind, setup) else { return };
    let a = Node::start(our_intent(kind, setup));
    // It does not accept us again, and that is the last state recorded for the peer.
    wait("the end", || {
        let mut downs = a.facts().into_iter().filter_map(|fact| match fact {
            SpeakerFact::Peer { down, .. } => down?.notification,
            _ => None,
        });
        if downs.any(|code| code == (6, subcode)) {
            Ok(())
        } else {
            Err(format!("{:#?}\n{}", a.facts(), peer_daemon.log()))
        }
    });
}

#[test]
fn prefix_limit_out_towards_bird_ends_the_session() {
    ours_out(Kind::Bird);
}

#[test]
fn prefix_limit_out_towards_frr_ends_the_session() {
    ours_out(Kind::Frr);
}

#[test]
fn prefix_limit_out_towards_gobgp_ends_the_session() {
    ours_out(Kind::Gobgp);
}

#[test]
fn prefix_limit_out_towards_openbgpd_ends_the_session() {
    ours_out(Kind::Openbgpd);
}

#[test]
fn prefix_limit_out_towards_exabgp_ends_the_session() {
    ours_out(Kind::Exabgp);
}

#[test]
fn prefix_limit_out_of_bird_is_honoured() {
    theirs_out(
        Kind::Bird,
        SessionSetup { family: "export limit 1 action disable;", ..SessionSetup::IPV4 },
        2,
    );
}

/// It sends routes up to the limit and withholds the others, without a NOTIFICATION.
#[test]
fn prefix_limit_out_of_frr_keeps_the_others_back() {
    let setup = SessionSetup { family: "neighbor 192.0.2.1 maximum-prefix-out 1", ..SessionSetup::IPV4 };
    let Some(peer_daemon) = PeerDaemon::start(Kind::Frr, setup) else { return };
    let a = Node::start(our_intent(Kind::Frr, setup));
    wait("one route and End-of-RIB", || match a.peer("daemon") {
        Some(p) if p.families.iter().any(|f| f.end_of_rib_received && f.received == 1) => Ok(()),
        p => Err(format!("{p:#?}\n{}", peer_daemon.log())),
    });
}

/// With its own subcode, which RFC 9384 has since assigned.
#[test]
fn prefix_limit_out_of_openbgpd_is_honoured() {
    theirs_out(Kind::Openbgpd, SessionSetup { neighbour: "max-prefix 1 out\n", ..SessionSetup::IPV4 }, 10);
}

#[test]
fn prefix_limit_of_bird_is_honoured() {
    we_exceed_its_limit(Kind::Bird);
}

#[test]
fn prefix_limit_of_frr_is_honoured() {
    we_exceed_its_limit(Kind::Frr);
}

#[test]
fn prefix_limit_of_gobgp_is_honoured() {
    we_exceed_its_limit(Kind::Gobgp);
}

#[test]
fn prefix_limit_of_openbgpd_is_honoured() {
    we_exceed_its_limit(Kind::Openbgpd);
}

#[test]
fn prefix_limit_towards_bird_ends_the_session() {
    it_exceeds_our_limit(Kind::Bird);
}

#[test]
fn prefix_limit_towards_frr_ends_the_session() {
    it_exceeds_our_limit(Kind::Frr);
}

#[test]
fn prefix_limit_towards_gobgp_ends_the_session() {
    it_exceeds_our_limit(Kind::Gobgp);
}

#[test]
fn prefix_limit_towards_openbgpd_ends_the_session() {
    it_exceeds_our_limit(Kind::Openbgpd);
}

#[test]
fn prefix_limit_towards_exabgp_ends_the_session() {
    it_exceeds_our_limit(Kind::Exabgp);
}
