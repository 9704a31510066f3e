//! The Profile of a network, which Calico's CNI plugin creates outside of Kubernetes.

use serde_json::{Value, json};

use super::super::{Kind, ObjectKey};
use super::draft::Birth;

/// Ingress that the profile of a network allows. All of them allow all egress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetworkIngress {
    /// From endpoints with the same profile, which give themselves a label with the profile's name.
    Members,
    /// From everywhere.
    All,
}

/// Returns the key of a profile.
#[must_use]
pub fn network_profile_key(name: &str) -> ObjectKey {
    ObjectKey::global(Kind::Profile, name)
}

/// Returns the value of a network's profile. Written only if there is no such profile.
#[must_use]
pub fn network_profile(name: &str, ingress: NetworkIngress, birth: &Birth) -> Vec<u8> {
    let rule = |source: Value| json!([{"action": "Allow", "source": source, "destination": {}}]);
    let mut spec = json!({"egress": rule(json!({}))});
    match ingress {
        NetworkIngress::Members => {
            spec["ingress"] = rule(json!({"selector": format!("has({name})")}));
            spec["labelsToApply"] = json!({name: ""});
        }
        NetworkIngress::All => spec["ingress"] = rule(json!({})),
    }
    let value = json!({
        "kind": "Profile",
        "apiVersion": "projectcalico.org/v3",
        "metadata": {"name": name, "uid": birth.uid, "creationTimestamp": birth.time},
        "spec": spec,
    });
    value.to_string().into_bytes()
}
