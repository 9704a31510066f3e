//! Names of an attachment: keys, handles, profiles, labels and interface names, compatible with Calico. It
//! does no I/O.

use serde_json::{Map, Value, json};
use tortie_config::key::EndpointKey;
use tortie_config::resource::{InterfaceName, Labels};

use crate::plugins::attach::{ProfileChoice, host_interface};
use crate::plugins::cni::config::Config;
use crate::plugins::cni::config::args::EnvArgs;
use crate::plugins::cni::protocol::error::{CniError, code};
use tortie_engine::model::endpoint_name::NAME_LABEL;

/// Label with the network of an endpoint. `GC` finds a network's endpoints by it, and selectors may use it.
pub const NETWORK_LABEL: &str = "tortie/network";
/// Label with the namespace of a pod, as in the first generations of Calico.
const NAMESPACE_LABEL: &str = "calico/k8s_ns";

/// Names that belong to one attachment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Key of the endpoint.
    pub key: EndpointKey,
    /// Handle of its addresses.
    pub handle: String,
    /// Handles that older writers used for it. Only the attachment's own addresses are released from them.
    pub old_handles: Vec<String>,
    /// Name of the interface on the host.
    pub host_ifname: InterfaceName,
    /// Profile of the endpoint.
    pub profile: ProfileChoice,
    /// Labels of the endpoint.
    pub labels: Labels,
    /// Namespace and name of the pod.
    pub pod: Option<(String, String)>,
}

/// Returns the handle of an attachment. The first interface has Calico's form; further interfaces of a
/// container in the same network add their name, so that one can be removed without the others.
#[must_use]
pub fn handle(network: &str, container_id: &str, ifname: &str) -> String {
    if ifname == "eth0" {
        format!("{network}.{container_id}")
    } else {
        format!("{network}.{container_id}.{ifname}")
    }
}

impl Identity {
    /// Computes the names for a container's interface.
    ///
    /// # Errors
    /// Code 7 if the interface prefix leaves no room for a name.
    pub fn new(
        config: &Config,
        env: &EnvArgs,
        node: &str,
        container_id: &str,
        ifname: &str,
    ) -> Result<Self, CniError> {
        let pod = env.pod_namespace.clone().zip(env.pod.clone());
        let (orchestrator, workload) = match &pod {
            Some((namespace, name)) => ("k8s", format!("{namespace}.{name}")),
            None => ("cni", container_id.to_owned()),
        };
        // Two interfaces of one container need two interfaces on the host.
        let id = if ifname == "eth0" { workload.clone() } else { format!("{workload}.{ifname}") };
        let host_ifname = host_interface(&config.interface_prefix, &id)
            .map_err(|why| CniError::new(code::CONFIG, format!("`interface_prefix`: {why}")))?;
        let mut labels = config.args.labels.clone();
        labels.insert(NETWORK_LABEL.into(), config.name.clone());
        let profile = match &pod {
            Some((namespace, _)) if config.namespace_profiles => {
                ProfileChoice::Use(format!("k8s_ns.{namespace}"))
            }
            Some(_) => ProfileChoice::CreateOpen(config.name.clone()),
            None => ProfileChoice::Create(config.name.clone()),
        };
        if let (None, Some(name)) = (&pod, &env.pod) {
            // podman passes the name of the container in this variable.
            labels.entry(NAME_LABEL.into()).or_insert_with(|| name.clone());
        }
        if let Some((namespace, _)) = &pod {
            labels.insert(NAMESPACE_LABEL.into(), namespace.clone());
        }
        let handle = handle(&config.name, container_id, ifname);
        let mut old_handles = vec![format!("{}.{container_id}", config.name), workload.clone()];
        old_handles.retain(|old| *old != handle);
        Ok(Self {
            key: EndpointKey::Workload {
                host: node.to_owned(),
                orchestrator: orchestrator.to_owned(),
                workload,
                endpoint: ifname.to_owned(),
            },
            handle,
            old_handles,
            host_ifname,
            profile,
            labels,
            pod,
        })
    }

    /// Returns the attributes that are stored with an address.
    #[must_use]
    pub fn attributes(&self, node: &str, now: &str) -> Map<String, Value> {
        let mut attributes = Map::new();
        attributes.insert("node".into(), json!(node));
        attributes.insert("timestamp".into(), json!(now));
        if let Some((namespace, pod)) = &self.pod {
            attributes.insert("namespace".into(), json!(namespace));
            attributes.insert("pod".into(), json!(pod));
        }
        attributes
    }
}
