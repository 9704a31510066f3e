//! Workload and host endpoints.

use serde_json::{Value, json};
use tortie_net::Cidr;

use super::names::{self, joined, norm, qualified};
use super::output::{Converted, ConvertedObject, Entry, Weight, report_unused};
use crate::calico3::{Kind, ObjectKey};
use crate::key::EndpointKey;
use crate::resource::{HostEndpoint, Labels, WorkloadEndpoint};

/// Label of the namespace in v1.
const OLD_NAMESPACE: &str = "calico/k8s_ns";
/// Labels that Calico's clients set on endpoints.
const NAMESPACE: &str = "projectcalico.org/namespace";
const ORCHESTRATOR: &str = "projectcalico.org/orchestrator";

/// Identity of a workload in Calico 3.
struct Identity {
    namespace: String,
    name: String,
    members: Vec<(&'static str, String)>,
}

/// Converts a workload endpoint.
pub(super) fn workload(
    entry: &Entry<'_>,
    key: &EndpointKey,
    endpoint: &WorkloadEndpoint,
    out: &mut Converted,
) {
    let EndpointKey::Workload { host, orchestrator, workload, endpoint: id } = key else { return };
    if orchestrator == "openstack" {
        out.finding(Weight::Note, entry.text, "left out: Neutron writes it again");
        return;
    }
    if !endpoint.active {
        let text = "left out: it is not active, and those of Calico 3 always are";
        out.finding(Weight::Lost, entry.text, text);
        return;
    }
    let Some(identity) = identity(host, orchestrator, workload, id, endpoint) else {
        let text = format!("the workload `{workload}` is no <namespace>.<pod>: delete the endpoint");
        out.finding(Weight::Error, entry.text, text);
        return;
    };
    let key = ObjectKey::namespaced(Kind::WorkloadEndpoint, &identity.namespace, &identity.name);
    let mut object = ConvertedObject::new(key, entry.text);
    for (member, text) in identity.members {
        object.set(member, text);
    }
    object.set("interfaceName", endpoint.name.as_str());
    object.set_some("mac", endpoint.mac.map(|mac| mac.to_string()));
    if endpoint.nets().any(|net| !net.is_host()) || endpoint.nets().next().is_none() {
        let text = "an endpoint of Calico 3 has addresses, each a /32 or /128: correct its networks";
        out.finding(Weight::Error, entry.text, text);
    }
    object.set_list("ipNetworks", endpoint.nets().map(Cidr::to_string));
    if endpoint.nats().next().is_some() {
        // Without it those of Calico 3 are in force for OpenStack only.
        let settings = ObjectKey::global(Kind::FelixConfiguration, "default");
        out.shared(settings, entry.text).set("floatingIPs", "Enabled");
    }
    let nats = endpoint.nats();
    object.set_list(
        "ipNATs",
        nats.map(
            |(inside, outside)| json!({"internalIP": inside.to_string(), "externalIP": outside.to_string()}),
        ),
    );
    if endpoint.stray_nats().next().is_some() {
        out.finding(Weight::Lost, entry.text, "a NAT of an address that the endpoint has not");
    }
    object.set_some("ipv4Gateway", endpoint.ipv4_gateway.map(|addr| addr.to_string()));
    object.set_some("ipv6Gateway", endpoint.ipv6_gateway.map(|addr| addr.to_string()));
    object.set_list("profiles", endpoint.profile_ids.iter().map(|name| names::profile(name)));
    ports(endpoint.extra.get("ports"), &mut object);
    labels(&endpoint.labels, &mut object);
    object.labels.insert(NAMESPACE.to_owned(), identity.namespace);
    object.labels.insert(ORCHESTRATOR.to_owned(), qualified(orchestrator, norm(orchestrator)));
    report_unused(entry, &WORKLOAD, out);
    out.add(object);
}

/// Members of a workload endpoint that are converted.
const WORKLOAD: [&str; 14] = [
    "state",
    "name",
    "active_instance_id",
    "mac",
    "profile_ids",
    "profile_id",
    "ipv4_nets",
    "ipv6_nets",
    "ipv4_nat",
    "ipv6_nat",
    "ipv4_gateway",
    "ipv6_gateway",
    "labels",
    "ports",
];

/// Returns the name that Calico's clients compute, and the members that it is computed from; `None` for a pod
/// without namespace.
fn identity(
    host: &str,
    orchestrator: &str,
    workload: &str,
    id: &str,
    endpoint: &WorkloadEndpoint,
) -> Option<Identity> {
    let of = |name: &str| qualified(name, norm(name));
    let (host, endpoint_id, kind) = (norm(host), of(id), of(orchestrator));
    let mut namespace = "default".to_owned();
    let mut members =
        vec![("node", host.clone()), ("orchestrator", kind.clone()), ("endpoint", endpoint_id.clone())];
    let third = match kind.as_str() {
        "k8s" => {
            let (of_pod, pod) = workload.split_once('.')?;
            of_pod.clone_into(&mut namespace);
            members.push(("pod", pod.to_owned()));
            members.extend(endpoint.active_instance_id.clone().map(|id| ("containerID", id)));
            pod.to_owned()
        }
        "cni" => {
            members.push(("containerID", of(workload)));
            of(workload)
        }
        "libnetwork" => {
            members.push(("workload", "libnetwork".to_owned()));
            members.push(("containerID", of(workload)));
            "libnetwork".to_owned()
        }
        _ => {
            members.push(("workload", of(workload)));
            of(workload)
        }
    };
    let name = joined(&[&host, &kind, &third, &endpoint_id]);
    Some(Identity { namespace, name, members })
}

/// Converts a host endpoint.
pub(super) fn host(entry: &Entry<'_>, host: &str, id: &str, endpoint: &HostEndpoint, out: &mut Converted) {
    let new = names::host_endpoint(host, id);
    let mut object = ConvertedObject::new(ObjectKey::global(Kind::HostEndpoint, &new), entry.text);
    object.set("node", norm(host));
    object.set_some("interfaceName", endpoint.name.as_ref().map(|name| name.as_str()));
    object.set_list("expectedIPs", endpoint.addrs().map(|addr| addr.to_string()));
    object.set_list("profiles", endpoint.profile_ids.iter().map(|name| names::profile(name)));
    ports(endpoint.extra.get("ports"), &mut object);
    labels(&endpoint.labels, &mut object);
    let members = [
        "name",
        "expected_ipv4_addrs",
        "expected_ipv6_addrs",
        "profile_ids",
        "profile_id",
        "labels",
        "ports",
    ];
    report_unused(entry, &members, out);
    let text = "policies of Calico 3 apply to packets that this interface forwards only with applyOnForward: set it \
                in those that are meant to";
    out.finding(Weight::Note, entry.text, text);
    out.renamed(Kind::HostEndpoint, id, &new);
    out.add(object);
}

/// Copies labels, with the name that the label of the namespace has in Calico 3.
fn labels(labels: &Labels, object: &mut ConvertedObject) {
    let name = |name: &str| if name == OLD_NAMESPACE { NAMESPACE } else { name }.to_owned();
    object.labels = labels.iter().map(|(label, text)| (name(label), text.clone())).collect();
}

/// Copies named ports, with the protocol in upper case.
fn ports(ports: Option<&Value>, object: &mut ConvertedObject) {
    let Some(Value::Array(list)) = ports else { return };
    let mut list = list.clone();
    for port in &mut list {
        if let Some(Value::String(protocol)) = port.get_mut("protocol") {
            *protocol = protocol.to_ascii_uppercase();
        }
    }
    object.set_list("ports", list);
}
