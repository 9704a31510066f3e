//! Getting in line: those of one machine who read, decide and then write would fail each other's comparisons all the time.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use tokio::sync::oneshot;

use super::WriterLock;

/// A stopped process must not hold up the others: after this time they go without a turn, and the comparisons decide.
const PATIENCE: Duration = Duration::from_secs(3);

/// Waits for the turn of `path`; `None` when it cannot be had. It ends when the answer is dropped: a closed file is unlocked.
pub(super) async fn take(path: PathBuf) -> Option<WriterLock> {
    let file = open(&path).ok()?;
    // Mostly nobody else is there.
    match lock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => return Some(WriterLock::new(file)),
        Err(Errno::WOULDBLOCK) => {}
        Err(_) => return None,
    }
    // The kernel hands it on in the order of asking, to one at a time; only a thread can wait for that.
    let (ready, taken) = oneshot::channel();
    let wait = move || {
        if lock(&file, FlockOperation::LockExclusive).is_ok() {
            // Whoever has given up drops the file.
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
