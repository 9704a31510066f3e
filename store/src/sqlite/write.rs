//! Write operations: one transaction at a time across all processes, durable once answered.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{OptionalExtension, Transaction, TransactionBehavior, params};

use super::super::{Compare, LeaseId, Op, Outcome, Revision, StoreError, Txn, WriterLock, prefix_end};
use super::connection::FollowedConnection;
use super::damage;
use super::files::{Files, Lock};
use super::schema::{boot_id, boot_millis, connect, failed, meta, recheck_version};

/// Log size in octets at which a writer checkpoints it, so that it stays bounded without an agent. Otherwise
/// the agent does (`maintain`).
const WAL_WITHOUT_AGENT: u64 = 64 << 20;
/// Log size in octets above which `maintain` also truncates the file.
const WAL_KEPT: u64 = 4 << 20;

/// The write connection of a handle.
pub(super) struct Writer {
    files: Arc<Files>,
    conn: FollowedConnection,
    lock: File,
    wake: File,
    boot: String,
}

impl Writer {
    pub(super) fn open(files: Arc<Files>) -> Result<Self, StoreError> {
        let identity = files.identity()?;
        let conn = connect(&files)?;
        // COMMIT leaves syncing of the log to `sync`. With NORMAL, log and database stay consistent after a
        // power failure at any moment.
        conn.pragma_update(None, "synchronous", "NORMAL").map_err(|e| failed(&files, &e))?;
        // The log exists once something was read.
        meta::<Revision>(&conn, "revision").map_err(|e| failed(&files, &e))?;
        Ok(Self {
            conn: FollowedConnection::new(&files, identity, conn),
            lock: files.open_lock()?,
            wake: files.open_wake()?,
            boot: boot_id()?,
            files,
        })
    }

    /// Runs `work` in its own transaction, after removing expired keys. Wakes watchers if the revision
    /// changed.
    fn transaction<T>(
        &mut self,
        given_up: &dyn Fn() -> bool,
        work: impl FnOnce(&mut Edit<'_>) -> Result<T, Failure>,
    ) -> Result<T, StoreError> {
        self.transaction_counted(given_up, work, |_| ())
    }

    /// Like `transaction`; `seen` is called once other processes can read the writes, before they are
    /// durable.
    fn transaction_counted<T>(
        &mut self,
        given_up: &dyn Fn() -> bool,
        work: impl FnOnce(&mut Edit<'_>) -> Result<T, Failure>,
        seen: impl FnOnce(&T),
    ) -> Result<T, StoreError> {
        if let Err(damaged) = damage::refuse(&self.files) {
            self.conn.close();
            return Err(damaged);
        }
        if !self.conn.is_current(&self.files)? {
            *self = Self::open(Arc::clone(&self.files))?;
        }
        let result = self.locked(given_up, work);
        let (result, moved) = self.conn.conclude(&self.files, result)?;
        seen(&result);
        // A transaction without a new revision only concerns leases, which do not survive a reboot.
        if moved && self.sync()? > WAL_WITHOUT_AGENT {
            self.checkpoint("TRUNCATE");
        }
        Ok(result)
    }

    /// Syncs the log to disk and returns its length. Runs without the lock, so that others can write
    /// meanwhile.
    fn sync(&self) -> Result<u64, StoreError> {
        let wal = self.files.wal();
        let synced = File::open(&wal).and_then(|file| {
            file.sync_data()?;
            Ok(file.metadata()?.len())
        });
        match synced {
            // Another program set another journal mode, in which COMMIT itself waits for the disk.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(0),
            synced => synced.map_err(|error| {
                StoreError::Unreachable(format!(
                    "{}: {error} (it may have been written nevertheless)",
                    wal.display()
                ))
            }),
        }
    }

    /// Runs `work` under the lock; the second value is true if the revision changed.
    fn locked<T>(
        &mut self,
        given_up: &dyn Fn() -> bool,
        work: impl FnOnce(&mut Edit<'_>) -> Result<T, Failure>,
    ) -> Result<(T, bool), StoreError> {
        let fail = |e: rusqlite::Error| failed(&self.files, &e);
        let _held = Lock::take(&self.lock, &self.files.lock)?;
        damage::refuse(&self.files)?;
        if given_up() {
            return Err(StoreError::Unreachable("the caller has given up".into()));
        }
        let tx =
            self.conn.get_mut()?.transaction_with_behavior(TransactionBehavior::Immediate).map_err(fail)?;
        recheck_version(&tx, &self.files)?;
        let before: Revision = meta(&tx, "revision").map_err(fail)?;
        let mut edit = Edit { tx, boot: &self.boot, now: boot_millis(), revision: before };
        edit.expire().map_err(fail)?;
        let result = work(&mut edit).map_err(|e| match e {
            Failure::Sqlite(e) => fail(e),
            Failure::Store(e) => e,
        })?;
        let after = edit.revision;
        if after != before {
            edit.tx
                .prepare_cached("UPDATE meta SET value = ?1 WHERE name = 'revision'")
                .and_then(|mut s| s.execute([after]))
                .map_err(fail)?;
        }
        let tx = edit.tx;
        tx.commit().map_err(fail)?;
        if after != before {
            // The transaction is committed; watchers that miss this wake-up poll each second.
            if let Err(e) = self.wake.write_all_at(b"!", 0) {
                tracing::warn!(target: "tortie::store", file = %self.files.wake.display(), error = %e, "cannot wake the watchers of the store");
            }
        }
        Ok((result, after != before))
    }

    /// Commits a transaction. The writer lock is released once other processes can read the writes.
    pub(super) fn commit(
        &mut self,
        txn: &Txn,
        mut writer_lock: Option<WriterLock>,
        given_up: &dyn Fn() -> bool,
    ) -> Result<(Outcome, Option<WriterLock>), StoreError> {
        let work = |edit: &mut Edit<'_>| {
            for compare in &txn.compare {
                if !edit.holds(compare)? {
                    return Ok(Outcome::Conflict);
                }
            }
            edit.apply(&txn.ops)?;
            Ok(Outcome::Committed(edit.revision))
        };
        let outcome = self.transaction_counted(given_up, work, |outcome| {
            if *outcome != Outcome::Conflict {
                drop(writer_lock.take());
            }
        })?;
        Ok((outcome, writer_lock))
    }

    pub(super) fn grant(
        &mut self,
        ttl: Duration,
        given_up: &dyn Fn() -> bool,
    ) -> Result<LeaseId, StoreError> {
        let ttl = i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX / 4).clamp(1, i64::MAX / 4);
        self.transaction(given_up, |edit| {
            let id = rand::random_range(1..i64::MAX);
            let sql = "INSERT INTO leases(id, ttl, boot, expires) VALUES(?1, ?2, ?3, ?4)";
            edit.tx.execute(sql, params![id, ttl, edit.boot, edit.now.saturating_add(ttl)])?;
            Ok(LeaseId(id))
        })
    }

    pub(super) fn keep_alive(
        &mut self,
        lease: LeaseId,
        given_up: &dyn Fn() -> bool,
    ) -> Result<bool, StoreError> {
        self.transaction(given_up, |edit| {
            let sql = "UPDATE leases SET expires = ?2 + ttl WHERE id = ?1";
            Ok(edit.tx.execute(sql, params![lease.0, edit.now])? == 1)
        })
    }

    pub(super) fn revoke(&mut self, lease: LeaseId, given_up: &dyn Fn() -> bool) -> Result<(), StoreError> {
        self.transaction(given_up, |edit| Ok(edit.end_lease(lease.0)?))
    }

    pub(super) fn compact(
        &mut self,
        revision: Revision,
        given_up: &dyn Fn() -> bool,
    ) -> Result<(), StoreError> {
        self.transaction(given_up, |edit| {
            if revision > edit.revision {
                return Err(Failure::Store(StoreError::Refused(format!(
                    "cannot compact at revision {revision}, the store is at {}",
                    edit.revision
                ))));
            }
            Ok(edit.forget_below(revision)?)
        })
    }

    /// Removes the keys of ended leases, which each transaction does first.
    pub(super) fn expire(&mut self, given_up: &dyn Fn() -> bool) -> Result<(), StoreError> {
        self.transaction(given_up, |_| Ok(()))
    }

    /// Removes expired keys, discards old history and checkpoints the log into the database.
    pub(super) fn maintain(&mut self, keep: u64, given_up: &dyn Fn() -> bool) -> Result<(), StoreError> {
        let (files, lock) = (Arc::clone(&self.files), self.files.open_lock()?);
        self.transaction(given_up, |edit| {
            let oldest: Revision = meta(&edit.tx, "oldest")?;
            let wanted = edit.revision.saturating_sub(keep);
            // A tenth of slack, so that not every call rewrites an index page.
            if wanted > oldest.saturating_add(keep / 10) { Ok(edit.forget_below(wanted)?) } else { Ok(()) }
        })?;
        let long = std::fs::metadata(files.wal()).is_ok_and(|wal| wal.len() > WAL_KEPT);
        let _held = if long { Some(Lock::take(&lock, &files.lock)?) } else { None };
        self.checkpoint(if long { "TRUNCATE" } else { "PASSIVE" });
        Ok(())
    }

    /// Checkpoints the log. Busy readers only postpone it; the next checkpoint does the rest.
    fn checkpoint(&mut self, mode: &str) {
        let Ok(conn) = self.conn.get() else { return };
        let run = || {
            conn.busy_timeout(Duration::from_millis(100))?;
            conn.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |_| Ok(()))
        };
        if let Err(e) = run() {
            tracing::debug!(target: "tortie::store", error = %e, "the log of the store was not written back");
        }
        // Fails only for a closed connection.
        let _ = conn.busy_timeout(Duration::from_secs(5));
    }
}

/// Reason why a transaction was not committed.
enum Failure {
    Sqlite(rusqlite::Error),
    Store(StoreError),
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

/// A transaction in progress.
struct Edit<'a> {
    tx: Transaction<'a>,
    boot: &'a str,
    now: i64,
    /// The last assigned revision.
    revision: Revision,
}

impl Edit<'_> {
    /// Removes the keys of ended leases. Watchers receive one transaction per lease, as in etcd.
    fn expire(&mut self) -> rusqlite::Result<()> {
        let ended: Vec<i64> = {
            let sql = "SELECT id FROM leases WHERE boot <> ?1 OR expires <= ?2";
            let mut statement = self.tx.prepare_cached(sql)?;
            let ids = statement.query_map(params![self.boot, self.now], |row| row.get(0))?;
            ids.collect::<rusqlite::Result<_>>()?
        };
        ended.into_iter().try_for_each(|id| self.end_lease(id))
    }

    fn end_lease(&mut self, id: i64) -> rusqlite::Result<()> {
        let keys: Vec<String> = {
            let mut statement =
                self.tx.prepare_cached("SELECT key FROM keys WHERE lease = ?1 ORDER BY key")?;
            let keys = statement.query_map([id], |row| row.get(0))?;
            keys.collect::<rusqlite::Result<_>>()?
        };
        let revision = self.revision + 1;
        for key in &keys {
            self.delete(key, revision)?;
        }
        self.tx.execute("DELETE FROM leases WHERE id = ?1", [id])?;
        if !keys.is_empty() {
            self.revision = revision;
        }
        Ok(())
    }

    fn holds(&self, compare: &Compare) -> rusqlite::Result<bool> {
        let mut statement = self.tx.prepare_cached("SELECT mod_revision, value FROM keys WHERE key = ?1")?;
        let found = |row: &rusqlite::Row<'_>| Ok((row.get::<_, Revision>(0)?, row.get::<_, Vec<u8>>(1)?));
        let found = statement.query_row([compare.key()], found).optional()?;
        Ok(match compare {
            Compare::Absent(_) => found.is_none(),
            Compare::Present(_) => found.is_some(),
            Compare::ModRevision(_, revision) => found.map_or(0, |(r, _)| r) == *revision,
            Compare::Value(_, value) => found.is_some_and(|(_, v)| v == *value),
        })
    }

    /// Applies the writes. A transaction that changes nothing takes no revision, as in etcd.
    fn apply(&mut self, ops: &[Op]) -> Result<(), Failure> {
        let revision = self.revision + 1;
        let mut changed = false;
        for op in ops {
            match op {
                Op::Put { key, value, lease } => {
                    self.put(key, value, *lease, revision)?;
                    changed = true;
                }
                Op::Delete { key } => changed |= self.delete(key, revision)?,
                Op::DeletePrefix { prefix } => {
                    for key in self.keys_below(prefix)? {
                        changed |= self.delete(&key, revision)?;
                    }
                }
            }
        }
        if changed {
            self.revision = revision;
        }
        Ok(())
    }

    fn put(
        &self,
        key: &str,
        value: &[u8],
        lease: Option<LeaseId>,
        revision: Revision,
    ) -> Result<(), Failure> {
        if let Some(lease) = lease {
            let mut known = self.tx.prepare_cached("SELECT 1 FROM leases WHERE id = ?1")?;
            if !known.exists([lease.0])? {
                return Err(Failure::Store(StoreError::LeaseEnded(lease)));
            }
        }
        let sql = "INSERT INTO keys(key, value, mod_revision, create_revision, lease) VALUES(?1, ?2, ?3, ?3, ?4)
             ON CONFLICT(key) DO UPDATE SET value = ?2, mod_revision = ?3, lease = ?4 RETURNING create_revision";
        let created: Revision = self
            .tx
            .prepare_cached(sql)?
            .query_row(params![key, value, revision, lease.map(|l| l.0)], |row| row.get(0))?;
        let sql = "INSERT INTO history(revision, key, value, create_revision) VALUES(?1, ?2, ?3, ?4)";
        self.tx.prepare_cached(sql)?.execute(params![revision, key, value, created])?;
        Ok(())
    }

    fn delete(&self, key: &str, revision: Revision) -> rusqlite::Result<bool> {
        if self.tx.prepare_cached("DELETE FROM keys WHERE key = ?1")?.execute([key])? == 0 {
            return Ok(false);
        }
        let sql = "INSERT INTO history(revision, key, value, create_revision) VALUES(?1, ?2, NULL, 0)";
        self.tx.prepare_cached(sql)?.execute(params![revision, key])?;
        Ok(true)
    }

    fn keys_below(&self, prefix: &str) -> rusqlite::Result<Vec<String>> {
        let sql = "SELECT key FROM keys WHERE key >= ?1 AND (?2 IS NULL OR key < ?2) ORDER BY key";
        let mut statement = self.tx.prepare_cached(sql)?;
        let keys = statement.query_map(params![prefix, prefix_end(prefix)], |row| row.get(0))?;
        keys.collect()
    }

    fn forget_below(&self, revision: Revision) -> rusqlite::Result<()> {
        self.tx.execute("DELETE FROM history WHERE revision < ?1", [revision])?;
        self.tx.execute("UPDATE meta SET value = ?1 WHERE name = 'oldest' AND value < ?1", [revision])?;
        Ok(())
    }
}
