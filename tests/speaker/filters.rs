//! Filters on both ends of sessions with BIRD and FRR: what comes in, what goes out, and what a new filter changes while
//! the session stays up.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tortie::routing::{Filters, RoutingIntent};
use tortie_bgp::{Family, RouteMatch, RouteQuery, RouteTable, State};
use tortie_config::resource::Filter;

use crate::bird::Bird;
use crate::frr::Frr;
use crate::net;
use crate::node::{Node, cidr, intent, peer, wait};

const US: &str = "192.0.2.1:1790";

/// Our intent with one filter for the peer at this address.
fn filtered(at: &str, asn: u32, filter: &Value) -> RoutingIntent {
    let mut us = intent(US, 64512, &["10.1.0.0/26"]);
    let mut them = peer(at, "192.0.2.1", asn);
    them.ipv6 = false;
    them.policy.filters = vec!["f".into()];
    us.peers.insert("them".into(), them);
    set(&mut us, filter);
    us
}

fn set(intent: &mut RoutingIntent, filter: &Value) {
    let filter = Filter::parse(filter.to_string().as_bytes()).unwrap();
    Arc::make_mut(&mut intent.view).filters = Filters::from_values([("f".to_owned(), Some(filter))]);
}

/// Gives another filter.
fn change(node: &mut Node, filter: &Value) {
    set(&mut node.intent, filter);
    node.apply();
}

/// LOCAL_PREF, MED and the communities of the best path of a prefix, in the table.
fn used(node: &Node, prefix: &str) -> Option<(Option<u32>, Option<u32>, Vec<u32>)> {
    let matching = RouteMatch::Exact(cidr(prefix));
    let all = node.ask(move |view| view.routes(RouteQuery { table: RouteTable::Loc, matching }, None, 1));
    let a = &all.first()?.paths.first()?.attributes;
    Some((a.local_pref, a.med, a.communities.to_vec()))
}

/// How many of the peer's routes the filter refused.
fn refused(node: &Node) -> usize {
    node.peer("them")
        .and_then(|p| {
            p.families.iter().find(|f| f.family == Family::Ipv4Unicast).map(|f| f.filtered as usize)
        })
        .unwrap_or(0)
}

fn uptime(node: &Node) -> Duration {
    let peer = node.peer("them").unwrap();
    assert_eq!((peer.state, peer.flaps), (State::Established, 0));
    peer.uptime.unwrap()
}

/// By prefix and length, and by community: 10.9.0.0/24 passes and is changed, /25 and the tagged one do not.
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

/// The other way round.
fn by_tag() -> Value {
    json!({"import": [{"match": {"communities": ["65009:666"]}, "then": "accept"}], "default": "reject"})
}

fn imports(mut node: Node, via: &str, they: &dyn Fn() -> String) {
    node.up("them");
    node.has("10.9.0.0/24", via);
    wait("two routes to be refused", || if refused(&node) >= 2 { Ok(()) } else { Err(they()) });
    assert_eq!((node.route("10.9.1.0/25"), node.route("10.9.2.0/24")), (None, None));
    assert_eq!(used(&node, "10.9.0.0/24"), Some((Some(250), Some(7), vec![64512 << 16 | 1])));
    let trace = node.ask(|view| view.explain_import("them", cidr("10.9.1.0/25")).unwrap());
    let last = trace.steps.last().unwrap();
    assert_eq!((last.step, last.pass), ("policy", false));
    assert_eq!(last.verdict, "filter: no rule of filter f decides and its default rejects it");
    let trace = node.ask(|view| view.explain_import("them", cidr("10.9.0.0/24")).unwrap());
    assert!(
        trace.steps.last().unwrap().verdict.contains("rule 2 (short) of filter f accepts it"),
        "{trace:?}"
    );

    let before = uptime(&node);
    change(&mut node, &by_tag());
    node.has("10.9.2.0/24", via);
    node.has_not("10.9.0.0/24");
    change(&mut node, &by_length());
    node.has("10.9.0.0/24", via);
    node.has_not("10.9.2.0/24");
    assert_eq!(used(&node, "10.9.0.0/24"), Some((Some(250), Some(7), vec![64512 << 16 | 1])));
    assert!(uptime(&node) >= before, "the session never went down");
}

/// The changes of every kind on the way out.
fn changes() -> Value {
    json!({"export": [{"name": "tag", "match": {"source": ["local"]}, "then": "next", "set": {
        "med": 77, "local_pref": 321, "prepend": 2, "next_hop": "192.0.2.42",
        "communities": {"add": ["64512:5"]}, "large_communities": {"add": ["64512:1:2"]},
        "ext_communities": {"add": ["rt:64512:9"]}
    }}]})
}

fn bird(asn: u32) -> Option<Bird> {
    Bird::start(&format!(
        "protocol static more {{ ipv4; route 10.9.1.0/25 blackhole; route 10.9.2.0/24 blackhole; }}
         protocol bgp tortie from quick {{ local 192.0.2.9 port 1790 as {asn}; neighbor 192.0.2.1 port 1790 as 64512;
           ipv4 {{ import all; export filter {{
             if source != RTS_STATIC || net = 10.9.1.0/24 then reject;
             if net = 10.9.2.0/24 then bgp_community.add((65009,666));
             accept; }}; }}; }}"
    ))
}

#[test]
fn filter_import_bird() {
    if !net::enter(&[]) {
        return;
    }
    let Some(bird) = bird(65009) else { return };
    imports(Node::start(filtered("192.0.2.9:1790", 65009, &by_length())), "192.0.2.9", &|| bird.log());
}

#[test]
fn filter_export_bird() {
    if !net::enter(&[]) {
        return;
    }
    let Some(bird) = bird(65009) else { return };
    let mut node = Node::start(filtered("192.0.2.9:1790", 65009, &changes()));
    let show = "show route for 10.1.0.0/26 all";
    for text in [
        "BGP.as_path: 64512 64512 64512",
        "BGP.med: 77",
        "BGP.next_hop: 192.0.2.42",
        "BGP.community: (64512,5)",
        "BGP.large_community: (64512, 1, 2)",
        "BGP.ext_community: (rt, 64512, 9)",
    ] {
        bird.says(show, text);
    }
    let before = uptime(&node);
    change(&mut node, &json!({"export": [{"set": {"med": 5}, "then": "next"}]}));
    bird.says(show, "BGP.med: 5");
    let route = bird.ask(show);
    assert!(route.contains("BGP.as_path: 64512\n") && route.contains("BGP.next_hop: 192.0.2.1\n"), "{route}");
    assert!(!route.contains("community"), "{route}");
    let trace = node.ask(|view| view.explain_export("them", cidr("10.1.0.0/26")).unwrap());
    let policy = trace.steps.iter().find(|s| s.step == "policy").unwrap();
    assert!(policy.verdict.starts_with("own-block: 10.1.0.0/26 is a block of this host"), "{policy:?}");
    assert!(policy.verdict.ends_with("changed by rule 1 of filter f"), "{policy:?}");
    assert!(uptime(&node) >= before, "the session never went down");
}

#[test]
fn filter_export_local_pref_to_bird() {
    if !net::enter(&[]) {
        return;
    }
    let Some(bird) = bird(64512) else { return };
    let _node = Node::start(filtered("192.0.2.9:1790", 64512, &changes()));
    let show = "show route for 10.1.0.0/26 all";
    bird.says(show, "BGP.local_pref: 321");
    // Our own AS in a path to iBGP would be a loop.
    assert!(!bird.ask(show).contains("as_path: 64512"), "{}", bird.ask(show));
}

fn frr() -> Option<Frr> {
    Frr::start(
        65011,
        "192.0.2.11",
        "  neighbor 192.0.2.1 route-map OUT out
          network 10.9.0.0/24
          network 10.9.1.0/25
          network 10.9.2.0/24
         exit-address-family
         ip prefix-list TAGGED seq 5 permit 10.9.2.0/24
         route-map OUT permit 10
          match ip address prefix-list TAGGED
          set community 65009:666
         route-map OUT permit 20
        ",
    )
}

#[test]
fn filter_import_frr() {
    if !net::enter(&[]) {
        return;
    }
    let Some(frr) = frr() else { return };
    imports(Node::start(filtered("192.0.2.11:1790", 65011, &by_length())), "192.0.2.11", &|| frr.log());
}

#[test]
fn filter_export_frr() {
    if !net::enter(&[]) {
        return;
    }
    let Some(frr) = frr() else { return };
    let mut node = Node::start(filtered("192.0.2.11:1790", 65011, &changes()));
    let show = "show bgp ipv4 unicast 10.1.0.0/26";
    for text in
        ["64512 64512 64512", "metric 77", "192.0.2.42", "Community: 64512:5", "64512:1:2", "RT:64512:9"]
    {
        frr.says(show, text);
    }
    let before = uptime(&node);
    change(&mut node, &json!({"export": [{"set": {"med": 5}, "then": "next"}]}));
    frr.says(show, "metric 5");
    let route = frr.ask(show);
    assert!(!route.contains("ommunity") && !route.contains("64512 64512"), "{route}");
    assert!(uptime(&node) >= before, "the session never went down");
}
