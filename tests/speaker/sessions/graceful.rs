//! Restarts with other daemons: graceful restart in both roles (RFC 4724), with NOTIFICATIONs (RFC 8538), and long-lived
//! (RFC 9494).

use std::time::Duration;

use tortie::speaker::SpeakerFact;
use tortie_bgp::attr::{Attributes, community};
use tortie_bgp::{RestartPhase, RouteMatch, RouteQuery, RouteTable, State};
use tortie_engine::routing::PeerIntent;

use crate::rig::node::{Node, cidr, intent, peer, wait};
use crate::rig::{Kind, Them, V4, Wish, us};

/// The daemon with options of the session and of its IPv4 routes, and a node whose only peer it is.
fn meet(kind: Kind, wish: Wish, edit: impl Fn(&mut PeerIntent)) -> Option<(Them, Node)> {
    let them = Them::start(kind, wish)?;
    let mut us = us(kind, wish);
    edit(us.peers.get_mut("them").unwrap());
    Some((them, Node::start(us)))
}

/// The attributes in use of a prefix.
fn used(a: &Node, prefix: &str) -> Option<Attributes> {
    let query = RouteQuery { table: RouteTable::Loc, matching: RouteMatch::Exact(cidr(prefix)) };
    let found = a.ask(move |view| view.routes(query, None, 1));
    Some((*found.first()?.paths.first()?.attributes).clone())
}

fn phase(a: &Node) -> RestartPhase {
    a.peer("them").unwrap().restart
}

/// The other end has just been killed: its route stays for the restart time.
fn helps(a: &Node, prefix: &str) {
    wait("the helper", || match phase(a) {
        RestartPhase::Waiting(_) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    assert!(a.route(prefix).is_some());
    assert!(!used(a, prefix).unwrap().has_community(community::LLGR_STALE));
}

/// It dies, and its route stays and goes.
fn helper(kind: Kind, wish: Wish) {
    let Some((mut them, a)) = meet(kind, wish, |_| ()) else { return };
    a.has(&kind.v4(), &kind.at());
    them.kill();
    helps(&a, &kind.v4());
    a.has_not(&kind.v4());
}

/// It dies, and its route stays, stays as long-lived stale, and goes.
fn long_lived_helper(kind: Kind, wish: Wish) {
    let long = |p: &mut PeerIntent| p.long_lived_restart_time = Some(Duration::from_secs(60));
    let Some((mut them, a)) = meet(kind, wish, long) else { return };
    a.has(&kind.v4(), &kind.at());
    them.kill();
    helps(&a, &kind.v4());
    wait("long-lived stale", || match used(&a, &kind.v4()) {
        Some(used) if used.has_community(community::LLGR_STALE) => Ok(()),
        other => Err(format!("{other:?} {:?}", phase(&a))),
    });
    assert!(matches!(phase(&a), RestartPhase::LongLived(_)), "{:?}", phase(&a));
    assert!(a.route(&kind.v4()).is_some());
    a.has_not(&kind.v4());
    assert_eq!(phase(&a), RestartPhase::Idle);
}

/// We stop gracefully, and it keeps our route for the time that we said.
fn by_us(kind: Kind, wish: Wish, stale: &str) {
    let Some((them, mut a)) = meet(kind, wish, |p| p.restart_time = Duration::from_secs(2)) else { return };
    them.has(V4, &["192.0.2.1"]);
    a.stop(true, "");
    if kind == Kind::Bird {
        them.says("show protocols all tortie0", stale);
        assert!(them.route(V4).contains("192.0.2.1"));
    } else {
        them.has(V4, &[stale]);
    }
    them.has_not(V4);
}

/// The same, and then it keeps it as long-lived stale.
fn long_lived_by_us(kind: Kind, wish: Wish, stale: &str) {
    let times = |p: &mut PeerIntent| {
        p.restart_time = Duration::from_secs(1);
        p.long_lived_restart_time = Some(Duration::from_secs(2));
    };
    let Some((them, mut a)) = meet(kind, wish, times) else { return };
    them.has(V4, &["192.0.2.1"]);
    a.stop(true, "");
    them.has(V4, &[stale]);
    them.has_not(V4);
}

const BIRD: Wish = Wish { neighbour: "graceful restart on; graceful restart time 2;", ..Wish::IPV4 };
const BIRD_LONG: Wish = Wish {
    neighbour: "graceful restart on; graceful restart time 1; long lived graceful restart on; long lived stale time 2;",
    ..Wish::IPV4
};
const FRR: Wish = Wish {
    neighbour: "bgp graceful-restart\n bgp graceful-restart restart-time 2\n bgp graceful-restart preserve-fw-state",
    ..Wish::IPV4
};
const FRR_LONG: Wish = Wish {
    neighbour: "bgp graceful-restart\n bgp graceful-restart restart-time 1\n bgp graceful-restart preserve-fw-state\n \
                bgp long-lived-graceful-restart stale-time 2",
    ..Wish::IPV4
};
const GOBGP: Wish = Wish {
    neighbour: "[neighbors.graceful-restart.config]\nenabled = true\nnotification-enabled = true\nrestart-time = 2",
    family: "[neighbors.afi-safis.mp-graceful-restart.config]\nenabled = true",
    ..Wish::IPV4
};
const GOBGP_LONG: Wish = Wish {
    neighbour: "[neighbors.graceful-restart.config]\nenabled = true\nrestart-time = 1\nlong-lived-enabled = true",
    family: "[neighbors.afi-safis.mp-graceful-restart.config]\nenabled = true
[neighbors.afi-safis.long-lived-graceful-restart.config]\nenabled = true\nrestart-time = 2",
    ..Wish::IPV4
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

/// It dies and comes back: its route stays all the while, here and at a third node, and is fresh once it has said that it
/// is done.
fn comes_back(kind: Kind, wish: Wish) {
    let Some(mut them) = Them::start(kind, wish) else { return };
    let mut us = us(kind, wish);
    let mut third = peer("192.0.2.2:1790", "192.0.2.1", 64602);
    third.ipv6 = false;
    us.peers.insert("third".into(), third);
    let mut a = Node::start(us);
    let mut b = intent("192.0.2.2:1790", 64602, &[]);
    let mut to_us = peer("192.0.2.1:1790", "192.0.2.2", 64512);
    to_us.ipv6 = false;
    b.peers.insert("us".into(), to_us);
    let b = Node::start(b);
    a.has(&kind.v4(), &kind.at());
    b.has(&kind.v4(), "192.0.2.1");
    them.has(V4, &["192.0.2.1"]);
    // Nobody dials before it has what it is to announce: GoBGP is told that last.
    a.intent.peers.get_mut("them").unwrap().dial_after = None;
    a.apply();
    them.kill();
    a.fact(
        "helper",
        |f| matches!(f, SpeakerFact::Peer { from: State::Established, down: Some(d), .. } if d.helper),
    );
    assert!(a.peer("them").unwrap().families.iter().any(|f| f.stale > 0));
    drop(them);
    let Some(again) = Them::start_here(kind, Wish { restarted: true, ..wish }) else { return };
    a.intent.peers.get_mut("them").unwrap().dial_after = Some(Duration::ZERO);
    a.apply();
    again.up(&a);
    wait("End-of-RIB, and nothing stale", || match a.peer("them") {
        Some(p) if p.families.iter().all(|f| f.stale == 0 && f.received > 0 && f.end_of_rib_received) => {
            Ok(())
        }
        p => Err(format!("{p:#?}\n{}", again.log())),
    });
    assert_eq!(phase(&a), RestartPhase::Idle);
    again.has(V4, &["192.0.2.1"]);
    for (node, hop) in [(&a, kind.at()), (&b, "192.0.2.1".to_owned())] {
        node.has(&kind.v4(), &hop);
        assert_eq!(node.withdrawn(&kind.v4()), 0, "{:#?}", node.facts());
    }
    assert_eq!(a.peer("them").unwrap().flaps, 1);
}

#[test]
fn graceful_restart_of_bird_that_comes_back() {
    let neighbour = "graceful restart on; graceful restart time 30;";
    comes_back(Kind::Bird, Wish { neighbour, ..Wish::IPV4 });
}

#[test]
fn graceful_restart_of_frr_that_comes_back() {
    let neighbour = "bgp graceful-restart\n bgp graceful-restart restart-time 30\n bgp graceful-restart preserve-fw-state";
    comes_back(Kind::Frr, Wish { neighbour, ..Wish::IPV4 });
}

#[test]
fn graceful_restart_of_gobgp_that_comes_back() {
    let neighbour = "[neighbors.graceful-restart.config]\nenabled = true\nrestart-time = 30";
    comes_back(Kind::Gobgp, Wish { neighbour, passive: true, ..GOBGP });
}

#[test]
fn graceful_restart_of_exabgp_that_comes_back() {
    comes_back(Kind::Exabgp, Wish { neighbour: "graceful-restart 30;", ..Wish::IPV4 });
}

#[test]
fn graceful_restart_by_us_with_bird() {
    let wish = Wish { neighbour: "graceful restart aware;", ..Wish::IPV4 };
    by_us(Kind::Bird, wish, "Neighbor graceful restart active");
}

#[test]
fn graceful_restart_by_us_with_frr() {
    by_us(Kind::Frr, Wish::IPV4, "stale");
}

#[test]
fn graceful_restart_by_us_with_gobgp() {
    by_us(Kind::Gobgp, GOBGP, "\"stale\":true");
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
    long_lived_by_us(Kind::Bird, BIRD_LONG, "(65535,6)");
}

#[test]
fn long_lived_by_us_with_frr() {
    let wish = Wish {
        neighbour: "bgp graceful-restart\n bgp long-lived-graceful-restart stale-time 2",
        ..Wish::IPV4
    };
    long_lived_by_us(Kind::Frr, wish, "llgr-stale");
}

#[test]
fn graceful_restart_and_long_lived_by_us_with_gobgp() {
    // LLGR_STALE, as a number.
    long_lived_by_us(Kind::Gobgp, GOBGP_LONG, "4294901766");
}

/// RFC 8538, from us: an ordinary NOTIFICATION keeps our route there, and the session does not come back, since where we
/// dial now nobody listens.
fn notification_sent(kind: Kind, wish: Wish, stale: &str) {
    let Some((them, mut a)) = meet(kind, Wish { passive: true, ..wish }, |_| ()) else { return };
    them.has(V4, &["192.0.2.1"]);
    let peer = a.intent.peers.get_mut("them").unwrap();
    peer.hold_time = Duration::from_secs(60);
    peer.remote.set_port(1791);
    a.apply();
    them.has(V4, &["192.0.2.1", stale]);
    assert_ne!(a.state("them"), Some(State::Established));
}

/// A Hard Reset takes it away at once.
fn hard_reset_sent(kind: Kind, wish: Wish) {
    let Some((them, mut a)) = meet(kind, wish, |_| ()) else { return };
    them.has(V4, &["192.0.2.1"]);
    a.stop(false, "bye");
    them.has_not(V4);
    match kind {
        Kind::Frr => them.says("show bgp neighbors 192.0.2.1", "Hard Reset"),
        _ => wait("it to have read it", || match them.log() {
            log if log.contains("Subcode=9") || log.contains("\"Subcode\":9") => Ok(()),
            log => Err(log),
        }),
    }
}

/// The end of its session by this NOTIFICATION, as it was sent, and whether its routes stay.
fn ended(a: &Node, them: &Them, code: (u8, u8), helper: bool) {
    let is = |f: &SpeakerFact| {
        matches!(f, SpeakerFact::Peer { from: State::Established, down: Some(d), .. }
            if d.notification == Some(code) && d.helper == helper)
    };
    wait(&format!("the end with {code:?}, helper {helper}"), || match a.facts() {
        facts if facts.iter().any(is) => Ok(()),
        facts => Err(format!("{facts:#?}\n{}", them.log())),
    });
}

/// From it: what ends the session in the ordinary way keeps its routes here.
fn notification_received(kind: Kind, wish: Wish, reset: &str) -> Option<(Them, Node)> {
    let (them, a) = meet(kind, wish, |_| ())?;
    a.has(&kind.v4(), &kind.at());
    them.ask(reset);
    ended(&a, &them, (6, 4), true);
    assert!(a.route(&kind.v4()).is_some());
    Some((them, a))
}

/// A Hard Reset takes them away.
fn hard_reset_received(kind: Kind, wish: Wish, reset: &str, enclosed: (u8, u8)) {
    let Some((them, a)) = meet(kind, wish, |_| ()) else { return };
    a.has(&kind.v4(), &kind.at());
    them.ask(reset);
    ended(&a, &them, enclosed, false);
}

#[test]
fn notification_sent_to_frr_keeps_routes() {
    notification_sent(Kind::Frr, Wish::IPV4, "stale");
}

#[test]
fn notification_sent_to_gobgp_keeps_routes() {
    notification_sent(Kind::Gobgp, GOBGP, "\"stale\":true");
}

#[test]
fn hard_reset_sent_to_frr() {
    hard_reset_sent(Kind::Frr, Wish::IPV4);
}

#[test]
fn hard_reset_sent_to_gobgp() {
    hard_reset_sent(Kind::Gobgp, GOBGP);
}

#[test]
fn notification_received_from_frr_keeps_routes() {
    let wish = Wish {
        neighbour: "bgp graceful-restart\n bgp graceful-restart preserve-fw-state\n no bgp hard-administrative-reset",
        ..Wish::IPV4
    };
    let Some((them, a)) = notification_received(Kind::Frr, wish, "clear bgp 192.0.2.1") else { return };
    // Until they come again.
    them.up(&a);
    wait("nothing stale", || match a.peer("them") {
        Some(p) if p.families.iter().all(|f| f.stale == 0 && f.received > 0) => Ok(()),
        p => Err(format!("{p:#?}\n{}", them.log())),
    });
    let lost = |f: &SpeakerFact| matches!(f, SpeakerFact::Peer { down: Some(d), .. } if !d.helper);
    assert!(!a.facts().iter().any(lost), "{:#?}", a.facts());
}

#[test]
fn notification_received_from_gobgp_keeps_routes() {
    let neighbour =
        "[neighbors.graceful-restart.config]\nenabled = true\nnotification-enabled = true\nrestart-time = 20";
    // It does not come back for ten seconds.
    drop(notification_received(Kind::Gobgp, Wish { neighbour, ..GOBGP }, "neighbor 192.0.2.1 reset"));
}

#[test]
fn hard_reset_received_from_frr() {
    hard_reset_received(Kind::Frr, FRR, "clear bgp 192.0.2.1", (6, 4));
}

/// GoBGP 3.10 ends the session for good without saying Hard Reset, so that its routes stay for the restart time.
#[test]
fn hard_reset_is_not_sent_by_gobgp() {
    let Some((them, a)) = meet(Kind::Gobgp, GOBGP, |_| ()) else { return };
    a.has(&Kind::Gobgp.v4(), "192.0.2.10");
    them.ask("neighbor 192.0.2.1 shutdown");
    ended(&a, &them, (6, 2), true);
}
