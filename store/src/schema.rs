//! The schema version of the data model that this program supports, and the guard that refuses writes if a
//! store needs a later one.
//!
//! The key `/calico/tortie/v1/schema` contains `{"schema": N}`; without it the version is 1. Programs
//! preserve fields that they do not know, so most changes of the data model need no new version. Only a
//! change that an older program would corrupt or enforce wrongly needs one. An operator raises it once every
//! host has the later version (docs/how-to/upgrade.md). An agent that finds a version beyond its own freezes
//! (`model::Guard`); every other program may read but not write.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OnceCell;
use tortie_config::Dialect;
use tortie_config::key::prefix;
use tortie_config::resource::StoreSchema;

use super::data_model::{DataModel, Purpose, WriteGuard};
use super::{
    History, KeyValue, LeaseId, Outcome, Read, Revision, Snapshot, Store, StoreError, Txn, Watch, WriterLock,
};

/// Latest schema version that this program supports.
pub const SCHEMA: u32 = 1;

/// Checks that this program may follow and write a store that needs version `needed`; `None` means that the
/// version cannot be parsed.
///
/// # Errors
/// A sentence with the next step.
pub fn check(needed: Option<u32>) -> Result<(), String> {
    let key = prefix::SCHEMA;
    match needed {
        Some(needed) if needed <= SCHEMA => Ok(()),
        Some(needed) => Err(format!(
            "{key} says that the store needs schema {needed}, and this tortie {} supports up to {SCHEMA}: \
             install the version that the other hosts have",
            env!("CARGO_PKG_VERSION")
        )),
        None => Err(format!(
            "{key} has a format that this tortie {} does not support: install the version that the other \
             hosts have",
            env!("CARGO_PKG_VERSION")
        )),
    }
}

/// Checks before each write that the store may be written: the schema once, the data model repeatedly. Every
/// transaction of this program passes through here.
pub(super) struct Guarded {
    store: Arc<dyn Store>,
    asked: OnceCell<()>,
    model: WriteGuard,
}

impl Guarded {
    /// Wraps a store.
    pub(super) fn new(store: Arc<dyn Store>, model: DataModel) -> Self {
        Self { store, asked: OnceCell::new(), model: WriteGuard::new(model) }
    }

    async fn may_commit(&self, txn: &Txn) -> Result<(), StoreError> {
        // Writing only the schema key is always allowed, so that a wrong value can be repaired.
        if !txn.ops.is_empty() && txn.ops.iter().all(|op| op.key() == prefix::SCHEMA) {
            return Ok(());
        }
        self.knows_schema().await?;
        self.model.may_commit(txn, &*self.store).await
    }

    async fn knows_schema(&self) -> Result<(), StoreError> {
        let ask = || async {
            let Some(found) = self.store.get(prefix::SCHEMA).await? else { return Ok(()) };
            let needed = StoreSchema::parse(&found.value).ok().map(|found| found.schema);
            check(needed).map_err(StoreError::Unusable)
        };
        self.asked.get_or_try_init(ask).await.copied()
    }
}

#[async_trait::async_trait]
impl Store for Guarded {
    async fn get(&self, key: &str) -> Result<Option<KeyValue>, StoreError> {
        self.store.get(key).await
    }

    async fn get_many(&self, keys: &[String]) -> Result<Vec<Option<KeyValue>>, StoreError> {
        self.store.get_many(keys).await
    }

    async fn names(&self, prefixes: &[String]) -> Result<Vec<String>, StoreError> {
        self.store.names(prefixes).await
    }

    async fn exists(&self, prefix: &str) -> Result<bool, StoreError> {
        self.store.exists(prefix).await
    }

    async fn may_write(&self, purpose: Purpose) -> Result<(), StoreError> {
        self.knows_schema().await?;
        purpose.check(self.model.dialect(&*self.store).await?)
    }

    async fn dialect(&self) -> Result<Dialect, StoreError> {
        self.model.dialect(&*self.store).await
    }

    async fn read(&self, keys: &[String], prefixes: &[String]) -> Result<Read, StoreError> {
        self.store.read(keys, prefixes).await
    }

    async fn writer_lock(&self) -> Option<WriterLock> {
        self.store.writer_lock().await
    }

    async fn list(&self, prefixes: &[String]) -> Result<Snapshot, StoreError> {
        self.store.list(prefixes).await
    }

    async fn watch(
        &self,
        prefixes: &[String],
        after: Revision,
        of: Option<&History>,
    ) -> Result<Box<dyn Watch>, StoreError> {
        self.store.watch(prefixes, after, of).await
    }

    async fn commit(&self, txn: Txn) -> Result<Outcome, StoreError> {
        self.may_commit(&txn).await?;
        self.store.commit(txn).await
    }

    async fn rehearse(&self, txn: &Txn) -> Result<(), StoreError> {
        self.may_commit(txn).await?;
        self.store.rehearse(txn).await
    }

    async fn commit_locked(
        &self,
        txn: Txn,
        writer_lock: &mut Option<WriterLock>,
    ) -> Result<Outcome, StoreError> {
        self.may_commit(&txn).await?;
        self.store.commit_locked(txn, writer_lock).await
    }

    async fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        self.store.grant(ttl).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<bool, StoreError> {
        self.store.keep_alive(lease).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.store.revoke(lease).await
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.store.compact(revision).await
    }

    async fn maintain(&self) -> Result<(), StoreError> {
        self.store.maintain().await
    }

    async fn verify(&self) -> Result<(), StoreError> {
        self.store.verify().await
    }

    fn describe(&self) -> String {
        self.store.describe()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Op, StoreOptions, open};
    use super::*;

    fn put(key: &str, value: &str) -> Txn {
        let op = Op::Put { key: key.to_owned(), value: value.into(), lease: None };
        Txn { ops: vec![op], ..Txn::default() }
    }

    #[tokio::test]
    async fn a_store_that_needs_a_later_schema_is_read_and_not_written() {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", dir.path().join("store.db").display());
        let options = StoreOptions { url, ..StoreOptions::default() };
        let ready = || put("/calico/v1/Ready", "true");
        let first = open(&options).await.unwrap();
        first.commit(ready()).await.unwrap();
        for (value, refused) in [
            (r#"{"schema":1}"#, None),
            (r#"{"schema":1,"since":"0.1.0"}"#, None),
            (r#"{"schema":2,"later":[1]}"#, Some("needs schema 2")),
            ("2.0", Some("does not support")),
        ] {
            let store = open(&options).await.unwrap();
            // The schema key itself can always be repaired.
            store.commit(put(prefix::SCHEMA, value)).await.unwrap();
            let outcome = store.commit(ready()).await;
            match refused {
                None => assert!(matches!(outcome, Ok(Outcome::Committed(_))), "{value}: {outcome:?}"),
                Some(word) => {
                    let error = outcome.unwrap_err().to_string();
                    assert!(error.contains(word) && error.contains(prefix::SCHEMA), "{value}: {error}");
                }
            }
            assert_eq!(store.get("/calico/v1/Ready").await.unwrap().unwrap().value, b"true");
            assert_eq!(store.list(&["/calico/".to_owned()]).await.unwrap().entries.len(), 2);
        }
    }
}
