//! Communities of three types (RFC 1997, 4360, 8092) that each daemon sends, receives and passes on, and
//! well-known communities obeyed at either end.
//!
//! ```text
//!  c (iBGP) --- a --- daemon --- e
//!               |
//!  b (eBGP) ----+
//! ```

use std::sync::Arc;

use serde_json::{Value, json};
use tortie_bgp::attr::Attributes;
use tortie_config::resource::Filter;
use tortie_engine::routing::{Filters, OriginKind, Originated, RoutingIntent};

use crate::rig::node::{Node, addr, cidr, intent, peer, wait};
use crate::rig::{Kind, PeerDaemon, SessionSetup, V4, our_intent};

/// Routes of the daemon: with a community of each type, NO_EXPORT, NO_ADVERTISE and NO_EXPORT_SUBCONFED.
const THEIRS: [&str; 4] = ["10.50.0.0/24", "10.50.1.0/24", "10.50.2.0/24", "10.50.3.0/24"];
/// Routes of `a` with NO_EXPORT, NO_ADVERTISE and NO_EXPORT_SUBCONFED.
const OURS: [&str; 3] = ["10.60.1.0/26", "10.60.2.0/26", "10.60.3.0/26"];
/// Route of `b` with a community of each type.
const CARRIED: &str = "10.2.0.0/26";
/// Route that `a` announces last.
const LAST: &str = "10.61.0.0/26";

fn setup(kind: Kind) -> SessionSetup {
    let setup = SessionSetup { others: &[(3, 64603)], ..SessionSetup::IPV4 };
    match kind {
        Kind::Bird => SessionSetup {
            more: "protocol static more { ipv4; route 10.50.0.0/24 blackhole; route 10.50.1.0/24 blackhole;
                    route 10.50.2.0/24 blackhole; route 10.50.3.0/24 blackhole; }
                filter kinds {
                    if net = 10.50.0.0/24 then { bgp_community.add((65000,1)); bgp_ext_community.add((rt,65000,7));
                        bgp_large_community.add((65000,1,2)); }
                    if net = 10.50.1.0/24 then bgp_community.add((65535,65281));
                    if net = 10.50.2.0/24 then bgp_community.add((65535,65282));
                    if net = 10.50.3.0/24 then bgp_community.add((65535,65283));
                    accept; }",
            family: "export filter kinds;",
            ..setup
        },
        Kind::Frr => SessionSetup {
            family: "network 10.50.0.0/24\nnetwork 10.50.1.0/24\nnetwork 10.50.2.0/24\nnetwork 10.50.3.0/24
                neighbor 192.0.2.1 route-map TAG out",
            more: "ip prefix-list P0 permit 10.50.0.0/24\nip prefix-list P1 permit 10.50.1.0/24
                ip prefix-list P2 permit 10.50.2.0/24\nip prefix-list P3 permit 10.50.3.0/24
                route-map TAG permit 10\nmatch ip address prefix-list P0\nset community 65000:1
                set extcommunity rt 65000:7\nset large-community 65000:1:2
                route-map TAG permit 20\nmatch ip address prefix-list P1\nset community no-export
                route-map TAG permit 30\nmatch ip address prefix-list P2\nset community no-advertise
                route-map TAG permit 40\nmatch ip address prefix-list P3\nset community local-AS
                route-map TAG permit 50\n",
            ..setup
        },
        Kind::Gobgp => setup,
        Kind::Openbgpd => SessionSetup {
            more: "network 10.50.0.0/24 set { community 65000:1 ext-community rt 65000:7 large-community 65000:1:2 }
                network 10.50.1.0/24\nnetwork 10.50.2.0/24\nnetwork 10.50.3.0/24
                match to 192.0.2.1 prefix 10.50.1.0/24 set community NO_EXPORT
                match to 192.0.2.1 prefix 10.50.2.0/24 set community NO_ADVERTISE
                match to 192.0.2.1 prefix 10.50.3.0/24 set community NO_EXPORT_SUBCONFED",
            ..setup
        },
        Kind::Exabgp => SessionSetup {
            family: "route 10.50.0.0/24 next-hop 192.0.2.13 community [ 65000:1 ] extended-community [ target:65000:7 ] \
                    large-community [ 65000:1:2 ];
                route 10.50.1.0/24 next-hop 192.0.2.13 community [ 65535:65281 ];
                route 10.50.2.0/24 next-hop 192.0.2.13 community [ 65535:65282 ];
                route 10.50.3.0/24 next-hop 192.0.2.13 community [ 65535:65283 ];",
            others: &[],
            ..setup
        },
    }
}

/// Returns a community of each type in the daemon's notation.
fn written(kind: Kind) -> [&'static str; 3] {
    match kind {
        Kind::Bird => ["(65000,1)", "(rt, 65000, 7)", "(65000, 1, 2)"],
        Kind::Frr => ["Community: 65000:1", "RT:65000:7", "Large Community: 65000:1:2"],
        Kind::Gobgp => ["4259840001", "\"65000:7\"", "\"LocalData2\":2"],
        Kind::Openbgpd => ["Communities: 65000:1", "rt 65000:7", "65000:1:2"],
        Kind::Exabgp => ["[ 65000, 1 ]", "target:65000:7", "[ 65000, 1 , 2 ]"],
    }
}

fn filter(us: &mut RoutingIntent, peer: &str, export: &Value) {
    us.peers.get_mut(peer).unwrap().policy.filters = vec!["f".into()];
    let filter = Filter::parse(json!({ "export": export }).to_string().as_bytes()).unwrap();
    Arc::make_mut(&mut us.view).filters = Filters::from_values([("f".to_owned(), Some(filter))]);
}

/// Returns the intent of a neighbour of `a` or of the daemon.
fn third(last: u32, asn: u32, blocks: &[&str], router: &str, router_as: u32) -> RoutingIntent {
    let mut us = intent(&format!("192.0.2.{last}:1790"), asn, blocks);
    let mut peer_daemon = peer(&format!("{router}:1790"), &format!("192.0.2.{last}"), router_as);
    peer_daemon.ipv6 = false;
    us.peers.insert("router".into(), peer_daemon);
    us
}

/// Returns true if the route has a community of each type.
fn whole(attributes: &Attributes) -> bool {
    attributes.communities.contains(&(65000 << 16 | 1))
        && attributes.ext_communities() == [[0, 2, 0xfd, 0xe8, 0, 0, 0, 7]]
        && *attributes.large_communities == [[65000, 1, 2]]
}

fn arrives(node: &Node, prefix: &str, peer_daemon: &PeerDaemon) {
    wait(&format!("{prefix} at {}", node.intent.view.node), || {
        if node.route(prefix).is_some() {
            Ok(())
        } else {
            Err(format!("{:?}\n{}", node.facts().last(), peer_daemon.log()))
        }
    });
}

fn both_ways(kind: Kind) {
    let setup = setup(kind);
    let Some(peer_daemon) = PeerDaemon::start(kind, setup) else { return };
    if kind == Kind::Gobgp {
        let tags = [
            "65000:1 rt 65000:7 large-community 65000:1:2",
            "no-export",
            "no-advertise",
            "no-export-subconfed",
        ];
        for (prefix, tag) in THEIRS.iter().zip(tags) {
            peer_daemon.add(&format!("{prefix} nexthop 192.0.2.10 community {tag}"));
        }
    }
    let mut ours = our_intent(kind, setup);
    let more = intent("192.0.2.1:1790", 64512, &[&[V4], &OURS[..]].concat());
    (ours.originated, ours.view) = (more.originated, more.view);
    for (name, last, asn) in [("b", 2, 64602), ("c", 4, 64512)] {
        let mut third = peer(&format!("192.0.2.{last}:1790"), "192.0.2.1", asn);
        third.ipv6 = false;
        ours.peers.insert(name.into(), third);
    }
    let named = OURS.iter().zip(["no-export", "no-advertise", "no-export-subconfed"]);
    let rule = |(prefix, name): (&&str, &str)| json!({"match": {"prefixes": [prefix]}, "then": "next", "set": {"communities": {"add": [name]}}});
    filter(&mut ours, "daemon", &named.map(rule).collect());
    let mut a = Node::start(ours);
    let mut tagged = third(2, 64602, &[CARRIED], "192.0.2.1", 64512);
    let set = json!({"communities": {"add": ["65000:1"]}, "ext_communities": {"add": ["rt:65000:7"]},
        "large_communities": {"add": ["65000:1:2"]}});
    filter(&mut tagged, "router", &json!([{"then": "next", "set": set}]));
    let b = Node::start(tagged);
    let c = Node::start(third(4, 64512, &[], "192.0.2.1", 64512));
    let asn = 65000 + kind.last();
    let e = (kind != Kind::Exabgp).then(|| Node::start(third(3, 64603, &[], &kind.at(), asn)));

    for prefix in THEIRS {
        arrives(&a, prefix, &peer_daemon);
    }
    assert!(
        whole(&a.received("daemon", THEIRS[0]).unwrap().attributes),
        "{:?}",
        a.received("daemon", THEIRS[0])
    );
    peer_daemon.wait_for_route(CARRIED, &written(kind));
    for prefix in OURS {
        peer_daemon.wait_for_route(prefix, &[prefix]);
    }
    // Announced after all others.
    let origin = Originated { kind: OriginKind::OwnBlock, key: LAST.into(), revision: 2, priority: None };
    a.intent.originated.insert(cidr(LAST), origin);
    Arc::make_mut(&mut a.intent.view).own_blocks.insert(cidr(LAST));
    a.apply();
    for node in [&b, &c].into_iter().chain(&e) {
        arrives(node, LAST, &peer_daemon);
    }
    // A session that came up late receives all in one table, in any order.
    for (node, prefix) in [(&b, THEIRS[0]), (&c, THEIRS[0]), (&c, THEIRS[1]), (&c, THEIRS[3])] {
        arrives(node, prefix, &peer_daemon);
    }
    assert!(whole(&b.received("router", THEIRS[0]).unwrap().attributes));
    assert_eq!(THEIRS.map(|p| b.route(p).is_some()), [true, false, false, false], "to another AS");
    assert_eq!(THEIRS.map(|p| c.route(p).is_some()), [true, true, false, true], "inside the AS");
    assert_eq!(c.route(THEIRS[0]), Some(vec![addr("192.0.2.1").into()]));
    if let Some(e) = e {
        arrives(&e, V4, &peer_daemon);
        arrives(&e, CARRIED, &peer_daemon);
        assert!(
            whole(&e.received("router", CARRIED).unwrap().attributes),
            "{:?}",
            e.received("router", CARRIED)
        );
        // GoBGP 3.10 ignores all of them.
        let passes_on = kind == Kind::Gobgp;
        for prefix in OURS.iter().filter(|_| passes_on) {
            arrives(&e, prefix, &peer_daemon);
        }
        assert_eq!(OURS.map(|p| e.route(p).is_some()), [passes_on; 3], "{}", peer_daemon.log());
    }
}

#[test]
fn communities_both_ways_with_bird() {
    both_ways(Kind::Bird);
}

#[test]
fn communities_both_ways_with_frr() {
    both_ways(Kind::Frr);
}

#[test]
fn communities_both_ways_with_gobgp() {
    both_ways(Kind::Gobgp);
}

#[test]
fn communities_both_ways_with_openbgpd() {
    both_ways(Kind::Openbgpd);
}

#[test]
fn communities_both_ways_with_exabgp() {
    both_ways(Kind::Exabgp);
}
