//! Tests of the order of a start and of freezes, on a core without threads.

use std::time::{Duration, Instant};

use super::*;
use crate::agent::core::applied::{AckTarget, verdict};
use crate::agent::core::recorder::Filter;
use crate::agent::health::problems;
use crate::speaker::SpeakerFact;
use tortie_engine::routing;
use tortie_kernel::{KernelFact, Mode};
use tortie_store::{Cached, DataModel, KeyValue};

mod dialects;
mod enforcement;
mod exclusions;
mod freeze;
mod live_migration;

const BLOCK: &str = "/calico/ipam/v2/assignment/ipv4/block/10.244.1.0-26";
const AFFINITY: &str = "/calico/ipam/v2/host/h1/ipv4/block/10.244.1.0-26";

/// Returns a filter for flight recorder entries with this subject.
fn about(subject: &str) -> Filter {
    Filter { subject: Some(subject.to_owned()), ..Filter::default() }
}

fn kv(key: &str, value: &str, revision: u64) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: value.as_bytes().to_vec(),
        mod_revision: revision,
        create_revision: revision,
    }
}

fn block() -> String {
    let nulls = vec!["null"; 64].join(",");
    format!(r#"{{"cidr":"10.244.1.0/26","affinity":"host:h1","allocations":[{nulls}],"attributes":[]}}"#)
}

fn main_entries() -> Vec<KeyValue> {
    vec![
        kv("/calico/v1/Ready", "true", 1),
        kv("/calico/v1/ipam/v4/pool/10.244.0.0-16", r#"{"cidr":"10.244.0.0/16"}"#, 1),
        kv("/calico/bgp/v1/host/h1/ip_addr_v4", "172.30.0.1", 1),
        kv("/calico/bgp/v1/host/h2/ip_addr_v4", "172.30.0.2", 1),
        kv(AFFINITY, r#"{"state":"confirmed"}"#, 1),
    ]
}

fn snapshot(store_id: &str, revision: u64, entries: Vec<KeyValue>) -> Snapshot {
    Snapshot { revision, store_id: store_id.to_owned(), entries, ..Snapshot::default() }
}

/// Returns the feed event of a snapshot that was cached on disk.
fn cached(snapshot: Snapshot) -> FeedEvent {
    let (saved, truncated) = (std::time::SystemTime::UNIX_EPOCH, None);
    FeedEvent::Cached(Cached { snapshot, unreadable: Vec::new(), saved, truncated }.into())
}

fn now() -> Now {
    Now { mono: Instant::now(), wall: jiff::Timestamp::UNIX_EPOCH }
}

/// Returns the effects of one input, without log lines and recorder entries.
fn give(core: &mut Core, input: Input) -> Vec<Effect> {
    let mut effects = core.handle(input, now());
    effects.retain(|effect| !matches!(effect, Effect::Log(_) | Effect::Recorded(_)));
    effects
}

fn core_options() -> CoreOptions {
    CoreOptions {
        name: "h1".to_owned(),
        node: NodeOptions::default(),
        observes: false,
        data_model: DataModel::Auto,
        kernel_writes: true,
        policy: Mode::Program,
    }
}

fn core() -> Core {
    Core::new(&core_options(), now())
}

/// Feeds an event and returns its effects.
fn feed(core: &mut Core, event: FeedEvent) -> Vec<Effect> {
    let mut effects = give(core, Input::Feed(event));
    effects.extend(give(core, Input::FeedIdle));
    effects
}

fn whole(core: &mut Core) -> Vec<Effect> {
    let first =
        feed(core, FeedEvent::Snapshot { snapshot: snapshot("a", 1, main_entries()).into(), generation: 1 });
    assert!(first.iter().all(|e| matches!(e, Effect::Scope(keys) if keys == &[BLOCK])), "{first:?}");
    let added = snapshot("a", 1, vec![kv(BLOCK, &block(), 1)]);
    feed(core, FeedEvent::Added { prefixes: vec![BLOCK.to_owned()], snapshot: added })
}

fn kernel_intents(effects: &[Effect]) -> Vec<Arc<KernelIntent>> {
    effects
        .iter()
        .filter_map(|e| match e {
            Effect::Kernel(intent) => Some(Arc::clone(intent)),
            _ => None,
        })
        .collect()
}

/// Acknowledges all changes of endpoints and rules in the kernel thread's name.
fn enforced(core: &mut Core) {
    let serial = core.enforcement.serial();
    core.on_enforced(serial, ChangeId(1), BTreeMap::new(), 1);
}

fn announced(effects: &[Effect]) -> Option<Vec<String>> {
    effects.iter().rev().find_map(|e| match e {
        Effect::Speaker(intent, _) => Some(intent.originated.keys().map(ToString::to_string).collect()),
        _ => None,
    })
}

fn applied(core: &mut Core, generation: u64, failed: Vec<(Cidr, String)>) -> Vec<Effect> {
    give(
        core,
        Input::Kernel(KernelFact::Applied {
            generation,
            change: ChangeId(1),
            failed,
            acknowledged: Vec::new(),
            micros: 1,
        }),
    )
}

#[test]
fn nothing_is_sent_before_blocks_are_read_and_a_block_is_announced_after_its_blackhole() {
    let mut core = core();
    let effects = whole(&mut core);
    let intents = kernel_intents(&effects);
    assert_eq!(intents.len(), 1);
    assert_eq!(intents[0].blackholes.len(), 1);
    assert!(announced(&effects).is_none(), "the kernel has not answered yet");
    let effects = applied(&mut core, 1, Vec::new());
    assert_eq!(announced(&effects).unwrap(), ["10.244.1.0/26"]);
    let order: Vec<bool> = effects.iter().map(|e| matches!(e, Effect::LocalReady)).collect();
    assert_eq!(order, [false, true], "End-of-RIB may only follow the routes");
}

#[test]
fn a_block_whose_blackhole_is_refused_is_held_back() {
    let mut core = core();
    whole(&mut core);
    let refused = vec![("10.244.1.0/26".parse().unwrap(), "no room".to_owned())];
    let effects = applied(&mut core, 1, refused);
    assert_eq!(announced(&effects).unwrap(), Vec::<String>::new());
    assert!(core.refused_blackholes.values().any(|why| why == "no room"));
}

#[test]
fn not_ready_holds_everything_and_the_latest_state_follows_when_it_is_true_again() {
    let mut core = core();
    whole(&mut core);
    applied(&mut core, 1, Vec::new());
    let change = |key: &str, value: &str, revision| {
        FeedEvent::Delta(Delta { revision, changes: vec![Change::Put(kv(key, value, revision))] })
    };
    assert!(feed(&mut core, change("/calico/v1/Ready", "false", 2)).is_empty());
    assert!(core.frozen.is_some());
    assert!(feed(&mut core, change("/calico/bgp/v1/host/h3/ip_addr_v4", "172.30.0.3", 3)).is_empty());
    assert_eq!(core.intent.as_ref().unwrap().peers.len(), 1);
    let effects = feed(&mut core, change("/calico/v1/Ready", "true", 4));
    assert!(core.frozen.is_none());
    assert!(announced(&effects).is_some());
    assert_eq!(core.intent.as_ref().unwrap().peers.len(), 2);
}

#[test]
fn a_wiped_store_freezes_a_running_agent_until_somebody_accepts() {
    let mut core = core();
    whole(&mut core);
    applied(&mut core, 1, Vec::new());
    let wiped = FeedEvent::Snapshot { snapshot: snapshot("b", 1, Vec::new()).into(), generation: 2 };
    assert!(kernel_intents(&feed(&mut core, wiped)).is_empty());
    assert!(core.frozen.is_some());
    assert_eq!(core.intent.as_ref().unwrap().originated.len(), 1);
    let effects = give(&mut core, Input::Accept);
    assert!(core.frozen.is_none());
    assert_eq!(kernel_intents(&effects)[0].blackholes.len(), 0);
    assert!(effects.iter().any(|e| matches!(e, Effect::Trust(2, _))));
}

#[test]
fn a_restart_on_a_wiped_store_runs_from_the_cache_and_trusts_nothing_new() {
    let mut core = core();
    let mut entries = main_entries();
    entries.push(kv(BLOCK, &block(), 1));
    let cached = cached(snapshot("a", 1, entries));
    assert!(feed(&mut core, cached).is_empty(), "the store may answer in a moment");
    let wiped = FeedEvent::Snapshot { snapshot: snapshot("b", 1, Vec::new()).into(), generation: 1 };
    let effects = feed(&mut core, wiped);
    assert!(core.frozen.is_some());
    assert_eq!(kernel_intents(&effects)[0].blackholes.len(), 1);
    assert!(!effects.iter().any(|e| matches!(e, Effect::Trust(..))));
}

#[test]
fn a_start_while_the_store_is_away_runs_from_the_cache_and_follows_the_store_later() {
    let mut core = core();
    let mut entries = main_entries();
    entries.push(kv(BLOCK, &block(), 1));
    feed(&mut core, cached(snapshot("a", 1, entries.clone())));
    let effects = give(&mut core, Input::StoreTimeout);
    assert_eq!(kernel_intents(&effects).len(), 1);
    assert!(core.link.from_cache);
    applied(&mut core, 1, Vec::new());
    entries.push(kv("/calico/bgp/v1/host/h3/ip_addr_v4", "172.30.0.3", 2));
    let main = entries.iter().filter(|e| e.key != BLOCK).cloned().collect();
    feed(&mut core, FeedEvent::Snapshot { snapshot: snapshot("a", 2, main).into(), generation: 1 });
    let blocks = snapshot("a", 2, vec![kv(BLOCK, &block(), 1)]);
    feed(&mut core, FeedEvent::Added { prefixes: vec![BLOCK.to_owned()], snapshot: blocks });
    assert!(!core.link.from_cache && core.frozen.is_none());
    assert_eq!(core.intent.as_ref().unwrap().peers.len(), 2);
    assert_eq!(core.intent.as_ref().unwrap().originated.len(), 1);
}

fn put(key: &str, value: &str, revision: u64) -> FeedEvent {
    FeedEvent::Delta(Delta { revision, changes: vec![Change::Put(kv(key, value, revision))] })
}

#[test]
fn a_block_keeps_its_change_and_the_acknowledgement_is_recorded_under_it() {
    use tortie_kernel::{BlackholeAck, BlackholeOutcome};
    let mut core = core();
    let first = kernel_intents(&whole(&mut core)).remove(0);
    let (block, change) = first.blackholes.first_key_value().map(|(b, c)| (*b, *c)).unwrap();
    assert_eq!(change, first.change);
    applied(&mut core, 1, Vec::new());
    let second = kernel_intents(&feed(&mut core, put("/calico/bgp/v1/host/h3/ip_addr_v4", "172.30.0.3", 2)));
    assert!(second.is_empty() || second[0].blackholes[&block] == change);
    let second = kernel_intents(&feed(
        &mut core,
        put("/calico/v1/ipam/v4/pool/10.9.0.0-16", r#"{"cidr":"10.9.0.0/16"}"#, 3),
    ));
    assert_eq!(second[0].blackholes[&block], change, "the block did not change");
    assert_ne!(second[0].change, change);
    give(
        &mut core,
        Input::Kernel(KernelFact::Applied {
            generation: second[0].generation,
            change: second[0].change,
            failed: Vec::new(),
            acknowledged: vec![BlackholeAck { prefix: block, change, outcome: BlackholeOutcome::Written }],
            micros: 400,
        }),
    );
    let history = core.recorder.find(&about(&change.to_string()), 0, 100);
    let planes: Vec<&str> = history.iter().map(|e| e.plane.as_str()).collect();
    assert_eq!(planes.first(), Some(&"store"), "{history:#?}");
    let ack = history.last().unwrap();
    assert_eq!(
        (ack.plane.as_str(), ack.mark.as_str(), ack.subject.as_str()),
        ("kernel", "+", "10.244.1.0/26")
    );
    assert_eq!((ack.text.as_str(), ack.revision), ("blackhole written, acknowledged after 400 us", 1));
    let history = core.recorder.find(&about(&second[0].change.to_string()), 0, 100);
    assert!(
        history.iter().any(|e| e.plane == "store" && e.subject.ends_with("10.9.0.0-16") && e.revision == 3)
    );
}

#[test]
fn many_acknowledgements_are_one_entry_and_the_histories_of_their_prefixes() {
    use tortie_kernel::{BlackholeAck, BlackholeOutcome};
    let mut core = core();
    whole(&mut core);
    let ack = |i: u32| BlackholeAck {
        prefix: Cidr::v4((0x0a00_0000 + i * 64).into(), 26),
        change: ChangeId(9),
        outcome: BlackholeOutcome::Kept,
    };
    let acknowledged = (0..500).map(ack).collect();
    let before = core.recorder.find(&Filter::default(), 0, usize::MAX).len();
    let fact = KernelFact::Applied {
        generation: 1,
        change: ChangeId(9),
        failed: Vec::new(),
        acknowledged,
        micros: 5,
    };
    give(&mut core, Input::Kernel(fact));
    let ring = core.recorder.find(&Filter::default(), 0, usize::MAX);
    assert_eq!(ring.len(), before + 1);
    assert_eq!(ring.last().unwrap().text, "0 written, 500 there already, 0 removed, acknowledged after 5 us");
    let history = core.recorder.find(&about("10.0.0.64/26"), 0, 10);
    assert_eq!((history.len(), history[0].change.as_str(), history[0].plane.as_str()), (1, "c-9", "kernel"));
}

#[test]
fn a_refusal_is_said_once_for_as_long_as_it_stays_so() {
    let mut core = core();
    whole(&mut core);
    let refused = || vec![("10.244.1.0/26".parse().unwrap(), "no room".to_owned())];
    for _ in 0..3 {
        applied(&mut core, 1, refused());
    }
    let recorded = core.recorder.find(&about("10.244.1.0/26"), 0, 100);
    assert_eq!(recorded.iter().filter(|e| e.plane == "kernel").count(), 1, "{recorded:#?}");
}

#[test]
fn what_is_wrong_is_shown_until_it_is_over_and_a_transient_problem_for_a_while() {
    let (mut core, now) = (core(), Instant::now());
    let shown = |core: &Core, after: u64| -> Vec<String> {
        let facts = core.status_snapshot(now + Duration::from_secs(after));
        let all = problems::problems(&facts, None);
        all.into_iter()
            .filter(|p| p.code == "trouble")
            .map(|p| format!("{}: {}", p.subject, p.text))
            .collect()
    };
    let wrong = |texts: &[&str]| SpeakerFact::Problems {
        about: "BFD".into(),
        texts: texts.iter().map(|&text| text.to_owned()).collect(),
    };
    give(&mut core, Input::Speaker(wrong(&["one", "two"])));
    give(
        &mut core,
        Input::Kernel(KernelFact::Problem {
            about: "forwarding of IPv4".into(),
            text: Some("denied".to_owned()),
        }),
    );
    assert_eq!(shown(&core, 9000), ["BFD: one; and 1 more", "forwarding of IPv4: denied"]);
    give(&mut core, Input::Speaker(wrong(&["two"])));
    give(&mut core, Input::Kernel(KernelFact::Problem { about: "forwarding of IPv4".into(), text: None }));
    assert_eq!(shown(&core, 9000), ["BFD: two"]);
    give(&mut core, Input::Speaker(wrong(&[])));
    let recorded: Vec<_> =
        core.recorder.find(&about("BFD"), 0, 100).into_iter().map(|e| e.text.clone()).collect();
    assert_eq!(recorded.len(), 3, "each once, and the end: {recorded:?}");
    for _ in 0..5 {
        give(&mut core, Input::Speaker(SpeakerFact::TransientProblem("accept: no room".to_owned())));
    }
    assert_eq!(core.recorder.find(&about("speaker"), 0, 100).len(), 1);
    assert_eq!(shown(&core, 9)[0].split(" (").next(), Some("agent: accept: no room"));
    assert_eq!(shown(&core, 601), Vec::<String>::new());
}

#[test]
fn an_answer_waits_for_the_intent_of_its_revision_and_for_nothing_else() {
    use crate::api::status::AppliedRequest;
    let request = |key: &str, revision| AppliedRequest {
        key: key.to_owned(),
        revision,
        wait_millis: 0,
        elapsed_millis: None,
    };
    let word = |core: &Core, key: &str, revision, needed: &mut Option<AckTarget>| {
        verdict(core, &request(key, revision), needed).map(|(word, _)| word)
    };
    let endpoint = "/calico/v1/host/h1/workload/lab/web/endpoint/eth0";
    let mut core = core();
    let mut needed = None;
    assert_eq!(word(&core, endpoint, 1, &mut needed), None, "nothing was read");
    whole(&mut core);
    assert_eq!(word(&core, endpoint, 1, &mut needed), None, "the kernel has not answered");
    applied(&mut core, 1, Vec::new());
    enforced(&mut core);
    assert_eq!(word(&core, endpoint, 1, &mut needed), Some("applied"));
    // Its own change is in the second intent; a third intent follows before the kernel answers.
    let mut needed = None;
    assert_eq!(word(&core, endpoint, 2, &mut needed), None);
    feed(&mut core, put("/calico/v1/ipam/v4/pool/10.8.0.0-16", r#"{"cidr":"10.8.0.0/16"}"#, 2));
    assert_eq!(word(&core, endpoint, 2, &mut needed), None);
    feed(&mut core, put("/calico/v1/ipam/v4/pool/10.9.0.0-16", r#"{"cidr":"10.9.0.0/16"}"#, 3));
    assert_eq!(core.generation, 3);
    let refused = vec![("10.244.1.0/26".parse().unwrap(), "no room".to_owned())];
    applied(&mut core, 2, refused);
    enforced(&mut core);
    assert_eq!(
        word(&core, endpoint, 2, &mut needed),
        Some("applied"),
        "another object's failure is not its own"
    );
    assert_eq!(word(&core, endpoint, 3, &mut None), None);
    let second = || Some(AckTarget { generation: 2, serial: 0 });
    assert_eq!(word(&core, BLOCK, 2, &mut second()), Some("failed"));
    assert_eq!(word(&core, AFFINITY, 2, &mut second()), Some("failed"));
    let (word, why) = verdict(&core, &request(BLOCK, 2), &mut second()).unwrap();
    assert!(word == "failed" && why.unwrap().contains("no room"));
    // A request that can never succeed fails at once.
    let foreign =
        verdict(&core, &request("/calico/v1/host/h2/workload/lab/web/endpoint/eth0", 99), &mut None);
    assert!(foreign.is_some_and(|(word, why)| word == "failed" && why.unwrap().contains("h2")));
    let nonsense = verdict(&core, &request("/elsewhere/x", 99), &mut None);
    assert_eq!(nonsense.map(|(word, _)| word), Some("failed"));
}

#[test]
fn nothing_is_applied_before_a_new_block_is_known() {
    use crate::api::status::AppliedRequest;
    let mut core = core();
    whole(&mut core);
    applied(&mut core, 1, Vec::new());
    let affinity = "/calico/ipam/v2/host/h1/ipv4/block/10.244.2.0-26";
    feed(&mut core, put(affinity, r#"{"state":"confirmed"}"#, 2));
    let request =
        AppliedRequest { key: affinity.to_owned(), revision: 2, wait_millis: 0, elapsed_millis: None };
    assert!(verdict(&core, &request, &mut None).is_none(), "its block was not read yet");
    let key = "/calico/ipam/v2/assignment/ipv4/block/10.244.2.0-26";
    let value = block().replace("10.244.1.0", "10.244.2.0");
    let added = snapshot("a", 2, vec![kv(key, &value, 2)]);
    feed(&mut core, FeedEvent::Added { prefixes: vec![key.to_owned()], snapshot: added });
    let mut needed = None;
    assert!(verdict(&core, &request, &mut needed).is_none(), "not in the kernel yet");
    applied(&mut core, 2, Vec::new());
    enforced(&mut core);
    assert_eq!(verdict(&core, &request, &mut needed), Some(("applied", None)));
}

#[test]
fn a_router_that_announces_what_no_host_announced_gets_a_hint_by_its_session() {
    let mut core = core();
    whole(&mut core);
    let path = |prefix: &str, next_hop: &str| routing::LearnedPath {
        prefix: prefix.parse().unwrap(),
        next_hop: next_hop.parse().unwrap(),
        originator: None,
        origin_as: Some(65000),
    };
    let learned = |paths: &[routing::LearnedPath]| [("Global_172_30_0_254".to_owned(), paths.to_vec())];
    let both = learned(&[path("10.244.2.0/26", "172.30.0.2"), path("10.244.7.0/26", "172.30.0.254")]);
    assert!(core.route_hints(&both).is_empty(), "no such session");
    let key = "/calico/bgp/v1/global/peer_v4/172.30.0.254";
    feed(&mut core, put(key, r#"{"as_num":"65000"}"#, 2));
    let hints = core.route_hints(&both);
    let hint = &hints["Global_172_30_0_254"];
    assert_eq!((hint.code.as_str(), hint.subject.as_str()), ("import-pools-hint", "172.30.0.254"));
    assert!(hint.text.contains("10.244.7.0/26 inside pools"), "{}", hint.text);
    assert!(
        core.route_hints(&learned(&[path("10.244.2.0/26", "172.30.0.2")])).is_empty(),
        "a host announced it"
    );
    feed(&mut core, put(key, r#"{"as_num":"65000","import_pools":false}"#, 3));
    assert!(core.route_hints(&both).is_empty());
}

/// The setting and the pool may change in either order; the blocks of all hosts are watched after the second.
#[test]
fn the_blocks_of_all_hosts_are_watched_once_their_routes_come_from_the_store() {
    let setting = ("/calico/v1/config/ProgramClusterRoutes", "EnabledIPIPOnly");
    let pool = ("/calico/v1/ipam/v4/pool/10.244.0.0-16", r#"{"cidr":"10.244.0.0/16","ipip":"tunl0"}"#);
    let all = ["/calico/ipam/v2/assignment/ipv4/", BLOCK, "/calico/ipam/v2/assignment/ipv6/"]
        .map(str::to_owned)
        .to_vec();
    for [first, second] in [[setting, pool], [pool, setting]] {
        let mut core = core();
        whole(&mut core);
        let scopes = |effects: &[Effect]| -> Vec<Vec<String>> {
            let scope = |effect: &Effect| match effect {
                Effect::Scope(keys) => Some(keys.clone()),
                _ => None,
            };
            effects.iter().filter_map(scope).collect()
        };
        assert_eq!(scopes(&feed(&mut core, put(first.0, first.1, 2))), [[""; 0]; 0], "{}", first.0);
        let then = scopes(&feed(&mut core, put(second.0, second.1, 3)));
        assert_eq!(then, std::slice::from_ref(&all), "{}", second.0);
    }
}
