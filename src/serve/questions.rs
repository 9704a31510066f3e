//! The routes of the API for those who ask why, and what happened.

use std::net::IpAddr;

use axum::Router;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::get;
use serde::Deserialize;

use super::http::{Asked, Shared, answer, failure};

/// Reads: for everybody.
pub(super) fn reads() -> Router<Shared> {
    Router::new()
        .route("/v1/why/peer", get(why_peer))
        .route("/v1/why/route", get(why_route))
        .route("/v1/why/ip", get(why_ip))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PeerQuery {
    /// Session name, node name or address.
    name: String,
}

async fn why_peer(State(backend): State<Shared>, query: Asked<PeerQuery>) -> Response {
    match query {
        Ok(Query(query)) => answer(backend.why_peer(query.name).await),
        Err(error) => failure(StatusCode::BAD_REQUEST, "invalid", &error.body_text()),
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RouteWhy {
    /// A prefix, or an address.
    prefix: String,
    /// Session name, node name or address.
    to: Option<String>,
}

async fn why_route(State(backend): State<Shared>, query: Asked<RouteWhy>) -> Response {
    match query {
        Ok(Query(query)) => answer(backend.why_route(query.prefix, query.to).await),
        Err(error) => failure(StatusCode::BAD_REQUEST, "invalid", &error.body_text()),
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AddressQuery {
    address: IpAddr,
}

async fn why_ip(State(backend): State<Shared>, query: Asked<AddressQuery>) -> Response {
    match query {
        Ok(Query(query)) => answer(backend.why_ip(query.address).await),
        Err(error) => failure(StatusCode::BAD_REQUEST, "invalid", &error.body_text()),
    }
}
