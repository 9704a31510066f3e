//! The order of a start and the rules of a freeze, on the pure core.

use std::time::Instant;

use super::*;
use crate::kernel::KernelFact;
use crate::store::{Cached, KeyValue};

const BLOCK: &str = "/calico/ipam/v2/assignment/ipv4/block/10.244.1.0-26";
const AFFINITY: &str = "/calico/ipam/v2/host/h1/ipv4/block/10.244.1.0-26";

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
    Snapshot { revision, store_id: store_id.to_owned(), entries }
}

fn core() -> Core {
    Core::new("h1", NodeOptions::default(), true, ChangeIds::default(), Instant::now())
}

/// Feeds an event and gives what follows from it.
fn feed(core: &mut Core, event: FeedEvent) -> Vec<Effect> {
    core.feed(event, Instant::now());
    core.go_on();
    core.effects()
}

fn whole(core: &mut Core) -> Vec<Effect> {
    let first = feed(core, FeedEvent::Snapshot { snapshot: snapshot("a", 1, main_entries()), generation: 1 });
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

fn announced(effects: &[Effect]) -> Option<Vec<String>> {
    effects.iter().rev().find_map(|e| match e {
        Effect::Speaker(intent, _) => Some(intent.originated.keys().map(ToString::to_string).collect()),
        _ => None,
    })
}

fn applied(core: &mut Core, generation: u64, failed: Vec<(Cidr, String)>) -> Vec<Effect> {
    core.kernel(KernelFact::Applied { generation, change: ChangeId(1), failed });
    core.effects()
}

#[test]
fn nothing_is_told_before_blocks_are_known_and_a_block_is_announced_after_its_blackhole() {
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
    assert!(core.refused.values().any(|why| why == "no room"));
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
    let wiped = FeedEvent::Snapshot { snapshot: snapshot("b", 1, Vec::new()), generation: 2 };
    assert!(kernel_intents(&feed(&mut core, wiped)).is_empty());
    assert!(core.frozen.is_some());
    assert_eq!(core.intent.as_ref().unwrap().originated.len(), 1);
    assert!(core.accept());
    let effects = core.effects();
    assert_eq!(kernel_intents(&effects)[0].blackholes.len(), 0);
    assert!(effects.iter().any(|e| matches!(e, Effect::Trust(2, _))));
}

#[test]
fn a_restart_on_a_wiped_store_runs_from_the_cache_and_trusts_nothing_new() {
    let mut core = core();
    let mut entries = main_entries();
    entries.push(kv(BLOCK, &block(), 1));
    let cached = Cached { snapshot: snapshot("a", 1, entries), saved: std::time::SystemTime::UNIX_EPOCH };
    assert!(feed(&mut core, FeedEvent::Cached(cached)).is_empty(), "the store may answer in a moment");
    let wiped = FeedEvent::Snapshot { snapshot: snapshot("b", 1, Vec::new()), generation: 1 };
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
    let cached =
        Cached { snapshot: snapshot("a", 1, entries.clone()), saved: std::time::SystemTime::UNIX_EPOCH };
    feed(&mut core, FeedEvent::Cached(cached));
    assert!(core.use_cache());
    assert_eq!(kernel_intents(&core.effects()).len(), 1);
    assert!(core.link.from_cache);
    applied(&mut core, 1, Vec::new());
    entries.push(kv("/calico/bgp/v1/host/h3/ip_addr_v4", "172.30.0.3", 2));
    let main = entries.iter().filter(|e| e.key != BLOCK).cloned().collect();
    feed(&mut core, FeedEvent::Snapshot { snapshot: snapshot("a", 2, main), generation: 1 });
    let blocks = snapshot("a", 2, vec![kv(BLOCK, &block(), 1)]);
    feed(&mut core, FeedEvent::Added { prefixes: vec![BLOCK.to_owned()], snapshot: blocks });
    assert!(!core.link.from_cache && core.frozen.is_none());
    assert_eq!(core.intent.as_ref().unwrap().peers.len(), 2);
    assert_eq!(core.intent.as_ref().unwrap().originated.len(), 1);
}
