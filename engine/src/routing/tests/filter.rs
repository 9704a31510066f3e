//! Compares filters with a reference evaluation of their JSON, without types, indexes and borrowed routes.

use std::borrow::Cow;
use std::net::IpAddr;

use proptest::prelude::*;
use serde_json::{Value, json};
use tortie_config::resource::{Filter, RouteSource};
use tortie_net::Cidr;

use crate::routing::filter::{
    Decider, Direction, FilterChanges, FilterDecision, FilterRoute, FilterVerdict, Filters, RuleRef,
};
use crate::routing::{
    PeerPolicy, PoolView, RoutingView, explain_export, explain_import, export_gate, import,
    imports_all_networks,
};
use tortie_net::test_strategies::prefix;

fn filters(documents: &[(&str, Value)]) -> Filters {
    let parse = |value: &Value| {
        Filter::parse(value.to_string().as_bytes()).unwrap_or_else(|e| panic!("{value}: {e}"))
    };
    Filters::from_values(documents.iter().map(|(name, value)| ((*name).to_owned(), Some(parse(value)))))
}

fn names(of: &[&str]) -> Vec<String> {
    of.iter().map(|name| (*name).to_owned()).collect()
}

/// Attributes of a learned route as plain lists.
#[derive(Debug, Clone)]
struct Plain {
    prefix: Cidr,
    communities: Vec<u32>,
    path: Vec<u32>,
    next_hop: Option<String>,
    source: &'static str,
}

impl Plain {
    fn seen(&self) -> FilterRoute<'_> {
        FilterRoute {
            communities: Cow::Borrowed(&self.communities),
            path: Cow::Borrowed(&self.path),
            path_length: self.path.len(),
            neighbour: self.path.first().copied(),
            origin_as: self.path.last().copied(),
            next_hop: self.next_hop.as_deref().map(|hop| hop.parse().unwrap()),
            source: self.source.parse::<RouteSource>().unwrap(),
            peer: (self.source != "local").then_some("P1"),
            prepend_as: Some(9),
            ..FilterRoute::local(self.prefix)
        }
    }
}

fn list<'a>(value: &'a Value, name: &str) -> Option<&'a Vec<Value>> {
    value.get(name).map(|list| list.as_array().unwrap())
}

/// Returns the bits of an address as text.
fn bits(addr: IpAddr) -> String {
    match addr {
        IpAddr::V4(v4) => format!("{:032b}", u32::from(v4)),
        IpAddr::V6(v6) => format!("{:0128b}", u128::from(v6)),
    }
}

fn inside(prefix: &Cidr, range: &Value) -> bool {
    let (text, ge, le) = match range {
        Value::String(text) => (text.as_str(), None, None),
        object => (object["cidr"].as_str().unwrap(), object.get("ge"), object.get("le")),
    };
    let (addr, len) = text.split_once('/').unwrap();
    let (addr, len): (IpAddr, usize) = (addr.parse().unwrap(), len.parse().unwrap());
    let number = |value: &Value| usize::try_from(value.as_u64().unwrap()).unwrap();
    let width = bits(addr).len();
    let most = match (ge, le) {
        (_, Some(le)) => number(le),
        (Some(_), None) => width,
        (None, None) => len,
    };
    let own = usize::from(prefix.len());
    bits(prefix.addr()).len() == width
        && bits(prefix.addr())[..len] == bits(addr)[..len]
        && own >= ge.map_or(len, number)
        && own <= most
}

fn community(pattern: &str, community: u32) -> bool {
    let is = [community >> 16, community & 0xffff];
    pattern.split(':').zip(is).all(|(part, is)| part == "*" || part == is.to_string())
}

fn exact(text: &Value) -> u32 {
    let (high, low) = text.as_str().unwrap().split_once(':').unwrap();
    high.parse::<u32>().unwrap() << 16 | low.parse::<u32>().unwrap()
}

fn has_any(communities: &[u32], patterns: &[Value]) -> bool {
    patterns.iter().any(|p| communities.iter().any(|c| community(p.as_str().unwrap(), *c)))
}

fn is(rule: &Value, route: &Plain) -> bool {
    let Some(m) = rule.get("match") else { return true };
    let family = if route.prefix.is_v4() { "ipv4" } else { "ipv6" };
    let path = m.get("as_path").cloned().unwrap_or_else(|| json!({}));
    let communities = m.get("communities").cloned().unwrap_or_else(|| json!({}));
    let communities = if communities.is_array() { json!({ "any": communities }) } else { communities };
    let among =
        |of: &Value, asn: Option<&u32>| asn.is_some_and(|asn| of.as_array().unwrap().contains(&json!(asn)));
    m.get("family").is_none_or(|f| f == family)
        && list(m, "prefixes").is_none_or(|all| all.iter().any(|range| inside(&route.prefix, range)))
        && list(m, "source").is_none_or(|all| all.contains(&json!(route.source)))
        && list(m, "peer").is_none_or(|all| route.source != "local" && all.contains(&json!("P1")))
        && list(m, "next_hop").is_none_or(|all| {
            route.next_hop.as_ref().is_some_and(|hop| {
                all.iter()
                    .any(|net| net.as_str().unwrap().parse::<Cidr>().unwrap().contains(hop.parse().unwrap()))
            })
        })
        && list(&communities, "any").is_none_or(|any| has_any(&route.communities, any))
        && list(&communities, "all")
            .is_none_or(|all| all.iter().all(|p| has_any(&route.communities, std::slice::from_ref(p))))
        && list(&communities, "none").is_none_or(|none| !has_any(&route.communities, none))
        && path.get("origin").is_none_or(|of| among(of, route.path.last()))
        && path.get("neighbour").is_none_or(|of| among(of, route.path.first()))
        && path.get("contains").is_none_or(|of| route.path.iter().any(|asn| among(of, Some(asn))))
        && path.get("length").is_none_or(|l| {
            let len = route.path.len() as u64;
            l.get("ge").is_none_or(|ge| len >= ge.as_u64().unwrap())
                && l.get("le").is_none_or(|le| len <= le.as_u64().unwrap())
        })
}

fn change(set: &Value, route: &mut Plain) {
    if let Some(times) = set.get("prepend").and_then(Value::as_u64) {
        (0..times).for_each(|_| route.path.insert(0, 9));
    }
    if let Some(hop) = set.get("next_hop") {
        route.next_hop = Some(hop.as_str().unwrap().to_owned()).filter(|hop| hop != "self");
    }
    let Some(communities) = set.get("communities") else { return };
    if communities.get("replace").is_some() {
        route.communities.clear();
    }
    if let Some(remove) = list(communities, "remove") {
        route.communities.retain(|c| !has_any(&[*c], remove));
    }
    for add in list(communities, "replace").into_iter().chain(list(communities, "add")).flatten() {
        if !route.communities.contains(&exact(add)) {
            route.communities.push(exact(add));
        }
    }
}

/// Reference evaluation: returns the verdict and the changed route.
fn plainly(documents: &[&Value], direction: &str, route: &Plain) -> (FilterVerdict, Plain) {
    let mut route = route.clone();
    for document in documents {
        let Some(rules) = list(document, direction) else { continue };
        for rule in rules.iter() {
            if !is(rule, &route) {
                continue;
            }
            if rule["then"] == "reject" {
                return (FilterVerdict::Reject, route);
            }
            if let Some(set) = rule.get("set") {
                change(set, &mut route);
            }
            if rule["then"] == "accept" {
                return (FilterVerdict::Accept, route);
            }
        }
        match document.get("default").and_then(Value::as_str) {
            Some("accept") => return (FilterVerdict::Accept, route),
            Some("reject") => return (FilterVerdict::Reject, route),
            _ => {}
        }
    }
    (FilterVerdict::Continue, route)
}

fn some<T: Clone + std::fmt::Debug + 'static>(of: &[T]) -> impl Strategy<Value = Vec<T>> + use<T> {
    let of = of.to_vec();
    prop::collection::vec(prop::sample::select(of), 1..3)
}

fn field(
    name: &'static str,
    value: impl Strategy<Value = Value> + 'static,
) -> BoxedStrategy<Option<(String, Value)>> {
    prop::option::weighted(0.25, value.prop_map(move |value| (name.to_owned(), value))).boxed()
}

fn object(fields: Vec<BoxedStrategy<Option<(String, Value)>>>) -> impl Strategy<Value = Value> {
    fields.prop_map(|fields| Value::Object(fields.into_iter().flatten().collect()))
}

fn range() -> impl Strategy<Value = Value> {
    (prefix(), prop::option::of(0u8..6), prop::option::of(0u8..6)).prop_map(|(cidr, ge, le)| {
        let (ge, least) = (ge.map(|n| n + cidr.len()), cidr.len());
        let le = le.map(|n| n + ge.unwrap_or(least));
        match (ge, le) {
            (None, None) => json!(cidr.to_string()),
            (Some(ge), None) => json!({"cidr": cidr.to_string(), "ge": ge}),
            (None, Some(le)) => json!({"cidr": cidr.to_string(), "le": le}),
            (Some(ge), Some(le)) => json!({"cidr": cidr.to_string(), "ge": ge, "le": le}),
        }
    })
}

fn any_rule(import: bool) -> impl Strategy<Value = Value> {
    let patterns = || some(&["1:1", "1:2", "2:1", "1:*", "*:1", "*:*"]).prop_map(|list| json!(list));
    let exact = || some(&["1:1", "1:2", "3:3"]).prop_map(|list| json!(list));
    let ases = || some(&[1u32, 2, 3, 9]).prop_map(|list| json!(list));
    let path = object(vec![
        field("origin", ases()),
        field("neighbour", ases()),
        field("contains", ases()),
        field("length", (0u16..3, 0u16..3).prop_map(|(ge, more)| json!({"ge": ge, "le": ge + more}))),
    ])
    .prop_filter("something", |o| *o != json!({}));
    let communities = prop_oneof![
        patterns(),
        patterns().prop_map(|p| json!({ "all": p })),
        patterns().prop_map(|p| json!({ "none": p })),
    ];
    let matches = object(vec![
        field("family", prop::sample::select(vec![json!("ipv4"), json!("ipv6")])),
        // Some lists are long enough to be indexed.
        prop::option::weighted(0.6, prop::collection::vec(range(), 1..14))
            .prop_map(|ranges| ranges.map(|ranges| ("prefixes".to_owned(), json!(ranges))))
            .boxed(),
        field("communities", communities),
        field("as_path", path),
        field("next_hop", some(&["192.0.2.0/24", "192.0.2.1", "203.0.113.0/24"]).prop_map(|l| json!(l))),
        field("source", some(&["local", "ibgp", "ebgp"]).prop_map(|l| json!(l))),
        field("peer", some(&["P1", "P2"]).prop_map(|l| json!(l))),
    ]);
    let hops = if import { vec!["203.0.113.7"] } else { vec!["self", "203.0.113.7"] };
    let set = object(vec![
        field("prepend", (1u8..4).prop_map(|n| json!(n))),
        field("next_hop", prop::sample::select(hops).prop_map(|h| json!(h))),
        field("local_pref", (0u32..4).prop_map(|n| json!(n))),
        field(
            "communities",
            prop_oneof![
                exact().prop_map(|list| json!({ "replace": list })),
                (patterns(), exact()).prop_map(|(remove, add)| json!({"remove": remove, "add": add})),
            ],
        ),
    ]);
    (
        prop::option::of(matches),
        prop::option::of(set),
        prop::sample::select(vec!["accept", "reject", "next", "next"]),
    )
        .prop_map(|(matches, set, then)| {
            let mut rule = json!({ "then": then });
            if let Some(matches) = matches {
                rule["match"] = matches;
            }
            if let Some(set) = set.filter(|_| then != "reject") {
                rule["set"] = set;
            }
            rule
        })
}

fn any_filter() -> impl Strategy<Value = Value> {
    let rules = |import| prop::option::weighted(0.8, prop::collection::vec(any_rule(import), 0..5));
    let default = prop::sample::select(vec!["accept", "reject", "continue", "continue"]);
    (rules(true), rules(false), default).prop_map(|(import, export, default)| {
        let mut filter = json!({ "default": default });
        if let Some(import) = import {
            filter["import"] = json!(import);
        }
        if let Some(export) = export {
            filter["export"] = json!(export);
        }
        filter
    })
}

fn any_route() -> impl Strategy<Value = Plain> {
    (
        prefix(),
        prop::sample::subsequence(vec![1 << 16 | 1, 1 << 16 | 2, 2 << 16 | 1, 5 << 16 | 5], 0..4),
        prop::collection::vec(1u32..4, 0..4),
        prop::sample::select(vec!["192.0.2.1", "192.0.2.9", "203.0.113.7"]),
        prop::sample::select(vec!["local", "ibgp", "ebgp"]),
    )
        .prop_map(|(prefix, communities, path, hop, source)| Plain {
            prefix,
            communities,
            path,
            next_hop: (source != "local").then(|| hop.to_owned()),
            source,
        })
}

/// Applies the changes of a decision to a route.
fn changed(documents: &[&Value], direction: &str, answer: &FilterDecision, route: &Plain) -> Plain {
    let mut seen: Plain = route.clone();
    for RuleRef { filter, rule } in answer.changes.iter().copied() {
        change(&documents[filter][direction][rule]["set"], &mut seen);
    }
    seen
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn the_evaluator_says_what_a_plain_reading_says(
        one in any_filter(), two in any_filter(), route in any_route(), importing in any::<bool>(),
    ) {
        let (direction, word) = if importing { (Direction::Import, "import") } else { (Direction::Export, "export") };
        let filters = filters(&[("one", one.clone()), ("two", two.clone())]);
        let documents = [&one, &two];
        let answer = filters.ask(&names(&["one", "two"]), direction, &route.seen());
        let (verdict, after) = plainly(&documents, word, &route);
        prop_assert_eq!(answer.verdict, verdict, "{} {} {:?}", one, two, route);
        if verdict != FilterVerdict::Reject {
            let made = changed(&documents, word, &answer, &route);
            prop_assert_eq!((made.communities, made.path, made.next_hop), (after.communities, after.path, after.next_hop));
        }
        // An explanation runs the same decision, and names a filter or the absence of a decision.
        let policy = PeerPolicy { filters: names(&["one", "two"]), ..PeerPolicy::default() };
        let view = RoutingView { filters, ..RoutingView::default() };
        if importing {
            let (explained, steps) = explain_import(&view, &super::Addresses::default(), &policy, &route.seen());
            prop_assert_eq!(&explained, &import(&view, &super::Addresses::default(), &policy, &route.seen()));
            prop_assert_eq!(explained.is_ok(), verdict != FilterVerdict::Reject);
            prop_assert!(steps.iter().any(|s| s.name == "filter" && s.text.contains("one") | s.text.contains("two")));
        } else {
            let (explained, steps) = explain_export(&view, &policy, true, &route.seen());
            prop_assert_eq!(&explained, &export_gate(&view, &policy, true, &route.seen()));
            prop_assert_eq!(explained.accept, verdict == FilterVerdict::Accept);
            prop_assert!(steps.iter().any(|s| s.name == "filter" && s.text.contains("one") | s.text.contains("two")));
        }
    }

    /// [`imports_all_networks`] is consistent with [`import`] for each route.
    #[test]
    fn all_networks_are_imported_where_none_is_asked_about(
        filter in any_filter(), filtered in any::<bool>(), pools in any::<bool>(), route in any_route(),
    ) {
        let names = if filtered { names(&["one"]) } else { names(&[]) };
        let policy = PeerPolicy { filters: names, import_pools: pools, ..PeerPolicy::default() };
        let view = RoutingView { filters: filters(&[("one", filter)]), ..RoutingView::default() };
        prop_assert_eq!(imports_all_networks(&policy), pools && !filtered);
        if imports_all_networks(&policy) && !route.seen().prefix.is_host() {
            let answer = import(&view, &super::Addresses::default(), &policy, &route.seen());
            prop_assert_eq!(answer.map(|changes| changes.len()), Ok(0));
        }
    }

    /// Every filter that can be parsed can be evaluated, and gives the same results after serialization.
    #[test]
    fn what_is_read_back_answers_alike(document in any_filter(), route in any_route()) {
        let read = Filter::parse(document.to_string().as_bytes()).unwrap();
        let again = Filter::parse(&read.to_value()).unwrap();
        prop_assert_eq!(&again, &read);
        let ask = |filter: Filter| {
            let filters = Filters::from_values([("f".to_owned(), Some(filter))]);
            [Direction::Import, Direction::Export].map(|d| filters.ask(&names(&["f"]), d, &route.seen()))
        };
        prop_assert_eq!(ask(again), ask(read));
    }
}

fn learned(prefix: &str) -> Plain {
    Plain {
        prefix: prefix.parse().unwrap(),
        communities: Vec::new(),
        path: vec![65001],
        next_hop: Some("192.0.2.1".to_owned()),
        source: "ebgp",
    }
}

#[test]
fn nothing_passes_a_filter_that_is_missing_or_never_could_be_read() {
    let filters = Filters::from_values([("broken".to_owned(), None)]);
    for (name, decider) in [("broken", Decider::Unreadable(0)), ("absent", Decider::Missing(0))] {
        for direction in [Direction::Import, Direction::Export] {
            let answer = filters.ask(&names(&[name]), direction, &learned("10.0.0.0/8").seen());
            assert_eq!((answer.verdict, answer.decider), (FilterVerdict::Reject, decider));
            assert!(filters.describe(&names(&[name]), direction, &answer).contains(name));
        }
    }
}

#[test]
fn own_blocks_are_announced_whatever_filters_say_and_get_their_changes() {
    let filters = filters(&[
        ("drain", json!({"export": [{"name": "slow", "set": {"prepend": 3}, "then": "next"}]})),
        ("shut", json!({"export": [{"then": "reject"}]})),
    ]);
    let view = RoutingView {
        own_blocks: ["10.0.1.0/26".parse().unwrap()].into(),
        pools: vec![PoolView {
            cidr: "10.0.0.0/16".parse().unwrap(),
            ipip: None,
            vxlan: None,
            disabled: false,
        }],
        filters,
        ..RoutingView::default()
    };
    let gate = |filters: &[&str], prefix: &str| {
        let policy = PeerPolicy { filters: names(filters), ..PeerPolicy::default() };
        let answer = explain_export(&view, &policy, true, &FilterRoute::local(prefix.parse().unwrap()));
        let text = answer.1.iter().find(|s| s.name == "filter").unwrap().text.clone();
        (answer.0.accept, answer.0.gate, answer.0.changes.len(), text)
    };
    let (accept, gate_name, changes, text) = gate(&["drain"], "10.0.1.0/26");
    assert_eq!((accept, gate_name, changes), (true, "own-block", 1));
    assert!(text.contains("changed by rule 1 (slow) of filter drain"), "{text}");
    assert_eq!(gate(&["shut"], "10.0.1.0/26").1, "own-block");
    assert_eq!(gate(&["absent"], "10.0.1.0/26").1, "own-block");
    // Changes of a filter that does not decide are kept.
    let (accept, gate_name, changes, _) = gate(&["drain"], "10.0.9.0/26");
    assert_eq!((accept, gate_name, changes), (true, "pool", 1));
    let (accept, gate_name, changes, text) = gate(&["drain", "shut"], "10.0.9.0/26");
    assert_eq!((accept, gate_name, changes), (false, "filter", 0));
    assert!(text.contains("rule 1 of filter shut rejects it"), "{text}");
    assert_eq!(gate(&[], "10.0.9.0/26").2, FilterChanges::new().len());
}

#[test]
fn a_later_rule_sees_what_an_earlier_one_changed() {
    let filters = filters(&[(
        "f",
        json!({"import": [
            {"set": {"communities": {"add": ["65000:1"]}, "prepend": {"as": 7, "count": 2}}, "then": "next"},
            {"match": {"communities": ["65000:1"], "as_path": {"matches": ["7 7 65001"], "neighbour": [7]}}, "then": "accept"},
            {"then": "reject"}
        ]}),
    )]);
    let answer = filters.ask(&names(&["f"]), Direction::Import, &learned("10.0.0.0/8").seen());
    assert_eq!((answer.verdict, answer.changes.len()), (FilterVerdict::Accept, 1));
}

#[test]
fn a_direction_without_rules_is_not_the_filters_business() {
    let filters = filters(&[("out", json!({"export": [], "default": "reject"}))]);
    let ask = |direction| filters.ask(&names(&["out"]), direction, &learned("10.0.0.0/8").seen()).verdict;
    assert_eq!(
        (ask(Direction::Import), ask(Direction::Export)),
        (FilterVerdict::Continue, FilterVerdict::Reject)
    );
}
