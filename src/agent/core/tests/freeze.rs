//! Tests of freezes: a store of another data model, a store restored from a backup, a host under another
//! name.

use super::dialects::objects;
use super::*;
use tortie_engine::model::AttachedRoute;

fn list(revision: u64, entries: Vec<KeyValue>) -> FeedEvent {
    FeedEvent::Snapshot { snapshot: snapshot("a", revision, entries).into(), generation: 1 }
}

fn added_block(revision: u64) -> FeedEvent {
    let block = snapshot("a", revision, vec![kv(BLOCK, &block(), 1)]);
    FeedEvent::Added { prefixes: vec![BLOCK.to_owned()], snapshot: block }
}

/// True if an effect would change the kernel, the peers or the store.
fn acts(effects: &[Effect]) -> bool {
    effects.iter().any(|effect| !matches!(effect, Effect::Scope(_)))
}

fn code(core: &Core) -> Option<&'static str> {
    core.frozen.as_ref().map(|freeze| freeze.code)
}

fn problem_codes(core: &Core) -> Vec<String> {
    problems::problems(&core.status_snapshot(now().mono), None)
        .into_iter()
        .map(|problem| problem.code)
        .collect()
}

/// A store whose data model is another one than that of the state in force, from a cache or while the agent
/// runs, changes nothing until an operator accepts it, and the first problem says so.
#[test]
fn a_store_of_another_data_model_is_followed_when_accepted() {
    for has_cache in [false, true] {
        let mut core = core();
        let mut effects = if has_cache {
            feed(&mut core, cached(snapshot("a", 1, main_entries())))
        } else {
            whole(&mut core);
            assert!(core.loaded() && core.frozen.is_none());
            Vec::new()
        };
        effects.extend(feed(&mut core, FeedEvent::Calico3(true)));
        let gone = Delta { revision: 3, changes: vec![Change::Delete { key: AFFINITY.to_owned() }] };
        effects.extend(feed(&mut core, FeedEvent::Delta(gone)));
        effects.extend(feed(&mut core, list(4, objects())));
        effects.extend(feed(&mut core, added_block(4)));
        effects.extend(give(&mut core, Input::StoreTimeout));
        assert!(!acts(&effects), "cache {has_cache}: {effects:?}");
        assert_eq!(code(&core), Some("calico-3"));
        assert_eq!(problem_codes(&core).first().map(String::as_str), Some("calico-3"));
        assert!(acts(&give(&mut core, Input::Accept)), "cache {has_cache}");
        assert_eq!(code(&core), None);
        // The objects vanish: the same the other way.
        let mut effects = feed(&mut core, FeedEvent::Calico3(false));
        effects.extend(feed(&mut core, list(5, main_entries())));
        assert!(!acts(&effects), "cache {has_cache}: {effects:?}");
        assert_eq!(code(&core), Some("calico-3"));
        feed(&mut core, FeedEvent::Calico3(true));
        feed(&mut core, list(6, objects()));
        assert_eq!(code(&core), None, "they are back");
    }
}

/// The ClusterInformation says whether a Calico 3 store is ready. An agent creates it on a store that never had
/// one, and only then.
#[test]
fn a_store_of_calico_3_is_followed_when_it_is_ready() {
    let without = || objects().into_iter().filter(|kv| !kv.key.contains("clusterinformations"));
    let start = |options: &CoreOptions, entries: Vec<KeyValue>| {
        let mut core = Core::new(options, now());
        feed(&mut core, FeedEvent::Calico3(true));
        let mut effects = feed(&mut core, list(1, entries));
        effects.extend(feed(&mut core, added_block(1)));
        effects.retain(|effect| !matches!(effect, Effect::Scope(_) | Effect::Log(_) | Effect::Recorded(_)));
        (core, effects)
    };
    let (core, effects) = start(&core_options(), objects());
    assert!(core.loaded() && core.frozen.is_none());
    assert!(effects.contains(&Effect::Loaded) && !effects.contains(&Effect::CreateCluster));
    let (mut core, effects) = start(&core_options(), without().collect());
    assert!(!core.loaded() && effects.iter().all(|effect| *effect == Effect::CreateCluster), "{effects:?}");
    assert!(!effects.is_empty());
    assert_eq!(code(&core), Some("not-ready"));
    let cluster = objects().swap_remove(0);
    feed(
        &mut core,
        FeedEvent::Delta(Delta {
            revision: 2,
            changes: vec![Change::Put(KeyValue { mod_revision: 2, ..cluster })],
        }),
    );
    assert!(core.loaded() && core.frozen.is_none());
    // An observer writes nothing, and a store that is locked is not unlocked.
    let observes = CoreOptions { observes: true, kernel_writes: false, ..core_options() };
    for (options, datastore_ready) in [(observes, None), (core_options(), Some(false))] {
        let locked = datastore_ready.map(|ready| {
            let key = "/calico/resources/v3/projectcalico.org/clusterinformations/default";
            kv(key, &format!(r#"{{"spec":{{"datastoreReady":{ready}}}}}"#), 1)
        });
        let (core, effects) = start(&options, without().chain(locked).collect());
        assert_eq!((code(&core), effects.as_slice()), (Some("not-ready"), &[][..]));
    }
    // It was there when the cache was written: it was lost.
    let mut core = self::core();
    let mut all = objects();
    all.push(kv(BLOCK, &block(), 1));
    feed(&mut core, cached(snapshot("a", 1, all)));
    feed(&mut core, FeedEvent::Calico3(true));
    let mut effects = feed(&mut core, list(2, without().collect()));
    effects.extend(feed(&mut core, added_block(2)));
    assert!(!effects.contains(&Effect::CreateCluster));
    assert_eq!(code(&core), Some("not-ready"));
}

/// A store restored from a backup is not followed until an operator accepts it, whatever share of it is lost.
/// A value of the same revision in another history is read again.
#[test]
fn a_store_that_was_put_back_is_followed_when_accepted() {
    let mut core = core();
    whole(&mut core);
    let other = kv("/calico/bgp/v1/host/h2/ip_addr_v4", "172.30.0.9", 1);
    let mut entries = main_entries();
    entries.retain(|entry| entry.key != other.key);
    entries.push(other);
    let mut effects = feed(&mut core, FeedEvent::PutBack("its revision is 1 and was 30".to_owned()));
    effects.extend(feed(&mut core, list(1, entries)));
    assert!(!acts(&effects), "{effects:?}");
    assert_eq!(code(&core), Some("store-rewound"));
    assert!(core.frozen.as_ref().unwrap().text.contains("its revision is 1 and was 30"));
    let later = Delta { revision: 40, changes: vec![Change::Put(kv("/calico/v1/config/Foo", "1", 40))] };
    assert!(!acts(&feed(&mut core, FeedEvent::Delta(later))), "also when it counts on");
    assert!(acts(&give(&mut core, Input::Accept)));
    assert_eq!(code(&core), None);
    let addr = core.model.host("h2").and_then(|host| host.addrs().next());
    assert_eq!(addr.map(|addr| addr.to_string()).as_deref(), Some("172.30.0.9"));
}

/// A host under another name removes nothing, with and without the store, until an operator decides.
#[test]
fn a_host_under_another_name_holds_still() {
    const WEB: &str = "/calico/v1/host/h0/workload/lab/web/endpoint/eth0";
    let endpoint = r#"{"state":"active","name":"cali1","mac":null,"profile_ids":[],"ipv4_nets":["10.244.1.1/32"],"ipv6_nets":[]}"#;
    let attached = || {
        vec![AttachedRoute { addr: "10.244.1.1".parse().unwrap(), interface: "cali1".to_owned(), metric: 0 }]
    };
    let entries = |key: &str| vec![kv("/calico/v1/Ready", "true", 1), kv(key, endpoint, 1)];
    let mut core = core();
    give(&mut core, Input::Attached(attached()));
    assert!(!acts(&feed(&mut core, list(1, entries(WEB)))));
    assert_eq!(code(&core), Some("host-renamed"));
    let freeze = core.frozen.clone().unwrap();
    assert!(freeze.text.contains("h0") && freeze.next.contains("--node h0"), "{freeze:?}");
    assert!(acts(&give(&mut core, Input::Accept)), "an operator decides");
    // The cache on disk belongs to the former name, and the store is unreachable.
    let mut core = super::core();
    give(&mut core, Input::Attached(attached()));
    let old = "/calico/ipam/v2/host/h0/ipv4/block/10.244.1.0-26";
    let mut former = entries(WEB);
    former.push(kv(old, "{}", 1));
    feed(&mut core, cached(snapshot("a", 1, former)));
    assert!(!acts(&give(&mut core, Input::StoreTimeout)));
    assert_eq!(code(&core), Some("host-renamed"));
    // Workloads of no known host: frozen until the store has an endpoint of this host, or an operator accepts
    // the store.
    let mut core = super::core();
    give(&mut core, Input::Attached(attached()));
    assert!(!acts(&feed(&mut core, list(1, vec![kv("/calico/v1/Ready", "true", 1)]))));
    assert_eq!(code(&core), Some("unknown-workloads"));
    let own = Change::Put(kv(&WEB.replace("h0", "h1"), endpoint, 2));
    assert!(acts(&feed(&mut core, FeedEvent::Delta(Delta { revision: 2, changes: vec![own] }))));
    assert_eq!(code(&core), None);
}

/// Another machine uses this host's name: the applied state stays, and changes are not followed.
#[test]
fn next_to_another_machine_of_its_name_it_holds_still() {
    let mut core = core();
    whole(&mut core);
    assert!(!acts(&give(
        &mut core,
        Input::Twin(Some("the agent of machine b2 (other) runs as h1".to_owned()))
    )));
    assert_eq!(code(&core), Some("duplicate-node"));
    let gone = Delta { revision: 3, changes: vec![Change::Delete { key: AFFINITY.to_owned() }] };
    assert!(!acts(&feed(&mut core, FeedEvent::Delta(gone))));
    assert!(acts(&give(&mut core, Input::Twin(None))));
}
