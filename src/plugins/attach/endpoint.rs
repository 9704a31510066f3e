//! The endpoint in the store, with the profile that it needs.

use std::net::IpAddr;

use serde_json::json;
use tortie_config::key::{EndpointKey, Key, ProfilePart};
use tortie_config::resource::{InterfaceName, Labels, MacAddr, Resource, WorkloadEndpoint};
use tortie_net::Cidr;

use super::error::AttachError;
use tortie_store::{Compare, KeyValue, Op, Outcome, Revision, Store, Txn};

/// How often a transaction that somebody came between is tried again.
const TRIES: usize = 20;

/// The profile of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProfileChoice {
    /// None: only policies let traffic through.
    None,
    /// This one, which others write.
    Use(String),
    /// This one; if it does not exist it is made: everything out, in from endpoints that have it. One that exists is
    /// never changed.
    Create(String),
    /// The same, but everything may come in (what Calico does under Kubernetes).
    CreateOpen(String),
}

impl ProfileChoice {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::None => None,
            Self::Use(name) | Self::Create(name) | Self::CreateOpen(name) => Some(name),
        }
    }
}

/// What the endpoint says.
#[derive(Debug, Clone)]
pub struct EndpointSpec<'a> {
    /// A workload's.
    pub key: &'a EndpointKey,
    /// The interface on the host.
    pub host_ifname: &'a InterfaceName,
    /// The MAC address in the container.
    pub mac: Option<MacAddr>,
    /// Its addresses.
    pub addrs: &'a [IpAddr],
    /// What it sends to instead of routers.
    pub gateways: &'a [IpAddr],
    /// Its profile.
    pub profile: &'a ProfileChoice,
    /// Profiles behind it, which others write.
    pub more_profiles: &'a [String],
    /// Its labels.
    pub labels: &'a Labels,
    /// Container id.
    pub instance: Option<&'a str>,
}

/// An endpoint that was removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removed {
    /// The revision at which it went.
    pub revision: Revision,
    /// What it was; `None`: its value could not be read.
    pub endpoint: Option<WorkloadEndpoint>,
}

/// Whether the store lets plugins work.
///
/// # Errors
/// [`AttachError::NotReady`] when `Ready` has another value than `true`.
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

/// Writes the endpoint and, where it has to be made, its profile: both or none. An endpoint that is there is replaced;
/// fields of it that nobody knows are kept. Gives the revision.
///
/// # Errors
/// When the store fails, is frozen, or the profile's name cannot be a tag.
pub async fn write_endpoint(store: &dyn Store, spec: &EndpointSpec<'_>) -> Result<Revision, AttachError> {
    let key = Key::Endpoint(spec.key.clone()).to_string();
    ready(store).await?;
    for _ in 0..TRIES {
        let old = store.get(&key).await?;
        let mut txn = Txn { compare: vec![unchanged(&key, old.as_ref())], ops: Vec::new() };
        txn.ops.push(Op::Put { key: key.clone(), value: value(spec, old.as_ref()), lease: None });
        profile(store, spec.profile, &mut txn).await?;
        if let Outcome::Committed(revision) = store.commit(txn).await? {
            return Ok(revision);
        }
    }
    Err(busy(&key))
}

/// Removes the endpoint, if it is this instance's (`None`: whoever's). `None`: it was not there. A value that cannot be
/// read goes, too: nobody can tell whose it is, and its container is gone.
///
/// # Errors
/// When the store fails. [`AttachError::Invalid`] is never an answer: another instance's endpoint gives `Ok(Err(..))`.
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

/// Whether the endpoint is another instance's by now. A store that is away says no.
pub(super) async fn is_of_another(store: &dyn Store, key: &EndpointKey, instance: Option<&str>) -> bool {
    let found = store.get(&Key::Endpoint(key.clone()).to_string()).await.ok().flatten();
    let endpoint = found.and_then(|found| WorkloadEndpoint::parse(&found.value).ok());
    owned_by_other(endpoint.as_ref(), instance).is_some()
}

/// The instance that has an endpoint, if it is not this one.
fn owned_by_other(endpoint: Option<&WorkloadEndpoint>, ours: Option<&str>) -> Option<String> {
    let holder = endpoint?.active_instance_id.as_deref()?;
    (holder != ours?).then(|| holder.to_owned())
}

/// An endpoint that was left, because it is another instance's now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptEndpoint {
    /// The container that has it.
    pub instance: String,
}

/// Takes back what [`write_endpoint`] wrote at this revision, unless somebody has changed it since.
pub(super) async fn take_back(store: &dyn Store, key: &EndpointKey, revision: Revision) {
    let key = Key::Endpoint(key.clone()).to_string();
    let txn =
        Txn { compare: vec![Compare::ModRevision(key.clone(), revision)], ops: vec![Op::Delete { key }] };
    let _ = store.commit(txn).await;
}

fn busy(key: &str) -> AttachError {
    AttachError::Timeout(format!("{key} is changed again and again by another process: try again later"))
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
    let profiles = spec.profile.name().map(str::to_owned).into_iter();
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

/// Adds to the transaction what it takes that the profile exists.
async fn profile(store: &dyn Store, spec: &ProfileChoice, txn: &mut Txn) -> Result<(), AttachError> {
    let (name, open) = match spec {
        ProfileChoice::None | ProfileChoice::Use(_) => return Ok(()),
        ProfileChoice::Create(name) => (name, false),
        ProfileChoice::CreateOpen(name) => (name, true),
    };
    let of = |part| Key::Profile { name: name.clone(), part };
    let (rules, tags) = (of(ProfilePart::Rules), of(ProfilePart::Tags));
    // Whichever part is there: somebody has made it.
    for key in [&rules, &tags, &of(ProfilePart::Labels)] {
        if store.get(&key.to_string()).await?.is_some() {
            return Ok(());
        }
    }
    let inbound = if open { json!({"action": "allow"}) } else { json!({"action": "allow", "src_tag": name}) };
    let values = [
        (rules, json!({"inbound_rules": [inbound], "outbound_rules": [{"action": "allow"}]})),
        (tags, json!([name])),
    ];
    for (key, value) in values {
        let resource = Resource::parse(&key, value.to_string().as_bytes()).map_err(|error| {
            AttachError::Invalid(format!("the network's name `{name}` cannot be a profile's: {error}"))
        })?;
        let key = key.to_string();
        txn.compare.push(Compare::Absent(key.clone()));
        txn.ops.push(Op::Put { key, value: resource.to_value(), lease: None });
    }
    Ok(())
}
