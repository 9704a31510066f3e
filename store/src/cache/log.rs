//! The cache file that this process wrote, open for appending changes.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;

use super::{Cache, Changed, Checksum, End, Entry, Header, Line, LogSection, VERSIONS};
use crate::Revision;

/// Size of the write buffer, in octets.
const BUFFER: usize = 64 << 10;
/// Lines written between two pauses: half a millisecond of work, the longest delay for other tasks.
const LINES_PER_STEP: usize = 128;
/// Pause as a multiple of the time worked before it, and its upper limit.
const STEP_PAUSE: (u32, Duration) = (3, Duration::from_millis(10));
/// Minimum number of log lines before the file is rewritten, however few entries it has.
const LOG_LINES_MIN: usize = 1024;

/// The cache file, opened for appending.
#[derive(Debug)]
pub struct Log {
    path: PathBuf,
    file: File,
    sum: Checksum,
    /// Device, inode and length in octets after the last write.
    known: [u64; 3],
    entries: usize,
    added: usize,
}

impl Cache {
    /// Writes the whole file. Readers see either the old or the new file, even after a crash. The write
    /// pauses regularly: a large file takes tenths of a second of work, which must not delay the enforcement
    /// of a change. Blocks the thread.
    ///
    /// # Errors
    /// The error of the file system, with the path.
    pub fn create<'a>(
        &self,
        store_id: &str,
        revision: Revision,
        entries: impl ExactSizeIterator<Item = Entry<'a>>,
    ) -> io::Result<Log> {
        self.write(store_id, revision, entries).map_err(|e| in_place(&self.path, &e))
    }

    fn write<'a>(
        &self,
        store_id: &str,
        revision: Revision,
        entries: impl ExactSizeIterator<Item = Entry<'a>>,
    ) -> io::Result<Log> {
        let mut sibling = self.path.clone().into_os_string();
        sibling.push(".new");
        let sibling = PathBuf::from(sibling);
        // A file left over from a crash may have another mode.
        match std::fs::remove_file(&sibling) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(&sibling)?;
        let count = entries.len();
        let mut lines = Lines::new(&file, Checksum::default());
        lines.add(&Header {
            tortie_cache: *VERSIONS.end(),
            store_id: store_id.to_owned(),
            revision,
            entries: count,
            saved_unix: now(),
        })?;
        for entry in entries {
            lines.add(&Line::of(entry))?;
        }
        let sum = lines.end()?;
        file.sync_all()?;
        std::fs::rename(&sibling, &self.path)?;
        match self.path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => File::open(folder)?.sync_all()?,
            _ => {}
        }
        let known = identity(&file.metadata()?);
        Ok(Log { path: self.path.clone(), file, sum, known, entries: count, added: 0 })
    }
}

impl Log {
    /// Returns true if `changes` more lines should be appended rather than the whole file rewritten: the file
    /// is unchanged since the last write, and its log lines do not outnumber its entries (or
    /// `LOG_LINES_MIN`).
    #[must_use]
    pub fn takes(&self, changes: usize) -> bool {
        let there = std::fs::symlink_metadata(&self.path).is_ok_and(|found| identity(&found) == self.known);
        there && self.added + changes <= self.entries.max(LOG_LINES_MIN)
    }

    /// Appends changes: keys with their entries, or without one if the key was deleted. Pauses as
    /// [`Cache::create`] does.
    ///
    /// # Errors
    /// The error of the file system, with the path; nothing can be appended afterwards.
    pub fn append<'a>(
        mut self,
        revision: Revision,
        changes: impl ExactSizeIterator<Item = (&'a str, Option<Entry<'a>>)>,
    ) -> io::Result<Self> {
        self.added += changes.len();
        let write = || {
            let mut lines = Lines::new(&self.file, self.sum);
            lines.add(&LogSection { revision, changes: changes.len(), saved_unix: now() })?;
            for (key, entry) in changes {
                lines.add(&match entry {
                    Some(entry) => Changed::Put(Line::of(entry)),
                    None => Changed::Deleted { gone: key.into() },
                })?;
            }
            let sum = lines.end()?;
            self.file.sync_data()?;
            io::Result::Ok((sum, identity(&self.file.metadata()?)))
        };
        (self.sum, self.known) = write().map_err(|e| in_place(&self.path, &e))?;
        Ok(self)
    }
}

fn in_place(path: &Path, e: &io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("{}: {e}", path.display()))
}

fn identity(found: &std::fs::Metadata) -> [u64; 3] {
    [found.dev(), found.ino(), found.len()]
}

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Writes lines of JSON and computes their checksum.
struct Lines<'a> {
    out: BufWriter<&'a File>,
    sum: Checksum,
    /// Buffer for one line, reused.
    text: Vec<u8>,
    /// Lines since the last pause, and the time of that pause.
    since_yield: (usize, Instant),
}

impl<'a> Lines<'a> {
    fn new(file: &'a File, sum: Checksum) -> Self {
        let out = BufWriter::with_capacity(BUFFER, file);
        Self { out, sum, text: Vec::new(), since_yield: (0, Instant::now()) }
    }

    fn add(&mut self, line: &impl Serialize) -> io::Result<()> {
        self.put(line)?;
        self.sum.add(&self.text);
        self.since_yield.0 += 1;
        if self.since_yield.0 == LINES_PER_STEP {
            std::thread::sleep((self.since_yield.1.elapsed() * STEP_PAUSE.0).min(STEP_PAUSE.1));
            self.since_yield = (0, Instant::now());
        }
        Ok(())
    }

    /// Writes the checksum as the last line and returns it.
    fn end(mut self) -> io::Result<Checksum> {
        self.put(&End { checksum: self.sum.text() })?;
        self.out.flush()?;
        Ok(self.sum)
    }

    fn put(&mut self, line: &impl Serialize) -> io::Result<()> {
        self.text.clear();
        serde_json::to_writer(&mut self.text, line)?;
        self.out.write_all(&self.text)?;
        self.out.write_all(b"\n")
    }
}
