//! Settings: FelixConfiguration and ClusterInformation.
//!
//! ```text
//!  FelixConfiguration `default` -----------------> /calico/v1/config/<Name>
//!  the one that selects this host, `node.<host>` -> /calico/v1/host/<host>/config/<Name>
//!  ClusterInformation `default` -----------------> /calico/v1/Ready, /calico/v1/config/ClusterGUID, ..
//! ```
//!
//! The keys of a host hold what its own object and the one that selects it give together, the own one first.
//! Members have the text forms of the v1 model. A value that is not valid is as the default, even if a weaker
//! object has a valid one. Objects of other hosts are not read.

mod assignment;
mod layers;
mod member;
mod members;
#[cfg(test)]
mod tests;
mod value;

use serde_json::Value;

use crate::resource::ValueError;

use super::objects::Objects;
use super::output::Output;
use super::{Kind, Object, ObjectKey};
use crate::key::{Key, Scope};

/// Kinds that [`settings`] reads.
pub(super) const READ: &[Kind] = &[Kind::Node, Kind::FelixConfiguration, Kind::ClusterInformation];

/// Members of a ClusterInformation that are settings, with their names.
const CLUSTER: [(&str, &str); 3] =
    [("clusterGUID", "ClusterGUID"), ("clusterType", "ClusterType"), ("calicoVersion", "CalicoVersion")];

/// Returns the ClusterInformation if it gives a v1 key by itself.
pub(super) fn object_of(key: &Key) -> Option<ObjectKey> {
    match key {
        Key::Setting(Scope::Global, name) if CLUSTER.iter().any(|(_, known)| known == name) => {
            Some(ObjectKey::global(Kind::ClusterInformation, "default"))
        }
        _ => None,
    }
}

/// Returns true for the v1 name of a setting that a FelixConfiguration may have.
pub(crate) fn is_felix_setting(name: &str) -> bool {
    members::all().any(|member| member.v1 == name)
}

/// Returns the member of a FelixConfiguration that has a v1 setting, with its value; `None` if none has.
pub(super) fn member_value(name: &str, text: &str) -> Option<Result<(&'static str, Value), ValueError>> {
    let member = members::with_v1_name(name)?;
    Some(value::json(member, text).map(|json| (member.name, json)))
}

/// Returns the annotation of a FelixConfiguration that sets a setting, with its text.
pub(super) fn write_annotation(name: &str, text: &str) -> (String, String) {
    (format!("{}{name}", assignment::ANNOTATION), text.to_owned())
}

/// Projects the settings of the ClusterInformation `default`.
pub(super) fn cluster_information(object: &Object, _node: &str) -> Output {
    let mut output = Output::default();
    if object.key.name != "default" {
        output.problem(&object.key, "setting-noted", "only the ClusterInformation `default` is read");
        return output;
    }
    for (member, name) in CLUSTER {
        match object.spec.get(member) {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) if text.is_empty() => {}
            Some(Value::String(text)) => {
                output.put(Key::Setting(Scope::Global, name.to_owned()), text.as_bytes(), &object.key);
            }
            Some(_) => {
                let text = format!("`spec.{member}`: this is no text: write it in quotes");
                output.problem(&object.key, "invalid-value", text);
            }
        }
    }
    if !matches!(object.spec.get("datastoreReady"), None | Some(Value::Null | Value::Bool(_))) {
        let text = "`spec.datastoreReady`: this is neither true nor false, and counts as false";
        output.problem(&object.key, "invalid-value", text);
    }
    output
}

/// Computes the settings of all layers, and whether the store is ready. Without a ClusterInformation it is
/// not, as in Calico.
pub(super) fn settings(objects: &Objects, node: &str) -> Output {
    let mut output = layers::settings(objects, node);
    let cluster = objects.get(Kind::ClusterInformation, "default");
    let ready = cluster.is_some_and(|object| object.spec.get("datastoreReady") == Some(&Value::Bool(true)));
    let origin = ObjectKey::global(Kind::ClusterInformation, "default");
    output.put(Key::Ready, if ready { "true" } else { "false" }, &origin);
    output
}
