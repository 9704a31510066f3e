//! Node registration: at start the agent registers its own host in the store, as Calico's node start-up does.
//! [`Writer`] decides what is written; this module reads, commits, and repeats after a concurrent write.

use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use tortie_config::key::Key;

use tortie_engine::writer::{Registration, WriteError, Writer, birth};
use tortie_store::{Outcome, Purpose, Store, StoreError};

/// Number of attempts against other writers of the same keys.
const ATTEMPTS: u32 = 5;
/// Delay of the next attempt to create what says that the store is ready.
const RETRY: Duration = Duration::from_secs(5);

/// Reason why the host is not registered.
#[derive(Debug, thiserror::Error)]
pub(in crate::agent) enum RegisterError {
    /// The store cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A stored value must not be replaced.
    #[error(transparent)]
    Value(#[from] WriteError),
    /// Other programs write the same keys.
    #[error("other processes write the same keys all the time")]
    Busy,
}

/// Returns an error text if one of these hosts, which have the same address, has a running agent, as shown by
/// its leased status key.
pub(in crate::agent) async fn running_conflict(
    store: &dyn Store,
    address_conflicts: &[(IpAddr, String)],
) -> Option<String> {
    for (addr, host) in address_conflicts {
        let key = Key::TortieStatus { host: host.clone() }.to_string();
        if matches!(store.get(&key).await, Ok(Some(_))) {
            return Some(format!(
                "the running host {host} also has the address {addr}: give this host another one with --ip4 \
                 or --ip6, or stop the other agent"
            ));
        }
    }
    None
}

/// Registers the host: reads the stored values and writes the missing ones. Returns the number of keys that
/// were written.
pub(in crate::agent) async fn register(
    store: &dyn Store,
    registration: &Registration,
) -> Result<usize, RegisterError> {
    store.may_write(Purpose::Agent).await?;
    for _ in 0..ATTEMPTS {
        let writer = Writer::of(store.dialect().await?);
        let stored = store.get_many(&writer.registration_keys(&registration.node)).await?;
        let birth = birth(rand::random(), Timestamp::now());
        let Some(txn) = writer.register(registration, &stored, &birth)? else { return Ok(0) };
        let keys = txn.ops.len();
        if let Outcome::Committed(_) = store.commit(txn).await? {
            return Ok(keys);
        }
    }
    Err(RegisterError::Busy)
}

/// Creates what says that a Calico 3 store is ready, unless another host was faster; repeats until the store
/// answers.
pub(in crate::agent) async fn create_cluster(store: &dyn Store) {
    let mut reported = false;
    loop {
        match try_create_cluster(store).await {
            Ok(()) => return,
            Err(error) if !reported => {
                reported = true;
                tracing::warn!(target: "tortie", "the ClusterInformation, which says that the store is ready, \
                                                  cannot be created: {error}");
            }
            Err(error) => {
                tracing::debug!(target: "tortie", "the ClusterInformation cannot be created: {error}")
            }
        }
        tokio::time::sleep(RETRY).await;
    }
}

async fn try_create_cluster(store: &dyn Store) -> Result<(), StoreError> {
    let writer = Writer::of(store.dialect().await?);
    let birth = birth(rand::random(), Timestamp::now());
    let guid = format!("{:032x}", rand::random::<u128>());
    let Some((key, txn)) = writer.cluster(&guid, &birth) else { return Ok(()) };
    if let Outcome::Committed(_) = store.commit(txn).await? {
        tracing::info!(target: "tortie", "this store had no ClusterInformation, which says that it is ready: \
                                          {key} is written");
    }
    Ok(())
}
