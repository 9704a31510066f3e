//! The last good snapshot on disk, for an agent that starts while the store is away.
//!
//! One line of JSON for each entry between a header and a last line with a checksum: a person can read it, a torn or
//! edited file is seen. Written beside and renamed, mode 0600 (values hold passwords), at most each 10 s.

use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};

use super::{KeyValue, Revision, Snapshot, StoreError};

/// Least time between two writes.
pub const CACHE_INTERVAL: Duration = Duration::from_secs(10);

const VERSION: u32 = 1;

/// Of the writer, in bytes.
const BUFFER: usize = 64 << 10;

/// A cache file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cache {
    path: PathBuf,
}

/// What was read from a cache file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cached {
    /// The last good snapshot.
    pub snapshot: Snapshot,
    /// When it was written.
    pub saved: SystemTime,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Header {
    tortie_cache: u32,
    store_id: String,
    revision: Revision,
    entries: usize,
    saved_unix: u64,
}

/// A key with its value that goes into the file.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    /// The full key.
    pub key: &'a str,
    /// The value as stored.
    pub value: &'a [u8],
    /// Revision of the last write of this key.
    pub mod_revision: Revision,
    /// Revision of the write that created this key.
    pub create_revision: Revision,
}

#[derive(Serialize, Deserialize)]
struct Line<'a> {
    key: Cow<'a, str>,
    #[serde(rename = "mod")]
    modified: Revision,
    created: Revision,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    value: Option<Cow<'a, str>>,
    /// A value that is no text.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    bytes: Option<Cow<'a, [u8]>>,
}

#[derive(Serialize, Deserialize)]
struct End {
    checksum: String,
}

impl Cache {
    /// A cache at this path; nothing is opened yet.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// Reads the file; `None` when there is none.
    ///
    /// # Errors
    /// [`StoreError::Unusable`] with the line for a file that cannot be read or is damaged; the caller goes on without.
    pub fn load(&self) -> Result<Option<Cached>, StoreError> {
        let bad = |line: usize, why: &str| {
            StoreError::Unusable(format!(
                "cache {} line {line}: {why}; it is not used and will be written anew",
                self.path.display()
            ))
        };
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(bad(0, &e.to_string())),
        };
        let mut sum = Checksum::default();
        let mut lines = BufReader::new(file).split(b'\n').enumerate();
        let mut next = || match lines.next() {
            None => Err(bad(0, "the end is missing")),
            Some((n, Err(e))) => Err(bad(n + 1, &e.to_string())),
            Some((n, Ok(line))) => Ok((n + 1, line)),
        };
        let (n, line) = next()?;
        let header: Header = serde_json::from_slice(&line).map_err(|e| bad(n, &e.to_string()))?;
        if header.tortie_cache != VERSION {
            return Err(bad(n, &format!("version {} is unknown", header.tortie_cache)));
        }
        sum.add(&line);
        let mut entries = Vec::new();
        for _ in 0..header.entries {
            let (n, line) = next()?;
            let entry: Line<'_> = serde_json::from_slice(&line).map_err(|e| bad(n, &e.to_string()))?;
            let Some(value) =
                entry.value.map(|text| text.into_owned().into_bytes()).or(entry.bytes.map(Cow::into_owned))
            else {
                return Err(bad(n, "neither value nor bytes"));
            };
            sum.add(&line);
            entries.push(KeyValue {
                key: entry.key.into_owned(),
                value,
                mod_revision: entry.modified,
                create_revision: entry.created,
            });
        }
        let (n, line) = next()?;
        let end: End = serde_json::from_slice(&line).map_err(|e| bad(n, &e.to_string()))?;
        if end.checksum != sum.text() {
            return Err(bad(n, "the checksum is wrong"));
        }
        let saved = SystemTime::UNIX_EPOCH + Duration::from_secs(header.saved_unix);
        let snapshot =
            Snapshot { revision: header.revision, store_id: header.store_id, entries, ..Snapshot::default() };
        Ok(Some(Cached { snapshot, saved }))
    }

    /// Writes the file whole; a reader sees the old or the new one, after a crash too.
    ///
    /// # Errors
    /// What the file system says, with the path.
    pub fn save<'a>(
        &self,
        store_id: &str,
        revision: Revision,
        entries: impl ExactSizeIterator<Item = Entry<'a>>,
    ) -> io::Result<()> {
        let in_place = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", self.path.display()));
        self.write(store_id, revision, entries).map_err(in_place)
    }

    fn write<'a>(
        &self,
        store_id: &str,
        revision: Revision,
        entries: impl ExactSizeIterator<Item = Entry<'a>>,
    ) -> io::Result<()> {
        let mut beside = self.path.clone().into_os_string();
        beside.push(".new");
        let beside = PathBuf::from(beside);
        // A left-over of a crash may have another mode.
        match std::fs::remove_file(&beside) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
        let mut lines = Lines::new(BufWriter::with_capacity(BUFFER, file));
        let saved = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        lines.add(&Header {
            tortie_cache: VERSION,
            store_id: store_id.to_owned(),
            revision,
            entries: entries.len(),
            saved_unix: saved.as_secs(),
        })?;
        for entry in entries {
            let value = std::str::from_utf8(entry.value);
            lines.add(&Line {
                key: entry.key.into(),
                modified: entry.mod_revision,
                created: entry.create_revision,
                bytes: value.is_err().then_some(entry.value.into()),
                value: value.ok().map(Cow::from),
            })?;
        }
        let checksum = lines.sum.text();
        lines.add(&End { checksum })?;
        lines.out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        std::fs::rename(&beside, &self.path)?;
        match self.path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => File::open(folder)?.sync_all(),
            _ => Ok(()),
        }
    }
}

/// Lines of JSON, with the checksum of all so far.
struct Lines<W> {
    out: W,
    sum: Checksum,
    /// The last line; each is made in its place.
    text: Vec<u8>,
}

impl<W: Write> Lines<W> {
    fn new(out: W) -> Self {
        Self { out, sum: Checksum::default(), text: Vec::new() }
    }

    fn add(&mut self, line: &impl Serialize) -> io::Result<()> {
        self.text.clear();
        serde_json::to_writer(&mut self.text, line)?;
        self.sum.add(&self.text);
        self.text.push(b'\n');
        self.out.write_all(&self.text)
    }
}

/// FNV-1a, 64 bits: finds torn and edited files, protects from nobody.
struct Checksum(u64);

impl Default for Checksum {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Checksum {
    fn add(&mut self, line: &[u8]) {
        for byte in line.iter().chain(b"\n") {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn text(&self) -> String {
        format!("{:016x}", self.0)
    }
}

/// When to write: on change, at most each interval. No clock of its own.
#[derive(Debug, Clone)]
pub struct Debounce {
    interval: Duration,
    changed: bool,
    written: Option<Instant>,
}

impl Debounce {
    /// Nothing changed, nothing written.
    #[must_use]
    pub fn new(interval: Duration) -> Self {
        Self { interval, changed: false, written: None }
    }

    /// Something changed.
    pub fn changed(&mut self) {
        self.changed = true;
    }

    /// When the next write is due; `None` when nothing changed. May lie in the past.
    #[must_use]
    pub fn due(&self, now: Instant) -> Option<Instant> {
        if !self.changed {
            return None;
        }
        Some(self.written.map_or(now, |written| written + self.interval))
    }

    /// A write begins; changes from now on need another one. A failed write counts too: its cause seldom goes at once.
    pub fn writing(&mut self, now: Instant) {
        self.changed = false;
        self.written = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn entry(key: &str, value: &[u8]) -> KeyValue {
        KeyValue { key: key.into(), value: value.to_vec(), mod_revision: 7, create_revision: 3 }
    }

    fn lent(kv: &KeyValue) -> Entry<'_> {
        let KeyValue { key, value, mod_revision, create_revision } = kv;
        Entry { key, value, mod_revision: *mod_revision, create_revision: *create_revision }
    }

    fn entries() -> Vec<KeyValue> {
        vec![
            entry("/calico/v1/Ready", b"true"),
            entry("/calico/v1/x", b"\xff\x00"),
            entry("/calico/v1/y", b"a\nb\""),
        ]
    }

    #[test]
    fn what_was_saved_is_loaded() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::new(&dir.path().join("cache"));
        assert_eq!(cache.load().unwrap(), None);
        for revision in [8, 9] {
            cache.save("id", revision, entries().iter().map(lent)).unwrap();
            let loaded = cache.load().unwrap().unwrap();
            assert_eq!(
                loaded.snapshot,
                Snapshot { revision, store_id: "id".into(), entries: entries(), ..Snapshot::default() }
            );
            assert!(loaded.saved.elapsed().unwrap() < Duration::from_secs(60));
        }
        let mode = std::fs::metadata(dir.path().join("cache")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn any_damage_is_seen_and_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cache");
        let cache = Cache::new(&path);
        cache.save("id", 8, entries().iter().map(lent)).unwrap();
        let good = std::fs::read(&path).unwrap();
        // Cut anywhere (only the last line end may be missing), and each byte changed.
        for cut in 0..good.len() - 1 {
            std::fs::write(&path, &good[..cut]).unwrap();
            let error = cache.load().expect_err("cut").to_string();
            assert!(error.contains("line") && error.contains("written anew"), "{error}");
        }
        for at in 0..good.len() - 1 {
            let mut bad = good.clone();
            bad[at] ^= 0x01;
            std::fs::write(&path, &bad).unwrap();
            assert!(cache.load().is_err(), "byte {at} changed and not seen");
        }
        // It is written anew over the damage.
        cache.save("id", 9, entries().iter().map(lent)).unwrap();
        assert_eq!(cache.load().unwrap().unwrap().snapshot.revision, 9);
    }

    #[test]
    fn writes_are_rare_and_never_forgotten() {
        let start = Instant::now();
        let at = |s: u64| start + Duration::from_secs(s);
        let mut debounce = Debounce::new(CACHE_INTERVAL);
        assert_eq!(debounce.due(at(0)), None);
        debounce.changed();
        assert_eq!(debounce.due(at(0)), Some(at(0)), "the first one at once");
        debounce.writing(at(0));
        assert_eq!(debounce.due(at(1)), None);
        debounce.changed();
        debounce.changed();
        assert_eq!(debounce.due(at(1)), Some(at(10)));
        assert_eq!(debounce.due(at(30)), Some(at(10)));
        debounce.writing(at(30));
        assert_eq!(debounce.due(at(60)), None);
        debounce.changed();
        assert_eq!(debounce.due(at(60)), Some(at(40)));
    }
}
