//! Flight recorder over the API: queries of past entries and streams of new ones.

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
use crate::agent::api::policy_query::policy_view;
use crate::agent::api::server::{FOLLOWERS, Server};
use crate::agent::core::recorder::{Filter, NewEntry};
use crate::agent::core::view::CoreView;
use crate::agent::handle::{Handle, busy};
use crate::api::EventQuery;
use crate::api::status::{ApiError, Event, List};

/// Kinds of entries that a query may select.
const KINDS: [&str; 7] = ["agent", "bgp", "ipam", "kernel", "policy", "route", "store"];
/// Maximum number of missed entries that a follower receives when it reconnects with the number of its last
/// entry.
const MISSED_EVENTS_MAX: usize = 4_096;

/// Item of a stream of flight recorder entries.
#[derive(Debug, Clone)]
pub(in crate::agent) enum FollowItem {
    /// A recorded entry.
    Event(Arc<Event>),
    /// Entries were lost, so the client must reload its view. Number of the newest entry; 0 if unknown.
    Reset(u64),
}

/// Stream of entries as they are recorded.
type EventStream = std::pin::Pin<Box<dyn futures_util::Stream<Item = FollowItem> + Send>>;

/// State of one follower of the flight recorder.
struct Follower {
    filter: Filter,
    missed: VecDeque<Arc<Event>>,
    /// Number of the newest entry, set if entries between it and the follower's last one are lost.
    gap: Option<u64>,
    receiver: broadcast::Receiver<NewEntry>,
    ended: bool,
    _permit: OwnedSemaphorePermit,
}

impl Follower {
    async fn next(mut self) -> Option<(FollowItem, Self)> {
        if let Some(newest) = self.gap.take() {
            return Some((FollowItem::Reset(newest), self));
        }
        if let Some(event) = self.missed.pop_front() {
            return Some((FollowItem::Event(event), self));
        }
        if self.ended {
            return None;
        }
        loop {
            match self.receiver.recv().await {
                Ok(entry) if self.filter.matches(&entry.event, entry.single) => {
                    return Some((FollowItem::Event(entry.event), self));
                }
                Ok(_) => {}
                // A follower that is too slow gets a reset and may connect again.
                Err(RecvError::Lagged(_)) => {
                    self.ended = true;
                    return Some((FollowItem::Reset(0), self));
                }
                Err(RecvError::Closed) => return None,
            }
        }
    }
}

/// Returns the recorded entries that a query selects.
pub(in crate::agent) async fn history(server: &Server, query: EventQuery) -> Result<List<Event>, ApiError> {
    let filter = read_filter(server.handle(), &query).await?;
    let (after, max) =
        (query.after, query.max.unwrap_or(1_000).min(crate::agent::core::recorder::ENTRIES_MAX));
    let find = move |core: &CoreView<'_>| core.recorder().find(&filter, after, max);
    let found = server.handle().core().ask(find).await?;
    let items = found.into_iter().map(Arc::unwrap_or_clone).collect();
    Ok(server.list("EventList", items).await)
}

/// Streams entries from now on, or from after `last`, the last entry that the follower had before it lost the
/// connection.
pub(in crate::agent) async fn follow(
    server: &Server,
    query: EventQuery,
    last: Option<u64>,
) -> Result<EventStream, ApiError> {
    let permit = server
        .follower()
        .ok_or_else(|| busy(&format!("{FOLLOWERS} clients follow events already; try again later")))?;
    let filter = read_filter(server.handle(), &query).await?;
    let wanted = filter.clone();
    let events = server.handle().events().clone();
    let (missed, gap, receiver) = server
        .handle()
        .core()
        .ask(move |core| {
            let recorder = core.recorder();
            let whole = last.is_none_or(|last| recorder.has_all_after(last));
            let missed = match last {
                Some(last) if whole && last < recorder.newest() => {
                    // To `find`, 0 means the newest entries.
                    recorder.find(&wanted, last.max(1), MISSED_EVENTS_MAX)
                }
                _ => Vec::new(),
            };
            let gap = (!whole).then(|| recorder.newest());
            (missed, gap, events.subscribe())
        })
        .await?;
    let follower = Follower { filter, missed: missed.into(), gap, receiver, ended: false, _permit: permit };
    Ok(Box::pin(stream::unfold(follower, Follower::next)))
}

async fn read_filter(handle: &Handle, query: &EventQuery) -> Result<Filter, ApiError> {
    let invalid = |text: String| ApiError { code: "invalid".to_owned(), text };
    let kinds: Vec<String> = query
        .kinds
        .iter()
        .flat_map(|kinds| kinds.split(','))
        .filter(|kind| !kind.is_empty())
        .map(str::to_owned)
        .collect();
    if let Some(other) = kinds.iter().find(|kind| !KINDS.contains(&kind.as_str())) {
        return Err(invalid(format!("`{other}` is not a kind of event: {}", KINDS.join(", "))));
    }
    let prefix = match query.prefix.as_deref() {
        Some(text) => Some(match text.parse::<std::net::IpAddr>() {
            Ok(addr) => Cidr::host(addr),
            Err(_) => text.parse::<Cidr>().map_err(|e| invalid(e.to_string()))?,
        }),
        None => None,
    };
    let peer = match &query.peer {
        // A peer that no longer exists is matched by its session name.
        Some(name) => match handle.sessions().await {
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
        (None, Some(name)) => Some(endpoint_subject(handle, name.clone()).await),
        (None, None) => None,
    };
    let since = query.since.map(|seconds| ago(Duration::from_secs(seconds)));
    Ok(Filter { kinds, peer, prefix, subject, since })
}

/// Returns the text that all entries about an endpoint contain: the workload part of its key.
async fn endpoint_subject(handle: &Handle, name: String) -> String {
    let queried = name.clone();
    let found = policy_view(handle, move |view| view.find_endpoint(&queried)).await;
    found.map_or(name, |key| match &key {
        tortie_config::key::EndpointKey::Workload { workload, .. } => workload.clone(),
        tortie_config::key::EndpointKey::Host { .. } => Key::Endpoint(key).to_string(),
    })
}

/// Returns the RFC 3339 time of a past moment, in the form of recorded entries.
fn ago(span: Duration) -> String {
    let span = SignedDuration::try_from(span).unwrap_or(SignedDuration::ZERO);
    let at = Timestamp::now().checked_sub(span).unwrap_or(Timestamp::UNIX_EPOCH);
    format!("{at:.3}")
}
