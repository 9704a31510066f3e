//! Restarts with other daemons: graceful restart in both roles (RFC 4724), with NOTIFICATIONs (RFC 8538), and
//! long-lived graceful restart (RFC 9494).

use std::time::Duration;

use tortie::speaker::SpeakerFact;
use tortie_bgp::attr::{Attributes, community};
use tortie_bgp::{RestartPhase, RouteMatch, RouteQuery, RouteTable, State};
use tortie_engine::routing::PeerIntent;

use crate::rig::node::{Node, cidr, intent, peer, wait};
use crate::rig::{Kind, PeerDaemon, SessionSetup, V4, our_intent};

/// Starts the daemon with options of the session and of its IPv4 routes, and a node with it as the only peer.
fn establish(kind: Kind, setup: SessionSetup, edit: impl Fn(&mut PeerIntent)) -> Option<(PeerDaemon, Node)> {
    let peer_daemon = PeerDaemon::start(kind, setup)?;
    let mut us = our_intent(kind, setup);
    edit(us.peers.get_mut("daemon").unwrap());
    Some((peer_daemon, Node::start(us)))
}

/// Returns the attributes in use for a prefix.
fn used(a: &Node, prefix: &str) -> Option<Attributes> {
    let query = RouteQuery { table: RouteTable::Loc, matching: RouteMatch::Exact(cidr(prefix)) };
    let found = a.ask(move |view| view.routes(query, None, 1));
    Some((*found.first()?.paths.first()?.attributes).clone())
}

fn phase(a: &Node) -> RestartPhase {
    a.peer("daemon").unwrap().restart
}

/// The daemon was just killed: its route stays for the restart time.
fn assert_stale_route_kept(a: &Node, prefix: &str) {
    wait("the helper", || match phase(a) {
        RestartPhase::Waiting(_) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    assert!(a.route(prefix).is_some());
    assert!(!used(a, prefix).unwrap().has_community(community::LLGR_STALE));
}

/// The daemon dies, and its route is kept, then removed.
fn helper(kind: Kind, setup: SessionSetup) {
    let Some((mut peer_daemon, a)) = establish(kind, setup, |_| ()) else { return };
    a.wait_for_route(&kind.v4(), &kind.at());
    peer_daemon.kill();
    assert_stale_route_kept(&a, &kind.v4());
    a.wait_for_no_route(&kind.v4());
}

/// The daemon dies, and its route is kept, kept as long-lived stale, then removed.
fn long_lived_helper(kind: Kind, setup: SessionSetup) {
    // Longer than the test waits: the daemon's time ends it.
    let long = |p: &mut PeerIntent| p.long_lived_restart_time = Some(Duration::from_secs(600));
    let Some((mut peer_daemon, a)) = establish(kind, setup, long) else { return };
    a.wait_for_route(&kind.v4(), &kind.at());
    peer_daemon.kill();
    assert_stale_route_kept(&a, &kind.v4());
    wait("long-lived stale", || match used(&a, &kind.v4()) {
        Some(used) if used.has_community(community::LLGR_STALE) => Ok(()),
        other => Err(format!("{other:?} {:?}", phase(&a))),
    });
    assert!(matches!(phase(&a), RestartPhase::LongLived(_)), "{:?}", phase(&a));
    assert!(a.route(&kind.v4()).is_some());
    a.wait_for_no_route(&kind.v4());
    assert_eq!(phase(&a), RestartPhase::Idle);
}

/// We stop gracefully, and the daemon keeps our route for the advertised restart time.
fn restart_by_us(kind: Kind, setup: SessionSetup, stale: &str) {
    let Some((peer_daemon, mut a)) = establish(kind, setup, |p| p.restart_time = Duration::from_secs(5))
    else {
        return;
    };
    peer_daemon.wait_for_route(V4, &["192.0.2.1"]);
    a.stop(true, "");
    if kind == Kind::Bird {
        peer_daemon.wait_for_output("show protocols all tortie0", stale);
        assert!(peer_daemon.route(V4).contains("192.0.2.1"));
    } else {
        peer_daemon.wait_for_route(V4, &[stale]);
    }
    peer_daemon.wait_for_no_route(V4);
}

/// The same, and then the daemon keeps it as long-lived stale.
fn long_lived_restart_by_us(kind: Kind, setup: SessionSetup, stale: &str) {
    let times = |p: &mut PeerIntent| {
        p.restart_time = Duration::from_secs(1);
        p.long_lived_restart_time = Some(Duration::from_secs(5));
    };
    let Some((peer_daemon, mut a)) = establish(kind, setup, times) else { return };
    peer_daemon.wait_for_route(V4, &["192.0.2.1"]);
    a.stop(true, "");
    peer_daemon.wait_for_route(V4, &[stale]);
    peer_daemon.wait_for_no_route(V4);
}

// The times are those in which a state has to be seen: seconds, since a loaded machine takes that long to
// look.
const BIRD: SessionSetup =
    SessionSetup { neighbour: "graceful restart on; graceful restart time 5;", ..SessionSetup::IPV4 };
const BIRD_LONG: SessionSetup = SessionSetup {
    neighbour: "graceful restart on; graceful restart time 4; long lived graceful restart on; long lived stale time 4;",
    ..SessionSetup::IPV4
};
const FRR: SessionSetup = SessionSetup {
    neighbour: "bgp graceful-restart\n bgp graceful-restart restart-time 5\n bgp graceful-restart preserve-fw-state",
    ..SessionSetup::IPV4
};
const FRR_LONG: SessionSetup = SessionSetup {
    neighbour: "bgp graceful-restart\n bgp graceful-restart restart-time 4\n bgp graceful-restart preserve-fw-state\n \
                bgp long-lived-graceful-restart stale-time 4",
    ..SessionSetup::IPV4
};
const GOBGP: SessionSetup = SessionSetup {
    neighbour: "[neighbors.graceful-restart.config]\nenabled = true\nnotification-enabled = true\nrestart-time = 5",
    family: "[neighbors.afi-safis.mp-graceful-restart.config]\nenabled = true",
    ..SessionSetup::IPV4
};
const GOBGP_LONG: SessionSetup = SessionSetup {
    neighbour: "[neighbors.graceful-restart.config]\nenabled = true\nrestart-time = 4\nlong-lived-enabled = true",
    family: "[neighbors.afi-safis.mp-graceful-restart.config]\nenabled = true
[neighbors.afi-safis.long-lived-graceful-restart.config]\nenabled = true\nrestart-time = 4",
    ..SessionSetup::IPV4
};

#[test]
fn graceful_restart_helper_of_bird() {
    helper(Kind::Bird, BIRD);
}

#[test]
fn graceful_restart_helper_of_frr() {
    helper(Kind::Frr, FRR);
}

#[test]
fn graceful_restart_helper_of_gobgp() {
    helper(Kind::Gobgp, GOBGP);
}

/// The daemon dies and returns: its route is kept throughout, here and at a third node, and is no longer
/// stale after End-of-RIB.
fn comes_back(kind: Kind, setup: SessionSetup) {
    let Some(mut peer_daemon) = PeerDaemon::start(kind, setup) else { return };
    let mut us = our_intent(kind, setup);
    let mut third = peer("192.0.2.2:1790", "192.0.2.1", 64602);
    third.ipv6 = false;
    us.peers.insert("third".into(), third);
    let mut a = Node::start(us);
    let mut b = intent("192.0.2.2:1790", 64602, &[]);
    let mut to_us = peer("192.0.2.1:1790", "192.0.2.2", 64512);
    to_us.ipv6 = false;
    b.peers.insert("us".into(), to_us);
    let b = Node::start(b);
    a.wait_for_route(&kind.v4(), &kind.at());
    b.wait_for_route(&kind.v4(), "192.0.2.1");
    peer_daemon.wait_for_route(V4, &["192.0.2.1"]);
    // We do not dial before the daemon has its routes: GoBGP gets these last.
    a.intent.peers.get_mut("daemon").unwrap().dial_after = None;
    a.apply();
    peer_daemon.kill();
    a.fact(
        "helper",
        |f| matches!(f, SpeakerFact::Peer { from: State::Established, down: Some(d), .. } if d.helper),
    );
    assert!(a.peer("daemon").unwrap().families.iter().any(|f| f.stale > 0));
    drop(peer_daemon);
    let Some(again) = PeerDaemon::start_here(kind, SessionSetup { restarted: true, ..setup }) else { return };
    a.intent.peers.get_mut("daemon").unwrap().dial_after = Some(Duration::ZERO);
    a.apply();
    again.wait_established(&a);
    wait("End-of-RIB, and nothing stale", || match a.peer("daemon") {
        Some(p) if p.families.iter().all(|f| f.stale == 0 && f.received > 0 && f.end_of_rib_received) => {
            Ok(())
        }
        p => Err(format!("{p:#?}\n{}", again.log())),
    });
    assert_eq!(phase(&a), RestartPhase::Idle);
    again.wait_for_route(V4, &["192.0.2.1"]);
    for (node, hop) in [(&a, kind.at()), (&b, "192.0.2.1".to_owned())] {
        node.wait_for_route(&kind.v4(), &hop);
        assert_eq!(node.withdrawn(&kind.v4()), 0, "{:#?}", node.facts());
    }
    assert_eq!(a.peer("daemon").unwrap().flaps, 1);
}

#[test]
fn graceful_restart_of_bird_that_comes_back() {
    let neighbour = "graceful restart on; graceful restart time 30;";
    comes_back(Kind::Bird, SessionSetup { neighbour, ..SessionSetup::IPV4 });
}

#[test]
fn graceful_restart_of_frr_that_comes_back() {
    let neighbour = "bgp graceful-restart\n bgp graceful-restart restart-time 30\n bgp graceful-restart preserve-fw-state";
    comes_back(Kind::Frr, SessionSetup { neighbour, ..SessionSetup::IPV4 });
}

#[test]
fn graceful_restart_of_gobgp_that_comes_back() {
    let neighbour = "[neighbors.graceful-restart.config]\nenabled = true\nrestart-time = 30";
    comes_back(Kind::Gobgp, SessionSetup { neighbour, passive: true, ..GOBGP });
}

#[test]
fn graceful_restart_of_exabgp_that_comes_back() {
    comes_back(Kind::Exabgp, SessionSetup { neighbour: "graceful-restart 30;", ..SessionSetup::IPV4 });
}

#[test]
fn graceful_restart_by_us_with_bird() {
    let setup = SessionSetup { neighbour: "graceful restart aware;", ..SessionSetup::IPV4 };
    restart_by_us(Kind::Bird, setup, "Neighbor graceful restart active");
}

#[test]
fn graceful_restart_by_us_with_frr() {
    restart_by_us(Kind::Frr, SessionSetup::IPV4, "stale");
}

#[test]
fn graceful_restart_by_us_with_gobgp() {
    restart_by_us(Kind::Gobgp, GOBGP, "\"stale\":true");
}

#[test]
fn long_lived_helper_of_bird() {
    long_lived_helper(Kind::Bird, BIRD_LONG);
}

#[test]
fn long_lived_helper_of_frr() {
    long_lived_helper(Kind::Frr, FRR_LONG);
}

#[test]
fn long_lived_helper_of_gobgp() {
    long_lived_helper(Kind::Gobgp, GOBGP_LONG);
}

#[test]
fn long_lived_by_us_with_bird() {
    long_lived_restart_by_us(Kind::Bird, BIRD_LONG, "(65535,6)");
}

#[test]
fn long_lived_by_us_with_frr() {
    let setup = SessionSetup {
        neighbour: "bgp graceful-restart\n bgp long-lived-graceful-restart stale-time 2",
        ..SessionSetup::IPV4
    };
    long_lived_restart_by_us(Kind::Frr, setup, "llgr-stale");
}

#[test]
fn graceful_restart_and_long_lived_by_us_with_gobgp() {
    // LLGR_STALE as a number.
    long_lived_restart_by_us(Kind::Gobgp, GOBGP_LONG, "4294901766");
}

/// RFC 8538, sent by us: after an ordinary NOTIFICATION the daemon keeps our route. The session stays down,
/// because no process listens where we now dial.
fn notification_sent(kind: Kind, setup: SessionSetup, stale: &str) {
    let Some((peer_daemon, mut a)) = establish(kind, SessionSetup { passive: true, ..setup }, |_| ()) else {
        return;
    };
    peer_daemon.wait_for_route(V4, &["192.0.2.1"]);
    let peer = a.intent.peers.get_mut("daemon").unwrap();
    peer.hold_time = Duration::from_secs(60);
    peer.remote.set_port(1791);
    a.apply();
    peer_daemon.wait_for_route(V4, &["192.0.2.1", stale]);
    assert_ne!(a.state("daemon"), Some(State::Established));
}

/// After a Hard Reset the daemon removes our route at once.
fn hard_reset_sent(kind: Kind, setup: SessionSetup) {
    let Some((peer_daemon, mut a)) = establish(kind, setup, |_| ()) else { return };
    peer_daemon.wait_for_route(V4, &["192.0.2.1"]);
    a.stop(false, "bye");
    peer_daemon.wait_for_no_route(V4);
    match kind {
        Kind::Frr => peer_daemon.wait_for_output("show bgp neighbors 192.0.2.1", "Hard Reset"),
        _ => wait("it to have read it", || match peer_daemon.log() {
            log if log.contains("Subcode=9") || log.contains("\"Subcode\":9") => Ok(()),
            log => Err(log),
        }),
    }
}

/// Checks that the session ended with this NOTIFICATION, as it was sent. `helper`: its routes are kept.
fn ended(a: &Node, peer_daemon: &PeerDaemon, code: (u8, u8), helper: bool) {
    let is = |f: &SpeakerFact| {
        matches!(f, SpeakerFact::Peer { from: State::Established, down: Some(d), .. }
            if d.notification == Some(code) && d.helper == helper)
    };
    wait(&format!("the end with {code:?}, helper {helper}"), || match a.facts() {
        facts if facts.iter().any(is) => Ok(()),
        facts => Err(format!("{facts:#?}\n{}", peer_daemon.log())),
    });
}

/// RFC 8538, sent by the daemon: after an ordinary NOTIFICATION its routes are kept here.
fn notification_received(kind: Kind, setup: SessionSetup, reset: &str) -> Option<(PeerDaemon, Node)> {
    let (peer_daemon, a) = establish(kind, setup, |_| ())?;
    a.wait_for_route(&kind.v4(), &kind.at());
    peer_daemon.ask(reset);
    ended(&a, &peer_daemon, (6, 4), true);
    assert!(a.route(&kind.v4()).is_some());
    Some((peer_daemon, a))
}

/// After a Hard Reset of the daemon its routes are removed.
fn hard_reset_received(kind: Kind, setup: SessionSetup, reset: &str, enclosed: (u8, u8)) {
    let Some((peer_daemon, a)) = establish(kind, setup, |_| ()) else { return };
    a.wait_for_route(&kind.v4(), &kind.at());
    peer_daemon.ask(reset);
    ended(&a, &peer_daemon, enclosed, false);
}

#[test]
fn notification_sent_to_frr_keeps_routes() {
    notification_sent(Kind::Frr, SessionSetup::IPV4, "stale");
}

#[test]
fn notification_sent_to_gobgp_keeps_routes() {
    notification_sent(Kind::Gobgp, GOBGP, "\"stale\":true");
}

#[test]
fn hard_reset_sent_to_frr() {
    hard_reset_sent(Kind::Frr, SessionSetup::IPV4);
}

#[test]
fn hard_reset_sent_to_gobgp() {
    hard_reset_sent(Kind::Gobgp, GOBGP);
}

#[test]
fn notification_received_from_frr_keeps_routes() {
    let setup = SessionSetup {
        neighbour: "bgp graceful-restart\n bgp graceful-restart preserve-fw-state\n no bgp hard-administrative-reset",
        ..SessionSetup::IPV4
    };
    let Some((peer_daemon, a)) = notification_received(Kind::Frr, setup, "clear bgp 192.0.2.1") else {
        return;
    };
    // Until they are announced again.
    peer_daemon.wait_established(&a);
    wait("nothing stale", || match a.peer("daemon") {
        Some(p) if p.families.iter().all(|f| f.stale == 0 && f.received > 0) => Ok(()),
        p => Err(format!("{p:#?}\n{}", peer_daemon.log())),
    });
    let lost = |f: &SpeakerFact| matches!(f, SpeakerFact::Peer { down: Some(d), .. } if !d.helper);
    assert!(!a.facts().iter().any(lost), "{:#?}", a.facts());
}

#[test]
fn notification_received_from_gobgp_keeps_routes() {
    let neighbour =
        "[neighbors.graceful-restart.config]\nenabled = true\nnotification-enabled = true\nrestart-time = 20";
    // It does not reconnect for ten seconds.
    drop(notification_received(Kind::Gobgp, SessionSetup { neighbour, ..GOBGP }, "neighbor 192.0.2.1 reset"));
}

#[test]
fn hard_reset_received_from_frr() {
    hard_reset_received(Kind::Frr, FRR, "clear bgp 192.0.2.1", (6, 4));
}

/// GoBGP 3.10 ends the session for good without a Hard Reset, so its routes stay for the restart time.
#[test]
fn hard_reset_is_not_sent_by_gobgp() {
    let Some((peer_daemon, a)) = establish(Kind::Gobgp, GOBGP, |_| ()) else { return };
    a.wait_for_route(&Kind::Gobgp.v4(), "192.0.2.10");
    peer_daemon.ask("neighbor 192.0.2.1 shutdown");
    ended(&a, &peer_daemon, (6, 2), true);
}
