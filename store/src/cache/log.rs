//! A cache file that this process wrote, and what is added to it.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;

use super::{Cache, Changed, Checksum, End, Entry, Header, Line, LogSection, VERSIONS};
use crate::Revision;

/// Of the writer, in bytes.
const BUFFER: usize = 64 << 10;
/// Lines that are written without a rest: half a millisecond of work, which is what others may have to wait for it.
const LINES_PER_STEP: usize = 128;
/// A rest is so many times as long as the work before it, and at most this long.
const STEP_PAUSE: (u32, Duration) = (3, Duration::from_millis(10));
/// Lines of stretches that a file may have, however few entries stand before them.
const LOG_LINES_MIN: usize = 1024;

/// The file, open at its end.
#[derive(Debug)]
pub struct Log {
    path: PathBuf,
    file: File,
    sum: Checksum,
    /// Device, inode and octets after the last write.
    known: [u64; 3],
    entries: usize,
    added: usize,
}

impl Cache {
    /// Writes the file whole; a reader sees the old or the new one, after a crash too. It takes its time: a large file is
    /// tenths of a second of work, which a change that waits to be enforced shall not wait for. Blocks the thread.
    ///
    /// # Errors
    /// What the file system says, with the path.
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
        // A left-over of a crash may have another mode.
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
    /// Whether so many lines more are better added than the file written whole: it is still there as it was left, and as
    /// many lines as its entries were not added yet.
    #[must_use]
    pub fn takes(&self, changes: usize) -> bool {
        let there = std::fs::symlink_metadata(&self.path).is_ok_and(|found| identity(&found) == self.known);
        there && self.added + changes <= self.entries.max(LOG_LINES_MIN)
    }

    /// Adds what changed: keys with their entries, or without when they are gone. As slow as [`Cache::create`].
    ///
    /// # Errors
    /// What the file system says, with the path; nothing can be added any more then.
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

/// Lines of JSON, with the checksum of all so far.
struct Lines<'a> {
    out: BufWriter<&'a File>,
    sum: Checksum,
    /// The last line; each is made in its place.
    text: Vec<u8>,
    /// Since the last rest.
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

    /// The checksum, as the last line, and told.
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
