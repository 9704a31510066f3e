//! Writes the endpoint and its profile to the store, and removes the endpoint. The transactions are
//! [`tortie_engine::writer`]'s.

use tortie_config::Dialect;
use tortie_config::calico3::write::Birth;
use tortie_config::key::EndpointKey;
use tortie_config::resource::WorkloadEndpoint;
use tortie_engine::writer::{
    EndpointError, EndpointSpec, Removal, StoredEndpoint, Writer, birth, owned_by_other,
};

use super::error::AttachError;
use tortie_store::{Compare, Op, Outcome, Revision, Store, StoreError, Txn};

/// Maximum number of attempts if concurrent writes make the transaction fail.
const TRIES: usize = 20;

/// An endpoint that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// Key that the agent's model has for it.
    pub model_key: EndpointKey,
    /// Store revision from which on it is as written.
    pub revision: Revision,
}

/// A removed endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removed {
    /// Key that the agent's model had for it.
    pub model_key: EndpointKey,
    /// Store revision of the removal.
    pub revision: Revision,
    /// Value before the removal; `None` if it could not be parsed.
    pub endpoint: Option<WorkloadEndpoint>,
}

/// An endpoint that was not removed, because it belongs to another instance now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptEndpoint {
    /// Container id of the owner.
    pub instance: String,
}

/// Returns the writer for the dialect of a store.
///
/// # Errors
/// If the store cannot be read.
pub async fn writer(store: &dyn Store) -> Result<Writer, StoreError> {
    Ok(Writer::of(store.dialect().await?))
}

/// Returns what a new object of Calico 3 gets.
pub(super) fn new_birth() -> Birth {
    birth(rand::random(), jiff::Timestamp::now())
}

/// Checks that the store permits plugins to work.
///
/// # Errors
/// [`AttachError::NotReady`] if `Ready` of a v1 store has another value than `true`, or the ClusterInformation
/// of a Calico 3 store is absent or does not say `datastoreReady: true`.
pub async fn ready(store: &dyn Store) -> Result<(), AttachError> {
    ready_for(store, writer(store).await?).await
}

/// Checks that the store permits plugins to remove what they wrote. A v1 store always does; a Calico 3 cluster
/// that is not ready is being upgraded or moved, and what is removed meanwhile may come back.
///
/// # Errors
/// As [`ready`].
pub async fn may_remove(store: &dyn Store) -> Result<(), AttachError> {
    match writer(store).await? {
        writer if writer.dialect() == Dialect::V3 => ready_for(store, writer).await,
        _ => Ok(()),
    }
}

async fn ready_for(store: &dyn Store, writer: Writer) -> Result<(), AttachError> {
    let found = store.get(&writer.ready_key()).await?;
    writer.check_ready(found.as_ref().map(|found| found.value.as_slice())).map_err(AttachError::NotReady)
}

/// Writes the endpoint, and its profile if that must be created, in one transaction. An existing endpoint is
/// replaced, but members of its value that are unknown here are kept.
///
/// # Errors
/// If the store fails or is frozen, or a name has no form in the store.
pub async fn write_endpoint(store: &dyn Store, spec: &EndpointSpec<'_>) -> Result<Written, AttachError> {
    let writer = writer(store).await?;
    ready_for(store, writer).await?;
    let reads = writer.endpoint_reads(spec)?;
    let model_key = writer.model_key(spec.key);
    for _ in 0..TRIES {
        let stored = store.get_many(&reads).await?;
        let Some(txn) = writer.endpoint(spec, &stored, &mut new_birth)? else {
            let revision = stored.first().and_then(Option::as_ref).map_or(0, |stored| stored.mod_revision);
            return Ok(Written { model_key, revision });
        };
        if let Outcome::Committed(revision) = store.commit(txn).await? {
            return Ok(Written { model_key, revision });
        }
    }
    Err(busy(&writer.endpoint_key(spec.key)?))
}

/// Gives an endpoint these profiles, named as in the store. If it is gone or has another first profile, another
/// call has changed it meanwhile, and nothing is written.
///
/// # Errors
/// If the store fails, or the stored value cannot be parsed.
pub async fn write_profiles(
    store: &dyn Store,
    key: &EndpointKey,
    names: &[String],
) -> Result<(), AttachError> {
    let writer = writer(store).await?;
    let Some(stored) = store.get(&writer.endpoint_key(key)?).await? else { return Ok(()) };
    let read = writer.read_endpoint(&stored).and_then(|read| read.endpoint.ok());
    if read.is_none_or(|read| read.profile_ids.first() != names.first()) {
        return Ok(());
    }
    if let Some(txn) = writer.endpoint_profiles(key, &stored, names, &new_birth())? {
        // A conflict is ignored: the call that wrote meanwhile updates the profiles, too.
        store.commit(txn).await?;
    }
    Ok(())
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
    let writer = writer(store).await?;
    // With a name that the store cannot have, nothing was written.
    let Ok(stored_key) = writer.endpoint_key(key) else { return Ok(Ok(None)) };
    for _ in 0..TRIES {
        let Some(old) = store.get(&stored_key).await? else { return Ok(Ok(None)) };
        let txn = match writer.remove_endpoint(&old, instance) {
            Removal::Kept(instance) => return Ok(Err(KeptEndpoint { instance })),
            Removal::Remove(txn) => txn,
        };
        if let Outcome::Committed(revision) = store.commit(txn).await? {
            let model_key = writer.model_key(key);
            let endpoint = writer.read_endpoint(&old).and_then(|read| read.endpoint.ok());
            return Ok(Ok(Some(Removed { model_key, revision, endpoint })));
        }
    }
    Err(busy(&stored_key))
}

/// Returns the endpoint with this key; `None` if there is none.
///
/// # Errors
/// If the store cannot be read.
pub async fn stored_endpoint(
    store: &dyn Store,
    key: &EndpointKey,
) -> Result<Option<StoredEndpoint>, AttachError> {
    let writer = writer(store).await?;
    let Ok(key) = writer.endpoint_key(key) else { return Ok(None) };
    Ok(store.get(&key).await?.and_then(|entry| writer.read_endpoint(&entry)))
}

/// Returns the workload endpoints of a host.
///
/// # Errors
/// If the store cannot be read.
pub async fn stored_endpoints(store: &dyn Store, host: &str) -> Result<Vec<StoredEndpoint>, StoreError> {
    let writer = writer(store).await?;
    let prefix = writer.endpoints_prefix(host);
    if writer.dialect() == Dialect::V1 {
        let all = store.list(&[prefix]).await?.entries;
        return Ok(all.iter().filter_map(|entry| writer.read_endpoint(entry)).collect());
    }
    // There, the prefix lists the endpoints of all hosts, so that only their names are read first.
    let mut keys = store.names(&[prefix]).await?;
    keys.retain(|key| writer.stored_key(key).is_some_and(|key| key.host() == host));
    let entries = store.get_many(&keys).await?;
    Ok(entries.iter().flatten().filter_map(|entry| writer.read_endpoint(entry)).collect())
}

/// True if the endpoint belongs to another instance now; false if the store is unavailable.
pub(super) async fn is_of_another(store: &dyn Store, key: &EndpointKey, instance: Option<&str>) -> bool {
    let found = stored_endpoint(store, key).await.ok().flatten();
    found.is_some_and(|found| owned_by_other(&found, instance).is_some())
}

/// Deletes the endpoint that [`write_endpoint`] wrote at this revision, unless it was changed since.
pub(super) async fn take_back(store: &dyn Store, key: &EndpointKey, revision: Revision) {
    let Ok(writer) = writer(store).await else { return };
    let Ok(key) = writer.endpoint_key(key) else { return };
    let txn =
        Txn { compare: vec![Compare::ModRevision(key.clone(), revision)], ops: vec![Op::Delete { key }] };
    let _ = store.commit(txn).await;
}

fn busy(key: &str) -> AttachError {
    AttachError::Timeout(format!("another process keeps changing {key}: try again later"))
}

impl From<EndpointError> for AttachError {
    fn from(error: EndpointError) -> Self {
        match error {
            EndpointError::Invalid { .. } => Self::Invalid(error.to_string()),
            EndpointError::Unreadable { key, why } => Self::Unreadable { key, why },
        }
    }
}
