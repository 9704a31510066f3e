mod rules;
mod tiers;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use proptest::prelude::*;
use tortie_config::key::{EndpointKey, Key, ProfilePart};
use tortie_config::resource::Labels;
use tortie_config::{Resource, Selector};
use tortie_net::Cidr;

use super::*;
use crate::model::{Model, ModelChanges};
use tortie_store::fixtures::{delete, put};

/// All kinds of keys that policy reads, each with values that differ in relevant and irrelevant parts.
const KEYS: &[(&str, &[&str])] = &[
    (
        "/calico/v1/host/h1/workload/cni/w1/endpoint/eth0",
        &[
            r#"{"state":"active","name":"cali1","ipv4_nets":["10.0.0.1/32"],"ipv6_nets":["fd00::1/128"],"profile_ids":["p1"],"labels":{"role":"web"}}"#,
            r#"{"state":"active","name":"cali1","ipv4_nets":["10.0.0.1/32","10.0.0.9/32"],"profile_ids":["p2","p1"],"labels":{"role":"db"}}"#,
            r#"{"state":"inactive","name":"cali1","ipv4_nets":["10.0.0.1/32"],"profile_ids":["p1"],"labels":{"role":"web"}}"#,
            r#"{"state":"active","name":"cali1","ipv4_nets":["10.0.0.1/32"]}"#,
            "{",
        ],
    ),
    (
        "/calico/v1/host/h1/workload/cni/w2/endpoint/eth0",
        &[
            r#"{"state":"active","name":"cali2","ipv4_nets":["10.0.0.2/32"],"profile_ids":["p1"],"labels":{"role":"web"}}"#,
            r#"{"state":"active","name":"cali2","ipv4_nets":["10.0.0.2/32"],"profile_ids":["p3"],"labels":{"env":"x"}}"#,
        ],
    ),
    (
        "/calico/v1/host/h1/endpoint/eth9",
        &[
            r#"{"name":"eth9","expected_ipv4_addrs":["192.0.2.1"],"profile_ids":["p2"],"labels":{"role":"web"}}"#,
            r#"{"expected_ipv4_addrs":["192.0.2.1"],"labels":{"env":"x"}}"#,
        ],
    ),
    (
        "/calico/v1/host/h2/workload/cni/w3/endpoint/eth0",
        &[
            r#"{"state":"active","name":"cali3","ipv4_nets":["10.0.0.3/32"],"profile_ids":["p1"],"labels":{"role":"web"}}"#,
            r#"{"state":"active","name":"cali3","ipv4_nets":["10.0.0.1/32"],"profile_ids":["p1","p2"]}"#,
            r#"{"state":"active","name":"cali3","ipv4_nets":["10.1.0.0/24"],"labels":{"role":"db","env":"x"}}"#,
        ],
    ),
    ("/calico/v1/policy/profile/p1/labels", &[r#"{"env":"x"}"#, r#"{"role":"web"}"#, r#"{}"#]),
    ("/calico/v1/policy/profile/p1/tags", &[r#"["web","env"]"#, r#"[]"#]),
    ("/calico/v1/policy/profile/p2/labels", &[r#"{"role":"db"}"#]),
    ("/calico/v1/policy/profile/p2/tags", &[r#"["db"]"#, r#"["web"]"#]),
    (
        "/calico/v1/policy/profile/p1/rules",
        &[
            r#"{"inbound_rules":[{"src_tag":"web"}],"outbound_rules":[{}]}"#,
            r#"{"inbound_rules":[{"src_selector":"role == 'web'","!src_tag":"db"}]}"#,
            "[",
        ],
    ),
    (
        "/calico/v1/policy/profile/p2/rules",
        &[r#"{"inbound_rules":[{"action":"next-tier","dst_selector":"env == 'x'"}]}"#],
    ),
    (
        "/calico/v1/policy/tier/default/policy/a",
        &[
            r#"{"selector":"role == 'web'","order":10,"inbound_rules":[{"src_selector":"role in {'db','web'}"}]}"#,
            r#"{"selector":"role == 'web'","order":30,"inbound_rules":[{"src_selector":"role in {'db','web'}"}]}"#,
            r#"{"selector":"has(env) || has(web)","types":["ingress"],"inbound_rules":[{"action":"next-tier"}]}"#,
            r#"{"selector":"role ==","order":1}"#,
        ],
    ),
    (
        "/calico/v1/policy/tier/default/policy/b",
        &[
            r#"{"selector":"all()","order":20,"outbound_rules":[{"action":"log"},{"action":"deny","dst_selector":"!has(role)"}]}"#,
            r#"{"selector":"role != 'web'","order":"default","untracked":true,"inbound_rules":[{"action":"deny"}]}"#,
            r#"{"selector":"env == 'x' && role == 'web'","pre_dnat":true,"inbound_rules":[{"src_tag":"env"}]}"#,
        ],
    ),
    (
        "/calico/v1/policy/tier/other/policy/c",
        &[r#"{"selector":"all()","inbound_rules":[{"action":"next-tier","src_net":"10.0.0.0/8"}]}"#],
    ),
    ("/calico/v1/policy/tier/other/metadata", &[r#"{"order":5}"#, r#"{"order":null}"#]),
    ("/calico/v1/policy/tier/default/metadata", &[r#"{"order":5}"#, r#"{"order":7}"#]),
    ("/calico/v1/config/LogPrefix", &["packet", "another prefix that is far too long: cut"]),
];

fn history() -> impl Strategy<Value = Vec<Vec<(usize, Option<usize>)>>> {
    let change = (0..KEYS.len())
        .prop_flat_map(|key| (Just(key), proptest::option::weighted(0.8, 0..KEYS[key].1.len())));
    proptest::collection::vec(proptest::collection::vec(change, 1..4), 1..40)
}

/// Computes the effective labels of an endpoint directly from the rules of the data model, as a reference.
fn labels_of(model: &Model, own: &Labels, profiles: &[String]) -> Labels {
    let mut all = Labels::new();
    let part = |name: &String, part| model.resource(&Key::Profile { name: name.clone(), part }).cloned();
    for profile in profiles.iter().rev() {
        if let Some(Resource::ProfileTags(tags)) = part(profile, ProfilePart::Tags).as_deref() {
            all.extend(tags.iter().map(|tag| (tag.clone(), String::new())));
        }
        if let Some(Resource::ProfileLabels(labels)) = part(profile, ProfilePart::Labels).as_deref() {
            all.extend(labels.clone());
        }
    }
    all.extend(own.clone());
    all
}

fn endpoints(model: &Model) -> Vec<(EndpointKey, Labels, Vec<Cidr>)> {
    let of = |(key, resource): (&EndpointKey, &Arc<Resource>)| match &**resource {
        Resource::WorkloadEndpoint(w) => {
            (key.clone(), labels_of(model, &w.labels, &w.profile_ids), w.nets().copied().collect())
        }
        Resource::HostEndpoint(h) => {
            (key.clone(), labels_of(model, &h.labels, &h.profile_ids), h.addrs().map(Cidr::host).collect())
        }
        other => panic!("{other:?}"),
    };
    model.endpoint_resources().map(of).collect()
}

/// Checks that the ruleset contains exactly the sets that its chains use, each with the addresses that its
/// selector matches.
fn check_sets(model: &Model, ruleset: &Ruleset) {
    let ends = |rule: &Rule| [rule.src.clone(), rule.dst.clone()];
    let chains = ruleset.chains.values().flat_map(|chain| chain.rules.iter().flat_map(ends));
    let used: BTreeSet<SetId> = chains.flat_map(|end| end.sets.into_iter().chain(end.not_sets)).collect();
    assert_eq!(used, ruleset.sets.keys().cloned().collect());
    let mut all: Vec<(Labels, Vec<Cidr>)> =
        endpoints(model).into_iter().map(|(_, labels, nets)| (labels, nets)).collect();
    all.extend(model.policy_resources().filter_map(|(_, resource)| match &**resource {
        Resource::NetworkSet(set) => {
            Some((labels_of(model, &set.labels, &set.profile_ids), set.nets.clone()))
        }
        _ => None,
    }));
    for (id, members) in &ruleset.sets {
        let selector: Selector = id.selector().parse().unwrap();
        let selected = all.iter().filter(|(labels, _)| selector.matches(labels));
        let expected: BTreeSet<Cidr> = selected.flat_map(|(_, nets)| nets.iter().copied()).collect();
        assert_eq!(*members, expected, "{}", id.selector());
    }
}

/// Checks that every endpoint of the host has exactly the policies that select it, and that every chain is
/// used.
fn check_endpoints(model: &Model, ruleset: &Ruleset) {
    let own: BTreeMap<EndpointKey, Labels> =
        endpoints(model).into_iter().filter(|(key, ..)| key.host() == "h1").map(|(k, l, _)| (k, l)).collect();
    assert!(own.keys().eq(ruleset.endpoints.keys()));
    let used: BTreeSet<ChainId> =
        ruleset.endpoints.values().flat_map(|endpoint| endpoint.chains().cloned()).collect();
    assert!(used.iter().eq(ruleset.chains.keys()));
    for (key, endpoint) in &ruleset.endpoints {
        let on_host = matches!(**endpoint, EndpointPolicy::Host(_));
        let has: BTreeSet<(Source, Direction)> =
            endpoint.chains().map(|id| (id.source.clone(), id.direction)).collect();
        for (policy_key, resource) in model.policy_resources() {
            let (Key::Policy { tier, name }, Resource::Policy(policy)) = (policy_key, &**resource) else {
                continue;
            };
            let source = Source::policy(model.dialect(), tier, name);
            let selected =
                policy.selector.matches(&own[key]) && (on_host || !(policy.untracked || policy.pre_dnat));
            let inbound = selected && policy.types.ingress();
            let outbound = selected && policy.types.egress() && !policy.pre_dnat;
            assert_eq!(has.contains(&(source.clone(), Direction::Inbound)), inbound, "{key:?} {name}");
            assert_eq!(has.contains(&(source, Direction::Outbound)), outbound, "{key:?} {name}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn change_by_change_it_is_as_from_nothing(history in history()) {
        let mut model = Model::new("h1");
        let (mut engine, first) = Engine::new(&model);
        prop_assert!(first.is_empty());
        let mut ruleset = Ruleset::default();
        let mut revision = 0;
        for batch in history {
            let mut changes = ModelChanges::default();
            for (key, value) in batch {
                revision += 1;
                let (key, values) = KEYS[key];
                let delta = value.map_or_else(|| delete(revision, key), |at| put(revision, key, values[at]));
                changes.merge(model.apply(&delta));
            }
            let before = ruleset.clone();
            let delta = engine.update(&model, &changes.keys);
            delta.apply(&mut ruleset);
            prop_assert_eq!(delta.is_empty(), before == ruleset, "a delta says what changed and nothing else: {:?}", delta);
            let mut fresh = Ruleset::default();
            Engine::new(&model).1.apply(&mut fresh);
            prop_assert_eq!(&ruleset, &fresh);
            check_sets(&model, &ruleset);
            check_endpoints(&model, &ruleset);
        }
    }
}

/// Returns the model of host `h1` with these keys.
pub(super) fn model(entries: &[(&str, &str)]) -> Model {
    let mut model = Model::new("h1");
    for (at, (key, value)) in entries.iter().enumerate() {
        model.apply(&put(at as u64 + 1, key, value));
    }
    assert_eq!(model.invalid_keys().map(|problem| &problem.error).collect::<Vec<_>>(), Vec::<&String>::new());
    model
}

/// Returns the host-wide parameters for these keys.
pub(super) fn globals(entries: &[(&str, &str)]) -> Globals {
    Globals::of(&model(entries))
}

/// Returns the ruleset of host `h1` for these keys.
pub(super) fn ruleset(entries: &[(&str, &str)]) -> Ruleset {
    let model = model(entries);
    let mut ruleset = Ruleset::default();
    Engine::new(&model).1.apply(&mut ruleset);
    ruleset
}

pub(super) fn tcp(src: &str, dst: &str, port: u16) -> Packet {
    let addr = |text: &str| text.parse::<IpAddr>().unwrap();
    Packet { src: addr(src), dst: addr(dst), protocol: 6, ports: Some((40_000, port)), icmp: None }
}

fn inbound(ruleset: &Ruleset, packet: &Packet) -> Decision {
    match &**ruleset.endpoints.values().next().unwrap() {
        EndpointPolicy::Workload(workload) => ruleset.decide(&workload.inbound, packet),
        EndpointPolicy::Host(host) => ruleset.decide(&host.inbound, packet),
    }
}

fn by(decision: &Decision) -> String {
    match &decision.by {
        Decider::Rule(chain, at) => format!("{} rule {at}", chain.source),
        other => format!("{other:?}"),
    }
}

const W1: (&str, &str) = (
    "/calico/v1/host/h1/workload/cni/w1/endpoint/eth0",
    r#"{"state":"active","name":"cali1","ipv4_nets":["10.0.0.1/32"],"profile_ids":["p"],"labels":{"role":"db"}}"#,
);
const OPEN: (&str, &str) = ("/calico/v1/policy/profile/p/rules", r#"{"inbound_rules":[{}]}"#);

#[test]
fn without_policy_profiles_decide_and_without_a_decision_it_is_no() {
    let packet = tcp("10.0.0.2", "10.0.0.1", 80);
    let decision = inbound(&ruleset(&[W1, OPEN]), &packet);
    assert_eq!((decision.verdict, by(&decision)), (Some(Verdict::Allow), "profile p rule 0".into()));

    // A missing profile denies at its position in the list.
    let missing = ruleset(&[W1]);
    let decision = inbound(&missing, &packet);
    assert_eq!((decision.verdict, by(&decision)), (Some(Verdict::Deny), "profile p rule 0".into()));
    assert_eq!(missing.chains.values().next().unwrap().fail_closed, Some(FailClosed::Missing));

    let silent = ruleset(&[W1, ("/calico/v1/policy/profile/p/rules", "{}")]);
    assert_eq!(inbound(&silent, &packet).by, Decider::EndOfProfiles);
}

#[test]
fn a_policy_that_selects_ends_in_deny_and_one_that_does_not_is_skipped() {
    let packet = tcp("10.0.0.2", "10.0.0.1", 80);
    let with =
        |value| inbound(&ruleset(&[W1, OPEN, ("/calico/v1/policy/tier/default/policy/a", value)]), &packet);
    let decision = with(r#"{"selector":"role == 'db'"}"#);
    assert_eq!(decision.by, Decider::EndOfTier("default".into()));
    assert_eq!(by(&with(r#"{"selector":"role == 'web'"}"#)), "profile p rule 0");
    // The policy applies to the other direction only.
    assert_eq!(by(&with(r#"{"selector":"role == 'db'","types":["egress"]}"#)), "profile p rule 0");
    // The action `next-tier` continues with the profiles.
    let passed = with(r#"{"selector":"role == 'db'","inbound_rules":[{"action":"next-tier"}]}"#);
    assert_eq!(by(&passed), "profile p rule 0");
    assert_eq!(passed.matched.len(), 2);
}

#[test]
fn policies_come_by_order_then_by_name() {
    let policy = |name: &str, order: &str, action: &str| {
        (
            format!("/calico/v1/policy/tier/default/policy/{name}"),
            format!(r#"{{"selector":"all()","order":{order},"inbound_rules":[{{"action":"{action}"}}]}}"#),
        )
    };
    let first = |policies: &[(String, String)]| {
        let mut entries = vec![W1, OPEN];
        entries.extend(policies.iter().map(|(key, value)| (key.as_str(), value.as_str())));
        by(&inbound(&ruleset(&entries), &tcp("10.0.0.2", "10.0.0.1", 80)))
    };
    assert_eq!(first(&[policy("a", "20", "allow"), policy("b", "3.5", "deny")]), "policy b rule 0");
    assert_eq!(first(&[policy("a", "\"default\"", "allow"), policy("b", "1e9", "deny")]), "policy b rule 0");
    assert_eq!(first(&[policy("a", "null", "allow"), policy("B", "null", "deny")]), "policy B rule 0");
    assert_eq!(first(&[policy("a", "1", "log"), policy("b", "2", "deny")]), "policy b rule 0");
}

#[test]
fn a_selector_matches_known_endpoints_and_its_negation_everybody_else() {
    let w2 = (
        "/calico/v1/host/h2/workload/cni/w2/endpoint/eth0",
        r#"{"state":"inactive","name":"cali2","ipv4_nets":["10.0.0.2/32"],"labels":{"role":"web"}}"#,
    );
    let rules = |rule: &str| {
        let value = format!(r#"{{"inbound_rules":[{rule}]}}"#);
        let ruleset = ruleset(&[W1, w2, ("/calico/v1/policy/profile/p/rules", value.as_str())]);
        let from = |src| inbound(&ruleset, &tcp(src, "10.0.0.1", 80)).verdict == Some(Verdict::Allow);
        (from("10.0.0.2"), from("10.0.0.1"), from("192.0.2.7"))
    };
    // The data model warns of this difference: the first negates the set, the second negates the match.
    assert_eq!(rules(r#"{"src_selector":"!has(nothing)"}"#), (true, true, false));
    assert_eq!(rules(r#"{"!src_selector":"has(nothing)"}"#), (true, true, true));
    assert_eq!(rules(r#"{"src_selector":"role == 'web'"}"#), (true, false, false));
    assert_eq!(rules(r#"{"!src_selector":"role == 'web'"}"#), (false, true, true));
}
