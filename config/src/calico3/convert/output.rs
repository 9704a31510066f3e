//! Result of a conversion, and how the converters add to it.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::super::{Kind, ObjectKey};
use crate::Resource;
use crate::key::{BgpItem, Key};

/// An object that a v1 store results in.
#[derive(Debug, Clone, PartialEq)]
pub struct ConvertedObject {
    /// Key of the object.
    pub key: ObjectKey,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// Member `spec`.
    pub spec: Map<String, Value>,
    /// v1 keys that it came from.
    pub from: Vec<String>,
}

impl ConvertedObject {
    pub(super) fn new(key: ObjectKey, from: &str) -> Self {
        Self {
            key,
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            spec: Map::new(),
            from: vec![from.to_owned()],
        }
    }

    pub(super) fn set(&mut self, member: &str, value: impl Into<Value>) {
        self.spec.insert(member.to_owned(), value.into());
    }

    pub(super) fn set_some(&mut self, member: &str, value: Option<impl Into<Value>>) {
        if let Some(value) = value {
            self.set(member, value);
        }
    }

    /// Sets a list, unless it is empty.
    pub(super) fn set_list<T: Into<Value>>(&mut self, member: &str, list: impl IntoIterator<Item = T>) {
        let list: Vec<Value> = list.into_iter().map(Into::into).collect();
        if !list.is_empty() {
            self.set(member, list);
        }
    }

    /// Formats the object as it is stored, with a unique id and the time of creation; without these, as a
    /// client reads it from a file.
    #[must_use]
    pub fn value(&self, stamp: Option<(&str, &str)>) -> Value {
        let mut metadata = json!({"name": self.key.name});
        if let Value::Object(members) = &mut metadata {
            if let Some((uid, created)) = stamp {
                members.insert("uid".to_owned(), uid.into());
                members.insert("creationTimestamp".to_owned(), created.into());
            }
            if let Some(namespace) = &self.key.namespace {
                members.insert("namespace".to_owned(), namespace.as_str().into());
            }
            for (member, map) in [("labels", &self.labels), ("annotations", &self.annotations)] {
                if !map.is_empty() {
                    members.insert(member.to_owned(), json!(map));
                }
            }
        }
        json!({
            "kind": self.key.kind.as_str(),
            "apiVersion": "projectcalico.org/v3",
            "metadata": metadata,
            "spec": self.spec,
        })
    }
}

/// Weight of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Weight {
    /// The store cannot be converted before it is corrected.
    Error,
    /// Something has no form in Calico 3, and is left out.
    Lost,
    /// Something changes its form, or is to be checked.
    Note,
}

/// What was found during a conversion.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct Finding {
    /// Weight.
    pub weight: Weight,
    /// v1 key.
    pub about: String,
    /// What was found, and the next step.
    pub text: String,
}

/// A name that changes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct Renamed {
    /// Kind of the object.
    pub kind: &'static str,
    /// v1 name.
    pub from: String,
    /// Name of the object, with its namespace.
    pub to: String,
}

/// Result of a conversion.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Converted {
    /// Objects, by key.
    pub objects: BTreeMap<ObjectKey, ConvertedObject>,
    /// Entries of keys that both models have, by key.
    pub kept: BTreeMap<String, Vec<u8>>,
    /// Names that change, sorted.
    pub names: Vec<Renamed>,
    /// Findings, errors first.
    pub findings: Vec<Finding>,
}

impl Converted {
    /// Returns true if nothing prevents writing the result.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        !self.findings.iter().any(|finding| finding.weight == Weight::Error)
    }

    pub(super) fn finding(&mut self, weight: Weight, about: &str, text: impl Into<String>) {
        self.findings.push(Finding { weight, about: about.to_owned(), text: text.into() });
    }

    /// Adds an object. Two that have one name are an error, as in Calico's own upgrade.
    pub(super) fn add(&mut self, object: ConvertedObject) {
        if let Some(other) = self.objects.get(&object.key) {
            let (kind, name) = (object.key.kind.as_str(), &object.key.name);
            let text = format!(
                "{kind} {name} also comes from {}: rename one of them in the v1 store",
                other.from.join(", ")
            );
            let about = object.from.first().cloned().unwrap_or_default();
            self.finding(Weight::Error, &about, text);
            return;
        }
        self.objects.insert(object.key.clone(), object);
    }

    /// Returns an object that several v1 keys contribute to.
    pub(super) fn shared(&mut self, key: ObjectKey, from: &str) -> &mut ConvertedObject {
        let object = self.objects.entry(key.clone()).or_insert_with(|| {
            let mut object = ConvertedObject::new(key, from);
            object.from.clear();
            object
        });
        object.from.push(from.to_owned());
        object
    }

    pub(super) fn renamed(&mut self, kind: Kind, from: &str, to: &str) {
        if from != to {
            self.names.push(Renamed { kind: kind.as_str(), from: from.to_owned(), to: to.to_owned() });
        }
    }
}

/// A parsed v1 entry.
pub(super) struct Entry<'a> {
    pub(super) text: &'a str,
    pub(super) value: &'a [u8],
    pub(super) key: Key,
    pub(super) resource: Resource,
}

/// Returns the members of a JSON value that a converter has not used.
fn unused(value: &[u8], used: &[&str]) -> Vec<String> {
    let Ok(Value::Object(members)) = serde_json::from_slice(value) else { return Vec::new() };
    let is_set = |value: &Value| match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
        _ => true,
    };
    let left = members.into_iter().filter(|(name, value)| !used.contains(&name.as_str()) && is_set(value));
    left.map(|(name, _)| name).collect()
}

/// Reports members that have no form in Calico 3.
pub(super) fn report_unused(entry: &Entry<'_>, used: &[&str], out: &mut Converted) {
    let names = unused(entry.value, used);
    if !names.is_empty() {
        let text = format!("without a form in Calico 3, and left out: {}", names.join(", "));
        out.finding(Weight::Lost, entry.text, text);
    }
}

/// Returns true for values of BGP that belong to a Node.
pub(super) fn is_of_node(item: &BgpItem) -> bool {
    matches!(item, BgpItem::Address(_) | BgpItem::Network(_) | BgpItem::RrClusterId)
}
