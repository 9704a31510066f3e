//! Tests of the projection of BGP and pools. Expected values are those of Calico's own consumers.

mod configuration;
mod filter;
mod live_migrations;
mod node;
mod peers;
mod pools;

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::calico3::{Projection, RawEntry};
use crate::{Key, Resource};

const ROOT: &str = "/calico/resources/v3/projectcalico.org/";

/// The v1 view of some objects.
struct View {
    entries: BTreeMap<String, String>,
    origins: BTreeMap<String, Vec<String>>,
    /// Object, code and text of problems.
    problems: Vec<(String, &'static str, String)>,
}

/// Projects objects for a node. Their keys are given as `plural/name`.
fn view(node: &str, objects: &[(&str, Value)]) -> View {
    let written: Vec<(String, Vec<u8>)> =
        objects.iter().map(|(key, value)| (format!("{ROOT}{key}"), value.to_string().into_bytes())).collect();
    let raw = written.iter().map(|(key, value)| RawEntry { key, value, created: 1, revision: 1 });
    let mut projection = Projection::new(node);
    let mut entries = BTreeMap::new();
    let mut origins = BTreeMap::new();
    for entry in projection.replace(raw) {
        let key = Key::parse(&entry.key).unwrap();
        assert_eq!(key.to_string(), entry.key);
        let name = entry.key.trim_start_matches("/calico/").to_owned();
        let strip = |key: &String| key.trim_start_matches(ROOT).to_owned();
        origins.insert(name.clone(), entry.raw_keys().iter().map(strip).collect());
        assert!(entries.insert(name, String::from_utf8(entry.value.into_octets()).unwrap()).is_none());
    }
    let problems = projection.problems().into_iter();
    let problems = problems
        .map(|p| (p.key.to_string().trim_start_matches(ROOT).to_owned(), p.code, p.text.clone()))
        .collect();
    View { entries, origins, problems }
}

impl View {
    fn get(&self, key: &str) -> Option<&str> {
        self.entries.get(key).map(String::as_str)
    }

    fn json(&self, key: &str) -> Value {
        serde_json::from_str(self.get(key).unwrap_or_else(|| panic!("no {key} in {:?}", self.keys(""))))
            .unwrap()
    }

    /// Returns the keys with a prefix.
    fn keys(&self, prefix: &str) -> Vec<&str> {
        self.entries.keys().map(String::as_str).filter(|key| key.starts_with(prefix)).collect()
    }

    /// Returns object and code of all problems.
    fn codes(&self) -> Vec<(&str, &'static str)> {
        self.problems.iter().map(|(key, code, _)| (key.as_str(), *code)).collect()
    }

    /// Parses the value of a key as the v1 model does.
    fn resource(&self, key: &str) -> Resource {
        let value = self.get(key).unwrap_or_else(|| panic!("no {key} in {:?}", self.keys("")));
        Resource::parse(&Key::parse(&format!("/calico/{key}")).unwrap(), value.as_bytes()).unwrap()
    }
}

fn spec(spec: Value) -> Value {
    json!({ "apiVersion": "projectcalico.org/v3", "metadata": {}, "spec": spec })
}

/// A Node with an IPv4 address and labels.
fn host(v4: &str, labels: Value) -> Value {
    json!({ "metadata": { "labels": labels }, "spec": { "bgp": { "ipv4Address": v4 } } })
}
