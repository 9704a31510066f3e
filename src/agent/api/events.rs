//! The flight recorder for those who ask and for those who follow.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::broadcast::{self, error::RecvError};
use tortie_config::key::Key;
use tortie_net::Cidr;

use crate::agent::api::bgp;
use crate::agent::api::endpoints::CoreQuestion;
use crate::agent::core::recorder::{Filter, NewEntry};
use crate::agent::handle::{Ask, Live, busy};
use crate::api::status::{ApiError, Event, List};
use crate::api::{EventQuery, EventStream, Followed};

/// How many may follow at once.
pub(in crate::agent) const FOLLOWERS: usize = 64;
/// What entries may be about.
/// Entries that one who follows may be behind.
pub(in crate::agent) const BEHIND: usize = 1_024;
const KINDS: [&str; 7] = ["agent", "bgp", "ipam", "kernel", "policy", "route", "store"];
/// Entries that a return with a number may bring at most.
const MISSED: usize = 4_096;

/// One who follows.
struct Follower {
    filter: Filter,
    missed: VecDeque<Arc<Event>>,
    /// Something is missing between this and what he had.
    gap: Option<u64>,
    receiver: broadcast::Receiver<NewEntry>,
    ended: bool,
    _place: OwnedSemaphorePermit,
}

impl Follower {
    async fn next(mut self) -> Option<(Followed, Self)> {
        if let Some(newest) = self.gap.take() {
            return Some((Followed::Reset(newest), self));
        }
        if let Some(event) = self.missed.pop_front() {
            return Some((Followed::Event(event), self));
        }
        if self.ended {
            return None;
        }
        loop {
            match self.receiver.recv().await {
                Ok(told) if self.filter.takes(&told.event, told.single) => {
                    return Some((Followed::Event(told.event), self));
                }
                Ok(_) => {}
                // Too slow: he is told, and comes again if he wants.
                Err(RecvError::Lagged(_)) => {
                    self.ended = true;
                    return Some((Followed::Reset(0), self));
                }
                Err(RecvError::Closed) => return None,
            }
        }
    }
}

impl Live {
    /// The entries that are asked for.
    pub(in crate::agent) async fn history(&self, query: EventQuery) -> Result<List<Event>, ApiError> {
        let filter = self.filter(&query).await?;
        let (after, max) =
            (query.after, query.max.unwrap_or(1_000).min(crate::agent::core::recorder::CAPACITY));
        let found = self.ask(|answer| Ask::Events { filter, after, max, answer }).await?;
        let items = found.into_iter().map(Arc::unwrap_or_clone).collect();
        Ok(self.list("EventList", items).await)
    }

    /// Entries from now on, or after `last`, the number that somebody had before he lost us.
    pub(in crate::agent) async fn follow_events(
        &self,
        query: EventQuery,
        last: Option<u64>,
    ) -> Result<EventStream, ApiError> {
        let place = Arc::clone(&self.followers)
            .try_acquire_owned()
            .map_err(|_| busy(&format!("{FOLLOWERS} follow already; try again later")))?;
        let filter = self.filter(&query).await?;
        let wanted = filter.clone();
        let events = self.events.clone();
        let (missed, gap, receiver) = self
            .ask(|answer| {
                Ask::Core(CoreQuestion(Box::new(move |core| {
                    let recorder = &core.recorder;
                    let whole = last.is_none_or(|last| recorder.has_all_after(last));
                    let missed = match last {
                        Some(last) if whole && last < recorder.newest() => {
                            // 0 would ask for the newest.
                            recorder.find(&wanted, last.max(1), MISSED)
                        }
                        _ => Vec::new(),
                    };
                    let gap = (!whole).then(|| recorder.newest());
                    let _ = answer.send((missed, gap, events.subscribe()));
                })))
            })
            .await?;
        let follower = Follower { filter, missed: missed.into(), gap, receiver, ended: false, _place: place };
        Ok(Box::pin(stream::unfold(follower, Follower::next)))
    }

    async fn filter(&self, query: &EventQuery) -> Result<Filter, ApiError> {
        let invalid = |text: String| ApiError { code: "invalid".to_owned(), text };
        let kinds: Vec<String> = query
            .kinds
            .iter()
            .flat_map(|kinds| kinds.split(','))
            .filter(|kind| !kind.is_empty())
            .map(str::to_owned)
            .collect();
        if let Some(other) = kinds.iter().find(|kind| !KINDS.contains(&kind.as_str())) {
            return Err(invalid(format!("`{other}` is no kind of event: {}", KINDS.join(", "))));
        }
        let prefix = match query.prefix.as_deref() {
            Some(text) => Some(match text.parse::<std::net::IpAddr>() {
                Ok(addr) => Cidr::host(addr),
                Err(_) => text.parse::<Cidr>().map_err(|e| invalid(e.to_string()))?,
            }),
            None => None,
        };
        let peer = match &query.peer {
            // One that is gone is asked for by the name of its session.
            Some(name) => match self.sessions().await {
                Ok(intent) => match bgp::session_named(&intent, name) {
                    Ok(session) => Some(session.clone()),
                    Err(error) if error.code == "not-found" => Some(name.clone()),
                    Err(error) => return Err(error),
                },
                Err(_) => Some(name.clone()),
            },
            None => None,
        };
        let subject = match (&query.subject, &query.endpoint) {
            (Some(subject), _) => Some(subject.clone()),
            (None, Some(name)) => Some(self.endpoint_subject(name.clone()).await),
            (None, None) => None,
        };
        let since = query.since.map(|seconds| before_now(Duration::from_secs(seconds)));
        Ok(Filter { kinds, peer, prefix, subject, since })
    }

    /// What entries about an endpoint hold: its workload's part of the key, which its name has, too.
    async fn endpoint_subject(&self, name: String) -> String {
        let asked = name.clone();
        let found = self.picture(move |picture| picture.find_endpoint(&asked)).await;
        found.map_or(name, |key| match &key {
            tortie_config::key::EndpointKey::Workload { workload, .. } => workload.clone(),
            tortie_config::key::EndpointKey::Host { .. } => Key::Endpoint(key).to_string(),
        })
    }
}

/// RFC 3339 of a moment before now, as entries have it.
fn before_now(span: Duration) -> String {
    let span = SignedDuration::try_from(span).unwrap_or(SignedDuration::ZERO);
    let at = Timestamp::now().checked_sub(span).unwrap_or(Timestamp::UNIX_EPOCH);
    format!("{at:.3}")
}
