//! Packet rules in a kernel that other processes use too: restarts, foreign tables, and manual deletions.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test says with a panic what is wrong")]

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use crate::common::kernel_thread::{PATIENCE, Rig, eventually};
use crate::common::netns::in_netns;
use crate::common::policy_store::Policy;
use crate::common::tools::tool;
use serde_json::Value;
use tortie_engine::policy::{Chain, Direction, End, Rule, RulesetDelta, SetId, Source};
use tortie_kernel::{KernelFact, Mode, Options};

fn run(program: &PathBuf, words: &str) -> String {
    let out = Command::new(program).args(words.split_whitespace()).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{} {words}: {}", program.display(), String::from_utf8_lossy(&out.stderr));
    text
}

fn options() -> Options {
    Options { policy: Mode::Program, ..Options::new(Mode::Observe) }
}

fn put(key: &str, value: &str) -> (String, Option<String>) {
    (format!("/calico/v1/{key}"), Some(value.to_owned()))
}

/// Two local workloads, some remote ones, a host endpoint, policies over sets, a profile.
fn store() -> Vec<(String, Option<String>)> {
    let mut keys = vec![
        put(
            "policy/profile/p1/rules",
            r#"{"inbound_rules":[{"action":"allow","src_tag":"t1"}],"outbound_rules":[{"action":"allow"}]}"#,
        ),
        put("policy/profile/p1/tags", r#"["t1"]"#),
        put(
            "policy/tier/default/policy/web",
            r#"{"selector":"role == 'web'","order":1,"inbound_rules":[
            {"action":"deny","protocol":"tcp","dst_ports":[22],"src_net":"198.51.100.0/24"},
            {"action":"allow","src_selector":"role == 'web'"}],"outbound_rules":[{"action":"allow"}]}"#,
        ),
        put("host/h1/endpoint/eth0", r#"{"name":"eth0","labels":{"role":"web"}}"#),
        put("ipam/v4/pool/10.65.0.0-16", r#"{"cidr":"10.65.0.0/16","masquerade":true}"#),
    ];
    for n in 1..=9 {
        let host = if n < 3 { "h1" } else { "h2" };
        let value = format!(
            r#"{{"state":"active","name":"cali{n}","ipv4_nets":["10.65.0.{n}/32"],"profile_ids":["p1"],"labels":{{"role":"web"}}}}"#
        );
        keys.push(put(&format!("host/{host}/workload/cni/w{n}/endpoint/eth0"), &value));
    }
    keys
}

/// Returns the table with its handles, which change when an object is rewritten, and without its counters.
fn listed(nft: &PathBuf) -> Vec<String> {
    let text = run(nft, "-j -a list table inet tortie");
    let Value::Object(top) = serde_json::from_str(&text).unwrap() else { panic!("{text}") };
    let mut list: Vec<Value> = top["nftables"].as_array().unwrap().clone();
    list.iter_mut().for_each(without_counters);
    list.iter().map(ToString::to_string).filter(|line| !line.contains("metainfo")).collect()
}

fn without_counters(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if let Some(Value::Object(counter)) = fields.get_mut("counter") {
                counter.clear();
            }
            fields.values_mut().for_each(without_counters);
        }
        Value::Array(list) => list.iter_mut().for_each(without_counters),
        _ => {}
    }
}

/// The same without handles.
fn meaning(nft: &PathBuf) -> Vec<String> {
    let mut lines: Vec<String> = listed(nft)
        .iter()
        .map(|line| {
            let mut value: Value = serde_json::from_str(line).unwrap();
            let object = value.as_object_mut().unwrap().values_mut().next().unwrap();
            object.as_object_mut().unwrap().remove("handle");
            sort_sets(&mut value);
            value.to_string()
        })
        .collect();
    lines.sort();
    lines
}

/// Sorts the elements of a set, which have no order.
fn sort_sets(value: &mut Value) {
    if let Some(Value::Array(list)) = value.get_mut("set").and_then(|set| set.get_mut("elem")) {
        list.sort_by_key(ToString::to_string);
    }
    if let Some(Value::Array(list)) = value.get_mut("map").and_then(|map| map.get_mut("elem")) {
        list.sort_by_key(ToString::to_string);
    }
}

fn repaired(rig: &Rig) -> (usize, String) {
    rig.wait("Repaired", |fact| match fact {
        KernelFact::Repaired { objects, first, .. } => Some((*objects, first.clone())),
        _ => None,
    })
}

#[test]
fn what_hands_delete_is_back_and_counted() {
    in_netns(|| {
        let Some(nft) = tool("nft") else { return };
        let rig = Rig::start(&options());
        let mut policy = Policy::new();
        policy.change(&rig, &store());
        let whole = meaning(&nft);
        assert!(whole.len() > 30, "{whole:#?}");
        let name = |what: &str, with: &str| {
            let line = listed(&nft)
                .into_iter()
                .find(|l| l.starts_with(&format!("{{\"{what}\"")) && l.contains(with));
            let value: Value =
                serde_json::from_str(&line.unwrap_or_else(|| panic!("no {what} with {with}"))).unwrap();
            value[what].clone()
        };
        let rule = name("rule", "web");
        let chain = rule["chain"].as_str().unwrap().to_owned();
        let set = name("set", "role == ")["name"].as_str().unwrap().to_owned();
        let hands = [
            (format!("delete rule inet tortie {chain} handle {}", rule["handle"]), "rules"),
            (format!("flush chain inet tortie {chain}"), "rules"),
            (format!("delete element inet tortie {set} {{ 10.65.0.4 }}"), "element"),
            (format!("add element inet tortie {set} {{ 192.0.2.66 }}"), "element"),
            ("delete element inet tortie from-workload { cali1 }".to_owned(), "element"),
            (format!("insert rule inet tortie {chain} accept"), "rules"),
            ("add chain inet tortie strange { type filter hook input priority 5; }".to_owned(), "strange"),
            ("add set inet tortie odd { type ipv4_addr; }".to_owned(), "odd"),
            ("flush table inet tortie".to_owned(), "rules"),
            ("delete table inet tortie".to_owned(), "missing"),
        ];
        let mut counted = 0;
        for (words, said) in hands {
            run(&nft, &words);
            let (objects, first) = repaired(&rig);
            assert!(objects > 0 && first.contains(said), "{words}: {objects} objects, {first}");
            counted += objects as u64;
            assert_eq!(meaning(&nft), whole, "{words}");
            let seen = rig
                .ask(|view| (view.counters().external_changes, view.rule_counts().unwrap().external_changes));
            assert_eq!(seen, (counted, counted), "{words}");
        }
        rig.stop();
    });
}

#[test]
fn a_restart_writes_nothing_that_is_right_and_repairs_what_is_not() {
    in_netns(|| {
        let Some(nft) = tool("nft") else { return };
        let rig = Rig::start(&options());
        let mut policy = Policy::new();
        policy.change(&rig, &store());
        rig.stop();
        let before = listed(&nft);
        let mut rig = Rig::start(&options());
        policy.restart(&rig);
        assert_eq!(listed(&nft), before, "no handle changed");
        assert_eq!(rig.ask(|view| view.rule_counts().unwrap().transactions), 0);
        rig.stop();

        // While the agent was down, one chain was flushed, one endpoint was removed and one added.
        run(&nft, "flush chain inet tortie forward-from");
        let gone = ("/calico/v1/host/h1/workload/cni/w2/endpoint/eth0".to_owned(), None);
        rig = Rig::start(&options());
        policy.restart(&rig);
        policy.change(&rig, &[gone]);
        rig.stop();
        let changed = meaning(&nft);
        run(&nft, "delete table inet tortie");
        let rig = Rig::start(&options());
        policy.restart(&rig);
        assert_eq!(meaning(&nft), changed, "from what was there, and from nothing");
        rig.stop();
    });
}

#[test]
fn what_belongs_to_others_stays_byte_for_byte() {
    in_netns(|| {
        let tools = [tool("nft"), tool("iptables-nft"), tool("iptables-nft-save"), tool("ipset")];
        let [Some(nft), Some(iptables), Some(save), Some(ipset)] = tools else { return };
        run(&ipset, "create theirs hash:ip");
        run(&ipset, "add theirs 192.0.2.7");
        for words in [
            "-w -A INPUT -p tcp --dport 9 -j DROP",
            "-w -A FORWARD -s 203.0.113.0/24 -j ACCEPT",
            "-w -t nat -A POSTROUTING -s 203.0.113.9 -j MASQUERADE",
        ] {
            run(&iptables, words);
        }
        for words in [
            "add table inet theirs",
            "add set inet theirs from-v4 { type ipv4_addr; flags interval; elements = { 10.65.0.0/24 }; }",
            "add chain inet theirs forward-from { type filter hook forward priority -1; policy accept; }",
            "add rule inet theirs forward-from ip saddr @from-v4 counter accept",
            "add table ip tortie",
            "add chain ip tortie mine",
        ] {
            run(&nft, words);
        }
        let others = || {
            let list = run(&nft, "-a list ruleset");
            let theirs: Vec<&str> = list
                .split("\ntable ")
                .filter(|table| !table.trim_start_matches("table ").starts_with("inet tortie "))
                .collect();
            let save: String = run(&save, "")
                .lines()
                .filter(|line| !line.starts_with('#'))
                .map(|line| format!("{line}\n"))
                .collect();
            (theirs.join("\n").trim_end().to_owned(), save, run(&ipset, "save"))
        };
        let before = others();
        assert!(
            before.0.contains("theirs") && before.1.contains("--dport 9") && before.2.contains("192.0.2.7"),
            "{before:#?}"
        );
        let mut rig = Rig::start(&options());
        let mut policy = Policy::new();
        policy.change(&rig, &store());
        for n in 0..100 {
            let value = format!(
                r#"{{"selector":"all()","order":{n},"inbound_rules":[{{"src_net":"10.{n}.0.0/16"}},{{"action":"deny"}}]}}"#
            );
            policy.change(&rig, &[put(&format!("policy/tier/default/policy/x{}", n % 7), &value)]);
        }
        assert_eq!(others(), before);
        rig.stop();
        assert_eq!(others(), before);
        rig = Rig::start(&options());
        policy.restart(&rig);
        assert_eq!(others(), before);
        rig.stop();
    });
}

#[test]
fn observing_writes_nothing_and_says_what_differs() {
    in_netns(|| {
        let Some(nft) = tool("nft") else { return };
        let rig = Rig::start(&Options { policy: Mode::Observe, ..options() });
        let mut policy = Policy::new();
        policy.change(&rig, &store());
        assert_eq!(run(&nft, "list ruleset"), "");
        let (count, first) = rig.ask(|view| {
            let (count, words) = view.rules_drift();
            (count, words.to_vec())
        });
        assert!(count > 30 && first.iter().any(|word| word.contains("is missing")), "{count} {first:?}");
        rig.stop();
        let rig = Rig::start(&options());
        policy.restart(&rig);
        rig.stop();
        let rig = Rig::start(&Options { policy: Mode::Observe, ..options() });
        policy.restart(&rig);
        assert_eq!(rig.ask(|view| view.rules_drift().0), 0);
        run(&nft, "flush chain inet tortie forward-to");
        eventually("the difference is seen", PATIENCE, || rig.ask(|view| view.rules_drift().0) > 0);
        rig.stop();
    });
}

/// Returns a rule with more matches than the kernel accepts, which no store can require
/// (`NFT_RULE_MAXEXPRS`).
fn too_long() -> Rule {
    let id = |n: u32| SetId::of(&format!("has(l{n})").parse().unwrap());
    Rule { src: End { sets: (0..70).map(id).collect(), ..End::default() }, ..Rule::default() }
}

/// Modifies the inbound rules of policies or profiles so that the kernel rejects them.
fn worsen(delta: &mut RulesetDelta, which: impl Fn(&Source) -> bool) {
    for (id, chain) in &mut delta.chains {
        if id.direction == Direction::Inbound && which(&id.source) && chain.is_some() {
            *chain = Some(Arc::new(Chain { rules: vec![too_long()], fail_closed: None }));
        }
    }
}

#[test]
fn a_policy_that_the_kernel_refuses_denies_and_the_rest_is_in_force() {
    let Some(nft) = tool("nft") else { return };
    in_netns(move || {
        let rig = Rig::start(&options());
        let mut policy = Policy::new();
        policy.change(&rig, &store());
        let other = |order: u32| {
            put(
                "policy/tier/default/policy/db",
                &format!(
                    r#"{{"selector":"role == 'db'","order":{order},"inbound_rules":[{{"action":"allow","protocol":"tcp","dst_ports":[{order}]}}]}}"#
                ),
            )
        };
        let web = |port: u32| {
            put(
                "policy/tier/default/policy/web",
                &format!(
                    r#"{{"selector":"role == 'web'","order":1,"inbound_rules":[{{"action":"allow","protocol":"tcp","dst_ports":[{port}]}}]}}"#
                ),
            )
        };
        let db = put(
            "host/h1/workload/cni/w2/endpoint/eth0",
            r#"{"state":"active","name":"cali2","ipv4_nets":["10.65.0.2/32"],"profile_ids":["p1"],"labels":{"role":"db"}}"#,
        );
        let is_web = |source: &Source| matches!(source, Source::Policy { name, .. } if &**name == "web");
        let failed = policy.try_change(&rig, &[web(81), db, other(5432)], |delta| worsen(delta, is_web));
        let keys: Vec<&str> = failed.keys().map(String::as_str).collect();
        let expected =
            ["/calico/v1/host/h1/endpoint/eth0", "/calico/v1/host/h1/workload/cni/w1/endpoint/eth0"];
        assert_eq!(keys, expected, "{failed:?}");
        let why = "the kernel refuses the rules of policy web, which denies meanwhile: ";
        assert!(failed.values().all(|text| text.starts_with(why)), "{failed:?}");
        let text = run(&nft, "list table inet tortie");
        assert_eq!(text.matches("the kernel refuses these rules: denied").count(), 1, "{text}");
        assert!(text.contains("tcp dport 5432") && !text.contains("dport 22"), "{text}");
        assert_eq!(rig.ask(|view| view.rules_problem().map(str::to_owned)), None);
        // A later change is applied on top of it, without delay.
        let more = put("policy/profile/p1/tags", r#"["t1","t2"]"#);
        assert_eq!(policy.try_change(&rig, &[more, other(5433)], |_| ()).len(), 2);
        assert!(run(&nft, "list table inet tortie").contains("tcp dport 5433"));
        // It is retried automatically, and does not count as a foreign change.
        let refused = rig.ask(|view| view.rule_counts().unwrap().refused);
        eventually("another attempt", PATIENCE, || {
            rig.ask(|view| view.rule_counts().unwrap().refused) > refused
        });
        assert_eq!(rig.ask(|view| view.rule_counts().unwrap().external_changes), 0);
        // A valid policy is in force at once.
        policy.change(&rig, &[web(82)]);
        let text = run(&nft, "list table inet tortie");
        assert!(text.contains("tcp dport 82") && !text.contains("the kernel refuses"), "{text}");
        rig.stop();
    });
}

#[test]
fn nothing_leads_to_endpoints_while_there_are_no_rules_at_all() {
    in_netns(|| {
        for line in ["link add cali1 type veth peer name far1", "link set far1 up", "link set cali1 up"] {
            crate::common::netns::ip(line);
        }
        let routes = || {
            let out = Command::new("ip").args(["-4", "route", "show", "dev", "cali1"]).output().unwrap();
            String::from_utf8_lossy(&out.stdout).into_owned()
        };
        let rig = Rig::start(&Options { policy: Mode::Program, ..Options::new(Mode::Program) });
        let mut policy = Policy::new();
        // More failures than can be attributed to single profiles.
        let names: Vec<String> = (0..20).map(|n| format!("bad{n}")).collect();
        let open = r#"{"inbound_rules":[{"action":"allow"}],"outbound_rules":[{"action":"allow"}]}"#;
        let mut keys: Vec<_> =
            names.iter().map(|name| put(&format!("policy/profile/{name}/rules"), open)).collect();
        let profiles = serde_json::to_string(&names).unwrap();
        let value = format!(
            r#"{{"state":"active","name":"cali1","ipv4_nets":["10.65.0.1/32"],"profile_ids":{profiles}}}"#
        );
        keys.push(put("host/h1/workload/cni/w1/endpoint/eth0", &value));
        let failed = policy.try_change(&rig, &keys, |delta| worsen(delta, |_| true));
        assert_eq!(failed.len(), 1, "{failed:?}");
        std::thread::sleep(Duration::from_millis(300));
        assert!(!routes().contains("10.65.0.1"), "{}", routes());
        let other = r#"{"inbound_rules":[{"action":"allow","protocol":"tcp"}],"outbound_rules":[{"action":"allow"}]}"#;
        let keys: Vec<_> =
            names.iter().map(|name| put(&format!("policy/profile/{name}/rules"), other)).collect();
        policy.try_change(&rig, &keys, |_| ());
        eventually("the route", PATIENCE, || routes().contains("10.65.0.1"));
        rig.stop();
    });
}

#[test]
fn questions_are_answered_while_the_kernel_carries_out_the_first_transaction() {
    in_netns(|| {
        let (rig, mut policy) = (Rig::start(&options()), Policy::new());
        let rule = |n: u16| format!(r#"{{"protocol":"tcp","src_net":"198.51.100.0/24","dst_ports":[{n}]}}"#);
        let rules = (1..=3_000).map(rule).collect::<Vec<_>>().join(",");
        let long = format!(r#"{{"selector":"role == 'web'","order":2,"inbound_rules":[{rules}]}}"#);
        let mut keys = store();
        keys.push(put("policy/tier/default/policy/long", &long));
        policy.change_with(&rig, &keys, |_| ());
        let carried_out =
            || rig.ask(|view| view.rule_counts().map(|counts| (counts.rules > 3_000, counts.transactions)));
        let mut before = 0;
        while carried_out() == Some((true, 0)) {
            before += 1;
        }
        assert!(before > 1, "{before} questions were answered before the transaction was");
        // The table, and then the maps that refer to its chains.
        assert!(matches!(carried_out(), Some((true, 1 | 2))));
        rig.stop();
    });
}
