//! `tortie schema [KIND|COMMAND]`: prints the JSON Schema (draft 2020-12) of answers, which programs may rely
//! on.

use serde_json::{Map, Value};

use super::failure::{Exit, Failure};
use super::output;

/// The published schema file.
const DOCUMENT: &str = include_str!("../../docs/schema/v1.json");

/// Arguments of `tortie schema`.
#[derive(Debug, clap::Args)]
pub(super) struct SchemaCommand {
    /// Only this `kind`, or the output of this command, such as `bgp peers`, with the definitions that it
    /// refers to [default: all]
    #[arg(value_name = "KIND|COMMAND")]
    of: Vec<String>,
}

/// Prints the whole schema, or that of one kind or command.
pub(super) fn run(command: &SchemaCommand) -> Result<(), Failure> {
    if command.of.is_empty() {
        return output::write_out(DOCUMENT);
    }
    let asked = command.of.join(" ");
    let internal = |error: &dyn std::fmt::Display| Failure::new(Exit::Partial, "schema", error.to_string());
    let mut document: Value = serde_json::from_str(DOCUMENT).map_err(|error| internal(&error))?;
    let all = document.get("$defs").and_then(Value::as_object).cloned().unwrap_or_default();
    let of_command = document.get("commands").and_then(|commands| commands.get(&asked)).cloned();
    let root = match of_command {
        _ if all.contains_key(&asked) => serde_json::json!({ "$ref": format!("#/$defs/{asked}") }),
        Some(command) => match command.get("schema") {
            Some(schema) => schema.clone(),
            None => {
                let about = command.get("about").and_then(Value::as_str).unwrap_or_default();
                let text = format!("`tortie {asked}` has no answer in JSON: {about}");
                return Err(Failure::new(Exit::No, "no-schema", text));
            }
        },
        None => {
            let kinds: Vec<&str> = all.keys().map(String::as_str).collect();
            let text = format!("no kind or command `{asked}`: there are {}", kinds.join(", "));
            return Err(Failure::new(Exit::No, "not-found", text));
        }
    };
    let mut needed = Map::new();
    for name in references(&root) {
        gather(&name, &all, &mut needed);
    }
    if let Some(document) = document.as_object_mut() {
        document.remove("commands");
        document.extend(root.as_object().cloned().unwrap_or_default());
        document.insert("$defs".to_owned(), Value::Object(needed));
    }
    let text = serde_json::to_string_pretty(&document).map_err(|error| internal(&error))?;
    output::write_out(&format!("{text}\n"))
}

/// Adds a definition and all definitions that it refers to.
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
