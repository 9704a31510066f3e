//! Detection of a damaged database, and the mark file next to it that stops all processes from writing into
//! it.
//!
//! ```text
//!  agent, at start and each minute: PRAGMA quick_check +
//!  any process: a read or write that SQLite refuses ---+--> store.damaged: inode, length, time of database
//!                                                             |
//!  every transaction of every process, under the lock: -------+--> same database? refused : mark ignored
//! ```
//!
//! A file that takes the place of the damaged one, or is written over it, has another inode, length or time:
//! the mark is then ignored, and removed by the next check. These stay the same for a damaged file, since no
//! process checkpoints its log.

use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{ErrorCode, InterruptHandle};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::super::StoreError;
use super::files::{Files, Lock};
use super::schema::{connect, failed};

/// Time limit for an interrupted check to end.
const END: Duration = Duration::from_secs(10);

/// Next step after damage.
const NEXT: &str = "nothing is written to it; restore it as in \"A damaged SQLite store\" of \
                    docs/how-to/restore.md: save what can be read (tortie store export, or tortie store export \
                    --cache), move the file away with its -wal and -shm files, import what was saved, \
                    tortie store accept";

/// Returns the error for a damaged database, as text for people.
pub(super) fn error(files: &Files, what: &str) -> StoreError {
    StoreError::Damaged(format!("{} is damaged ({what}): {NEXT}", files.database.display()))
}

/// Content of the mark file: the damaged database and its fault.
#[derive(Serialize, Deserialize)]
struct Mark {
    file: State,
    damage: String,
}

/// File attributes that differ between two files at one path, and between a file and one written over it.
#[derive(PartialEq, Eq, Serialize, Deserialize)]
struct State {
    device: u64,
    inode: u64,
    length: u64,
    seconds: i64,
    nanoseconds: i64,
}

fn state(files: &Files) -> Option<State> {
    let found = std::fs::metadata(&files.database).ok()?;
    let (device, inode, length) = (found.dev(), found.ino(), found.len());
    Some(State { device, inode, length, seconds: found.mtime(), nanoseconds: found.mtime_nsec() })
}

/// Returns an error if the database is marked as damaged.
pub(super) fn refuse(files: &Files) -> Result<(), StoreError> {
    // Usually there is no mark.
    let Ok(text) = std::fs::read(&files.mark) else { return Ok(()) };
    match serde_json::from_slice::<Mark>(&text) {
        Ok(mark) if Some(&mark.file) == state(files).as_ref() => Err(StoreError::Damaged(mark.damage)),
        _ => Ok(()),
    }
}

/// Marks the database if `result` reports damage. Takes the lock file, so the caller must not hold it.
pub(super) fn mark_if<T>(files: &Files, result: Result<T, StoreError>) -> Result<T, StoreError> {
    if let Err(StoreError::Damaged(damage)) = &result
        && refuse(files).is_ok()
        && let Err(error) = mark(files, damage)
    {
        tracing::warn!(target: "tortie::store", file = %files.mark.display(), %error, "the damaged store \
                                                                                       could not be marked: \
                                                                                       other processes may \
                                                                                       write to it");
    }
    result
}

fn mark(files: &Files, damage: &str) -> Result<(), StoreError> {
    // Without a lock file this is no store but an unrelated file at the given path.
    if !files.lock.exists() {
        return Ok(());
    }
    let lock = files.open_lock()?;
    // Under the lock no transaction is running, and the next one reads the mark.
    let _held = Lock::take(&lock, &files.lock)?;
    let Some(file) = state(files) else { return Ok(()) };
    let text = serde_json::to_vec(&Mark { file, damage: damage.to_owned() });
    let text = text.map_err(|e| StoreError::Refused(e.to_string()))?;
    let write = || {
        use std::io::Write as _;
        let options =
            std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&files.mark);
        options?.write_all(&text)
    };
    write().map_err(|e| super::files::failed(&files.mark, &e))
}

/// Checks the whole database on a separate thread and connection, while readers and writers continue. A
/// database too large to be read within the limit is reported as undamaged.
pub(super) async fn look_for(files: Arc<Files>, limit: Duration) -> Result<(), StoreError> {
    let (started, interrupt) = oneshot::channel();
    let (answer, mut answered) = oneshot::channel();
    std::thread::Builder::new()
        .name("store-check".to_owned())
        .spawn(move || drop(answer.send(check(&files, started))))
        .map_err(|e| StoreError::Unreachable(format!("cannot start a thread: {e}")))?;
    let ended = |result: Result<_, _>| {
        result.unwrap_or_else(|_| Err(StoreError::Unreachable("the check of the store ended".into())))
    };
    if let Ok(result) = tokio::time::timeout(limit, &mut answered).await {
        return ended(result);
    }
    let mut interrupt: oneshot::Receiver<InterruptHandle> = interrupt;
    if let Ok(handle) = interrupt.try_recv() {
        handle.interrupt();
    }
    match tokio::time::timeout(END, answered).await {
        Ok(result) => ended(result),
        Err(_) => Err(StoreError::Unreachable("the file of the store cannot be read: its disk hangs".into())),
    }
}

fn check(files: &Files, started: oneshot::Sender<InterruptHandle>) -> Result<(), StoreError> {
    refuse(files)?;
    let found = quick_check(files, started);
    if found.is_ok() && refuse(files).is_ok() {
        // The mark belongs to a file that was replaced.
        let _ = std::fs::remove_file(&files.mark);
    }
    mark_if(files, found)
}

fn quick_check(files: &Files, started: oneshot::Sender<InterruptHandle>) -> Result<(), StoreError> {
    let conn = connect(files)?;
    // The receiver is gone if the caller has given up.
    let _ = started.send(conn.get_interrupt_handle());
    match conn.query_row("PRAGMA quick_check(1)", [], |row| row.get::<_, String>(0)) {
        Ok(answer) if answer == "ok" => Ok(()),
        Ok(answer) => Err(error(files, &answer.split_whitespace().collect::<Vec<_>>().join(" "))),
        Err(e) if e.sqlite_error_code() == Some(ErrorCode::OperationInterrupted) => {
            tracing::info!(target: "tortie::store", file = %files.database.display(), "the store is too large to be checked whole in time");
            Ok(())
        }
        Err(e) => Err(failed(files, &e)),
    }
}

#[cfg(test)]
#[path = "damage_tests.rs"]
mod tests;
