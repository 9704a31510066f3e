//! Validation of JSON values against the published schema.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    dead_code,
    reason = "test helper; not every test uses all of it"
)]

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

/// Contents of `docs/schema/v1.json`.
pub(crate) struct Published(Value);

impl Published {
    pub(crate) fn read() -> Self {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/schema/v1.json");
        Self(serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap())
    }

    /// Returns the output form of each command.
    pub(crate) fn commands(&self) -> BTreeMap<String, String> {
        let all = self.0["commands"].as_object().unwrap();
        all.iter()
            .map(|(name, command)| (name.clone(), command["form"].as_str().unwrap().to_owned()))
            .collect()
    }

    /// Checks the output of a command: one document, or one object per line.
    pub(crate) fn check_output(&self, command: &str, stdout: &[u8]) -> Result<(), String> {
        let said = &self.0["commands"][command];
        let schema =
            said.get("schema").ok_or_else(|| format!("docs/schema/v1.json has no schema for `{command}`"))?;
        let text = String::from_utf8_lossy(stdout);
        let parts: Vec<&str> = if said["form"] == "lines" { text.lines().collect() } else { vec![&text] };
        for part in parts {
            let value: Value = serde_json::from_str(part).map_err(|e| format!("`{command}`: {e}: {part}"))?;
            check(schema, &value, &self.0, command).map_err(|e| format!("{e}\n{value:#}"))?;
        }
        Ok(())
    }

    /// Returns code and text of an error.
    pub(crate) fn error(&self, stderr: &[u8]) -> Result<(String, String), String> {
        // Warnings may precede it.
        let text = String::from_utf8_lossy(stderr);
        let line = text.lines().last().unwrap_or_default();
        let value: Value = serde_json::from_str(line).map_err(|e| format!("{e}: {text}"))?;
        check(&self.0["$defs"]["Error"], &value, &self.0, "Error")?;
        let field = |name: &str| value["error"][name].as_str().unwrap().to_owned();
        Ok((field("code"), field("text")))
    }
}

/// Implements the part of JSON Schema that the published schema uses.
pub(crate) fn check(schema: &Value, value: &Value, root: &Value, place: &str) -> Result<(), String> {
    if let Some(path) = schema["$ref"].as_str() {
        let name = path.strip_prefix("#/$defs/").unwrap();
        let found = &root["$defs"][name];
        assert!(found.is_object(), "{path} is not there");
        return check(found, value, root, place);
    }
    if let Some(choices) = schema["anyOf"].as_array() {
        let tried: Vec<String> = choices.iter().filter_map(|s| check(s, value, root, place).err()).collect();
        return if tried.len() < choices.len() { Ok(()) } else { Err(tried.join("; ")) };
    }
    if let Some(only) = schema.get("const") {
        return if only == value { Ok(()) } else { Err(format!("{place}: {value} instead of {only}")) };
    }
    if let Some(all) = schema["enum"].as_array() {
        return if all.contains(value) {
            Ok(())
        } else {
            Err(format!("{place}: {value} is none of {all:?}"))
        };
    }
    let right = match schema["type"].as_str() {
        None => true,
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("number") => value.is_number(),
        Some("null") => value.is_null(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        Some(other) => panic!("type {other} is not used here"),
    };
    if !right {
        return Err(format!("{place}: {value} is no {}", schema["type"]));
    }
    for (at, item) in value.as_array().into_iter().flatten().enumerate() {
        check(&schema["items"], item, root, &format!("{place}[{at}]"))?;
    }
    let Some(fields) = value.as_object().filter(|_| schema["type"].is_string()) else { return Ok(()) };
    for name in schema["required"].as_array().into_iter().flatten() {
        if !fields.contains_key(name.as_str().unwrap()) {
            return Err(format!("{place} has no {name}"));
        }
    }
    for (name, field) in fields {
        let place = format!("{place}.{name}");
        match (schema["properties"].get(name), schema.get("additionalProperties")) {
            (Some(schema), _) => check(schema, field, root, &place)?,
            (None, Some(Value::Bool(false))) => return Err(format!("{place} is not in the schema")),
            (None, Some(schema)) => check(schema, field, root, &place)?,
            (None, None) => {}
        }
    }
    Ok(())
}
