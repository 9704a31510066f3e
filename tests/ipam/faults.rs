//! A store that fails before and after each operation: the request or the answer is lost, or the caller dies.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::Rng;
use tortie_engine::ipam::{AllocationRequest, Ipam};
use tortie_store::{
    History, KeyValue, LeaseId, Outcome, Read, Revision, Snapshot, Store, StoreError, Txn, Watch, WriterLock,
};

/// Error of a dead caller, which does not retry.
pub(crate) const KILLED: &str = "killed here";

/// Number of failures by place and kind.
#[derive(Default)]
pub(crate) struct Hits(Mutex<BTreeMap<String, u32>>);

impl Hits {
    fn count(&self, place: &str) {
        *self.0.lock().unwrap().entry(place.to_owned()).or_default() += 1;
    }

    /// True if this many places failed, each of them at least `least` times.
    pub(crate) fn each(&self, places: usize, least: u32) -> bool {
        let hits = self.0.lock().unwrap();
        hits.len() == places && hits.values().all(|count| *count >= least)
    }

    pub(crate) fn all(&self) -> BTreeMap<String, u32> {
        self.0.lock().unwrap().clone()
    }
}

pub(crate) struct Faulty {
    inner: Arc<dyn Store>,
    pub(crate) hits: Arc<Hits>,
    /// One in this many operations fails, at each of its ends.
    pub(crate) rate: u32,
    pub(crate) armed: AtomicBool,
    /// Number of values that were read.
    pub(crate) values: AtomicUsize,
    /// The next commit is executed, then another client makes this request, then the answer of the commit is
    /// lost.
    pub(crate) meanwhile: Mutex<Option<(Ipam, AllocationRequest)>>,
}

impl Faulty {
    pub(crate) fn new(inner: Arc<dyn Store>, rate: u32) -> Self {
        Self {
            inner,
            hits: Arc::new(Hits::default()),
            rate,
            armed: AtomicBool::new(true),
            values: AtomicUsize::new(0),
            meanwhile: Mutex::default(),
        }
    }

    fn fail(&self, place: &str) -> Result<(), StoreError> {
        if !self.armed.load(Ordering::Relaxed) || rand::rng().random_range(0..self.rate) != 0 {
            return Ok(());
        }
        if rand::rng().random_bool(0.5) {
            self.hits.count(&format!("{place}: lost"));
            Err(StoreError::Unreachable("lost here".to_owned()))
        } else {
            self.hits.count(&format!("{place}: killed"));
            Err(StoreError::Unusable(KILLED.to_owned()))
        }
    }

    async fn around<T>(
        &self,
        name: &str,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.fail(&format!("before {name}"))?;
        let answer = call.await?;
        self.fail(&format!("after {name}"))?;
        Ok(answer)
    }
}

#[async_trait::async_trait]
impl Store for Faulty {
    async fn get(&self, key: &str) -> Result<Option<KeyValue>, StoreError> {
        self.inner.get(key).await
    }
    async fn get_many(&self, keys: &[String]) -> Result<Vec<Option<KeyValue>>, StoreError> {
        self.around("get", self.inner.get_many(keys)).await
    }
    async fn names(&self, prefixes: &[String]) -> Result<Vec<String>, StoreError> {
        self.around("list", self.inner.names(prefixes)).await
    }
    async fn read(&self, keys: &[String], prefixes: &[String]) -> Result<Read, StoreError> {
        let name = if prefixes.is_empty() { "get" } else { "list" };
        let read = self.around(name, self.inner.read(keys, prefixes)).await?;
        self.values.fetch_add(read.0.len() + read.1.entries.len(), Ordering::Relaxed);
        Ok(read)
    }
    async fn writer_lock(&self) -> Option<WriterLock> {
        // No writer waits for another, so the comparisons alone must protect the data.
        None
    }
    async fn list(&self, prefixes: &[String]) -> Result<Snapshot, StoreError> {
        self.around("list", self.inner.list(prefixes)).await
    }
    async fn watch(
        &self,
        prefixes: &[String],
        after: Revision,
        of: Option<&History>,
    ) -> Result<Box<dyn Watch>, StoreError> {
        self.inner.watch(prefixes, after, of).await
    }
    async fn commit(&self, txn: Txn) -> Result<Outcome, StoreError> {
        let meanwhile = self.meanwhile.lock().unwrap().take();
        if let Some((ipam, request)) = meanwhile {
            assert!(matches!(self.inner.commit(txn).await, Ok(Outcome::Committed(_))));
            ipam.assign(&request).await.unwrap();
            return Err(StoreError::Unreachable("lost here".to_owned()));
        }
        self.around("commit", self.inner.commit(txn)).await
    }
    async fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        self.inner.grant(ttl).await
    }
    async fn keep_alive(&self, lease: LeaseId) -> Result<bool, StoreError> {
        self.inner.keep_alive(lease).await
    }
    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.inner.revoke(lease).await
    }
    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.inner.compact(revision).await
    }
    fn describe(&self) -> String {
        self.inner.describe()
    }
}
