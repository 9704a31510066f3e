//! Benchmarks of model and routing with 5,000 hosts: start, a change of one host, and an endpoint that is
//! added and removed next to 10,000 others.

use std::hint::black_box;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use tortie_engine::model::{Model, WatchPart};
use tortie_engine::routing::{NodeOptions, Planner, intent};
use tortie_store::{Change, Delta, KeyValue, Snapshot};

const HOSTS: u32 = 5_000;
const ENDPOINTS: u32 = 10_000;

fn kv(key: String, value: &str, revision: u64) -> KeyValue {
    KeyValue { key, value: value.as_bytes().to_vec(), mod_revision: revision, create_revision: revision }
}

fn address(host: u32) -> String {
    std::net::Ipv4Addr::from(0x0a00_0001 + host).to_string()
}

/// Store content after the start of every host's agent: the keys that each one writes.
fn snapshot() -> Snapshot {
    let mut entries = vec![kv("/calico/v1/Ready".to_owned(), "true", 1)];
    for host in 0..HOSTS {
        let bgp = |item: &str, value: &str| kv(format!("/calico/bgp/v1/host/node-{host}/{item}"), value, 1);
        entries.push(bgp("ip_addr_v4", &address(host)));
        entries.push(bgp("ip_addr_v6", ""));
        entries.push(bgp("network_v4", "10.0.0.0/16"));
        entries.push(kv(format!("/calico/v1/host/node-{host}/bird_ip"), &address(host), 1));
        entries.push(kv(format!("/calico/v1/host/node-{host}/metadata"), "{}", 1));
        entries.push(kv(
            format!("/calico/v1/host/node-{host}/config/DefaultEndpointToHostAction"),
            "RETURN",
            1,
        ));
    }
    Snapshot { revision: 1, store_id: "bench".to_owned(), entries, ..Snapshot::default() }
}

fn endpoint(n: u32) -> KeyValue {
    let addr = std::net::Ipv4Addr::from(0x0b00_0000 + n);
    kv(
        format!("/calico/v1/host/node-0/workload/cni/w{n}/endpoint/eth0"),
        &format!(r#"{{"state":"active","name":"cali{n}","ipv4_nets":["{addr}/32"]}}"#),
        1,
    )
}

fn loaded(snapshot: &Snapshot) -> Model {
    let mut model = Model::new("node-0");
    model.replace(WatchPart::All, snapshot);
    model
}

fn benches(c: &mut Criterion) {
    let snapshot = snapshot();
    c.bench_function("model: first snapshot, 5,000 hosts", |b| b.iter(|| loaded(black_box(&snapshot))));
    c.bench_function("model: relist without changes, 5,000 hosts", |b| {
        let mut model = loaded(&snapshot);
        b.iter(|| model.replace(WatchPart::All, black_box(&snapshot)));
    });
    c.bench_function("routing: intent from scratch, 5,000 hosts", |b| {
        let model = loaded(&snapshot);
        b.iter(|| intent(black_box(&model), &NodeOptions::default()));
    });
    c.bench_function("model and routing: one host of 5,000 changes its AS", |b| {
        let model = loaded(&snapshot);
        let planner = Planner::new(&model, NodeOptions::default());
        let mut state = (model, planner, 1);
        b.iter_batched(
            || (),
            |()| {
                let (model, planner, revision) = &mut state;
                *revision += 1;
                let key = format!("/calico/bgp/v1/host/node-{}/as_num", *revision % u64::from(HOSTS - 1) + 1);
                let asn = (65_000 + *revision % 400).to_string();
                let delta =
                    Delta { revision: *revision, changes: vec![Change::Put(kv(key, &asn, *revision))] };
                let changes = model.apply(&delta);
                planner.update(model, &changes)
            },
            BatchSize::SmallInput,
        );
    });
    c.bench_function("model to speaker: an endpoint comes or goes beside 10,000, 5,000 hosts", |b| {
        let mut snapshot = snapshot.clone();
        let pool = kv("/calico/v1/ipam/v4/pool/11.0.0.0-8".to_owned(), r#"{"cidr":"11.0.0.0/8"}"#, 1);
        snapshot.entries.push(pool);
        snapshot.entries.extend((0..ENDPOINTS).map(endpoint));
        let mut model = loaded(&snapshot);
        let mut planner = Planner::new(&model, NodeOptions::default());
        let (mut revision, mut known) = (1, planner.intent().clone());
        b.iter(|| {
            revision += 1;
            let one = endpoint(ENDPOINTS);
            let change = if revision % 2 == 0 { Change::Put(one) } else { Change::Delete { key: one.key } };
            let changes = model.apply(&Delta { revision, changes: vec![change] });
            planner.update(&model, &changes);
            // The same comparisons as in the core, before it passes the intent on, and in the speaker, which
            // looks for differences.
            let now = planner.intent().clone();
            let differ = now.originated.differences(&known.originated).len()
                + now.addresses.differences(&known.addresses).len()
                + now.peers.differences(&known.peers).len();
            assert_eq!(differ, 2);
            known = now;
        });
    });
}

criterion_group!(group, benches);
criterion_main!(group);
