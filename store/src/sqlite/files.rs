//! The files of a store: the database, its lock, wake and mark files; their permissions and the file systems
//! they may be on.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rustix::fs::{FlockOperation, flock};

use super::super::StoreError;

/// Minimum free space in octets: growth of the log by one workload, with a reserve.
const ROOM: u64 = 256 << 10;

/// Paths of the files, and the open connections to them.
pub(super) struct Files {
    pub(super) database: PathBuf,
    pub(super) lock: PathBuf,
    pub(super) wake: PathBuf,
    pub(super) writer_lock: PathBuf,
    /// Mark file of a damaged database.
    pub(super) mark: PathBuf,
    /// Number of open connections of this handle. SQLite shares the index of a log among the connections of a
    /// process, so a log that replaced another one may be opened only after all connections to the former are
    /// closed.
    connections: AtomicUsize,
    /// Inode of the log that these connections use.
    log: AtomicU64,
}

/// An open connection, counted until it is dropped.
pub(super) struct OpenConnection(Arc<Files>);

impl OpenConnection {
    /// Counts a connection that uses this log.
    pub(super) fn count(files: &Arc<Files>, log: Option<Identity>) -> Self {
        files.log.store(log.map_or(0, |(_, inode)| inode), Ordering::SeqCst);
        files.connections.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(files))
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Device and inode of a file; another value means that the file was replaced.
pub(super) type Identity = (u64, u64);

impl Files {
    pub(super) fn new(database: &Path) -> Result<Self, StoreError> {
        let taken = ["lock", "wake", "turn", "damaged"]
            .iter()
            .any(|e| database.extension().is_some_and(|own| own == *e));
        if taken || database.file_name().is_none() {
            return Err(StoreError::Unusable(format!(
                "{}: a database cannot have this name, which its .lock, .turn, .wake and .damaged files \
                 have; use store.db",
                database.display()
            )));
        }
        // The process may change its working directory after it was started with a relative path.
        let database = std::path::absolute(database).map_err(|e| failed(database, &e))?;
        let (lock, wake) = (database.with_extension("lock"), database.with_extension("wake"));
        let (writer_lock, mark) = (database.with_extension("turn"), database.with_extension("damaged"));
        Ok(Self {
            database,
            lock,
            wake,
            writer_lock,
            mark,
            connections: AtomicUsize::new(0),
            log: AtomicU64::new(0),
        })
    }

    /// Returns the path of SQLite's write-ahead log.
    pub(super) fn wal(&self) -> PathBuf {
        let mut name = self.database.clone().into_os_string();
        name.push("-wal");
        name.into()
    }

    fn shm(&self) -> PathBuf {
        let mut name = self.database.clone().into_os_string();
        name.push("-shm");
        name.into()
    }

    /// Returns an error if the disk has no room for a few writes.
    pub(super) fn check_room(&self) -> Result<(), StoreError> {
        let folder = self.database.parent().unwrap_or(Path::new("/"));
        let disk = rustix::fs::statvfs(folder).map_err(|e| failed(folder, &e.into()))?;
        let room = disk.f_bfree.saturating_mul(disk.f_frsize);
        if room < ROOM {
            let text =
                format!("{}: {room} octets are left on its disk; free some space", self.database.display());
            return Err(StoreError::Unwritable(text));
        }
        Ok(())
    }

    /// Returns the identity of the write-ahead log; `None` if it does not exist.
    pub(super) fn log_identity(&self) -> Option<Identity> {
        std::fs::metadata(self.wal()).ok().map(|meta| (meta.dev(), meta.ino()))
    }

    /// Returns an error as long as a connection uses a log that was removed or replaced.
    pub(super) fn check_closed(&self) -> Result<(), StoreError> {
        let now = self.log_identity().map_or(0, |(_, inode)| inode);
        if self.connections.load(Ordering::SeqCst) == 0 || self.log.load(Ordering::SeqCst) == now {
            return Ok(());
        }
        let wal = self.wal();
        Err(StoreError::Unreachable(format!(
            "{} was removed or replaced while it was in use: its contents are lost, and the store is read \
             again",
            wal.display()
        )))
    }

    pub(super) fn identity(&self) -> Result<Identity, StoreError> {
        match std::fs::metadata(&self.database) {
            Ok(meta) => Ok((meta.dev(), meta.ino())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                Err(StoreError::Unreachable(format!("{} is gone", self.database.display())))
            }
            Err(e) => Err(failed(&self.database, &e)),
        }
    }

    /// Creates the folder and the file if absent, and refuses file systems on which SQLite's locks are
    /// unreliable.
    pub(super) fn prepare(&self, create: bool) -> Result<(), StoreError> {
        let folder = self.database.parent().unwrap_or(Path::new("/"));
        if create && !folder.exists() {
            let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
            made.map_err(|e| failed(folder, &e))?;
        }
        if !create && !self.database.try_exists().map_err(|e| failed(&self.database, &e))? {
            return Err(StoreError::Unusable(format!(
                "there is no store at {}; name the right one with --datastore, or start the agent or write to make it",
                self.database.display()
            )));
        }
        let stat = rustix::fs::statfs(folder).map_err(|e| failed(folder, &e.into()))?;
        if let Some(kind) = network_file_system(i128::from(stat.f_type)) {
            return Err(StoreError::Unusable(format!(
                "{} is on {kind}, where a SQLite store is not safe; put it on a local disk, or use etcd://",
                self.database.display()
            )));
        }
        if !self.database.exists() {
            let lock = self.open_lock()?;
            let _held = Lock::take(&lock, &self.lock)?;
            if !self.database.exists() {
                // A log left over from a removed database would be replayed into the new one.
                for stale in [self.wal(), self.shm()] {
                    match std::fs::remove_file(&stale) {
                        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(failed(&stale, &e)),
                        _ => {}
                    }
                }
                open_private(&self.database)?;
            }
        }
        Ok(())
    }

    pub(super) fn open_lock(&self) -> Result<File, StoreError> {
        open_private(&self.lock)
    }

    pub(super) fn open_wake(&self) -> Result<File, StoreError> {
        open_private(&self.wake)
    }
}

/// Opens a file for reading and writing, and creates it with mode 0600 if absent.
fn open_private(path: &Path) -> Result<File, StoreError> {
    let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
    open.map_err(|e| failed(path, &e))
}

/// The exclusive lock for writing, held until dropped.
pub(super) struct Lock<'a>(&'a File);

impl<'a> Lock<'a> {
    /// Waits for the lock; the kernel grants it in the order of requests.
    pub(super) fn take(file: &'a File, path: &Path) -> Result<Self, StoreError> {
        loop {
            match flock(file, FlockOperation::LockExclusive) {
                Ok(()) => return Ok(Self(file)),
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(failed(path, &e.into())),
            }
        }
    }
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        // Closing the file would unlock it as well; an error here cannot be handled.
        let _ = flock(self.0, FlockOperation::Unlock);
    }
}

pub(super) fn failed(path: &Path, error: &io::Error) -> StoreError {
    let text = format!("{}: {error}", path.display());
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            StoreError::PermissionDenied(format!("{text}; run it with sudo, or as the owner of the store"))
        }
        io::ErrorKind::ReadOnlyFilesystem => StoreError::PermissionDenied(text),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::IsADirectory => {
            StoreError::Unusable(text)
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            StoreError::Unwritable(format!("{text}; free some space"))
        }
        _ => StoreError::Unreachable(text),
    }
}

/// Returns the name of a file system whose locks or shared memory do not work between machines (statfs(2),
/// linux/magic.h); `None` for any other.
fn network_file_system(magic: i128) -> Option<&'static str> {
    // Some architectures return the 32-bit magic number sign-extended.
    match magic & 0xffff_ffff {
        0x6969 => Some("NFS"),
        0x517b => Some("SMB"),
        0xff53_4d42 => Some("CIFS"),
        0xfe53_4d42 => Some("SMB2"),
        0x0102_1997 => Some("9P"),
        0x5346_414f | 0x6b41_4653 => Some("AFS"),
        0x7375_7245 => Some("Coda"),
        0x00c3_6400 => Some("Ceph"),
        0x0bd0_0bd0 => Some("Lustre"),
        0x7461_636f => Some("OCFS2"),
        0x0116_1970 => Some("GFS2"),
        0x6573_5546 => Some("FUSE"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn side_files_lie_next_to_the_database() {
        let files = Files::new(Path::new("/var/lib/tortie/store.db")).unwrap();
        assert_eq!(files.lock, Path::new("/var/lib/tortie/store.lock"));
        assert_eq!(files.wake, Path::new("/var/lib/tortie/store.wake"));
        assert_eq!(files.wal(), Path::new("/var/lib/tortie/store.db-wal"));
        assert!(Files::new(Path::new("/x/store.lock")).is_err());
    }

    #[test]
    fn network_file_systems_are_named_whatever_the_sign() {
        assert_eq!(network_file_system(0x6969), Some("NFS"));
        assert_eq!(network_file_system(i128::from(0xff53_4d42_u32.cast_signed())), Some("CIFS"));
        for local in [0xef53, 0x0102_1994, 0x9123_683e, 0x5846_5342, 0x794c_7630] {
            assert_eq!(network_file_system(local), None);
        }
    }
}
