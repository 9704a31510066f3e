//! etcd v3 (3.4 or newer) as the store of a cluster.
//!
//! Maps the [`Store`] trait to etcd's calls. Each call has a deadline and goes to one member, and to the next
//! one when that fails. Between calls nothing is kept but the connection. A watch that fails is reopened by
//! the feed, from the revision after the last one.
//!
//! ```text
//! list:    pages of 1,000 keys at one revision, prefix after prefix
//! read:    one Txn of ranges, if they are few enough
//! commit:  one Txn, sent once and never retried (after a lost answer it may have been committed)
//! watch:   one stream, one watcher per prefix -> merge.rs: whole transactions in the order of revisions
//! ```

mod connect;
mod error;
mod merge;
mod watch;

use std::time::Duration;

use etcd_client::{
    Client, Compare as EtcdCompare, CompareOp, DeleteOptions, GetOptions, GetResponse, PutOptions,
    Txn as EtcdTxn, TxnOp, TxnOpResponse,
};

use super::{
    Compare, History, KeyValue, LeaseId, MAX_TXN_OPS, Op, Outcome, Read, Revision, Snapshot, Store,
    StoreError, StoreOptions, Txn, Watch, WatchEvent, WriterLock, disjoint_prefixes, prefix_end,
};
use crate::writer_lock;
use connect::{Attempts, Pool};
use error::ended_lease;

/// Keys per page of a list.
const PAGE: i64 = 1000;
/// Maximum size of an answer; the client's own limit of 4 MiB is less than one page of large values.
const MAX_ANSWER: usize = 512 << 20;
/// Lock file of the writer lock between processes of one machine; if it cannot be opened, they write without
/// it.
const LOCK_PATH: &str = "/run/tortie/store.turn";
/// Number of times that a list is tried if its revision is compacted meanwhile.
const LIST_ATTEMPTS: u32 = 3;

/// Returns the identity of a store, its cluster ID in hexadecimal.
fn identity(cluster: u64) -> String {
    format!("{cluster:x}")
}

/// An etcd cluster.
pub struct EtcdStore {
    pool: Pool,
}

impl EtcdStore {
    /// Prepares a store with these `host:port` endpoints. Nothing is sent yet: etcd may be unreachable.
    ///
    /// # Errors
    /// [`StoreError::Unusable`] for options that contradict each other and for files that cannot be read.
    pub fn new(options: &StoreOptions, endpoints: Vec<String>, tls: bool) -> Result<Self, StoreError> {
        Ok(Self { pool: Pool::new(options, endpoints, tls)? })
    }

    async fn range(&self, key: impl Into<Vec<u8>>, options: GetOptions) -> Result<GetResponse, StoreError> {
        let key = key.into();
        let get = |client: Client| {
            let (key, options) = (key.clone(), options.clone());
            async move { client.kv_client().max_decoding_message_size(MAX_ANSWER).get(key, Some(options)).await }
        };
        self.pool.call(Attempts::Several, get).await
    }

    /// Reads keys and prefixes in one call, at one revision; `None` if a prefix has more keys than a page.
    async fn read_once(&self, keys: &[String], prefixes: &[String]) -> Result<Option<Read>, StoreError> {
        let key = |key: &String| TxnOp::get(key.as_str(), None);
        let prefix = |prefix: &String| {
            let page = GetOptions::new().with_limit(PAGE);
            let page = match prefix_end(prefix) {
                Some(end) => page.with_range(end),
                None => page.with_from_key(),
            };
            TxnOp::get(prefix.as_str(), Some(page))
        };
        let ops: Vec<TxnOp> = keys.iter().map(key).chain(prefixes.iter().map(prefix)).collect();
        let request = EtcdTxn::new().and_then(ops);
        let send = |client: Client| {
            let request = request.clone();
            async move { client.kv_client().max_decoding_message_size(MAX_ANSWER).txn(request).await }
        };
        let answer = self.pool.call(Attempts::Several, send).await?;
        let header = answer.header().ok_or_else(without_leader)?;
        let mut listed = Snapshot {
            revision: revision_of(header.revision()),
            store_id: identity(header.cluster_id()),
            term: header.raft_term(),
            entries: Vec::new(),
        };
        let mut values = Vec::with_capacity(keys.len());
        for part in answer.op_responses() {
            let TxnOpResponse::Get(part) = part else { return Err(without_leader()) };
            if values.len() < keys.len() {
                values.push(part.kvs().first().map(key_value));
            } else if part.more() {
                return Ok(None);
            } else {
                listed.entries.extend(part.kvs().iter().map(key_value));
            }
        }
        Ok(Some((values, listed)))
    }

    /// Returns a watch that requests a new list, if this is another cluster than that of `after`, or one
    /// restored from a backup.
    async fn other_history(
        &self,
        key: &str,
        after: Revision,
        of: Option<&History>,
    ) -> Result<Option<Restart>, StoreError> {
        let now = self.range(key, GetOptions::new().with_keys_only()).await?;
        let header = now.header().ok_or_else(without_leader)?;
        let current = revision_of(header.revision());
        let here = History { store_id: identity(header.cluster_id()), term: header.raft_term() };
        let other = current < after || of.is_some_and(|of| !of.goes_on_in(&here));
        Ok(other.then_some(Restart { oldest: Some(current) }))
    }

    /// Lists all keys of the prefixes, page by page, at one revision.
    async fn list_once(&self, prefixes: &[String], names_only: bool) -> Result<Snapshot, StoreError> {
        let mut snapshot = Snapshot::default();
        let mut at: Option<i64> = None;
        for prefix in prefixes {
            let mut from = prefix.clone().into_bytes();
            loop {
                let page = GetOptions::new().with_limit(PAGE).with_revision(at.unwrap_or(0));
                let page = if names_only { page.with_keys_only() } else { page };
                let page = match prefix_end(prefix) {
                    Some(end) => page.with_range(end),
                    None => page.with_from_key(),
                };
                let mut answer = self.range(from, page).await?;
                let header = answer.header().ok_or_else(without_leader)?;
                if at.is_none() {
                    at = Some(header.revision());
                    snapshot.revision = revision_of(header.revision());
                    snapshot.store_id = identity(header.cluster_id());
                    snapshot.term = header.raft_term();
                }
                let (more, kvs) = (answer.more(), answer.take_kvs());
                snapshot.entries.extend(kvs.iter().map(key_value));
                let Some(last) = kvs.last().filter(|_| more) else { break };
                // The next page begins after the last key.
                from = last.key().to_vec();
                from.push(0);
            }
        }
        Ok(snapshot)
    }

    async fn list_as(&self, prefixes: &[String], names_only: bool) -> Result<Snapshot, StoreError> {
        let prefixes = disjoint_prefixes(prefixes);
        let mut attempt = 1;
        loop {
            match self.list_once(&prefixes, names_only).await {
                Err(StoreError::Refused(text)) if attempt < LIST_ATTEMPTS && text.contains("compacted") => {
                    attempt += 1
                }
                result => return result,
            }
        }
    }
}

#[async_trait::async_trait]
impl Store for EtcdStore {
    async fn get(&self, key: &str) -> Result<Option<KeyValue>, StoreError> {
        let answer = self.range(key, GetOptions::new()).await?;
        Ok(answer.kvs().first().map(key_value))
    }

    async fn read(&self, keys: &[String], prefixes: &[String]) -> Result<Read, StoreError> {
        let prefixes = disjoint_prefixes(prefixes);
        if (1..=MAX_TXN_OPS).contains(&(keys.len() + prefixes.len()))
            && let Some(read) = self.read_once(keys, &prefixes).await?
        {
            return Ok(read);
        }
        let values = async { if keys.is_empty() { Ok(Vec::new()) } else { self.get_many(keys).await } };
        let listed =
            async { if prefixes.is_empty() { Ok(Snapshot::default()) } else { self.list(&prefixes).await } };
        futures_util::future::try_join(values, listed).await
    }

    async fn writer_lock(&self) -> Option<WriterLock> {
        writer_lock::take(LOCK_PATH.into()).await
    }

    async fn list(&self, prefixes: &[String]) -> Result<Snapshot, StoreError> {
        self.list_as(prefixes, false).await
    }

    async fn names(&self, prefixes: &[String]) -> Result<Vec<String>, StoreError> {
        Ok(self.list_as(prefixes, true).await?.entries.into_iter().map(|kv| kv.key).collect())
    }

    async fn exists(&self, prefix: &str) -> Result<bool, StoreError> {
        let one = GetOptions::new().with_limit(1).with_keys_only();
        let one = match prefix_end(prefix) {
            Some(end) => one.with_range(end),
            None => one.with_from_key(),
        };
        Ok(!self.range(prefix, one).await?.kvs().is_empty())
    }

    async fn watch(
        &self,
        prefixes: &[String],
        after: Revision,
        of: Option<&History>,
    ) -> Result<Box<dyn Watch>, StoreError> {
        let prefixes = disjoint_prefixes(prefixes);
        if prefixes.is_empty() {
            return Err(StoreError::Refused("nothing to watch".into()));
        }
        // Verify that the history is the same. The request also renews an expired token; a watch would be
        // rejected.
        let first = prefixes.first().map_or("/", String::as_str).to_owned();
        if let Some(restart) = self.other_history(&first, after, of).await? {
            return Ok(Box::new(restart));
        }
        let member = self.pool.member(&mut None).await?;
        let watch = watch::EtcdWatch::open(member, prefixes, after).await?;
        // After a replacement of the cluster between the two calls, the watch would be silent until its
        // revisions reach `after`.
        Ok(match self.other_history(&first, after, of).await? {
            Some(restart) => Box::new(restart),
            None => Box::new(watch),
        })
    }

    async fn commit(&self, txn: Txn) -> Result<Outcome, StoreError> {
        txn.check()?;
        let lease = txn.ops.iter().find_map(|op| if let Op::Put { lease, .. } = op { *lease } else { None });
        let request = EtcdTxn::new()
            .when(txn.compare.iter().map(compare).collect::<Vec<_>>())
            .and_then(txn.ops.into_iter().map(operation).collect::<Vec<_>>());
        let send = |client: Client| {
            let request = request.clone();
            async move { client.kv_client().txn(request).await }
        };
        let answer = self.pool.call(Attempts::Once, send).await.map_err(|e| ended_lease(e, lease))?;
        if !answer.succeeded() {
            return Ok(Outcome::Conflict);
        }
        let revision = answer.header().map_or(0, etcd_client::ResponseHeader::revision);
        Ok(Outcome::Committed(revision_of(revision)))
    }

    async fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        // etcd counts whole seconds.
        let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
        let seconds = i64::try_from(seconds.max(1)).unwrap_or(i64::MAX);
        let send = |client: Client| async move { client.lease_client().grant(seconds, None).await };
        Ok(LeaseId(self.pool.call(Attempts::Several, send).await?.id()))
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<bool, StoreError> {
        // The call itself sends one request and reads the answer; the returned stream is for further
        // requests.
        let send = |client: Client| async move { client.lease_client().keep_alive(lease.0).await.map(drop) };
        match self.pool.call(Attempts::Several, send).await.map_err(|e| ended_lease(e, Some(lease))) {
            Ok(()) => Ok(true),
            Err(StoreError::LeaseEnded(_)) => Ok(false),
            Err(e) => Err(e),
        }
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        let send = |client: Client| async move { client.lease_client().revoke(lease.0).await };
        match self.pool.call(Attempts::Several, send).await.map_err(|e| ended_lease(e, Some(lease))) {
            Ok(_) | Err(StoreError::LeaseEnded(_)) => Ok(()),
            Err(e) => Err(e),
        }
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        let revision = i64::try_from(revision).unwrap_or(i64::MAX);
        let send = |client: Client| async move { client.kv_client().compact(revision, None).await };
        match self.pool.call(Attempts::Several, send).await {
            Err(StoreError::Refused(text)) if text.contains("has been compacted") => Ok(()),
            result => result.map(drop),
        }
    }

    fn describe(&self) -> String {
        self.pool.describe()
    }
}

fn without_leader() -> StoreError {
    StoreError::Unreachable("etcd answered without header".into())
}

/// A watch that only requests a new list.
struct Restart {
    oldest: Option<Revision>,
}

#[async_trait::async_trait]
impl Watch for Restart {
    async fn next(&mut self) -> Result<WatchEvent, StoreError> {
        match self.oldest.take() {
            Some(oldest) => Ok(WatchEvent::Compacted { oldest }),
            None => Err(StoreError::Unreachable("the watch is over".into())),
        }
    }
}

fn compare(compare: &Compare) -> EtcdCompare {
    match compare {
        Compare::Absent(key) => EtcdCompare::create_revision(key.as_str(), CompareOp::Equal, 0),
        Compare::Present(key) => EtcdCompare::create_revision(key.as_str(), CompareOp::Greater, 0),
        Compare::ModRevision(key, revision) => {
            let revision = i64::try_from(*revision).unwrap_or(i64::MAX);
            EtcdCompare::mod_revision(key.as_str(), CompareOp::Equal, revision)
        }
        Compare::Value(key, value) => EtcdCompare::value(key.as_str(), CompareOp::Equal, value.as_slice()),
    }
}

fn operation(op: Op) -> TxnOp {
    match op {
        Op::Put { key, value, lease } => {
            TxnOp::put(key, value, lease.map(|lease| PutOptions::new().with_lease(lease.0)))
        }
        Op::Delete { key } => TxnOp::delete(key, None),
        Op::DeletePrefix { prefix } => TxnOp::delete(prefix, Some(DeleteOptions::new().with_prefix())),
    }
}

/// Keys are text in this data model; other octets are replaced, so that such a key can be reported.
fn key_value(kv: &etcd_client::KeyValue) -> KeyValue {
    KeyValue {
        key: String::from_utf8_lossy(kv.key()).into_owned(),
        value: kv.value().to_vec(),
        mod_revision: revision_of(kv.mod_revision()),
        create_revision: revision_of(kv.create_revision()),
    }
}

fn revision_of(revision: i64) -> Revision {
    Revision::try_from(revision).unwrap_or(0)
}
