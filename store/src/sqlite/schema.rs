//! Opens connections: settings, creation of the tables, and refusal of foreign or newer databases.

use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::ffi::SQLITE_IOERR_SHORT_READ;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension};

use super::super::StoreError;
use super::damage;
use super::files::{Files, Lock};

/// "Trti" in ASCII, the application ID in the file header.
const APPLICATION_ID: i32 = 0x5472_7469;
/// Increased with each change of the tables; a file with a higher version is refused.
const SCHEMA_VERSION: i32 = 1;

/// Creates the tables. `meta` has three rows: `store_id` (random, hexadecimal), `revision` (the last one) and
/// `oldest` (the oldest revision with stored changes). In `history` a row without a value is a deletion.
/// Lease times are milliseconds of CLOCK_BOOTTIME, which setting the clock does not change; a lease of an
/// earlier boot has ended, as has the process that held it.
const SCHEMA: &str = "
    CREATE TABLE meta(name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
    INSERT INTO meta VALUES('store_id', lower(hex(randomblob(8)))), ('revision', 0), ('oldest', 1);
    CREATE TABLE keys(
        key TEXT NOT NULL UNIQUE, value BLOB NOT NULL,
        mod_revision INTEGER NOT NULL, create_revision INTEGER NOT NULL, lease INTEGER);
    CREATE INDEX keys_lease ON keys(lease) WHERE lease IS NOT NULL;
    CREATE TABLE history(
        seq INTEGER PRIMARY KEY, revision INTEGER NOT NULL,
        key TEXT NOT NULL, value BLOB, create_revision INTEGER NOT NULL);
    CREATE INDEX history_revision ON history(revision);
    CREATE TABLE leases(id INTEGER PRIMARY KEY, ttl INTEGER NOT NULL, boot TEXT NOT NULL, expires INTEGER NOT NULL);
";

/// Opens a connection and creates the tables if the file is empty.
pub(super) fn connect(files: &Files) -> Result<Connection, StoreError> {
    let fail = |e: rusqlite::Error| failed(files, &e);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut conn = Connection::open_with_flags(&files.database, flags).map_err(fail)?;
    conn.busy_timeout(Duration::from_secs(5)).map_err(fail)?;
    // Otherwise the last process to close would checkpoint the log and unlink it, which stalls a short-lived
    // plugin.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(fail)?;
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true).map_err(fail)?;
    if state(&conn, files)? == DatabaseState::Empty {
        let lock = files.open_lock()?;
        let _held = Lock::take(&lock, &files.lock)?;
        if state(&conn, files)? == DatabaseState::Empty {
            conn.pragma_update(None, "journal_mode", "WAL").map_err(fail)?;
            let tx =
                conn.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).map_err(fail)?;
            tx.execute_batch(SCHEMA).map_err(fail)?;
            tx.pragma_update(None, "application_id", APPLICATION_ID).map_err(fail)?;
            tx.pragma_update(None, "user_version", SCHEMA_VERSION).map_err(fail)?;
            tx.commit().map_err(fail)?;
        }
    }
    // Keep temporary files out of other folders.
    conn.pragma_update(None, "temp_store", "MEMORY").map_err(fail)?;
    conn.pragma_update(None, "synchronous", "FULL").map_err(fail)?;
    conn.pragma_update(None, "wal_autocheckpoint", 0).map_err(fail)?;
    Ok(conn)
}

#[derive(PartialEq)]
enum DatabaseState {
    Empty,
    Ours,
}

fn state(conn: &Connection, files: &Files) -> Result<DatabaseState, StoreError> {
    let fail = |e: rusqlite::Error| failed(files, &e);
    // Read in one transaction, since another process may create the tables between two queries.
    let conn = &conn.unchecked_transaction().map_err(fail)?;
    let number = |name: &str| conn.pragma_query_value(None, name, |row| row.get::<_, i32>(0));
    let (application, version) =
        (number("application_id").map_err(fail)?, number("user_version").map_err(fail)?);
    let place = files.database.display();
    if application == APPLICATION_ID {
        known(version, files)?;
        return Ok(DatabaseState::Ours);
    }
    let table = conn.query_row("SELECT name FROM sqlite_schema LIMIT 1", [], |row| row.get::<_, String>(0));
    match table.optional().map_err(fail)? {
        None => Ok(DatabaseState::Empty),
        Some(_) => Err(StoreError::Unusable(format!(
            "{place} is a SQLite database of another program; name another file with --datastore"
        ))),
    }
}

fn known(version: i32, files: &Files) -> Result<(), StoreError> {
    let place = files.database.display();
    match version {
        1..=SCHEMA_VERSION => Ok(()),
        ..1 => Err(StoreError::Unusable(format!(
            "{place} has schema {version}, which no version of tortie wrote; move it away with its -wal and \
             -shm files and import an export of it"
        ))),
        _ => Err(StoreError::Unusable(format!(
            "{place} has schema {version}, this tortie supports up to {SCHEMA_VERSION}; run the newer \
             version that made it"
        ))),
    }
}

/// Returns an error if the tables were changed since this connection was opened: a newer tortie may have been
/// installed meanwhile.
pub(super) fn recheck_version(conn: &Connection, files: &Files) -> Result<(), StoreError> {
    let version = conn.pragma_query_value(None, "user_version", |row| row.get::<_, i32>(0));
    known(version.map_err(|e| failed(files, &e))?, files)
}

/// Reads one value of `meta`.
pub(super) fn meta<T: rusqlite::types::FromSql>(conn: &Connection, name: &str) -> rusqlite::Result<T> {
    conn.prepare_cached("SELECT value FROM meta WHERE name = ?1")?.query_row([name], |row| row.get(0))
}

/// Converts a SQLite error to [`StoreError`].
pub(super) fn failed(files: &Files, error: &rusqlite::Error) -> StoreError {
    let text = format!("{}: {error}", files.database.display());
    // A file, or its log, ends before a page that should be in it.
    let short = error.sqlite_error().is_some_and(|e| e.extended_code == SQLITE_IOERR_SHORT_READ);
    match error.sqlite_error_code() {
        Some(_) if short => damage::error(files, "it is shorter than it should be"),
        // Without a lock file this is no store but an unrelated file at the given path.
        Some(ErrorCode::NotADatabase) if !files.lock.exists() => StoreError::Unusable(format!(
            "{text}; the file is damaged, or no store: name another one with --datastore, or move it away with its -wal and -shm files and \
             import an export of it"
        )),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            damage::error(files, &error.to_string())
        }
        Some(ErrorCode::PermissionDenied | ErrorCode::ReadOnly | ErrorCode::CannotOpen) => {
            StoreError::PermissionDenied(format!("{text}; run it with sudo, or as the owner of the store"))
        }
        Some(ErrorCode::TooBig) => StoreError::Refused(text),
        Some(ErrorCode::DiskFull) => StoreError::Unwritable(format!("{text}; free space on its disk")),
        // A row that this program cannot have written, or a mandatory row that is missing.
        None if matches!(
            error,
            rusqlite::Error::InvalidColumnType(..)
                | rusqlite::Error::FromSqlConversionFailure(..)
                | rusqlite::Error::IntegralValueOutOfRange(..)
                | rusqlite::Error::Utf8Error(..)
                | rusqlite::Error::QueryReturnedNoRows
        ) =>
        {
            damage::error(files, &error.to_string())
        }
        // Busy or I/O error: may be transient.
        _ => StoreError::Unreachable(text),
    }
}

/// Returns the milliseconds since boot, including suspended time.
pub(super) fn boot_millis() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec.saturating_mul(1000).saturating_add(now.tv_nsec / 1_000_000)
}

/// Returns the kernel's identifier of the current boot.
pub(super) fn boot_id() -> Result<String, StoreError> {
    let path = std::path::Path::new("/proc/sys/kernel/random/boot_id");
    let id = std::fs::read_to_string(path).map_err(|e| super::files::failed(path, &e))?;
    Ok(id.trim().to_owned())
}
