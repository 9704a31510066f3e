//! Workload endpoints of plugins: creation, change and removal.

use std::net::IpAddr;

use tortie_config::Dialect;
use tortie_config::calico3::write::{
    Birth, WorkloadEndpointSpec, check_label, check_name, workload_endpoint, workload_endpoint_profiles,
};
use tortie_config::calico3::{Kind, ObjectKey, WorkloadEndpointName};
use tortie_config::key::{EndpointKey, Key};
use tortie_config::resource::{InterfaceName, Labels, MacAddr, WorkloadEndpoint};
use tortie_net::Cidr;
use tortie_store::{Compare, KeyValue, Op, Txn};

use crate::model::endpoint_name::NAME_LABEL;

use super::stored_endpoint::StoredEndpoint;
use super::{EndpointError, ProfileChoice, Writer};

/// Namespace of workloads outside of Kubernetes.
const DEFAULT_NAMESPACE: &str = "default";
/// Orchestrator of pods.
const KUBERNETES: &str = "k8s";
/// Label with the namespace of a pod in v1. In Calico 3, each endpoint has its own label for it.
const V1_NAMESPACE_LABEL: &str = "calico/k8s_ns";

/// Content of an endpoint.
#[derive(Debug, Clone)]
pub struct EndpointSpec<'a> {
    /// Key of a workload endpoint. The workload of a pod is `<namespace>.<pod>`, in both dialects.
    pub key: &'a EndpointKey,
    /// Interface on the host.
    pub host_ifname: &'a InterfaceName,
    /// MAC address in the container.
    pub mac: Option<MacAddr>,
    /// Addresses of the endpoint.
    pub addrs: &'a [IpAddr],
    /// Default gateways of the container, which the host proxies. They are for display, in a v1 store only.
    pub gateways: &'a [IpAddr],
    /// Profile of the endpoint.
    pub profile: &'a ProfileChoice,
    /// Networks whose profiles come after it, which other writers maintain.
    pub more_profiles: &'a [String],
    /// Labels of the endpoint.
    pub labels: &'a Labels,
    /// Container id that owns the endpoint.
    pub instance: Option<&'a str>,
}

/// Result of planning a removal.
#[derive(Debug, Clone, PartialEq)]
pub enum Removal {
    /// The endpoint belongs to this other instance now.
    Kept(String),
    /// The transaction removes the endpoint.
    Remove(Txn),
}

/// What a workload endpoint is in Calico 3.
struct Workload<'a> {
    host: &'a str,
    orchestrator: &'a str,
    namespace: &'a str,
    workload: &'a str,
    endpoint: &'a str,
}

impl<'a> Workload<'a> {
    /// Reads a key; `None` for a host endpoint, and a pod without namespace.
    fn of(key: &'a EndpointKey) -> Option<Self> {
        let EndpointKey::Workload { host, orchestrator, workload, endpoint } = key else { return None };
        let (namespace, workload) = match workload.split_once('/') {
            Some(parts) => parts,
            None if orchestrator == KUBERNETES => workload.split_once('.')?,
            None => (DEFAULT_NAMESPACE, workload.as_str()),
        };
        Some(Self { host, orchestrator, namespace, workload, endpoint })
    }

    fn object_key(&self) -> Result<ObjectKey, EndpointError> {
        let parts = WorkloadEndpointName {
            node: self.host.to_owned(),
            orchestrator: self.orchestrator.to_owned(),
            workload: self.workload.to_owned(),
            endpoint: self.endpoint.to_owned(),
        };
        let what = || format!("the endpoint of `{}` on host `{}`", self.workload, self.host);
        let Some(name) = parts.to_name() else {
            let why = "host, workload and interface are parts of the name of a WorkloadEndpoint: write names that \
                       neither begin nor end with `-`";
            return Err(EndpointError::invalid(what(), why));
        };
        let key = ObjectKey::namespaced(Kind::WorkloadEndpoint, self.namespace, &name);
        check_name(&key).map_err(|error| EndpointError::invalid(what(), error))?;
        Ok(key)
    }
}

impl Writer {
    /// Returns the key at which the store has a workload endpoint.
    ///
    /// # Errors
    /// [`EndpointError::Invalid`] if its parts cannot be the name of an object.
    pub fn endpoint_key(self, key: &EndpointKey) -> Result<String, EndpointError> {
        match self.dialect() {
            Dialect::V1 => Ok(Key::Endpoint(key.clone()).to_string()),
            Dialect::V3 => self.object_key(key).map(|key| key.to_string()),
        }
    }

    fn object_key(self, key: &EndpointKey) -> Result<ObjectKey, EndpointError> {
        let workload = Workload::of(key)
            .ok_or_else(|| EndpointError::invalid("the workload", "write <namespace>.<pod> for a pod"))?;
        workload.object_key()
    }

    /// Returns the key that the agent's model has for a workload endpoint: in Calico 3 with its namespace.
    #[must_use]
    pub fn model_key(self, key: &EndpointKey) -> EndpointKey {
        match (self.dialect(), Workload::of(key)) {
            (Dialect::V3, Some(of)) => EndpointKey::Workload {
                host: of.host.to_owned(),
                orchestrator: of.orchestrator.to_owned(),
                workload: format!("{}/{}", of.namespace, of.workload),
                endpoint: of.endpoint.to_owned(),
            },
            _ => key.clone(),
        }
    }

    /// Returns the keys whose values [`Writer::endpoint`] needs, that of the endpoint first.
    ///
    /// # Errors
    /// As [`Writer::endpoint_key`].
    pub fn endpoint_reads(self, spec: &EndpointSpec<'_>) -> Result<Vec<String>, EndpointError> {
        let mut keys = vec![self.endpoint_key(spec.key)?];
        keys.extend(self.profile_keys(spec.profile));
        Ok(keys)
    }

    /// Returns the transaction that writes the endpoint, and its profiles if they must be created. An existing
    /// endpoint is replaced, but members of its value that are unknown here are kept. `None` if nothing
    /// changes, in a Calico 3 store only. `stored` has the values of [`Writer::endpoint_reads`].
    ///
    /// # Errors
    /// If a name, a label or the network's name has no form in the dialect, or an object cannot be parsed.
    pub fn endpoint(
        self,
        spec: &EndpointSpec<'_>,
        stored: &[Option<KeyValue>],
        birth: &mut dyn FnMut() -> Birth,
    ) -> Result<Option<Txn>, EndpointError> {
        let key = self.endpoint_key(spec.key)?;
        let (old, profiles) = stored.split_first().map_or((None, stored), |(old, rest)| (old.as_ref(), rest));
        let mut txn = Txn { compare: vec![unchanged(&key, old)], ops: Vec::new() };
        let value = match self.dialect() {
            Dialect::V1 => Some(self.v1_value(spec, old)),
            Dialect::V3 => self.object(spec, old, birth)?,
        };
        txn.ops.extend(value.map(|value| Op::Put { key, value, lease: None }));
        self.create_profiles(spec.profile, profiles, birth, &mut txn)?;
        Ok(Some(txn).filter(|txn| !txn.ops.is_empty()))
    }

    fn v1_value(self, spec: &EndpointSpec<'_>, old: Option<&KeyValue>) -> Vec<u8> {
        let old = old.and_then(|old| WorkloadEndpoint::parse(&old.value).ok());
        let mut endpoint = WorkloadEndpoint::new(spec.host_ifname.clone());
        if let Some(old) = old {
            endpoint.extra = old.extra;
        }
        endpoint.mac = spec.mac;
        endpoint.profile_ids = self.all_profiles(spec);
        let nets =
            |v4: bool| spec.addrs.iter().filter(|a| a.is_ipv4() == v4).map(|a| Cidr::host(*a)).collect();
        endpoint.ipv4_nets = nets(true);
        endpoint.ipv6_nets = nets(false);
        for gateway in spec.gateways {
            match gateway {
                IpAddr::V4(v4) => endpoint.ipv4_gateway = Some(*v4),
                IpAddr::V6(v6) => endpoint.ipv6_gateway = Some(*v6),
            }
        }
        endpoint.labels = spec.labels.clone();
        endpoint.active_instance_id = spec.instance.map(str::to_owned);
        endpoint.to_value()
    }

    fn object(
        self,
        spec: &EndpointSpec<'_>,
        old: Option<&KeyValue>,
        birth: &mut dyn FnMut() -> Birth,
    ) -> Result<Option<Vec<u8>>, EndpointError> {
        let key = self.object_key(spec.key)?;
        let Some(of) = Workload::of(spec.key) else { return Ok(None) };
        let mut labels = spec.labels.clone();
        labels.remove(V1_NAMESPACE_LABEL);
        // Only people read the name of a container, and runtimes allow more for it.
        labels.retain(|name, value| name != NAME_LABEL || check_label(name, value).is_ok());
        for (name, value) in &labels {
            check_label(name, value)
                .map_err(|error| EndpointError::invalid(format!("a label of {}", key.title()), error))?;
        }
        let is_pod = of.orchestrator == KUBERNETES;
        let names_container = is_pod || of.orchestrator == "cni";
        let spec = WorkloadEndpointSpec {
            key: &key,
            node: of.host,
            orchestrator: of.orchestrator,
            workload: (!names_container).then_some(of.workload),
            pod: is_pod.then_some(of.workload),
            container_id: spec.instance,
            endpoint: of.endpoint,
            interface: spec.host_ifname,
            mac: spec.mac,
            addresses: spec.addrs,
            profiles: &self.all_profiles(spec),
            labels: &labels,
            service_account: None,
        };
        let stored = old.map(|old| old.value.as_slice());
        workload_endpoint(stored, &spec, &birth())
            .map_err(|error| EndpointError::Unreadable { key: key.to_string(), why: error.to_string() })
    }

    fn all_profiles(self, spec: &EndpointSpec<'_>) -> Vec<String> {
        let more = spec.more_profiles.iter().map(|name| self.profile_name(name));
        self.profile_names(spec.profile).into_iter().chain(more).collect()
    }

    /// Returns the transaction that gives a stored endpoint these profiles, or `None` if it has them. `names`
    /// are those in the store.
    ///
    /// # Errors
    /// If the stored value cannot be parsed.
    pub fn endpoint_profiles(
        self,
        key: &EndpointKey,
        stored: &KeyValue,
        names: &[String],
        birth: &Birth,
    ) -> Result<Option<Txn>, EndpointError> {
        let unreadable = |why: String| EndpointError::Unreadable { key: stored.key.clone(), why };
        let value = match self.dialect() {
            Dialect::V1 => {
                let mut endpoint =
                    WorkloadEndpoint::parse(&stored.value).map_err(|error| unreadable(error.to_string()))?;
                let changes = endpoint.profile_ids != names;
                endpoint.profile_ids = names.to_vec();
                changes.then(|| endpoint.to_value())
            }
            Dialect::V3 => workload_endpoint_profiles(&self.object_key(key)?, &stored.value, names, birth)
                .map_err(|error| unreadable(error.to_string()))?,
        };
        let key = stored.key.clone();
        Ok(value.map(|value| Txn {
            compare: vec![unchanged(&key, Some(stored))],
            ops: vec![Op::Put { key, value, lease: None }],
        }))
    }

    /// Plans the removal of a stored endpoint, if it belongs to this instance, or to any if `instance` is
    /// `None`. A value that cannot be parsed is removed, too: its owner is unknown, and the container is gone.
    #[must_use]
    pub fn remove_endpoint(self, stored: &KeyValue, instance: Option<&str>) -> Removal {
        let read = self.read_endpoint(stored);
        if let Some(owner) = read.as_ref().and_then(|read| owned_by_other(read, instance)) {
            return Removal::Kept(owner.to_owned());
        }
        let key = stored.key.clone();
        Removal::Remove(Txn { compare: vec![unchanged(&key, Some(stored))], ops: vec![Op::Delete { key }] })
    }
}

/// Returns the instance that owns an endpoint, unless it is this one.
#[must_use]
pub fn owned_by_other<'a>(stored: &'a StoredEndpoint, ours: Option<&str>) -> Option<&'a str> {
    let holder = stored.instance.as_deref()?;
    (holder != ours?).then_some(holder)
}

fn unchanged(key: &str, old: Option<&KeyValue>) -> Compare {
    old.map_or_else(
        || Compare::Absent(key.to_owned()),
        |old| Compare::ModRevision(key.to_owned(), old.mod_revision),
    )
}
