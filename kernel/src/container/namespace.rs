//! Network namespaces of containers: opened by path, entered by threads of their own.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::thread::LinkNameSpaceType;

use super::ContainerNetError;

/// Magic number of the file system that namespaces are files of (`NSFS_MAGIC`).
const NSFS: u64 = 0x6e73_6673;
/// What a network namespace's file says that it is, at the first entry into it.
const OWN: &str = "/proc/thread-self/ns/net";

/// A container's network namespace. It lives at least as long as this.
#[derive(Debug)]
pub struct Namespace {
    file: File,
    path: PathBuf,
}

impl Namespace {
    /// Opens it.
    ///
    /// # Errors
    /// When the path leads nowhere, to something else, or to the namespace that this thread is in: containers of the
    /// host's own network get no interface, and a path may lead anywhere by the time that it is used.
    pub fn open(path: &Path) -> Result<Self, ContainerNetError> {
        let not = |why: String| ContainerNetError::NotNamespace { path: path.to_owned(), why };
        // To open a pipe waits, and to open a device may do something: what it is comes first.
        let found = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        let found = found.map_err(|error| match error {
            // The second: a process that ends while its files are looked at.
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
        // Only the kernel knows of which kind it is: it refuses a thread that enters another one.
        namespace.run(|| ()).map_err(|error| match error {
            ContainerNetError::Io { error, .. } if error.raw_os_error() == Some(libc::EINVAL) => {
                not("it is a namespace of another kind".to_owned())
            }
            other => other,
        })?;
        Ok(namespace)
    }

    /// Another handle of the same.
    pub(super) fn duplicate(&self) -> Result<Self, ContainerNetError> {
        let file = self.file.try_clone();
        let file = file.map_err(|error| ContainerNetError::io("no more file descriptors", error))?;
        Ok(Self { file, path: self.path.clone() })
    }

    /// Where it was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs `work` on a thread that has entered it; sockets opened there, and `/proc/sys/net`, are the namespace's.
    ///
    /// # Errors
    /// When it cannot be entered.
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

    /// For messages that name a namespace by its descriptor.
    pub(super) fn raw(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}
