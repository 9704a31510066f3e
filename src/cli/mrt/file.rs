//! Reads an MRT file record by record, with only one record in memory.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use tortie_bgp::mrt::{Error, Raw, Record};

use crate::cli::failure::{Exit, Failure};

/// Number of octets per read.
const READ: usize = 256 * 1024;

/// An MRT file that is read from start to end.
pub(super) struct MrtFile {
    source: Box<dyn Read>,
    name: String,
    buffer: Vec<u8>,
    /// Number of processed octets in `buffer`.
    done: usize,
    /// Position of `buffer` in the file.
    start: u64,
}

impl MrtFile {
    /// Opens a file, or stdin for `-`.
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        let name = path.display().to_string();
        let source: Box<dyn Read> = if name == "-" {
            Box::new(io::stdin().lock())
        } else {
            Box::new(File::open(path).map_err(|e| Failure::usage(format!("{name} cannot be read: {e}")))?)
        };
        let mut file = Self { source, name, buffer: Vec::new(), done: 0, start: 0 };
        file.fill()?;
        let packer = match file.buffer.as_slice() {
            [0x1f, 0x8b, ..] => Some("zcat"),
            [b'B', b'Z', b'h', ..] => Some("bzcat"),
            [0xfd, b'7', b'z', b'X', b'Z', ..] => Some("xzcat"),
            _ => None,
        };
        match packer {
            Some(packer) => Err(Failure::usage(format!(
                "{0} is compressed: unpack it, or pipe it: {packer} {0} | tortie bgp mrt ... -",
                file.name
            ))),
            None => Ok(file),
        }
    }

    /// Reads more octets; `false` at the end of the file.
    fn fill(&mut self) -> Result<bool, Failure> {
        self.buffer.drain(..self.done);
        self.start += self.done as u64;
        self.done = 0;
        let before = self.buffer.len();
        self.buffer.resize(before + READ, 0);
        loop {
            let room = self.buffer.get_mut(before..).unwrap_or_default();
            match self.source.read(room) {
                Ok(n) => {
                    self.buffer.truncate(before + n);
                    return Ok(n > 0);
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Failure::new(Exit::Partial, "read", format!("{}: {e}", self.name))),
            }
        }
    }

    /// Passes the next record to `each`, or an error text with its position if it cannot be parsed. Returns
    /// `None` at the end.
    pub(super) fn next<T>(
        &mut self,
        each: impl FnOnce(Result<Record<'_>, String>) -> T,
    ) -> Result<Option<T>, Failure> {
        let len = loop {
            let rest = self.buffer.get(self.done..).unwrap_or_default();
            match Raw::next(rest) {
                Ok(Some(raw)) => break raw.len(),
                Ok(None) => {
                    let empty = rest.is_empty();
                    if self.fill()? {
                        continue;
                    }
                    if empty {
                        return Ok(None);
                    }
                    let at = self.start + self.buffer.len() as u64;
                    return Err(self.damaged(&format!("it ends in the middle of a record at octet {at}")));
                }
                Err(error) => return Err(self.damaged(&self.at(error))),
            }
        };
        let rest = self.buffer.get(self.done..).unwrap_or_default();
        let record = match Raw::next(rest) {
            Ok(Some(raw)) => raw.decode().map_err(|e| format!("{}: {}", self.name, self.at(e))),
            _ => Err(String::new()),
        };
        let answer = each(record);
        self.done += len;
        Ok(Some(answer))
    }

    fn at(&self, error: Error) -> String {
        Error { offset: self.start + self.done as u64 + error.offset, ..error }.to_string()
    }

    fn damaged(&self, what: &str) -> Failure {
        Failure::new(
            Exit::Usage,
            "no-mrt",
            format!(
                "{} is not an MRT file, or it is damaged: {what}; the records before it were read",
                self.name
            ),
        )
    }
}
