//! A watch: one stream with one watcher for each prefix.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use etcd_client::{Client, EventType, WatchOptions, WatchResponse, WatchStream};
use tokio::time::{Instant, timeout, timeout_at};

use super::super::{Change, Revision, StoreError, Watch, WatchEvent};
use super::failure::store_error;
use super::merge::Merge;
use super::{MAX_ANSWER, key_value, revision_of};

/// Opening the stream takes no longer.
const OPEN: Duration = Duration::from_secs(5);
/// A report that did not come is asked for again: servers answer only when all watchers have caught up.
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// Changes wait no longer for a report.
const GIVE_UP: Duration = Duration::from_secs(1);
/// A watcher that a commit overtook while it was made catches up in a round each 100 ms, and servers before 3.4.25 and
/// 3.5.8 report all the same: time for two rounds.
const SETTLE: Duration = Duration::from_millis(250);
/// Answers are taken this long before a report about them is asked for.
const DRAIN: Duration = Duration::from_millis(20);
/// A silent stream is asked whether it lives; the answer is the proof of freshness. Without one in as long again it is
/// dead, whatever TCP thinks.
const SILENCE: Duration = Duration::from_secs(5);

/// A running watch.
pub(super) struct EtcdWatch {
    stream: WatchStream,
    merge: Merge,
    /// Watcher ids as the server gave them -> index of the prefix.
    ids: BTreeMap<i64, usize>,
    /// How many are made.
    watchers: usize,
    ready: VecDeque<WatchEvent>,
    /// Changes are held back at least until then.
    settled: Instant,
    /// When the first of the changes that are held came.
    held_since: Option<Instant>,
    /// When a report was asked for that has not come.
    asked_at: Option<Instant>,
    heard: Instant,
    over: bool,
}

impl EtcdWatch {
    /// Opens the stream for what happens after `after`.
    pub(super) async fn open(
        client: Client,
        prefixes: &[String],
        after: Revision,
    ) -> Result<Self, StoreError> {
        let start = i64::try_from(after.saturating_add(1)).unwrap_or(i64::MAX);
        let options = |id: usize| {
            WatchOptions::new()
                .with_prefix()
                .with_start_revision(start)
                .with_progress_notify()
                .with_fragment()
                .with_watch_id(i64::try_from(id).unwrap_or(i64::MAX))
        };
        let open = async {
            let mut watch = client.watch_client().max_decoding_message_size(MAX_ANSWER);
            // Ids begin with 1: 0 asks the server to choose.
            let mut numbered = (1..).zip(prefixes);
            let Some((id, first)) = numbered.next() else {
                return Err(etcd_client::Error::InvalidArgs("nothing to watch".into()));
            };
            let mut stream = watch.watch(first.as_str(), Some(options(id))).await?;
            for (id, prefix) in numbered {
                stream.watch(prefix.as_str(), Some(options(id))).await?;
            }
            Ok(stream)
        };
        let stream = match timeout(OPEN, open).await {
            Ok(opened) => opened.map_err(|e| store_error(&e))?,
            Err(_) => return Err(StoreError::Away(format!("no watch in {} s", OPEN.as_secs()))),
        };
        let now = Instant::now();
        Ok(Self {
            stream,
            merge: Merge::new(prefixes.len(), after),
            ids: BTreeMap::new(),
            ready: VecDeque::new(),
            watchers: prefixes.len(),
            settled: now + OPEN,
            held_since: None,
            asked_at: None,
            heard: now,
            over: false,
        })
    }

    /// Takes one answer of the server.
    fn take(&mut self, answer: &WatchResponse) -> Result<(), StoreError> {
        let now = Instant::now();
        self.heard = now;
        let revision = answer.header().map_or(0, |header| revision_of(header.revision()));
        if answer.canceled() {
            self.over = true;
            if answer.compact_revision() > 0 {
                self.ready
                    .push_back(WatchEvent::Compacted { oldest: revision_of(answer.compact_revision()) });
                return Ok(());
            }
            let reason = answer.cancel_reason();
            return Err(if reason.contains("permission denied") {
                StoreError::Denied(format!("{reason}; the user lacks a role for these keys"))
            } else {
                StoreError::Away(format!("etcd ended the watch: {reason}"))
            });
        }
        if answer.created() {
            let index = usize::try_from(answer.watch_id() - 1).unwrap_or(usize::MAX);
            self.ids.insert(answer.watch_id(), index);
            if self.ids.len() == self.watchers {
                self.settled = if self.watchers > 1 { now + SETTLE } else { now };
            }
            return Ok(());
        }
        for event in answer.events() {
            let Some(kv) = event.kv() else { continue };
            let at = revision_of(kv.mod_revision());
            let change = match event.event_type() {
                EventType::Put => Change::Put(key_value(kv)),
                EventType::Delete => Change::Delete { key: String::from_utf8_lossy(kv.key()).into_owned() },
            };
            self.merge.change(at, change);
            self.held_since.get_or_insert(now);
        }
        if answer.events().is_empty() {
            if let Some(index) = self.ids.get(&answer.watch_id()) {
                // The server's own report about one watcher.
                let known = self.merge.quiet(*index, revision);
                self.ready.extend(known.map(WatchEvent::Progress));
            } else if self.asked_at.take().is_some() {
                let whole = self.merge.reported(revision);
                self.hand_out(whole);
                if self.ready.is_empty() && !self.merge.waiting() {
                    self.ready.push_back(WatchEvent::Progress(self.merge.after()));
                }
            }
        }
        Ok(())
    }

    fn hand_out(&mut self, whole: Vec<super::super::Delta>) {
        if !whole.is_empty() {
            self.held_since = if self.merge.waiting() { Some(Instant::now()) } else { None };
        }
        self.ready.extend(whole.into_iter().map(WatchEvent::Delta));
    }

    /// When something is due without an answer, and what.
    fn due(&self) -> (Instant, Due) {
        match (self.held_since, self.asked_at) {
            (Some(since), Some(asked)) => {
                let again = (asked + ASK_AGAIN, Due::Ask);
                let enough = (since.max(self.settled) + GIVE_UP, Due::GiveUp);
                if again.0 < enough.0 { again } else { enough }
            }
            (Some(_), None) => (self.settled, Due::Ask),
            // It speaks, so it lives, but the report was lost.
            (None, Some(asked)) if self.heard > asked => (asked + SILENCE, Due::Ask),
            (None, Some(asked)) => (asked + SILENCE, Due::Dead),
            (None, None) => (self.heard + SILENCE, Due::Ask),
        }
    }
}

/// What is due.
enum Due {
    Ask,
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
                return Err(StoreError::Away("the watch is over".into()));
            }
            let (at, due) = self.due();
            // Answers that wait are taken before a report is asked for, but not for ever.
            let overdue = !matches!(due, Due::Dead) && Instant::now() > at + DRAIN;
            let answer = if overdue { None } else { timeout_at(at, self.stream.message()).await.ok() };
            match answer {
                Some(Ok(Some(answer))) => self.take(&answer)?,
                Some(Ok(None)) => {
                    self.over = true;
                    return Err(StoreError::Away("etcd closed the watch".into()));
                }
                Some(Err(e)) => {
                    self.over = true;
                    return Err(store_error(&e));
                }
                None => match due {
                    Due::Ask => {
                        // Noted first: a caller may drop this future while the request waits to be sent.
                        self.merge.asked();
                        self.asked_at = Some(Instant::now());
                        self.stream.request_progress().await.map_err(|e| store_error(&e))?;
                    }
                    Due::GiveUp => {
                        let all = self.merge.give_up();
                        self.asked_at = None;
                        self.hand_out(all);
                    }
                    Due::Dead => {
                        self.over = true;
                        return Err(StoreError::Away(format!(
                            "etcd did not answer for {} s",
                            SILENCE.as_secs()
                        )));
                    }
                },
            }
        }
    }
}
