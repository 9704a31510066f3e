//! Randomised tests: several hours of a host, and a day with many changes, each replay to equal effects.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use tortie_bgp::{State, bfd};
use tortie_config::key::EndpointKey;
use tortie_net::Cidr;

use super::{Recorded, Store, block_value, replayed};
use crate::agent::core::effect::Effect;
use crate::agent::core::input::Input;
use crate::agent::core::observed_state::{GcPass, TunnelAddressReport};
use crate::agent::core::view::CoreView;
use crate::agent::journal::decisions::Decisions;
use crate::agent::journal::writer::{MEMBER, SEGMENT};
use crate::agent::replay::Run;
use crate::api::codes;
use crate::api::nodes::NodeStatus;
use crate::speaker::SpeakerFact;
use tortie_engine::routing::{ChangeId, DynamicPeer, Resolved};
use tortie_kernel::{BlackholeAck, BlackholeOutcome, ConnectedNetwork, EndpointCondition, KernelFact};
use tortie_store::{FeedEvent, StoreError};

fn endpoint(host: &str, name: &str) -> String {
    format!("/calico/v1/host/{host}/workload/cni/{name}/endpoint/eth0")
}

fn workload(rng: &mut StdRng) -> String {
    let (interface, addr) = (rng.random_range(0..4), rng.random_range(1..9));
    let role = ["web", "db"].choose(rng).unwrap();
    format!(
        r#"{{"state":"active","name":"cali{interface}","mac":"ee:ee:ee:ee:ee:ee","profile_ids":["open"],
            "ipv4_nets":["10.244.1.{addr}/32"],"ipv6_nets":[],"labels":{{"role":"{role}"}}}}"#
    )
}

/// Returns a change by another writer of the store, with valid or invalid values.
fn change(store: &mut Store, rng: &mut StdRng) -> FeedEvent {
    let host = format!("h{}", rng.random_range(1..5));
    let n = rng.random_range(1..5);
    let block = format!("10.244.{n}.0-26");
    let key = match rng.random_range(0..13) {
        0 => "/calico/v1/Ready".to_owned(),
        1 => format!("/calico/v1/ipam/v4/pool/10.{}.0.0-16", rng.random_range(243..246)),
        2 => format!("/calico/bgp/v1/host/{host}/ip_addr_v4"),
        3 => format!("/calico/bgp/v1/host/{host}/as_num"),
        4 => format!("/calico/ipam/v2/host/h1/ipv4/block/{block}"),
        5 => format!("/calico/ipam/v2/assignment/ipv4/block/{block}"),
        6 => "/calico/v1/policy/profile/open/rules".to_owned(),
        7 => format!("/calico/v1/policy/tier/default/policy/p{n}"),
        8 | 9 => endpoint(&host, &format!("w{n}")),
        10 => format!("/calico/bgp/v1/global/peer_v4/192.0.2.{n}"),
        11 => "/calico/bgp/v1/global/node_mesh".to_owned(),
        _ => "/calico/v1/config/LogSeverityScreen".to_owned(),
    };
    if rng.random_bool(0.2) {
        return store.delete(&key);
    }
    let value = match key.as_str() {
        _ if rng.random_bool(0.1) => r#"{"broken"#.to_owned(),
        "/calico/v1/Ready" => "true".to_owned(),
        k if k.contains("/pool/") => {
            let cidr = k.rsplit('/').next().unwrap().replace('-', "/");
            format!(r#"{{"cidr":"{cidr}","ipip":{}}}"#, ["null", "\"tunl0\""].choose(rng).unwrap())
        }
        k if k.ends_with("ip_addr_v4") => format!("172.30.0.{}", rng.random_range(1..6)),
        k if k.ends_with("as_num") => (64_512 + rng.random_range(0..3)).to_string(),
        k if k.contains("/host/h1/ipv4/block") => {
            format!(r#"{{"state":"{}"}}"#, ["confirmed", "pending"].choose(rng).unwrap())
        }
        k if k.contains("/assignment/") => block_value(&format!("10.244.{n}.0/26"), &host),
        k if k.ends_with("/rules") => {
            r#"{"inbound_rules":[{"action":"allow","src_tag":"web"}],"outbound_rules":[{"action":"allow"}]}"#
                .to_owned()
        }
        k if k.contains("/policy/p") => format!(
            r#"{{"selector":"role == 'web'","order":{},"outbound_rules":[],"inbound_rules":[{{"action":"deny","src_selector":"role == 'db'"}}]}}"#,
            rng.random_range(1..9)
        ),
        k if k.contains("/workload/") => workload(rng),
        k if k.contains("peer_v4") => format!(
            r#"{{"ip":"192.0.2.{n}","as_num":"{}","password":"key {}"}}"#,
            64_512 + rng.random_range(0..3),
            rng.random_range(0..3)
        ),
        k if k.ends_with("node_mesh") => format!(r#"{{"enabled":{}}}"#, rng.random_bool(0.8)),
        _ => "info".to_owned(),
    };
    store.put(&key, &value)
}

fn kernel_fact(recorded: &Recorded, rng: &mut StdRng) -> KernelFact {
    let block: Cidr = format!("10.244.{}.0/26", rng.random_range(1..5)).parse().unwrap();
    let view = CoreView::of(&recorded.core);
    let (rules, intents) = view.unacknowledged();
    let serial = view.enforcement().serial().saturating_sub(rng.random_range(0..=rules));
    let text = || "denied".to_owned();
    let key = EndpointKey::Workload {
        host: "h1".to_owned(),
        orchestrator: "cni".to_owned(),
        workload: "w1".to_owned(),
        endpoint: "eth0".to_owned(),
    };
    match rng.random_range(0..12) {
        0 => KernelFact::Started { routes_v4: 3, routes_v6: 0, blackholes: [1, 0] },
        1..=3 => KernelFact::Applied {
            generation: rng.random_range(1..=intents + 3),
            change: ChangeId(rng.random_range(0..40)),
            failed: if rng.random_bool(0.2) { vec![(block, "no room".to_owned())] } else { Vec::new() },
            acknowledged: vec![BlackholeAck {
                prefix: block,
                change: ChangeId(1),
                outcome: BlackholeOutcome::Kept,
            }],
            micros: rng.random_range(0..900),
        },
        4 => KernelFact::Enforced {
            serial,
            change: ChangeId(3),
            failed: if rng.random_bool(0.3) { BTreeMap::from([(key, text())]) } else { BTreeMap::new() },
            micros: 20,
        },
        5 => {
            let condition = [
                Some(EndpointCondition::Up),
                Some(EndpointCondition::Down("no interface".to_owned())),
                Some(EndpointCondition::Failed(text())),
                None,
            ];
            KernelFact::Endpoints(BTreeMap::from([(key, condition.choose(rng).unwrap().clone())]))
        }
        6 => KernelFact::Learned {
            change: ChangeId(4),
            prefixes: 2,
            written: 1,
            deleted: 0,
            failed: vec![(block, text())],
            sample: vec![(block, ChangeId(4), "installed".into())],
            micros: 9,
        },
        7 => {
            let resolved = Resolved { ifindex: 3, gateway: None, metric: 0 };
            KernelFact::NextHop("172.30.0.2".parse().unwrap(), rng.random_bool(0.5).then_some(resolved))
        }
        8 => KernelFact::Repaired { objects: 2, first: "a route".to_owned(), held: rng.random_bool(0.3) },
        9 => {
            KernelFact::Problem { about: "forwarding of IPv4".into(), text: rng.random_bool(0.5).then(text) }
        }
        10 => {
            let network = ConnectedNetwork {
                interface: "docker0".to_owned(),
                network: if rng.random_bool(0.5) { block } else { "172.17.0.0/16".parse().unwrap() },
                addr: block.addr(),
            };
            KernelFact::Connected(vec![network])
        }
        _ => KernelFact::Transient(text()),
    }
}

fn speaker_fact(rng: &mut StdRng) -> SpeakerFact {
    let name: Arc<str> =
        ["Mesh_172_30_0_2", "Global_192_0_2_1", "Dynamic_192_0_2_9"].choose(rng).copied().unwrap().into();
    let states = [State::Idle, State::Active, State::OpenSent, State::Established];
    match rng.random_range(0..8) {
        0..=2 => SpeakerFact::Peer {
            name,
            from: *states.choose(rng).unwrap(),
            to: *states.choose(rng).unwrap(),
            down: None,
        },
        3 => SpeakerFact::DynamicPeer(DynamicPeer {
            name,
            range: "Global_range".into(),
            remote: "192.0.2.9:179".parse().unwrap(),
        }),
        4 => SpeakerFact::Bfd {
            peer: name,
            from: bfd::State::Up,
            to: bfd::State::Down,
            cause: bfd::Cause::Expired,
            at: Instant::now(),
        },
        5 => SpeakerFact::Learned { peer: name, announced: 4, withdrawn: 0, rejected: 1, malformed: 0 },
        6 => SpeakerFact::ListenFailed { addr: "0.0.0.0:179".parse().unwrap(), error: "in use".to_owned() },
        _ => SpeakerFact::RestartDone,
    }
}

/// Runs a host for several hours with random inputs.
fn random_run(seed: u64, inputs: usize) -> Recorded {
    let mut rng = StdRng::seed_from_u64(seed);
    // Small sizes lead to many checkpoints.
    let mut recorded = Recorded::new(1_500, 3_000);
    let mut store = Store::new();
    let first = store.snapshot();
    let effects = recorded.feed(Duration::from_millis(3), &store, first);
    recorded.applied(&effects, Vec::new());
    while recorded.effects.len() < inputs {
        let after = Duration::from_nanos(rng.random_range(0..90_000_000_000));
        match rng.random_range(0..20) {
            0..=8 => {
                let event = change(&mut store, &mut rng);
                let effects = recorded.feed(after, &store, event);
                if rng.random_bool(0.8) {
                    recorded.applied(&effects, Vec::new());
                }
            }
            9..=12 => {
                let fact = kernel_fact(&recorded, &mut rng);
                recorded.input(after, Input::Kernel(fact));
            }
            13..=15 => {
                let fact = speaker_fact(&mut rng);
                recorded.input(after, Input::Speaker(fact));
            }
            16 => {
                if rng.random_bool(0.2) {
                    store.id = ["a", "b"].choose(&mut rng).copied().unwrap().to_owned();
                }
                let event = store.snapshot();
                recorded.feed(after, &store, event);
            }
            17 => {
                let reason = StoreError::Unreachable("no route to host".to_owned());
                let since = SystemTime::UNIX_EPOCH;
                recorded.input(after, Input::Feed(FeedEvent::Unreachable { since, reason }));
                recorded.input(after, Input::Feed(FeedEvent::Reconnected));
                recorded.feed(after, &store, FeedEvent::Progress(store.revision));
            }
            18 => drop(recorded.input(after, Input::Accept)),
            _ => {
                let input = match rng.random_range(0..4) {
                    0 => Input::HostChecks(vec![codes::NO_POOL.problem("", "addresses", "none")]),
                    1 => {
                        Input::Hosts { hosts: vec![NodeStatus::default()], one_machine: rng.random_bool(0.5) }
                    }
                    2 => Input::IpamGc(GcPass { error: Some("away".to_owned()), ..GcPass::default() }),
                    _ => Input::TunnelAddress(TunnelAddressReport::Problem("IPIP".to_owned(), None)),
                };
                recorded.input(after, input);
            }
        }
    }
    recorded
}

#[test]
fn two_hundred_random_runs_replay_to_equal_effects() {
    let mut checkpoints = 0;
    for seed in 0..200 {
        let mut recorded = random_run(seed, 150);
        let octets = recorded.writer.export();
        let effects = replayed(&octets);
        assert!(!effects.is_empty(), "seed {seed}");
        let same = recorded.effects.get(recorded.effects.len() - effects.len()..).unwrap();
        for (number, (again, first)) in effects.iter().zip(same).enumerate() {
            let number = recorded.effects.len() - effects.len() + number;
            assert_eq!(text(again), text(first), "seed {seed}, input {number}");
        }
        let run = Run::of(&octets, None, Decisions::new()).unwrap();
        let report = run.report();
        assert_eq!(
            (report.different, report.worded_differently),
            (0, 0),
            "seed {seed}: {:#?}",
            report.differences
        );
        assert_eq!(report.inputs, effects.len());
        assert_eq!(report.from_checkpoint, recorded.checkpoints > 1);
        checkpoints += recorded.checkpoints;
    }
    assert!(checkpoints > 200, "{checkpoints} checkpoints: the runs are too short to prove anything of them");
}

/// Formats effects; they contain no secrets, which a journal would replace.
fn text(effects: &[Effect]) -> String {
    format!("{effects:#?}")
}

/// A day of a host with 10,000 learned routes: 1,000 changes of the store, and reports of threads and tasks.
#[test]
fn a_day_with_ten_thousand_routes_and_a_thousand_changes_is_small() {
    const DAY: u64 = 86_400;
    let mut rng = StdRng::seed_from_u64(7);
    let mut recorded = Recorded::new(SEGMENT, MEMBER);
    let mut store = Store::new();
    for n in 0..1_000 {
        store.put(
            &format!("/calico/bgp/v1/host/node{n}/ip_addr_v4"),
            &format!("172.29.{}.{}", n / 250, n % 250 + 1),
        );
    }
    store.put(
        "/calico/bgp/v1/global/peer_v4/192.0.2.1",
        r#"{"ip":"192.0.2.1","as_num":"64999","password":"ahoy-there"}"#,
    );
    let first = store.snapshot();
    let effects = recorded.feed(Duration::from_millis(2), &store, first);
    recorded.applied(&effects, Vec::new());
    let prefix = |n: u32| Cidr::v4((0xc633_0000_u32 + n * 256).into(), 24);
    let learned = |from: u32, count: u32| KernelFact::Learned {
        change: ChangeId(u64::from(from) + 2),
        prefixes: count as usize,
        written: count as usize,
        deleted: 0,
        failed: Vec::new(),
        sample: (from..from + count.min(16)).map(|n| (prefix(n), ChangeId(2), "installed".into())).collect(),
        micros: 4_000,
    };
    for batch in 0..3 {
        recorded.input(Duration::from_millis(20), Input::Kernel(learned(batch * 4_096, 4_096)));
    }
    let started = recorded.now.mono;
    let mut changes = 0;
    for second in (0..DAY).step_by(10) {
        let due = started + Duration::from_secs(second);
        recorded.input(due.saturating_duration_since(recorded.now.mono), Input::HostChecks(Vec::new()));
        recorded.feed(Duration::ZERO, &store, FeedEvent::Progress(store.revision));
        if second % 60 == 0 {
            recorded.input(
                Duration::ZERO,
                Input::Hosts { hosts: vec![NodeStatus::default(); 3], one_machine: false },
            );
            recorded.input(Duration::ZERO, Input::Kernel(learned(rng.random_range(0..10_000), 2)));
        }
        if second * 1_000 / DAY >= changes && changes < 1_000 {
            changes += 1;
            let event = change(&mut store, &mut rng);
            let effects = recorded.feed(Duration::ZERO, &store, event);
            recorded.applied(&effects, Vec::new());
        }
    }
    let octets = recorded.writer.export();
    assert!(octets.len() < 5_000_000, "{} octets", octets.len());
    println!("{} octets, {} inputs", octets.len(), recorded.effects.len());
    let mut text = String::new();
    std::io::Read::read_to_string(&mut flate2::read::MultiGzDecoder::new(&*octets), &mut text).unwrap();
    assert!(!text.contains("ahoy-there") && text.contains("redacted-"));
    let report = Run::of(&octets, None, Decisions::new()).unwrap().report();
    assert_eq!(
        (changes, report.different, report.worded_differently),
        (1_000, 0, 0),
        "{:#?}",
        report.differences
    );
}
