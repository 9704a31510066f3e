//! Objects of a Calico 3 store, as Calico's clients write them.

use serde_json::{Map, Value, json};

const ROOT: &str = "/calico/resources/v3/projectcalico.org";
const PLURALS: [(&str, &str); 8] = [
    ("ClusterInformation", "clusterinformations"),
    ("FelixConfiguration", "felixconfigurations"),
    ("GlobalNetworkPolicy", "globalnetworkpolicies"),
    ("IPPool", "ippools"),
    ("NetworkPolicy", "networkpolicies"),
    ("Node", "nodes"),
    ("Profile", "profiles"),
    ("WorkloadEndpoint", "workloadendpoints"),
];

/// Returns the key of an object; `name` is `NAMESPACE/NAME` for a kind with namespaces.
pub(crate) fn key(kind: &str, name: &str) -> String {
    let (_, plural) = PLURALS.iter().find(|(of, _)| *of == kind).unwrap();
    format!("{ROOT}/{plural}/{name}")
}

/// Returns the value of an object.
pub(crate) fn object(kind: &str, name: &str, spec: &Value) -> String {
    let (namespace, name) = name.rsplit_once('/').map_or((None, name), |(space, name)| (Some(space), name));
    let mut metadata = json!({
        "name": name, "uid": "8a6de3cc-5ee9-4e10-a55e-b1bd7ae1d2d1", "creationTimestamp": "2026-01-02T03:04:05Z",
    });
    if let Some(namespace) = namespace {
        metadata["namespace"] = json!(namespace);
    }
    json!({"kind": kind, "apiVersion": "projectcalico.org/v3", "metadata": metadata, "spec": spec})
        .to_string()
}

/// Returns key and value of a pool, with the members of a pool of the v1 model.
pub(crate) fn pool(cidr: &str, value: &Value) -> (String, String) {
    let name = cidr.replace(['.', ':', '/'], "-");
    let spec: Map<String, Value> = ["cidr", "disabled", "blockSize"]
        .into_iter()
        .filter_map(|member| Some((member.to_owned(), value.get(member)?.clone())))
        .collect();
    (key("IPPool", &name), object("IPPool", &name, &Value::Object(spec)))
}

/// Returns key and value of the ClusterInformation.
pub(crate) fn cluster_information(ready: bool) -> (String, String) {
    let spec = json!({
        "clusterGUID": "0123456789abcdef0123456789abcdef", "clusterType": "bgp", "datastoreReady": ready,
    });
    (key("ClusterInformation", "default"), object("ClusterInformation", "default", &spec))
}

/// Returns key and value of a Node with an address.
pub(crate) fn node(name: &str, address: &str) -> (String, String) {
    (key("Node", name), object("Node", name, &json!({"bgp": {"ipv4Address": address}})))
}
