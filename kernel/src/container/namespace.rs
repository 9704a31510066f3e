//! Network namespaces of containers: opened by path, entered by a separate thread per call.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::thread::LinkNameSpaceType;

use super::ContainerNetError;

/// Magic number of the file system of namespace files (`NSFS_MAGIC`).
const NSFS: u64 = 0x6e73_6673;
/// The network namespace of this thread.
const OWN: &str = "/proc/thread-self/ns/net";

/// An open network namespace of a container; it exists at least as long as this value.
#[derive(Debug)]
pub struct Namespace {
    file: File,
    path: PathBuf,
}

impl Namespace {
    /// Opens a network namespace.
    ///
    /// # Errors
    /// The path does not exist, is no network namespace, or is the namespace of this thread: containers in
    /// the host's network get no interface, and the path may point elsewhere by the time it is used.
    pub fn open(path: &Path) -> Result<Self, ContainerNetError> {
        let not = |why: String| ContainerNetError::NotNamespace { path: path.to_owned(), why };
        // Opening a pipe blocks, and opening a device may have side effects, so check the kind of file first.
        let found = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        let found = found.map_err(|error| match error {
            // ESRCH: the process ended while its files were read.
            Errno::NOENT | Errno::NOTDIR | Errno::SRCH => ContainerNetError::NoNamespace(path.to_owned()),
            error => not(io::Error::from(error).to_string()),
        })?;
        let stat = rustix::fs::fstatfs(&found).map_err(|error| not(error.to_string()))?;
        if u64::try_from(stat.f_type).ok() != Some(NSFS) {
            return Err(not("it is an ordinary file or folder".to_owned()));
        }
        let file = File::open(format!("/proc/thread-self/fd/{}", found.as_raw_fd()))
            .map_err(|error| not(error.to_string()))?;
        let meta = file.metadata().map_err(|error| not(error.to_string()))?;
        if let Ok(own) = std::fs::metadata(OWN)
            && (own.dev(), own.ino()) == (meta.dev(), meta.ino())
        {
            return Err(ContainerNetError::OwnNamespace(path.to_owned()));
        }
        let namespace = Self { file, path: path.to_owned() };
        // Only the kernel knows the type of the namespace: it refuses a thread that enters another type.
        namespace.run(|| ()).map_err(|error| match error {
            ContainerNetError::Io { error, .. } if error.raw_os_error() == Some(libc::EINVAL) => {
                not("it is a namespace of another kind".to_owned())
            }
            other => other,
        })?;
        Ok(namespace)
    }

    /// Duplicates the handle.
    pub(super) fn duplicate(&self) -> Result<Self, ContainerNetError> {
        let file = self.file.try_clone();
        let file = file.map_err(|error| ContainerNetError::io("no more file descriptors", error))?;
        Ok(Self { file, path: self.path.clone() })
    }

    /// Returns the path that was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs `work` on a thread that has entered the namespace; its sockets and its `/proc/sys/net` are those
    /// of the namespace.
    ///
    /// # Errors
    /// The namespace cannot be entered.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, ContainerNetError> {
        let doing = || format!("{} cannot be entered", self.path.display());
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("namespace".to_owned()).spawn_scoped(scope, || {
                rustix::thread::move_into_link_name_space(
                    self.file.as_fd(),
                    Some(LinkNameSpaceType::Network),
                )?;
                Ok::<T, rustix::io::Errno>(work())
            });
            let thread = thread.map_err(|error| ContainerNetError::io(doing(), error))?;
            let done = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            done.map_err(|error| ContainerNetError::io(doing(), error.into()))
        })
    }

    /// Returns the file descriptor, for netlink messages that name a namespace by it.
    pub(super) fn raw(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}
