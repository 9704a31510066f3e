//! A store of Calico 3, as keys and values.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tortie_store::{KeyValue, Snapshot};

const RESOURCES: &str = "/calico/resources/v3/projectcalico.org/";

/// Keys with their values.
#[derive(Debug, Clone, Default)]
pub(super) struct Objects(pub(super) BTreeMap<String, Value>);

/// An object with its name.
#[derive(Debug, Clone, Copy)]
pub(super) struct Object<'a> {
    pub(super) name: &'a str,
    value: &'a Value,
}

impl<'a> Object<'a> {
    /// Returns a member of `spec`; null if it is absent.
    pub(super) fn spec(&self, member: &str) -> &'a Value {
        &self.value["spec"][member]
    }

    /// Returns a text of `spec`; empty if it is absent.
    pub(super) fn text(&self, member: &str) -> &'a str {
        self.spec(member).as_str().unwrap_or_default()
    }

    /// Returns the labels.
    pub(super) fn labels(&self) -> &'a Value {
        &self.value["metadata"]["labels"]
    }

    /// Returns the texts of a list in `spec`.
    pub(super) fn texts(&self, member: &str) -> Vec<&'a str> {
        self.spec(member).as_array().into_iter().flatten().filter_map(Value::as_str).collect()
    }
}

impl Objects {
    /// Adds an object; `name` has its namespace in front of it, if it has one.
    pub(super) fn add(&mut self, plural: &str, name: &str, labels: Value, spec: Value) {
        let kind = match plural {
            "nodes" => "Node",
            "ippools" => "IPPool",
            "bgppeers" => "BGPPeer",
            "bgpfilters" => "BGPFilter",
            "bgpconfigurations" => "BGPConfiguration",
            "workloadendpoints" => "WorkloadEndpoint",
            "clusterinformations" => "ClusterInformation",
            other => panic!("{other}"),
        };
        let mut metadata = json!({
            "uid": "5a0c5a0e-28b9-4c5a-8d9f-6f5d1e6a0001", "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": labels, "name": name,
        });
        if let Some((namespace, name)) = name.split_once('/') {
            metadata["name"] = json!(name);
            metadata["namespace"] = json!(namespace);
        }
        let value = json!({
            "kind": kind, "apiVersion": "projectcalico.org/v3", "metadata": metadata, "spec": spec,
        });
        self.0.insert(format!("{RESOURCES}{plural}/{name}"), value);
    }

    /// Returns the objects of a kind in the order of their names.
    pub(super) fn of(&self, plural: &str) -> Vec<Object<'_>> {
        let prefix = format!("{RESOURCES}{plural}/");
        let all = self.0.iter().filter_map(|(key, value)| Some((key.strip_prefix(&prefix)?, value)));
        all.map(|(name, value)| Object { name, value }).collect()
    }

    pub(super) fn get(&self, plural: &str, name: &str) -> Option<Object<'_>> {
        self.of(plural).into_iter().find(|object| object.name == name)
    }

    /// Returns the blocks with an affinity of this host, each with its state (empty: without state).
    pub(super) fn affinities(&self, node: &str) -> Vec<(String, String)> {
        let prefix = format!("/calico/ipam/v2/host/{node}/");
        let mut all = Vec::new();
        for (key, value) in &self.0 {
            let Some((_, name)) = key.strip_prefix(&prefix).and_then(|rest| rest.split_once("/block/"))
            else {
                continue;
            };
            let (net, length) = name.rsplit_once('-').unwrap();
            all.push((format!("{net}/{length}"), value["state"].as_str().unwrap_or_default().to_owned()));
        }
        all
    }

    /// Returns the store as one snapshot.
    pub(super) fn snapshot(&self) -> Snapshot {
        let entry = |(key, value): (&String, &Value)| KeyValue {
            key: key.clone(),
            value: value.to_string().into_bytes(),
            mod_revision: 3,
            create_revision: 2,
        };
        let entries = self.0.iter().map(entry).collect();
        Snapshot { revision: 3, store_id: "s1".to_owned(), entries, ..Snapshot::default() }
    }
}
