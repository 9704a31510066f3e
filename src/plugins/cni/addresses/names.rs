//! Whose interface it is: keys, handles, profiles, labels and names, as design and Calico have them. Pure.

use serde_json::{Map, Value, json};
use tortie_config::key::EndpointKey;
use tortie_config::resource::{InterfaceName, Labels};

use crate::plugins::attach::{ProfileChoice, host_interface};
use crate::plugins::cni::config::Config;
use crate::plugins::cni::config::args::EnvArgs;
use crate::plugins::cni::protocol::error::{CniError, code};
use tortie_engine::model::endpoint_name::NAME_LABEL;

/// The label that names the network of an endpoint. `GC` finds a network's endpoints by it, and selectors may use it.
pub const NETWORK_LABEL: &str = "tortie/network";
/// The label that names the namespace of a pod, as Calico's first generations have it.
const NAMESPACE_LABEL: &str = "calico/k8s_ns";

/// What a call is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The endpoint.
    pub key: EndpointKey,
    /// The handle of its addresses.
    pub handle: String,
    /// Handles that older writers used for it; its own addresses only are released from them.
    pub old_handles: Vec<String>,
    /// The interface on the host.
    pub host_ifname: InterfaceName,
    /// The profile of the endpoint.
    pub profile: ProfileChoice,
    /// The labels of the endpoint.
    pub labels: Labels,
    /// Namespace and name of the pod.
    pub pod: Option<(String, String)>,
}

/// The handle of an attachment. The first interface has Calico's form; further ones of a container in the same network have
/// their name in it, so that one can go without the others.
#[must_use]
pub fn handle(network: &str, container_id: &str, ifname: &str) -> String {
    if ifname == "eth0" {
        format!("{network}.{container_id}")
    } else {
        format!("{network}.{container_id}.{ifname}")
    }
}

impl Identity {
    /// Of a container's interface.
    ///
    /// # Errors
    /// Code 7 when the interface prefix leaves no room for a name.
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
        // Two interfaces of one container are two on the host.
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
            // podman's name of the container.
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

    /// What is remembered with an address.
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
