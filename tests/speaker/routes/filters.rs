//! Filters on sessions with each daemon: import, export, and changed filters without a session reset.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tortie_bgp::{RouteMatch, RouteQuery, RouteTable, State, Unusable};
use tortie_config::resource::Filter;
use tortie_engine::routing::{Filters, RoutingIntent};

use crate::rig::node::{Node, cidr, wait};
use crate::rig::{Kind, PeerDaemon, SessionSetup, V4, our_intent};

/// Returns our intent with one filter for the peer.
fn filtered(kind: Kind, setup: SessionSetup, filter: &Value) -> RoutingIntent {
    let mut us = our_intent(kind, setup);
    us.peers.get_mut("daemon").unwrap().policy.filters = vec!["f".into()];
    set(&mut us, filter);
    us
}

fn set(intent: &mut RoutingIntent, filter: &Value) {
    let filter = Filter::parse(filter.to_string().as_bytes()).unwrap();
    Arc::make_mut(&mut intent.view).filters = Filters::from_values([("f".to_owned(), Some(filter))]);
}

/// Replaces the filter.
fn change(node: &mut Node, filter: &Value) {
    set(&mut node.intent, filter);
    node.apply();
}

/// Returns LOCAL_PREF, MED and communities of the best path of a prefix.
fn used(node: &Node, prefix: &str) -> Option<(Option<u32>, Option<u32>, Vec<u32>)> {
    let matching = RouteMatch::Exact(cidr(prefix));
    let all = node.ask(move |view| view.routes(RouteQuery { table: RouteTable::Loc, matching }, None, 1));
    let a = &all.first()?.paths.first()?.attributes;
    Some((a.local_pref, a.med, a.communities.to_vec()))
}

/// Returns true if the filter rejected the peer's route.
fn refused(node: &Node, prefix: &str) -> bool {
    let path = node.received("daemon", prefix);
    path.is_some_and(|path| matches!(path.unusable, Some(Unusable::Filtered(_))))
}

fn uptime(node: &Node) -> Duration {
    let peer = node.peer("daemon").unwrap();
    assert_eq!((peer.state, peer.flaps), (State::Established, 0));
    peer.uptime.unwrap()
}

/// By prefix length and community: 10.9.0.0/24 is accepted and edited, the /25 and the tagged route are
/// rejected.
fn by_length() -> Value {
    json!({
        "import": [
            {"match": {"communities": ["65009:666"]}, "then": "reject"},
            {"name": "short", "match": {"prefixes": [{"cidr": "10.9.0.0/16", "le": 24}]}, "then": "accept",
             "set": {"local_pref": 250, "med": "+7", "communities": {"replace": ["64512:1"]}}}
        ],
        "default": "reject"
    })
}

/// The opposite filter.
fn by_tag() -> Value {
    json!({"import": [{"match": {"communities": ["65009:666"]}, "then": "accept"}], "default": "reject"})
}

/// Routes of the daemon: 10.9.0.0/24, 10.9.1.0/25, tagged 10.9.2.0/24, and others that no rule accepts.
fn announcing(kind: Kind) -> SessionSetup {
    match kind {
        Kind::Bird => SessionSetup {
            more: "protocol static more { ipv4; route 10.9.1.0/25 blackhole; route 10.9.2.0/24 blackhole; }",
            family: "export filter { if source != RTS_STATIC || net = 10.9.1.0/24 then reject;
                if net = 10.9.2.0/24 then bgp_community.add((65009,666)); accept; };",
            ..SessionSetup::IPV4
        },
        Kind::Frr => SessionSetup {
            family: "neighbor 192.0.2.1 route-map OUT out\nnetwork 10.9.0.0/24\nnetwork 10.9.1.0/25\nnetwork 10.9.2.0/24",
            more: "ip prefix-list TAGGED seq 5 permit 10.9.2.0/24
                route-map OUT permit 10\nmatch ip address prefix-list TAGGED\nset community 65009:666
                route-map OUT permit 20\n",
            ..SessionSetup::IPV4
        },
        Kind::Gobgp => SessionSetup::IPV4,
        Kind::Openbgpd => SessionSetup {
            more: "network 10.9.0.0/24\nnetwork 10.9.1.0/25\nnetwork 10.9.2.0/24 set community 65009:666",
            ..SessionSetup::IPV4
        },
        Kind::Exabgp => SessionSetup {
            family: "route 10.9.0.0/24 next-hop 192.0.2.13; route 10.9.1.0/25 next-hop 192.0.2.13;
                route 10.9.2.0/24 next-hop 192.0.2.13 community [ 65009:666 ];",
            ..SessionSetup::IPV4
        },
    }
}

fn imports(kind: Kind) {
    let setup = announcing(kind);
    let Some(peer_daemon) = PeerDaemon::start(kind, setup) else { return };
    if kind == Kind::Gobgp {
        for route in ["10.9.0.0/24", "10.9.1.0/25", "10.9.2.0/24"] {
            let tag = if route == "10.9.2.0/24" { " community 65009:666" } else { "" };
            peer_daemon.add(&format!("{route} nexthop 192.0.2.10{tag}"));
        }
    }
    let mut node = Node::start(filtered(kind, setup, &by_length()));
    peer_daemon.wait_established(&node);
    let via = &kind.at();
    node.wait_for_route("10.9.0.0/24", via);
    for prefix in ["10.9.1.0/25", "10.9.2.0/24"] {
        let is = || if refused(&node, prefix) { Ok(()) } else { Err(peer_daemon.log()) };
        wait(&format!("{prefix} to be refused"), is);
    }
    assert_eq!((node.route("10.9.1.0/25"), node.route("10.9.2.0/24")), (None, None));
    assert_eq!(used(&node, "10.9.0.0/24"), Some((Some(250), Some(7), vec![64512 << 16 | 1])));
    let trace = node.ask(|view| view.explain_import("daemon", cidr("10.9.1.0/25")).unwrap());
    let last = trace.steps.last().unwrap();
    assert_eq!((last.step, last.pass), ("filter", false));
    assert_eq!(last.verdict, "no rule of filter f decides and its default rejects it");
    let trace = node.ask(|view| view.explain_import("daemon", cidr("10.9.0.0/24")).unwrap());
    assert!(
        trace.steps.last().unwrap().verdict.contains("rule 2 (short) of filter f accepts it"),
        "{trace:?}"
    );

    let before = uptime(&node);
    change(&mut node, &by_tag());
    node.wait_for_route("10.9.2.0/24", via);
    node.wait_for_no_route("10.9.0.0/24");
    change(&mut node, &by_length());
    node.wait_for_route("10.9.0.0/24", via);
    node.wait_for_no_route("10.9.2.0/24");
    assert_eq!(used(&node, "10.9.0.0/24"), Some((Some(250), Some(7), vec![64512 << 16 | 1])));
    assert!(uptime(&node) >= before, "the session never went down");
}

/// Edits of every type on export.
fn changes() -> Value {
    json!({"export": [{"name": "tag", "match": {"source": ["local"]}, "then": "next", "set": {
        "med": 77, "local_pref": 321, "prepend": 2, "next_hop": "192.0.2.42",
        "communities": {"add": ["64512:5"]}, "large_communities": {"add": ["64512:1:2"]},
        "ext_communities": {"add": ["rt:64512:9"]}
    }}]})
}

/// Waits until the daemon has our route with all of these texts.
fn shows(peer_daemon: &PeerDaemon, texts: &[&str]) -> String {
    let show = || match peer_daemon.kind {
        Kind::Gobgp => peer_daemon.ask(&format!("global rib {V4}")),
        // Lists without blanks.
        Kind::Exabgp => {
            peer_daemon.updates().lines().rfind(|l| l.contains(V4)).unwrap_or_default().replace(' ', "")
        }
        _ => peer_daemon.route(V4),
    };
    wait(&format!("{:?} to show {texts:?}", peer_daemon.kind), || match show() {
        said if texts.iter().all(|t| said.contains(t)) => Ok(()),
        said => Err(format!("{said}\n{}", peer_daemon.log())),
    });
    show()
}

/// `all`: expected edits of [`changes`]; `few`: with only a MED of 5; `gone`: texts that must be absent then.
fn exports(kind: Kind, all: &[&str], few: &[&str], gone: &[&str]) {
    let Some(peer_daemon) = PeerDaemon::start(kind, SessionSetup::IPV4) else { return };
    let mut node = Node::start(filtered(kind, SessionSetup::IPV4, &changes()));
    shows(&peer_daemon, all);
    let before = uptime(&node);
    change(&mut node, &json!({"export": [{"set": {"med": 5}, "then": "next"}]}));
    let said = shows(&peer_daemon, few);
    assert!(!gone.iter().any(|text| said.contains(text)), "{said}");
    let trace = node.ask(|view| view.explain_export("daemon", cidr(V4)).unwrap());
    let said = |name| trace.steps.iter().find(|s| s.step == name).unwrap().verdict.as_str();
    assert_eq!(said("own-block"), "10.1.0.0/26 is a block of this host");
    assert!(said("filter").ends_with("changed by rule 1 of filter f"), "{trace:?}");
    assert!(uptime(&node) >= before, "the session never went down");
}

#[test]
fn filter_import_bird() {
    imports(Kind::Bird);
}

#[test]
fn filter_import_frr() {
    imports(Kind::Frr);
}

#[test]
fn filter_import_gobgp() {
    imports(Kind::Gobgp);
}

#[test]
fn filter_import_openbgpd() {
    imports(Kind::Openbgpd);
}

#[test]
fn filter_import_exabgp() {
    imports(Kind::Exabgp);
}

#[test]
fn filter_export_bird() {
    let all = [
        "BGP.as_path: 64512 64512 64512\n",
        "BGP.med: 77",
        "BGP.next_hop: 192.0.2.42",
        "BGP.community: (64512,5)",
        "BGP.large_community: (64512, 1, 2)",
        "BGP.ext_community: (rt, 64512, 9)",
    ];
    let few = ["BGP.med: 5", "BGP.as_path: 64512\n", "BGP.next_hop: 192.0.2.1\n"];
    exports(Kind::Bird, &all, &few, &["community"]);
}

#[test]
fn filter_export_frr() {
    let all =
        ["64512 64512 64512", "metric 77", "192.0.2.42", "Community: 64512:5", "64512:1:2", "RT:64512:9"];
    exports(Kind::Frr, &all, &["metric 5"], &["ommunity", "64512 64512", "192.0.2.42"]);
}

#[test]
fn filter_export_gobgp() {
    let all = ["64512 64512 64512", "{Med: 77}", "192.0.2.42", "64512:5", "64512:1:2", "[64512:9]"];
    let gone = ["64512:5", "64512:1:2", "64512:9", "64512 64512", "192.0.2.42"];
    exports(Kind::Gobgp, &all, &["{Med: 5}"], &gone);
}

#[test]
fn filter_export_openbgpd() {
    let all = ["64512 64512 64512", "metric 77", "192.0.2.42", "64512:5", "64512:1:2", "rt 64512:9"];
    exports(Kind::Openbgpd, &all, &["metric 5"], &["ommunities", "64512 64512", "192.0.2.42"]);
}

#[test]
fn filter_export_exabgp() {
    let all =
        ["[64512,64512,64512]", "\"med\":77", "192.0.2.42", "[[64512,5]]", "[[64512,1,2]]", "target:64512:9"];
    exports(Kind::Exabgp, &all, &["\"med\":5"], &["ommunity", "64512,64512", "192.0.2.42"]);
}

#[test]
fn filter_export_local_pref_to_bird() {
    let kind = Kind::Bird;
    let setup = SessionSetup { ibgp: true, ..SessionSetup::IPV4 };
    let Some(peer_daemon) = PeerDaemon::start(kind, setup) else { return };
    let _node = Node::start(filtered(kind, setup, &changes()));
    // Our own AS in an AS_PATH to iBGP would be a loop.
    let said = shows(&peer_daemon, &["BGP.local_pref: 321"]);
    assert!(!said.contains("as_path: 64512"), "{said}");
}
