//! File format of a journal: one line of JSON per input, compressed with gzip or plain.
//!
//! The first line contains version, host and options of the agent. A checkpoint line follows if the journal
//! does not begin at the agent's start. Unknown members are ignored; an unreadable line is an error with its
//! number.

use std::io::{BufRead, BufReader, Read};
use std::time::{Duration, Instant};

use flate2::read::MultiGzDecoder;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::agent::core::checkpoint::{Checkpoint, Entries};
use crate::agent::core::input::{Input, Now};
use crate::agent::core::options::CoreOptions;

/// Format version; files with a higher version are rejected.
pub(in crate::agent) const FORMAT: u32 = 1;
/// Magic number of gzip (RFC 1952, section 2.3.1).
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// File name of the journal in the archive of `tortie diags`.
pub const FILE: &str = "journal.jsonl.gz";

/// One line of a journal.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::agent) enum Line {
    /// Header, the first line.
    Journal(Box<Header>),
    /// State of the core before the first input; absent if that is the start of the agent.
    Checkpoint(Box<Base>),
    /// An input with the decisions on it.
    Input(Box<Step>),
    /// Differences start from empty intents here, so that the journal could begin at this line.
    Boundary,
}

/// Origin of a journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::agent) struct Header {
    /// Format version, see [`FORMAT`].
    pub(in crate::agent) format: u32,
    /// Version of the agent.
    pub(in crate::agent) version: String,
    /// Start of the agent, in microseconds since 1970.
    pub(in crate::agent) started: i64,
    /// Start options of the agent's core.
    pub(in crate::agent) options: CoreOptions,
    /// Number of inputs lost before the first one of this file.
    #[serde(default)]
    pub(in crate::agent) lost: u64,
}

/// State of the core and the store at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::agent) struct Base {
    /// Time of the checkpoint.
    pub(in crate::agent) time: Time,
    /// State of the core that does not follow from the store.
    pub(in crate::agent) core: Checkpoint,
    /// Entries of the store.
    pub(in crate::agent) entries: Entries,
}

/// An input with the recording agent's decisions on it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::agent) struct Step {
    /// Arrival time of the input.
    pub(in crate::agent) time: Time,
    /// The recorded input, without secrets.
    pub(in crate::agent) input: Input,
    /// Lines of its decisions ([`decisions`](super::decisions)).
    pub(in crate::agent) decisions: Vec<String>,
}

/// Time by both clocks: nanoseconds since the start of the agent, and microseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::agent) struct Time(u64, i64);

impl Time {
    /// Converts the time of an input; `started` is the start of the agent.
    pub(in crate::agent) fn of(now: Now, started: Instant) -> Self {
        Self(super::nanos(started, now.mono), now.wall.as_microsecond())
    }

    /// Converts to the core's time, for an agent that started at `started`.
    pub(in crate::agent) fn now(self, started: Instant) -> Now {
        Now { mono: started + Duration::from_nanos(self.0), wall: self.wall() }
    }

    /// Returns the wall clock time.
    pub(in crate::agent) fn wall(self) -> Timestamp {
        Timestamp::from_microsecond(self.1).unwrap_or_default()
    }
}

/// Reasons why a file cannot be replayed by this version.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file cannot be read or decompressed.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// A line is invalid; its number and the error.
    #[error("line {0}: {1}")]
    Line(usize, String),
    /// The file was written by a later version.
    #[error(
        "the file has format {0}, this version reads up to {FORMAT}: use the version of tortie that wrote it"
    )]
    Format(u32),
    /// The archive contains no journal.
    #[error("the archive has no {FILE}: it was made by an older tortie, or the agent did not answer")]
    NoJournal,
}

/// Iterator over the lines of a journal.
pub(in crate::agent) struct Lines<'a> {
    text: Box<dyn BufRead + 'a>,
    line: String,
    number: usize,
}

impl<'a> Lines<'a> {
    /// Reads a file of gzip or plain lines.
    pub(in crate::agent) fn of(octets: &'a [u8]) -> Self {
        let text: Box<dyn BufRead + 'a> = if octets.starts_with(&GZIP) {
            Box::new(BufReader::new(MultiGzDecoder::new(octets)))
        } else {
            Box::new(octets)
        };
        Self { text, line: String::new(), number: 0 }
    }

    /// Returns the next line; `None` at the end.
    ///
    /// # Errors
    /// Returns an error with the number of the line.
    pub(in crate::agent) fn next(&mut self) -> Result<Option<Line>, JournalError> {
        self.line.clear();
        self.number += 1;
        if self.text.read_line(&mut self.line)? == 0 {
            return Ok(None);
        }
        match serde_json::from_str(&self.line) {
            Ok(line) => Ok(Some(line)),
            Err(error) => Err(JournalError::Line(self.number, error.to_string())),
        }
    }

    /// Reads the first line.
    ///
    /// # Errors
    /// Returns an error when it is not a journal header, or has a later format.
    pub(in crate::agent) fn header(&mut self) -> Result<Header, JournalError> {
        match self.next()? {
            Some(Line::Journal(header)) if header.format > FORMAT => Err(JournalError::Format(header.format)),
            Some(Line::Journal(header)) => Ok(*header),
            _ => Err(JournalError::Line(1, "a journal begins with a line {\"journal\": ...}".to_owned())),
        }
    }
}

/// Returns the journal in a file: the file itself, or the member of an archive of `tortie diags`.
///
/// # Errors
/// As [`JournalError`] says.
pub(crate) fn unpack(octets: Vec<u8>) -> Result<Vec<u8>, JournalError> {
    if !octets.starts_with(&GZIP) {
        return Ok(octets);
    }
    // A tar header has `ustar` at octet 257 (POSIX.1-2001, pax).
    let mut begin = [0; 262];
    let is_tar = MultiGzDecoder::new(&*octets).read_exact(&mut begin).is_ok() && begin.ends_with(b"ustar");
    if !is_tar {
        return Ok(octets);
    }
    let mut archive = tar::Archive::new(MultiGzDecoder::new(&*octets));
    for entry in archive.entries()? {
        let mut entry = entry?;
        if entry.path()?.file_name().is_some_and(|name| name == FILE) {
            let mut journal = Vec::new();
            entry.read_to_end(&mut journal)?;
            return Ok(journal);
        }
    }
    Err(JournalError::NoJournal)
}
