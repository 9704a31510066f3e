//! Prefix limits (RFC 4486) at either end, and a daemon that restarts gracefully, with those that the other files lack.

use tortie::routing::MaxPrefixes;
use tortie::speaker::SpeakerFact;
use tortie_bgp::State;

use crate::node::{Node, cidr, wait};
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
    let Some(them) = Them::start(kind, Wish::default()) else { return };
    let mut us = us(kind, Wish::default());
    let one = MaxPrefixes { limit: Some(1), ..MaxPrefixes::default() };
    us.peers.get_mut("them").unwrap().max_prefixes = Some(one);
    ends(&Node::start(us), &them);
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

#[test]
fn prefix_limit_of_gobgp_is_heard() {
    let wish = Wish { one_prefix: true, ..Wish::default() };
    let Some(them) = Them::start(Kind::Gobgp, wish) else { return };
    let mut us = us(Kind::Gobgp, wish);
    let more = us.originated[&cidr(V4)].clone();
    us.originated.insert(cidr("10.1.0.64/26"), more);
    std::sync::Arc::make_mut(&mut us.view).own_blocks.insert(cidr("10.1.0.64/26"));
    ends(&Node::start(us), &them);
}

/// It dies, its routes stay, it comes back and they are no longer stale.
#[test]
fn graceful_restart_helper_of_exabgp() {
    let kind = Kind::Exabgp;
    let Some(mut them) = Them::start(kind, Wish::default()) else { return };
    let a = Node::start(us(kind, Wish::default()));
    a.has(&kind.v4(), "192.0.2.13");
    them.has(V4, &["192.0.2.1"]);
    them.kill();
    a.fact(
        "helper",
        |f| matches!(f, SpeakerFact::Peer { from: State::Established, down: Some(d), .. } if d.helper),
    );
    assert!(a.route(&kind.v4()).is_some());
    let Some(again) = Them::start_here(kind, Wish::default()) else { return };
    again.up(&a);
    assert!(a.route(&kind.v4()).is_some());
    wait("nothing stale", || match a.peer("them") {
        Some(p) if p.families.iter().all(|f| f.stale == 0 && f.received > 0) => Ok(()),
        p => Err(format!("{p:#?}\n{}", again.log())),
    });
}
