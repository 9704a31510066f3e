//! Profiles, and the one that exists without an object.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::super::objects::Objects;
use super::super::output::Output;
use super::super::{Kind, Object, ObjectKey};
use super::members::checked_labels;
use super::rule::Rules;
use super::unreadable;
use crate::key::{Key, ProfilePart};
use crate::resource::{Fields, ValueError};

/// Name of the profile that every store has without an object; it allows both directions.
pub(super) const DEFAULT_ALLOW: &str = "projectcalico-default-allow";

/// Projects a Profile: its rules, and its labels if there are any.
pub(in crate::calico3) fn profile(object: Object) -> Output {
    let mut output = Output::default();
    let Object { key: object, spec, .. } = object;
    let name = &object.name;
    if name == DEFAULT_ALLOW {
        let text = format!("the profile {DEFAULT_ALLOW} is built in, and this object is not read; delete it");
        output.problem(&object, "invalid-value", text);
        return output;
    }
    let mut fields = Fields::of_map(spec);
    let rules = match Rules::take(&mut fields, None, &object, &mut output) {
        Ok(rules) => {
            json!({"inbound_rules": rules.inbound, "outbound_rules": rules.outbound}).to_string().into_bytes()
        }
        Err(error) => invalid(&object, &mut output, error),
    };
    let labels = match labels(&mut fields) {
        Ok(labels) => {
            let labels = checked_labels(labels, &object, &mut output);
            (!labels.is_empty()).then(|| json!(labels).to_string().into_bytes())
        }
        Err(error) => Some(invalid(&object, &mut output, error)),
    };
    output.put(Key::Profile { name: name.clone(), part: ProfilePart::Rules }, rules, &object);
    if let Some(labels) = labels {
        output.put(Key::Profile { name: name.clone(), part: ProfilePart::Labels }, labels, &object);
    }
    output
}

fn invalid(object: &ObjectKey, output: &mut Output, error: ValueError) -> Vec<u8> {
    let text = error.within("spec").to_string();
    let value = unreadable::value(&text);
    output.problem(object, "invalid-value", text);
    value
}

/// Reads `labelsToApply`.
fn labels(fields: &mut Fields) -> Result<BTreeMap<String, String>, ValueError> {
    const LABELS: &str = "write an object of texts: {\"role\": \"web\"}";
    let labels = match fields.take("labelsToApply") {
        None => return Ok(BTreeMap::new()),
        Some(Value::Object(labels)) => labels,
        Some(other) => return Err(ValueError::json("labelsToApply", &other, LABELS)),
    };
    let text = |(name, value)| match value {
        Value::String(value) => Ok((name, value)),
        // Go decodes null as the empty text.
        Value::Null => Ok((name, String::new())),
        other => Err(ValueError::json(format!("labelsToApply.{name}"), &other, LABELS)),
    };
    labels.into_iter().map(text).collect()
}

/// Returns what exists without an object in the store: the profile `projectcalico-default-allow`.
pub(in crate::calico3) fn built_in(_objects: &Objects, _node: &str) -> Output {
    let mut output = Output::default();
    let key = Key::Profile { name: DEFAULT_ALLOW.to_owned(), part: ProfilePart::Rules };
    let allow = json!([{"action": "allow"}]);
    let value = json!({"inbound_rules": allow, "outbound_rules": allow});
    output.put(key, value.to_string(), &ObjectKey::global(Kind::Profile, DEFAULT_ALLOW));
    output
}
