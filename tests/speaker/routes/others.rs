//! Sessions with FRR, GoBGP, OpenBGPD and ExaBGP that carry IPv4 routes only: session up, and one route in
//! each direction. Those with BIRD are in `bird_tests`.

use crate::rig::node::{Node, wait};
use crate::rig::{Kind, PeerDaemon, SessionSetup, V4, our_intent};

fn exchanges_routes(kind: Kind) {
    let setup = SessionSetup::IPV4;
    let Some(peer_daemon) = PeerDaemon::start(kind, setup) else { return };
    let a = Node::start(our_intent(kind, setup));
    wait(&format!("{} via {}", kind.v4(), kind.at()), || {
        a.route(&kind.v4())
            .map_or_else(|| Err(format!("{:#?}\n{}", a.facts(), peer_daemon.log())), |_| Ok(()))
    });
    a.wait_for_route(&kind.v4(), &kind.at());
    peer_daemon.wait_for_route(V4, &[V4]);
}

#[test]
fn frr() {
    exchanges_routes(Kind::Frr);
}

#[test]
fn gobgp() {
    exchanges_routes(Kind::Gobgp);
}

#[test]
fn openbgpd() {
    exchanges_routes(Kind::Openbgpd);
}

#[test]
fn exabgp() {
    exchanges_routes(Kind::Exabgp);
}
