//! The file of a journal: lines of JSON, one an input, as gzip or plain.
//!
//! The first line names version, host and options of the agent. A line with a checkpoint follows where the journal does not
//! begin with the agent's start. Members that this version does not know are passed over; a line that it cannot read is an
//! error with its number.

use std::io::{BufRead, BufReader, Read};
use std::time::{Duration, Instant};

use flate2::read::MultiGzDecoder;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::agent::core::checkpoint::{Checkpoint, Entries};
use crate::agent::core::input::{Input, Now};
use crate::agent::core::options::CoreOptions;

/// The form of the lines; a file with a greater number is refused.
pub(in crate::agent) const FORMAT: u32 = 1;
/// How gzip begins (RFC 1952 2.3.1).
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// The name of the journal in the archive of `tortie diags`.
pub const FILE: &str = "journal.jsonl.gz";

/// One line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::agent) enum Line {
    /// The first one.
    Journal(Box<Header>),
    /// The state that the first input meets; absent where that is the start of the agent.
    Checkpoint(Box<Base>),
    /// An input with the decisions on it.
    Input(Box<Step>),
    /// From here on differences count from nothing: the journal could begin here, too.
    Boundary,
}

/// Who recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::agent) struct Header {
    /// [`FORMAT`].
    pub(in crate::agent) format: u32,
    /// The version of the agent.
    pub(in crate::agent) version: String,
    /// When the agent started, in microseconds since 1970.
    pub(in crate::agent) started: i64,
    /// What it was started with.
    pub(in crate::agent) options: CoreOptions,
    /// Inputs that were lost before the first one of this file.
    #[serde(default)]
    pub(in crate::agent) lost: u64,
}

/// A state of the core.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::agent) struct Base {
    /// When it was taken.
    pub(in crate::agent) time: Time,
    /// What does not follow from the store.
    pub(in crate::agent) core: Checkpoint,
    /// The store.
    pub(in crate::agent) entries: Entries,
}

/// An input with what the recording agent decided on it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::agent) struct Step {
    /// When it came.
    pub(in crate::agent) time: Time,
    /// The input.
    pub(in crate::agent) input: Input,
    /// The decisions ([`decisions`](super::decisions)).
    pub(in crate::agent) decisions: Vec<String>,
}

/// Both clocks: nanoseconds since the start of the agent, and microseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::agent) struct Time(u64, i64);

impl Time {
    /// The time of an input; `started` is the start of the agent.
    pub(in crate::agent) fn of(now: Now, started: Instant) -> Self {
        Self(super::nanos(started, now.mono), now.wall.as_microsecond())
    }

    /// The time as the core takes it, when the agent had started at `started`.
    pub(in crate::agent) fn now(self, started: Instant) -> Now {
        Now { mono: started + Duration::from_nanos(self.0), wall: self.wall() }
    }

    /// The time of day.
    pub(in crate::agent) fn wall(self) -> Timestamp {
        Timestamp::from_microsecond(self.1).unwrap_or_default()
    }
}

/// Why a file is no journal that this version can run.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// It cannot be read, or unpacked.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// A line is not what stands there in a journal.
    #[error("line {0}: {1}")]
    Line(usize, String),
    /// Of a later version.
    #[error(
        "the file has format {0}, this version reads up to {FORMAT}: use a tortie of the version that wrote it"
    )]
    Format(u32),
    /// An archive without a journal.
    #[error("the archive has no {FILE}: it was made by an older tortie, or the agent did not answer")]
    NoJournal,
}

/// The lines of a journal, one after the other.
pub(in crate::agent) struct Lines<'a> {
    text: Box<dyn BufRead + 'a>,
    line: String,
    number: usize,
}

impl<'a> Lines<'a> {
    /// Of a file: gzip, or plain lines.
    pub(in crate::agent) fn of(octets: &'a [u8]) -> Self {
        let text: Box<dyn BufRead + 'a> = if octets.starts_with(&GZIP) {
            Box::new(BufReader::new(MultiGzDecoder::new(octets)))
        } else {
            Box::new(octets)
        };
        Self { text, line: String::new(), number: 0 }
    }

    /// The next line; `None`: the end.
    ///
    /// # Errors
    /// With the number of the line.
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

    /// The first line.
    ///
    /// # Errors
    /// When it is none of a journal, or of a later format.
    pub(in crate::agent) fn header(&mut self) -> Result<Header, JournalError> {
        match self.next()? {
            Some(Line::Journal(header)) if header.format > FORMAT => Err(JournalError::Format(header.format)),
            Some(Line::Journal(header)) => Ok(*header),
            _ => Err(JournalError::Line(1, "a journal begins with a line {\"journal\": ...}".to_owned())),
        }
    }
}

/// The journal of a file: the file itself, or what the archive of `tortie diags` has.
///
/// # Errors
/// [`JournalError`].
pub(crate) fn unpack(octets: Vec<u8>) -> Result<Vec<u8>, JournalError> {
    if !octets.starts_with(&GZIP) {
        return Ok(octets);
    }
    // A header of tar has `ustar` at octet 257 (POSIX.1-2001, pax).
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
