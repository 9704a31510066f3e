//! The ClusterInformation, which says that the cluster is ready.

use serde_json::{Value, json};

use super::super::{Kind, ObjectError, ObjectKey};
use super::draft::{Birth, Draft};

/// Word that this program adds to `spec.clusterType`.
pub const CLUSTER_TYPE: &str = "tortie";

/// Returns the value of the ClusterInformation, or `None` if it does not change: the identity of the cluster
/// and `datastoreReady` are added if they are absent, and [`CLUSTER_TYPE`] is appended to the types. A
/// `datastoreReady` of false is kept: an operator set it, so that all writers wait.
///
/// `guid` is a random number of 32 hexadecimal digits.
///
/// # Errors
/// If the stored value is no object.
pub fn cluster_information(
    stored: Option<&[u8]>,
    guid: &str,
    birth: &Birth,
) -> Result<Option<Vec<u8>>, ObjectError> {
    let mut draft = Draft::open(&cluster_information_key(), stored, birth)?;
    if draft.spec.get("clusterGUID").is_none_or(|guid| guid == json!("")) {
        draft.spec.set("clusterGUID", &json!(guid));
    }
    let types = draft.spec.get("clusterType");
    let types = types.as_ref().and_then(Value::as_str).unwrap_or_default();
    if !types.split(',').any(|kind| kind.trim() == CLUSTER_TYPE) {
        let comma = if types.is_empty() { "" } else { "," };
        draft.spec.set("clusterType", &json!(format!("{types}{comma}{CLUSTER_TYPE}")));
    }
    // Calico's CNI plugin crashes on an object without it.
    if draft.spec.get("datastoreReady").is_none() {
        draft.spec.set("datastoreReady", &json!(true));
    }
    Ok(draft.close())
}

/// Returns the key of the ClusterInformation.
#[must_use]
pub fn cluster_information_key() -> ObjectKey {
    ObjectKey::global(Kind::ClusterInformation, "default")
}
