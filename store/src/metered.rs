//! A wrapper around a store that counts and times requests.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{
    History, KeyValue, LeaseId, Outcome, Purpose, Read, Revision, Snapshot, Store, StoreError, Txn, Watch,
    WriterLock,
};
use tortie_config::Dialect;
use tortie_metrics::Table;

/// Durations of requests by operation and result: `ok`, `conflict` (a condition of the transaction did not
/// hold), `away`, `refused`, `denied`, `guarded`, `unwritable`, `lease_ended`, `unusable`, `damaged`.
pub type Requests = Table<(&'static str, &'static str)>;

/// Counts and times the requests to the wrapped store.
pub struct Metered {
    store: Arc<dyn Store>,
    requests: Arc<Requests>,
}

impl Metered {
    /// Wraps a store; durations are counted in `requests`.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, requests: Arc<Requests>) -> Self {
        Self { store, requests }
    }

    async fn time<T>(
        &self,
        op: &'static str,
        of: impl Fn(&T) -> &'static str + Send,
        request: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let begin = Instant::now();
        let answer = request.await;
        let result = match &answer {
            Ok(answer) => of(answer),
            Err(StoreError::Unreachable(_)) => "away",
            Err(StoreError::Refused(_)) => "refused",
            Err(StoreError::LeaseEnded(_)) => "lease_ended",
            Err(StoreError::PermissionDenied(_)) => "denied",
            Err(StoreError::Guarded(_)) => "guarded",
            Err(StoreError::Unwritable(_)) => "unwritable",
            Err(StoreError::Unusable(_)) => "unusable",
            Err(StoreError::Damaged(_)) => "damaged",
        };
        self.requests.time((op, result), begin.elapsed());
        answer
    }
}

fn ok<T>(_: &T) -> &'static str {
    "ok"
}

fn committed(outcome: &Outcome) -> &'static str {
    if *outcome == Outcome::Conflict { "conflict" } else { "ok" }
}

#[async_trait::async_trait]
impl Store for Metered {
    async fn get(&self, key: &str) -> Result<Option<KeyValue>, StoreError> {
        self.time("get", ok, self.store.get(key)).await
    }

    async fn get_many(&self, keys: &[String]) -> Result<Vec<Option<KeyValue>>, StoreError> {
        self.time("get", ok, self.store.get_many(keys)).await
    }

    async fn names(&self, prefixes: &[String]) -> Result<Vec<String>, StoreError> {
        self.time("list", ok, self.store.names(prefixes)).await
    }

    async fn exists(&self, prefix: &str) -> Result<bool, StoreError> {
        self.time("get", ok, self.store.exists(prefix)).await
    }

    async fn may_write(&self, purpose: Purpose) -> Result<(), StoreError> {
        self.store.may_write(purpose).await
    }

    async fn dialect(&self) -> Result<Dialect, StoreError> {
        self.store.dialect().await
    }

    async fn read(&self, keys: &[String], prefixes: &[String]) -> Result<Read, StoreError> {
        self.time("get", ok, self.store.read(keys, prefixes)).await
    }

    async fn writer_lock(&self) -> Option<WriterLock> {
        self.store.writer_lock().await
    }

    async fn list(&self, prefixes: &[String]) -> Result<Snapshot, StoreError> {
        self.time("list", ok, self.store.list(prefixes)).await
    }

    async fn watch(
        &self,
        prefixes: &[String],
        after: Revision,
        of: Option<&History>,
    ) -> Result<Box<dyn Watch>, StoreError> {
        self.time("watch", ok, self.store.watch(prefixes, after, of)).await
    }

    async fn commit(&self, txn: Txn) -> Result<Outcome, StoreError> {
        self.time("commit", committed, self.store.commit(txn)).await
    }

    async fn rehearse(&self, txn: &Txn) -> Result<(), StoreError> {
        self.time("rehearse", ok, self.store.rehearse(txn)).await
    }

    async fn commit_locked(
        &self,
        txn: Txn,
        writer_lock: &mut Option<WriterLock>,
    ) -> Result<Outcome, StoreError> {
        self.time("commit", committed, self.store.commit_locked(txn, writer_lock)).await
    }

    async fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        self.time("grant", ok, self.store.grant(ttl)).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<bool, StoreError> {
        self.time("keep_alive", ok, self.store.keep_alive(lease)).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.time("revoke", ok, self.store.revoke(lease)).await
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.time("compact", ok, self.store.compact(revision)).await
    }

    async fn maintain(&self) -> Result<(), StoreError> {
        self.time("maintain", ok, self.store.maintain()).await
    }

    async fn verify(&self) -> Result<(), StoreError> {
        self.time("verify", ok, self.store.verify()).await
    }

    fn describe(&self) -> String {
        self.store.describe()
    }
}
