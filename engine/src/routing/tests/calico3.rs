//! Tests of the decisions in a store of Calico 3: filters, export gates, import checks, kernel routes, and
//! originated service ranges. Expected values are those of BIRD under Calico 3's configuration.

use std::borrow::Cow;

use proptest::prelude::*;
use serde_json::json;
use tortie_config::resource::{Community, RouteSource};
use tortie_net::Cidr;
use tortie_net::test_strategies::prefix;
use tortie_store::fixtures::{delete, put, snapshot};

use super::{BLOCK, MESH, codes, with};
use crate::model::Model;
use crate::routing::*;

/// Returns the model of host `b` in a store of Calico 3, with these keys below `/calico/`.
fn model(entries: &[(&str, &str)]) -> Model {
    let keys: Vec<(String, &str)> =
        entries.iter().map(|(key, value)| (format!("/calico/{key}"), *value)).collect();
    let entries: Vec<(&str, &str)> = keys.iter().map(|(key, value)| (key.as_str(), *value)).collect();
    let mut model = Model::new("b");
    model.load_projected(&snapshot(10, &entries));
    model
}

fn plan(entries: &[(&str, &str)]) -> RoutingIntent {
    intent(&model(entries), &NodeOptions::default())
}

pub(super) fn cidr(text: &str) -> Cidr {
    text.parse().unwrap()
}

fn local(prefix: &str) -> FilterRoute<'static> {
    FilterRoute::local(cidr(prefix))
}

fn learned(prefix: &str, source: RouteSource, local_pref: Option<u32>) -> FilterRoute<'static> {
    FilterRoute { source, local_pref, interface: Interface::Link, ..local(prefix) }
}

/// Host `b` with a block, pools and a router. The rules of the filter `f` are filled in.
pub(super) fn store(rules: &serde_json::Value) -> Vec<(String, String)> {
    let keys = [
        ("bgp/v1/host/b/ip_addr_v4", "192.0.2.9"),
        ("bgp/v1/host/b/network_v4", "192.0.2.0/24"),
        ("v1/ipam/v4/pool/10.0.0.0-16", "{}"),
        ("v1/ipam/v4/pool/10.8.0.0-16", r#"{"disableBGPExport":true}"#),
        ("v1/ipam/v4/pool/10.9.0.0-16", r#"{"vxlan_mode":"always"}"#),
        ("v1/ipam/v4/pool/10.10.0.0-16", r#"{"ipip":"tunl0","ipip_mode":"cross-subnet"}"#),
        ("ipam/v2/host/b/ipv4/block/10.0.1.0-30", r#"{"state":"confirmed"}"#),
        ("ipam/v2/assignment/ipv4/block/10.0.1.0-30", BLOCK),
        (
            "bgp/v1/global/prefix_advertisements/ip_v4",
            r#"[{"cidr":"10.0.0.0/16","communities":["65000:7"]}]"#,
        ),
        ("bgp/v1/global/peer_v4/192.0.2.1", r#"{"as_num":"65001","filters":["missing","f"]}"#),
        (
            "tortie/v1/bgpconfiguration",
            r#"{"serviceClusterIPs":[{"cidr":"10.96.0.0/12"}],
                "serviceExternalIPs":[{"cidr":"203.0.113.0/24"},{"cidr":"203.0.114.1/32"}],
                "serviceLoadBalancerIPs":[{"cidr":"198.51.100.0/24"}],"serviceLoadBalancerAggregation":"Disabled"}"#,
        ),
    ];
    let mut all: Vec<(String, String)> =
        keys.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    all.push(("tortie/v1/bgpfilter/f".to_owned(), rules.to_string()));
    all
}

pub(super) fn intent_of(entries: &[(String, String)]) -> RoutingIntent {
    let entries: Vec<(&str, &str)> = entries.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let model = model(&entries);
    assert_eq!(model.invalid_keys().map(|p| (&p.key, &p.error)).collect::<Vec<_>>(), []);
    intent(&model, &NodeOptions::default())
}

fn policy(intent: &RoutingIntent) -> &PeerPolicy {
    &intent.peers["Global_192_0_2_1"].policy
}

#[test]
fn export_gates_answer_in_calicos_order() {
    let intent = intent_of(&store(&json!({"exportV4": [
        {"action": "Accept", "cidr": "10.8.5.0/24", "matchOperator": "In"},
        {"action": "Reject", "cidr": "10.0.1.0/30", "matchOperator": "Equal", "peerType": "eBGP"},
    ]})));
    let moves = Some(2_147_483_647 - 512);
    let on = |name, prefix| FilterRoute { interface: Interface::Name(name), ..local(prefix) };
    // Route, eBGP, gate, announced, communities of advertisements.
    let table = [
        // A filter comes before disableBGPExport and before own blocks, and ends the evaluation.
        (local("10.8.5.1/32"), true, "filter", true, false),
        (local("10.8.6.1/32"), true, "disable-bgp-export", false, false),
        (local("10.0.1.0/30"), true, "filter", false, false),
        (local("10.0.1.0/30"), false, "own-block", true, true),
        (local("10.0.1.1/32"), false, "inside-own-block", false, false),
        (FilterRoute { local_pref: moves, ..local("10.0.1.1/32") }, false, "inside-own-block", true, true),
        (learned("10.0.1.1/32", RouteSource::Ibgp, moves), false, "inside-own-block", true, true),
        // BIRD's LOCAL_PREF of a route of eBGP is 100, which is a metric far above the normal one.
        (learned("10.0.1.1/32", RouteSource::Ebgp, None), true, "inside-own-block", false, false),
        (local("10.96.0.0/12"), true, "service-range", true, false),
        (local("203.0.113.0/24"), true, "service-range", true, false),
        // A single address and a range without aggregation are no static routes, and this host reflects nothing.
        (local("203.0.114.1/32"), true, "none", false, false),
        (local("198.51.100.7/32"), true, "none", false, false),
        (local("10.0.7.7/32"), true, "pool", true, true),
        (local("10.9.7.7/32"), true, "pool", true, false),
        (local("10.0.0.0/15"), true, "none", false, false),
        // Routes on tunnel devices are not passed on inside of the AS.
        (on("vxlan.calico", "10.9.1.0/26"), false, "tunnel-device", false, false),
        (on("vxlan.calico", "10.9.1.0/26"), true, "pool", true, false),
        (on("wireguard.cali", "10.0.7.0/26"), false, "tunnel-device", false, false),
        (on("tunl0", "10.10.7.0/26"), false, "tunnel-device", false, false),
        (on("tunl0", "10.10.7.0/26"), true, "pool", true, false),
        (on("bpfin.cali", "10.0.7.0/26"), true, "tunnel-device", false, false),
        (on("cali123", "10.0.7.7/32"), false, "pool", true, true),
    ];
    for (route, ebgp, gate, accept, communities) in table {
        let (answer, steps) = explain_export(&intent.view, policy(&intent), ebgp, &route);
        assert_eq!(answer, export_gate(&intent.view, policy(&intent), ebgp, &route));
        assert_eq!((answer.gate, answer.accept), (gate, accept), "{} {steps:?}", route.prefix);
        assert_eq!(!answer.communities.is_empty(), communities, "{}", route.prefix);
    }
}

#[test]
fn bird_may_own_the_routes_of_ipip() {
    let mut entries = store(&json!({}));
    entries.push((
        "tortie/v1/bgpconfiguration".to_owned(),
        r#"{"programClusterRoutes":"Enabled","ipv4NormalRoutePriority":2000}"#.to_owned(),
    ));
    entries.remove(10);
    let intent = intent_of(&entries);
    let route = FilterRoute { interface: Interface::Name("tunl0"), ..local("10.10.7.0/26") };
    let answer = export_gate(&intent.view, policy(&intent), false, &route);
    assert_eq!((answer.gate, answer.local_pref), ("pool", Some(2_147_483_647 - 2000)));
}

#[test]
fn reflectors_pass_on_external_ranges() {
    let mut entries = store(&json!({}));
    entries.push(("bgp/v1/host/b/rr_cluster_id".to_owned(), "224.0.0.1".to_owned()));
    let intent = intent_of(&entries);
    for (prefix, gate) in [
        ("198.51.100.7/32", "reflected-range"),
        ("203.0.114.1/32", "reflected-range"),
        ("203.0.113.5/32", "service-range"),
    ] {
        let route = learned(prefix, RouteSource::Ibgp, None);
        assert_eq!(export_gate(&intent.view, policy(&intent), false, &route).gate, gate, "{prefix}");
    }
}

#[test]
fn local_pref_and_metric_are_tied() {
    let intent = intent_of(&store(&json!({})));
    let sent = |route: &FilterRoute<'_>| export_gate(&intent.view, policy(&intent), false, route).local_pref;
    assert_eq!(sent(&local("10.0.1.0/30")), Some(2_147_482_623));
    assert_eq!(sent(&FilterRoute { local_pref: Some(7), ..local("10.0.7.7/32") }), Some(7));
    assert_eq!(sent(&learned("10.0.7.0/26", RouteSource::Ibgp, Some(2_147_483_135))), None, "it is kept");
    assert_eq!((metric_of(2_147_482_623), local_pref_of(1024)), (1024, 2_147_482_623));
    assert_eq!(metric_of(100), 2_147_483_547);
    assert_eq!(metric_of(u32::MAX), 2_147_483_647, "no small metric");
}

/// Returns the verdict of one rule on a route, on export to an eBGP peer.
fn decided(rule: serde_json::Value, route: &FilterRoute<'_>, ebgp: bool) -> bool {
    let intent = intent_of(&store(&json!({"exportV4": [rule.clone()], "exportV6": [rule]})));
    export_gate(&intent.view, policy(&intent), ebgp, route).gate == FILTER
}

#[test]
fn every_match_of_a_rule_must_hold() {
    let route = FilterRoute {
        communities: Cow::Owned(vec![65000 << 16 | 7]),
        large: Cow::Owned(vec![[65000, 1, 2]]),
        path: Cow::Owned(vec![65001, 65002]),
        local_pref: Some(2_147_483_647 - 512),
        ..learned("10.5.1.0/24", RouteSource::Ibgp, None)
    };
    let rule = |more: serde_json::Value| {
        let mut rule = json!({"action": "Reject"});
        rule.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        rule
    };
    let table = [
        (json!({}), true),
        (json!({"cidr": "10.5.0.0/16", "matchOperator": "In"}), true),
        (json!({"cidr": "10.5.1.0/24", "matchOperator": "Equal"}), true),
        (json!({"cidr": "10.5.1.0/24", "matchOperator": "NotEqual"}), false),
        (json!({"cidr": "10.6.0.0/16", "matchOperator": "NotIn"}), true),
        (json!({"cidr": "10.5.0.0/16", "matchOperator": "In", "prefixLength": {"min": 25}}), false),
        (json!({"cidr": "10.5.0.0/16", "matchOperator": "In", "prefixLength": {"max": 24}}), true),
        (json!({"source": "RemotePeers"}), true),
        (json!({"peerType": "eBGP"}), true),
        (json!({"peerType": "iBGP"}), false),
        (json!({"communities": {"values": ["65000:7"]}}), true),
        (json!({"communities": {"values": ["65000:1:2"]}}), true),
        (json!({"communities": {"values": ["65000:8"]}}), false),
        (json!({"asPathPrefix": [65001]}), true),
        (json!({"asPathPrefix": [65001, 65002]}), true),
        (json!({"asPathPrefix": [65002]}), false),
        (json!({"asPathPrefix": [65001, 65002, 65003]}), false),
        (json!({"priority": 512}), true),
        (json!({"priority": 1024}), false),
        (json!({"source": "RemotePeers", "priority": 1024}), false),
    ];
    for (matches, expected) in table {
        if matches.get("cidr").is_none() {
            let v6 = FilterRoute { prefix: cidr("2001:db8::/48"), ..route.clone() };
            assert_eq!(decided(rule(matches.clone()), &v6, true), expected, "{matches}");
            assert_eq!(decided(rule(matches.clone()), &route, true), expected, "{matches}");
        } else {
            let entries = store(&json!({"exportV4": [rule(matches.clone())]}));
            let intent = intent_of(&entries);
            let answer = export_gate(&intent.view, policy(&intent), true, &route);
            assert_eq!(answer.gate == FILTER, expected, "{matches}");
        }
    }
    assert!(!decided(rule(json!({"source": "RemotePeers"})), &local("10.5.1.0/24"), true));
    assert!(decided(rule(json!({"priority": 1024})), &local("10.5.1.0/24"), true), "the normal priority");
}

#[test]
fn an_interface_that_is_not_known_exactly_lets_nothing_more_pass() {
    let on = |interface| FilterRoute { interface, ..local("10.5.1.0/24") };
    // Pattern, interface, matched by a rule that accepts, by one that rejects.
    let table = [
        ("*.calico", Interface::Name("vxlan.calico"), true, true),
        ("*.calico", Interface::Name("eth0"), false, false),
        ("eth?", Interface::Name("eth0"), true, true),
        ("*", Interface::None, true, true),
        ("cali*", Interface::None, false, false),
        ("*", Interface::Link, true, true),
        ("eth0", Interface::Link, false, true),
        ("*.calico", Interface::Link, false, false),
        ("cali*", Interface::Link, false, false),
        ("cali*", Interface::Workload, false, true),
        ("tunl0", Interface::Workload, false, false),
    ];
    for (pattern, interface, accepts, rejects) in table {
        let rule = |action: &str| json!({"action": action, "interface": pattern});
        assert_eq!(decided(rule("Accept"), &on(interface), true), accepts, "{pattern} {interface:?}");
        assert_eq!(decided(rule("Reject"), &on(interface), true), rejects, "{pattern} {interface:?}");
    }
}

#[test]
fn the_first_rule_of_the_first_filter_that_matches_decides() {
    let mut entries = store(&json!({"importV4": [
        {"action": "Reject", "cidr": "10.5.0.0/16", "matchOperator": "In"},
        {"action": "Accept", "cidr": "10.0.0.0/8", "matchOperator": "In",
         "operations": [{"addCommunity": {"value": "65000:9"}}, {"setPriority": {"value": 512}}]},
    ]}));
    entries.push((
        "bgp/v1/global/peer_v4/192.0.2.1".to_owned(),
        r#"{"as_num":"65001","filters":["f","g"]}"#.to_owned(),
    ));
    entries
        .push(("tortie/v1/bgpfilter/g".to_owned(), json!({"importV4": [{"action": "Reject"}]}).to_string()));
    entries.remove(9);
    let intent = intent_of(&entries);
    let import = |prefix: &str| {
        let route = learned(prefix, RouteSource::Ebgp, None);
        let (answer, steps) = explain_import(&intent.view, &intent.addresses, policy(&intent), &route);
        let step = steps.into_iter().find(|step| step.name == FILTER).unwrap();
        (answer.map(|changes| changes.to_vec()), step.text)
    };
    assert_eq!(import("10.5.1.0/24"), (Err(FILTER), "rule 1 in importV4 of filter f rejects it".to_owned()));
    let (answer, text) = import("10.6.1.0/24");
    assert_eq!(answer, Ok(vec![RuleRef { filter: 0, rule: 1 }]));
    assert!(text.starts_with("rule 2 in importV4 of filter f accepts it"), "{text}");
    assert_eq!(import("192.168.0.0/16").0, Err(FILTER), "the next filter rejects everything");
    assert!(import("fd00::/64").0.is_ok(), "no rule of this family");
    let operations = intent.view.filters.operations(
        &policy(&intent).filters,
        Direction::Import,
        RuleRef { filter: 0, rule: 1 },
    );
    assert_eq!(
        operations,
        [
            tortie_config::resource::BgpFilterOperation::AddCommunity(Community::Standard(65000 << 16 | 9)),
            tortie_config::resource::BgpFilterOperation::SetPriority(512),
        ]
    );
}

#[test]
fn a_filter_that_does_not_exist_is_skipped_and_reported_and_an_unreadable_one_is_closed() {
    let base = with(MESH, &[("bgp/v1/global/peer_v4/198.51.100.1", r#"{"as_num":"65001","filters":["f"]}"#)]);
    let verdict = |more: &[(&str, &str)]| {
        let intent = plan(&with(&base, more));
        let policy = &intent.peers["Global_198_51_100_1"].policy;
        let route = learned("10.0.0.0/8", RouteSource::Ebgp, None);
        let codes: Vec<String> = codes(&intent).into_iter().map(str::to_owned).collect();
        (import(&intent.view, &intent.addresses, policy, &route).is_ok(), codes)
    };
    assert_eq!(verdict(&[]), (true, vec!["filter-missing".to_owned()]));
    assert_eq!(verdict(&[("tortie/v1/bgpfilter/f", "{}")]), (true, vec![]));
    let unknown = r#"{"importV4":[{"action":"Accept","newMatch":1}]}"#;
    assert_eq!(verdict(&[("tortie/v1/bgpfilter/f", unknown)]), (false, vec!["filter-unreadable".to_owned()]));
}

#[test]
fn a_workload_that_moves_away_is_reached_over_bgp() {
    let mut entries = store(&json!({"importV4": [
        {"action": "Accept", "asPathPrefix": [65001], "operations": [{"setPriority": {"value": 512}}]},
    ]}));
    entries.push((
        "v1/host/b/workload/cni/w/endpoint/e".to_owned(),
        r#"{"state":"active","name":"cali1","ipv4_nets":["10.0.1.2/32"]}"#.to_owned(),
    ));
    let intent = intent_of(&entries);
    let accepts = |local_pref, path: &[u32]| {
        let route = FilterRoute {
            path: Cow::Owned(path.to_vec()),
            ..learned("10.0.1.2/32", RouteSource::Ibgp, local_pref)
        };
        let answer = import(&intent.view, &intent.addresses, policy(&intent), &route);
        assert_eq!(explain_import(&intent.view, &intent.addresses, policy(&intent), &route).0, answer);
        answer.map(|_| ())
    };
    assert_eq!(accepts(Some(2_147_482_623), &[]), Err(OWN_ENDPOINT), "the normal priority");
    assert_eq!(accepts(Some(2_147_482_624), &[]), Ok(()));
    assert_eq!(accepts(None, &[]), Err(OWN_ENDPOINT));
    assert_eq!(accepts(None, &[65001]), Ok(()), "the filter sets the priority");
    assert_eq!(accepts(Some(u32::MAX), &[]), Err(OWN_ENDPOINT), "no priority at all");
}

#[test]
fn the_kernel_gets_no_service_ranges_and_no_routes_of_vxlan_pools() {
    let intent = intent_of(&store(&json!({})));
    let resolve = |_| Some(Resolved { ifindex: 2, gateway: None, metric: 0 });
    let route = |prefix: &str, hop: &str| {
        let (answer, _) =
            explain_kernel_route(&intent.view, cidr(prefix), &[hop.parse().unwrap()], resolve, true);
        assert_eq!(answer, kernel_route(&intent.view, cidr(prefix), &[hop.parse().unwrap()], resolve, true));
        match answer {
            KernelRoute::Via { reason, .. } | KernelRoute::Withheld { reason } => reason,
        }
    };
    assert_eq!(route("10.96.0.0/12", "192.0.2.7"), "service-range");
    assert_eq!(route("198.51.100.7/32", "192.0.2.7"), "service-range", "aggregation has no part in this");
    assert_eq!(route("10.9.1.0/26", "192.0.2.7"), "vxlan-pool");
    assert_eq!(route("10.10.1.0/26", "192.0.2.7"), "same-subnet");
    assert_eq!(route("10.10.1.0/26", "198.51.100.1"), "ipip-cross-subnet");
    assert_eq!(route("10.0.1.0/26", "192.0.2.7"), "plain");
    assert_eq!(route("0.0.0.0/0", "192.0.2.1"), "outside-pools");
}

#[test]
fn service_ranges_are_originated_without_a_blackhole() {
    let intent = intent_of(&store(&json!({})));
    let found: Vec<_> = intent
        .originated
        .iter()
        .filter(|(_, route)| route.kind == OriginKind::ServiceRange)
        .map(|(prefix, route)| (prefix.to_string(), route.key.to_string()))
        .collect();
    let key = "/calico/tortie/v1/bgpconfiguration".to_owned();
    assert_eq!(found, [("10.96.0.0/12".to_owned(), key.clone()), ("203.0.113.0/24".to_owned(), key)]);
    assert_eq!(intent.blackholes.iter().map(ToString::to_string).collect::<Vec<_>>(), ["10.0.1.0/30"]);
}

#[test]
fn the_mesh_has_its_restart_time_rounded() {
    let intent =
        plan(&with(MESH, &[("tortie/v1/bgpconfiguration", r#"{"nodeMeshMaxRestartTime":"1m30.5s"}"#)]));
    assert!(intent.peers.values().all(|peer| peer.restart_time.as_secs() == 91));
}

/// A block of one address of host `b`.
pub(super) const BLOCK_OF_ONE: &str =
    r#"{"cidr":"10.0.7.7/32","affinity":"host:b","allocations":[null],"unallocated":[0],"attributes":[]}"#;

/// Keys of a store of Calico 3 with some values each.
const CHANGES: &[(&str, &[&str])] = &[
    ("v1/config/FloatingIPs", &["Enabled", "Disabled"]),
    (
        "v1/host/b/workload/cni/f/endpoint/e",
        &[
            r#"{"state":"active","name":"cali7","ipv4_nets":["10.0.1.3/32"],"ipv4_nat":[{"int_ip":"10.0.1.3","ext_ip":"10.0.9.3"}]}"#,
        ],
    ),
    (
        "tortie/v1/bgpconfiguration",
        &[
            r#"{"serviceClusterIPs":[{"cidr":"10.0.0.0/24"}],"nodeMeshMaxRestartTime":"60s"}"#,
            r#"{"serviceExternalIPs":[{"cidr":"10.0.1.0/30"},{"cidr":"10.0.7.7/32"}],"ipv4NormalRoutePriority":7}"#,
            r#"{"serviceClusterIPs":[{"cidr":"10.0.7.7/32"}],"programClusterRoutes":"Enabled"}"#,
        ],
    ),
    (
        "tortie/v1/bgpfilter/f",
        &[
            r#"{"importV4":[{"action":"Reject"}]}"#,
            r#"{"exportV4":[{"action":"Accept","cidr":"10.0.1.0/30","matchOperator":"In"}]}"#,
            r#"{"exportV4":[{"action":"Pass"}]}"#,
        ],
    ),
    ("bgp/v1/global/peer_v4/192.0.2.1", &[r#"{"as_num":"65001","filters":["f"]}"#, r#"{"as_num":"65001"}"#]),
    ("bgp/v1/host/b/rr_cluster_id", &["224.0.0.1", ""]),
    ("bgp/v1/host/b/ip_addr_v4", &["192.0.2.9"]),
    ("bgp/v1/host/c/ip_addr_v4", &["192.0.2.10"]),
    ("v1/ipam/v4/pool/10.0.0.0-16", &["{}", r#"{"disableBGPExport":true}"#, r#"{"ipip":"tunl0"}"#]),
    ("v1/host/b/config/IpInIpTunnelAddr", &["10.0.7.7", "10.0.1.2"]),
    ("ipam/v2/host/b/ipv4/block/10.0.7.7-32", &[r#"{"state":"confirmed"}"#]),
    ("ipam/v2/assignment/ipv4/block/10.0.7.7-32", &[BLOCK_OF_ONE]),
    ("ipam/v2/host/b/ipv4/block/10.0.1.0-30", &[r#"{"state":"confirmed"}"#]),
    ("ipam/v2/assignment/ipv4/block/10.0.1.0-30", &[BLOCK]),
    (
        "v1/host/b/workload/cni/w/endpoint/e",
        &[
            r#"{"state":"active","name":"cali1","ipv4_nets":["10.0.7.7/32"]}"#,
            r#"{"state":"active","name":"cali1","ipv4_nets":["10.0.1.2/32","203.0.113.7/32"]}"#,
        ],
    ),
];

/// Text of an interface, for routes of any kind.
fn interface() -> impl Strategy<Value = Interface<'static>> {
    prop_oneof![
        Just(Interface::None),
        Just(Interface::Link),
        Just(Interface::Workload),
        Just(Interface::Name("vxlan.calico")),
        Just(Interface::Name("tunl0")),
        Just(Interface::Name("eth0")),
    ]
}

proptest! {
    #[test]
    fn the_kept_intent_is_the_one_from_scratch(
        writes in prop::collection::vec((0..CHANGES.len(), 0..4_usize), 1..40),
    ) {
        let mut model = Model::new("b");
        model.load_projected(&snapshot(0, &[]));
        let mut planner = Planner::new(&model, NodeOptions::default());
        for (revision, (key, value)) in (1..).zip(writes) {
            let (key, values) = CHANGES[key];
            let key = format!("/calico/{key}");
            let delta = match values.get(value) {
                Some(value) => put(revision, &key, value),
                None => delete(revision, &key),
            };
            let before = planner.intent().clone();
            let changes = model.apply_projected(&delta);
            let change = planner.update(&model, &changes);
            let scratch = intent(&model, &NodeOptions::default());
            prop_assert_eq!(planner.intent(), &scratch);
            prop_assert_eq!(change.view, before.view != scratch.view);
            prop_assert_eq!(change.originated, before.originated != scratch.originated);
            prop_assert_eq!(change.notes, before.notes != scratch.notes);
        }
    }

    #[test]
    fn explanations_never_drift_from_the_decision(
        blocks in prop::collection::btree_set(prefix(), 0..4),
        pools in prop::collection::btree_set(prefix(), 0..4),
        hidden in prop::collection::btree_set(prefix(), 0..2),
        services in prop::collection::btree_set(prefix(), 0..2),
        reflected in prop::collection::btree_set(prefix(), 0..2),
        held in prop::collection::vec(prefix(), 0..3),
        rules in prop::collection::vec((0..6_usize, any::<bool>()), 0..4),
        source in 0..3_usize, local_pref in prop::option::of(0..u32::MAX), interface in interface(),
        ebgp in any::<bool>(), withholds_ipip_routes in any::<bool>(),
        asked in prefix(),
    ) {
        let matches = [
            json!({}),
            json!({"source": "RemotePeers"}),
            json!({"interface": "*.calico"}),
            json!({"interface": "eth*"}),
            json!({"peerType": "iBGP"}),
            json!({"priority": 1024}),
        ];
        let rules: Vec<_> = rules.into_iter().map(|(of, accept)| {
            let mut rule = matches[of].clone();
            rule["action"] = json!(if accept { "Accept" } else { "Reject" });
            rule
        }).collect();
        let value = json!({"exportV4": rules, "exportV6": rules, "importV4": rules, "importV6": rules});
        let filters = intent_of(&store(&value)).view.filters.clone();
        let view = RoutingView {
            own_blocks: blocks,
            pools: pools.into_iter().map(|cidr| PoolView { cidr, ipip: None, vxlan: None, disabled: false }).collect(),
            filters,
            calico3: Some(Calico3View {
                unexported_pools: hidden,
                service_ranges: services,
                reflected_ranges: reflected,
                withholds_ipip_routes,
                ..Calico3View::default()
            }),
            ..RoutingView::default()
        };
        let policy = PeerPolicy { filters: vec!["f".to_owned()], ..PeerPolicy::default() };
        let source = [RouteSource::Local, RouteSource::Ebgp, RouteSource::Ibgp][source];
        let route = FilterRoute { source, local_pref, interface, ..FilterRoute::local(asked) };
        let (answer, steps) = explain_export(&view, &policy, ebgp, &route);
        prop_assert_eq!(&answer, &export_gate(&view, &policy, ebgp, &route));
        prop_assert!(EXPORT_GATES_CALICO_3.contains(&answer.gate));
        let decided: Vec<_> =
            steps.iter().filter(|s| matches!(s.outcome, StepOutcome::Yes | StepOutcome::No)).collect();
        prop_assert_eq!(decided.len(), 1);
        prop_assert_eq!(decided[0].name, answer.gate);
        prop_assert_eq!(decided[0].outcome == StepOutcome::Yes, answer.accept);
        let held = held.into_iter().map(|prefix| (prefix.addr(), ())).collect();
        let answer = import(&view, &held, &policy, &route);
        let (explained, steps) = explain_import(&view, &held, &policy, &route);
        prop_assert_eq!(&explained, &answer);
        let refused = steps.iter().find(|s| s.outcome == StepOutcome::No).map(|s| s.name);
        prop_assert_eq!(refused, answer.err());
    }
}
