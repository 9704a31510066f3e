//! The WorkloadEndpoint of a container or pod, as Calico's plugins write it.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::super::{ObjectError, ObjectKey};
use super::draft::{Birth, Draft};
use crate::resource::{InterfaceName, Labels, MacAddr};

/// Content of a WorkloadEndpoint.
#[derive(Debug, Clone)]
pub struct WorkloadEndpointSpec<'a> {
    /// Key of the object; its name joins node, orchestrator, workload and endpoint.
    pub key: &'a ObjectKey,
    /// Host that the workload runs on.
    pub node: &'a str,
    /// Orchestrator, such as `k8s`, `cni` or `libnetwork`.
    pub orchestrator: &'a str,
    /// Workload, for orchestrators other than `k8s` and `cni`.
    pub workload: Option<&'a str>,
    /// Pod, for orchestrator `k8s`.
    pub pod: Option<&'a str>,
    /// Container that owns the endpoint.
    pub container_id: Option<&'a str>,
    /// Endpoint, often the interface in the container.
    pub endpoint: &'a str,
    /// Interface on the host.
    pub interface: &'a InterfaceName,
    /// MAC address in the container.
    pub mac: Option<MacAddr>,
    /// Addresses of the container.
    pub addresses: &'a [IpAddr],
    /// Names of the profiles, in order.
    pub profiles: &'a [String],
    /// Labels, without those that [`workload_endpoint`] adds.
    pub labels: &'a Labels,
    /// Service account of the pod.
    pub service_account: Option<&'a str>,
}

/// Returns the value of a WorkloadEndpoint, or `None` if it does not change. Labels are replaced as a whole;
/// `projectcalico.org/namespace` and `projectcalico.org/orchestrator` are added, as Calico's client does.
///
/// # Errors
/// If the stored value is no object.
pub fn workload_endpoint(
    stored: Option<&[u8]>,
    spec: &WorkloadEndpointSpec<'_>,
    birth: &Birth,
) -> Result<Option<Vec<u8>>, ObjectError> {
    let mut draft = Draft::open(spec.key, stored, birth)?;
    let mut labels: serde_json::Map<String, Value> =
        spec.labels.iter().map(|(name, value)| (name.to_string(), json!(value.to_string()))).collect();
    let namespace = spec.key.namespace.as_deref().unwrap_or("default");
    labels.insert("projectcalico.org/namespace".to_owned(), json!(namespace));
    labels.insert("projectcalico.org/orchestrator".to_owned(), json!(spec.orchestrator));
    draft.metadata.set("labels", &Value::Object(labels));
    let texts = |values: Vec<String>| json!(values);
    let members = [
        ("orchestrator", Some(json!(spec.orchestrator))),
        ("workload", spec.workload.map(|text| json!(text))),
        ("node", Some(json!(spec.node))),
        ("containerID", spec.container_id.map(|text| json!(text))),
        ("pod", spec.pod.map(|text| json!(text))),
        ("endpoint", Some(json!(spec.endpoint))),
        ("serviceAccountName", spec.service_account.map(|text| json!(text))),
        ("ipNetworks", Some(texts(spec.addresses.iter().map(|addr| host_network(*addr)).collect()))),
        ("profiles", Some(texts(spec.profiles.to_vec()))),
        ("interfaceName", Some(json!(spec.interface.as_str()))),
        ("mac", spec.mac.map(|mac| json!(mac.to_string()))),
    ];
    for (name, value) in members {
        match value {
            Some(value) => draft.spec.set(name, &value),
            None => draft.spec.remove(name),
        }
    }
    Ok(draft.close())
}

/// Returns the value of a WorkloadEndpoint with these profiles, or `None` if it does not change.
///
/// # Errors
/// If the stored value is no object.
pub fn workload_endpoint_profiles(
    key: &ObjectKey,
    stored: &[u8],
    profiles: &[String],
    birth: &Birth,
) -> Result<Option<Vec<u8>>, ObjectError> {
    let mut draft = Draft::open(key, Some(stored), birth)?;
    draft.spec.set("profiles", &json!(profiles));
    Ok(draft.close())
}

fn host_network(addr: IpAddr) -> String {
    format!("{addr}/{}", if addr.is_ipv4() { 32 } else { 128 })
}
