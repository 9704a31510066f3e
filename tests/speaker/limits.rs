//! Prefix limits (RFC 4486) at either end.

use tortie::routing::MaxPrefixes;

use crate::node::{Node, intent, wait};
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
