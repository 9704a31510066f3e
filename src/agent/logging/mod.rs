//! Logs: to stderr and, where the store says so, to a file. Levels and file follow the store live; an override from the
//! socket (`tortie log level`) holds for a while.

pub(super) mod counter;
mod file;
pub(super) mod filter;
pub(super) mod format;
pub(super) mod rate_limit;

use std::path::PathBuf;
use std::time::{Duration, Instant};

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

/// Settings of the logs from the store or a flag.
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
    /// Warnings.
    Warning,
    /// Failures.
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

/// The level of BGP: `none`, `debug`, and anything else = state changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BgpLevel {
    /// Nothing.
    Nothing,
    /// State changes.
    Changes,
    /// Everything.
    Everything,
}

/// Changes the logs while the agent runs.
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
    // A second start in one process (tests) keeps the first subscriber; that is no reason to fail.
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
    /// Takes new settings. The screen goes on whatever becomes of the file.
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

    /// Why the file is not written, if so.
    pub(super) fn problem(&self) -> Option<String> {
        self.file.problem()
    }

    /// The last lines go to the file.
    pub(super) fn finish(&self) {
        self.file.finish();
    }

    /// Overrides a level for a while, or with an empty rule ends all overrides; returns the new state in words.
    pub(super) fn set_level(&mut self, request: &LogLevelRequest, now: Instant) -> Result<String, String> {
        let text = if request.rule.is_empty() {
            let ended = self.overrides.clear();
            format!("{ended} levels are ended; what the store says holds again")
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

    /// Each second: overrides end, and lines that were held back are written.
    pub(super) fn tick(&mut self, now: Instant) {
        if self.overrides.expire(now) {
            self.reload();
            tracing::info!(target: "tortie", "log level: a level that was asked for has ended");
        }
        self.lines.iter().for_each(|lines| lines.flush(now));
    }

    /// The overrides in force, as notes of `status`.
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
    // Libraries below the agent speak only when something is wrong.
    Targets::new()
        .with_default(general.min(LevelFilter::WARN))
        .with_target("tortie", general)
        .with_target("tortie::speaker", speaker)
        .with_target("bgp", speaker)
}
