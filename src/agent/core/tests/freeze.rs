//! Tests of freezes: a store of another data model, a store restored from a backup, a host under another
//! name.

use super::*;
use tortie_engine::model::AttachedRoute;

fn list(revision: u64, entries: Vec<KeyValue>) -> FeedEvent {
    FeedEvent::Snapshot { snapshot: snapshot("a", revision, entries).into(), generation: 1 }
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

/// With any store that contains objects of Calico 3, from any state, with and without a cache, nothing is
/// programmed, announced or written, and the first problem says so.
#[test]
fn on_a_store_of_calico_3_nothing_is_done() {
    for has_cache in [false, true] {
        for entries in [Vec::new(), main_entries()] {
            let mut core = core();
            let mixed = !entries.is_empty();
            let mut effects = if has_cache {
                feed(&mut core, cached(snapshot("a", 1, main_entries())))
            } else {
                Vec::new()
            };
            effects.extend(feed(&mut core, FeedEvent::Calico3(true)));
            effects.extend(feed(&mut core, list(2, entries)));
            let block = snapshot("a", 2, vec![kv(BLOCK, &block(), 1)]);
            effects.extend(feed(
                &mut core,
                FeedEvent::Added { prefixes: vec![BLOCK.to_owned()], snapshot: block },
            ));
            effects.extend(give(&mut core, Input::StoreTimeout));
            effects.extend(give(&mut core, Input::Accept));
            assert!(!acts(&effects), "cache {has_cache}, mixed {mixed}: {effects:?}");
            assert_eq!(code(&core), Some("calico-3"));
            assert!(!core.loaded(), "a start waits");
            let codes = problem_codes(&core);
            assert_eq!(codes.first().map(String::as_str), Some("calico-3"), "{codes:?}");
            assert_eq!(codes.contains(&"mixed-models".to_owned()), mixed, "{codes:?}");
        }
    }
    // The objects appear while an agent runs.
    let mut core = core();
    whole(&mut core);
    assert!(core.loaded() && core.frozen.is_none());
    assert!(!acts(&feed(&mut core, FeedEvent::Calico3(true))));
    assert_eq!(code(&core), Some("calico-3"));
    let gone = Delta { revision: 3, changes: vec![Change::Delete { key: AFFINITY.to_owned() }] };
    assert!(!acts(&feed(&mut core, FeedEvent::Delta(gone))), "everything stays");
    assert!(acts(&feed(&mut core, FeedEvent::Calico3(false))), "it goes on with what changed meanwhile");
    assert_eq!(code(&core), None);
    // Observe mode reads any store.
    let observes = CoreOptions { observes: true, kernel_writes: false, ..core_options() };
    let mut core = Core::new(&observes, now());
    feed(&mut core, FeedEvent::Calico3(true));
    whole(&mut core);
    assert!(core.loaded() && core.frozen.is_none());
    assert_eq!(problem_codes(&core).first().map(String::as_str), Some("calico-3"));
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
    let attached =
        || vec![AttachedRoute { addr: "10.244.1.1".parse().unwrap(), interface: "cali1".to_owned() }];
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
