//! Sessions with FRR, GoBGP, OpenBGPD and ExaBGP that carry IPv4 routes alone: up, and a route each way. Those with BIRD
//! are in `bird_tests`.

use crate::rig::node::{Node, wait};
use crate::rig::{Kind, Them, V4, Wish, us};

fn meets(kind: Kind) {
    let wish = Wish::IPV4;
    let Some(them) = Them::start(kind, wish) else { return };
    let a = Node::start(us(kind, wish));
    wait(&format!("{} via {}", kind.v4(), kind.at()), || {
        a.route(&kind.v4()).map_or_else(|| Err(format!("{:#?}\n{}", a.facts(), them.log())), |_| Ok(()))
    });
    a.has(&kind.v4(), &kind.at());
    them.has(V4, &[V4]);
}

#[test]
fn frr() {
    meets(Kind::Frr);
}

#[test]
fn gobgp() {
    meets(Kind::Gobgp);
}

#[test]
fn openbgpd() {
    meets(Kind::Openbgpd);
}

#[test]
fn exabgp() {
    meets(Kind::Exabgp);
}
