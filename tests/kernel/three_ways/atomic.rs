//! During policy changes, no packet is lost that old and new rules allow, and none passes that both deny.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use tortie_engine::policy::Packet;
use tortie_engine::policy::path::Place;
use tortie_kernel::{Mode, Options};

use super::net::Net;
use super::setting;
use crate::common::concurrency;
use crate::common::kernel_thread::Rig;
use crate::common::netns;
use crate::common::policy_store::Policy;

/// Connections from before the changes, which continue without a rule that would allow a new one.
const LONG: u16 = 200;
const PASSES: u16 = 80;
const FAILS: u16 = 8080;

#[test]
fn no_change_loses_what_both_allow_or_passes_what_both_deny() {
    netns::in_netns(|| changes(setting("TORTIE_SEED", rand::random()), setting("TORTIE_CHANGES", 1_000)));
}

#[test]
#[ignore = "takes minutes: make test-long"]
fn long_ten_thousand_changes_lose_and_pass_nothing() {
    netns::in_netns(|| changes(setting("TORTIE_SEED", rand::random()), setting("TORTIE_CHANGES", 10_000)));
}

fn workload(name: &str) -> Place {
    Place::Interface(name.into())
}

fn packet(protocol: u8, forward: bool, ports: (u16, u16)) -> Packet {
    let (one, two) = ("10.65.0.1".parse().unwrap(), "10.65.0.2".parse().unwrap());
    if forward {
        Packet { src: one, dst: two, protocol, ports: Some(ports), icmp: None }
    } else {
        Packet { src: two, dst: one, protocol, ports: Some((ports.1, ports.0)), icmp: None }
    }
}

/// Number of packets that may be under way. The kernel drops packets without a rule when a processor has a
/// thousand of them waiting, or when nobody reads the sockets of a loaded machine.
const UNDER_WAY: u64 = 300;

/// Sends as fast as packets are received, until stopped: of five packets, two are first packets of allowed
/// connections, one is denied, and two belong to old connections in both directions. At tens of thousands per
/// second, few changes with a moment between old and new rules would go undetected.
fn traffic(net: &Net, stop: &AtomicBool, received: &AtomicU64) -> (BTreeMap<u32, Place>, BTreeSet<u32>) {
    let (mut passes, mut fails) = (BTreeMap::new(), BTreeSet::new());
    let (mut number, mut round, mut lost) = (1_000_000, 0u16, 0u64);
    while !stop.load(Ordering::Relaxed) {
        let port = 1024 + round % 60_000;
        round = (round + 1) % 60_000;
        let mut send = |protocol, forward, ports, passing: bool| {
            number += 1;
            let (from, to) = if forward { ("cali1", "cali2") } else { ("cali2", "cali1") };
            if passing {
                passes.insert(number, workload(to));
            } else {
                fails.insert(number);
            }
            net.send(&workload(from), &packet(protocol, forward, ports), number);
        };
        send(6, true, (port, PASSES), true);
        if round % 2 == 0 {
            send(6, true, (port, FAILS), false);
        }
        send(17, round % 2 == 0, (2_000 + round / 2 % LONG, 4242), true);
        lost += until_received(passes.len() as u64 - lost, received, UNDER_WAY);
    }
    until_received(passes.len() as u64 - lost, received, 0);
    (passes, fails)
}

/// Waits until all but so many of the sent packets were received. Returns the number of those that do not
/// come.
fn until_received(sent: u64, received: &AtomicU64, under_way: u64) -> u64 {
    let begin = Instant::now();
    loop {
        let missing = sent.saturating_sub(received.load(Ordering::Relaxed));
        if missing <= under_way {
            return 0;
        }
        if begin.elapsed() > Duration::from_secs(5) {
            return missing;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}

fn puts(rng: &mut StdRng, changed: &mut u64) -> Vec<(String, Option<String>)> {
    *changed += 1;
    let some = |key: &str, value: Value| (format!("/calico/v1/{key}"), Some(value.to_string()));
    let selector = |rng: &mut StdRng| {
        ["all()", "has(role)", "role == 'web'", "has(t1)", "role != 'db'"][rng.random_range(0..5)]
    };
    let from = ["role == 'web'", "env == 'e' || role == 'web'", "has(t1) && has(role)", "!has(nothing)"];
    let noise = |rng: &mut StdRng| match rng.random_range(0..5) {
        0 => json!({ "action": "deny", "protocol": "tcp", "dst_ports": [443, "9000:9999"] }),
        1 => json!({ "action": "deny", "src_selector": "role == 'db'" }),
        2 => json!({ "action": "allow", "protocol": "udp", "dst_ports": [rng.random_range(1..4000)] }),
        3 => json!({ "action": "deny", "src_net": format!("10.{}.0.0/16", rng.random_range(66..250)) }),
        _ => json!({ "action": "allow", "protocol": "icmp" }),
    };
    let rules = |rng: &mut StdRng| {
        let mut rules: Vec<Value> = (0..rng.random_range(0..4)).map(|_| noise(rng)).collect();
        let allow = json!({ "action": "allow", "protocol": "tcp", "dst_ports": [PASSES], "src_selector": from[rng.random_range(0..4)] });
        rules.insert(rng.random_range(0..=rules.len()), allow);
        rules
    };
    match rng.random_range(0..10) {
        // A policy is added, or gets other rules, another order or selector.
        0..=3 => {
            let name = ["a", "b", "c"][rng.random_range(0..3)];
            let policy = json!({ "selector": selector(rng), "order": rng.random_range(0..9),
                                 "inbound_rules": rules(rng), "outbound_rules": [{ "action": "allow" }] });
            vec![some(&format!("policy/tier/default/policy/{name}"), policy)]
        }
        4 => vec![(
            format!("/calico/v1/policy/tier/default/policy/{}", ["a", "b", "c"][rng.random_range(0..3)]),
            None,
        )],
        5 => {
            let tags: &[&str] = if rng.random_bool(0.5) { &["t1"] } else { &["t1", "t2"] };
            vec![some("policy/profile/p1/tags", json!(tags))]
        }
        6 => vec![some(
            "policy/profile/p1/labels",
            json!({ "env": if rng.random_bool(0.5) { "e" } else { "f" } }),
        )],
        7 => vec![some(
            "policy/profile/p1/rules",
            json!({ "inbound_rules": rules(rng), "outbound_rules": [{ "action": "allow" }] }),
        )],
        // Members of sets are added and removed, remote and local.
        8 => {
            let n = rng.random_range(1..200);
            let key = format!("host/h2/workload/cni/x{n}/endpoint/eth0");
            let role = ["web", "db"][rng.random_range(0..2)];
            let value = json!({ "state": "active", "name": "calix", "ipv4_nets": [format!("10.66.0.{n}/32")], "labels": { "role": role } });
            vec![if rng.random_bool(0.3) { (format!("/calico/v1/{key}"), None) } else { some(&key, value) }]
        }
        _ => {
            let key = "host/h1/workload/cni/w3/endpoint/eth0";
            let value = json!({ "state": if rng.random_bool(0.7) { "active" } else { "inactive" }, "name": "cali3",
                                "ipv4_nets": ["10.65.0.3/32"], "profile_ids": ["p1"], "labels": { "role": "web" } });
            vec![if rng.random_bool(0.3) { (format!("/calico/v1/{key}"), None) } else { some(key, value) }]
        }
    }
}

fn changes(seed: u64, count: u64) {
    let _group = concurrency::PACKETS.join();
    eprintln!("TORTIE_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let net = Arc::new(Net::make());
    let options = || Options { policy: Mode::Program, ..Options::new(Mode::Observe) };
    let mut rig = Rig::start(&options());
    let mut policy = Policy::new();
    let web = |name: &str, addr: &str| {
        json!({ "state": "active", "name": name, "ipv4_nets": [addr], "profile_ids": ["p1"], "labels": { "role": "web" } }).to_string()
    };
    let opening =
        json!({ "inbound_rules": [{ "action": "allow" }], "outbound_rules": [{ "action": "allow" }] });
    let key = |key: &str| format!("/calico/v1/{key}");
    policy.change(
        &rig,
        &[
            (key("host/h1/workload/cni/w1/endpoint/eth0"), Some(web("cali1", "10.65.0.1/32"))),
            (key("host/h1/workload/cni/w2/endpoint/eth0"), Some(web("cali2", "10.65.0.2/32"))),
            (key("policy/profile/p1/rules"), Some(opening.to_string())),
            (key("policy/profile/p1/tags"), Some(json!(["t1"]).to_string())),
        ],
    );
    Net::believe_checksums();
    for port in 0..LONG {
        let ports = (2_000 + port, 4242);
        net.send(&workload("cali1"), &packet(17, true, ports), u32::from(port) * 2);
        net.send(&workload("cali2"), &packet(17, false, ports), u32::from(port) * 2 + 1);
    }
    let closing = json!({ "inbound_rules": [{ "action": "allow", "protocol": "tcp", "dst_ports": [PASSES] }],
                          "outbound_rules": [{ "action": "allow" }] });
    policy.change(&rig, &[(key("policy/profile/p1/rules"), Some(closing.to_string()))]);
    net.receive_all(|_, _| {});

    let (stop, received) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let sender = std::thread::spawn({
        let (net, stop, received) = (Arc::clone(&net), Arc::clone(&stop), Arc::clone(&received));
        move || traffic(&net, &stop, &received)
    });
    let done = Arc::new(AtomicBool::new(false));
    let hearer = std::thread::spawn({
        let (net, done, received) = (Arc::clone(&net), Arc::clone(&done), Arc::clone(&received));
        move || {
            let mut seen: BTreeMap<u32, BTreeSet<Place>> = BTreeMap::new();
            loop {
                let last = done.load(Ordering::Relaxed);
                net.receive_all(|place, (number, _)| {
                    // Each packet once, and none that is to be denied.
                    if seen.entry(number).or_default().insert(place.clone()) {
                        received.fetch_add(1, Ordering::Relaxed);
                    }
                });
                if last {
                    return seen;
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    });
    let (mut changed, mut restarts) = (0, 0);
    while changed < count {
        let keys = puts(&mut rng, &mut changed);
        policy.change(&rig, &keys);
        if rng.random_range(0..100) == 0 {
            rig.stop();
            rig = Rig::start(&options());
            policy.restart(&rig);
            restarts += 1;
        }
    }
    stop.store(true, Ordering::Relaxed);
    let (passes, fails) = sender.join().unwrap();
    std::thread::sleep(Duration::from_millis(100));
    done.store(true, Ordering::Relaxed);
    let seen = hearer.join().unwrap();
    let arrived = |number: &u32, at: &Place| seen.get(number).is_some_and(|places| places.contains(at));
    let lost: Vec<&u32> =
        passes.iter().filter(|(number, at)| !arrived(number, at)).map(|(number, _)| number).collect();
    let passed: Vec<&u32> = fails.iter().filter(|number| arrived(number, &workload("cali2"))).collect();
    eprintln!(
        "{changed} changes, {restarts} restarts; {} packets that all allow: {} lost; {} that all deny: {} passed",
        passes.len(),
        lost.len(),
        fails.len(),
        passed.len()
    );
    let few = |of: &[&u32]| format!("{:?}", of.iter().take(10).collect::<Vec<_>>());
    assert!(
        lost.is_empty() && passed.is_empty(),
        "seed {seed}: lost {}, passed {}",
        few(&lost),
        few(&passed)
    );
    assert!(passes.len() > fails.len() && !fails.is_empty());
    rig.stop();
}
