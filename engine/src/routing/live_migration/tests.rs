//! Tests of roles and states against the events of a store, in any order.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::json;
use tortie_store::{Change, Delta, KeyValue, Snapshot};

use super::*;

const OPENSTACK: &str = "openstack";
const A: &str = "host-a";
const B: &str = "host-b";
const WORKLOAD: &str = "openstack/vm";
const PORT: &str = "port";
const ADDRESS: &str = "10.65.0.5";

/// A step of a migration from A to B.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    /// The store has the migration.
    Begin,
    /// The store has the endpoint on B.
    Target,
    /// The workload moves, and sends a packet on B.
    Move,
    /// The store no longer has the migration.
    End,
    /// The store no longer has the endpoint on A.
    Leave,
    /// More than the convergence time passes.
    Later,
    /// The agent on A restarts.
    RestartA,
    /// The agent on B restarts.
    RestartB,
}

fn key(host: &str) -> EndpointKey {
    EndpointKey::Workload {
        host: host.to_owned(),
        orchestrator: OPENSTACK.to_owned(),
        workload: WORKLOAD.to_owned(),
        endpoint: PORT.to_owned(),
    }
}

fn endpoint_value() -> String {
    json!({
        "state": "active", "name": "tap1", "mac": "fa:16:3e:00:00:01", "profile_ids": [],
        "ipv4_nets": [format!("{ADDRESS}/32")], "ipv6_nets": [], "labels": {"vm": "a"},
    })
    .to_string()
}

fn migration_value(target: &serde_json::Value) -> String {
    let end =
        |host: &str| json!({"host": host, "orchestrator": OPENSTACK, "workload": WORKLOAD, "endpoint": PORT});
    let mut value = json!({"source": end(A)});
    match target {
        serde_json::Value::Null => value["target"] = end(B),
        selector => value["target_selector"] = selector.clone(),
    }
    value.to_string()
}

/// The agent of a host.
struct Agent {
    model: Model,
    migrations: LiveMigrations,
}

impl Agent {
    fn new(host: &str, snapshot: &Snapshot, attached: Vec<AttachedRoute>, now: Instant) -> Self {
        let mut model = Model::new(host);
        let changes = model.load_projected(snapshot);
        let mut migrations = LiveMigrations::default();
        migrations.set_attached(attached);
        migrations.update(&model, &changes, now);
        Self { model, migrations }
    }

    /// Returns the priority of the route to the interface; `None` if this host does not route the address.
    fn priority(&self) -> Option<u32> {
        let key = key(self.model.node());
        self.model.workload(&key)?;
        match self.migrations.routings().moving.get(&key) {
            None => Some(1024),
            Some(routing) => routing.priority(true),
        }
    }

    fn attached(&self) -> Vec<AttachedRoute> {
        let route =
            |metric| AttachedRoute { addr: ADDRESS.parse().unwrap(), interface: "tap1".to_owned(), metric };
        self.priority().into_iter().map(route).collect()
    }
}

/// A store with the agents of both hosts.
struct Cluster {
    revision: u64,
    entries: BTreeMap<String, KeyValue>,
    now: Instant,
    a: Agent,
    b: Agent,
    moved: bool,
}

fn kv(key: &str, value: &str, revision: u64) -> KeyValue {
    let (key, value) = (key.to_owned(), value.as_bytes().to_vec());
    KeyValue { key, value, mod_revision: revision, create_revision: revision }
}

fn snapshot(entries: &BTreeMap<String, KeyValue>, revision: u64) -> Snapshot {
    Snapshot { revision, entries: entries.values().cloned().collect(), ..Snapshot::default() }
}

impl Cluster {
    fn new() -> Self {
        let now = Instant::now();
        let key = Key::Endpoint(key(A)).to_string();
        let kv = kv(&key, &endpoint_value(), 1);
        let entries = BTreeMap::from([(key, kv)]);
        let snapshot = snapshot(&entries, 1);
        let [a, b] = [A, B].map(|host| Agent::new(host, &snapshot, Vec::new(), now));
        Self { revision: 1, entries, now, a, b, moved: false }
    }

    fn write(&mut self, key: &Key, value: Option<String>) {
        self.revision += 1;
        let (key, revision) = (key.to_string(), self.revision);
        let change = match value {
            Some(value) => {
                let kv = kv(&key, &value, revision);
                self.entries.insert(key, kv.clone());
                Change::Put(kv)
            }
            None => {
                self.entries.remove(&key);
                Change::Delete { key }
            }
        };
        let delta = Delta { revision, changes: vec![change] };
        for agent in [&mut self.a, &mut self.b] {
            let changes = agent.model.apply_projected(&delta);
            agent.migrations.update(&agent.model, &changes, self.now);
        }
    }

    fn step(&mut self, event: Event) {
        self.now += Duration::from_millis(10);
        let migration = Key::LiveMigration { namespace: "openstack".to_owned(), name: "m".to_owned() };
        match event {
            Event::Begin => self.write(&migration, Some(migration_value(&serde_json::Value::Null))),
            Event::Target => self.write(&Key::Endpoint(key(B)), Some(endpoint_value())),
            Event::Move => {
                self.moved = true;
                self.b.migrations.see(&key(B), self.now);
            }
            Event::End => self.write(&migration, None),
            Event::Leave => self.write(&Key::Endpoint(key(A)), None),
            Event::Later => {
                self.now += Duration::from_secs(31);
                self.a.migrations.expire(self.now);
                self.b.migrations.expire(self.now);
            }
            Event::RestartA => {
                let listed = snapshot(&self.entries, self.revision);
                self.a = Agent::new(A, &listed, self.a.attached(), self.now);
            }
            Event::RestartB => {
                let listed = snapshot(&self.entries, self.revision);
                self.b = Agent::new(B, &listed, self.b.attached(), self.now);
            }
        }
    }

    /// Checks that packets reach the workload.
    fn check(&self, steps: &[Event]) {
        let (a, b) = (self.a.priority(), self.b.priority());
        let preferred = match (a, b) {
            (Some(a), Some(b)) => {
                assert_ne!(a, b, "both announce it alike after {steps:?}");
                if a < b { A } else { B }
            }
            (Some(_), None) => A,
            (None, Some(_)) => B,
            (None, None) => panic!("nobody announces it after {steps:?}"),
        };
        assert_eq!(preferred, if self.moved { B } else { A }, "after {steps:?}");
    }
}

/// Returns the events in an order that can occur: the workload moves to an existing endpoint, the endpoint that
/// it leaves is deleted afterwards, and what ends has begun.
fn possible(shuffled: &[Event]) -> Vec<Event> {
    let after = [(Event::Move, Event::Target), (Event::Leave, Event::Move), (Event::End, Event::Begin)];
    let mut waiting = shuffled.to_vec();
    let mut order = Vec::new();
    while let Some(next) = waiting
        .iter()
        .position(|event| after.iter().all(|(later, earlier)| later != event || order.contains(earlier)))
    {
        order.push(waiting.remove(next));
    }
    order
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn in_any_order_of_events_packets_reach_the_workload(
        shuffled in Just(vec![
            Event::Begin, Event::Target, Event::Move, Event::End, Event::Leave,
            Event::Later, Event::Later, Event::RestartA, Event::RestartB, Event::RestartB,
        ]).prop_shuffle(),
    ) {
        let steps = possible(&shuffled);
        let mut cluster = Cluster::new();
        for at in 0..steps.len() {
            cluster.step(steps[at]);
            cluster.check(&steps[..=at]);
        }
        cluster.step(Event::Later);
        cluster.check(&steps);
        prop_assert_eq!((cluster.a.priority(), cluster.b.priority()), (None, Some(1024)));
        prop_assert_eq!(cluster.b.migrations.states().count(), 0);
    }
}

#[test]
fn a_failed_migration_leaves_no_trace_whatever_is_deleted_first() {
    for first_the_object in [true, false] {
        let mut cluster = Cluster::new();
        let steps = [Event::Begin, Event::Target];
        steps.into_iter().for_each(|event| cluster.step(event));
        cluster.check(&steps);
        let migration = Key::LiveMigration { namespace: "openstack".to_owned(), name: "m".to_owned() };
        let mut keys = [migration, Key::Endpoint(key(B))];
        if !first_the_object {
            keys.reverse();
        }
        for key in &keys {
            cluster.write(key, None);
            cluster.check(&steps);
        }
        assert_eq!((cluster.a.priority(), cluster.b.priority()), (Some(1024), None));
    }
}

#[test]
fn the_moved_workload_has_an_elevated_priority_until_routes_have_converged() {
    let mut cluster = Cluster::new();
    [Event::Begin, Event::Target].into_iter().for_each(|event| cluster.step(event));
    assert_eq!((cluster.a.priority(), cluster.b.priority()), (Some(1024), None));
    let routing = cluster.a.migrations.routings().moving.get(&key(A)).copied();
    assert_eq!(routing, Some(EndpointRouting::Priority { v4: 1024, v6: 1024 }), "exactly this one");
    cluster.step(Event::Move);
    assert_eq!(cluster.b.priority(), Some(512));
    assert_eq!(cluster.b.migrations.deadline(), None);
    cluster.step(Event::End);
    assert_eq!(cluster.b.migrations.deadline(), None, "the other endpoint exists");
    // However long ago the migration ended: the former host learns of the end of its endpoint at the same time.
    cluster.step(Event::Later);
    cluster.step(Event::Leave);
    assert_eq!(cluster.b.priority(), Some(512));
    assert_eq!(cluster.b.migrations.deadline(), Some(cluster.now + Duration::from_secs(30)));
    assert!(!cluster.b.migrations.expire(cluster.now));
    cluster.step(Event::Later);
    assert_eq!(cluster.b.priority(), Some(1024));
    let states: Vec<&str> =
        cluster.b.migrations.take_transitions().iter().map(|moved| moved.state.as_str()).collect();
    assert_eq!(
        states,
        [
            "live migration: the workload runs elsewhere",
            "live migration: the workload runs here",
            "live migration: routes converge",
            "live migration: over"
        ]
    );
}

#[test]
fn settings_give_priorities_and_time_and_labels_name_targets() {
    let mut cluster = Cluster::new();
    let settings = [("IPv4ElevatedRoutePriority", "100"), ("LiveMigrationRouteConvergenceTime", "2.5")];
    for (name, value) in settings {
        cluster
            .write(&Key::Setting(tortie_config::key::Scope::Global, name.to_owned()), Some(value.to_owned()));
    }
    let migration = Key::LiveMigration { namespace: "openstack".to_owned(), name: "m".to_owned() };
    cluster.write(&migration, Some(migration_value(&json!("vm == 'a'"))));
    cluster.step(Event::Target);
    assert_eq!(cluster.b.priority(), None);
    cluster.step(Event::Move);
    assert_eq!(cluster.b.priority(), Some(100));
    cluster.write(&migration, None);
    cluster.step(Event::Leave);
    let wait = cluster.b.migrations.deadline().unwrap().saturating_duration_since(cluster.now);
    assert!(wait <= Duration::from_millis(2_500), "{wait:?}");
}

#[test]
fn a_checkpoint_restores_every_state() {
    for count in 0..5 {
        let mut cluster = Cluster::new();
        let steps = [Event::Begin, Event::Target, Event::Move, Event::End, Event::Leave];
        steps.into_iter().take(count).for_each(|event| cluster.step(event));
        let (now, start) = (cluster.now, cluster.now);
        for agent in [&cluster.a, &cluster.b] {
            let saved = agent.migrations.checkpoint(|at| at.saturating_duration_since(start));
            let restored = LiveMigrations::restore(&agent.model, saved, now, |after| start + after);
            assert_eq!(restored.routings(), agent.migrations.routings(), "{count}");
            assert_eq!(restored.deadline(), agent.migrations.deadline(), "{count}");
        }
    }
}
