//! Tests of a store of Calico 3 in observe mode: its objects decide, the names are theirs, and a change of the
//! data model starts anew.

use super::*;
use tortie_config::Dialect;

const ROOT: &str = "/calico/resources/v3/projectcalico.org";

fn object(path: &str, spec: &str, revision: u64) -> KeyValue {
    let value = format!(r#"{{"metadata":{{"name":"x"}},"spec":{spec}}}"#);
    kv(&format!("{ROOT}/{path}"), &value, revision)
}

/// Entries of a Calico 3 store; the first one says that it is ready.
pub(super) fn objects() -> Vec<KeyValue> {
    vec![
        object("clusterinformations/default", r#"{"datastoreReady":true}"#, 1),
        object("ippools/all", r#"{"cidr":"10.244.0.0/16"}"#, 1),
        object("nodes/h1", r#"{"bgp":{"ipv4Address":"172.30.0.1/24"}}"#, 1),
        object("nodes/h2", r#"{"bgp":{"ipv4Address":"172.30.0.2/24"}}"#, 1),
        kv(AFFINITY, r#"{"state":"confirmed"}"#, 1),
    ]
}

fn observer() -> Core {
    Core::new(&CoreOptions { observes: true, kernel_writes: false, ..core_options() }, now())
}

fn list(revision: u64, generation: u64, entries: Vec<KeyValue>) -> FeedEvent {
    FeedEvent::Snapshot { snapshot: snapshot("a", revision, entries).into(), generation }
}

/// Reads a store of Calico 3 completely.
fn read(core: &mut Core, entries: Vec<KeyValue>) {
    feed(core, FeedEvent::Calico3(true));
    feed(core, list(1, 1, entries));
    let added = snapshot("a", 1, vec![kv(BLOCK, &block(), 1)]);
    feed(core, FeedEvent::Added { prefixes: vec![BLOCK.to_owned()], snapshot: added });
}

fn peers(core: &Core) -> Vec<String> {
    core.intent.iter().flat_map(|intent| intent.peers.values().map(|peer| peer.name.clone())).collect()
}

#[test]
fn an_observer_of_calico_3_follows_its_objects() {
    let mut core = observer();
    read(&mut core, objects());
    assert!(core.loaded() && core.frozen.is_none());
    assert_eq!(core.model.dialect(), Dialect::V3);
    assert_eq!(peers(&core), ["h2"]);
    assert_eq!(core.intent.as_ref().unwrap().originated.len(), 1, "blocks are the same in both");
    let node = object("nodes/h3", r#"{"bgp":{"ipv4Address":"172.30.0.3/24"}}"#, 2);
    feed(&mut core, FeedEvent::Delta(Delta { revision: 2, changes: vec![Change::Put(node)] }));
    assert_eq!(peers(&core), ["h2", "h3"]);
    let found = core.recorder.find(&about("Node h3"), 0, 10);
    assert_eq!(found.iter().map(|event| event.text.as_str()).collect::<Vec<_>>(), ["written"]);
    let key = format!("{ROOT}/nodes/h3");
    feed(&mut core, FeedEvent::Delta(Delta { revision: 3, changes: vec![Change::Delete { key }] }));
    assert_eq!(peers(&core), ["h2"]);
}

#[test]
fn problems_name_the_object() {
    let mut core = observer();
    let mut entries = objects();
    entries.push(kv(&format!("{ROOT}/bgppeers/rack1-tor"), "[]", 1));
    entries.push(kv("/calico/v1/config/LogPrefix", "x", 1));
    read(&mut core, entries);
    let found = problems::problems(&core.status_snapshot(now().mono), None);
    let of = |code: &str| found.iter().find(|problem| problem.code == code);
    let invalid = of("invalid-value").unwrap();
    assert_eq!(invalid.subject, "BGPPeer rack1-tor");
    assert_eq!(invalid.next, format!("tortie store get {ROOT}/bgppeers/rack1-tor"));
    assert!(of("mixed-models").is_some() && of("calico-3").is_none());
}

/// Objects appear, and vanish again: each time a list follows, and nothing of the other data model is left.
#[test]
fn a_store_that_changes_its_data_model_is_read_anew() {
    let mut core = observer();
    whole(&mut core);
    assert_eq!((core.model.dialect(), peers(&core)), (Dialect::V1, vec!["h2".to_owned()]));
    let mut both = main_entries();
    both.extend(objects().into_iter().filter(|kv| kv.key != AFFINITY && !kv.key.ends_with("nodes/h2")));
    feed(&mut core, FeedEvent::Calico3(true));
    feed(&mut core, list(5, 2, both));
    assert_eq!((core.model.dialect(), peers(&core)), (Dialect::V3, Vec::new()));
    assert!(core.frozen.is_none(), "what the other data model had is no loss");
    feed(&mut core, FeedEvent::Calico3(false));
    feed(&mut core, list(6, 3, main_entries()));
    assert_eq!((core.model.dialect(), peers(&core)), (Dialect::V1, vec!["h2".to_owned()]));
}

/// The cache has the objects, so that their dialect is known without the store.
#[test]
fn a_cache_of_calico_3_is_read_as_such() {
    let mut core = observer();
    let mut entries = objects();
    entries.push(kv(BLOCK, &block(), 1));
    feed(&mut core, cached(snapshot("a", 1, entries)));
    give(&mut core, Input::StoreTimeout);
    assert_eq!((core.model.dialect(), peers(&core)), (Dialect::V3, vec!["h2".to_owned()]));
    whole(&mut core);
    assert_eq!(core.model.dialect(), Dialect::V1, "the store is another one by now");
}
