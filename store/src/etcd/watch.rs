//! Watch on etcd: one stream, with one watcher per prefix or one for all.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use etcd_client::{EventType, WatchOptions, WatchResponse, WatchStream};
use tokio::time::{Instant, timeout, timeout_at};

use super::super::{Change, Delta, Revision, StoreError, Watch, WatchEvent, prefix_end};
use super::connect::Member;
use super::merge::Merge;
use super::{MAX_ANSWER, key_value, revision_of};
use crate::etcd::error::store_error;

/// Limit for opening the stream.
const OPEN: Duration = Duration::from_secs(5);
/// Interval at which a missing progress report is requested again: servers answer only once all watchers have
/// caught up.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(50);
/// Limit for changes that wait for a progress report.
const GIVE_UP: Duration = Duration::from_secs(10);
/// Time during which pending answers are read before a progress report about them is requested.
const DRAIN: Duration = Duration::from_millis(20);
/// Silence after which a progress report is requested as a proof of freshness. Without an answer within the
/// same time again, the stream is considered dead, whatever the TCP state.
const SILENCE_LIMIT: Duration = Duration::from_secs(5);
/// Minimum interval of reports about revisions that changed no watched key.
const PROGRESS: Duration = Duration::from_secs(1);

/// A running watch.
pub(super) struct EtcdWatch {
    stream: WatchStream,
    merge: Merge,
    /// Prefixes that the caller watches; a single watcher for all of them sees more.
    prefixes: Vec<String>,
    /// There are several watchers, whose answers are complete only after a progress report.
    several: bool,
    /// Watcher ID assigned by the server -> index of the watcher.
    ids: BTreeMap<i64, usize>,
    ready: VecDeque<WatchEvent>,
    /// Arrival of the oldest change that is held back.
    held_since: Option<Instant>,
    /// Time of a progress request that is unanswered.
    progress_requested: Option<Instant>,
    last_message: Instant,
    /// Time of the last delivered progress event.
    progress: Instant,
    over: bool,
}

impl EtcdWatch {
    /// Opens the stream for changes after `after`; `prefixes` must be sorted and disjoint.
    pub(super) async fn open(
        member: Member,
        prefixes: Vec<String>,
        after: Revision,
    ) -> Result<Self, StoreError> {
        let start = i64::try_from(after.saturating_add(1)).unwrap_or(i64::MAX);
        let several = prefixes.len() > 1 && member.reports_in_order;
        let (Some(first), Some(last)) = (prefixes.first(), prefixes.last()) else {
            return Err(StoreError::Refused("nothing to watch".into()));
        };
        let ranges: Vec<(&str, Option<String>)> = if several {
            prefixes.iter().map(|prefix| (prefix.as_str(), prefix_end(prefix))).collect()
        } else {
            vec![(first.as_str(), prefix_end(last))]
        };
        let options = |id: i64, end: Option<String>| {
            let options =
                WatchOptions::new().with_start_revision(start).with_progress_notify().with_watch_id(id);
            // Fragments would split transactions.
            let options = if several { options.with_fragment() } else { options };
            match end {
                Some(end) => options.with_range(end),
                None => options.with_from_key(),
            }
        };
        let open = async {
            let mut client = member.client.watch_client().max_decoding_message_size(MAX_ANSWER);
            let mut stream: Option<WatchStream> = None;
            // IDs begin at 1: with 0 the server chooses one.
            for (id, (from, end)) in (1..).zip(ranges) {
                match &mut stream {
                    None => stream = Some(client.watch(from, Some(options(id, end))).await?),
                    Some(stream) => stream.watch(from, Some(options(id, end))).await?,
                }
            }
            stream.ok_or_else(|| etcd_client::Error::InvalidArgs("nothing to watch".into()))
        };
        let stream = match timeout(OPEN, open).await {
            Ok(opened) => opened.map_err(|e| store_error(&e))?,
            Err(_) => return Err(StoreError::Unreachable(format!("no watch in {} s", OPEN.as_secs()))),
        };
        let now = Instant::now();
        Ok(Self {
            stream,
            merge: Merge::new(if several { prefixes.len() } else { 1 }, after),
            prefixes,
            several,
            ids: BTreeMap::new(),
            ready: VecDeque::new(),
            held_since: None,
            progress_requested: None,
            last_message: now,
            progress: now,
            over: false,
        })
    }

    /// Processes one answer of the server.
    fn take(&mut self, answer: &WatchResponse) -> Result<(), StoreError> {
        let now = Instant::now();
        self.last_message = now;
        if answer.canceled() {
            self.over = true;
            if answer.compact_revision() > 0 {
                let oldest = revision_of(answer.compact_revision());
                self.ready.push_back(WatchEvent::Compacted { oldest });
                return Ok(());
            }
            let reason = answer.cancel_reason();
            return Err(if reason.contains("permission denied") {
                StoreError::PermissionDenied(format!("{reason}; the user lacks a role for these keys"))
            } else {
                StoreError::Unreachable(format!("etcd ended the watch: {reason}"))
            });
        }
        if answer.created() {
            let index = usize::try_from(answer.watch_id() - 1).unwrap_or(usize::MAX);
            self.ids.insert(answer.watch_id(), index);
            return Ok(());
        }
        if answer.events().is_empty() {
            self.report(answer, now);
            return Ok(());
        }
        let mut last = 0;
        for event in answer.events() {
            let Some(kv) = event.kv() else { continue };
            last = revision_of(kv.mod_revision());
            let key = String::from_utf8_lossy(kv.key());
            if !self.prefixes.iter().any(|prefix| key.starts_with(prefix.as_str())) {
                continue;
            }
            let change = match event.event_type() {
                EventType::Put => Change::Put(key_value(kv)),
                EventType::Delete => Change::Delete { key: key.into_owned() },
            };
            self.merge.change(last, change);
        }
        if self.several {
            self.held_since.get_or_insert(now);
        } else {
            // A single watcher receives whole transactions in order.
            let whole = self.merge.complete(last);
            self.pop_ready(whole, now);
        }
        Ok(())
    }

    /// Processes an answer without events, which reports the progress of the server.
    fn report(&mut self, answer: &WatchResponse, now: Instant) {
        let revision = answer.header().map_or(0, |header| revision_of(header.revision()));
        if let Some(index) = self.ids.get(&answer.watch_id()) {
            // Unsolicited report about one watcher, in order with its changes.
            if let Some(whole) = self.merge.quiet(*index, revision) {
                self.progress = now.checked_sub(PROGRESS).unwrap_or(now);
                self.pop_ready(whole, now);
            }
            return;
        }
        self.progress_requested = None;
        // With servers that report out of order it only proves that the server is alive.
        let upto = if self.several { revision } else { self.merge.after() };
        let whole = self.merge.complete(upto);
        self.progress = now.checked_sub(PROGRESS).unwrap_or(now);
        self.pop_ready(whole, now);
    }

    fn pop_ready(&mut self, whole: Vec<Delta>, now: Instant) {
        self.held_since = if self.merge.waiting() { self.held_since.or(Some(now)) } else { None };
        if whole.is_empty() && now.duration_since(self.progress) >= PROGRESS {
            self.ready.push_back(WatchEvent::Progress(self.merge.after()));
            self.progress = now;
        }
        self.ready.extend(whole.into_iter().map(WatchEvent::Delta));
    }

    /// Returns the time and kind of the next action if no answer arrives.
    fn due(&self) -> (Instant, Due) {
        match (self.held_since, self.progress_requested) {
            (Some(since), Some(requested)) => {
                let (again, enough) = (requested + PROGRESS_INTERVAL, since + GIVE_UP);
                if again < enough { (again, Due::RequestProgress) } else { (enough, Due::GiveUp) }
            }
            (Some(since), None) => (since, Due::RequestProgress),
            // Other messages arrive, so the stream is alive, but the report was lost.
            (None, Some(requested)) if self.last_message > requested => {
                (requested + SILENCE_LIMIT, Due::RequestProgress)
            }
            (None, Some(requested)) => (requested + SILENCE_LIMIT, Due::Dead),
            (None, None) => (self.last_message + SILENCE_LIMIT, Due::RequestProgress),
        }
    }
}

/// Action that is due.
enum Due {
    RequestProgress,
    GiveUp,
    Dead,
}

#[async_trait::async_trait]
impl Watch for EtcdWatch {
    async fn next(&mut self) -> Result<WatchEvent, StoreError> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(event);
            }
            if self.over {
                return Err(StoreError::Unreachable("the watch is over".into()));
            }
            let (at, due) = self.due();
            // Pending answers are read before a report is requested, but only for a limited time.
            let overdue = matches!(due, Due::RequestProgress) && Instant::now() > at + DRAIN;
            let answer = if overdue { None } else { timeout_at(at, self.stream.message()).await.ok() };
            let failure = match answer {
                Some(Ok(Some(answer))) => {
                    self.take(&answer)?;
                    continue;
                }
                Some(Ok(None)) => StoreError::Unreachable("etcd closed the watch".into()),
                Some(Err(e)) => store_error(&e),
                None => match due {
                    Due::RequestProgress => {
                        // Set before the request: a caller may drop this future while the request is being
                        // sent.
                        self.progress_requested = Some(Instant::now());
                        self.stream.request_progress().await.map_err(|e| store_error(&e))?;
                        continue;
                    }
                    Due::GiveUp => StoreError::Unreachable(format!(
                        "etcd reports no progress in {} s",
                        GIVE_UP.as_secs()
                    )),
                    Due::Dead => StoreError::Unreachable(format!(
                        "etcd did not answer for {} s",
                        SILENCE_LIMIT.as_secs()
                    )),
                },
            };
            self.over = true;
            return Err(failure);
        }
    }
}
