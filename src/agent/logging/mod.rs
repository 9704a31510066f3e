//! Logging to standard error and, if the store configures one, to a file. Levels and file follow the store at
//! run time; `tortie log level` overrides levels for a limited time.

pub(super) mod counter;
mod file;
pub(super) mod filter;
pub(super) mod format;
pub(super) mod rate_limit;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use tortie_config::counted;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, reload};

pub(in crate::agent) use crate::agent::logging::file::FOLDER;
use crate::agent::logging::file::LogFile;
use crate::agent::logging::filter::{LevelOverride, LevelOverrides, Levels};
use crate::agent::logging::format::{Lines, LogForm, Sink};
use crate::api::codes;
use crate::api::problem::Problem;
use crate::api::status::LogLevelRequest;

/// Log settings from the store or a flag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LogSettings {
    /// Level of standard error (`LogSeverityScreen`); `None` disables it.
    pub(super) screen: Option<Severity>,
    /// Level of the file (`LogSeverityFile`); `None` disables it.
    pub(super) file: Option<Severity>,
    /// Path of the file (`LogFilePath`); `None` disables it.
    pub(super) path: Option<PathBuf>,
    /// Level of BGP messages (`loglevel` below `bgp/v1`).
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
    /// Debug messages and all others.
    Debug,
    /// State changes and more severe messages.
    Info,
    /// Warnings and errors.
    Warning,
    /// Errors only.
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

/// Level of BGP messages: `none`, `debug`; any other value means state changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BgpLevel {
    /// No messages.
    Nothing,
    /// State changes.
    Changes,
    /// All messages.
    Everything,
}

/// Handle to change logging at run time.
pub(super) struct Logs {
    set: Box<dyn Fn(Levels, Levels) + Send>,
    lines: [Lines; 2],
    file: LogFile,
    current: LogSettings,
    overrides: LevelOverrides,
}

impl std::fmt::Debug for Logs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Logs").field("current", &self.current).finish_non_exhaustive()
    }
}

/// Starts logging for this process with the default settings.
#[must_use]
pub(super) fn start(form: LogForm) -> Logs {
    let current = LogSettings::default();
    let levels =
        |severity| Levels { base: targets(severity, current.bgp), overrides: LevelOverrides::default() };
    let (screen_filter, screen) = reload::Layer::<Levels, Registry>::new(levels(current.screen));
    let (file_filter, file) = reload::Layer::new(levels(None));
    let file_of_lines = LogFile::default();
    let to_file = file_of_lines.clone();
    let on_screen = Lines::new(Sink::standard(form));
    let in_file = Lines::new(Sink::File(Box::new(move |line| to_file.write(line))));
    // A second start in one process, as in tests, keeps the first subscriber.
    let _ = tracing_subscriber::registry()
        .with(on_screen.clone().with_filter(screen_filter))
        .with(in_file.clone().with_filter(file_filter))
        .with(counter::LogCounter.with_filter(targets(Some(Severity::Info), BgpLevel::Changes)))
        .try_init();
    let set = move |on_screen: Levels, in_file: Levels| {
        let _ = screen.reload(on_screen);
        let _ = file.reload(in_file);
    };
    Logs {
        set: Box::new(set),
        lines: [on_screen, in_file],
        file: file_of_lines,
        current,
        overrides: LevelOverrides::default(),
    }
}

impl Logs {
    /// Applies new settings. Errors of the file do not affect standard error.
    pub(super) fn apply(&mut self, wanted: &LogSettings) {
        if *wanted == self.current {
            return;
        }
        if wanted.path != self.current.path {
            self.file.set(wanted.path.as_deref());
        }
        self.current = wanted.clone();
        self.reload();
    }

    /// Returns the reason why the file cannot be written.
    pub(super) fn problem(&self) -> Option<String> {
        self.file.problem()
    }

    /// Writes the last lines to the file.
    pub(super) fn finish(&self) {
        self.file.finish();
    }

    /// Overrides a level for a limited time; an empty rule ends all overrides. Returns a description of the
    /// new state.
    pub(super) fn set_level(&mut self, request: &LogLevelRequest, now: Instant) -> Result<String, String> {
        let text = if request.rule.is_empty() {
            let ended = self.overrides.clear();
            format!("{} ended; the levels in the store apply again", counted(ended, "temporary level"))
        } else {
            let level = LevelOverride::read(&request.rule, Duration::from_secs(request.seconds), now)?;
            let text = format!("{} is logged at {} for {} s", level.subject, level.level, request.seconds);
            self.overrides.add(level)?;
            text
        };
        self.reload();
        tracing::info!(target: "tortie", "log level: {text}");
        Ok(text)
    }

    /// Ends expired overrides and writes suppressed lines; called every second.
    pub(super) fn tick(&mut self, now: Instant) {
        if self.overrides.expire(now) {
            self.reload();
            tracing::info!(target: "tortie", "log level: a temporary level has ended");
        }
        self.lines.iter().for_each(|lines| lines.flush(now));
    }

    /// Returns the active overrides as notes of `status`.
    pub(super) fn notes(&self, now: Instant) -> Vec<Problem> {
        let note = |entry: &LevelOverride| {
            let left = entry.until.saturating_duration_since(now).as_secs();
            let text = format!("is logged at {} for {left} s more", entry.level);
            codes::LOG_LEVEL.problem("", format!("log {}", entry.subject), text)
        };
        self.overrides.iter().map(note).collect()
    }

    fn reload(&self) {
        let levels = |severity| Levels {
            base: targets(severity, self.current.bgp),
            overrides: if severity.is_some() { self.overrides.clone() } else { LevelOverrides::default() },
        };
        (self.set)(levels(self.current.screen), levels(self.current.file));
    }
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
    // Other libraries log warnings and errors only.
    Targets::new()
        .with_default(general.min(LevelFilter::WARN))
        .with_target("tortie", general)
        .with_target("tortie::speaker", speaker)
        .with_target("bgp", speaker)
}
