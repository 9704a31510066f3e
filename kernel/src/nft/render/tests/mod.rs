//! Semantics of the data model and of Felix as rules, with expectations written by hand in nft syntax.

mod generators;
mod kernel_properties;
mod properties;

use crate::nft::ir::{Edit, Name, SetKey, SetValue};
use crate::nft::ir::{Rule, Statement};
use crate::nft::maps::Map;
use crate::nft::render::draft::Options;
use crate::nft::render::names;
use crate::nft::render::node::{Denied, Node};
use crate::nft::render::renderer::Renderer;
use crate::nft::render::{desired, nat};
use crate::nft::simulate::interpret::{self, Conn, Route, check};
use crate::nft::text;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use tortie_config::Dialect;
use tortie_engine::model::Model;
use tortie_engine::policy::{ChainId, Globals, HostInterfaces, Ruleset};
use tortie_engine::policy::{Direction, Engine, Source, host_interfaces};
use tortie_store::fixtures::put;

pub(in crate::nft) const W1: (&str, &str) = (
    "/calico/v1/host/h1/workload/cni/w1/endpoint/eth0",
    r#"{"state":"active","name":"cali1","ipv4_nets":["10.0.0.1/32"],"ipv6_nets":["fd00::1/128"],"profile_ids":["p"],
        "labels":{"role":"web"}}"#,
);
/// An endpoint of another host.
const OTHER: (&str, &str) = (
    "/calico/v1/host/h2/workload/cni/w2/endpoint/eth0",
    r#"{"state":"active","name":"cali2","ipv4_nets":["10.0.0.2/32"],"ipv6_nets":["fd00::2/128"],
        "labels":{"web":"","role":"db"}}"#,
);
const ETH0: (&str, &str) =
    ("/calico/v1/host/h1/endpoint/e0", r#"{"name":"eth0","profile_ids":["p"],"labels":{"role":"host"}}"#);

pub(in crate::nft) fn renderer(entries: &[(&str, &str)]) -> Renderer {
    let mut model = Model::new("h1");
    for (at, (key, value)) in entries.iter().enumerate() {
        model.apply(&put(at as u64 + 1, key, value));
    }
    let mut renderer = Renderer::new(Options { log_group: None, deny_group: 179 });
    let delta = Engine::new(&model).1;
    let mut ruleset = Ruleset::default();
    delta.apply(&mut ruleset);
    let globals = Globals::of(&model);
    let none: [(&str, Vec<IpAddr>); 1] = [("eth0", Vec::new())];
    let hosts = host_interfaces(&ruleset, &globals, none);
    renderer.take(&delta, Some(&globals), Some(&hosts));
    check(renderer.table());
    renderer
}

/// Returns the rules of a chain in nft syntax, without comments and counters.
fn lines(renderer: &Renderer, chain: &str) -> Vec<String> {
    let plain = |rule: &Rule| text::rule(&Rule { comment: None, counted: false, ..rule.clone() });
    renderer.table().chains.get(chain).expect(chain).rules.iter().map(plain).collect()
}

pub(in crate::nft) fn profile(name: &str) -> ChainId {
    ChainId { source: Source::Profile(name.into()), direction: Direction::Inbound }
}

pub(in crate::nft) fn policy(tier: &str, name: &str) -> ChainId {
    let source = Source::policy(Dialect::V1, tier, name);
    ChainId { source, direction: Direction::Inbound }
}

/// Returns the kernel rules for one rule of a profile.
fn rendered(rule: &str) -> Vec<String> {
    let value = format!(r#"{{"inbound_rules":[{rule}]}}"#);
    let renderer = renderer(&[W1, OTHER, ("/calico/v1/policy/profile/p/rules", &value)]);
    lines(&renderer, &renderer.place_of(&profile("p")).unwrap())
}

fn set_of(selector: &str, v4: bool) -> String {
    let id = tortie_engine::policy::SetId::of(&selector.parse().unwrap());
    names::set(&names::set_hash(&id), v4, false).to_string()
}

#[test]
fn a_rule_without_matches_is_one_rule_of_no_family() {
    assert_eq!(rendered("{}"), ["accept"]);
    assert_eq!(rendered(r#"{"protocol":"tcp"}"#), ["meta l4proto 6 accept"]);
    assert_eq!(rendered(r#"{"!protocol":"icmp"}"#), ["meta l4proto != 1 accept"]);
    assert_eq!(
        rendered(r#"{"protocol":"tcp","!protocol":"udp"}"#),
        ["meta l4proto 6 meta l4proto != 17 accept"]
    );
}

#[test]
fn ports_of_any_number_stand_in_one_rule() {
    assert_eq!(
        rendered(r#"{"protocol":"tcp","dst_ports":[443,"80:90","85:100",101,8080]}"#),
        ["meta l4proto 6 th dport { 80-101, 443, 8080 } accept"]
    );
    assert_eq!(
        rendered(r#"{"protocol":"udp","src_ports":["1024:65535"],"!src_ports":[5353],"!dst_ports":[53,54]}"#),
        ["meta l4proto 17 th sport 1024-65535 th sport != 5353 th dport != 53-54 accept"]
    );
}

#[test]
fn networks_mean_their_family_and_lists_are_filtered() {
    assert_eq!(
        rendered(r#"{"src_net":"10.0.0.0/8","!src_net":"10.1.0.0/16"}"#),
        ["meta nfproto ipv4 ip saddr 10.0.0.0/8 ip saddr != 10.1.0.0/16 accept"]
    );
    assert_eq!(
        rendered(r#"{"dst_nets":["10.0.0.0/25","10.0.0.128/25","10.2.0.0/16","fd00::/64"]}"#),
        [
            "meta nfproto ipv4 ip daddr { 10.0.0.0/24, 10.2.0.0/16 } accept",
            "meta nfproto ipv6 ip6 daddr fd00::/64 accept",
        ]
    );
    // Only networks of the other family, even negated: the rule does not apply to this family (facts 4.3).
    assert_eq!(rendered(r#"{"!dst_net":"fd00::/64"}"#), ["meta nfproto ipv6 ip6 daddr != fd00::/64 accept"]);
    assert_eq!(rendered(r#"{"src_net":"10.0.0.0/8","dst_net":"fd00::/64"}"#), [""; 0]);
    assert_eq!(rendered(r#"{"src_net":"0.0.0.0/0"}"#), ["meta nfproto ipv4 accept"]);
    assert_eq!(rendered(r#"{"!src_net":"0.0.0.0/0"}"#), [""; 0], "nothing matches");
}

#[test]
fn tags_and_selectors_are_sets_of_each_family() {
    let (web, db) = (|v4| set_of("has(web)", v4), |v4| set_of("role == 'db'", v4));
    assert_eq!(
        rendered(r#"{"src_tag":"web","src_selector":"role == 'db'"}"#),
        [
            format!("meta nfproto ipv4 ip saddr @{} ip saddr @{} accept", web(true), db(true)),
            format!("meta nfproto ipv6 ip6 saddr @{} ip6 saddr @{} accept", web(false), db(false)),
        ]
    );
    assert_eq!(
        rendered(r#"{"ip_version":4,"src_tag":"web","!src_tag":"web","!dst_selector":"role == 'db'"}"#),
        [format!(
            "meta nfproto ipv4 ip saddr @{0} ip saddr != @{0} ip daddr != @{1} accept",
            web(true),
            db(true)
        )]
    );
}

#[test]
fn a_set_without_members_of_a_family_needs_no_rule_there() {
    let rules = |nets: &str, rule: &str| {
        let other = format!(r#"{{"state":"active","name":"cali2",{nets}"labels":{{"web":""}}}}"#);
        let value = format!(r#"{{"inbound_rules":[{rule}]}}"#);
        let key = "/calico/v1/policy/profile/p/rules";
        let renderer = renderer(&[W1, (OTHER.0, &other), (key, &value)]);
        let sets = renderer.table().sets.keys().filter(|name| name.contains("-addrs-")).count();
        (lines(&renderer, &renderer.place_of(&profile("p")).unwrap()), sets)
    };
    let v4 = format!("meta nfproto ipv4 ip saddr @{} accept", set_of("has(web)", true));
    let v6 = format!("meta nfproto ipv6 ip6 saddr @{} accept", set_of("has(web)", false));
    let tag = r#"{"src_tag":"web"}"#;
    assert_eq!(rules(r#""ipv4_nets":["10.0.0.2/32"],"#, tag), (vec![v4.clone()], 1));
    assert_eq!(rules(r#""ipv6_nets":["fd00::2/128"],"#, tag), (vec![v6], 1));
    assert_eq!(rules("", tag), (vec![v4], 1), "nothing at all is nothing of IPv4");
    // Every IPv6 packet is from outside the set.
    let not = format!("meta nfproto ipv4 ip saddr != @{} accept", set_of("has(web)", true));
    let all = "meta nfproto ipv6 accept".to_owned();
    assert_eq!(rules(r#""ipv4_nets":["10.0.0.2/32"],"#, r#"{"!src_tag":"web"}"#), (vec![not, all], 1));
}

#[test]
fn the_first_member_of_a_family_brings_its_set_and_its_rules_at_once() {
    let tag = r#"{"inbound_rules":[{"!src_tag":"web","action":"deny"},{}]}"#;
    let key = "/calico/v1/policy/profile/p/rules";
    let only_v4 = r#"{"state":"active","name":"cali2","ipv4_nets":["10.0.0.2/32"],"labels":{"web":""}}"#;
    let mut model = Model::new("h1");
    for (at, (key, value)) in [W1, (OTHER.0, only_v4), (key, tag)].into_iter().enumerate() {
        model.apply(&put(at as u64 + 1, key, value));
    }
    let (mut engine, delta) = Engine::new(&model);
    let mut renderer = Renderer::new(Options { log_group: None, deny_group: 179 });
    renderer.take(&delta, Some(&Globals::of(&model)), None);
    let chain = renderer.place_of(&profile("p")).unwrap();
    let set: Name = set_of("has(web)", false).into();
    for (at, value, comes) in [(9, OTHER.1, true), (10, only_v4, false)] {
        let touched = model.apply(&put(at, OTHER.0, value)).keys;
        let edits = renderer.take(&engine.update(&model, &touched), None, None);
        let at = |is: &dyn Fn(&Edit) -> bool| edits.iter().position(is);
        let rules = at(&|edit| matches!(edit, Edit::Chain(name, _) if *name == chain)).unwrap();
        let looks_up = lines(&renderer, &chain).iter().any(|rule| rule.contains(&*set));
        assert_eq!(looks_up, comes);
        if comes {
            let members =
                |edit: &Edit| matches!(edit, Edit::Set(name, of) if *name == set && of.elements.len() == 1);
            assert!(at(&members).unwrap() < rules, "{edits:?}");
        } else {
            assert!(at(&|edit| *edit == Edit::DeleteSet(set.clone())).unwrap() > rules, "{edits:?}");
        }
    }
}

#[test]
fn icmp_is_of_ipv4_and_its_negation_is_of_the_pair() {
    assert_eq!(
        rendered(r#"{"protocol":"icmp","icmp_type":8}"#),
        ["meta nfproto ipv4 meta l4proto 1 icmp type 8 accept"]
    );
    assert_eq!(
        rendered(r#"{"protocol":"icmpv6","icmp_type":128,"icmp_code":0}"#),
        ["meta nfproto ipv6 meta l4proto 58 icmpv6 type 128 icmpv6 code 0 accept"]
    );
    // Everything except packets with both.
    assert_eq!(
        rendered(r#"{"protocol":"icmp","icmp_type":3,"!icmp_type":3,"!icmp_code":4}"#),
        ["meta nfproto ipv4 meta l4proto 1 icmp type 3 @th,0,16 != 0x0304 accept"]
    );
    assert_eq!(rendered(r#"{"protocol":"icmp","ip_version":6}"#), [""; 0]);
}

#[test]
fn a_rule_logs_before_it_acts() {
    let rules = |rule: &str| rendered(rule);
    assert_eq!(rules(r#"{"log_prefix":"web"}"#), [r#"log prefix "web: " level notice accept"#]);
    assert_eq!(rules(r#"{"action":"log"}"#), [r#"log prefix "calico-packet: " level notice"#]);
    let value = r#"{"inbound_rules":[{"action":"deny","log_prefix":"no"}]}"#;
    let renderer = renderer(&[W1, ("/calico/v1/policy/profile/p/rules", value)]);
    let lines_of = |chain: &str| lines(&renderer, chain);
    let [deny] = &lines_of(&renderer.place_of(&profile("p")).unwrap())[..] else { panic!("one rule") };
    let place = deny.strip_prefix(r#"log prefix "no: " level notice goto "#).unwrap();
    assert_eq!(
        lines_of(place),
        [
            r#"limit rate 10/second burst 20 packets log prefix "tortie:in profile p rule 0" group 179 snaplen 128"#,
            "drop",
        ]
    );
    let denied = renderer.explain("tortie:in profile p rule 0");
    assert_eq!(denied, Some(&Denied::Rule(profile("p"), 0)));
    assert_eq!(renderer.explain("tortie:in profile p rule 1"), None);
}

#[test]
fn next_tier_leads_on_and_ends_a_profile() {
    let passes = r#"{"selector":"all()","inbound_rules":[{"action":"next-tier","protocol":"tcp"}]}"#;
    let denies = r#"{"selector":"all()","inbound_rules":[{"action":"deny","protocol":"udp"}]}"#;
    let renderer = renderer(&[
        W1,
        ("/calico/v1/policy/tier/first/metadata", r#"{"order":1}"#),
        ("/calico/v1/policy/tier/default/metadata", r#"{"order":2}"#),
        ("/calico/v1/policy/tier/first/policy/a", passes),
        ("/calico/v1/policy/tier/default/policy/b", denies),
        ("/calico/v1/policy/tier/default/policy/c", passes),
        (
            "/calico/v1/policy/profile/p/rules",
            r#"{"inbound_rules":[{"action":"next-tier","protocol":"tcp"}]}"#,
        ),
        ("/calico/v1/config/IptablesMarkMask", "0xff000000"),
    ]);
    let place = |id: &ChainId| renderer.place_of(id).unwrap();
    let (a, b, c) = (policy("first", "a"), policy("default", "b"), policy("default", "c"));
    assert_eq!(lines(&renderer, &place(&a)), ["meta l4proto 6 meta mark set meta mark | 0x1000000 return"]);
    assert_eq!(lines(&renderer, &place(&profile("p"))), ["meta l4proto 6 return"]);
    let led = |map: &str| &renderer.table().sets[map].elements[&SetKey::Interface("cali1".into())];
    let SetValue::Jump(tiers) = led("to-workload") else { panic!("it goes somewhere") };
    let tiers = lines(&renderer, tiers);
    let [established, invalid, first, second] = &tiers[..] else { panic!("{tiers:?}") };
    assert_eq!(established, "ct state established,related accept");
    assert_eq!(invalid, "ct state invalid drop");
    assert_eq!(led("to-profiles"), &SetValue::Jump(place(&profile("p"))));
    let tier = |line: &str| lines(&renderer, line.strip_prefix("jump ").unwrap());
    let passed = "meta mark & 0x1000000 != 0 meta mark set meta mark & 0xfeffffff return".to_owned();
    let first = tier(first);
    assert_eq!(first[..2], [format!("jump {}", place(&a)), passed.clone()]);
    assert!(first[2].starts_with("goto deny-") && first.len() == 3);
    // Only after the policy that may pass.
    let second = tier(second);
    assert_eq!(second[..3], [format!("jump {}", place(&b)), format!("jump {}", place(&c)), passed]);
    assert!(second[3].starts_with("goto deny-") && second.len() == 4);
    let sent = renderer.explain("tortie:in end of tier first");
    assert_eq!(sent, Some(&Denied::EndOfTier { tier: "first".into(), direction: Direction::Inbound }));
}

#[test]
fn a_profile_that_is_missing_or_broken_denies_and_says_so() {
    for (value, says) in
        [(None, "profile p is missing: denied"), (Some("["), "profile p cannot be read: denied")]
    {
        let entries = value.map(|value| ("/calico/v1/policy/profile/p/rules", value));
        let entries: Vec<_> = std::iter::once(W1).chain(entries).collect();
        let renderer = renderer(&entries);
        let chain = &renderer.table().chains[&renderer.place_of(&profile("p")).unwrap()];
        let [rule] = &chain.rules[..] else { panic!("one rule") };
        assert_eq!(rule.comment.as_deref(), Some(says));
        assert!(matches!(rule.statement, Statement::Goto(_)));
    }
}

fn rules(renderer: &Renderer) -> usize {
    renderer.table().chains.values().map(|chain| chain.rules.len()).sum()
}

#[test]
fn rules_grow_with_what_acts_here_and_not_with_endpoints() {
    let mut entries: Vec<(String, String)> = vec![
        ("/calico/v1/policy/profile/p/rules".into(), r#"{"inbound_rules":[{"src_tag":"x"}]}"#.into()),
        ("/calico/v1/policy/tier/default/policy/a".into(), r#"{"selector":"role == 'web'"}"#.into()),
    ];
    let count = |entries: &[(String, String)]| {
        let entries: Vec<(&str, &str)> =
            entries.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        rules(&renderer(&entries))
    };
    let workload = |at: usize| {
        (
            format!("/calico/v1/host/h1/workload/cni/w{at}/endpoint/eth0"),
            format!(
                r#"{{"state":"active","name":"cali{at}","ipv4_nets":["10.0.0.{at}/32"],"profile_ids":["p"],"labels":{{"role":"web"}}}}"#
            ),
        )
    };
    entries.push(workload(1));
    let one = count(&entries);
    entries.extend((2..60).map(workload));
    assert_eq!(count(&entries), one);
    entries.extend((0..500).map(|at| {
        let value = r#"{"selector":"role == 'nobody'","inbound_rules":[{},{},{}]}"#;
        (format!("/calico/v1/policy/tier/default/policy/z{at}"), value.to_owned())
    }));
    assert_eq!(count(&entries), one);
}

#[test]
fn one_member_and_one_endpoint_cost_what_they_are() {
    let open = ("/calico/v1/policy/profile/p/rules", r#"{"inbound_rules":[{"src_tag":"x"}]}"#);
    let mut model = Model::new("h1");
    let entries = [W1, open, ("/calico/v1/policy/profile/q/tags", r#"["x"]"#)];
    for (at, (key, value)) in entries.iter().enumerate() {
        model.apply(&put(at as u64 + 1, key, value));
    }
    let (mut engine, delta) = Engine::new(&model);
    let mut renderer = Renderer::new(Options { log_group: None, deny_group: 179 });
    renderer.take(&delta, Some(&Globals::of(&model)), Some(&HostInterfaces::new()));
    let mut change = |key: &str, value: &str| {
        let dirty = model.apply(&put(99, key, value));
        renderer.take(&engine.update(&model, &dirty.keys), None, None)
    };
    let far = "/calico/v1/host/h2/workload/cni/w9/endpoint/eth0";
    let edits =
        change(far, r#"{"state":"active","name":"cali9","ipv4_nets":["10.0.0.9/32"],"profile_ids":["q"]}"#);
    let [Edit::Elements { set, add, remove, .. }] = &edits[..] else { panic!("{edits:?}") };
    assert_eq!(**set, *set_of("has(x)", true));
    let key = SetKey::Addr("10.0.0.9/32".parse().unwrap());
    assert_eq!((add.clone(), remove.len()), (BTreeMap::from([(key, SetValue::Member)]), 0));

    // An endpoint like an existing one only adds elements of maps.
    let near = "/calico/v1/host/h1/workload/cni/w2/endpoint/eth0";
    let value =
        W1.1.replace("cali1", "cali2").replace("10.0.0.1/", "10.0.0.2/").replace("fd00::1/", "fd00::2/");
    let edits = change(near, &value);
    let sets: Vec<&str> = edits
        .iter()
        .map(|edit| match edit {
            Edit::Elements { set, add, .. } if add.len() == 1 => &**set,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        sets,
        [
            "from-v4",
            "from-v6",
            "workload-interfaces",
            "from-profiles",
            "from-workload",
            "raw-interfaces",
            "to-profiles",
            "to-workload"
        ]
    );
}

#[test]
fn floating_addresses_lead_inside_and_the_smaller_as_text_wins() {
    let endpoint = |name: &str, nets: &str, nat: &str| {
        format!(r#"{{"state":"active","name":"{name}","ipv4_nets":[{nets}],"ipv4_nat":[{nat}]}}"#)
    };
    let first = endpoint("cali1", r#""10.0.0.9/32""#, r#"{"int_ip":"10.0.0.9","ext_ip":"192.0.2.5"}"#);
    // As text, 10.0.0.10 sorts before 10.0.0.9.
    let second = endpoint("cali2", r#""10.0.0.10/32""#, r#"{"int_ip":"10.0.0.10","ext_ip":"192.0.2.5"}"#);
    let renderer = renderer(&[
        ("/calico/v1/host/h1/workload/cni/w1/endpoint/eth0", &first),
        ("/calico/v1/host/h1/workload/cni/w2/endpoint/eth0", &second),
    ]);
    let elements = |set: &str| -> Vec<String> {
        let of = |(key, value): (&SetKey, &SetValue)| format!("{key} {value:?}");
        renderer.table().sets[set].elements.iter().map(of).collect()
    };
    assert_eq!(elements("dnat-v4"), ["192.0.2.5 Addr(10.0.0.10)"]);
    assert_eq!(elements("hairpin-v4"), ["10.0.0.10 . 10.0.0.10 Addr(192.0.2.5)"]);
    assert_eq!(lines(&renderer, "nat-prerouting")[0], "meta nfproto ipv4 dnat ip to ip daddr map @dnat-v4");
}

#[test]
fn a_foreign_inside_address_is_left_alone() {
    let mut nat = nat::Nat::default();
    let mut wanted = desired::DesiredTable::default();
    let map = Map::Dnat { v4: true };
    wanted.add_set(&map.name(), map.of(), map.comment(), BTreeMap::new());
    let mut workload = tortie_engine::policy::WorkloadPolicy {
        interface: "cali1".parse().unwrap(),
        active: true,
        nets: vec!["10.0.0.0/30".parse().unwrap()],
        spoofed_sources: Vec::new(),
        mac: None,
        nats: vec![([10, 0, 0, 9].into(), [192, 0, 2, 5].into())],
        inbound: tortie_engine::policy::Stages::default(),
        outbound: tortie_engine::policy::Stages::default(),
    };
    let endpoint = tortie_engine::policy::EndpointPolicy::Workload(workload.clone());
    nat.count(Some(&endpoint), true, &mut wanted);
    assert_eq!(wanted.elements("dnat-v4").unwrap().len(), 0);
    workload.nets = vec!["10.0.0.8/30".parse().unwrap()];
    nat.count(Some(&tortie_engine::policy::EndpointPolicy::Workload(workload)), true, &mut wanted);
    assert_eq!(wanted.elements("dnat-v4").unwrap().len(), 1);
}

#[test]
fn base_chains_stand_before_or_after_those_of_others() {
    let hooks = |mode: &str| -> Vec<(String, i32)> {
        let renderer = renderer(&[W1, ("/calico/v1/config/ChainInsertMode", mode)]);
        let hook =
            |(name, chain): (&Name, &crate::nft::ir::Chain)| Some((name.to_string(), chain.hook?.priority));
        renderer
            .table()
            .chains
            .iter()
            .filter_map(hook)
            .filter(|(name, _)| name.starts_with("forward"))
            .collect()
    };
    assert_eq!(hooks("insert"), [("forward-from".into(), -2), ("forward-to".into(), -1)]);
    assert_eq!(hooks("append"), [("forward-from-late".into(), 1), ("forward-to-late".into(), 2)]);
}

#[test]
fn the_way_of_workloads() {
    let renderer = renderer(&[W1, ETH0, ("/calico/v1/config/InterfacePrefix", "cali,tap")]);
    let end = |direction| names::chain(&Node::Denied(Denied::EndOfProfiles { direction }));
    assert_eq!(
        lines(&renderer, "raw-prerouting"),
        [
            "meta mark set meta mark & 0xfcffffff",
            r#"iifname "cali*" goto raw-workload"#,
            r#"iifname "tap*" goto raw-workload"#,
            "iifname vmap @raw-host-in",
        ]
    );
    assert_eq!(
        lines(&renderer, "raw-workload"),
        [
            "meta nfproto ipv4 ip daddr 127.0.0.0/8 goto deny-loopback",
            "iifname vmap @raw-interfaces",
            "goto deny-unknown"
        ]
    );
    assert_eq!(
        lines(&renderer, "anti-spoof"),
        [
            "meta nfproto ipv4 iifname . ip saddr @from-v4 accept",
            "meta nfproto ipv6 iifname . ip6 saddr @from-v6 accept",
            "meta nfproto ipv6 ip6 saddr fe80::/10 accept",
            "meta nfproto ipv6 ip6 saddr :: accept",
            "goto deny-spoofed",
        ]
    );
    assert_eq!(
        lines(&renderer, "workload-to-host"),
        [
            "meta nfproto ipv6 meta l4proto 58 icmpv6 type 130-133 accept",
            "meta nfproto ipv6 meta l4proto 58 icmpv6 type 135-136 accept",
            "iifname vmap @from-workload",
            "iifname vmap @from-profiles",
            &format!("iifname @workload-interfaces goto {}", end(Direction::Outbound)),
            "goto deny-unknown",
        ]
    );
    assert_eq!(
        lines(&renderer, "forward-to-workload"),
        [
            "oifname vmap @to-workload",
            "oifname vmap @to-profiles",
            &format!("oifname @workload-interfaces goto {}", end(Direction::Inbound)),
            "goto deny-unknown",
        ]
    );
    // Felix 2: failsafe ports precede everything except established connections (facts 4.2).
    let SetValue::Goto(host) = &renderer.table().sets["host-in"].elements[&SetKey::Interface("eth0".into())]
    else {
        panic!("it goes somewhere")
    };
    assert_eq!(
        lines(&renderer, host)[..3],
        ["ct state established,related accept", "ct state invalid drop", "jump failsafe-in"]
    );
    assert_eq!(
        lines(&renderer, "failsafe-in"),
        ["meta l4proto 6 th dport { 22, 179 } accept", "meta l4proto 17 th dport { 68, 3784, 4784 } accept"]
    );
    let hostile = SetKey::Interface("eth0".into());
    assert!(
        renderer.table().sets["raw-host-in"].elements.is_empty()
            && !renderer.table().sets["to-workload"].elements.contains_key(&hostile)
    );
}

#[test]
fn networks_of_sources_have_a_set_while_there_are_any() {
    let wide = W1.1.replace("10.0.0.1/32\"", "10.0.0.0/28\",\"10.0.0.3/32\",\"10.0.1.1/32\"");
    let renderer = renderer(&[(W1.0, &wide)]);
    let keys: Vec<String> =
        renderer.table().sets["from-nets-v4"].elements.keys().map(ToString::to_string).collect();
    assert_eq!(keys, ["cali1 . 10.0.0.0/28"]);
    let keys: Vec<String> =
        renderer.table().sets["from-v4"].elements.keys().map(ToString::to_string).collect();
    assert_eq!(keys, ["cali1 . 10.0.1.1"]);
    assert_eq!(
        lines(&renderer, "anti-spoof")[1],
        "meta nfproto ipv4 iifname . ip saddr @from-nets-v4 accept"
    );
    assert!(!renderer.table().sets.contains_key("from-nets-v6"));
}

#[test]
fn inactive_endpoints_are_dropped_even_in_the_middle_of_a_connection() {
    let renderer = renderer(&[(W1.0, &W1.1.replace("\"active\"", "\"inactive\""))]);
    for (input, dst) in [("cali1", "192.0.2.9"), ("eth0", "10.0.0.1")] {
        let packet = interpret::Packet {
            src: "10.0.0.1".parse().unwrap(),
            dst: dst.parse().unwrap(),
            protocol: 6,
            ports: Some((1, 2)),
            icmp: None,
            input: Some(input.into()),
            state: Conn::Established { reply: false },
            mark: 0,
        };
        let out = if input == "eth0" { "cali1" } else { "eth0" };
        let outcome = interpret::send(renderer.table(), packet, &BTreeSet::new(), |_| Route::Out(out.into()));
        assert_eq!(outcome.dropped, Some(("inactive".into(), 1)));
    }
}

#[test]
fn pools_and_the_tunnel_are_masqueraded() {
    let pool = |extra: &str| format!(r#"{{"cidr":"10.0.0.0/16"{extra}}}"#);
    let (masquerading, plain) = (pool(r#","masquerade":true"#), r#"{"cidr":"10.0.4.0/24","ipip":"tunl0"}"#);
    let renderer = renderer(&[
        W1,
        ("/calico/v1/ipam/v4/pool/10.0.0.0-16", &masquerading),
        ("/calico/v1/ipam/v4/pool/10.0.4.0-24", plain),
        ("/calico/v1/config/IpInIpTunnelAddr", "10.0.4.1"),
    ]);
    assert_eq!(
        lines(&renderer, "nat-postrouting"),
        [
            "meta nfproto ipv4 snat ip to ip saddr . ip daddr map @hairpin-v4",
            "meta nfproto ipv6 snat ip6 to ip6 saddr . ip6 daddr map @hairpin-v6",
            "meta nfproto ipv4 ip saddr @masquerade-v4 ip daddr != @pools-v4 masquerade",
            "meta nfproto ipv6 ip6 saddr @masquerade-v6 ip6 daddr != @pools-v6 masquerade",
            r#"meta nfproto ipv4 oifname "tunl0" ip saddr != 10.0.4.1 fib saddr type local masquerade"#,
        ]
    );
    // One pool inside another: the elements of an interval set do not overlap.
    let keys: Vec<String> =
        renderer.table().sets["pools-v4"].elements.keys().map(ToString::to_string).collect();
    assert_eq!(keys, ["10.0.0.0/16"]);
}

#[test]
fn ipip_comes_from_known_hosts_only() {
    let on = ("/calico/v1/config/IpInIpEnabled", "true");
    let renderer = renderer(&[W1, on, ("/calico/v1/host/h2/bird_ip", "192.0.2.2")]);
    assert_eq!(
        lines(&renderer, "input-from")[..3],
        [
            "meta mark & 0x2000000 != 0 accept",
            "meta nfproto ipv4 meta l4proto 4 ip saddr @ipip-hosts-v4 fib daddr type local accept",
            "meta nfproto ipv4 meta l4proto 4 goto deny-ipip",
        ]
    );
    assert_eq!(
        lines(&renderer, "output")[2],
        "meta nfproto ipv4 meta l4proto 4 ip daddr @ipip-hosts-v4 fib saddr type local accept"
    );
}

#[test]
fn vxlan_comes_from_known_hosts_only_and_is_not_tracked() {
    let pool = ("/calico/v1/ipam/v4/pool/10.0.0.0-16", r#"{"cidr":"10.0.0.0/16","vxlan_mode":"always"}"#);
    let keys = [
        W1,
        pool,
        ("/calico/bgp/v1/host/h2/ip_addr_v4", "192.0.2.2"),
        ("/calico/v1/config/Ipv6Support", "false"),
        ("/calico/v1/host/h1/config/IPv4VXLANTunnelAddr", "10.0.4.1"),
    ];
    let on = renderer(&keys);
    let udp = "meta nfproto ipv4 meta l4proto 17 th dport 4789";
    assert_eq!(
        lines(&on, "input-from")[1..3],
        [
            format!("{udp} ip saddr @vxlan-hosts-v4 fib daddr type local accept"),
            format!("{udp} goto deny-vxlan"),
        ]
    );
    let accepted = format!("{udp} ip daddr @vxlan-hosts-v4 fib saddr type local accept");
    assert!(lines(&on, "output").contains(&accepted));
    for (chain, side) in [("raw-prerouting", "daddr"), ("raw-output", "saddr")] {
        let before_policy = format!("{udp} fib {side} type local notrack");
        let lines = lines(&on, chain);
        assert_eq!(lines.iter().rev().nth(1), Some(&before_policy), "{lines:?}");
    }
    assert_eq!(lines(&on, "forward-from-workload")[0], format!("{udp} goto deny-vxlan-of-workload"));
    assert_eq!(
        lines(&on, "nat-postrouting").pop().unwrap(),
        r#"meta nfproto ipv4 oifname "vxlan.calico" ip saddr != 10.0.4.1 fib saddr type local masquerade"#
    );
    let allowed = [&keys[..], &[("/calico/v1/config/AllowVXLANPacketsFromWorkloads", "true")]].concat();
    assert!(!lines(&renderer(&allowed), "forward-from-workload")[0].contains("4789"));
}
