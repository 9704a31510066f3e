//! Prefix limits (RFC 4486) at either end.

use tortie::speaker::SpeakerFact;
use tortie_engine::routing::MaxPrefixes;

use crate::rig::node::{Node, intent, wait};
use crate::rig::{Kind, Them, V4, Wish, us};

/// The session ended with Cease 1, sent or received.
fn ends(a: &Node, them: &Them) {
    wait("Cease 1", || match a.peer("them").and_then(|p| p.last_down) {
        Some((down, _)) if down.notification == Some((6, 1)) => Ok(()),
        other => Err(format!("{other:?}\n{}", them.log())),
    });
}

/// It sends more than we take.
fn towards(kind: Kind) {
    let Some(them) = Them::start(kind, Wish::IPV4) else { return };
    let mut us = us(kind, Wish::IPV4);
    let one = MaxPrefixes { limit: Some(1), ..MaxPrefixes::default() };
    us.peers.get_mut("them").unwrap().max_prefixes = Some(one);
    ends(&Node::start(us), &them);
    match kind {
        Kind::Bird => wait("BIRD to have read why", || {
            let log = them.log();
            if log.contains("Maximum number of prefixes reached") { Ok(()) } else { Err(log) }
        }),
        Kind::Frr => them.says("show bgp neighbors 192.0.2.1", "Cease/"),
        _ => {}
    }
}

/// We send more than it takes, hear why it ends the session, and do not dial for a while.
fn heard(kind: Kind) {
    let wish = Wish { one_prefix: true, ..Wish::IPV4 };
    let Some(them) = Them::start(kind, wish) else { return };
    let mut us = us(kind, wish);
    let more = intent("192.0.2.1:1790", 64512, &[V4, "10.1.0.64/26", "10.1.0.128/26"]);
    (us.originated, us.view) = (more.originated, more.view);
    let a = Node::start(us);
    ends(&a, &them);
    wait("the wait", || match a.peer("them") {
        Some(p) if p.next_attempt.is_some_and(|t| t.as_secs() > 30) => Ok(()),
        // It may dial itself, be let in, and end it again.
        p => Err(format!("{p:#?}\n{}", them.log())),
    });
}

/// Two routes of ours, where one is let out: the session ends before it learns of them.
fn ours_out(kind: Kind) {
    let Some(them) = Them::start(kind, Wish::IPV4) else { return };
    let mut us = us(kind, Wish::IPV4);
    let more = intent("192.0.2.1:1790", 64512, &[V4, "10.1.0.64/26"]);
    (us.originated, us.view) = (more.originated, more.view);
    us.peers.get_mut("them").unwrap().max_prefixes =
        Some(MaxPrefixes { out: Some(1), ..MaxPrefixes::default() });
    let a = Node::start(us);
    ends(&a, &them);
    let p = a.peer("them").unwrap();
    assert_eq!((p.sent.notification, p.received.notification, p.families[0].advertised), (1, 0, 0), "{p:#?}");
    if kind != Kind::Exabgp {
        them.has_not(V4);
    }
}

/// It has two routes, and lets out one: it ends the session with this subcode of Cease.
fn theirs_out(kind: Kind, wish: Wish, subcode: u8) {
    let Some(them) = Them::start(kind, wish) else { return };
    let a = Node::start(us(kind, wish));
    // It does not let us in again, which is what is kept of the peer.
    wait("the end", || {
        let mut downs = a.facts().into_iter().filter_map(|fact| match fact {
            SpeakerFact::Peer { down, .. } => down?.notification,
            _ => None,
        });
        if downs.any(|code| code == (6, subcode)) {
            Ok(())
        } else {
            Err(format!("{:#?}\n{}", a.facts(), them.log()))
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
fn prefix_limit_out_of_bird_is_heard() {
    theirs_out(Kind::Bird, Wish { family: "export limit 1 action disable;", ..Wish::IPV4 }, 2);
}

/// It sends so many and keeps the others back, without a word.
#[test]
fn prefix_limit_out_of_frr_keeps_the_others_back() {
    let wish = Wish { family: "neighbor 192.0.2.1 maximum-prefix-out 1", ..Wish::IPV4 };
    let Some(them) = Them::start(Kind::Frr, wish) else { return };
    let a = Node::start(us(Kind::Frr, wish));
    wait("one route and End-of-RIB", || match a.peer("them") {
        Some(p) if p.families.iter().any(|f| f.end_of_rib_received && f.received == 1) => Ok(()),
        p => Err(format!("{p:#?}\n{}", them.log())),
    });
}

/// With a subcode of its own, which is that of RFC 9384 by now.
#[test]
fn prefix_limit_out_of_openbgpd_is_heard() {
    theirs_out(Kind::Openbgpd, Wish { neighbour: "max-prefix 1 out\n", ..Wish::IPV4 }, 10);
}

#[test]
fn prefix_limit_of_bird_is_heard() {
    heard(Kind::Bird);
}

#[test]
fn prefix_limit_of_frr_is_heard() {
    heard(Kind::Frr);
}

#[test]
fn prefix_limit_of_gobgp_is_heard() {
    heard(Kind::Gobgp);
}

#[test]
fn prefix_limit_of_openbgpd_is_heard() {
    heard(Kind::Openbgpd);
}

#[test]
fn prefix_limit_towards_bird_ends_the_session() {
    towards(Kind::Bird);
}

#[test]
fn prefix_limit_towards_frr_ends_the_session() {
    towards(Kind::Frr);
}

#[test]
fn prefix_limit_towards_gobgp_ends_the_session() {
    towards(Kind::Gobgp);
}

#[test]
fn prefix_limit_towards_openbgpd_ends_the_session() {
    towards(Kind::Openbgpd);
}

#[test]
fn prefix_limit_towards_exabgp_ends_the_session() {
    towards(Kind::Exabgp);
}
