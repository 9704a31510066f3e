//! Output formats of log lines: text, JSON, and the fields of systemd's journal.
//!
//! The layers of tracing-subscriber and tracing-journald are not used: they write an event at once, while a
//! suppressed repetition (`rate_limit.rs`) is written later with its count. Besides, their JSON has other
//! members (`timestamp`, numbers as numbers), and their journal entries contain CODE_FILE and CODE_LINE and
//! do not limit the length of a peer's text.
//!
//! ```text
//!   tracing --filter.rs--> Lines: Record --rate_limit.rs--> text | json | journal --> stderr, file, journald
//! ```

use std::collections::hash_map::DefaultHasher;
use std::fmt::Write as _;
use std::hash::{Hash, Hasher};
use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use crate::agent::logging::rate_limit::RepeatFilter;
use crate::api::{escape, terminal};

/// journald's socket (systemd.io/JOURNAL_NATIVE_PROTOCOL).
const JOURNAL: &str = "/run/systemd/journal/socket";
/// Maximum length of a value in the journal in octets, so that an entry fits into a datagram.
const MOST: usize = 32 << 10;

/// The form of log lines on standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogForm {
    /// The journal if standard error is connected to it, else text
    #[default]
    Auto,
    /// Plain text
    Text,
    /// JSON, one object per line
    Json,
    /// Fields of systemd's journal: CHANGE, PEER, PREFIX, REASON and others
    Journald,
}

/// One log line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::agent) struct Record {
    time: String,
    level: Level,
    target: String,
    message: String,
    fields: Vec<(&'static str, String)>,
}

impl Record {
    fn of(event: &Event<'_>) -> Self {
        let meta = event.metadata();
        let mut record = Self {
            time: format!("{:.6}", jiff::Timestamp::now()),
            level: *meta.level(),
            target: meta.target().to_owned(),
            message: String::new(),
            fields: Vec::new(),
        };
        event.record(&mut record);
        record
    }

    /// Returns a hash that is equal for repeated lines; numbers of changes and revisions are ignored.
    fn key(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.level.as_str(), &self.target, &self.message).hash(&mut hasher);
        for field in self.fields.iter().filter(|(name, _)| !matches!(*name, "change" | "revision")) {
            field.hash(&mut hasher);
        }
        hasher.finish()
    }

    fn text(&self, colour: bool) -> String {
        let (on, off) = match (colour, self.level) {
            (false, _) => ("", ""),
            (true, Level::ERROR) => ("\x1b[31m", "\x1b[0m"),
            (true, Level::WARN) => ("\x1b[33m", "\x1b[0m"),
            (true, Level::INFO) => ("\x1b[32m", "\x1b[0m"),
            (true, _) => ("\x1b[34m", "\x1b[0m"),
        };
        // Escapes text of peers and of the store, so that each message stays on one line.
        let message = escape::line(&self.message);
        let mut out = format!("{} {on}{:>5}{off} {message}", self.time, self.level);
        for (name, value) in &self.fields {
            let plain = !value.is_empty() && !value.contains([' ', '"', '=']);
            let value = if plain {
                escape::line(value).into_owned()
            } else {
                escape::line(&quoted(value)).into_owned()
            };
            let _ = write!(out, " {name}={value}");
        }
        out.push('\n');
        out
    }

    fn json(&self) -> String {
        let mut map = serde_json::Map::new();
        for (name, value) in [
            ("time", self.time.as_str()),
            ("level", self.level.as_str()),
            ("target", &self.target),
            ("message", &self.message),
        ] {
            map.insert(name.to_owned(), value.into());
        }
        for (name, value) in &self.fields {
            map.insert((*name).to_owned(), value.as_str().into());
        }
        format!("{}\n", escape::line(&serde_json::Value::Object(map).to_string()))
    }

    /// Formats a datagram for journald: `NAME=value`; for values of several lines the name, its length and
    /// the value.
    fn journal(&self) -> Vec<u8> {
        let priority = match self.level {
            Level::ERROR => "3",
            Level::WARN => "4",
            Level::INFO => "6",
            _ => "7",
        };
        let mut out = Vec::new();
        let mut put = |name: &str, value: &str| {
            // Line breaks in values are kept: the journal separates entries by itself.
            let value = escape::lines(value);
            let value = value.as_bytes().get(..value.len().min(MOST)).unwrap_or_default();
            out.extend_from_slice(name.as_bytes());
            if value.contains(&b'\n') {
                out.push(b'\n');
                out.extend_from_slice(&(value.len() as u64).to_le_bytes());
            } else {
                out.push(b'=');
            }
            out.extend_from_slice(value);
            out.push(b'\n');
        };
        put("MESSAGE", &self.message);
        put("PRIORITY", priority);
        put("SYSLOG_IDENTIFIER", "tortie");
        put("TARGET", &self.target);
        for (name, value) in &self.fields {
            let name: String = name
                .chars()
                .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' })
                .collect();
            put(name.trim_start_matches('_'), value);
        }
        out
    }
}

/// Quotes a text and escapes quotes in it.
fn quoted(text: &str) -> String {
    format!("{text:?}")
}

impl Visit for Record {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => value.clone_into(&mut self.message),
            name => self.fields.push((name, value.to_owned())),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            name => self.fields.push((name, format!("{value:?}"))),
        }
    }
}

/// Function that writes a line to a file.
type WriteLine = dyn Fn(&[u8]) + Send + Sync;

/// Destination of log lines with its format.
pub(in crate::agent) enum Sink {
    /// Standard error as text; true enables colours.
    Text(bool),
    /// Standard error as JSON.
    Json,
    /// journald's socket.
    Journal(UnixDatagram),
    /// A file, as text.
    File(Box<WriteLine>),
}

impl Sink {
    /// Selects the destination for standard error. If journald does not answer, lines are written as text.
    pub(in crate::agent) fn standard(form: LogForm) -> Self {
        let colour = terminal::takes_colors(&io::stderr());
        let journal = || {
            let socket = UnixDatagram::unbound().ok()?;
            socket.connect(JOURNAL).ok()?;
            Some(Self::Journal(socket))
        };
        match form {
            LogForm::Json => Self::Json,
            LogForm::Journald => journal().unwrap_or(Self::Text(colour)),
            LogForm::Auto if leads_to_journal() => journal().unwrap_or(Self::Text(colour)),
            LogForm::Auto | LogForm::Text => Self::Text(colour),
        }
    }

    fn put(&self, record: &Record) {
        // A write error cannot be reported anywhere.
        let _ = match self {
            Self::Text(colour) => io::stderr().lock().write_all(record.text(*colour).as_bytes()),
            Self::Json => io::stderr().lock().write_all(record.json().as_bytes()),
            Self::Journal(socket) => socket.send(&record.journal()).map(|_| ()),
            Self::File(write) => {
                write(record.text(false).as_bytes());
                Ok(())
            }
        };
    }
}

/// True if standard error leads to the journal, as systemd says in `JOURNAL_STREAM` (systemd.exec(5)).
fn leads_to_journal() -> bool {
    let Some(stream) = std::env::var("JOURNAL_STREAM").ok() else { return false };
    let Ok(stat) = rustix::fs::fstat(io::stderr()) else { return false };
    stream == format!("{}:{}", stat.st_dev, stat.st_ino)
}

/// Log layer of one sink; cheap to clone.
#[derive(Clone)]
pub(in crate::agent) struct Lines(Arc<(Sink, Mutex<RepeatFilter<Record>>)>);

impl Lines {
    pub(in crate::agent) fn new(sink: Sink) -> Self {
        Self(Arc::new((sink, Mutex::default())))
    }

    /// Writes suppressed lines whose time window is over.
    pub(in crate::agent) fn flush(&self, now: Instant) {
        let (sink, filter) = &*self.0;
        let due = filter.lock().unwrap_or_else(PoisonError::into_inner).due(now);
        for (mut record, held) in due {
            record.fields.push(("repeated", held.to_string()));
            sink.put(&record);
        }
    }
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let record = Record::of(event);
        let (sink, filter) = &*self.0;
        let key = record.key();
        let passed = filter.lock().unwrap_or_else(PoisonError::into_inner).take(key, record, Instant::now());
        if let Some(record) = passed {
            sink.put(&record);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record {
            time: "2026-11-22T05:52:16.000001Z".to_owned(),
            level: Level::WARN,
            target: "tortie::speaker".to_owned(),
            message: "tor-a: Established -> Idle".to_owned(),
            fields: vec![
                ("change", "c-7f31".to_owned()),
                ("peer", "tor-a".to_owned()),
                ("reason", "hold timer\nexpired".to_owned()),
            ],
        }
    }

    #[test]
    fn each_form_has_the_line_and_its_fields() {
        assert_eq!(
            record().text(false),
            "2026-11-22T05:52:16.000001Z  WARN tor-a: Established -> Idle change=c-7f31 peer=tor-a reason=\"hold timer\\nexpired\"\n"
        );
        let json: serde_json::Value = serde_json::from_str(&record().json()).unwrap();
        assert_eq!((&json["level"], &json["peer"]), (&"WARN".into(), &"tor-a".into()));
        assert_eq!(json["reason"], "hold timer\nexpired");
        // JOURNAL_NATIVE_PROTOCOL: a value of two lines has a 64-bit little-endian length.
        let wanted: Vec<u8> = [
            b"MESSAGE=tor-a: Established -> Idle\nPRIORITY=4\nSYSLOG_IDENTIFIER=tortie\nTARGET=tortie::speaker\n".as_slice(),
            b"CHANGE=c-7f31\nPEER=tor-a\nREASON\n\x12\0\0\0\0\0\0\0hold timer\nexpired\n",
        ]
        .concat();
        assert_eq!(record().journal(), wanted);
    }

    #[test]
    fn the_number_of_a_change_makes_no_other_line() {
        let with = |name, value: &str| Record { fields: vec![(name, value.to_owned())], ..record() };
        assert_eq!(with("change", "c-1").key(), with("change", "c-2").key());
        assert_ne!(with("peer", "a").key(), with("peer", "b").key());
    }
}
