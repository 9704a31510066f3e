//! Tiers and network sets of Calico 3; expected orders and verdicts are those of Calico's documents.

use tortie_config::Dialect;

use super::*;

/// Returns the model of host `h1` for a Calico 3 store with these projected entries.
fn model_v3(entries: &[(&str, &str)]) -> Model {
    let mut model = Model::new("h1");
    model.set_dialect(Dialect::V3);
    for (at, (key, value)) in entries.iter().enumerate() {
        model.apply_entries(&put(at as u64 + 1, key, value));
    }
    assert_eq!(model.invalid_keys().map(|problem| &problem.error).collect::<Vec<_>>(), Vec::<&String>::new());
    model
}

fn ruleset_v3(entries: &[(&str, &str)]) -> Ruleset {
    let mut ruleset = Ruleset::default();
    Engine::new(&model_v3(entries)).1.apply(&mut ruleset);
    ruleset
}

fn tier(name: &str, value: &str) -> (String, String) {
    (format!("/calico/tortie/v1/tier/{name}"), value.to_owned())
}

fn policy(tier: &str, name: &str, rest: &str) -> (String, String) {
    let name = name.replace('/', "%2f");
    (format!("/calico/v1/policy/tier/{tier}/policy/{name}"), format!(r#"{{"selector":"all()"{rest}}}"#))
}

const ALLOW: &str = r#","types":["ingress"],"inbound_rules":[{"action":"allow"}]"#;
const DENY: &str = r#","types":["ingress"],"inbound_rules":[{"action":"deny"}]"#;
const SILENT: &str = r#","types":["ingress"]"#;

/// Returns what decides a packet to `W1`, whose profile allows.
fn decision(entries: &[(String, String)]) -> String {
    let mut all = vec![W1, OPEN];
    all.extend(entries.iter().map(|(key, value)| (key.as_str(), value.as_str())));
    by(&inbound(&ruleset_v3(&all), &tcp("10.0.0.2", "10.0.0.1", 80)))
}

#[test]
fn a_tier_without_a_verdict_ends_in_its_end_action() {
    let silent = policy("a", "p", SILENT);
    let ends = |value: &str| decision(&[tier("a", value), silent.clone()]);
    assert_eq!(ends(r#"{"order":1,"default_action":"deny"}"#), "EndOfTier(\"a\")");
    assert_eq!(ends(r#"{"order":1}"#), "EndOfTier(\"a\")");
    assert_eq!(ends(r#"{"order":1,"default_action":"pass"}"#), "profile p rule 0");
    // The next tier decides before the profiles.
    let pass = tier("a", r#"{"order":1,"default_action":"pass"}"#);
    let next = [tier("b", r#"{"order":2,"default_action":"deny"}"#), policy("b", "q", DENY)];
    assert_eq!(
        decision(&[pass, silent.clone(), next[0].clone(), next[1].clone()]),
        "GlobalNetworkPolicy q rule 0"
    );
}

#[test]
fn a_tier_whose_policies_cover_the_other_direction_is_passed_over() {
    let deny = tier("a", r#"{"order":1,"default_action":"deny"}"#);
    let egress = policy("a", "p", r#","types":["egress"]"#);
    assert_eq!(decision(&[deny.clone(), egress]), "profile p rule 0");
    assert_eq!(decision(&[deny]), "profile p rule 0");
}

#[test]
fn tiers_act_by_order_then_by_name_and_those_without_an_object_last() {
    let tiers = |first: Option<&str>, second: Option<&str>| {
        let mut entries = vec![policy("a", "p", ALLOW), policy("b", "q", DENY)];
        entries.extend(first.map(|value| tier("a", value)));
        entries.extend(second.map(|value| tier("b", value)));
        decision(&entries)
    };
    let (allowed, denied) = ("GlobalNetworkPolicy p rule 0", "GlobalNetworkPolicy q rule 0");
    assert_eq!(tiers(Some(r#"{"order":1}"#), Some(r#"{"order":2}"#)), allowed);
    assert_eq!(tiers(Some(r#"{"order":2}"#), Some(r#"{"order":1.5}"#)), denied);
    assert_eq!(tiers(Some(r#"{"order":1}"#), Some(r#"{"order":1}"#)), allowed);
    assert_eq!(tiers(Some(r#"{"order":null}"#), Some(r#"{"order":1000000}"#)), denied);
    assert_eq!(tiers(None, Some(r#"{"order":null}"#)), denied);
    assert_eq!(tiers(None, None), allowed);
}

#[test]
fn a_tier_without_an_object_ends_in_deny() {
    assert_eq!(decision(&[policy("a", "p", SILENT)]), "EndOfTier(\"a\")");
    // An object that is deleted turns its tier into a late deny.
    let mut model = model_v3(&[W1, OPEN]);
    let (mut engine, delta) = Engine::new(&model);
    let mut ruleset = Ruleset::default();
    delta.apply(&mut ruleset);
    let packet = tcp("10.0.0.2", "10.0.0.1", 80);
    let (key, value) = tier("a", r#"{"order":1,"default_action":"pass"}"#);
    let (policy_key, policy_value) = policy("a", "p", SILENT);
    for (change, expected) in [
        (put(10, &policy_key, &policy_value), "EndOfTier(\"a\")"),
        (put(11, &key, &value), "profile p rule 0"),
        (delete(12, &key), "EndOfTier(\"a\")"),
    ] {
        let changes = model.apply_entries(&change);
        assert!(changes.policy);
        engine.update(&model, &changes.keys).apply(&mut ruleset);
        assert_eq!(by(&inbound(&ruleset, &packet)), expected);
    }
}

/// Equal orders are sorted by the text of name, namespace and kind, not by that of the key.
#[test]
fn policies_of_equal_order_act_by_name_before_namespace() {
    let first =
        |one: &str, other: &str| decision(&[policy("default", one, ALLOW), policy("default", other, DENY)]);
    // By key, `a/z` would come before `b/y`.
    assert_eq!(first("a/z", "b/y"), "NetworkPolicy b/y rule 0");
    assert_eq!(first("b/y", "a/y"), "NetworkPolicy a/y rule 0");
    assert_eq!(first("a/m", "g"), "GlobalNetworkPolicy g rule 0");
    assert_eq!(first("z", "a/z"), "GlobalNetworkPolicy z rule 0");
    // The texts are `p//GlobalNetworkPolicy` and `p-1//GlobalNetworkPolicy`, and `-` sorts before `/`.
    assert_eq!(first("p", "p-1"), "GlobalNetworkPolicy p-1 rule 0");
}

const SET: (&str, &str) = (
    "/calico/tortie/v1/networkset/red/s",
    r#"{"nets":["203.0.113.0/24","2001:db8::/32"],"labels":{"kind":"partner"},"profile_ids":["kns.red"]}"#,
);
const KNS: (&str, &str) = ("/calico/v1/policy/profile/kns.red/labels", r#"{"pcns.env":"x"}"#);

#[test]
fn a_network_set_is_in_rule_selectors_by_own_and_inherited_labels_and_has_no_policy() {
    let allowed = |selector: &str| {
        let rules = format!(r#"{{"inbound_rules":[{{"src_selector":"{selector}"}}]}}"#);
        let ruleset = ruleset_v3(&[W1, SET, KNS, ("/calico/v1/policy/profile/p/rules", rules.as_str())]);
        assert_eq!(ruleset.endpoints.len(), 1);
        let from = |src: &str| inbound(&ruleset, &tcp(src, "10.0.0.1", 80)).verdict == Some(Verdict::Allow);
        (from("203.0.113.7"), from("192.0.2.1"))
    };
    assert_eq!(allowed("kind == 'partner'"), (true, false));
    assert_eq!(allowed("pcns.env == 'x'"), (true, false));
    assert_eq!(allowed("kind == 'partner' && pcns.env == 'x'"), (true, false));
    assert_eq!(allowed("!has(kind)"), (false, false));
    assert_eq!(allowed("all()"), (true, false));
}

/// Endpoints that name ports: `http` is 80 at 10.0.0.1 and 8080 at 10.0.0.2, `dns` is UDP 53 at 10.0.0.1.
const NAMED: [(&str, &str); 2] = [
    (
        "/calico/v1/host/h1/workload/cni/w1/endpoint/eth0",
        r#"{"state":"active","name":"cali1","ipv4_nets":["10.0.0.1/32"],"profile_ids":["p"],
            "ports":[{"name":"http","protocol":"tcp","port":80},{"name":"dns","protocol":"udp","port":53}]}"#,
    ),
    (
        "/calico/v1/host/h2/workload/cni/w2/endpoint/eth0",
        r#"{"state":"active","name":"cali2","ipv4_nets":["10.0.0.2/32"],"labels":{"role":"web"},
            "ports":[{"name":"http","protocol":"tcp","port":8080}]}"#,
    ),
];

#[test]
fn a_named_port_is_the_port_of_the_endpoint_at_the_address() {
    let allowed = |rule: &str, packets: &[(&str, u8, u16)]| -> Vec<bool> {
        let rules = format!(r#"{{"inbound_rules":[{rule}]}}"#);
        let ruleset =
            ruleset_v3(&[NAMED[0], NAMED[1], ("/calico/v1/policy/profile/p/rules", rules.as_str())]);
        let allows = |(dst, protocol, port): &(&str, u8, u16)| {
            let packet = Packet { protocol: *protocol, ..tcp("192.0.2.1", dst, *port) };
            inbound(&ruleset, &packet).verdict == Some(Verdict::Allow)
        };
        packets.iter().map(allows).collect()
    };
    let (tcp, udp) = (6, 17);
    let packets = [
        ("10.0.0.1", tcp, 80),
        ("10.0.0.1", tcp, 8080),
        ("10.0.0.2", tcp, 8080),
        ("10.0.0.2", tcp, 80),
        ("10.0.0.1", udp, 80),
        ("10.0.0.1", udp, 53),
        ("10.0.0.9", tcp, 80),
    ];
    let yes = |which: &[usize]| -> Vec<bool> { (0..packets.len()).map(|at| which.contains(&at)).collect() };
    assert_eq!(allowed(r#"{"protocol":"tcp","dst_ports":["http"]}"#, &packets), yes(&[0, 2]));
    assert_eq!(allowed(r#"{"protocol":"udp","dst_ports":["dns"]}"#, &packets), yes(&[5]));
    assert_eq!(allowed(r#"{"protocol":"udp","dst_ports":["http"]}"#, &packets), yes(&[]));
    // Without a protocol it is one of TCP.
    assert_eq!(allowed(r#"{"dst_ports":["http"]}"#, &packets), yes(&[0, 2]));
    assert_eq!(allowed(r#"{"protocol":"tcp","dst_ports":["http",8080]}"#, &packets), yes(&[0, 1, 2]));
    let of_web = r#"{"protocol":"tcp","dst_ports":["http"],"dst_selector":"role == 'web'"}"#;
    assert_eq!(allowed(of_web, &packets), yes(&[2]));
    assert_eq!(allowed(r#"{"protocol":"tcp","!dst_ports":["http"]}"#, &packets), yes(&[1, 3, 6]));
    assert_eq!(allowed(r#"{"!dst_ports":["http"]}"#, &packets), yes(&[1, 3, 4, 5, 6]));
    assert_eq!(allowed(r#"{"protocol":"tcp","dst_ports":["nobody"]}"#, &packets), yes(&[]));
}

#[test]
fn forwarded_packets_meet_the_policies_that_say_so() {
    let endpoint = ("/calico/v1/host/h1/endpoint/e0", r#"{"name":"eth0","profile_ids":["p"]}"#);
    let forward = |rest: &str| {
        let (key, value) = policy("default", "a", rest);
        let ruleset = ruleset_v3(&[endpoint, OPEN, (key.as_str(), value.as_str())]);
        let EndpointPolicy::Host(host) = &**ruleset.endpoints.values().next().unwrap() else { panic!() };
        by(&ruleset.decide_forward(&host.forward_inbound, &tcp("192.0.2.1", "192.0.2.2", 80)))
    };
    let on_forward = |rest: &str| forward(&format!(r#"{rest},"apply_on_forward":true"#));
    assert_eq!(forward(DENY), "Nobody");
    assert_eq!(on_forward(DENY), "GlobalNetworkPolicy a rule 0");
    assert_eq!(on_forward(SILENT), "EndOfTier(\"default\")");
    assert_eq!(on_forward(r#","types":["egress"]"#), "Nobody");
    assert_eq!(on_forward(r#","untracked":true,"types":["ingress"]"#), "Nobody");
}

#[test]
fn additional_sources_need_the_setting() {
    let workload = (
        W1.0,
        r#"{"state":"active","name":"cali1","ipv4_nets":["10.0.0.1/32"],
            "allow_spoofed_source_ips":["203.0.113.0/24"]}"#,
    );
    let sources = |setting: Option<&str>| {
        let setting = setting.map(|value| ("/calico/v1/config/WorkloadSourceSpoofing", value));
        let ruleset = ruleset_v3(&[workload].into_iter().chain(setting).collect::<Vec<_>>());
        match &**ruleset.endpoints.values().next().unwrap() {
            EndpointPolicy::Workload(workload) => (workload.active, workload.sources().count()),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(sources(None), (false, 1));
    assert_eq!(sources(Some("Disabled")), (false, 1));
    assert_eq!(sources(Some("Any")), (true, 2));
}

#[test]
fn floating_addresses_need_the_setting_except_those_of_openstack() {
    let value = r#"{"state":"active","name":"cali1","ipv4_nets":["10.0.0.1/32"],
        "ipv4_nat":[{"int_ip":"10.0.0.1","ext_ip":"203.0.113.1"}]}"#;
    let of = |orchestrator: &str, settings: &[(&str, &str)]| {
        let key = format!("/calico/v1/host/h1/workload/{orchestrator}/w/endpoint/eth0");
        let ruleset = ruleset_v3(&[&[(key.as_str(), value)], settings].concat());
        match &**ruleset.endpoints.values().next().unwrap() {
            EndpointPolicy::Workload(workload) => workload.nats.len(),
            other => panic!("{other:?}"),
        }
    };
    let (all, own) = ("/calico/v1/config/FloatingIPs", "/calico/v1/host/h1/config/FloatingIPs");
    assert_eq!((of("cni", &[]), of("openstack", &[])), (0, 1));
    assert_eq!((of("cni", &[(all, "Disabled")]), of("openstack", &[(all, "Disabled")])), (0, 1));
    assert_eq!((of("cni", &[(all, "enabled")]), of("cni", &[(all, "Enabled"), (own, "Disabled")])), (1, 0));
}

#[test]
fn a_v1_store_has_neither() {
    let mut model = Model::new("h1");
    for (at, (key, value)) in [W1, OPEN, SET, KNS].iter().enumerate() {
        model.apply(&put(at as u64 + 1, key, value));
    }
    let (key, value) = tier("a", r#"{"default_action":"pass"}"#);
    model.apply(&put(9, &key, &value));
    assert_eq!(model.unknown_keys(), 2);
    assert!(model.policy_resources().all(|(key, _)| matches!(key, Key::Profile { .. })));
}

/// Kinds of keys of a Calico 3 store that change which tiers and sets apply.
const KEYS_V3: &[(&str, &[&str])] = &[
    (
        "/calico/tortie/v1/tier/default",
        &[r#"{"order":1000000,"default_action":"deny"}"#, r#"{"order":3,"default_action":"pass"}"#],
    ),
    (
        "/calico/tortie/v1/tier/other",
        &[r#"{"order":5,"default_action":"pass"}"#, r#"{"order":null,"default_action":"deny"}"#],
    ),
    (
        "/calico/tortie/v1/networkset/red/s",
        &[
            SET.1,
            r#"{"nets":["10.0.0.3/32","203.0.113.0/25"],"labels":{"role":"web"}}"#,
            r#"{"nets":[],"labels":{"role":"db"}}"#,
            "[",
        ],
    ),
    (
        "/calico/tortie/v1/globalnetworkset/g",
        &[
            r#"{"nets":["203.0.113.0/24"],"labels":{"role":"web","env":"x"}}"#,
            r#"{"nets":["0.0.0.0/0"],"profile_ids":["p1"]}"#,
        ],
    ),
    (
        "/calico/v1/host/h2/workload/cni/w9/endpoint/eth0",
        &[
            r#"{"state":"active","name":"cali9","ipv4_nets":["10.0.0.2/32"],"ports":[{"name":"http","protocol":"tcp","port":80}]}"#,
            r#"{"state":"active","name":"cali9","ipv4_nets":["10.0.0.2/32","10.0.0.4/32"],"ports":[{"name":"http","protocol":"tcp","port":80},{"name":"dns","protocol":"tcp","port":53}]}"#,
        ],
    ),
    (
        "/calico/v1/policy/tier/default/policy/ports",
        &[
            r#"{"selector":"all()","inbound_rules":[{"protocol":"tcp","dst_ports":["http",443]}]}"#,
            r#"{"selector":"all()","inbound_rules":[{"dst_ports":["http","dns"]},{"!src_ports":["http"]}],"apply_on_forward":true}"#,
        ],
    ),
    ("/calico/v1/config/FloatingIPs", &["Enabled", "Disabled"]),
    (
        "/calico/v1/host/h1/workload/cni/w8/endpoint/eth0",
        &[
            r#"{"state":"active","name":"cali8","ipv4_nets":["10.0.0.8/32"],"ipv4_nat":[{"int_ip":"10.0.0.8","ext_ip":"203.0.113.8"}]}"#,
        ],
    ),
    ("/calico/v1/policy/profile/kns.red/labels", &[r#"{"env":"x"}"#, r#"{"role":"web"}"#]),
    (
        "/calico/v1/policy/tier/default/policy/red%2fa",
        &[
            r#"{"selector":"role == 'web'","namespace":"red","inbound_rules":[{"src_selector":"env == 'x'"}]}"#,
        ],
    ),
];

fn history_v3() -> impl Strategy<Value = Vec<Vec<(usize, Option<usize>)>>> {
    let keys = KEYS.len() + KEYS_V3.len();
    let values =
        |key: usize| if key < KEYS.len() { KEYS[key].1.len() } else { KEYS_V3[key - KEYS.len()].1.len() };
    let change =
        (0..keys).prop_flat_map(move |key| (Just(key), proptest::option::weighted(0.8, 0..values(key))));
    proptest::collection::vec(proptest::collection::vec(change, 1..4), 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn of_a_calico_3_store_too_it_is_as_from_nothing(history in history_v3()) {
        let mut model = Model::new("h1");
        model.set_dialect(Dialect::V3);
        let (mut engine, _) = Engine::new(&model);
        let mut ruleset = Ruleset::default();
        let mut revision = 0;
        for batch in history {
            let mut changes = ModelChanges::default();
            for (key, value) in batch {
                revision += 1;
                let (key, values) = if key < KEYS.len() { KEYS[key] } else { KEYS_V3[key - KEYS.len()] };
                let delta = value.map_or_else(|| delete(revision, key), |at| put(revision, key, values[at]));
                changes.merge(model.apply_entries(&delta));
            }
            let before = ruleset.clone();
            let delta = engine.update(&model, &changes.keys);
            delta.apply(&mut ruleset);
            prop_assert_eq!(delta.is_empty(), before == ruleset);
            let mut fresh = Ruleset::default();
            Engine::new(&model).1.apply(&mut fresh);
            prop_assert_eq!(&ruleset, &fresh);
            check_sets(&model, &ruleset);
            check_endpoints(&model, &ruleset);
        }
    }
}
