//! Log file at the path that the store configures.
//!
//! Any writer of the store can choose the path. It must therefore be a regular file below [`FOLDER`], reached
//! without symbolic links. A thread of its own opens and writes the file, so that a slow disk does not delay
//! the agent.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

/// Explanation of a refused access: with Landlock, the agent opens only files that existed at its start or
/// are below a folder that did.
const CLOSED: &str =
    "permission denied; if it was replaced or mounted after the agent's start, restart the agent";

/// Folder that log files must be in.
pub(in crate::agent) const FOLDER: &str = "/var/log";
/// Maximum number of lines that wait for the disk; further ones are dropped.
const WAITING: usize = 4_096;
/// Maximum wait at the end of the agent for lines to be written.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Current log file, replaced when the path changes.
#[derive(Debug, Clone, Default)]
pub(super) struct LogFile(Arc<Mutex<Option<Writer>>>);

/// Thread that writes one file.
#[derive(Debug)]
struct Writer {
    lines: SyncSender<Vec<u8>>,
    thread: std::thread::JoinHandle<()>,
    /// Reason why the file cannot be written.
    problem: Arc<ArcSwapOption<String>>,
}

impl LogFile {
    /// Switches to the file at this path.
    pub(super) fn set(&self, path: Option<&Path>) {
        self.replace(path.map(Writer::start));
    }

    fn replace(&self, writer: Option<Writer>) -> Option<Writer> {
        std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), writer)
    }

    /// Queues a line for the thread without waiting.
    pub(super) fn write(&self, line: &[u8]) {
        if let Some(writer) = self.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            let _ = writer.lines.try_send(line.to_vec());
        }
    }

    /// Returns the reason why the file cannot be written.
    pub(super) fn problem(&self) -> Option<String> {
        let writer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        writer.as_ref()?.problem.load().as_deref().cloned()
    }

    /// Waits a limited time for queued lines to be written.
    pub(super) fn finish(&self) {
        let Some(Writer { lines, thread, .. }) = self.replace(None) else { return };
        drop(lines);
        let begin = Instant::now();
        while !thread.is_finished() && begin.elapsed() < LAST_LINES {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Writer {
    fn start(path: &Path) -> Self {
        let (lines, inbox) = sync_channel::<Vec<u8>>(WAITING);
        let problem = Arc::new(ArcSwapOption::empty());
        let (path, reported) = (path.to_owned(), Arc::clone(&problem));
        let thread = std::thread::spawn(move || {
            let report = |text: Option<String>| reported.store(text.map(Arc::new));
            match open(Path::new(FOLDER), &path) {
                Ok(mut file) => {
                    for line in inbox {
                        // A full disk must not stop routing.
                        let written = file.write_all(&line);
                        report(written.err().map(|error| {
                            format!("LogFilePath {} cannot be written: {error}", path.display())
                        }));
                    }
                }
                Err(why) => report(Some(format!("LogFilePath {} cannot be opened: {why}", path.display()))),
            }
        });
        Self { lines, thread, problem }
    }
}

/// Opens a regular file below a folder for appending, and creates it with missing folders. Rejects symbolic
/// links on the path and existing files of other types: opening a pipe blocks, and opening a device may have
/// side effects.
fn open(folder: &Path, path: &Path) -> Result<File, String> {
    let outside = || format!("it is not below {}", folder.display());
    let parts: Option<Vec<&std::ffi::OsStr>> = path
        .strip_prefix(folder)
        .map_err(|_| outside())?
        .components()
        .map(|part| if let Component::Normal(name) = part { Some(name) } else { None })
        .collect();
    let parts = parts.ok_or_else(outside)?;
    let [folders @ .., name] = parts.as_slice() else { return Err(outside()) };
    let mut at: PathBuf = folder.to_owned();
    let wrong = |at: &Path, error: Errno| match error {
        Errno::LOOP | Errno::NOTDIR => format!("{} is a link, or not a folder", at.display()),
        Errno::NXIO => format!("{} is a pipe, or a socket", at.display()),
        Errno::ACCESS => format!("{}: {CLOSED}", at.display()),
        error => format!("{}: {error}", at.display()),
    };
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    // The top folder may be a link, since only an administrator can replace it.
    let mut below: OwnedFd = rustix::fs::open(folder, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| wrong(&at, error))?;
    for part in folders {
        at.push(part);
        match rustix::fs::mkdirat(&below, *part, Mode::from(0o755)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(wrong(&at, error)),
        }
        below = rustix::fs::openat(&below, *part, OFlags::DIRECTORY | flags, Mode::empty())
            .map_err(|error| wrong(&at, error))?;
    }
    at.push(name);
    let file = rustix::fs::openat(
        &below,
        *name,
        OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::NOCTTY | flags,
        Mode::from(0o640),
    )
    .map_err(|error| wrong(&at, error))?;
    let stat = rustix::fs::fstat(&file).map_err(|error| wrong(&at, error))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(format!("{} is not a regular file", at.display()));
    }
    if stat.st_nlink != 1 {
        return Err(format!("{} has other hard links: it may be a file of another program", at.display()));
    }
    Ok(File::from(file))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Covers all targets of a path other than a regular file below the folder.
    #[test]
    fn only_a_file_of_its_own_below_the_folder_is_opened() {
        let dir = tempfile::tempdir().unwrap();
        let (folder, outside) = (dir.path().join("log"), dir.path().join("outside"));
        std::fs::create_dir_all(folder.join("there")).unwrap();
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("passwd"), "x").unwrap();
        symlink(outside.join("passwd"), folder.join("link")).unwrap();
        symlink(outside.join("new"), folder.join("dangling")).unwrap();
        symlink(&outside, folder.join("linked")).unwrap();
        std::fs::hard_link(outside.join("passwd"), folder.join("twin")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, folder.join("pipe"), FileType::Fifo, Mode::from(0o600), 0)
            .unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(folder.join("socket")).unwrap();
        let refused = [
            (folder.join("link"), "link"),
            (folder.join("dangling"), "link"),
            (folder.join("linked/passwd"), "link"),
            (folder.join("linked/new/agent.log"), "link"),
            (folder.join("twin"), "other hard links"),
            (folder.join("twin/agent.log"), "not a folder"),
            (folder.join("pipe"), "pipe"),
            (folder.join("socket"), "socket"),
            (folder.join("there"), "directory"),
            (folder.join("../outside/passwd"), "not below"),
            (folder.clone(), "not below"),
            (outside.join("passwd"), "not below"),
            ("/dev/null".into(), "not below"),
            ("log/agent.log".into(), "not below"),
        ];
        for (path, why) in refused {
            let said = open(&folder, &path).map(drop).unwrap_err();
            assert!(said.contains(why), "{}: {said}", path.display());
        }
        // A pipe with a waiting reader is rejected, too.
        let _reader =
            rustix::fs::open(folder.join("pipe"), OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).unwrap();
        assert!(open(&folder, &folder.join("pipe")).unwrap_err().contains("not a regular file"));
        assert_eq!(std::fs::read(outside.join("passwd")).unwrap(), b"x");
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1, "nothing was made there");
        for path in ["there/agent.log", "new/agent.log", "agent.log", "agent.log"] {
            open(&folder, &folder.join(path)).unwrap().write_all(b"line\n").unwrap();
        }
        assert_eq!(std::fs::read(folder.join("agent.log")).unwrap(), b"line\nline\n");
    }
}
