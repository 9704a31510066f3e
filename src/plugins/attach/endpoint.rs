//! Writes the endpoint and its profile to the store, and removes the endpoint.

use std::net::IpAddr;

use serde_json::{Value, json};
use tortie_config::key::{EndpointKey, Key, ProfilePart};
use tortie_config::resource::{InterfaceName, Labels, MacAddr, Resource, WorkloadEndpoint};
use tortie_net::Cidr;

use super::error::AttachError;
use tortie_store::{Compare, KeyValue, Op, Outcome, Revision, Store, Txn};

/// Maximum number of attempts if concurrent writes make the transaction fail.
const TRIES: usize = 20;

/// Profile of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProfileChoice {
    /// No profile: only policies allow traffic.
    None,
    /// This profile, which another writer maintains.
    Use(String),
    /// The profile of a network. If it does not exist, it is created: it allows all egress, and ingress from
    /// endpoints with the same profile. An existing profile is never changed.
    Create(String),
    /// The network's profile, followed by one that allows all ingress to the pods of the network, as Calico
    /// does in Kubernetes. These are two profiles, so that neither depends on the order in which pods and
    /// other containers are created.
    CreateOpen(String),
}

impl ProfileChoice {
    /// Returns the names of the profiles in the order of evaluation.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        match self {
            Self::None => Vec::new(),
            Self::Use(name) | Self::Create(name) => vec![name.clone()],
            Self::CreateOpen(name) => vec![name.clone(), of_pods(name)],
        }
    }
}

/// Returns the name of the profile that allows all ingress to the pods of a network. It differs from every
/// network name, because these begin with a letter or a digit.
fn of_pods(network: &str) -> String {
    format!("_pods.{network}")
}

/// Content of an endpoint.
#[derive(Debug, Clone)]
pub struct EndpointSpec<'a> {
    /// Key of a workload endpoint.
    pub key: &'a EndpointKey,
    /// Interface on the host.
    pub host_ifname: &'a InterfaceName,
    /// MAC address in the container.
    pub mac: Option<MacAddr>,
    /// Addresses of the endpoint.
    pub addrs: &'a [IpAddr],
    /// Default gateways of the container, which the host proxies.
    pub gateways: &'a [IpAddr],
    /// Profile of the endpoint.
    pub profile: &'a ProfileChoice,
    /// Names of further profiles after it, which other writers maintain.
    pub more_profiles: &'a [String],
    /// Labels of the endpoint.
    pub labels: &'a Labels,
    /// Container id that owns the endpoint.
    pub instance: Option<&'a str>,
}

/// A removed endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removed {
    /// Store revision of the removal.
    pub revision: Revision,
    /// Value before the removal; `None` if it could not be parsed.
    pub endpoint: Option<WorkloadEndpoint>,
}

/// Checks that the store permits plugins to work.
///
/// # Errors
/// [`AttachError::NotReady`] if `Ready` has another value than `true`.
pub async fn ready(store: &dyn Store) -> Result<(), AttachError> {
    let key = Key::Ready.to_string();
    match store.get(&key).await? {
        Some(found) if found.value != b"true" => {
            let value: String = String::from_utf8_lossy(&found.value).chars().take(40).collect();
            Err(AttachError::NotReady(format!("{key} is `{value}`, not `true`")))
        }
        _ => Ok(()),
    }
}

/// Writes the endpoint, and its profile if that must be created, in one transaction. An existing endpoint is
/// replaced, but members of its value that are unknown here are kept. Returns the revision.
///
/// # Errors
/// If the store fails or is frozen, or the profile's name cannot be a tag.
pub async fn write_endpoint(store: &dyn Store, spec: &EndpointSpec<'_>) -> Result<Revision, AttachError> {
    let key = Key::Endpoint(spec.key.clone()).to_string();
    ready(store).await?;
    for _ in 0..TRIES {
        let old = store.get(&key).await?;
        let mut txn = Txn { compare: vec![unchanged(&key, old.as_ref())], ops: Vec::new() };
        txn.ops.push(Op::Put { key: key.clone(), value: value(spec, old.as_ref()), lease: None });
        profiles(store, spec.profile, &mut txn).await?;
        if let Outcome::Committed(revision) = store.commit(txn).await? {
            return Ok(revision);
        }
    }
    Err(busy(&key))
}

/// Removes the endpoint if it belongs to this instance, or to any instance if `instance` is `None`. Returns
/// `None` if there was none. A value that cannot be parsed is removed, too: its owner is unknown, and the
/// container is gone.
///
/// # Errors
/// If the store fails. It never returns [`AttachError::Invalid`]: the endpoint of another instance gives
/// `Ok(Err(..))`.
pub async fn remove_endpoint(
    store: &dyn Store,
    key: &EndpointKey,
    instance: Option<&str>,
) -> Result<Result<Option<Removed>, KeptEndpoint>, AttachError> {
    let key = Key::Endpoint(key.clone()).to_string();
    for _ in 0..TRIES {
        let Some(old) = store.get(&key).await? else { return Ok(Ok(None)) };
        let endpoint = WorkloadEndpoint::parse(&old.value).ok();
        if let Some(instance) = owned_by_other(endpoint.as_ref(), instance) {
            return Ok(Err(KeptEndpoint { instance }));
        }
        let txn = Txn {
            compare: vec![Compare::ModRevision(key.clone(), old.mod_revision)],
            ops: vec![Op::Delete { key: key.clone() }],
        };
        if let Outcome::Committed(revision) = store.commit(txn).await? {
            return Ok(Ok(Some(Removed { revision, endpoint })));
        }
    }
    Err(busy(&key))
}

/// True if the endpoint belongs to another instance now; false if the store is unavailable.
pub(super) async fn is_of_another(store: &dyn Store, key: &EndpointKey, instance: Option<&str>) -> bool {
    let found = store.get(&Key::Endpoint(key.clone()).to_string()).await.ok().flatten();
    let endpoint = found.and_then(|found| WorkloadEndpoint::parse(&found.value).ok());
    owned_by_other(endpoint.as_ref(), instance).is_some()
}

/// Returns the instance that owns the endpoint, unless it is this one.
fn owned_by_other(endpoint: Option<&WorkloadEndpoint>, ours: Option<&str>) -> Option<String> {
    let holder = endpoint?.active_instance_id.as_deref()?;
    (holder != ours?).then(|| holder.to_owned())
}

/// An endpoint that was not removed, because it belongs to another instance now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptEndpoint {
    /// Container id of the owner.
    pub instance: String,
}

/// Deletes the endpoint that [`write_endpoint`] wrote at this revision, unless it was changed since.
pub(super) async fn take_back(store: &dyn Store, key: &EndpointKey, revision: Revision) {
    let key = Key::Endpoint(key.clone()).to_string();
    let txn =
        Txn { compare: vec![Compare::ModRevision(key.clone(), revision)], ops: vec![Op::Delete { key }] };
    let _ = store.commit(txn).await;
}

fn busy(key: &str) -> AttachError {
    AttachError::Timeout(format!("another process keeps changing {key}: try again later"))
}

fn unchanged(key: &str, old: Option<&KeyValue>) -> Compare {
    old.map_or_else(
        || Compare::Absent(key.to_owned()),
        |old| Compare::ModRevision(key.to_owned(), old.mod_revision),
    )
}

fn value(spec: &EndpointSpec<'_>, old: Option<&KeyValue>) -> Vec<u8> {
    let old = old.and_then(|old| WorkloadEndpoint::parse(&old.value).ok());
    let mut endpoint = WorkloadEndpoint::new(spec.host_ifname.clone());
    if let Some(old) = old {
        endpoint.extra = old.extra;
    }
    endpoint.mac = spec.mac;
    let profiles = spec.profile.names().into_iter();
    endpoint.profile_ids = profiles.chain(spec.more_profiles.iter().cloned()).collect();
    let nets = |v4: bool| spec.addrs.iter().filter(|a| a.is_ipv4() == v4).map(|a| Cidr::host(*a)).collect();
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

/// Adds the creation of missing profiles to the transaction.
async fn profiles(store: &dyn Store, spec: &ProfileChoice, txn: &mut Txn) -> Result<(), AttachError> {
    let (network, pods) = match spec {
        ProfileChoice::None | ProfileChoice::Use(_) => return Ok(()),
        ProfileChoice::Create(network) => (network, false),
        ProfileChoice::CreateOpen(network) => (network, true),
    };
    let members = json!({"action": "allow", "src_tag": network});
    create_profile(store, network, &members, Some(network), txn).await?;
    if pods {
        create_profile(store, &of_pods(network), &json!({"action": "allow"}), None, txn).await?;
    }
    Ok(())
}

/// Adds the creation of a profile with this ingress rule and tag to the transaction, unless any part of it
/// exists.
async fn create_profile(
    store: &dyn Store,
    name: &str,
    inbound: &Value,
    tag: Option<&str>,
    txn: &mut Txn,
) -> Result<(), AttachError> {
    let of = |part| Key::Profile { name: name.to_owned(), part };
    let (rules, tags) = (of(ProfilePart::Rules), of(ProfilePart::Tags));
    // If any part exists, another writer has created the profile.
    for key in [&rules, &tags, &of(ProfilePart::Labels)] {
        if store.get(&key.to_string()).await?.is_some() {
            return Ok(());
        }
    }
    let rules_value = json!({"inbound_rules": [inbound], "outbound_rules": [{"action": "allow"}]});
    let tags_value = tag.map(|tag| json!([tag]));
    for (key, value) in [(rules, Some(rules_value)), (tags, tags_value)] {
        let Some(value) = value else { continue };
        let resource = Resource::parse(&key, value.to_string().as_bytes()).map_err(|error| {
            AttachError::Invalid(format!("the network's name `{name}` cannot be a profile's: {error}"))
        })?;
        let key = key.to_string();
        txn.compare.push(Compare::Absent(key.clone()));
        txn.ops.push(Op::Put { key, value: resource.to_value(), lease: None });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use tortie_store::sqlite::SqliteStore;

    /// Profiles of the first, second and further endpoints of a network.
    fn arrivals() -> Vec<(&'static str, ProfileChoice)> {
        let network = || "net".to_owned();
        vec![
            ("pod", ProfileChoice::CreateOpen(network())),
            ("container", ProfileChoice::Create(network())),
            ("policy", ProfileChoice::Use("k8s_ns.prod".to_owned())),
            ("pod-2", ProfileChoice::CreateOpen(network())),
        ]
    }

    async fn arrive(store: &dyn Store, name: &str, profile: &ProfileChoice) {
        let key = EndpointKey::Workload {
            host: "h1".to_owned(),
            orchestrator: "cni".to_owned(),
            workload: name.to_owned(),
            endpoint: "eth0".to_owned(),
        };
        let spec = EndpointSpec {
            key: &key,
            host_ifname: &"cali1".parse().unwrap(),
            mac: None,
            addrs: &[],
            gateways: &[],
            profile,
            more_profiles: &[],
            labels: &Labels::new(),
            instance: None,
        };
        write_endpoint(store, &spec).await.unwrap();
    }

    /// Returns all permutations of a list.
    fn orders<T: Clone>(of: &[T]) -> Vec<Vec<T>> {
        if of.is_empty() {
            return vec![Vec::new()];
        }
        let first = |at: usize| {
            let mut rest = of.to_vec();
            let first = rest.remove(at);
            orders(&rest).into_iter().map(move |mut order| {
                order.insert(0, first.clone());
                order
            })
        };
        (0..of.len()).flat_map(first).collect()
    }

    #[tokio::test]
    async fn the_profiles_of_a_network_do_not_depend_on_who_came_first() {
        let mut ends: BTreeSet<BTreeMap<String, String>> = BTreeSet::new();
        let all = orders(&arrivals());
        for order in &all {
            let dir = tempfile::tempdir().unwrap();
            let store = SqliteStore::open(&dir.path().join("store.db"), true).await.unwrap();
            for (name, profile) in order {
                arrive(&store, name, profile).await;
            }
            let entries = store.list(&["/calico/".to_owned()]).await.unwrap().entries;
            let text = |kv: KeyValue| (kv.key, String::from_utf8(kv.value).unwrap());
            ends.insert(entries.into_iter().map(text).collect());
        }
        assert_eq!(ends.len(), 1, "{ends:#?}");
        let end = ends.pop_first().unwrap();
        let value = |key: &str| -> Value { serde_json::from_str(&end[key]).unwrap() };
        assert_eq!(
            value("/calico/v1/policy/profile/net/rules")["inbound_rules"],
            json!([{"action": "allow", "src_tag": "net"}])
        );
        assert_eq!(
            value("/calico/v1/policy/profile/_pods.net/rules")["inbound_rules"],
            json!([{"action": "allow"}])
        );
        let profiles = |workload: &str| {
            value(&format!("/calico/v1/host/h1/workload/cni/{workload}/endpoint/eth0"))["profile_ids"].clone()
        };
        assert_eq!(profiles("pod"), json!(["net", "_pods.net"]));
        assert_eq!(profiles("container"), json!(["net"]));
        println!("{} orders of {} endpoints, one end", all.len(), arrivals().len());
    }
}
