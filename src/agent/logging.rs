//! Logs: to stderr and, when asked for, to a file; levels and file follow the store live.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt, reload};

/// What the store (or a flag) wants of the logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LogSettings {
    /// `LogSeverityScreen`; `None` = off.
    pub(super) screen: Option<Severity>,
    /// `LogSeverityFile`; `None` = off.
    pub(super) file: Option<Severity>,
    /// `LogFilePath`; `None` = none.
    pub(super) path: Option<PathBuf>,
    /// `bgp/v1` `loglevel`.
    pub(super) bgp: BgpLevel,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self { screen: Some(Severity::Info), file: None, path: None, bgp: BgpLevel::Changes }
    }
}

/// Felix's severities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Severity {
    /// Everything.
    Debug,
    /// State changes.
    Info,
    /// What may need a hand.
    Warning,
    /// What failed.
    Error,
}

impl Severity {
    fn filter(self) -> LevelFilter {
        match self {
            Self::Debug => LevelFilter::DEBUG,
            Self::Info => LevelFilter::INFO,
            Self::Warning => LevelFilter::WARN,
            Self::Error => LevelFilter::ERROR,
        }
    }
}

/// What BGP logs: `none`, `debug`, and anything else = state changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BgpLevel {
    /// Nothing.
    Nothing,
    /// State changes.
    Changes,
    /// Everything.
    Everything,
}

/// The file that log lines go to, replaced when the path changes.
#[derive(Debug, Clone, Default)]
struct SharedFile(Arc<Mutex<Option<File>>>);

impl SharedFile {
    fn set(&self, file: Option<File>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = file;
    }
}

impl Write for SharedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.0.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            Some(file) => file.write(bytes),
            None => Ok(bytes.len()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Changes the logs while the agent runs.
pub(super) struct Logs {
    screen: reload::Handle<Targets, Registry>,
    file: Box<dyn Fn(Targets) + Send>,
    sink: SharedFile,
    current: LogSettings,
    /// Why the file is not written.
    trouble: Option<String>,
}

impl std::fmt::Debug for Logs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Logs").field("current", &self.current).finish_non_exhaustive()
    }
}

/// Starts logging for this process with the default settings.
#[must_use]
pub(super) fn start() -> Logs {
    let current = LogSettings::default();
    let (screen_filter, screen) = reload::Layer::new(targets(current.screen, current.bgp));
    let (file_filter, file) = reload::Layer::new(targets(None, current.bgp));
    let sink = SharedFile::default();
    let to_file = sink.clone();
    let colour = std::env::var_os("NO_COLOR").is_none() && io::IsTerminal::is_terminal(&io::stderr());
    // A second start in one process (tests) keeps the first subscriber; that is no reason to fail.
    let _ = tracing_subscriber::registry()
        .with(
            fmt::layer()
                .with_writer(io::stderr)
                .with_ansi(colour)
                .with_target(false)
                .with_filter(screen_filter),
        )
        .with(fmt::layer().with_writer(move || to_file.clone()).with_ansi(false).with_filter(file_filter))
        .with(super::metrics::LogCounter.with_filter(targets(Some(Severity::Info), BgpLevel::Changes)))
        .try_init();
    let set_file = move |filter: Targets| {
        let _ = file.reload(filter);
    };
    Logs { screen, file: Box::new(set_file), sink, current, trouble: None }
}

impl Logs {
    /// Takes new settings. Gives a sentence while the file cannot be opened; the screen goes on in any case.
    pub(super) fn apply(&mut self, wanted: &LogSettings) -> Option<String> {
        if *wanted == self.current {
            return self.trouble.clone();
        }
        if wanted.path != self.current.path {
            let opened = wanted.path.as_deref().map(open).transpose();
            match opened {
                Ok(file) => {
                    self.sink.set(file);
                    self.trouble = None;
                }
                Err(error) => {
                    self.sink.set(None);
                    let path = wanted.path.as_deref().unwrap_or(Path::new("")).display().to_string();
                    self.trouble = Some(format!("LogFilePath {path} cannot be opened: {error}"));
                }
            }
        }
        let _ = self.screen.reload(targets(wanted.screen, wanted.bgp));
        (self.file)(targets(wanted.file, wanted.bgp));
        self.current = wanted.clone();
        self.trouble.clone()
    }
}

fn open(path: &Path) -> io::Result<File> {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir)?;
    }
    OpenOptions::new().create(true).append(true).open(path)
}

fn targets(severity: Option<Severity>, bgp: BgpLevel) -> Targets {
    let Some(severity) = severity else {
        return Targets::new().with_default(LevelFilter::OFF);
    };
    let general = severity.filter();
    let speaker = match bgp {
        BgpLevel::Nothing => LevelFilter::OFF,
        BgpLevel::Changes => general.min(LevelFilter::INFO),
        BgpLevel::Everything => LevelFilter::TRACE,
    };
    // Libraries below the agent speak only when something is wrong.
    Targets::new()
        .with_default(general.min(LevelFilter::WARN))
        .with_target("tortie", general)
        .with_target("tortie::speaker", speaker)
        .with_target("bgp", speaker)
}
