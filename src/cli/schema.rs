//! `tortie schema [KIND]`: what machines may rely on in an answer, as JSON Schema (draft 2020-12).

use serde_json::{Map, Value};

use super::failure::{Exit, Failure};
use super::output;

/// The published file.
const DOCUMENT: &str = include_str!("../../docs/schema/v1.json");

/// `tortie schema`.
#[derive(Debug, clap::Args)]
pub(super) struct SchemaCommand {
    /// Only this kind, as `kind` of an answer names it, with what it refers to; without it all are printed
    #[arg(value_name = "KIND")]
    kind: Option<String>,
}

/// Prints it.
pub(super) fn run(command: &SchemaCommand) -> Result<(), Failure> {
    let Some(kind) = &command.kind else { return output::write_out(DOCUMENT) };
    let internal = |error: &dyn std::fmt::Display| Failure::new(Exit::Partial, "schema", error.to_string());
    let mut document: Value = serde_json::from_str(DOCUMENT).map_err(|error| internal(&error))?;
    let all = document.get("$defs").and_then(Value::as_object).cloned().unwrap_or_default();
    if !all.contains_key(kind) {
        let kinds: Vec<&str> = all.keys().map(String::as_str).collect();
        let text = format!("no kind `{kind}`: there are {}", kinds.join(", "));
        return Err(Failure::new(Exit::No, "not-found", text));
    }
    let mut needed = Map::new();
    gather(kind, &all, &mut needed);
    if let Some(document) = document.as_object_mut() {
        document.insert("$ref".to_owned(), Value::from(format!("#/$defs/{kind}")));
        document.insert("$defs".to_owned(), Value::Object(needed));
    }
    let text = serde_json::to_string_pretty(&document).map_err(|error| internal(&error))?;
    output::write_out(&format!("{text}\n"))
}

/// A definition and all that it refers to.
fn gather(name: &str, all: &Map<String, Value>, into: &mut Map<String, Value>) {
    let Some(schema) = all.get(name).filter(|_| !into.contains_key(name)) else { return };
    into.insert(name.to_owned(), schema.clone());
    for found in references(schema) {
        gather(&found, all, into);
    }
}

fn references(schema: &Value) -> Vec<String> {
    match schema {
        Value::Object(fields) => fields
            .iter()
            .flat_map(|(key, value)| match (key.as_str(), value.as_str()) {
                ("$ref", Some(path)) => vec![path.trim_start_matches("#/$defs/").to_owned()],
                _ => references(value),
            })
            .collect(),
        Value::Array(items) => items.iter().flat_map(references).collect(),
        _ => Vec::new(),
    }
}
