//! Workload endpoints as a store has them, read as the endpoints that were written.

use tortie_config::Dialect;
use tortie_config::calico3::{Kind, Object, ObjectKey, Projection, WorkloadEndpointName};
use tortie_config::key::{EndpointKey, Key, prefix};
use tortie_config::resource::WorkloadEndpoint;
use tortie_store::KeyValue;

use crate::model::raw_entry;

use super::Writer;

/// A workload endpoint of the store.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredEndpoint {
    /// Key of the endpoint, as [`EndpointSpec`](super::EndpointSpec) has it.
    pub key: EndpointKey,
    /// Name for people: the key, or kind and name of the object.
    pub title: String,
    /// Container id that owns it.
    pub instance: Option<String>,
    /// Content, with the container id; or the reason why it cannot be parsed.
    pub endpoint: Result<WorkloadEndpoint, String>,
}

impl Writer {
    /// Returns the prefix below which the store has the workload endpoints of a host, besides those of other
    /// hosts in a Calico 3 store.
    #[must_use]
    pub fn endpoints_prefix(self, host: &str) -> String {
        match self.dialect() {
            Dialect::V1 => prefix::workloads_of(host),
            Dialect::V3 => ObjectKey::prefix_of(Kind::WorkloadEndpoint),
        }
    }

    /// Returns the workload endpoint that a key of the store names; `None` for another key.
    #[must_use]
    pub fn stored_key(self, key: &str) -> Option<EndpointKey> {
        match self.dialect() {
            Dialect::V1 => match Key::parse(key) {
                Ok(Key::Endpoint(key @ EndpointKey::Workload { .. })) => Some(key),
                _ => None,
            },
            Dialect::V3 => {
                let object = ObjectKey::parse(key).filter(|key| key.kind == Kind::WorkloadEndpoint)?;
                let name = WorkloadEndpointName::parse(&object.name)?;
                let workload = match (object.namespace.as_deref()?, name.orchestrator.as_str()) {
                    (namespace, "k8s") => format!("{namespace}.{}", name.workload),
                    ("default", _) => name.workload,
                    (namespace, _) => format!("{namespace}/{}", name.workload),
                };
                Some(EndpointKey::Workload {
                    host: name.node,
                    orchestrator: name.orchestrator,
                    workload,
                    endpoint: name.endpoint,
                })
            }
        }
    }

    /// Reads a workload endpoint; `None` if the key is that of something else.
    #[must_use]
    pub fn read_endpoint(self, entry: &KeyValue) -> Option<StoredEndpoint> {
        let key = self.stored_key(&entry.key)?;
        match self.dialect() {
            Dialect::V1 => {
                let endpoint = WorkloadEndpoint::parse(&entry.value).map_err(|error| error.to_string());
                let instance =
                    endpoint.as_ref().ok().and_then(|endpoint| endpoint.active_instance_id.clone());
                Some(StoredEndpoint { key, title: entry.key.clone(), instance, endpoint })
            }
            Dialect::V3 => {
                let object = ObjectKey::parse(&entry.key)?;
                let title = object.title();
                let instance = Object::parse(object, &entry.value, entry.create_revision, entry.mod_revision)
                    .ok()
                    .and_then(|object| object.spec.get("containerID")?.as_str().map(str::to_owned))
                    .filter(|id| !id.is_empty());
                let endpoint = projected(entry).map(|mut endpoint| {
                    endpoint.active_instance_id.clone_from(&instance);
                    endpoint
                });
                Some(StoredEndpoint { key, title, instance, endpoint })
            }
        }
    }
}

/// Returns the endpoint that the agent reads from an object.
fn projected(entry: &KeyValue) -> Result<WorkloadEndpoint, String> {
    let mut projection = Projection::new("");
    let entries = projection.replace([raw_entry(entry)]);
    let is_endpoint = |key: &str| matches!(Key::parse(key), Ok(Key::Endpoint(EndpointKey::Workload { .. })));
    match entries.iter().find(|entry| is_endpoint(&entry.key)) {
        Some(entry) => WorkloadEndpoint::parse(&entry.value).map_err(|error| error.to_string()),
        None => Err(projection
            .problems()
            .first()
            .map_or_else(|| "it has no address".to_owned(), |problem| problem.text.clone())),
    }
}
