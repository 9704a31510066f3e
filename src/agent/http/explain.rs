//! HTTP routes of explanations and of the flight recorder.

use std::convert::Infallible;
use std::net::IpAddr;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event as Sent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::StreamExt;
use serde::Deserialize;

use crate::agent::api::events::{self, FollowItem};
use crate::agent::explain;
use crate::agent::http::extract::{Query, Shared};
use crate::agent::http::respond::answer;
use crate::api::EventQuery;

/// Interval of keep-alive comments on an event stream.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// Returns the read-only routes, for every client.
pub(super) fn reads() -> Router<Shared> {
    Router::new()
        .route("/v1/why/peer", get(why_peer))
        .route("/v1/why/route", get(why_route))
        .route("/v1/why/ip", get(why_ip))
        .route("/v1/history", get(history))
        .route("/v1/events", get(follow_events))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PeerQuery {
    /// Session name, node name or address.
    name: String,
}

async fn why_peer(State(server): State<Shared>, Query(query): Query<PeerQuery>) -> Response {
    answer(explain::why_peer(&server, query.name).await)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RouteWhyQuery {
    /// Prefix or address.
    prefix: String,
    /// Session name, node name or address.
    to: Option<String>,
}

async fn why_route(State(server): State<Shared>, Query(query): Query<RouteWhyQuery>) -> Response {
    answer(explain::why_route(&server, query.prefix, query.to).await)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AddressQuery {
    address: IpAddr,
}

async fn why_ip(State(server): State<Shared>, Query(query): Query<AddressQuery>) -> Response {
    answer(explain::address::why_ip(&server, query.address).await)
}

async fn history(State(server): State<Shared>, Query(query): Query<EventQuery>) -> Response {
    answer(events::history(&server, query).await)
}

async fn follow_events(
    State(server): State<Shared>,
    headers: HeaderMap,
    Query(query): Query<EventQuery>,
) -> Response {
    // An unknown number is answered by a reset.
    let last = headers
        .get("last-event-id")
        .map(|value| value.to_str().ok().and_then(|text| text.parse().ok()).unwrap_or(u64::MAX))
        .or(Some(query.after).filter(|after| *after > 0));
    match events::follow(&server, query, last).await {
        Ok(stream) => Sse::new(stream.map(|item| Ok::<_, Infallible>(sent(&item))))
            .keep_alive(KeepAlive::new().interval(HEARTBEAT).text("heartbeat"))
            .into_response(),
        Err(error) => answer::<()>(Err(error)),
    }
}

/// Converts an entry to an event; its number is the id that a browser sends when it reconnects.
fn sent(item: &FollowItem) -> Sent {
    match item {
        FollowItem::Event(event) => {
            let text = serde_json::to_string(&**event).unwrap_or_default();
            Sent::default().id(event.seq.to_string()).data(text)
        }
        FollowItem::Reset(0) => Sent::default().event("reset").data("{}"),
        FollowItem::Reset(newest) => {
            Sent::default().event("reset").id(newest.to_string()).data(format!("{{\"seq\":{newest}}}"))
        }
    }
}
