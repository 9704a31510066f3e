//! Add-path (RFC 7911) with BIRD, FRR, GoBGP, OpenBGPD and ExaBGP, received and sent: two paths are
//! announced, one is withdrawn, then the other, and a restart in between has no effect.
//!
//! The paths belong to two of our nodes with the same block, which are peers of the sender. ExaBGP is not a
//! router: its announcements are configured.

use tortie_bgp::{PeerId, RouteMatch, RouteQuery, RouteTable};
use tortie_engine::routing::{AddPath, RoutingIntent};

use crate::rig::node::{Node, cidr, intent, peer, wait};
use crate::rig::{self, Kind, PeerDaemon, SessionSetup};

const US: &str = "192.0.2.1:1790";
const BLOCK: &str = "10.5.0.0/26";

/// Setup of the daemon between us and the two nodes.
fn setup(kind: Kind) -> SessionSetup {
    let setup = SessionSetup { others: &[(2, 64602), (3, 64603)], ..SessionSetup::IPV4 };
    match kind {
        Kind::Bird => SessionSetup { family: "add paths on;", ..setup },
        Kind::Frr => SessionSetup { family: "neighbor 192.0.2.1 addpath-tx-all-paths", ..setup },
        Kind::Gobgp => {
            let family = "[neighbors.afi-safis.add-paths.config]\nreceive = true\nsend-max = 8\n";
            SessionSetup { family, ..setup }
        }
        Kind::Openbgpd => {
            SessionSetup { neighbour: "announce add-path recv yes\nannounce add-path send all\n", ..setup }
        }
        Kind::Exabgp => SessionSetup { neighbour: "add-path send/receive;", others: &[], ..setup },
    }
}

/// Waits until the daemon has routes with these AS_PATHs and none of the others.
fn wait_for_route(peer_daemon: &PeerDaemon, paths: &[&str], gone: &[&str]) {
    wait(&format!("{paths:?} and no {gone:?}"), || {
        let said = match peer_daemon.kind {
            Kind::Gobgp => peer_daemon.ask(&format!("global rib {BLOCK}")),
            Kind::Exabgp => routes_of_exabgp(&peer_daemon.updates()),
            _ => peer_daemon.route(BLOCK),
        };
        let right = paths.iter().all(|p| said.contains(p)) && !gone.iter().any(|p| said.contains(p));
        if right { Ok(()) } else { Err(format!("{said}\n{}", peer_daemon.log())) }
    });
}

/// Starts a node with the block, at 192.0.2.`last`, as a peer of the router at this address.
fn origin(last: u32, router: &str, router_as: u32) -> Node {
    let mut us = intent(&format!("192.0.2.{last}:1790"), 64600 + last, &[BLOCK]);
    let mut peer_daemon = peer(router, &format!("192.0.2.{last}"), router_as);
    peer_daemon.ipv6 = false;
    us.peers.insert("router".into(), peer_daemon);
    Node::start(us)
}

fn our_intent(kind: Kind) -> RoutingIntent {
    let mut us = rig::our_intent(kind, setup(kind));
    us.peers.get_mut("daemon").unwrap().add_path = Some(AddPath::new(true, 2));
    us
}

/// Returns path identifiers and AS_PATHs of the peer's routes for this prefix.
fn received(a: &Node, prefix: &str) -> Vec<(Option<u32>, String)> {
    let prefix = cidr(prefix);
    a.ask(move |view| {
        let id: PeerId = view.peer_id("daemon").unwrap();
        let query = RouteQuery { table: RouteTable::AdjIn(id), matching: RouteMatch::Exact(prefix) };
        let routes = view.routes(query, None, 10).into_iter().flat_map(|r| r.paths);
        let mut all: Vec<_> = routes.map(|p| (p.path_id, p.attributes.as_path.to_string())).collect();
        all.sort();
        all
    })
}

/// Waits until the peer's routes for a prefix have these AS_PATHs, with distinct identifiers.
fn a_has(a: &Node, peer_daemon: &PeerDaemon, prefix: &str, paths: &[String]) {
    wait(&format!("{paths:?}"), || {
        let have = received(a, prefix);
        let mut as_paths: Vec<_> = have.iter().map(|(_, path)| path.clone()).collect();
        as_paths.sort();
        let ids: std::collections::BTreeSet<_> = have.iter().map(|(id, _)| *id).collect();
        if as_paths == paths && ids.len() == paths.len() && !ids.contains(&None) {
            return Ok(());
        }
        Err(format!("{have:?}\n{:?}\n{}", a.peer("daemon").and_then(|p| p.last_down), peer_daemon.log()))
    });
}

/// The daemon sends two paths.
fn receives(kind: Kind) {
    let Some(peer_daemon) = PeerDaemon::start(kind, setup(kind)) else { return };
    let mut a = Node::start(our_intent(kind));
    a.wait_established("daemon");
    let at = format!("{}:1790", kind.at());
    let asn = 65000 + kind.last();
    let (mut b, mut c) = (origin(2, &at, asn), origin(3, &at, asn));
    let path = |last: u32| format!("{asn} {}", 64600 + last);
    a_has(&a, &peer_daemon, BLOCK, &[path(2), path(3)]);
    let status = a.peer("daemon").unwrap();
    assert!(!status.session.unwrap().add_path_receive.is_empty());
    a.stop(true, "");
    drop(a);
    let a = Node::start(our_intent(kind));
    a_has(&a, &peer_daemon, BLOCK, &[path(2), path(3)]);
    c.stop(false, "");
    a_has(&a, &peer_daemon, BLOCK, &[path(2)]);
    b.stop(false, "");
    a_has(&a, &peer_daemon, BLOCK, &[]);
}

/// We send two paths.
fn sends(kind: Kind) {
    let setup = SessionSetup { others: &[], ..setup(kind) };
    let Some(peer_daemon) = PeerDaemon::start(kind, setup) else { return };
    let mut us = our_intent(kind);
    for last in [2, 3] {
        let mut peer_daemon = peer(&format!("192.0.2.{last}:1790"), "192.0.2.1", 64600 + last);
        peer_daemon.ipv6 = false;
        us.peers.insert(format!("origin-{last}"), peer_daemon);
    }
    let a = Node::start(us);
    let (mut b, mut c) = (origin(2, US, 64512), origin(3, US, 64512));
    let both = ["64512 64602", "64512 64603"];
    wait_for_route(&peer_daemon, &both, &[]);
    let status = a.peer("daemon").unwrap();
    assert_eq!(status.families[0].advertised, 3);
    drop(peer_daemon);
    let Some(peer_daemon) = PeerDaemon::start_here(kind, setup) else { return };
    wait_for_route(&peer_daemon, &both, &[]);
    c.stop(false, "");
    wait_for_route(&peer_daemon, &both[..1], &both[1..]);
    b.stop(false, "");
    wait_for_route(&peer_daemon, &[], &both);
}

/// Of three paths, the configured number is sent, without a session reset.
fn sends_exactly(kind: Kind) {
    let setup = SessionSetup { others: &[], ..setup(kind) };
    let Some(peer_daemon) = PeerDaemon::start(kind, setup) else { return };
    let mut us = our_intent(kind);
    for last in [2, 3, 4] {
        let mut peer_daemon = peer(&format!("192.0.2.{last}:1790"), "192.0.2.1", 64600 + last);
        peer_daemon.ipv6 = false;
        us.peers.insert(format!("origin-{last}"), peer_daemon);
    }
    let mut a = Node::start(us);
    let _origins = [2, 3, 4].map(|last| origin(last, US, 64512));
    let all = ["64512 64602", "64512 64603", "64512 64604"];
    wait_for_route(&peer_daemon, &all[..2], &all[2..]);
    for paths in [3, 1, 2] {
        a.intent.peers.get_mut("daemon").unwrap().add_path = Some(AddPath::new(true, paths));
        a.apply();
        let (sent, kept) = all.split_at(paths.into());
        wait_for_route(&peer_daemon, sent, kept);
    }
    assert_eq!(a.peer("daemon").unwrap().flaps, 0);
}

/// Derives ExaBGP's routes from its updates, because it stores none.
fn routes_of_exabgp(updates: &str) -> String {
    let mut routes = std::collections::BTreeMap::new();
    for line in updates.lines() {
        let Ok(json) = serde_json::from_str::<serde_json::Value>(line) else { continue };
        let update = &json["neighbor"]["message"]["update"];
        let of = |list: &serde_json::Value| -> Vec<(String, String)> {
            let entries = list.as_array().into_iter().flatten();
            entries.map(|e| (e["nlri"].to_string(), e["path-information"].to_string())).collect()
        };
        for key in of(&update["withdraw"]["ipv4 unicast"]) {
            routes.remove(&key);
        }
        for (_, list) in update["announce"]["ipv4 unicast"].as_object().into_iter().flatten() {
            let path = update["attribute"]["as-path"].to_string().replace([' ', ','], " ");
            for key in of(list) {
                routes.insert(key, path.split_whitespace().collect::<Vec<_>>().join(" "));
            }
        }
    }
    format!("{routes:?}")
}

#[test]
fn add_path_received_from_bird() {
    receives(Kind::Bird);
}

#[test]
fn add_path_sent_to_bird() {
    sends(Kind::Bird);
    sends_exactly(Kind::Bird);
}

#[test]
fn add_path_received_from_frr() {
    receives(Kind::Frr);
}

#[test]
fn add_path_sent_to_frr() {
    sends(Kind::Frr);
}

#[test]
fn add_path_received_from_gobgp() {
    receives(Kind::Gobgp);
}

#[test]
fn add_path_sent_to_gobgp() {
    sends(Kind::Gobgp);
}

#[test]
fn add_path_received_from_openbgpd() {
    receives(Kind::Openbgpd);
}

#[test]
fn add_path_sent_to_openbgpd() {
    sends(Kind::Openbgpd);
}

#[test]
fn add_path_sent_to_exabgp() {
    sends(Kind::Exabgp);
}

#[test]
fn add_path_received_from_exabgp() {
    const PREFIX: &str = "10.13.2.0/24";
    let kind = Kind::Exabgp;
    let Some(peer_daemon) = PeerDaemon::start(kind, setup(kind)) else { return };
    let route = |word: &str, id: u32| {
        format!("{word} route {PREFIX} next-hop 192.0.2.13 path-information 0.0.0.{id} med {id}")
    };
    let a = Node::start(our_intent(kind));
    let ids = |ids: &[u32]| {
        wait(&format!("paths {ids:?}"), || {
            let have = received(&a, PREFIX);
            let right = have.iter().map(|(id, _)| *id).eq(ids.iter().map(|id| Some(*id)));
            if right { Ok(()) } else { Err(format!("{have:?}")) }
        });
    };
    let announce = |peer_daemon: &PeerDaemon| [1, 2].map(|id| peer_daemon.ask(&route("announce", id)));
    announce(&peer_daemon);
    ids(&[1, 2]);
    drop(peer_daemon);
    ids(&[]);
    let Some(peer_daemon) = PeerDaemon::start_here(kind, setup(kind)) else { return };
    announce(&peer_daemon);
    ids(&[1, 2]);
    peer_daemon.ask(&route("withdraw", 1));
    ids(&[2]);
    peer_daemon.ask(&route("withdraw", 2));
    ids(&[]);
}
