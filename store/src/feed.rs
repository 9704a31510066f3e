//! Feed of an agent: a snapshot of the store, then each transaction in the order of revisions, across
//! failures of the store.
//!
//! ```text
//!  list -> Snapshot -> watch -> Delta, Delta, Progress ..        the consumer applies them
//!    ^                   |  ended: again from the last revision, after a jittered pause
//!    |                   |  (Unreachable if that fails, then Reconnected)
//!    +-- compacted, other store: a new Snapshot                    the consumer compares, never flushes
//! ```
//!
//! The task makes no decision about the data. The consumer decides which snapshots to trust (the model's
//! guard), and only trusted state is written to the cache on disk.

mod cache_writer;
mod cached_entries;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::cache::{Cache, Cached};
use super::{
    Delta, History, KeyValue, Revision, Snapshot, Store, StoreError, Watch, WatchEvent, disjoint_prefixes,
};
use crate::data_model::DataModel;
use crate::feed::cache_writer::CacheWriter;

/// Capacity of the event queue; when it is full, the watch waits.
const CAPACITY: usize = 256;
/// Interval of checks for keys of Calico 3.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);
/// Pause before a retry; doubled up to the second value.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Events of a feed.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub enum FeedEvent {
    /// The last trusted state, sent first if there is a cache. The consumer compares it with the first
    /// [`FeedEvent::Snapshot`], or runs from it if [`FeedEvent::Unreachable`] arrives instead.
    Cached(Arc<Cached>),
    /// True if the store belongs to Calico 3; `false` is assumed at the start. A [`FeedEvent::Snapshot`]
    /// follows, and no [`FeedEvent::Delta`] before that.
    Calico3(bool),
    /// The store was restored to an earlier state, with the proof as text. Sent before the snapshot of that
    /// state.
    PutBack(String),
    /// All entries in the prefixes: first, and again if the history in between was lost or the store was
    /// replaced.
    Snapshot {
        /// The entries, with the identity of the store.
        snapshot: Arc<Snapshot>,
        /// Number of the snapshot, for [`Feed::confirm`].
        generation: u64,
    },
    /// The entries of prefixes that [`Feed::set_prefixes`] added. Each prefix is sent once, even if a
    /// snapshot contained it. Changes in it up to this revision are not sent again, but deltas of other
    /// prefixes may follow with smaller revisions.
    Added {
        /// The added prefixes.
        prefixes: Vec<String>,
        /// Their entries.
        snapshot: Snapshot,
    },
    /// One transaction; revisions increase.
    Delta(Delta),
    /// No other changes up to this revision: the state is fresh.
    Progress(Revision),
    /// The store cannot be reached or used.
    Unreachable {
        /// Start of the outage.
        since: SystemTime,
        /// The error of the store.
        reason: StoreError,
    },
    /// The store answers again; the state before `Unreachable` continues, no change was missed.
    Reconnected,
    /// The reason why the cache cannot be written; `None` once it can be written again.
    CacheProblem(Option<String>),
}

/// Settings of a feed.
#[derive(Debug, Clone, Default)]
pub struct FeedOptions {
    /// Prefixes to list and watch.
    pub prefixes: Vec<String>,
    /// Path of the cache file; `None` disables the cache.
    pub cache: Option<PathBuf>,
    /// The data model of the store, or automatic detection.
    pub data_model: DataModel,
}

/// A running feed. Dropping it stops the task.
pub struct Feed {
    events: mpsc::Receiver<FeedEvent>,
    prefixes: watch::Sender<Vec<String>>,
    confirmed: watch::Sender<(u64, Revision)>,
    task: JoinHandle<()>,
}

impl Feed {
    /// Starts the feed on this runtime.
    #[must_use]
    pub fn start(runtime: &Handle, store: Arc<dyn Store>, options: FeedOptions) -> Self {
        let (sender, events) = mpsc::channel(CAPACITY);
        let (prefixes, wanted) = watch::channel(disjoint_prefixes(&options.prefixes));
        let (confirmed, confirm) = watch::channel((0, 0));
        let task = Task {
            store,
            events: sender,
            prefixes: Vec::new(),
            wanted,
            position: None,
            of: History::default(),
            reported: 0,
            data_model: options.data_model,
            calico_3: false,
            look_due: tokio::time::Instant::now(),
            floors: Vec::new(),
            outage: None,
            pause: BACK_OFF.0,
            generation: 0,
            copy: options.cache.map(|path| CacheWriter::new(Cache::new(&path), confirm)),
            cache_problem: None,
        };
        Self { events, prefixes, confirmed, task: runtime.spawn(task.run()) }
    }

    /// Waits for the next event. Cancel-safe. `None` only when the runtime shuts down.
    pub async fn next(&mut self) -> Option<FeedEvent> {
        self.events.recv().await
    }

    /// Changes the watched prefixes: entries of new ones arrive as [`FeedEvent::Added`], removed ones are no
    /// longer reported.
    pub fn set_prefixes(&self, prefixes: &[String]) {
        let prefixes = disjoint_prefixes(prefixes);
        self.prefixes.send_if_modified(|now| {
            let changed = *now != prefixes;
            *now = prefixes;
            changed
        });
    }

    /// Confirms that the consumer trusts the snapshot of this generation and its changes up to this revision,
    /// so the cache may be replaced. Later changes are not written until they are confirmed too.
    pub fn confirm(&self, generation: u64, upto: Revision) {
        self.confirmed.send_replace((generation, upto));
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Task {
    store: Arc<dyn Store>,
    events: mpsc::Sender<FeedEvent>,
    /// Prefixes that are listed and watched now.
    prefixes: Vec<String>,
    wanted: watch::Receiver<Vec<String>>,
    /// Everything up to this revision was sent; `None` requests a list.
    position: Option<Revision>,
    /// The history of `position`.
    of: History,
    /// The newest revision sent before `position` was reset.
    reported: Revision,
    data_model: DataModel,
    /// The last value sent in [`FeedEvent::Calico3`].
    calico_3: bool,
    /// Time of the next check for Calico 3.
    look_due: tokio::time::Instant,
    /// Prefix and revision up to which its changes were sent with [`FeedEvent::Added`].
    floors: Vec<(String, Revision)>,
    outage: Option<Outage>,
    pause: Duration,
    generation: u64,
    copy: Option<CacheWriter>,
    /// The last value sent in [`FeedEvent::CacheProblem`].
    cache_problem: Option<String>,
}

/// An outage of the store.
struct Outage {
    since: SystemTime,
    /// `Some` if the consumer was notified; `true` if it was notified of damage, which an operator has to
    /// repair.
    reported: Option<bool>,
}

/// The consumer has dropped the feed.
struct FeedClosed;

impl Task {
    async fn run(mut self) {
        // The task ends only when the consumer has dropped the feed.
        let FeedClosed = match self.load().await {
            Err(gone) => gone,
            Ok(()) => loop {
                if let Err(gone) = self.round().await {
                    break gone;
                }
            },
        };
    }

    async fn load(&mut self) -> Result<(), FeedClosed> {
        let Some(copy) = &self.copy else { return Ok(()) };
        let cache = copy.cache.clone();
        let loaded = tokio::task::spawn_blocking(move || cache.load()).await.map_err(|_| FeedClosed)?;
        match loaded {
            Ok(None) => Ok(()),
            Ok(Some(cached)) => {
                if let Some(torn) = &cached.truncated {
                    tracing::warn!(target: "tortie::store", "the cache of the store is truncated: {torn}");
                }
                // The store may have been restored while no agent ran.
                self.of.store_id.clone_from(&cached.snapshot.store_id);
                self.reported = cached.snapshot.revision;
                let cached = Arc::new(cached);
                if let Some(copy) = &mut self.copy {
                    copy.restore(Arc::clone(&cached));
                }
                self.send(FeedEvent::Cached(cached)).await
            }
            Err(e) => {
                tracing::error!(target: "tortie::store", error = %e, "the cache of the store is damaged");
                Ok(())
            }
        }
    }

    /// Runs from a list, or from the last revision, to the end of one watch.
    async fn round(&mut self) -> Result<(), FeedClosed> {
        let after = match self.position {
            Some(revision) => revision,
            None => match self.list().await? {
                Some(revision) => revision,
                None => return Ok(()),
            },
        };
        if let Err(e) = self.add(after).await? {
            return self.failed(e).await;
        }
        let Some(after) = self.position else { return Ok(()) };
        match self.store.watch(&self.prefixes, after, Some(&self.of)).await {
            Ok(watch) => {
                self.back().await?;
                match self.look().await? {
                    Ok(()) if self.position.is_none() => Ok(()),
                    Ok(()) => self.follow(watch).await,
                    Err(e) => self.failed(e).await,
                }
            }
            Err(e) => self.failed(e).await,
        }
    }

    async fn list(&mut self) -> Result<Option<Revision>, FeedClosed> {
        let wanted = self.wanted.borrow_and_update().clone();
        let listed = match self.look().await? {
            Ok(()) => self.store.list(&wanted).await,
            Err(e) => Err(e),
        };
        match listed {
            Ok(snapshot) => {
                self.back().await?;
                if let Some(proof) = self.put_back(&snapshot) {
                    self.send(FeedEvent::PutBack(proof)).await?;
                }
                let known = std::mem::replace(&mut self.prefixes, wanted);
                let new =
                    if self.generation == 0 { Vec::new() } else { missing_prefixes(&self.prefixes, &known) };
                let added = (!new.is_empty()).then(|| part(&snapshot, new));
                let revision = snapshot.revision;
                self.of = snapshot.history();
                self.reported = 0;
                self.generation += 1;
                self.floors.clear();
                self.position = Some(revision);
                let snapshot = Arc::new(snapshot);
                let reported =
                    FeedEvent::Snapshot { snapshot: Arc::clone(&snapshot), generation: self.generation };
                self.send(reported).await?;
                // Not before, so that the consumer does not wait for it.
                if let Some(copy) = &mut self.copy {
                    copy.replace(&snapshot, self.generation);
                }
                if let Some(added) = added {
                    self.send(added).await?;
                }
                Ok(Some(revision))
            }
            Err(e) => {
                self.failed(e).await?;
                Ok(None)
            }
        }
    }

    /// Checks for Calico 3's objects, and reports a change. The consumer reads all entries anew after one, so
    /// a list follows.
    async fn look(&mut self) -> Result<Result<(), StoreError>, FeedClosed> {
        match self.data_model.is_calico_3(&*self.store).await {
            Ok(found) => {
                self.look_due = tokio::time::Instant::now() + LOOK_INTERVAL;
                if std::mem::replace(&mut self.calico_3, found) != found {
                    self.send(FeedEvent::Calico3(found)).await?;
                    self.forget_position();
                }
                Ok(Ok(()))
            }
            Err(e) => Ok(Err(e)),
        }
    }

    fn forget_position(&mut self) {
        self.reported = self.reported.max(self.position.take().unwrap_or(0));
    }

    /// Returns the proof that a list of the same store is older than the reported state: its revision, its
    /// Raft term, or a key whose last write precedes the reported one.
    fn put_back(&self, now: &Snapshot) -> Option<String> {
        if self.of.store_id != now.store_id {
            return None;
        }
        if now.revision < self.reported {
            return Some(format!("its revision is {} and was {}", now.revision, self.reported));
        }
        if now.term < self.of.term {
            return Some(format!("the term of its elections is {} and was {}", now.term, self.of.term));
        }
        let (key, [at, was]) = self.copy.as_ref()?.newer_entry(now)?;
        Some(format!("{key} was written last at revision {at}, and was at {was}"))
    }

    /// Applies a changed set of prefixes; only new ones are read.
    async fn add(&mut self, after: Revision) -> Result<Result<(), StoreError>, FeedClosed> {
        let wanted = self.wanted.borrow_and_update().clone();
        if wanted == self.prefixes {
            return Ok(Ok(()));
        }
        let new = missing_prefixes(&wanted, &self.prefixes);
        if !new.is_empty() {
            let snapshot = match self.store.list(&new).await {
                Ok(snapshot) => snapshot,
                Err(e) => {
                    // Retried in the next round.
                    self.wanted.mark_changed();
                    return Ok(Err(e));
                }
            };
            if !self.of.goes_on_in(&snapshot.history()) {
                // The answer is of another history than the rest: list everything again.
                self.forget_position();
                self.wanted.mark_changed();
                return Ok(Ok(()));
            }
            self.of = snapshot.history();
            if snapshot.revision > after {
                self.floors.extend(new.iter().map(|prefix| (prefix.clone(), snapshot.revision)));
            }
            if let Some(copy) = &mut self.copy {
                copy.insert(&snapshot);
            }
            self.send(FeedEvent::Added { prefixes: new, snapshot }).await?;
        }
        if let Some(copy) = &mut self.copy {
            copy.keep_only(&wanted);
        }
        self.prefixes = wanted;
        Ok(Ok(()))
    }

    async fn follow(&mut self, mut watch: Box<dyn Watch>) -> Result<(), FeedClosed> {
        loop {
            let due = self.copy.as_ref().and_then(CacheWriter::due);
            let event = tokio::select! {
                event = watch.next() => event,
                changed = self.wanted.changed() => {
                    changed.map_err(|_| FeedClosed)?;
                    // `add` applies the new set.
                    self.wanted.mark_changed();
                    return Ok(());
                }
                () = tokio::time::sleep_until(self.look_due) => {
                    match self.look().await? {
                        Ok(()) if self.position.is_none() => return Ok(()),
                        Ok(()) => continue,
                        Err(e) => return self.failed(e).await,
                    }
                }
                () = CacheWriter::sleep(due) => {
                    if let Some(copy) = &mut self.copy {
                        copy.save(self.position.unwrap_or(0));
                    }
                    continue;
                }
                changed = CacheWriter::changed(&mut self.copy) => {
                    changed?;
                    self.report_cache().await?;
                    continue;
                }
            };
            match event {
                Ok(WatchEvent::Delta(delta)) => {
                    self.pause = BACK_OFF.0;
                    self.position = Some(self.position.unwrap_or(0).max(delta.revision));
                    self.delta(delta).await?;
                }
                Ok(WatchEvent::Progress(revision)) => {
                    self.pause = BACK_OFF.0;
                    self.position = Some(self.position.unwrap_or(0).max(revision));
                    self.send(FeedEvent::Progress(revision)).await?;
                }
                Ok(WatchEvent::Compacted { oldest }) => {
                    tracing::info!(
                        target: "tortie::store",
                        position = self.position,
                        oldest,
                        "the history of the store is gone, listing again"
                    );
                    self.forget_position();
                    return Ok(());
                }
                Err(e) => return self.failed(e).await,
            }
        }
    }

    async fn delta(&mut self, mut delta: Delta) -> Result<(), FeedClosed> {
        if !self.floors.is_empty() {
            let floors = &self.floors;
            delta.changes.retain(|change| {
                let below = |(prefix, revision): &(String, Revision)| {
                    delta.revision <= *revision && change.key().starts_with(prefix.as_str())
                };
                !floors.iter().any(below)
            });
            self.floors.retain(|(_, revision)| delta.revision < *revision);
        }
        if delta.changes.is_empty() {
            return Ok(());
        }
        let for_cache = self.copy.is_some().then(|| delta.clone());
        self.send(FeedEvent::Delta(delta)).await?;
        // Not before, so that the consumer does not wait for it.
        if let (Some(copy), Some(delta)) = (&mut self.copy, for_cache) {
            copy.apply(&delta);
        }
        Ok(())
    }

    /// The first failure after a healthy period is retried at once and reported only if the retry fails.
    async fn failed(&mut self, reason: StoreError) -> Result<(), FeedClosed> {
        let first = self.outage.is_none() && self.position.is_some();
        let outage = self.outage.get_or_insert_with(|| Outage { since: SystemTime::now(), reported: None });
        let damaged = matches!(reason, StoreError::Damaged(_));
        if !first && outage.reported != Some(damaged) && (damaged || outage.reported.is_none()) {
            outage.reported = Some(damaged);
            let since = outage.since;
            tracing::warn!(target: "tortie::store", error = %reason, "the store is unreachable");
            self.send(FeedEvent::Unreachable { since, reason }).await?;
        }
        // State received before the outage is now more valuable than ever: write it.
        if let Some(copy) =
            self.copy.as_mut().filter(|copy| copy.due().is_some_and(|due| due <= Instant::now()))
        {
            copy.save(self.position.unwrap_or(0));
        }
        let jittered = self.pause.mul_f64(rand::random_range(0.5..1.0));
        self.pause = (self.pause * 2).min(BACK_OFF.1);
        tokio::select! {
            () = tokio::time::sleep(jittered) => Ok(()),
            () = self.events.closed() => Err(FeedClosed),
        }
    }

    /// Reports when the cache cannot be written, and when it can be again.
    async fn report_cache(&mut self) -> Result<(), FeedClosed> {
        let problem = self.copy.as_ref().and_then(|copy| copy.problem.clone());
        if problem == self.cache_problem {
            return Ok(());
        }
        match &problem {
            Some(why) => {
                tracing::error!(target: "tortie::store", error = why, "the cache of the store was not written")
            }
            None => tracing::info!(target: "tortie::store", "the cache of the store is written again"),
        }
        self.cache_problem.clone_from(&problem);
        self.send(FeedEvent::CacheProblem(problem)).await
    }

    async fn back(&mut self) -> Result<(), FeedClosed> {
        match self.outage.take() {
            Some(outage) if outage.reported.is_some() => {
                tracing::info!(target: "tortie::store", "the store answers again");
                self.send(FeedEvent::Reconnected).await
            }
            _ => Ok(()),
        }
    }

    async fn send(&self, event: FeedEvent) -> Result<(), FeedClosed> {
        self.events.send(event).await.map_err(|_| FeedClosed)
    }
}

/// Returns the desired prefixes that no known one covers.
fn missing_prefixes(wanted: &[String], known: &[String]) -> Vec<String> {
    let covered = |prefix: &String| known.iter().any(|known| prefix.starts_with(known.as_str()));
    wanted.iter().filter(|prefix| !covered(prefix)).cloned().collect()
}

/// Returns the entries of a snapshot in these prefixes.
fn part(whole: &Snapshot, prefixes: Vec<String>) -> FeedEvent {
    let wanted = |kv: &&KeyValue| prefixes.iter().any(|prefix| kv.key.starts_with(prefix.as_str()));
    let entries = whole.entries.iter().filter(wanted).cloned().collect();
    let snapshot =
        Snapshot { revision: whole.revision, store_id: whole.store_id.clone(), term: whole.term, entries };
    FeedEvent::Added { prefixes, snapshot }
}
