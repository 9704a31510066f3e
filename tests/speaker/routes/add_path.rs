//! Several paths of a prefix (RFC 7911) with BIRD, FRR, GoBGP, OpenBGPD and ExaBGP, received and sent: two paths come, one
//! goes alone, then the other, and a restart in between changes nothing.
//!
//! The paths are those of two nodes of ours with the same block, who are peers of the one that is to send it on. ExaBGP is
//! no router: it is told what to announce.

use tortie_bgp::{PeerId, RouteMatch, RouteQuery, RouteTable};
use tortie_engine::routing::{AddPath, RoutingIntent};

use crate::rig::node::{Node, cidr, intent, peer, wait};
use crate::rig::{self, Kind, Them, Wish};

const US: &str = "192.0.2.1:1790";
const BLOCK: &str = "10.5.0.0/26";

/// The daemon between us and the two nodes.
fn wish(kind: Kind) -> Wish {
    let wish = Wish { others: &[(2, 64602), (3, 64603)], ..Wish::IPV4 };
    match kind {
        Kind::Bird => Wish { family: "add paths on;", ..wish },
        Kind::Frr => Wish { family: "neighbor 192.0.2.1 addpath-tx-all-paths", ..wish },
        Kind::Gobgp => {
            let family = "[neighbors.afi-safis.add-paths.config]\nreceive = true\nsend-max = 8\n";
            Wish { family, ..wish }
        }
        Kind::Openbgpd => {
            Wish { neighbour: "announce add-path recv yes\nannounce add-path send all\n", ..wish }
        }
        Kind::Exabgp => Wish { neighbour: "add-path send/receive;", others: &[], ..wish },
    }
}

/// Waits until it has routes with these AS paths and none with those.
fn has(them: &Them, paths: &[&str], gone: &[&str]) {
    wait(&format!("{paths:?} and no {gone:?}"), || {
        let said = match them.kind {
            Kind::Gobgp => them.ask(&format!("global rib {BLOCK}")),
            Kind::Exabgp => routes_of_exabgp(&them.updates()),
            _ => them.route(BLOCK),
        };
        let right = paths.iter().all(|p| said.contains(p)) && !gone.iter().any(|p| said.contains(p));
        if right { Ok(()) } else { Err(format!("{said}\n{}", them.log())) }
    });
}

/// A node with the block, at 192.0.2.`last`, as a peer of the router at this address.
fn origin(last: u32, router: &str, router_as: u32) -> Node {
    let mut us = intent(&format!("192.0.2.{last}:1790"), 64600 + last, &[BLOCK]);
    let mut them = peer(router, &format!("192.0.2.{last}"), router_as);
    them.ipv6 = false;
    us.peers.insert("router".into(), them);
    Node::start(us)
}

fn us(kind: Kind) -> RoutingIntent {
    let mut us = rig::us(kind, wish(kind));
    us.peers.get_mut("them").unwrap().add_path = Some(AddPath::new(true, 2));
    us
}

/// Path identifiers and AS paths of what the peer sent of this prefix.
fn received(a: &Node, prefix: &str) -> Vec<(Option<u32>, String)> {
    let prefix = cidr(prefix);
    a.ask(move |view| {
        let id: PeerId = view.peer_id("them").unwrap();
        let query = RouteQuery { table: RouteTable::AdjIn(id), matching: RouteMatch::Exact(prefix) };
        let routes = view.routes(query, None, 10).into_iter().flat_map(|r| r.paths);
        let mut all: Vec<_> = routes.map(|p| (p.path_id, p.attributes.as_path.to_string())).collect();
        all.sort();
        all
    })
}

/// Waits until the peer's routes of a prefix have these AS paths, told apart by identifiers.
fn a_has(a: &Node, them: &Them, prefix: &str, paths: &[String]) {
    wait(&format!("{paths:?}"), || {
        let have = received(a, prefix);
        let mut as_paths: Vec<_> = have.iter().map(|(_, path)| path.clone()).collect();
        as_paths.sort();
        let ids: std::collections::BTreeSet<_> = have.iter().map(|(id, _)| *id).collect();
        if as_paths == paths && ids.len() == paths.len() && !ids.contains(&None) {
            return Ok(());
        }
        Err(format!("{have:?}\n{:?}\n{}", a.peer("them").and_then(|p| p.last_down), them.log()))
    });
}

/// The daemon passes on two paths.
fn receives(kind: Kind) {
    let Some(them) = Them::start(kind, wish(kind)) else { return };
    let mut a = Node::start(us(kind));
    a.up("them");
    let at = format!("{}:1790", kind.at());
    let asn = 65000 + kind.last();
    let (mut b, mut c) = (origin(2, &at, asn), origin(3, &at, asn));
    let path = |last: u32| format!("{asn} {}", 64600 + last);
    a_has(&a, &them, BLOCK, &[path(2), path(3)]);
    let status = a.peer("them").unwrap();
    assert!(!status.session.unwrap().add_path_receive.is_empty());
    a.stop(true, "");
    drop(a);
    let a = Node::start(us(kind));
    a_has(&a, &them, BLOCK, &[path(2), path(3)]);
    c.stop(false, "");
    a_has(&a, &them, BLOCK, &[path(2)]);
    b.stop(false, "");
    a_has(&a, &them, BLOCK, &[]);
}

/// We pass on two paths.
fn sends(kind: Kind) {
    let wish = Wish { others: &[], ..wish(kind) };
    let Some(them) = Them::start(kind, wish) else { return };
    let mut us = us(kind);
    for last in [2, 3] {
        let mut them = peer(&format!("192.0.2.{last}:1790"), "192.0.2.1", 64600 + last);
        them.ipv6 = false;
        us.peers.insert(format!("origin-{last}"), them);
    }
    let a = Node::start(us);
    let (mut b, mut c) = (origin(2, US, 64512), origin(3, US, 64512));
    let both = ["64512 64602", "64512 64603"];
    has(&them, &both, &[]);
    let status = a.peer("them").unwrap();
    assert_eq!(status.families[0].advertised, 3);
    drop(them);
    let Some(them) = Them::start_here(kind, wish) else { return };
    has(&them, &both, &[]);
    c.stop(false, "");
    has(&them, &both[..1], &both[1..]);
    b.stop(false, "");
    has(&them, &[], &both);
}

/// Of three paths, as many go as the configuration says, without a new session.
fn sends_exactly(kind: Kind) {
    let wish = Wish { others: &[], ..wish(kind) };
    let Some(them) = Them::start(kind, wish) else { return };
    let mut us = us(kind);
    for last in [2, 3, 4] {
        let mut them = peer(&format!("192.0.2.{last}:1790"), "192.0.2.1", 64600 + last);
        them.ipv6 = false;
        us.peers.insert(format!("origin-{last}"), them);
    }
    let mut a = Node::start(us);
    let _origins = [2, 3, 4].map(|last| origin(last, US, 64512));
    let all = ["64512 64602", "64512 64603", "64512 64604"];
    has(&them, &all[..2], &all[2..]);
    for paths in [3, 1, 2] {
        a.intent.peers.get_mut("them").unwrap().add_path = Some(AddPath::new(true, paths));
        a.apply();
        let (sent, kept) = all.split_at(paths.into());
        has(&them, sent, kept);
    }
    assert_eq!(a.peer("them").unwrap().flaps, 0);
}

/// ExaBGP keeps no routes: what they are follows from its updates.
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
    let Some(them) = Them::start(kind, wish(kind)) else { return };
    let route = |word: &str, id: u32| {
        format!("{word} route {PREFIX} next-hop 192.0.2.13 path-information 0.0.0.{id} med {id}")
    };
    let a = Node::start(us(kind));
    let ids = |ids: &[u32]| {
        wait(&format!("paths {ids:?}"), || {
            let have = received(&a, PREFIX);
            let right = have.iter().map(|(id, _)| *id).eq(ids.iter().map(|id| Some(*id)));
            if right { Ok(()) } else { Err(format!("{have:?}")) }
        });
    };
    let announce = |them: &Them| [1, 2].map(|id| them.ask(&route("announce", id)));
    announce(&them);
    ids(&[1, 2]);
    drop(them);
    ids(&[]);
    let Some(them) = Them::start_here(kind, wish(kind)) else { return };
    announce(&them);
    ids(&[1, 2]);
    them.ask(&route("withdraw", 1));
    ids(&[2]);
    them.ask(&route("withdraw", 2));
    ids(&[]);
}
