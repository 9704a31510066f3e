//! Writes the reported state to the cache file in the background; the feed continues while the disk is slow.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::watch;
use tokio::task::{JoinError, JoinHandle};
use tortie_config::is_readable;

use super::FeedClosed;
use super::cached_entries::{CachedEntries as Entries, CachedValue};
use crate::cache::{CACHE_INTERVAL, Cache, Cached, Debounce, Log};
use crate::{Change, Delta, Revision, Snapshot};

/// Maximum number of changed keys that are remembered, unless there are more entries than this.
const LIMIT: usize = 100_000;

type Later = Box<dyn FnOnce(&mut Entries) + Send + Sync>;

/// Copy of the reported state, and the state of its file.
pub(super) struct CacheWriter {
    pub(super) cache: Cache,
    store_id: String,
    /// All entries; empty while the writing thread has them.
    entries: Entries,
    /// The writing thread owns the entries meanwhile, so that nothing is copied.
    writing: Option<JoinHandle<(Entries, io::Result<Log>)>>,
    /// Changes of the entries since the write began.
    deferred: Vec<Later>,
    /// The file as last written; `None` while it is being written.
    log: Option<Log>,
    /// Keys whose entry in the file is outdated; `None` if the whole file must be written.
    touched: Option<BTreeSet<Box<str>>>,
    generation: u64,
    /// The revision of the newest entry or deletion.
    newest: Revision,
    trust: watch::Receiver<(u64, Revision)>,
    debounce: Debounce,
    /// The error of the last write, if it failed.
    pub(super) problem: Option<String>,
}

impl CacheWriter {
    pub(super) fn new(cache: Cache, trust: watch::Receiver<(u64, Revision)>) -> Self {
        Self {
            cache,
            store_id: String::new(),
            entries: Entries::default(),
            writing: None,
            deferred: Vec::new(),
            log: None,
            touched: None,
            generation: 0,
            newest: 0,
            trust,
            debounce: Debounce::new(CACHE_INTERVAL),
            problem: None,
        }
    }

    /// Restores the content of the file, which has the last good values of invalid entries in the store.
    pub(super) fn restore(&mut self, cached: Arc<Cached>) {
        self.store_id.clone_from(&cached.snapshot.store_id);
        self.change(|entries| entries.restore(cached));
    }

    pub(super) fn replace(&mut self, snapshot: &Snapshot, generation: u64) {
        let goes_on = self.store_id == snapshot.store_id;
        self.generation = generation;
        self.store_id.clone_from(&snapshot.store_id);
        self.newest = snapshot.revision;
        self.touched = None;
        let new: Vec<_> = snapshot.entries.iter().map(CachedValue::of).collect();
        self.change(move |entries| entries.replace(new, goes_on));
        self.debounce.changed();
    }

    /// Returns a key of this list that was written later in the kept state: its revision in the list and in
    /// the kept state. Finds nothing while the entries are being written.
    pub(super) fn newer_entry<'a>(&self, list: &'a Snapshot) -> Option<(&'a str, [Revision; 2])> {
        list.entries.iter().find_map(|kv| {
            let known = self.entries.revision_of(&kv.key)?;
            (kv.mod_revision < known).then_some((kv.key.as_str(), [kv.mod_revision, known]))
        })
    }

    pub(super) fn insert(&mut self, snapshot: &Snapshot) {
        let new: Vec<_> = snapshot.entries.iter().map(CachedValue::of).collect();
        self.touch(snapshot.entries.iter().map(|kv| kv.key.as_str()));
        self.change(|entries| new.into_iter().for_each(|(key, value)| entries.put(key, value)));
        self.newest = self.newest.max(snapshot.revision);
        self.debounce.changed();
    }

    pub(super) fn apply(&mut self, delta: &Delta) {
        let changes: Vec<_> = delta
            .changes
            .iter()
            .map(|change| match change {
                Change::Put(kv) => (None, Some(CachedValue::of(kv))),
                Change::Delete { key } => (Some(Box::<str>::from(key.as_str())), None),
            })
            .collect();
        // An invalid value replaces a value that is not in the file yet: only this copy has the last good
        // one.
        let in_file = |key: &str| self.touched.as_ref().is_some_and(|touched| !touched.contains(key));
        let urgent = delta.changes.iter().any(|change| match change {
            Change::Put(kv) => !in_file(&kv.key) && !is_readable(&kv.key, &kv.value),
            Change::Delete { .. } => false,
        });
        self.touch(delta.changes.iter().map(Change::key));
        self.change(|entries| {
            for (gone, new) in changes {
                if let Some(key) = gone {
                    entries.remove(&key);
                }
                if let Some((key, value)) = new {
                    entries.put(key, value);
                }
            }
        });
        self.newest = self.newest.max(delta.revision);
        self.debounce.changed();
        if urgent {
            self.debounce.urgent();
        }
    }

    pub(super) fn keep_only(&mut self, prefixes: &[String]) {
        let prefixes = prefixes.to_vec();
        self.touched = None;
        self.change(move |entries| entries.keep_only(&prefixes));
    }

    fn touch<'a>(&mut self, keys: impl Iterator<Item = &'a str>) {
        if let Some(touched) = &mut self.touched {
            touched.extend(keys.map(Box::from));
            // If no write happens for a long time, this set would grow without bound.
            if touched.len() > self.entries.len().max(LIMIT) {
                self.touched = None;
            }
        }
    }

    fn change(&mut self, change: impl FnOnce(&mut Entries) + Send + Sync + 'static) {
        if self.writing.is_some() {
            self.deferred.push(Box::new(change));
        } else {
            change(&mut self.entries);
        }
    }

    /// Returns the time of the next write. State that the consumer does not trust is never written; one write
    /// runs at a time.
    pub(super) fn due(&self) -> Option<Instant> {
        let (generation, upto) = *self.trust.borrow();
        if generation == self.generation && upto >= self.newest && self.writing.is_none() {
            self.debounce.due(Instant::now())
        } else {
            None
        }
    }

    pub(super) async fn sleep(due: Option<Instant>) {
        match due {
            Some(due) => tokio::time::sleep_until(due.into()).await,
            None => std::future::pending().await,
        }
    }

    /// Waits until the consumer trusts a newer state or the file is written. Cancel-safe.
    pub(super) async fn changed(copy: &mut Option<Self>) -> Result<(), FeedClosed> {
        let Some(copy) = copy else { return std::future::pending().await };
        let Self { trust, writing, .. } = copy;
        let written = async {
            match writing {
                Some(writing) => writing.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = trust.changed() => changed.map_err(|_| FeedClosed),
            written = written => {
                copy.written(written);
                Ok(())
            }
        }
    }

    /// Starts writing the state up to this revision, unless a write is running.
    pub(super) fn save(&mut self, revision: Revision) {
        if self.writing.is_some() {
            return;
        }
        self.debounce.writing(Instant::now());
        let (cache, store_id) = (self.cache.clone(), self.store_id.clone());
        let entries = std::mem::take(&mut self.entries);
        let touched = self.touched.replace(BTreeSet::new());
        let log = self.log.take().zip(touched);
        self.writing = Some(tokio::task::spawn_blocking(move || {
            let saved = match log.filter(|(log, touched)| log.takes(touched.len())) {
                Some((log, touched)) => {
                    log.append(revision, touched.iter().map(|key| (&**key, entries.get(key))))
                }
                None => cache.create(&store_id, revision, entries.iter()),
            };
            (entries, saved)
        }));
    }

    fn written(&mut self, result: Result<(Entries, io::Result<Log>), JoinError>) {
        self.writing = None;
        match result {
            Ok((entries, saved)) => {
                self.entries = entries;
                match saved {
                    Ok(log) => (self.log, self.problem) = (Some(log), None),
                    Err(e) => {
                        self.problem = Some(e.to_string());
                        // Retry even if no further change arrives.
                        self.debounce.changed();
                    }
                }
            }
            // A panic in that thread ends the process; a runtime that shuts down needs no cache.
            Err(e) => {
                tracing::error!(target: "tortie::store", error = %e, "the cache of the store was not written")
            }
        }
        for change in std::mem::take(&mut self.deferred) {
            change(&mut self.entries);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::KeyValue;

    fn entry(key: &str, revision: Revision) -> KeyValue {
        let (mod_revision, create_revision) = (revision, revision);
        KeyValue { key: key.to_owned(), value: b"x".to_vec(), mod_revision, create_revision }
    }

    fn put(key: &str, revision: Revision) -> Delta {
        Delta { revision, changes: vec![Change::Put(entry(key, revision))] }
    }

    fn delete(key: &str, revision: Revision) -> Delta {
        Delta { revision, changes: vec![Change::Delete { key: key.to_owned() }] }
    }

    /// Changes that arrive during a write are in the next file, in their order.
    #[tokio::test]
    async fn changes_while_it_is_written_are_in_the_next_file() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::new(&dir.path().join("cache.json"));
        let (_trust, trusted) = watch::channel((0, 0));
        let mut copy = Some(CacheWriter::new(cache.clone(), trusted));
        let keys = || -> Vec<String> {
            let cached = cache.load().unwrap().unwrap();
            cached.snapshot.entries.into_iter().map(|kv| kv.key).collect()
        };
        let kept = copy.as_mut().unwrap();
        kept.apply(&put("a", 1));
        kept.apply(&put("b", 2));
        kept.save(2);
        kept.apply(&put("c", 3));
        kept.apply(&delete("a", 4));
        kept.apply(&put("a/1", 5));
        kept.keep_only(&["a".to_owned(), "b".to_owned()]);
        // One file at a time.
        kept.save(5);
        assert_eq!(kept.due(), None);
        CacheWriter::changed(&mut copy).await.unwrap_or_else(|_| panic!("the feed is gone"));
        assert_eq!(keys(), ["a", "b"]);
        copy.as_mut().unwrap().save(5);
        CacheWriter::changed(&mut copy).await.unwrap_or_else(|_| panic!("the feed is gone"));
        assert_eq!(keys(), ["a/1", "b"]);
    }

    /// After any sequence of events, deletions and damage between two writes, the file contains the reported
    /// state.
    #[tokio::test]
    async fn the_file_holds_what_was_reported() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cache.json");
        let cache = Cache::new(&path);
        let (_trust, trusted) = watch::channel((0, 0));
        let mut copy = Some(CacheWriter::new(cache.clone(), trusted));
        let mut reported = BTreeMap::new();
        let mut whole = 0;
        for revision in 1..400u64 {
            let kept = copy.as_mut().unwrap();
            let chance = |below: u64| rand::random_range(0..below);
            let key = format!("/{}/{}", chance(3), chance(20));
            match chance(20) {
                0 => {
                    reported.retain(|key: &String, _| key.starts_with("/0") || key.starts_with("/2"));
                    kept.keep_only(&["/0".to_owned(), "/2".to_owned()]);
                }
                1 => {
                    let entries: Vec<_> =
                        (0..chance(3)).map(|n| entry(&format!("/1/{n}"), revision)).collect();
                    reported = entries.iter().map(|kv| (kv.key.clone(), revision)).collect();
                    kept.replace(&Snapshot { revision, entries, ..Snapshot::default() }, revision);
                }
                2 => {
                    let _ = std::fs::remove_file(&path);
                }
                3 => std::fs::write(&path, "{}\n").unwrap(),
                4..8 => {
                    reported.remove(&key);
                    kept.apply(&delete(&key, revision));
                }
                _ => {
                    reported.insert(key.clone(), revision);
                    kept.apply(&put(&key, revision));
                }
            }
            if chance(3) > 0 {
                continue;
            }
            let inode =
                |path| std::fs::metadata(path).map(|found| std::os::unix::fs::MetadataExt::ino(&found)).ok();
            let before = inode(&path);
            kept.save(revision);
            let saved = reported.clone();
            if chance(2) == 0 {
                reported.insert("/0/late".to_owned(), revision);
                kept.apply(&put("/0/late", revision));
            }
            CacheWriter::changed(&mut copy).await.unwrap_or_else(|_| panic!("the feed is gone"));
            whole += usize::from(inode(&path) != before);
            let cached = cache.load().unwrap().unwrap();
            assert_eq!((cached.truncated, cached.snapshot.revision), (None, revision));
            let read = cached.snapshot.entries.into_iter().map(|kv| (kv.key, kv.mod_revision));
            assert_eq!(read.collect::<BTreeMap<_, _>>(), saved);
        }
        assert!((1..120).contains(&whole), "written whole {whole} times");
    }
}
