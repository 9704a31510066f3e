//! Names of endpoints for display: of the container or pod if known, otherwise built from short ids.

use tortie_config::Resource;
use tortie_config::key::{EndpointKey, Key};
use tortie_config::resource::Labels;

use super::Model;

/// Returns `orchestrator/workload/endpoint`, or the id of a host endpoint.
#[must_use]
pub fn endpoint_name(key: &EndpointKey) -> String {
    match key {
        EndpointKey::Workload { orchestrator, workload, endpoint, .. } => {
            format!("{orchestrator}/{}/{}", short_id(workload), short_id(endpoint))
        }
        EndpointKey::Host { endpoint, .. } => endpoint.clone(),
    }
}

/// Label that holds the container name.
pub const NAME_LABEL: &str = "tortie/name";
/// Labels that hold the network name, of Docker and of CNI.
const NETWORK_LABELS: [&str; 2] = ["docker.network", "tortie/network"];
/// Length of a short id in hexadecimal digits, as Docker and Podman print it.
const SHORT: usize = 12;

/// Shortens an id of 64 hexadecimal digits, and returns any other name unchanged.
#[must_use]
pub fn short_id(id: &str) -> &str {
    let whole = id.len() == 64 && id.bytes().all(|b| b.is_ascii_hexdigit());
    id.get(..SHORT).filter(|_| whole).unwrap_or(id)
}

/// Returns the display name of an endpoint with these labels. It contains the container name if known
/// (`cni/web/eth0`, `libnetwork/web/NETWORK`), and is the [`endpoint_name`] otherwise.
#[must_use]
pub fn display_name(key: &EndpointKey, labels: &Labels) -> String {
    match (key, labels.get(NAME_LABEL)) {
        (EndpointKey::Workload { orchestrator, endpoint, .. }, Some(name)) => {
            let network = NETWORK_LABELS.iter().find_map(|label| labels.get(*label));
            let part =
                network.filter(|_| short_id(endpoint) != endpoint).map_or(short_id(endpoint), String::as_str);
            format!("{orchestrator}/{name}/{part}")
        }
        _ => endpoint_name(key),
    }
}

/// Returns true if `word` names an endpoint with these labels: by container name, by pod name, or by
/// `NAMESPACE/POD`.
#[must_use]
pub fn is_called(key: &EndpointKey, labels: &Labels, word: &str) -> bool {
    let pod = match key {
        EndpointKey::Workload { orchestrator, workload, .. } if orchestrator == "k8s" => {
            workload.split_once('.')
        }
        _ => None,
    };
    pod.is_some_and(|(namespace, pod)| word == pod || word.split_once('/') == Some((namespace, pod)))
        || labels.get(NAME_LABEL).is_some_and(|name| name == word)
}

/// Returns true if `word` is the beginning of an id of the endpoint: of its container, or of an id in its
/// key.
#[must_use]
pub fn is_short_id(key: &EndpointKey, instance: Option<&str>, word: &str) -> bool {
    let EndpointKey::Workload { workload, endpoint, .. } = key else { return false };
    let hex = word.len() >= SHORT && word.bytes().all(|b| b.is_ascii_hexdigit());
    let ids = [Some(workload.as_str()), Some(endpoint.as_str()), instance];
    hex && ids.into_iter().flatten().any(|id| short_id(id) != id && id.starts_with(word))
}

/// Returns the labels of an endpoint's value, and the id of its container.
#[must_use]
pub fn naming(value: &Resource) -> (&Labels, Option<&str>) {
    match value {
        Resource::WorkloadEndpoint(workload) => (&workload.labels, workload.active_instance_id.as_deref()),
        Resource::HostEndpoint(host) => (&host.labels, None),
        _ => (const { &Labels::new() }, None),
    }
}

/// Returns the display name of an endpoint from its value in the store.
#[must_use]
pub fn name_of_stored(key: &EndpointKey, value: &[u8]) -> String {
    match Resource::parse(&Key::Endpoint(key.clone()), value) {
        Ok(value) => display_name(key, naming(&value).0),
        Err(_) => endpoint_name(key),
    }
}

impl Model {
    /// Returns the display name of an endpoint by its current labels; see [`display_name`].
    #[must_use]
    pub fn name_of_endpoint(&self, key: &EndpointKey) -> String {
        match self.resource(&Key::Endpoint(key.clone())) {
            Some(value) => display_name(key, naming(value).0),
            None => endpoint_name(key),
        }
    }
}
