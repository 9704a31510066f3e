//! Logs of a plugin call: to the system log, to a file, or to stderr on request. stdout is reserved for the
//! result.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer as _, fmt};

use crate::plugins::cni::config::settings::{LogSettings, LogTarget};

/// Size in bytes above which a file is renamed to `FILE.1`.
const FILE_MAX: u64 = 10 << 20;
/// Facility daemon (3), severity informational (6): RFC 5424 section 6.2.1.
const PRIORITY: u8 = 3 * 8 + 6;

/// Starts logging for this process. A destination that cannot be opened is ignored, because a full disk must
/// not prevent the start of a container.
pub(super) fn start(settings: &LogSettings, program: &str) {
    let level = tracing_subscriber::filter::LevelFilter::from_level(settings.level);
    let filter = Targets::new().with_target("tortie", level);
    let sink = match &settings.target {
        LogTarget::Nowhere => return,
        LogTarget::Stderr => Sink::Stderr,
        LogTarget::Syslog => match syslog(program) {
            Some(sink) => sink,
            None => return,
        },
        LogTarget::File(path) => match open(path) {
            Ok(file) => Sink::File(file),
            Err(_) => return,
        },
    };
    let stamped = matches!(sink, Sink::File(_) | Sink::Stderr);
    let sink = Shared(Arc::new(Mutex::new(sink)));
    let layer = fmt::layer().with_writer(move || sink.clone()).with_ansi(false).with_target(false);
    // The system log adds its own timestamps.
    let _ = if stamped {
        tracing_subscriber::registry().with(layer.with_filter(filter)).try_init()
    } else {
        tracing_subscriber::registry().with(layer.without_time().with_filter(filter)).try_init()
    };
}

#[derive(Debug)]
enum Sink {
    Stderr,
    File(File),
    Syslog { socket: UnixDatagram, head: String },
}

#[derive(Debug, Clone)]
struct Shared(Arc<Mutex<Sink>>);

impl Write for Shared {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            Sink::Stderr => io::stderr().write_all(line)?,
            // One write per line, because several plugins append to one file.
            Sink::File(file) => file.write_all(line)?,
            Sink::Syslog { socket, head } => {
                let mut datagram = head.clone().into_bytes();
                datagram.extend_from_slice(line.trim_ascii_end());
                // The socket is non-blocking: a log that is not read must not delay the call.
                let _ = socket.send(&datagram);
            }
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn syslog(program: &str) -> Option<Sink> {
    let socket = UnixDatagram::unbound().ok()?;
    socket.connect("/dev/log").ok()?;
    socket.set_nonblocking(true).ok()?;
    Some(Sink::Syslog { socket, head: format!("<{PRIORITY}>{program}[{}]: ", std::process::id()) })
}

fn open(path: &Path) -> io::Result<File> {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir)?;
    }
    if std::fs::metadata(path).is_ok_and(|found| found.len() > FILE_MAX) {
        let mut old = path.as_os_str().to_owned();
        old.push(".1");
        let _ = std::fs::rename(path, PathBuf::from(old));
    }
    OpenOptions::new().create(true).append(true).open(path)
}
