//! The store of the data model: the [`Store`] trait with two implementations of equal semantics, SQLite and
//! etcd.
//!
//! It lists keys at one revision, watches from a revision, commits compare-and-set transactions over several
//! keys, and manages leases. It knows no resources (values are bytes), keeps no model and makes no decisions.
//!
//! ```text
//! sqlite | etcd --Store--> feed.rs: snapshot, then deltas; reconnects, relists, reports outages --> agent
//! ```

#![warn(missing_docs)]

pub mod cache;
mod calico_address;
mod data_model;
#[cfg(feature = "etcd")]
pub mod etcd;
pub mod feed;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
mod metered;
mod octets;
mod open_store;
mod options;
mod read_file;
pub mod schema;
pub mod sqlite;
mod txn;
mod writer_lock;

use std::time::Duration;

use tortie_config::Dialect;

pub use cache::{Cache, Cached};
pub use calico_address::{
    CALICO_ENVIRONMENT, CALICOCTL_FILE, CalicoAddress, CalicoNames, FELIX_FILE, etcd_url,
};
pub use data_model::{CALICO_3, CALICO_3_NEXT, DataModel, Purpose};
pub use feed::{Feed, FeedEvent, FeedOptions};
pub use metered::{Metered, Requests};
pub use open_store::open;
pub use options::{DEFAULT_URL, StoreFiles, StoreOptions, StoreUrl};
pub use read_file::read_file;
pub use txn::{MAX_TXN_BYTES, disjoint_prefixes, prefix_end, split};

/// A store revision: it increases with every committed transaction and is never 0 for a written key.
pub type Revision = u64;

/// Identifier of a lease; keys attached to it are deleted when it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct LeaseId(pub i64);

/// One key with its value.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct KeyValue {
    /// The full key, such as `/calico/v1/Ready`.
    pub key: String,
    /// The value as stored.
    #[serde(with = "octets")]
    pub value: Vec<u8>,
    /// Revision of the last write of this key.
    pub mod_revision: Revision,
    /// Revision of the write that created this key.
    pub create_revision: Revision,
}

/// All keys of some prefixes at one revision.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Snapshot {
    /// The revision of the snapshot.
    pub revision: Revision,
    /// Identity of the store (etcd: cluster ID; SQLite: random at creation); another value means another
    /// store.
    pub store_id: String,
    /// Raft term of the answer; 0 if the store has none.
    pub term: u64,
    /// The entries, in the order of their keys.
    pub entries: Vec<KeyValue>,
}

impl Snapshot {
    /// Returns the history to which the revision belongs.
    #[must_use]
    pub fn history(&self) -> History {
        History { store_id: self.store_id.clone(), term: self.term }
    }
}

/// The history to which revisions belong. An etcd cluster that was recreated after a loss of data, or
/// restored from a backup, may have the same ID and reach the same revisions again. Its Raft term starts
/// anew, and never decreases within one history.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    /// Identity of the store, as in [`Snapshot::store_id`].
    pub store_id: String,
    /// Raft term, as in [`Snapshot::term`].
    pub term: u64,
}

impl History {
    /// Returns true if a later answer belongs to the same history.
    #[must_use]
    pub fn goes_on_in(&self, later: &Self) -> bool {
        self.store_id == later.store_id && self.term <= later.term
    }
}

/// Result of [`Store::read`]: the values of the keys, and the entries in the prefixes.
pub type Read = (Vec<Option<KeyValue>>, Snapshot);

/// One change of one key.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Change {
    /// The key was written.
    Put(KeyValue),
    /// The key was deleted, or its lease ended.
    Delete {
        /// The full key.
        key: String,
    },
}

impl Change {
    /// Returns the changed key.
    #[must_use]
    pub fn key(&self) -> &str {
        match self {
            Self::Put(kv) => &kv.key,
            Self::Delete { key } => key,
        }
    }
}

/// The changes of one committed transaction that lie in the watched prefixes.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Delta {
    /// The revision of the transaction.
    pub revision: Revision,
    /// The changes, in the order of the transaction.
    pub changes: Vec<Change>,
}

/// A condition of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Compare {
    /// The key does not exist.
    Absent(String),
    /// The key exists.
    Present(String),
    /// The key's last write was this revision.
    ModRevision(String, Revision),
    /// The key exists with this value.
    Value(String, Vec<u8>),
}

/// A write of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Writes one key.
    Put {
        /// The full key.
        key: String,
        /// The value to store.
        value: Vec<u8>,
        /// The lease to which the key is attached, if any.
        lease: Option<LeaseId>,
    },
    /// Deletes one key; no error if it does not exist.
    Delete {
        /// The full key.
        key: String,
    },
    /// Deletes all keys with this prefix.
    DeletePrefix {
        /// The prefix, matched as text.
        prefix: String,
    },
}

/// A transaction: if every condition holds, all writes are committed at one revision; otherwise none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Txn {
    /// Conditions, all of which must hold.
    pub compare: Vec<Compare>,
    /// Writes, at most [`MAX_TXN_OPS`], with no key twice.
    pub ops: Vec<Op>,
}

/// Maximum number of operations in a transaction, etcd's default; both stores refuse more.
pub const MAX_TXN_OPS: usize = 128;

/// Result of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Committed, at this revision.
    Committed(Revision),
    /// A condition did not hold; nothing was written.
    Conflict,
}

/// Event of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchEvent {
    /// A transaction changed keys in a watched prefix.
    Delta(Delta),
    /// Nothing in the watched prefixes changed up to this revision (proof of freshness).
    Progress(Revision),
    /// History from the requested revision on is no longer kept, so the caller must list again. The watch is
    /// over.
    Compacted {
        /// The oldest revision from which a watch can start.
        oldest: Revision,
    },
}

/// A running watch. Dropping it ends it.
#[async_trait::async_trait]
pub trait Watch: Send {
    /// Waits for the next event. Cancel-safe.
    ///
    /// # Errors
    /// The store is unreachable; the watch is over.
    async fn next(&mut self) -> Result<WatchEvent, StoreError>;
}

/// Adds a condition that never holds: a store checks permissions and free space before it checks conditions.
fn rehearsal(txn: &Txn) -> Txn {
    let mut rehearsed = txn.clone();
    let key = txn.ops.first().map(|op| op.key().to_owned());
    rehearsed.compare.extend(key.map(|key| Compare::ModRevision(key, i64::MAX.unsigned_abs())));
    rehearsed
}

/// A store. Cheap to share in an `Arc`; calls may run concurrently.
#[async_trait::async_trait]
pub trait Store: Send + Sync {
    /// Reads one key.
    async fn get(&self, key: &str) -> Result<Option<KeyValue>, StoreError>;
    /// Reads several keys, in their order; not necessarily at one revision.
    async fn get_many(&self, keys: &[String]) -> Result<Vec<Option<KeyValue>>, StoreError> {
        futures_util::future::try_join_all(keys.iter().map(|key| self.get(key))).await
    }
    /// Lists the keys with any of these prefixes, in order, without their values, which may be a hundred
    /// times as large.
    async fn names(&self, prefixes: &[String]) -> Result<Vec<String>, StoreError> {
        Ok(self.list(prefixes).await?.entries.into_iter().map(|kv| kv.key).collect())
    }
    /// Returns true if any key has this prefix. Reads at most one key.
    async fn exists(&self, prefix: &str) -> Result<bool, StoreError> {
        Ok(!self.names(&[prefix.to_owned()]).await?.is_empty())
    }
    /// Checks that a part of this program may write the store: returns [`StoreError::Guarded`] if it does not
    /// know the store's data model, or [`StoreError::Unusable`]. Each part asks before it writes.
    async fn may_write(&self, _purpose: Purpose) -> Result<(), StoreError> {
        Ok(())
    }
    /// Returns the data model of the store, which decides how the keys that both models have are written.
    ///
    /// # Errors
    /// The store cannot be read.
    async fn dialect(&self) -> Result<Dialect, StoreError> {
        Ok(Dialect::V1)
    }
    /// Reads keys and prefixes together: the values in the order of the keys, then the entries as
    /// [`Store::list`] returns them. At one revision if both fit into one call of the store.
    async fn read(&self, keys: &[String], prefixes: &[String]) -> Result<Read, StoreError> {
        let values = async { if keys.is_empty() { Ok(Vec::new()) } else { self.get_many(keys).await } };
        let listed =
            async { if prefixes.is_empty() { Ok(Snapshot::default()) } else { self.list(prefixes).await } };
        futures_util::future::try_join(values, listed).await
    }
    /// Waits for the per-host writer lock, which keeps processes that read, decide and write from failing
    /// each other's conditions. The lock is advisory: correctness does not depend on it, and a store may have
    /// none.
    async fn writer_lock(&self) -> Option<WriterLock> {
        None
    }
    /// Reads all keys with any of these prefixes, at one revision.
    async fn list(&self, prefixes: &[String]) -> Result<Snapshot, StoreError>;
    /// Watches these prefixes for changes after `after`, a revision returned by [`Store::list`]. `of` is the
    /// history of that revision; in a store with another history the first event is
    /// [`WatchEvent::Compacted`]. With `None` any history is accepted.
    async fn watch(
        &self,
        prefixes: &[String],
        after: Revision,
        of: Option<&History>,
    ) -> Result<Box<dyn Watch>, StoreError>;
    /// Commits one transaction. It is durable once this returns.
    async fn commit(&self, txn: Txn) -> Result<Outcome, StoreError>;
    /// Checks that the store would accept these writes now, without carrying them out. Returns the error if
    /// the store is full or the user may not write.
    async fn rehearse(&self, txn: &Txn) -> Result<(), StoreError> {
        self.commit(rehearsal(txn)).await.map(drop)
    }
    /// Commits as [`Store::commit`] does and releases the writer lock as soon as other processes can read the
    /// writes, which may be before they are durable. The lock is kept after a conflict, and by a store that
    /// cannot detect that moment.
    async fn commit_locked(
        &self,
        txn: Txn,
        writer_lock: &mut Option<WriterLock>,
    ) -> Result<Outcome, StoreError> {
        let _ = writer_lock;
        self.commit(txn).await
    }
    /// Creates a lease that ends `ttl` after the last [`Store::keep_alive`].
    async fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreError>;
    /// Renews a lease; `false` if it has already ended.
    async fn keep_alive(&self, lease: LeaseId) -> Result<bool, StoreError>;
    /// Ends a lease and deletes its keys.
    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError>;
    /// Discards history below `revision`.
    async fn compact(&self, revision: Revision) -> Result<(), StoreError>;
    /// Performs maintenance; an agent calls it about once per minute. SQLite removes expired keys and history
    /// beyond [`sqlite::HISTORY_REVISIONS`] and checkpoints its write-ahead log; etcd does its own
    /// maintenance.
    async fn maintain(&self) -> Result<(), StoreError> {
        Ok(())
    }
    /// Reads the whole store and checks it for damage, in bounded time. Only SQLite does; etcd checks its own
    /// data.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] with the fault.
    async fn verify(&self) -> Result<(), StoreError> {
        Ok(())
    }
    /// Returns a description for people, `sqlite:/path` or `etcd://host:port,...`; it contains no secret.
    fn describe(&self) -> String;
}

/// The per-host writer lock, acquired by [`Store::writer_lock`] and released on drop.
pub struct WriterLock(Box<dyn std::any::Any + Send + Sync>);

impl WriterLock {
    /// Wraps a lock that is released when `held` is dropped.
    #[must_use]
    pub fn new(held: impl std::any::Any + Send + Sync) -> Self {
        Self(Box::new(held))
    }
}

impl std::fmt::Debug for WriterLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Turn").field(&self.0.type_id()).finish()
    }
}

/// Failure of a store call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, serde::Serialize, serde::Deserialize)]
pub enum StoreError {
    /// The store is not reachable now; retry later.
    #[error("the store is unreachable: {0}")]
    Unreachable(String),
    /// The call can never succeed as it is: too many operations, a value too large, a key twice.
    #[error("refused: {0}")]
    Refused(String),
    /// The lease of a written key has ended; create a new one.
    #[error("lease {:x} has ended", .0.0)]
    LeaseEnded(LeaseId),
    /// The store answers but accepts no writes until an operator acts: its disk or its quota is full.
    #[error("the store answers and rejects writes: {0}")]
    Unwritable(String),
    /// The user has no right to do this.
    #[error("the store denies access: {0}")]
    PermissionDenied(String),
    /// The store uses a data model that this part of the program does not write.
    #[error("{0}")]
    Guarded(String),
    /// The store itself is unusable: newer schema, no store at all, network file system.
    #[error("{0}")]
    Unusable(String),
    /// The database file is damaged; nothing is written into it until another file takes its place.
    #[error("{0}")]
    Damaged(String),
}
