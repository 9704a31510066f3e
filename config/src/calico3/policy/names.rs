//! Names of objects, and the v1 keys that they imply.

use super::super::output::Problem;
use super::super::{Kind, Object, ObjectKey};
use crate::key::{EndpointKey, Key};

/// Annotation that holds the name of a policy as its user gave it.
const METADATA: &str = "projectcalico.org/metadata";

/// Prefix of the names of policies of the tier `default` in the keys of releases before 3.32.
const DEFAULT_PREFIX: &str = "default.";

/// Name of the tier of policies that name none.
pub(super) const DEFAULT_TIER: &str = "default";

/// Beginnings of names that contain a dot and name no tier: copies of Kubernetes' and OpenStack's policies.
const COPIES: [&str; 2] = ["knp.", "ossg."];

/// Parts of the name of a WorkloadEndpoint: joined by dashes, with dashes inside of a part doubled.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkloadEndpointName {
    /// Host that the workload runs on.
    pub node: String,
    /// Orchestrator, such as `k8s`, `cni`, `libnetwork` or `openstack`.
    pub orchestrator: String,
    /// Pod of `k8s`, container id of `cni`, `libnetwork` of `libnetwork`, otherwise the workload.
    pub workload: String,
    /// Endpoint, often the name of an interface inside of the workload.
    pub endpoint: String,
}

impl WorkloadEndpointName {
    /// Splits a name, from the left: two dashes are a literal dash, one separates. `None` unless it has
    /// exactly four parts.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let mut parts = Vec::with_capacity(4);
        let (mut part, mut rest) = (String::new(), name);
        while let Some((before, after)) = rest.split_once('-') {
            part.push_str(before);
            match after.strip_prefix('-') {
                Some(after) => {
                    part.push('-');
                    rest = after;
                }
                None => {
                    parts.push(std::mem::take(&mut part));
                    rest = after;
                }
            }
        }
        part.push_str(rest);
        parts.push(part);
        // A part never begins with a dash: such a name is no joined one, and would imply the key of another.
        if parts.iter().any(|part| part.is_empty() || part.starts_with('-')) {
            return None;
        }
        let [node, orchestrator, workload, endpoint] = <[String; 4]>::try_from(parts).ok()?;
        Some(Self { node, orchestrator, workload, endpoint })
    }

    /// Joins the name. `None` if a part is empty, or begins or ends with a dash.
    #[must_use]
    pub fn to_name(&self) -> Option<String> {
        let is_part = |part: &&String| !part.is_empty() && !part.starts_with('-') && !part.ends_with('-');
        self.parts().iter().all(is_part).then(|| self.join())
    }

    fn parts(&self) -> [&String; 4] {
        [&self.node, &self.orchestrator, &self.workload, &self.endpoint]
    }

    fn join(&self) -> String {
        self.parts().map(|part| part.replace('-', "--")).join("-")
    }

    /// Returns the key of the endpoint in the v1 model.
    fn into_key(self, namespace: &str) -> Key {
        Key::Endpoint(EndpointKey::Workload {
            host: self.node,
            orchestrator: self.orchestrator,
            workload: format!("{namespace}/{}", self.workload),
            endpoint: self.endpoint,
        })
    }
}

/// Returns the name of a policy as its user gave it: from its annotation, otherwise the name in the key, in
/// the tier `default` without the prefix `default.` that earlier releases wrote.
#[must_use]
pub fn policy_name(policy: &Object) -> String {
    let annotation = policy.metadata.annotations.get(METADATA);
    let metadata: Option<serde_json::Value> = annotation.and_then(|text| serde_json::from_str(text).ok());
    let given = metadata.as_ref().and_then(|metadata| metadata.get("name")).and_then(|name| name.as_str());
    if let Some(given) = given.filter(|name| !name.is_empty()) {
        return given.to_owned();
    }
    let tier = policy.spec.get("tier").and_then(serde_json::Value::as_str).unwrap_or_default();
    let name = policy.key.name.as_str();
    let shortened = name.strip_prefix(DEFAULT_PREFIX).filter(|rest| !rest.is_empty());
    shortened.filter(|_| tier.is_empty() || tier == DEFAULT_TIER).unwrap_or(name).to_owned()
}

/// A policy that users see under the name of another one: `default.web` as earlier releases wrote it, and
/// `web`.
pub(in crate::calico3) struct Double {
    /// Key with the prefix.
    pub(in crate::calico3) long: ObjectKey,
    /// Key without it.
    pub(in crate::calico3) short: ObjectKey,
}

impl Double {
    /// Returns the pairs that a policy may be part of.
    pub(in crate::calico3) fn pairs_of(key: &ObjectKey) -> Vec<Self> {
        if !matches!(key.kind, Kind::GlobalNetworkPolicy | Kind::NetworkPolicy) {
            return Vec::new();
        }
        let named = |name: &str| ObjectKey { name: name.to_owned(), ..key.clone() };
        let short = key.name.strip_prefix(DEFAULT_PREFIX).map(named);
        let of_long = short.map(|short| Self { long: key.clone(), short });
        let long = named(&format!("{DEFAULT_PREFIX}{}", key.name));
        of_long.into_iter().chain([Self { long, short: key.clone() }]).collect()
    }

    /// Returns the problem of a pair that exists.
    pub(in crate::calico3) fn problem(&self) -> Problem {
        let text = format!(
            "clients of Calico 3.32 and later show this policy and {} under one name, and both are in force: \
             compare the two, and delete one of them",
            self.short.title()
        );
        Problem { key: self.long.clone(), code: "duplicate-policy", text }
    }
}

/// Returns true for a policy of the tier `default` whose users do not see the prefix in its key.
pub(in crate::calico3) fn is_shortened(policy: &Object) -> bool {
    let is_policy = matches!(policy.key.kind, Kind::GlobalNetworkPolicy | Kind::NetworkPolicy);
    let short = policy.key.name.strip_prefix(DEFAULT_PREFIX).filter(|_| is_policy);
    short.is_some_and(|short| policy_name(policy) == short)
}

/// Returns the v1 key of a policy of the tier `default`.
pub(in crate::calico3) fn key_in_default_tier(policy: &ObjectKey) -> String {
    policy_key(policy, DEFAULT_TIER).to_string()
}

/// Returns the tier that the name of a policy implies in releases before 3.32: `<tier>.<name>`.
pub(super) fn tier_of_name(name: &str) -> &str {
    if COPIES.iter().any(|copy| name.starts_with(copy)) {
        return DEFAULT_TIER;
    }
    name.split_once('.').map(|(tier, _)| tier).filter(|tier| !tier.is_empty()).unwrap_or(DEFAULT_TIER)
}

/// Returns the key of a policy in the v1 model.
pub(super) fn policy_key(key: &ObjectKey, tier: &str) -> Key {
    let name = match &key.namespace {
        Some(namespace) => format!("{namespace}/{}", key.name),
        None => key.name.clone(),
    };
    Key::Policy { tier: tier.to_owned(), name }
}

/// Returns the v1 key of a workload endpoint; `None` for other kinds, and names of another form.
pub(in crate::calico3) fn workload_key(key: &ObjectKey) -> Option<Key> {
    let (Kind::WorkloadEndpoint, Some(namespace)) = (key.kind, &key.namespace) else { return None };
    Some(WorkloadEndpointName::parse(&key.name)?.into_key(namespace))
}

/// Returns the object whose name implies a v1 key: that of an endpoint, profile, policy, tier, set or
/// migration.
pub(in crate::calico3) fn object_of(key: &Key) -> Option<ObjectKey> {
    Some(match key {
        Key::Endpoint(EndpointKey::Workload { host, orchestrator, workload, endpoint }) => {
            let (namespace, workload) = workload.split_once('/')?;
            let parts = WorkloadEndpointName {
                node: host.clone(),
                orchestrator: orchestrator.clone(),
                workload: workload.to_owned(),
                endpoint: endpoint.clone(),
            };
            let name = parts.join();
            let implied = WorkloadEndpointName::parse(&name).is_some_and(|parsed| parsed == parts);
            implied.then(|| ObjectKey::namespaced(Kind::WorkloadEndpoint, namespace, &name))?
        }
        Key::Endpoint(EndpointKey::Host { endpoint, .. }) => ObjectKey::global(Kind::HostEndpoint, endpoint),
        Key::Profile { name, .. } => ObjectKey::global(Kind::Profile, name),
        Key::Policy { name, .. } => match name.split_once('/') {
            Some((namespace, name)) => ObjectKey::namespaced(Kind::NetworkPolicy, namespace, name),
            None => ObjectKey::global(Kind::GlobalNetworkPolicy, name),
        },
        Key::Tier { tier } => ObjectKey::global(Kind::Tier, tier),
        Key::NetworkSet { namespace: Some(namespace), name } => {
            ObjectKey::namespaced(Kind::NetworkSet, namespace, name)
        }
        Key::NetworkSet { namespace: None, name } => ObjectKey::global(Kind::GlobalNetworkSet, name),
        Key::LiveMigration { namespace, name } => ObjectKey::namespaced(Kind::LiveMigration, namespace, name),
        _ => return None,
    })
}
