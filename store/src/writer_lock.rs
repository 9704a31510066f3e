//! Per-host writer lock: without it, processes that read, decide and write would fail each other's conditions
//! all the time.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use tokio::sync::oneshot;

use super::WriterLock;

/// Time limit for waiting: a stopped process must not block the others. After it they write without the lock,
/// and the conditions of their transactions decide.
const PATIENCE: Duration = Duration::from_secs(3);

/// Waits for the lock file at `path`; `None` if it cannot be acquired. Dropping the result closes the file
/// and releases the lock.
pub(super) async fn take(path: PathBuf) -> Option<WriterLock> {
    let file = open(&path).ok()?;
    // Usually no other process holds the lock.
    match lock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => return Some(WriterLock::new(file)),
        Err(Errno::WOULDBLOCK) => {}
        Err(_) => return None,
    }
    // The kernel grants the lock in the order of requests; only a blocking thread can wait for it.
    let (ready, taken) = oneshot::channel();
    let wait = move || {
        if lock(&file, FlockOperation::LockExclusive).is_ok() {
            // If the caller has given up, the file is dropped here.
            let _ = ready.send(file);
        }
    };
    std::thread::Builder::new().name("store-turn".to_owned()).spawn(wait).ok()?;
    tokio::time::timeout(PATIENCE, taken).await.ok()?.ok().map(WriterLock::new)
}

fn open(path: &Path) -> io::Result<File> {
    let open =
        || OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
    match open() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
            open()
        }
        file => file,
    }
}

fn lock(file: &File, how: FlockOperation) -> Result<(), Errno> {
    loop {
        match flock(file, how) {
            Err(Errno::INTR) => {}
            done => return done,
        }
    }
}
