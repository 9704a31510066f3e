//! Tests of the projection of endpoints, profiles, sets, policies and tiers. Expected values are Calico's.

mod endpoints;
mod laws;
mod names;
mod policies;
mod rules;

use serde_json::{Value, json};

use super::super::output::Output;
use super::super::{Kind, Object, ObjectKey};
use crate::dialect::Dialect;
use crate::key::Key;
use crate::resource::Resource;

/// Returns the key of an object from `namespace/name`, or `name`.
fn key(kind: Kind, name: &str) -> ObjectKey {
    match name.split_once('/') {
        Some((namespace, name)) => ObjectKey::namespaced(kind, namespace, name),
        None => ObjectKey::global(kind, name),
    }
}

fn object(kind: Kind, name: &str, value: &Value) -> Object {
    Object::parse(key(kind, name), value.to_string().as_bytes(), 1, 2).unwrap()
}

fn spec(kind: Kind, name: &str, spec: &Value) -> Object {
    object(kind, name, &json!({"spec": spec}))
}

/// Returns keys and values of all entries, of which the v1 model can read each.
fn entries(output: &Output) -> Vec<(String, Value)> {
    let read = |(key, value): (String, Value)| {
        let parsed = Key::parse(&key).unwrap();
        if let Err(error) = Resource::parse_in(Dialect::V3, &parsed, value.to_string().as_bytes()) {
            panic!("{key} {value}: {error}");
        }
        (key, value)
    };
    raw_entries(output).into_iter().map(read).collect()
}

fn raw_entries(output: &Output) -> Vec<(String, Value)> {
    let of = |entry: &super::super::output::Projected| {
        (entry.key.to_string(), serde_json::from_slice(&entry.value).unwrap())
    };
    output.entries.iter().map(of).collect()
}

/// Returns the only entry of an output without problems.
fn only(output: &Output) -> (String, Value) {
    assert_eq!(output.problems, []);
    let mut all = entries(output);
    assert_eq!(all.len(), 1, "{all:?}");
    all.remove(0)
}

/// Returns code and text of each problem.
fn problems(output: &Output) -> Vec<(&'static str, &str)> {
    output.problems.iter().map(|problem| (problem.code, &*problem.text)).collect()
}

/// Asserts that an entry is one that the v1 model cannot read, and that a problem says why.
fn assert_unreadable(output: &Output, wanted: &str, why: &str) {
    let all = raw_entries(output);
    assert!(all.iter().any(|(key, _)| key == wanted), "{all:?}");
    for (key, value) in &all {
        let parsed = Resource::parse_in(Dialect::V3, &Key::parse(key).unwrap(), value.to_string().as_bytes());
        assert!(parsed.is_err(), "{key} {value}");
    }
    assert!(problems(output).iter().any(|(_, text)| text.contains(why)), "{:?}", output.problems);
}
