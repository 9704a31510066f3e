//! The same commands on a Calico 3 store: they write objects, keep what they do not know, and change nothing
//! else.

mod nodes;
mod pools;

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{done, fails};
use crate::common::command::Store;

const ROOT: &str = "/calico/resources/v3/projectcalico.org";

/// Returns key and value of an object, with members that no version of ours knows.
fn object(path: &str, spec: &Value) -> (String, String) {
    let name = path.rsplit('/').next().unwrap();
    let metadata = json!({"name": name, "uid": "u", "creationTimestamp": "2020-01-01T00:00:00Z", "odd": [1]});
    let value =
        json!({"apiVersion": "projectcalico.org/v3", "metadata": metadata, "spec": spec, "later": 1.5});
    (format!("{ROOT}/{path}"), value.to_string())
}

/// Entries of a ready cluster with these hosts.
fn cluster(hosts: &[&str]) -> Vec<(String, String)> {
    let mut entries = vec![object("clusterinformations/default", &json!({"datastoreReady": true}))];
    for (n, host) in hosts.iter().enumerate() {
        let spec = json!({"bgp": {"ipv4Address": format!("192.0.2.{}/24", n + 1)}});
        entries.push(object(&format!("nodes/{host}"), &spec));
    }
    entries
}

fn import(store: &Store, entries: &[(String, String)]) {
    let map: BTreeMap<&String, &String> = entries.iter().map(|(key, value)| (key, value)).collect();
    let file = store.file("entries.json", &serde_json::to_string(&map).unwrap());
    done(&store.run(&["store", "import", "--raw", file.to_str().unwrap()]));
}

/// Creates a ready cluster with these hosts.
fn store(hosts: &[&str]) -> Store {
    let store = Store::none();
    import(&store, &cluster(hosts));
    store
}

fn value(store: &Store, path: &str) -> Value {
    let key = format!("{ROOT}/{path}");
    serde_json::from_str(&store.export()[&key]).unwrap()
}

/// Checks that a store has these objects of a kind, by name.
fn names(store: &Store, kind: &str) -> Vec<String> {
    let prefix = format!("{ROOT}/{kind}/");
    store.export().keys().filter_map(|key| key.strip_prefix(&prefix)).map(str::to_owned).collect()
}

/// A key of the v1 model in a Calico 3 store is read by no program.
#[test]
fn keys_of_the_v1_model_are_refused_and_leftovers_can_be_removed() {
    let store = store(&["h1"]);
    let before = store.export();
    let key = "/calico/v1/ipam/v4/pool/10.65.0.0-16";
    let pool = r#"{"cidr":"10.65.0.0/16"}"#;
    for words in [&["store", "put", key, pool][..], &["store", "put", "--raw", key, "x"]] {
        fails(&store, words, 7, &["Calico 3", key, "store project", "--data-model v1"]);
    }
    let file = store.file("v1.json", &json!({key: pool}).to_string());
    fails(&store, &["store", "import", file.to_str().unwrap()], 7, &["Calico 3", key]);
    assert_eq!(store.export(), before);
    done(&store.run(&["--data-model", "v1", "store", "put", key, pool]));
    done(&store.run(&["store", "rm", key]));
    assert_eq!(store.export(), before);
}
