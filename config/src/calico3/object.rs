//! The envelope of an object: metadata, and `spec` as JSON.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::ObjectKey;

/// An object as stored. Its `spec` is parsed by the file of its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// Key of the object.
    pub key: ObjectKey,
    /// Labels, annotations and times.
    pub metadata: Metadata,
    /// Member `spec`; empty if absent.
    pub spec: Map<String, Value>,
    /// Revision of the write that created the key.
    pub created: u64,
    /// Revision of the last write.
    pub revision: u64,
}

/// Metadata of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Metadata {
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// Time of creation as written, RFC 3339; empty if absent.
    pub creation_timestamp: String,
    /// Time from which the object is being deleted, as written.
    pub deletion_timestamp: Option<String>,
}

/// Reason why a value is no object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{member}: {text}")]
pub struct ObjectError {
    /// Path of the member, such as `metadata.labels`; empty for the whole value.
    pub member: String,
    /// What was found, and what to write.
    pub text: String,
}

impl ObjectError {
    /// Creates an error about a member.
    pub(super) fn new(member: &str, text: impl Into<String>) -> Self {
        Self { member: member.to_owned(), text: text.into() }
    }
}

impl Object {
    /// Parses the value of an object's key.
    ///
    /// # Errors
    /// If the value is no JSON object, or metadata or `spec` have another form.
    pub fn parse(key: ObjectKey, value: &[u8], created: u64, revision: u64) -> Result<Self, ObjectError> {
        let value: Value = serde_json::from_slice(value)
            .map_err(|error| ObjectError::new("", format!("this is no JSON ({error}): write an object")))?;
        let Value::Object(mut value) = value else {
            return Err(ObjectError::new("", "this is no JSON object: write {\"kind\": ..}"));
        };
        let metadata = match value.remove("metadata") {
            None | Some(Value::Null) => Metadata::default(),
            Some(Value::Object(metadata)) => Metadata::parse(metadata)?,
            Some(_) => return Err(ObjectError::new("metadata", "this is no object: write {\"name\": ..}")),
        };
        let spec = match value.remove("spec") {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(spec)) => spec,
            Some(_) => return Err(ObjectError::new("spec", "this is no object: write {..}")),
        };
        Ok(Self { key, metadata, spec, created, revision })
    }
}

impl Metadata {
    fn parse(mut metadata: Map<String, Value>) -> Result<Self, ObjectError> {
        let mut text = |member: &str| match metadata.remove(member) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => {
                Err(ObjectError::new(&format!("metadata.{member}"), "this is no text: write it in quotes"))
            }
        };
        let creation_timestamp = text("creationTimestamp")?.unwrap_or_default();
        let deletion_timestamp = text("deletionTimestamp")?;
        let mut texts = |member: &str| match metadata.remove(member) {
            None | Some(Value::Null) => Ok(BTreeMap::new()),
            Some(Value::Object(map)) => map
                .into_iter()
                .map(|(name, value)| match value {
                    Value::String(value) => Ok((name, value)),
                    // Go decodes null as the empty text.
                    Value::Null => Ok((name, String::new())),
                    _ => Err(ObjectError::new(
                        &format!("metadata.{member}.{name}"),
                        "this is no text: write it in quotes",
                    )),
                })
                .collect(),
            Some(_) => Err(ObjectError::new(&format!("metadata.{member}"), "this is no object: write {..}")),
        };
        let labels = texts("labels")?;
        let annotations = texts("annotations")?;
        Ok(Self { labels, annotations, creation_timestamp, deletion_timestamp })
    }
}
