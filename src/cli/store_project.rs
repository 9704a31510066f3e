//! `tortie store project`: the entries of the v1 data model from which an agent works, computed from the
//! store alone, with the keys that each came from.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::Value;
use tortie_config::calico3::{ObjectKey, Projection};
use tortie_config::{Dialect, counted};
use tortie_engine::model::{Model, WatchPart, raw_entry, watch_scope};
use tortie_store::{KeyValue, Snapshot, Store};

use super::context::Context;
use super::failure::{Exit, Failure};
use super::output::{self, table};
use crate::api::codes;
use crate::api::escape;

/// JSON answer of the command.
#[derive(Debug, PartialEq, Serialize)]
struct ProjectedStore {
    dialect: Dialect,
    entries: Vec<ProjectedEntry>,
    problems: Vec<ObjectProblem>,
}

/// An entry of the v1 data model.
#[derive(Debug, PartialEq, Serialize)]
struct ProjectedEntry {
    key: String,
    /// The value as JSON, or as text if it is no JSON.
    value: Value,
    /// Keys of the store that the entry came from, the decisive one first.
    origin: Vec<String>,
}

/// A value of the store that is not used as it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct ObjectProblem {
    pub(super) key: String,
    pub(super) code: &'static str,
    pub(super) text: String,
}

/// Prints the entries; a value that cannot be read makes the answer a partial one.
pub(super) async fn run(context: &Context, store: &dyn Store) -> Result<(), Failure> {
    let globals = &context.globals;
    let node = globals.node_name()?;
    let dialect = globals.data_model.dialect(store).await?;
    let mut prefixes = watch_scope(&node, globals.data_model);
    prefixes.extend(own_blocks(&node, &store.list(&prefixes).await?));
    let view = ProjectedStore::of(&node, dialect, &store.list(&prefixes).await?);
    output::print(globals.output, &view, |out, wide| render(out, &view, wide))?;
    if view.problems.iter().all(|problem| problem.code != codes::INVALID_VALUE.name) {
        return Ok(());
    }
    Err(Failure::new(
        Exit::Partial,
        codes::INVALID_VALUE.name,
        "values that cannot be read are not part of it",
    ))
}

/// Returns the keys of the blocks for which the host has an affinity. Both data models have the same ones.
fn own_blocks(node: &str, snapshot: &Snapshot) -> Vec<String> {
    let mut model = Model::new(node);
    model.replace(WatchPart::All, snapshot);
    model.block_scope()
}

impl ProjectedStore {
    fn of(node: &str, dialect: Dialect, snapshot: &Snapshot) -> Self {
        let mut model = Model::new(node);
        model.set_dialect(dialect);
        model.replace(WatchPart::All, snapshot);
        let mut entries: Vec<ProjectedEntry> = match dialect {
            Dialect::V1 => snapshot.entries.iter().map(ProjectedEntry::stored).collect(),
            Dialect::V3 => projected(node, snapshot),
        };
        entries.sort_by(|a, b| a.key.cmp(&b.key));
        let problems = problems(&model, snapshot);
        Self { dialect, entries, problems }
    }
}

/// Returns the values of a store that are not used as they are, sorted by key; `model` has its snapshot.
pub(super) fn problems(model: &Model, snapshot: &Snapshot) -> Vec<ObjectProblem> {
    let mut problems: Vec<ObjectProblem> = model
        .object_problems()
        .into_iter()
        .map(|problem| ObjectProblem {
            key: problem.key.to_string(),
            code: problem.code,
            text: problem.text.clone(),
        })
        .collect();
    for invalid in model.invalid_keys() {
        let object = model.object_of(&invalid.key);
        let key = object.map_or_else(|| invalid.key.clone(), |object| object.to_string());
        let code = codes::INVALID_VALUE.name;
        // The projection names the member of the object, which says more.
        if !problems.iter().any(|problem| problem.key == key && problem.code == code) {
            problems.push(ObjectProblem { key, code, text: invalid.error.clone() });
        }
    }
    if model.dropped_v1_keys() > 0 {
        let dropped = |kv: &&KeyValue| tortie_config::calico3::is_v1(&kv.key);
        problems.extend(snapshot.entries.iter().find(dropped).map(|first| ObjectProblem {
            key: first.key.clone(),
            code: codes::MIXED_MODELS.name,
            text: format!(
                "{} of Calico's v1 data model next to objects of Calico 3: the objects are used",
                counted(model.dropped_v1_keys(), "key")
            ),
        }));
    }
    problems.sort_by(|a, b| a.key.cmp(&b.key).then(a.code.cmp(b.code)));
    problems
}

impl ProjectedEntry {
    fn new(key: &str, value: &[u8], origin: Vec<String>) -> Self {
        let value = serde_json::from_slice(value)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(value).into_owned()));
        Self { key: key.to_owned(), value, origin }
    }

    fn stored(kv: &KeyValue) -> Self {
        Self::new(&kv.key, &kv.value, vec![kv.key.clone()])
    }
}

fn projected(node: &str, snapshot: &Snapshot) -> Vec<ProjectedEntry> {
    let raw = snapshot.entries.iter().map(raw_entry);
    let entries = Projection::new(node).replace(raw);
    entries.into_iter().map(|entry| ProjectedEntry::new(&entry.key, &entry.value, entry.raw_keys())).collect()
}

fn render(out: &mut String, view: &ProjectedStore, wide: bool) {
    let rows = view.entries.iter().map(|entry| {
        let origin: Vec<String> = entry.origin.iter().map(|key| title(key)).collect();
        let mut row =
            vec![escape::line(&entry.key).into_owned(), escape::line(&origin.join(", ")).into_owned()];
        row.extend(wide.then(|| escape::line(&entry.value.to_string()).into_owned()));
        row
    });
    let mut head = vec!["KEY", "FROM"];
    head.extend(wide.then_some("VALUE"));
    out.push_str(&table(&head, rows.collect()));
    for problem in &view.problems {
        let (name, text) = (title(&problem.key), escape::line(&problem.text));
        let _ = writeln!(out, "{}: {text}   [{}]", escape::line(&name), problem.code);
    }
}

/// Returns the name of an object for people; other keys stay as they are.
pub(super) fn title(key: &str) -> String {
    ObjectKey::parse(key).map_or_else(|| key.to_owned(), |object| object.title())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(entries: &[(&str, &str)]) -> Snapshot {
        let entry = |(key, value): &(&str, &str)| KeyValue {
            key: (*key).to_owned(),
            value: (*value).into(),
            mod_revision: 3,
            create_revision: 2,
        };
        Snapshot { revision: 3, entries: entries.iter().map(entry).collect(), ..Snapshot::default() }
    }

    #[test]
    fn the_entries_of_a_v1_store_are_its_own() {
        let stored = [("/calico/bgp/v1/global/as_num", "64512"), ("/calico/v1/host/h1/bird_ip", "192.0.2.1")];
        let view = ProjectedStore::of("h1", Dialect::V1, &snapshot(&stored));
        let expected = serde_json::json!({
            "dialect": "v1",
            "entries": [
                { "key": stored[0].0, "value": 64512, "origin": [stored[0].0] },
                { "key": stored[1].0, "value": "192.0.2.1", "origin": [stored[1].0] },
            ],
            "problems": [],
        });
        assert_eq!(serde_json::to_value(&view).unwrap(), expected);
    }

    #[test]
    fn a_value_that_is_no_object_and_leftovers_of_v1_are_problems() {
        const NODE: &str = "/calico/resources/v3/projectcalico.org/nodes/h1";
        let stored = [(NODE, "[]"), ("/calico/v1/Ready", "true")];
        let view = ProjectedStore::of("h1", Dialect::V3, &snapshot(&stored));
        assert!(view.entries.iter().all(|entry| entry.key != "/calico/v1/Ready" || entry.value != true));
        let found: Vec<_> = view.problems.iter().map(|p| (p.key.as_str(), p.code)).collect();
        assert!(found.contains(&(NODE, "invalid-value")), "{found:?}");
        assert!(found.contains(&("/calico/v1/Ready", "mixed-models")), "{found:?}");
        let mut text = String::new();
        render(&mut text, &view, false);
        assert!(text.contains("Node h1: ") && text.contains("[invalid-value]"), "{text}");
    }
}
