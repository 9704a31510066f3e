//! The log file that the store names. Any writer of the store chooses its path, so it is a regular file below [`FOLDER`], reached without
//! a link; and a thread of its own opens and writes it, so that no disk keeps the agent waiting.

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

/// An agent with Landlock opens what was there at its start, and what is made below it.
const CLOSED: &str =
    "permission denied; where it was replaced or mounted after the agent's start, restart the agent";

/// Where log files may be.
pub(in crate::agent) const FOLDER: &str = "/var/log";
/// Lines that wait for the disk; what comes beyond them is left out.
const WAITING: usize = 4_096;
/// How long the end of the agent waits for lines to be written.
const LAST_LINES: Duration = Duration::from_secs(1);

/// The file that log lines go to, replaced when the path changes.
#[derive(Debug, Clone, Default)]
pub(super) struct LogFile(Arc<Mutex<Option<Writer>>>);

/// The thread that writes one file.
#[derive(Debug)]
struct Writer {
    lines: SyncSender<Vec<u8>>,
    thread: std::thread::JoinHandle<()>,
    /// Why it does not write.
    problem: Arc<ArcSwapOption<String>>,
}

impl LogFile {
    /// Goes on in the file of this path.
    pub(super) fn set(&self, path: Option<&Path>) {
        self.replace(path.map(Writer::start));
    }

    fn replace(&self, writer: Option<Writer>) -> Option<Writer> {
        std::mem::replace(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner), writer)
    }

    /// Hands a line over to the thread, and does not wait for it.
    pub(super) fn write(&self, line: &[u8]) {
        if let Some(writer) = self.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            let _ = writer.lines.try_send(line.to_vec());
        }
    }

    /// Why the file is not written, if so.
    pub(super) fn problem(&self) -> Option<String> {
        let writer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        writer.as_ref()?.problem.load().as_deref().cloned()
    }

    /// Waits a little for what was handed over.
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
                        // A full disk is no reason to stop routing.
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

/// Opens a regular file below a folder for more lines, and makes it with the folders on the way if it is not there. Nothing on
/// the way is a link, and what is there and no file is left alone: to open a pipe waits, and devices are worse.
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
        Errno::LOOP | Errno::NOTDIR => format!("{} is a link, or no folder", at.display()),
        Errno::NXIO => format!("{} is a pipe, or a socket", at.display()),
        Errno::ACCESS => format!("{}: {CLOSED}", at.display()),
        error => format!("{}: {error}", at.display()),
    };
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    // The folder itself is the administrator's, who may have put it elsewhere.
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
        return Err(format!("{} is no file", at.display()));
    }
    if stat.st_nlink != 1 {
        return Err(format!("{} has other names: it may be a file of another program", at.display()));
    }
    Ok(File::from(file))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Everything that a path can lead to besides a file of its own below the folder.
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
            (folder.join("twin"), "other names"),
            (folder.join("twin/agent.log"), "no folder"),
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
        // With a reader that waits, too.
        let _reader =
            rustix::fs::open(folder.join("pipe"), OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).unwrap();
        assert!(open(&folder, &folder.join("pipe")).unwrap_err().contains("no file"));
        assert_eq!(std::fs::read(outside.join("passwd")).unwrap(), b"x");
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1, "nothing was made there");
        for path in ["there/agent.log", "new/agent.log", "agent.log", "agent.log"] {
            open(&folder, &folder.join(path)).unwrap().write_all(b"line\n").unwrap();
        }
        assert_eq!(std::fs::read(folder.join("agent.log")).unwrap(), b"line\nline\n");
    }
}
