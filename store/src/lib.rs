//! The store of the data model: one trait, two real stores with one meaning.
//!
//! What it does: list at one revision, watch from a revision, compare-and-set transactions over several keys, leases.
//! What it does not: it knows no resource (values are bytes), keeps no model, decides nothing.
//!
//! ```text
//!  sqlite.rs | etcd.rs  --Store-->  feed.rs: snapshot, then deltas; reconnects, relists, says when it is away  --> agent
//! ```

#![warn(missing_docs)]

pub mod cache;
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

pub use cache::{Cache, Cached};
pub use data_model::{CALICO_3, CALICO_3_NEXT, DataModel, calico_3_refusal};
pub use feed::{Feed, FeedEvent, FeedOptions};
pub use metered::{Metered, Requests};
pub use open_store::open;
pub use options::{DEFAULT_URL, StoreFiles, StoreOptions, StoreUrl};
pub use read_file::read_file;
pub use txn::{MAX_TXN_BYTES, disjoint_prefixes, prefix_end, split};

/// A store revision: grows with every committed transaction, never 0 for a written key.
pub type Revision = u64;

/// A lease of the store; keys that carry it vanish when it ends.
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
    /// The revision at which this was read.
    pub revision: Revision,
    /// Identity of the store (etcd: cluster id; SQLite: random at creation): another value is another store.
    pub store_id: String,
    /// Raft term of the answer; 0 where the store has none.
    pub term: u64,
    /// In key order.
    pub entries: Vec<KeyValue>,
}

impl Snapshot {
    /// What the revision is one of.
    #[must_use]
    pub fn history(&self) -> History {
        History { store_id: self.store_id.clone(), term: self.term }
    }
}

/// What a revision is one of. An etcd cluster that lost its data and was set up anew, or was restored from a copy, has the
/// same id and may have as many revisions again; the term of its elections begins anew, and never falls in one history.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    /// As [`Snapshot::store_id`].
    pub store_id: String,
    /// As [`Snapshot::term`].
    pub term: u64,
}

impl History {
    /// Whether a later answer is of the same history.
    #[must_use]
    pub fn goes_on_in(&self, later: &Self) -> bool {
        self.store_id == later.store_id && self.term <= later.term
    }
}

/// What [`Store::read`] gives: the values of the keys, and the list of the prefixes.
pub type Read = (Vec<Option<KeyValue>>, Snapshot);

/// One change of one key.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Change {
    /// Written.
    Put(KeyValue),
    /// Gone: deleted, or its lease ended.
    Delete {
        /// The full key.
        key: String,
    },
}

impl Change {
    /// The key that changed.
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
    /// In the order of the transaction.
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
    /// Write one key.
    Put {
        /// The full key.
        key: String,
        /// The value.
        value: Vec<u8>,
        /// The lease that the key lives with.
        lease: Option<LeaseId>,
    },
    /// Delete one key; no error when absent.
    Delete {
        /// The full key.
        key: String,
    },
    /// Delete all keys with this prefix.
    DeletePrefix {
        /// The prefix.
        prefix: String,
    },
}

/// All or nothing: when every condition holds, every write happens at one revision.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Txn {
    /// Conditions.
    pub compare: Vec<Compare>,
    /// Writes, at most [`MAX_TXN_OPS`]; no key twice.
    pub ops: Vec<Op>,
}

/// etcd's default limit of operations in a transaction; both stores refuse more.
pub const MAX_TXN_OPS: usize = 128;

/// What became of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Done, at this revision.
    Committed(Revision),
    /// A condition did not hold; nothing was written.
    Conflict,
}

/// What a watch brings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchEvent {
    /// A transaction touched a watched prefix.
    Delta(Delta),
    /// Nothing in the watched prefixes changed up to this revision (proof of freshness).
    Progress(Revision),
    /// The history from the asked revision is gone: list again. The watch is over.
    Compacted {
        /// The oldest revision that can be watched from.
        oldest: Revision,
    },
}

/// A running watch. Dropping it ends it.
#[async_trait::async_trait]
pub trait Watch: Send {
    /// Waits for the next event. Cancel-safe.
    ///
    /// # Errors
    /// When the store is away; the watch is over then.
    async fn next(&mut self) -> Result<WatchEvent, StoreError>;
}

/// The transaction with a condition that never holds: a store looks at rights and room before it looks at that.
fn rehearsal(txn: &Txn) -> Txn {
    let mut rehearsed = txn.clone();
    let key = txn.ops.first().map(|op| op.key().to_owned());
    rehearsed.compare.extend(key.map(|key| Compare::ModRevision(key, i64::MAX.unsigned_abs())));
    rehearsed
}

/// A store. Cheap to clone behind an `Arc`; all methods may run at once.
#[async_trait::async_trait]
pub trait Store: Send + Sync {
    /// Reads one key.
    async fn get(&self, key: &str) -> Result<Option<KeyValue>, StoreError>;
    /// Reads several keys, in their order; not necessarily at one revision.
    async fn get_many(&self, keys: &[String]) -> Result<Vec<Option<KeyValue>>, StoreError> {
        futures_util::future::try_join_all(keys.iter().map(|key| self.get(key))).await
    }
    /// Which keys with any of these prefixes there are, in order; not their values, which may be a hundred times as much.
    async fn names(&self, prefixes: &[String]) -> Result<Vec<String>, StoreError> {
        Ok(self.list(prefixes).await?.entries.into_iter().map(|kv| kv.key).collect())
    }
    /// Whether there is any key with this prefix. Reads one, however many there are.
    async fn exists(&self, prefix: &str) -> Result<bool, StoreError> {
        Ok(!self.names(&[prefix.to_owned()]).await?.is_empty())
    }
    /// Whether this program may write the data model here: [`StoreError::Guarded`] or [`StoreError::Unusable`] with the reason,
    /// which every [`Store::commit`] would give. For those who decide before they write.
    async fn may_write(&self) -> Result<(), StoreError> {
        Ok(())
    }
    /// Reads keys and prefixes in one go: the keys in their order, then what a list gives. At one revision where both fit into
    /// one call of the store.
    async fn read(&self, keys: &[String], prefixes: &[String]) -> Result<Read, StoreError> {
        let values = async { if keys.is_empty() { Ok(Vec::new()) } else { self.get_many(keys).await } };
        let listed =
            async { if prefixes.is_empty() { Ok(Snapshot::default()) } else { self.list(prefixes).await } };
        futures_util::future::try_join(values, listed).await
    }
    /// Gets in line with others on this machine who are going to read, decide and write, so that they do not fail each other's
    /// comparisons. A courtesy: nothing is right or wrong by it, and a store may have none.
    async fn writer_lock(&self) -> Option<WriterLock> {
        None
    }
    /// Reads all keys with any of these prefixes, at one revision.
    async fn list(&self, prefixes: &[String]) -> Result<Snapshot, StoreError>;
    /// Watches these prefixes for changes after `after` (a revision that [`Store::list`] gave). `of` is the history that
    /// came with it: revisions of another one say nothing of this one, and the answer is [`WatchEvent::Compacted`]. `None`
    /// takes whatever store there is now.
    async fn watch(
        &self,
        prefixes: &[String],
        after: Revision,
        of: Option<&History>,
    ) -> Result<Box<dyn Watch>, StoreError>;
    /// Runs one transaction. When it is answered it is durable.
    async fn commit(&self, txn: Txn) -> Result<Outcome, StoreError>;
    /// Whether the store would take these writes now: none of them is carried out. Where it is full, or the user has no right to
    /// write, it says so.
    async fn rehearse(&self, txn: &Txn) -> Result<(), StoreError> {
        self.commit(rehearsal(txn)).await.map(drop)
    }
    /// The same for who has a turn: it ends as soon as the next in line can read what was written, which may be before it is
    /// durable. A turn that is still there afterwards goes on: after a conflict, and where the store has no such moment.
    async fn commit_locked(
        &self,
        txn: Txn,
        writer_lock: &mut Option<WriterLock>,
    ) -> Result<Outcome, StoreError> {
        let _ = writer_lock;
        self.commit(txn).await
    }
    /// Makes a lease that lives for `ttl` after the last [`Store::keep_alive`].
    async fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreError>;
    /// Renews a lease; `false` when it had ended.
    async fn keep_alive(&self, lease: LeaseId) -> Result<bool, StoreError>;
    /// Ends a lease and deletes its keys.
    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError>;
    /// Forgets history below `revision`.
    async fn compact(&self, revision: Revision) -> Result<(), StoreError>;
    /// Housekeeping that an agent calls each minute or so: SQLite drops expired keys and history beyond
    /// [`sqlite::HISTORY_REVISIONS`] and writes its log back; etcd has its own.
    async fn maintain(&self) -> Result<(), StoreError> {
        Ok(())
    }
    /// Reads all of the store and looks for damage, in bounded time: SQLite's file; etcd looks after its own.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] with what is wrong.
    async fn verify(&self) -> Result<(), StoreError> {
        Ok(())
    }
    /// For people: `sqlite:/path` or `etcd 3 members`; never a secret.
    fn describe(&self) -> String;
}

/// A turn that [`Store::writer_lock`] gave; it ends when this is dropped.
pub struct WriterLock(Box<dyn std::any::Any + Send + Sync>);

impl WriterLock {
    /// A turn that ends when `held` is dropped.
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

/// Why the store did not do it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, serde::Serialize, serde::Deserialize)]
pub enum StoreError {
    /// Not reachable now; try again later.
    #[error("the store is away: {0}")]
    Unreachable(String),
    /// The call can never succeed as it is (too many operations, a value too large, a key twice).
    #[error("refused: {0}")]
    Refused(String),
    /// The lease of a written key has ended; make a new one.
    #[error("lease {:x} has ended", .0.0)]
    LeaseEnded(LeaseId),
    /// It answers, and takes no writes until somebody sees to it (its disk or its quota is full).
    #[error("the store answers and takes no writes: {0}")]
    Unwritable(String),
    /// No right to do this.
    #[error("the store denies access: {0}")]
    PermissionDenied(String),
    /// The store speaks a data model that this program reads at most: nothing may be written.
    #[error("{0}")]
    Guarded(String),
    /// The store itself is unusable (newer schema, no store at all, network file system).
    #[error("{0}")]
    Unusable(String),
    /// The file of the store is damaged: nothing is written into it until another is in its place.
    #[error("{0}")]
    Damaged(String),
}
