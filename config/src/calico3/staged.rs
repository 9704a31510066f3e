//! What a staged policy would do if it were enforced.

use serde_json::Value;

use super::{Kind, Object, ObjectError, ObjectKey};

/// Effect of a staged policy on the policies that are enforced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StagedEffect {
    /// The policy would be written.
    Set {
        /// The policy of the same name.
        key: ObjectKey,
        /// Its value.
        value: Vec<u8>,
    },
    /// The policy would be deleted.
    Delete {
        /// The policy of the same name.
        key: ObjectKey,
    },
    /// No policy would change, because of this value of `spec.stagedAction`.
    None(String),
}

/// Returns the effect of a staged policy; `None` for other kinds, and for staged policies in Kubernetes' own
/// form, which are not read.
///
/// # Errors
/// If the value is no object, or its action is unknown.
pub fn staged_effect(key: &ObjectKey, value: &[u8]) -> Option<Result<StagedEffect, ObjectError>> {
    let kind = match key.kind {
        Kind::StagedNetworkPolicy => Kind::NetworkPolicy,
        Kind::StagedGlobalNetworkPolicy => Kind::GlobalNetworkPolicy,
        _ => return None,
    };
    Some(effect(key, ObjectKey { kind, ..key.clone() }, value))
}

fn effect(staged: &ObjectKey, key: ObjectKey, value: &[u8]) -> Result<StagedEffect, ObjectError> {
    let object = Object::parse(staged.clone(), value, 0, 0)?;
    let action = match object.spec.get("stagedAction") {
        None | Some(Value::Null) => "",
        Some(Value::String(action)) => action.as_str(),
        Some(_) => "?",
    };
    match action {
        "" | "Set" => {}
        "Delete" => return Ok(StagedEffect::Delete { key }),
        "Learn" | "Ignore" => return Ok(StagedEffect::None(action.to_owned())),
        _ => {
            let text = "this is no action: write Set, Delete, Learn or Ignore";
            return Err(ObjectError::new("spec.stagedAction", text));
        }
    }
    let mut value: Value = serde_json::from_slice(value).unwrap_or_default();
    if let Some(spec) = value.pointer_mut("/spec").and_then(Value::as_object_mut) {
        spec.remove("stagedAction");
    }
    if let Some(whole) = value.as_object_mut() {
        whole.insert("kind".to_owned(), key.kind.as_str().into());
    }
    Ok(StagedEffect::Set { key, value: value.to_string().into_bytes() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kind: Kind, value: &str) -> Option<Result<StagedEffect, String>> {
        let namespace = kind.is_namespaced().then(|| "shop".to_owned());
        let key = ObjectKey { kind, namespace, name: "web".to_owned() };
        Some(staged_effect(&key, value.as_bytes())?.map_err(|error| error.to_string()))
    }

    #[test]
    fn the_action_decides() {
        let key = ObjectKey::namespaced(Kind::NetworkPolicy, "shop", "web");
        let set = r#"{"kind":"StagedNetworkPolicy","spec":{"order":5,"stagedAction":"Set"}}"#;
        let value = br#"{"kind":"NetworkPolicy","spec":{"order":5}}"#.to_vec();
        let expected = StagedEffect::Set { key: key.clone(), value };
        assert_eq!(of(Kind::StagedNetworkPolicy, set), Some(Ok(expected)));
        let delete = r#"{"spec":{"stagedAction":"Delete"}}"#;
        assert_eq!(of(Kind::StagedNetworkPolicy, delete), Some(Ok(StagedEffect::Delete { key })));
        let ignore = r#"{"spec":{"stagedAction":"Ignore"}}"#;
        let none = StagedEffect::None("Ignore".to_owned());
        assert_eq!(of(Kind::StagedGlobalNetworkPolicy, ignore), Some(Ok(none)));
        let unknown = of(Kind::StagedGlobalNetworkPolicy, r#"{"spec":{"stagedAction":"Maybe"}}"#);
        assert!(unknown.unwrap().unwrap_err().contains("spec.stagedAction"));
        assert!(of(Kind::StagedGlobalNetworkPolicy, "[]").unwrap().is_err());
        assert_eq!(of(Kind::StagedKubernetesNetworkPolicy, "{}"), None);
        assert_eq!(of(Kind::NetworkPolicy, "{}"), None);
    }
}
