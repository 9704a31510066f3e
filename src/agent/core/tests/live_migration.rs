//! Tests of a workload that moves to this host: what the kernel thread and the speaker receive, and in which
//! order.

use tortie_config::key::{EndpointKey, Key};

use super::*;
use tortie_engine::routing::{EndpointRouting, EndpointRoutings};

const ROOT: &str = "/calico/resources/v3/projectcalico.org";
const OWN: &str = "/calico/v1/host/h1/workload/openstack/openstack%2fvm/endpoint/port";

fn object(path: &str, spec: &str, revision: u64) -> KeyValue {
    kv(&format!("{ROOT}/{path}"), &format!(r#"{{"metadata":{{}},"spec":{spec}}}"#), revision)
}

fn endpoint(host: &str, revision: u64) -> KeyValue {
    let spec = format!(
        r#"{{"node":"{host}","orchestrator":"openstack","workload":"vm","endpoint":"port","interfaceName":"tapport",
            "ipNetworks":["10.65.0.5/32"]}}"#
    );
    object(&format!("workloadendpoints/openstack/{host}-openstack-vm-port"), &spec, revision)
}

fn migration(revision: u64) -> KeyValue {
    let end = |host: &str| {
        format!(
            r#"{{"workloadEndpoint":{{"hostname":"{host}","orchestratorID":"openstack","workloadID":"openstack/vm",
                "endpointID":"port"}}}}"#
        )
    };
    let spec = format!(r#"{{"source":{},"target":{}}}"#, end("h2"), end("h1"));
    object("livemigrations/openstack/m", &spec, revision)
}

fn key() -> EndpointKey {
    match OWN.parse() {
        Ok(Key::Endpoint(key)) => key,
        other => panic!("{other:?}"),
    }
}

/// Returns a core that runs, with the workload on another host.
fn started() -> Core {
    let mut core = Core::new(&CoreOptions { observes: true, ..core_options() }, now());
    feed(&mut core, FeedEvent::Calico3(true));
    let entries = vec![
        object("clusterinformations/default", r#"{"datastoreReady":true}"#, 1),
        object("ippools/vms", r#"{"cidr":"10.65.0.0/16"}"#, 1),
        object("nodes/h1", r#"{"bgp":{"ipv4Address":"172.30.0.1/24"}}"#, 1),
        endpoint("h2", 1),
    ];
    feed(&mut core, FeedEvent::Snapshot { snapshot: snapshot("a", 1, entries).into(), generation: 1 });
    let generation = core.generation;
    applied(&mut core, generation, Vec::new());
    enforced(&mut core);
    assert!(core.running());
    core
}

fn put(core: &mut Core, kv: KeyValue) -> Vec<Effect> {
    let revision = kv.mod_revision;
    feed(core, FeedEvent::Delta(Delta { revision, changes: vec![Change::Put(kv)] }))
}

fn delete(core: &mut Core, key: String, revision: u64) -> Vec<Effect> {
    feed(core, FeedEvent::Delta(Delta { revision, changes: vec![Change::Delete { key }] }))
}

fn routing(effects: &[Effect]) -> Option<Arc<EndpointRoutings>> {
    effects.iter().rev().find_map(|effect| match effect {
        Effect::Enforce(change) => change.routings.clone(),
        _ => None,
    })
}

/// Returns the priority that the speaker received last.
fn priority(effects: &[Effect]) -> Option<Option<u32>> {
    let prefix = "10.65.0.5/32".parse().unwrap();
    effects.iter().rev().find_map(|effect| match effect {
        Effect::Speaker(intent, _) => Some(intent.originated.get(&prefix).and_then(|route| route.priority)),
        _ => None,
    })
}

fn acknowledge(core: &mut Core) -> Vec<Effect> {
    let (serial, change) = (core.enforcement.serial(), ChangeId(1));
    let fact = KernelFact::Enforced { serial, change, failed: BTreeMap::new(), micros: 1 };
    give(core, Input::Kernel(fact))
}

#[test]
fn a_workload_is_announced_after_it_has_arrived_and_its_route_is_in_the_kernel() {
    let mut core = started();
    put(&mut core, migration(2));
    let effects = put(&mut core, endpoint("h1", 3));
    let routings = routing(&effects).unwrap();
    assert_eq!(routings.normal, Some([1024, 1024]));
    assert_eq!(routings.moving.get(&key()), Some(&EndpointRouting::Withheld));
    assert_eq!(priority(&effects).flatten(), None, "it is not announced");
    assert!(core.intent.as_ref().unwrap().addresses.is_empty(), "routes to the other host are accepted");
    acknowledge(&mut core);

    let effects = give(&mut core, Input::Kernel(KernelFact::Arrived(key())));
    let elevated = EndpointRouting::Priority { v4: 512, v6: 512 };
    assert_eq!(routing(&effects).unwrap().moving.get(&key()), Some(&elevated));
    assert_eq!(priority(&effects), None, "not before the kernel has its route");
    assert_eq!(priority(&put(&mut core, object("ippools/other", r#"{"cidr":"10.66.0.0/16"}"#, 4))), None);
    assert_eq!(priority(&acknowledge(&mut core)), Some(Some(512)));

    delete(&mut core, migration(5).key, 5);
    let effects = delete(&mut core, endpoint("h2", 6).key, 6);
    assert_eq!(routing(&effects), None, "it stays until routes elsewhere have converged");
    let due = core.migrations_due().unwrap();
    assert!(give(&mut core, Input::MigrationsDue).is_empty());
    let later = Now { mono: due, wall: jiff::Timestamp::UNIX_EPOCH };
    let effects = core.handle(Input::MigrationsDue, later);
    assert_eq!(routing(&effects).unwrap().moving.len(), 0);
    assert_eq!(priority(&effects), Some(Some(1024)));
    let history = core.recorder.find(&Filter::default(), 0, 1_000);
    let texts: Vec<&str> = history.iter().map(|entry| entry.text.as_str()).collect();
    for state in ["the workload runs elsewhere", "the workload runs here", "routes converge", "over"] {
        assert!(texts.iter().any(|text| text.ends_with(state)), "{state}: {texts:?}");
    }
}

#[test]
fn an_agent_that_restarts_in_between_knows_by_the_route_that_the_workload_has_arrived() {
    for (found, expected) in [(true, Some(512)), (false, None)] {
        let mut core = Core::new(&CoreOptions { observes: true, ..core_options() }, now());
        let route = tortie_engine::model::AttachedRoute {
            addr: "10.65.0.5".parse().unwrap(),
            interface: "tapport".to_owned(),
            metric: 512,
        };
        give(&mut core, Input::Attached(found.then_some(route).into_iter().collect()));
        feed(&mut core, FeedEvent::Calico3(true));
        let entries = vec![
            object("clusterinformations/default", r#"{"datastoreReady":true}"#, 1),
            object("ippools/vms", r#"{"cidr":"10.65.0.0/16"}"#, 1),
            endpoint("h2", 1),
            migration(2),
            endpoint("h1", 3),
        ];
        feed(&mut core, FeedEvent::Snapshot { snapshot: snapshot("a", 3, entries).into(), generation: 1 });
        let generation = core.generation;
        assert_eq!(priority(&applied(&mut core, generation, Vec::new())).flatten(), expected, "{found}");
    }
}
