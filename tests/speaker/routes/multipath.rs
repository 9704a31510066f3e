//! ECMP: paths of all daemons in one route of ours, and two paths of ours in one route of each daemon.

use tortie_bgp::State;
use tortie_engine::routing::Multipath;

use crate::rig::node::{Node, addr, intent, peer, wait};
use crate::rig::{Kind, PeerDaemon, SessionSetup, our_intent};

/// Announced by all daemons.
const SHARED: &str = "10.70.0.0/24";

fn announcing(kind: Kind) -> SessionSetup {
    match kind {
        Kind::Bird => SessionSetup {
            more: "protocol static shared { ipv4; route 10.70.0.0/24 blackhole; }",
            ..SessionSetup::IPV4
        },
        Kind::Frr => SessionSetup { family: "network 10.70.0.0/24", ..SessionSetup::IPV4 },
        Kind::Gobgp => SessionSetup::IPV4,
        Kind::Openbgpd => SessionSetup { more: "network 10.70.0.0/24\n", ..SessionSetup::IPV4 },
        Kind::Exabgp => {
            SessionSetup { family: "route 10.70.0.0/24 next-hop 192.0.2.13;", ..SessionSetup::IPV4 }
        }
    }
}

/// The daemons are in different ASes: they share load only in relaxed mode, up to the maximum, without a
/// session reset.
#[test]
fn multipath_over_all_daemons() {
    let kinds = [Kind::Bird, Kind::Gobgp, Kind::Frr, Kind::Openbgpd, Kind::Exabgp];
    if !PeerDaemon::enter_for(&kinds) {
        return;
    }
    let mut us = our_intent(Kind::Bird, SessionSetup::IPV4);
    us.peers = Default::default();
    let mut all = Vec::new();
    for kind in kinds {
        let Some(peer_daemon) = PeerDaemon::start_here(kind, announcing(kind)) else { return };
        if kind == Kind::Gobgp {
            peer_daemon.add("10.70.0.0/24 nexthop 192.0.2.10 origin igp");
        }
        let ours = crate::rig::our_intent(kind, SessionSetup::IPV4).peers.remove("daemon").unwrap();
        us.peers.insert(kind.at(), ours);
        all.push(peer_daemon);
    }
    let mut a = Node::start(us);
    let hops =
        |lasts: &[u32]| -> Vec<_> { lasts.iter().map(|last| addr(&format!("192.0.2.{last}"))).collect() };
    let shares = |a: &Node, lasts: &[u32]| {
        wait(&format!("{lasts:?}"), || match a.route(SHARED) {
            Some(now) if now == hops(lasts) => Ok(()),
            now => Err(format!("{now:?}")),
        });
    };
    shares(&a, &[9, 10, 11, 12, 13]);
    for (max, relax, lasts) in
        [(Some(2), true, &[9, 10][..]), (None, false, &[9]), (Some(4), true, &[9, 10, 11, 12])]
    {
        a.intent.multipath = Multipath { max, relax, ..Multipath::default() };
        a.apply();
        shares(&a, lasts);
    }
    for kind in kinds {
        let p = a.peer(&kind.at()).unwrap();
        assert_eq!((p.state, p.flaps), (State::Established, 0), "{kind:?}");
    }
    // The first one is removed.
    all.remove(0);
    shares(&a, &[10, 11, 12, 13]);
}

/// Two of our nodes in two ASes announce one block to the daemon.
fn theirs(kind: Kind, setup: SessionSetup, shares: impl Fn(&PeerDaemon) -> Result<(), String>) {
    let setup = SessionSetup { others: &[(2, 64602)], ..setup };
    let Some(peer_daemon) = PeerDaemon::start(kind, setup) else { return };
    let nodes = [(1, 64512), (2, 64602)].map(|(last, asn)| {
        let mut us = intent(&format!("192.0.2.{last}:1790"), asn, &["10.1.0.0/26"]);
        let mut peer_daemon =
            peer(&format!("{}:1790", kind.at()), &format!("192.0.2.{last}"), 65000 + kind.last());
        peer_daemon.ipv6 = false;
        us.peers.insert("daemon".into(), peer_daemon);
        Node::start(us)
    });
    for node in &nodes {
        peer_daemon.wait_established(node);
    }
    wait("both next hops", || shares(&peer_daemon));
}

#[test]
fn multipath_of_bird() {
    // Routes that it would install in a kernel table.
    let more = "protocol static lan { ipv4; route 192.0.2.1/32 via 198.51.100.1%lo onlink;
            route 192.0.2.2/32 via 198.51.100.2%lo onlink; }
        protocol kernel k4 { kernel table 77; merge paths on; ipv4 { export all; import none; }; }";
    theirs(Kind::Bird, SessionSetup { more, ..SessionSetup::IPV4 }, |peer_daemon| {
        let said = peer_daemon.ask("show route export k4 for 10.1.0.0/26 all");
        let both = said.contains("via 198.51.100.1 ") && said.contains("via 198.51.100.2 ");
        if both { Ok(()) } else { Err(format!("{said}\n{}", peer_daemon.log())) }
    });
}

#[test]
fn multipath_of_frr() {
    let neighbour = "bgp bestpath as-path multipath-relax";
    theirs(Kind::Frr, SessionSetup { neighbour, ..SessionSetup::IPV4 }, |peer_daemon| {
        let said = peer_daemon.ask("show bgp ipv4 unicast 10.1.0.0/26");
        if said.matches("multipath").count() == 2 {
            Ok(())
        } else {
            Err(format!("{said}\n{}", peer_daemon.log()))
        }
    });
}

#[test]
fn multipath_of_gobgp() {
    // Its table marks one path as best; a watcher of best paths receives all paths in use.
    for both in [true, false] {
        let more = if both { "[global.use-multiple-paths.config]\nenabled = true\n" } else { "" };
        theirs(Kind::Gobgp, SessionSetup { more, ..SessionSetup::IPV4 }, |peer_daemon| {
            if peer_daemon.route("10.1.0.0/26").matches("\"nlri\"").count() != 2 {
                return Err(format!("not both paths\n{}", peer_daemon.log()));
            }
            let said = peer_daemon.output_of_a_second("monitor global rib --current");
            let used = |hop| said.contains(&format!("10.1.0.0/26 via {hop} "));
            let all = [used("192.0.2.1"), used("192.0.2.2")].into_iter().filter(|used| *used).count();
            if all == if both { 2 } else { 1 } {
                Ok(())
            } else {
                Err(format!("{said}\n{}", peer_daemon.log()))
            }
        });
    }
}
