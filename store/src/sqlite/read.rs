//! Read operations, in short transactions only: an open transaction lets the write-ahead log grow without
//! bound.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Row, TransactionBehavior, params};

use super::super::{Change, Delta, KeyValue, Read, Revision, Snapshot, StoreError, prefix_end};
use super::connection::FollowedConnection;
use super::damage;
use super::files::Files;
use super::schema::{boot_id, boot_millis, connect, failed, meta};

/// Rows per read for a watcher; a transaction is never split.
const ROWS_PER_READ: usize = 1000;

/// Selects the changes after a revision, in order, by the index: the cost does not depend on the length of
/// the history.
const CHANGES: &str =
    "SELECT key, value, revision, create_revision FROM history WHERE revision > ?1 ORDER BY revision, seq";

/// The read connection of a handle.
pub(super) struct Reader {
    files: Arc<Files>,
    conn: FollowedConnection,
    store_id: String,
    boot: String,
    /// True if a database marked as damaged must not be read.
    checked: bool,
}

/// Result of one read for a watcher.
pub(super) struct Changes {
    pub(super) deltas: Vec<Delta>,
    /// Everything up to this revision was read.
    pub(super) upto: Revision,
    /// Oldest revision with stored changes.
    pub(super) oldest: Revision,
    /// The last revision of the store.
    pub(super) current: Revision,
    /// Identity of the store that was read.
    pub(super) store_id: String,
    /// True if a lease has ended and its keys still exist.
    pub(super) expired: bool,
}

impl Reader {
    pub(super) fn open(files: Arc<Files>, create: bool, checked: bool) -> Result<Self, StoreError> {
        files.prepare(create)?;
        let identity = files.identity()?;
        let conn = connect(&files)?;
        conn.pragma_update(None, "query_only", true).map_err(|e| failed(&files, &e))?;
        let store_id = meta(&conn, "store_id").map_err(|e| failed(&files, &e))?;
        let conn = FollowedConnection::new(&files, identity, conn);
        Ok(Self { boot: boot_id()?, conn, store_id, files, checked })
    }

    fn within<T>(
        &mut self,
        read: impl FnOnce(&Connection, &str, &str) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let result = self.try_within(read);
        self.conn.conclude(&self.files, result)
    }

    fn try_within<T>(
        &mut self,
        read: impl FnOnce(&Connection, &str, &str) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        if self.checked {
            damage::refuse(&self.files)?;
        }
        if !self.conn.is_current(&self.files)? {
            *self = Self::open(Arc::clone(&self.files), false, self.checked)?;
        }
        let result = self
            .conn
            .get_mut()?
            .transaction_with_behavior(TransactionBehavior::Deferred)
            .and_then(|tx| read(&tx, &self.boot, &self.store_id));
        result.map_err(|e| failed(&self.files, &e))
    }

    pub(super) fn get(&mut self, key: &str) -> Result<Option<KeyValue>, StoreError> {
        self.within(|conn, boot, _| one(conn, boot, key))
    }

    /// Reads several keys at one revision.
    pub(super) fn get_many(&mut self, keys: &[String]) -> Result<Vec<Option<KeyValue>>, StoreError> {
        self.within(|conn, boot, _| keys.iter().map(|key| one(conn, boot, key)).collect())
    }

    pub(super) fn list(&mut self, prefixes: &[String]) -> Result<Snapshot, StoreError> {
        Ok(self.read(&[], prefixes)?.1)
    }

    /// Reads keys and prefixes at one revision.
    pub(super) fn read(&mut self, keys: &[String], prefixes: &[String]) -> Result<Read, StoreError> {
        self.within(|conn, boot, store_id| {
            let mut snapshot = Snapshot {
                revision: meta(conn, "revision")?,
                store_id: store_id.to_owned(),
                ..Snapshot::default()
            };
            let now = boot_millis();
            for prefix in prefixes {
                let end = prefix_end(prefix);
                let sql = if end.is_some() {
                    "SELECT k.key, k.value, k.mod_revision, k.create_revision FROM keys k
                     LEFT JOIN leases l ON l.id = k.lease
                     WHERE k.key >= ?1 AND k.key < ?2 AND (k.lease IS NULL OR (l.boot = ?3 AND l.expires > ?4))
                     ORDER BY k.key"
                } else {
                    "SELECT k.key, k.value, k.mod_revision, k.create_revision FROM keys k
                     LEFT JOIN leases l ON l.id = k.lease
                     WHERE k.key >= ?1 AND ?2 IS NULL AND (k.lease IS NULL OR (l.boot = ?3 AND l.expires > ?4))
                     ORDER BY k.key"
                };
                let mut statement = conn.prepare_cached(sql)?;
                for row in statement.query_map(params![prefix, end, boot, now], key_value)? {
                    snapshot.entries.push(row?);
                }
            }
            let values: rusqlite::Result<_> = keys.iter().map(|key| one(conn, boot, key)).collect();
            Ok((values?, snapshot))
        })
    }

    /// Lists the keys with these prefixes, without their values.
    pub(super) fn names(&mut self, prefixes: &[String]) -> Result<Vec<String>, StoreError> {
        self.within(|conn, boot, _| {
            let sql = "SELECT k.key FROM keys k LEFT JOIN leases l ON l.id = k.lease
                WHERE k.key >= ?1 AND (?2 IS NULL OR k.key < ?2)
                AND (k.lease IS NULL OR (l.boot = ?3 AND l.expires > ?4)) ORDER BY k.key";
            let mut statement = conn.prepare_cached(sql)?;
            let mut names = Vec::new();
            for prefix in prefixes {
                let rows = statement
                    .query_map(params![prefix, prefix_end(prefix), boot, boot_millis()], |row| row.get(0))?;
                for row in rows {
                    names.push(row?);
                }
            }
            Ok(names)
        })
    }

    /// Returns true if there is a key with this prefix.
    pub(super) fn exists(&mut self, prefix: &str) -> Result<bool, StoreError> {
        self.within(|conn, boot, _| {
            let sql = "SELECT EXISTS(SELECT 1 FROM keys k LEFT JOIN leases l ON l.id = k.lease
                WHERE k.key >= ?1 AND (?2 IS NULL OR k.key < ?2)
                AND (k.lease IS NULL OR (l.boot = ?3 AND l.expires > ?4)))";
            let bounds = params![prefix, prefix_end(prefix), boot, boot_millis()];
            conn.prepare_cached(sql)?.query_row(bounds, |row| row.get(0))
        })
    }

    /// Reads the changes after `after` in these prefixes, at most about [`ROWS_PER_READ`] rows.
    pub(super) fn changes(&mut self, prefixes: &[String], after: Revision) -> Result<Changes, StoreError> {
        self.within(|conn, boot, store_id| {
            let current: Revision = meta(conn, "revision")?;
            let expired = "SELECT EXISTS(SELECT 1 FROM leases WHERE boot <> ?1 OR expires <= ?2)";
            let mut found = Changes {
                deltas: Vec::new(),
                upto: current,
                oldest: meta(conn, "oldest")?,
                current,
                store_id: store_id.to_owned(),
                expired: conn
                    .prepare_cached(expired)?
                    .query_row(params![boot, boot_millis()], |row| row.get(0))?,
            };
            if current <= after {
                return Ok(found);
            }
            let mut statement = conn.prepare_cached(CHANGES)?;
            let mut rows = statement.query([after])?;
            let mut last = after;
            let mut read = 0;
            while let Some(row) = rows.next()? {
                let revision: Revision = row.get(2)?;
                if revision != last && read >= ROWS_PER_READ {
                    found.upto = last;
                    break;
                }
                last = revision;
                read += 1;
                let key = row.get_ref(0)?.as_str()?;
                if !prefixes.iter().any(|prefix| key.starts_with(prefix.as_str())) {
                    continue;
                }
                let change = if row.get_ref(1)? == rusqlite::types::ValueRef::Null {
                    Change::Delete { key: key.to_owned() }
                } else {
                    Change::Put(key_value(row)?)
                };
                match found.deltas.last_mut() {
                    Some(delta) if delta.revision == revision => delta.changes.push(change),
                    _ => found.deltas.push(Delta { revision, changes: vec![change] }),
                }
            }
            Ok(found)
        })
    }
}

fn one(conn: &Connection, boot: &str, key: &str) -> rusqlite::Result<Option<KeyValue>> {
    let sql = "SELECT k.key, k.value, k.mod_revision, k.create_revision FROM keys k
        LEFT JOIN leases l ON l.id = k.lease
        WHERE k.key = ?1 AND (k.lease IS NULL OR (l.boot = ?2 AND l.expires > ?3))";
    conn.prepare_cached(sql)?.query_row(params![key, boot, boot_millis()], key_value).optional()
}

fn key_value(row: &Row<'_>) -> rusqlite::Result<KeyValue> {
    Ok(KeyValue {
        key: row.get(0)?,
        value: row.get(1)?,
        mod_revision: row.get(2)?,
        create_revision: row.get(3)?,
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// The query plan depends on the number of new changes, not on the length of the history.
    #[test]
    fn changes_are_found_by_the_index() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::new(Path::new(&dir.path().join("store.db"))).unwrap();
        files.prepare(true).unwrap();
        let conn = connect(&files).unwrap();
        let plan: String =
            conn.query_row(&format!("EXPLAIN QUERY PLAN {CHANGES}"), [1], |row| row.get(3)).unwrap();
        assert_eq!(plan, "SEARCH history USING INDEX history_revision (revision>?)");
    }
}
