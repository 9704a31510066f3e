//! The embedded store: one SQLite file, opened by several processes of one machine at once.
//!
//! For one machine it has the semantics of etcd: a table of the current keys, a table of revisions (the
//! changes of each transaction), and a table of leases with their expiry. It does not serve several machines:
//! files on network file systems are refused.
//!
//! ```text
//!  commit: flock store.lock -> BEGIN IMMEDIATE -> delete expired keys -> compare -> write -> COMMIT
//!            -> unlock -> one byte into store.wake -> fdatasync of the log -> answer
//!  watch:  inotify of store.wake (and a poll each second) -> short read of the revisions since the last one
//! ```
//!
//! A writer that waits for the disk does not block others: the log is synced after the lock is released, so
//! that the disk serves several processes at once. Others may read writes that are not durable yet. Their own
//! writes come later in the same log, and their answer waits for all of it. So no answer depends on a write
//! that a power failure undoes.
//!
//! A process that finds the database damaged leaves a mark file next to it (`store.damaged`), and no process
//! writes into it from then on (`damage`).
//!
//! Two side files exist for these reasons: SQLite's own waiting for the write lock is unfair (8 writers: p99
//! 80 ms against 11 ms with `flock`), and an inotify event on the write-ahead log arrives before the commit
//! can be read. Blocking calls run on threads of the handle, one for reading and one for writing, never on
//! the caller's runtime.

mod connection;
mod damage;
mod files;
mod read;
mod schema;
mod wake;
mod watch;
mod worker;
mod write;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OnceCell;

use super::{
    History, KeyValue, LeaseId, Outcome, Read, Revision, Snapshot, Store, StoreError, Txn, Watch, WriterLock,
};
use crate::writer_lock;
use files::Files;
use read::Reader;
use worker::Worker;
use write::Writer;

/// Time limit of the check before the first answer. A larger file is used unchecked, and [`Store::verify`]
/// checks the rest.
const CHECK_AT_START: Duration = Duration::from_secs(5);
/// Time limit of [`Store::verify`].
const CHECK_LATER: Duration = Duration::from_secs(60);

/// Number of revisions that [`Store::maintain`] keeps for watchers that were disconnected.
pub const HISTORY_REVISIONS: u64 = 10_000;

/// A store in a SQLite database.
pub struct SqliteStore {
    files: Arc<Files>,
    reader: OnceCell<Arc<Worker<Reader>>>,
    /// Started by the first write, since most commands only read.
    writer: OnceCell<Worker<Writer>>,
    /// Set once the file was checked before its first answer; `None` if no check was requested.
    checked: Option<OnceCell<()>>,
}

impl SqliteStore {
    /// Opens the database at `path`; with `create`, creates it and its folder if absent. The lock and wake
    /// files are next to it: `store.lock` and `store.wake` for `store.db`.
    ///
    /// # Errors
    /// [`StoreError::Unusable`] for a file that is no Tortie store, a newer schema or a network file system;
    /// [`StoreError::Damaged`] for a damaged file; [`StoreError::PermissionDenied`] if it may not be opened.
    pub async fn open(path: &Path, create: bool) -> Result<Self, StoreError> {
        let store = Self::new(path, false)?;
        store.reader.get_or_try_init(|| store.start_reader(create)).await?;
        Ok(store)
    }

    /// Opens the database for an agent: the file is checked before its first answer. A damaged one answers
    /// every call with [`StoreError::Damaged`] until another file takes its place.
    ///
    /// # Errors
    /// As [`SqliteStore::open`], except for a damaged file.
    pub async fn open_checked(path: &Path, create: bool) -> Result<Self, StoreError> {
        let store = Self::new(path, true)?;
        match store.reader.get_or_try_init(|| store.start_reader(create)).await {
            Ok(_) | Err(StoreError::Damaged(_)) => {}
            Err(error) => return Err(error),
        }
        Ok(store)
    }

    fn new(path: &Path, checked: bool) -> Result<Self, StoreError> {
        let (reader, writer, checked) = (OnceCell::new(), OnceCell::new(), checked.then(OnceCell::new));
        Ok(Self { files: Arc::new(Files::new(path)?), reader, writer, checked })
    }

    async fn start_reader(&self, create: bool) -> Result<Arc<Worker<Reader>>, StoreError> {
        let (files, checked) = (Arc::clone(&self.files), self.checked.is_some());
        Worker::start("store-read", move || Reader::open(files, create, checked)).await.map(Arc::new)
    }

    async fn reader(&self) -> Result<&Arc<Worker<Reader>>, StoreError> {
        if let Some(checked) = &self.checked {
            checked.get_or_try_init(|| damage::look_for(Arc::clone(&self.files), CHECK_AT_START)).await?;
        }
        self.reader.get_or_try_init(|| self.start_reader(false)).await
    }

    async fn writer(&self) -> Result<&Worker<Writer>, StoreError> {
        let start = || {
            let files = Arc::clone(&self.files);
            Worker::start("store-write", move || Writer::open(files))
        };
        self.writer.get_or_try_init(start).await
    }
}

#[async_trait::async_trait]
impl Store for SqliteStore {
    async fn get(&self, key: &str) -> Result<Option<KeyValue>, StoreError> {
        let key = key.to_owned();
        self.reader().await?.run(move |reader, _| reader.get(&key)).await
    }

    async fn get_many(&self, keys: &[String]) -> Result<Vec<Option<KeyValue>>, StoreError> {
        let keys = keys.to_vec();
        self.reader().await?.run(move |reader, _| reader.get_many(&keys)).await
    }

    async fn names(&self, prefixes: &[String]) -> Result<Vec<String>, StoreError> {
        let prefixes = super::disjoint_prefixes(prefixes);
        self.reader().await?.run(move |reader, _| reader.names(&prefixes)).await
    }

    async fn exists(&self, prefix: &str) -> Result<bool, StoreError> {
        let prefix = prefix.to_owned();
        self.reader().await?.run(move |reader, _| reader.exists(&prefix)).await
    }

    async fn read(&self, keys: &[String], prefixes: &[String]) -> Result<Read, StoreError> {
        let (keys, prefixes) = (keys.to_vec(), super::disjoint_prefixes(prefixes));
        self.reader().await?.run(move |reader, _| reader.read(&keys, &prefixes)).await
    }

    async fn writer_lock(&self) -> Option<WriterLock> {
        writer_lock::take(self.files.writer_lock.clone()).await
    }

    async fn list(&self, prefixes: &[String]) -> Result<Snapshot, StoreError> {
        let prefixes = super::disjoint_prefixes(prefixes);
        self.reader().await?.run(move |reader, _| reader.list(&prefixes)).await
    }

    async fn watch(
        &self,
        prefixes: &[String],
        after: Revision,
        of: Option<&History>,
    ) -> Result<Box<dyn Watch>, StoreError> {
        // The watch keeps the reader alive. Expired leases it removes through its own writer, opened when
        // needed.
        let prefixes = super::disjoint_prefixes(prefixes);
        let (reader, of) = (Arc::clone(self.reader().await?), of.map(|of| of.store_id.clone()));
        let watch = watch::SqliteWatch::start(Arc::clone(&self.files), reader, prefixes, after, of).await?;
        Ok(Box::new(watch))
    }

    async fn commit(&self, txn: Txn) -> Result<Outcome, StoreError> {
        self.commit_locked(txn, &mut None).await
    }

    /// On a full disk, a log that is reused from its beginning still accepts a few writes, so check the free
    /// space.
    async fn rehearse(&self, txn: &Txn) -> Result<(), StoreError> {
        self.files.check_room()?;
        self.commit(super::rehearsal(txn)).await.map(drop)
    }

    async fn commit_locked(
        &self,
        txn: Txn,
        writer_lock: &mut Option<WriterLock>,
    ) -> Result<Outcome, StoreError> {
        txn.check()?;
        let held = writer_lock.take();
        let commit =
            move |writer: &mut Writer, given_up: &dyn Fn() -> bool| writer.commit(&txn, held, given_up);
        let (outcome, left) = self.writer().await?.run(commit).await?;
        *writer_lock = left;
        Ok(outcome)
    }

    async fn grant(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        self.writer().await?.run(move |writer, given_up| writer.grant(ttl, given_up)).await
    }

    async fn keep_alive(&self, lease: LeaseId) -> Result<bool, StoreError> {
        self.writer().await?.run(move |writer, given_up| writer.keep_alive(lease, given_up)).await
    }

    async fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.writer().await?.run(move |writer, given_up| writer.revoke(lease, given_up)).await
    }

    async fn compact(&self, revision: Revision) -> Result<(), StoreError> {
        self.writer().await?.run(move |writer, given_up| writer.compact(revision, given_up)).await
    }

    async fn maintain(&self) -> Result<(), StoreError> {
        self.writer().await?.run(|writer, given_up| writer.maintain(HISTORY_REVISIONS, given_up)).await
    }

    async fn verify(&self) -> Result<(), StoreError> {
        damage::look_for(Arc::clone(&self.files), CHECK_LATER).await
    }

    fn describe(&self) -> String {
        format!("sqlite:{}", self.files.database.display())
    }
}

/// Waits until this process has no file of a folder open: a store that was dropped closes its files on its
/// threads.
#[cfg(test)]
pub(crate) async fn until_closed(folder: &std::path::Path) {
    let is_open = || {
        let all = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        let files = all.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        files.into_iter().any(|file| file.starts_with(folder))
    };
    while is_open() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}
