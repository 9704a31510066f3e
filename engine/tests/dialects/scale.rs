//! The first state of a large network, and one change of it, in both data models.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;
use tortie_config::Dialect;
use tortie_config::calico3::convert::convert;
use tortie_engine::model::{Model, ModelChanges, WatchPart};
use tortie_engine::policy::{Engine, Ruleset};
use tortie_engine::routing::{NodeOptions, Planner};
use tortie_store::{Change, Delta, KeyValue, Revision, Snapshot};

const NODES: usize = 5_000;
const ENDPOINTS: usize = 50_000;
const POLICIES: usize = 2_000;
/// Endpoints of the host whose decisions is measured.
const OWN: usize = 100;
const PROFILES: usize = 500;
const ROLES: usize = 200;
const ROUTERS: usize = 2;
const CHANGES: usize = 500;
const HOST: &str = "node-0";
/// Maximum of time and memory of the first state in relation to those of v1. The objects have three times as many
/// octets as the entries, all of which are read.
const RELATION_MAX: f64 = 1.5;
/// Maximum of the processor time from a label change to the changes for the kernel, 99th percentile: what users
/// have to see is an optimized program; without optimization it takes several times as long.
const CHANGE_MAX: Duration = Duration::from_millis(if cfg!(debug_assertions) { 10 } else { 5 });

/// Allocated octets.
static LIVE: AtomicUsize = AtomicUsize::new(0);

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[allow(unsafe_code, reason = "GlobalAlloc is an unsafe trait")]
// SAFETY: all calls go to the allocator of the system, with the arguments unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `GlobalAlloc::dealloc`.
        unsafe { System.dealloc(ptr, layout) }
    }
}

/// Returns the processor time of this thread, which other programs hardly lengthen.
fn now() -> Duration {
    // The kernel brings it up to date when the thread gives up the processor.
    std::thread::sleep(Duration::from_nanos(1));
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split(' ').next().unwrap().parse().unwrap())
}

fn kv(key: impl Into<String>, value: impl Into<Vec<u8>>) -> KeyValue {
    KeyValue { key: key.into(), value: value.into(), mod_revision: 1, create_revision: 1 }
}

/// Entries of a v1 store: hosts, endpoints, profiles, policies and a pool.
fn entries() -> Vec<KeyValue> {
    let mut entries = vec![
        kv("/calico/v1/Ready", "true"),
        kv("/calico/bgp/v1/global/as_num", "64512"),
        kv(
            "/calico/v1/ipam/v4/pool/10.0.0.0-8",
            r#"{"cidr":"10.0.0.0/8","ipip":"tunl0","ipip_mode":"cross-subnet","masquerade":true}"#,
        ),
    ];
    for n in 0..ROUTERS {
        let value = format!(r#"{{"ip":"192.0.2.{n}","as_num":"65001"}}"#);
        entries.push(kv(format!("/calico/bgp/v1/global/peer_v4/192.0.2.{n}"), value));
    }
    for n in 0..NODES {
        let (a, b) = (n / 250, n % 250 + 1);
        let bgp = |item: &str, value: String| kv(format!("/calico/bgp/v1/host/node-{n}/{item}"), value);
        entries.push(bgp("ip_addr_v4", format!("172.16.{a}.{b}")));
        entries.push(bgp("ip_addr_v6", String::new()));
        entries.push(bgp("network_v4", format!("172.16.{a}.0/24")));
        entries
            .push(kv(format!("/calico/v1/host/node-{n}/config/IpInIpTunnelAddr"), format!("10.255.{a}.{b}")));
    }
    for n in 0..ENDPOINTS {
        let host = if n < OWN { 0 } else { 1 + n % (NODES - 1) };
        let (key, value) = endpoint(n, host, n % ROLES);
        entries.push(kv(key, value));
    }
    for n in 0..PROFILES {
        let key = format!("/calico/v1/policy/profile/p{n}");
        let rules = json!({
            "inbound_rules": [{"src_selector": format!("has(t{n})")}, {"action": "deny", "protocol": "tcp", "dst_ports": [22]}],
            "outbound_rules": [{}],
        });
        entries.push(kv(format!("{key}/rules"), rules.to_string()));
        entries.push(kv(
            format!("{key}/labels"),
            json!({format!("t{n}"): "", "env": format!("e{}", n % 5)}).to_string(),
        ));
    }
    for n in 0..POLICIES {
        let value = json!({
            "selector": format!("role == 'r{}' && has(env)", n % ROLES),
            "order": n,
            "inbound_rules": [
                {"protocol": "tcp", "dst_ports": [1 + n], "src_selector": "has(env)"},
                {"action": "deny", "src_selector": format!("role == 'r{}'", n % ROLES)},
            ],
            "outbound_rules": [{}],
        });
        entries.push(kv(format!("/calico/v1/policy/tier/default/policy/x{n}"), value.to_string()));
    }
    entries.sort_by(|a, b| a.key.cmp(&b.key));
    entries
}

fn endpoint(n: usize, host: usize, role: usize) -> (String, String) {
    let value = json!({
        "state": "active", "name": format!("cali{n:x}"), "mac": "ee:ee:ee:ee:ee:ee", "profile_ids": [format!("p{}", n % PROFILES)],
        "ipv4_nets": [format!("10.{}.{}.{}/32", n / 65_536, n / 256 % 256, n % 256)], "ipv6_nets": [],
        "labels": {"role": format!("r{role}"), "app": format!("a{}", n % 50)},
    });
    (format!("/calico/v1/host/node-{host}/workload/k8s/prod.web-{n}/endpoint/eth0"), value.to_string())
}

/// The objects of the same network.
fn objects(entries: &[KeyValue]) -> Vec<KeyValue> {
    let converted = convert(entries.iter().map(|kv| (kv.key.as_str(), kv.value.as_slice())));
    assert!(converted.is_complete());
    let stamp = Some(("6b1d1a4e-0a0b-4c0d-8e0f-000000000001", "2026-01-01T00:00:00Z"));
    let mut objects: Vec<KeyValue> = converted
        .objects
        .values()
        .map(|object| kv(object.key.to_string(), object.value(stamp).to_string()))
        .collect();
    objects.sort_by(|a, b| a.key.cmp(&b.key));
    objects
}

fn snapshot(entries: Vec<KeyValue>) -> Snapshot {
    Snapshot { revision: 1, store_id: "s".to_owned(), entries, ..Snapshot::default() }
}

/// A model with everything that is computed from it first.
struct Agent {
    model: Model,
    planner: Planner,
    engine: Engine,
    ruleset: Ruleset,
}

/// Time and memory of a first state.
#[derive(Debug, Clone, Copy)]
struct Cost {
    model: Duration,
    rest: Duration,
    octets: usize,
}

impl Agent {
    fn start(dialect: Dialect, snapshot: &Snapshot) -> (Self, Cost) {
        let before = LIVE.load(Ordering::Relaxed);
        let begin = now();
        let mut model = Model::new(HOST);
        model.set_dialect(dialect);
        model.replace(WatchPart::All, snapshot);
        let filled = now() - begin;
        let planner = Planner::new(&model, NodeOptions::default());
        let (engine, delta) = Engine::new(&model);
        let mut ruleset = Ruleset::default();
        delta.apply(&mut ruleset);
        drop(delta);
        let rest = now() - begin - filled;
        let octets = LIVE.load(Ordering::Relaxed) - before;
        assert_eq!(model.invalid_keys().count(), 0);
        assert_eq!(ruleset.endpoints.len(), OWN);
        assert_eq!(planner.intent().peers.iter().count(), NODES - 1 + ROUTERS);
        (Self { model, planner, engine, ruleset }, Cost { model: filled, rest, octets })
    }

    /// Applies one write, and returns the processor time from it to the changes for the kernel.
    fn apply(&mut self, revision: Revision, mut entry: KeyValue) -> Duration {
        entry.mod_revision = revision;
        let begin = now();
        let changes: ModelChanges = self.model.apply(&Delta { revision, changes: vec![Change::Put(entry)] });
        self.planner.update(&self.model, &changes);
        let delta = self.engine.update(&self.model, &changes.keys);
        let time = now() - begin;
        delta.apply(&mut self.ruleset);
        time
    }
}

/// Prints median, 99th percentile and maximum, and returns the 99th percentile.
fn percentiles(what: &str, mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    let at = |part: usize| times[(times.len() * part / 100).min(times.len() - 1)];
    let [half, most, worst] = [50, 99, 100].map(|part| at(part).as_secs_f64() * 1e3);
    println!("{what}: p50 {half:.2} ms, p99 {most:.2} ms, worst {worst:.2} ms");
    at(99)
}

/// Prints and asserts processor time and memory of both forms. Both are measured in one run, so that the speed of the
/// machine does not matter for their relation.
#[test]
#[ignore = "measures a network of 5,000 nodes: needs an idle machine"]
fn long_first_state_and_label_changes_of_five_thousand_nodes() {
    let v1 = entries();
    let v3 = snapshot(objects(&v1));
    let v1 = snapshot(v1);
    let octets = |snapshot: &Snapshot| snapshot.entries.iter().map(|kv| kv.value.len()).sum::<usize>() >> 10;
    println!(
        "v1: {} keys, {} KiB; v3: {} objects, {} KiB",
        v1.entries.len(),
        octets(&v1),
        v3.entries.len(),
        octets(&v3)
    );
    // The least of several: other programs take processor time.
    let mut costs: [Vec<Cost>; 2] = [Vec::new(), Vec::new()];
    for _ in 0..5 {
        for (at, (dialect, snapshot)) in [(Dialect::V1, &v1), (Dialect::V3, &v3)].into_iter().enumerate() {
            costs[at].push(Agent::start(dialect, snapshot).1);
        }
    }
    let [of_v1, of_v3] =
        costs.map(|costs| costs.into_iter().min_by_key(|cost| cost.model + cost.rest).unwrap());
    for (name, cost) in [("v1", of_v1), ("v3", of_v3)] {
        println!(
            "{name}: model {} ms, intents and rules {} ms, {} KiB",
            cost.model.as_millis(),
            cost.rest.as_millis(),
            cost.octets >> 10
        );
    }
    let time = |cost: Cost| (cost.model + cost.rest).as_secs_f64();
    let slower = time(of_v3) / time(of_v1);
    let larger = of_v3.octets as f64 / of_v1.octets as f64;
    println!("v3 to v1: time {slower:.2}, memory {larger:.2}");

    let mut agents = [Agent::start(Dialect::V1, &v1).0, Agent::start(Dialect::V3, &v3).0];
    let mut own: [Vec<Duration>; 2] = Default::default();
    let mut elsewhere: [Vec<Duration>; 2] = Default::default();
    for n in 0..CHANGES {
        for (host, at, times) in
            [(0, n % OWN, &mut own), (1 + (OWN + n) % (NODES - 1), OWN + n, &mut elsewhere)]
        {
            let (key, value) = endpoint(at, host, (n + 1) % ROLES);
            let entry = kv(key, value);
            let object = objects(std::slice::from_ref(&entry))
                .into_iter()
                .find(|kv| kv.key.contains("/workloadendpoints/"));
            let revision = Revision::try_from(n * 2 + 2 + usize::from(host != 0)).unwrap();
            times[0].push(agents[0].apply(revision, entry));
            times[1].push(agents[1].apply(revision, object.unwrap()));
        }
    }
    let [first, second] = &agents;
    assert_eq!(
        first.ruleset.sets.values().map(|set| set.len()).sum::<usize>(),
        second.ruleset.sets.values().map(|set| set.len()).sum::<usize>()
    );
    let mut nodes = Vec::new();
    let node = v3.entries.iter().find(|kv| kv.key.ends_with("/nodes/node-7")).unwrap();
    let text = String::from_utf8(node.value.clone()).unwrap();
    for n in 0..CHANGES {
        let value =
            text.replacen("\"metadata\":{", &format!("\"metadata\":{{\"labels\":{{\"rack\":\"r{n}\"}},"), 1);
        let revision = Revision::try_from(CHANGES * 2 + 10 + n).unwrap();
        nodes.push(agents[1].apply(revision, kv(node.key.clone(), value)));
    }
    let [own_of_v1, own_of_v3] = own;
    let [elsewhere_of_v1, elsewhere_of_v3] = elsewhere;
    percentiles("v1: label of an own endpoint", own_of_v1);
    percentiles("v1: label of another host's endpoint", elsewhere_of_v1);
    let changes = [
        percentiles("v3: label of an own endpoint", own_of_v3),
        percentiles("v3: label of another host's endpoint", elsewhere_of_v3),
        percentiles("v3: label of a node", nodes),
    ];
    let is_alike = slower <= RELATION_MAX && larger <= RELATION_MAX;
    assert!(is_alike, "v3 to v1: time {slower:.2}, memory {larger:.2}");
    assert!(changes.iter().all(|most| *most <= CHANGE_MAX), "v3: label changes: {changes:?}");
}
