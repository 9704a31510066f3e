//! The routes of the API for those who ask why, and what happened.

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

use crate::api::http::{Asked, Shared, answer};
use crate::api::{EventQuery, Followed};

/// Between signs of life on a stream.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// Reads: for everybody.
pub(in crate::api) fn reads() -> Router<Shared> {
    Router::new()
        .route("/v1/why/peer", get(why_peer))
        .route("/v1/why/route", get(why_route))
        .route("/v1/why/ip", get(why_ip))
        .route("/v1/history", get(history))
        .route("/v1/events", get(events))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PeerQuery {
    /// Session name, node name or address.
    name: String,
}

async fn why_peer(State(backend): State<Shared>, Asked(query): Asked<PeerQuery>) -> Response {
    answer(backend.why_peer(query.name).await)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RouteWhy {
    /// A prefix, or an address.
    prefix: String,
    /// Session name, node name or address.
    to: Option<String>,
}

async fn why_route(State(backend): State<Shared>, Asked(query): Asked<RouteWhy>) -> Response {
    answer(backend.why_route(query.prefix, query.to).await)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AddressQuery {
    address: IpAddr,
}

async fn why_ip(State(backend): State<Shared>, Asked(query): Asked<AddressQuery>) -> Response {
    answer(backend.why_ip(query.address).await)
}

async fn history(State(backend): State<Shared>, Asked(query): Asked<EventQuery>) -> Response {
    answer(backend.history(query).await)
}

async fn events(
    State(backend): State<Shared>,
    headers: HeaderMap,
    Asked(query): Asked<EventQuery>,
) -> Response {
    // A number that is none of ours is answered by a reset.
    let last = headers
        .get("last-event-id")
        .map(|value| value.to_str().ok().and_then(|text| text.parse().ok()).unwrap_or(u64::MAX))
        .or(Some(query.after).filter(|after| *after > 0));
    match backend.follow(query, last).await {
        Ok(stream) => Sse::new(stream.map(|told| Ok::<_, Infallible>(sent(&told))))
            .keep_alive(KeepAlive::new().interval(HEARTBEAT).text("heartbeat"))
            .into_response(),
        Err(error) => answer::<()>(Err(error)),
    }
}

/// An entry as it is sent; its number is the id that a browser comes back with.
fn sent(told: &Followed) -> Sent {
    match told {
        Followed::Event(event) => {
            let text = serde_json::to_string(&**event).unwrap_or_default();
            Sent::default().id(event.seq.to_string()).data(text)
        }
        Followed::Reset(0) => Sent::default().event("reset").data("{}"),
        Followed::Reset(newest) => {
            Sent::default().event("reset").id(newest.to_string()).data(format!("{{\"seq\":{newest}}}"))
        }
    }
}
