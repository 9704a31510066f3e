//! Cache of the store on disk, from which an agent starts while the store is unreachable.
//!
//! The file has one line of JSON per entry, between a header and a line with a checksum. Later changes are
//! appended as log sections: a section header, the changed entries, and a checksum of all lines so far except
//! checksums. A person can read the file, a truncated or edited file is detected, and a write costs in
//! proportion to the changes, not to the size of the store. Its mode is 0600, because values contain
//! passwords. It is written at most every 10 s. Once the log sections would have more lines than the snapshot
//! before them, the whole file is rewritten under another name and renamed.

mod log;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};

pub use self::log::Log;
use super::{KeyValue, Revision, Snapshot, StoreError};

/// Minimum time between two writes.
pub const CACHE_INTERVAL: Duration = Duration::from_secs(10);

/// Minimum time between two writes if a change is urgent: a last good value exists only in memory and in no
/// file yet.
const URGENT_INTERVAL: Duration = Duration::from_secs(1);

/// Supported versions of the file format; version 1 has no log sections.
const VERSIONS: std::ops::RangeInclusive<u32> = 1..=2;

/// Path of a cache file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cache {
    path: PathBuf,
}

/// Content of a cache file.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Cached {
    /// The last good state: for each key, its last valid value, if there is one.
    pub snapshot: Snapshot,
    /// Current values that are invalid, of keys for which `snapshot` has an earlier valid value.
    #[serde(default)]
    pub unreadable: Vec<KeyValue>,
    /// Time of the last write.
    pub saved: SystemTime,
    /// Position and reason of truncation, for example after a power failure; `snapshot` is the state up to
    /// there.
    pub truncated: Option<String>,
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

/// Header of a log section: the number of changes that follow since the previous checksum.
#[derive(Serialize, Deserialize)]
struct LogSection {
    revision: Revision,
    changes: usize,
    saved_unix: u64,
}

/// One entry to be written to the cache file.
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
    /// The last valid value with its two revisions, if `value` is invalid.
    pub last_good: Option<(&'a [u8], Revision, Revision)>,
}

/// A line of a log section.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Changed<'a> {
    Put(Line<'a>),
    Deleted { gone: Cow<'a, str> },
}

#[derive(Serialize, Deserialize)]
struct Line<'a> {
    key: Cow<'a, str>,
    #[serde(rename = "mod")]
    modified: Revision,
    created: Revision,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    value: Option<Cow<'a, str>>,
    /// The value, if it is not UTF-8 text.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    bytes: Option<Cow<'a, [u8]>>,
    /// The last valid value, if this one is invalid.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    good: Option<Box<Self>>,
}

/// An entry read from the file, with its last valid value if its own is invalid.
type Stored = (KeyValue, Option<Box<KeyValue>>);

/// A line of a log section, as read from the file.
enum StoredChange {
    Put(Stored),
    Delete(String),
}

#[derive(Serialize, Deserialize)]
struct End {
    checksum: String,
}

impl Line<'_> {
    fn of(entry: Entry<'_>) -> Line<'_> {
        let value = std::str::from_utf8(entry.value);
        let good = entry.last_good.map(|(value, mod_revision, create_revision)| {
            let good = Entry { key: entry.key, value, mod_revision, create_revision, last_good: None };
            Box::new(Line::of(good))
        });
        Line {
            key: entry.key.into(),
            modified: entry.mod_revision,
            created: entry.create_revision,
            bytes: value.is_err().then_some(entry.value.into()),
            value: value.ok().map(Cow::from),
            good,
        }
    }

    fn into_entry(self) -> Result<Stored, String> {
        let good = self.good.map(|good| good.into_entry().map(|(good, _)| Box::new(good))).transpose()?;
        let text = self.value.map(|text| text.into_owned().into_bytes());
        let now = KeyValue {
            key: self.key.into_owned(),
            value: text.or(self.bytes.map(Cow::into_owned)).ok_or("neither value nor bytes")?,
            mod_revision: self.modified,
            create_revision: self.created,
        };
        Ok((now, good))
    }
}

impl Cache {
    /// Creates a handle for this path; nothing is opened yet.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned() }
    }

    /// Reads the file; `None` if it does not exist.
    ///
    /// # Errors
    /// [`StoreError::Unusable`] with the line number, if the file cannot be read or is damaged before its
    /// first checksum; the caller continues without a cache.
    pub fn load(&self) -> Result<Option<Cached>, StoreError> {
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(self.unusable(&e.to_string())),
        };
        let mut lines = Reader { lines: BufReader::new(file).split(b'\n'), at: 0, sum: Checksum::default() };
        let (mut cached, mut whole) =
            lines.whole().map_err(|why| self.unusable(&format!("line {}: {why}", lines.at)))?;
        let mut entries = None;
        loop {
            match lines.stretch() {
                Ok(None) => break,
                Ok(Some((stretch, changes))) => {
                    let entries = entries.get_or_insert_with(|| {
                        let all = std::mem::take(&mut whole);
                        all.into_iter()
                            .map(|stored| (stored.0.key.clone(), stored))
                            .collect::<BTreeMap<_, _>>()
                    });
                    for change in changes {
                        match change {
                            StoredChange::Put(stored) => entries.insert(stored.0.key.clone(), stored),
                            StoredChange::Delete(key) => entries.remove(&key),
                        };
                    }
                    cached.snapshot.revision = stretch.revision;
                    cached.saved = since_epoch(stretch.saved_unix);
                }
                Err(why) => {
                    let (path, at) = (self.path.display(), lines.at);
                    cached.truncated =
                        Some(format!("cache {path} line {at}: {why}; the lines before it are used"));
                    break;
                }
            }
        }
        if let Some(entries) = entries {
            whole = entries.into_values().collect();
        }
        for (now, good) in whole {
            match good {
                Some(good) => {
                    cached.snapshot.entries.push(*good);
                    cached.unreadable.push(now);
                }
                None => cached.snapshot.entries.push(now),
            }
        }
        Ok(Some(cached))
    }

    fn unusable(&self, why: &str) -> StoreError {
        let path = self.path.display();
        StoreError::Unusable(format!("cache {path} {why}; it is not used and will be written again"))
    }
}

/// Reads the lines of a file, with the number of the last line and the checksum so far.
struct Reader<R> {
    lines: io::Split<R>,
    at: usize,
    sum: Checksum,
}

impl<R: BufRead> Reader<R> {
    fn line(&mut self) -> Result<Option<Vec<u8>>, String> {
        self.at += 1;
        self.lines.next().transpose().map_err(|e| e.to_string())
    }

    fn must(&mut self) -> Result<Vec<u8>, String> {
        self.line()?.ok_or_else(|| "the end is missing".to_owned())
    }

    /// Reads a line that the next checksum covers.
    fn part(&mut self) -> Result<Vec<u8>, String> {
        let line = self.must()?;
        self.sum.add(&line);
        Ok(line)
    }

    /// Reads the snapshot, up to the first checksum.
    fn whole(&mut self) -> Result<(Cached, Vec<Stored>), String> {
        let header: Header = parse(&self.part()?)?;
        if !VERSIONS.contains(&header.tortie_cache) {
            return Err(format!("version {} is unknown", header.tortie_cache));
        }
        let mut entries = Vec::new();
        for _ in 0..header.entries {
            entries.push(parse::<Line<'_>>(&self.part()?)?.into_entry()?);
        }
        self.end()?;
        let Header { store_id, revision, saved_unix, .. } = header;
        let snapshot = Snapshot { revision, store_id, ..Snapshot::default() };
        let saved = since_epoch(saved_unix);
        Ok((Cached { snapshot, unreadable: Vec::new(), saved, truncated: None }, entries))
    }

    /// Reads the next log section; `None` at the end of the file.
    fn stretch(&mut self) -> Result<Option<(LogSection, Vec<StoredChange>)>, String> {
        let Some(line) = self.line()? else { return Ok(None) };
        let stretch: LogSection = parse(&line)?;
        self.sum.add(&line);
        let mut changes = Vec::new();
        for _ in 0..stretch.changes {
            changes.push(match parse(&self.part()?)? {
                Changed::Put(line) => StoredChange::Put(line.into_entry()?),
                Changed::Deleted { gone } => StoredChange::Delete(gone.into_owned()),
            });
        }
        self.end()?;
        Ok(Some((stretch, changes)))
    }

    fn end(&mut self) -> Result<(), String> {
        let end: End = parse(&self.must()?)?;
        if end.checksum == self.sum.text() { Ok(()) } else { Err("the checksum is wrong".to_owned()) }
    }
}

fn parse<'a, T: Deserialize<'a>>(line: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(line).map_err(|e| e.to_string())
}

fn since_epoch(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

/// FNV-1a, 64 bits: detects truncated and edited files, gives no protection against forgery.
#[derive(Debug, Clone, Copy)]
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

/// Decides when to write: after a change, at most once per interval. It reads no clock.
#[derive(Debug, Clone)]
pub struct Debounce {
    interval: Duration,
    changed: bool,
    urgent: bool,
    written: Option<Instant>,
}

impl Debounce {
    /// Creates the state before any change or write.
    #[must_use]
    pub fn new(interval: Duration) -> Self {
        Self { interval, changed: false, urgent: false, written: None }
    }

    /// Records a change that must be written within a second rather than after the full interval.
    pub fn urgent(&mut self) {
        self.changed = true;
        self.urgent = true;
    }

    /// Records a change.
    pub fn changed(&mut self) {
        self.changed = true;
    }

    /// Returns the time of the next write, which may lie in the past; `None` if nothing changed.
    #[must_use]
    pub fn due(&self, now: Instant) -> Option<Instant> {
        if !self.changed {
            return None;
        }
        let interval = if self.urgent { self.interval.min(URGENT_INTERVAL) } else { self.interval };
        Some(self.written.map_or(now, |written| written + interval))
    }

    /// Records the start of a write; later changes need another one. A failed write counts too, since its
    /// cause seldom disappears at once.
    pub fn writing(&mut self, now: Instant) {
        self.changed = false;
        self.urgent = false;
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
        let (mod_revision, create_revision) = (*mod_revision, *create_revision);
        Entry { key, value, mod_revision, create_revision, last_good: None }
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
        let path = dir.path().join("cache");
        let cache = Cache::new(&path);
        assert_eq!(cache.load().unwrap(), None);
        for revision in [8, 9] {
            let log = cache.create("id", revision, entries().iter().map(lent)).unwrap();
            let loaded = cache.load().unwrap().unwrap();
            assert_eq!(
                loaded.snapshot,
                Snapshot { revision, store_id: "id".into(), entries: entries(), ..Snapshot::default() }
            );
            assert!(loaded.saved.elapsed().unwrap() < Duration::from_secs(60) && loaded.truncated.is_none());
            let log = added(log);
            assert_eq!(cache.load().unwrap().unwrap().snapshot, changed());
            assert!(log.takes(1) && !log.takes(10_000), "a whole file is shorter then");
            std::fs::write(&path, "x").unwrap();
            assert!(!log.takes(1), "somebody else wrote it");
        }
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    /// Appends a new entry, a deleted one and a changed one, in two log sections.
    fn added(log: Log) -> Log {
        let new = entry("/calico/v1/a", b"new");
        let old = entry("/calico/v1/x", b"other");
        let first = [(new.key.as_str(), Some(lent(&new))), ("/calico/v1/y", None)];
        let log = log.append(10, first.into_iter()).unwrap();
        log.append(11, [(old.key.as_str(), Some(lent(&old)))].into_iter()).unwrap()
    }

    fn changed() -> Snapshot {
        let entries = vec![
            entry("/calico/v1/Ready", b"true"),
            entry("/calico/v1/a", b"new"),
            entry("/calico/v1/x", b"other"),
        ];
        Snapshot { revision: 11, store_id: "id".into(), entries, ..Snapshot::default() }
    }

    /// After an update while the store is unreachable, the agent starts from the cache file of the previous
    /// version.
    #[test]
    fn files_of_the_first_version_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cache");
        let file = r#"{"tortieCache":1,"storeId":"s","revision":7,"entries":1,"savedUnix":1700000000}
{"key":"/calico/v1/Ready","mod":3,"created":2,"value":"true"}
{"checksum":"CHECKSUM"}
"#;
        let mut sum = Checksum::default();
        file.lines().take(2).for_each(|line| sum.add(line.as_bytes()));
        std::fs::write(&path, file.replace("CHECKSUM", &sum.text())).unwrap();
        let cached = Cache::new(&path).load().unwrap().unwrap();
        assert_eq!((cached.snapshot.revision, cached.snapshot.entries.len()), (7, 1));
        assert_eq!(cached.saved, since_epoch(1_700_000_000));
    }

    #[test]
    fn any_damage_is_seen_and_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cache");
        let cache = Cache::new(&path);
        let log = cache.create("id", 8, entries().iter().map(lent)).unwrap();
        let whole = std::fs::read(&path).unwrap().len();
        added(log);
        let good = std::fs::read(&path).unwrap();
        let stretch =
            good.iter().enumerate().filter(|(at, byte)| *at > whole && **byte == b'\n').nth(3).unwrap().0 + 1;
        // The part before the damage is read if a checksum covers it. The final newline may be missing.
        let check = |bad: &[u8], at: usize, cut: bool| {
            std::fs::write(&path, bad).unwrap();
            let loaded = cache.load();
            let reached = |end: usize| at + usize::from(cut) >= end;
            if !reached(whole) {
                let error = loaded.expect_err("no checksum before it").to_string();
                assert!(error.contains("line") && error.contains("written again"), "{at}: {error}");
                return;
            }
            let cached = loaded.unwrap().unwrap();
            assert_eq!(cached.snapshot.revision, if reached(stretch) { 10 } else { 8 }, "{at} of {stretch}");
            // A file may end after any complete log section.
            let ends = cut && [whole, stretch].iter().any(|end| at == *end || at + 1 == *end);
            assert_eq!(
                cached.truncated.is_none(),
                ends,
                "{at} of {whole}, {stretch}: {:?}",
                cached.truncated
            );
        };
        for at in 0..good.len() - 1 {
            check(&good[..at], at, true);
            let mut bad = good.clone();
            bad[at] ^= 0x01;
            check(&bad, at, false);
        }
        // A new file replaces the damaged one.
        cache.create("id", 9, entries().iter().map(lent)).unwrap();
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
