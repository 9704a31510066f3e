//! IPAM on a Calico 3 store: its rules, and clusters in which Calico's own clients allocate from the same blocks.

mod client;
mod history;
mod memory;
mod mixed;
mod processes;
mod relay;
mod rules;
mod schedule;

use std::sync::Arc;

use serde_json::{Value, json};
use tortie_config::key::IpFamily;
use tortie_engine::ipam::{AddressRequest, AllocationRequest, Ipam};

use memory::MemoryStore;

const OBJECTS: &str = "/calico/resources/v3/projectcalico.org";

/// Returns key and value of an object.
fn object(plural: &str, name: &str, labels: Value, spec: Value) -> (String, Value) {
    let value = json!({"kind": plural, "apiVersion": "projectcalico.org/v3",
                       "metadata": {"name": name, "labels": labels}, "spec": spec});
    (format!("{OBJECTS}/{plural}/{name}"), value)
}

/// Creates a ready cluster with these hosts, and one pool per given `spec`.
fn cluster(hosts: &[&str], pools: &[Value]) -> Arc<MemoryStore> {
    let store = Arc::new(MemoryStore::default());
    let (key, ready) =
        object("clusterinformations", "default", json!({}), json!({"datastoreReady": true, "later": 1}));
    store.put(&key, &ready);
    for host in hosts {
        let (key, node) = object("nodes", host, json!({"host": host}), json!({}));
        store.put(&key, &node);
    }
    for (n, spec) in pools.iter().enumerate() {
        let (key, pool) = object("ippools", &format!("pool-{n}"), json!({}), spec.clone());
        store.put(&key, &pool);
    }
    store
}

fn ipam(store: &Arc<MemoryStore>) -> Ipam {
    Ipam::new(Arc::clone(store) as Arc<dyn tortie_store::Store>)
}

/// Requests addresses of any pool, as a plugin does.
fn want(host: &str, handle: &str, count: u32) -> AllocationRequest {
    let any = AddressRequest::Any { family: IpFamily::V4, count, pools: Vec::new() };
    AllocationRequest {
        host: host.to_owned(),
        addresses: vec![any],
        handle: Some(handle.to_owned()),
        attributes: [("node".to_owned(), Value::from(host))].into_iter().collect(),
        ..AllocationRequest::default()
    }
}

fn block_key(block: &str) -> String {
    format!("/calico/ipam/v2/assignment/ipv4/block/{}", block.replace('/', "-"))
}

fn affinity_key(host: &str, block: &str) -> String {
    format!("/calico/ipam/v2/host/{host}/ipv4/block/{}", block.replace('/', "-"))
}

fn handle_key(handle: &str) -> String {
    format!("/calico/ipam/v2/handle/{handle}")
}
