//! HTTP routes of the API and their handlers, which parse requests and call the functions of
//! [`api`](crate::agent::api).

use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::connect_info::ConnectInfo;
use axum::extract::{Path as UrlPath, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Deserialize;
use tortie_net::Cidr;

use crate::agent::api::{control, endpoints, live_trace, mrt, peers, routes, status};
use crate::agent::explain::address;
use crate::agent::handle::stopping;
use crate::agent::http::extract::{Caller, Query, Shared, body, may_write};
use crate::agent::http::respond::{answer, error_response, health, json, octet_response};
use crate::agent::http::{explain, metrics};
use crate::api::policy::{DiffRequest, DryRunRequest, LiveTraceRequest, TraceQuery};
use crate::api::status::{
    ActionResult, ApiError, AppliedRequest, DrainRequest, LogLevelRequest, PluginCall, ResetRequest,
};
use crate::api::{RouteQuery, page};

/// Returns the read-only routes, for every client.
pub(super) fn reads() -> Router<Shared> {
    Router::new()
        .route("/", get(async || page::page()))
        .route("/livez", get(live))
        .route("/liveness", get(live))
        .route("/readyz", get(ready))
        .route("/readiness", get(ready))
        .route("/metrics", get(metrics::native))
        .route("/v1/status", get(show_status))
        .route("/v1/bgp/peers", get(list_peers))
        .route("/v1/bgp/peers/{peer}", get(peer))
        .route("/v1/bgp/ranges", get(ranges))
        .route("/v1/bgp/routes", get(bgp_routes))
        .route("/v1/bgp/mrt/table", get(mrt_table))
        .route("/v1/bgp/mrt/updates", get(mrt_updates))
        .route("/v1/routes", get(kernel_routes))
        .route("/v1/routes/get/{address}", get(route_get))
        .route("/v1/endpoints", get(list_endpoints))
        .route("/v1/endpoint", get(endpoint))
        .route("/v1/selector", get(selector))
        .route("/v1/policies", get(policies))
        .route("/v1/policy", get(policy))
        .route("/v1/policy/trace", get(policy_trace))
        .route("/v1/why/packet", get(why_packet))
        .route("/v1/why/drop", get(why_drop))
        .route("/v1/diff", get(diff))
        .merge(explain::reads())
        .route("/v1/nodes", get(nodes))
        .route("/v1/ipam/pools", get(ipam_pools))
        .route("/v1/ipam/blocks", get(ipam_blocks))
        .route("/v1/ipam/block", get(ipam_block))
        .fallback(async || {
            error_response(StatusCode::NOT_FOUND, "not-found", "no such page: the API is under /v1/")
        })
}

/// Returns the routes that write or are expensive, for the unix socket only.
pub(super) fn writes() -> Router<Shared> {
    Router::new()
        .route("/v1/applied", post(applied))
        .route("/v1/told", post(plugin_call))
        .route("/v1/identity", get(identity))
        .route("/v1/policy/dry-run", post(dry_run))
        .route("/v1/policy/live", post(policy_live))
        .route("/v1/bgp/reset", post(reset))
        .route("/v1/bgp/drain", post(drain))
        .route("/v1/store/accept", post(accept_store))
        .route("/v1/log/level", post(log_level))
        .route("/v1/diff", post(hold_drift))
        .route("/v1/journal", get(journal))
}

async fn live(State(server): State<Shared>) -> Response {
    health(server.handle().is_alive())
}

async fn ready(State(server): State<Shared>) -> Response {
    if server.handle().is_ready() {
        return health(true);
    }
    let status = status::status(&server).await;
    (StatusCode::SERVICE_UNAVAILABLE, format!("{}\n", status.summary)).into_response()
}

async fn show_status(State(server): State<Shared>) -> Response {
    json(StatusCode::OK, &status::status(&server).await)
}

async fn ranges(State(server): State<Shared>) -> Response {
    answer(peers::list_ranges(&server).await)
}

async fn list_peers(State(server): State<Shared>) -> Response {
    answer(peers::list(&server).await)
}

async fn peer(State(server): State<Shared>, UrlPath(wanted): UrlPath<String>) -> Response {
    answer(peers::list(&server).await.and_then(|list| {
        list.items
            .into_iter()
            .find(|p| p.session == wanted || p.name == wanted || p.address == wanted)
            .ok_or_else(|| ApiError {
                code: "not-found".to_owned(),
                text: format!(
                    "no peer `{wanted}` is configured on this host: `tortie bgp peers` lists the peers"
                ),
            })
    }))
}

async fn bgp_routes(State(server): State<Shared>, Query(query): Query<RouteQuery>) -> Response {
    answer(routes::of_bgp(&server, query).await)
}

async fn mrt_table(State(server): State<Shared>) -> Response {
    match mrt::table(&server).await {
        Ok((prefixes, stream)) => octet_response(stream, Some(prefixes)),
        Err(error) => answer::<()>(Err(error)),
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MrtQuery {
    peer: Option<String>,
}

async fn mrt_updates(State(server): State<Shared>, Query(query): Query<MrtQuery>) -> Response {
    match mrt::updates(&server, query.peer).await {
        Ok(stream) => octet_response(stream, None),
        Err(error) => answer::<()>(Err(error)),
    }
}

/// Exports the journal of the core's inputs; it contains the store's content, so only the unix socket serves
/// it.
async fn journal(State(server): State<Shared>) -> Response {
    match server.journal().export().await {
        Some(octets) => ([(header::CONTENT_TYPE, "application/gzip")], octets).into_response(),
        None => answer::<()>(Err(stopping())),
    }
}

/// Returns the identity of the agent.
async fn identity(State(server): State<Shared>) -> Response {
    answer(status::identity(&server).await)
}

async fn kernel_routes(State(server): State<Shared>, Query(query): Query<RouteQuery>) -> Response {
    answer(routes::of_kernel(&server, query).await)
}

async fn route_get(State(server): State<Shared>, UrlPath(address): UrlPath<String>) -> Response {
    match address.parse() {
        Ok(address) => answer(address::route_get(&server, address).await),
        Err(_) => {
            error_response(StatusCode::BAD_REQUEST, "invalid", &format!("`{address}` is not an IP address"))
        }
    }
}

/// Names may contain slashes, so they are a query parameter and no part of the path.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NameQuery {
    name: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AllQuery {
    #[serde(default)]
    all: bool,
}

async fn list_endpoints(State(server): State<Shared>, Query(query): Query<AllQuery>) -> Response {
    answer(endpoints::list(&server, query.all).await)
}

async fn selector(State(server): State<Shared>, Query(query): Query<NameQuery>) -> Response {
    answer(endpoints::selected(&server, query.name).await)
}

async fn endpoint(State(server): State<Shared>, Query(query): Query<NameQuery>) -> Response {
    answer(endpoints::show(&server, query.name).await)
}

async fn policies(State(server): State<Shared>, Query(query): Query<AllQuery>) -> Response {
    answer(endpoints::list_policies(&server, query.all).await)
}

async fn policy(State(server): State<Shared>, Query(query): Query<NameQuery>) -> Response {
    answer(endpoints::show_policy(&server, query.name).await)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DropQuery {
    /// Period in seconds; default 600.
    since: Option<u64>,
}

async fn why_drop(State(server): State<Shared>, Query(query): Query<DropQuery>) -> Response {
    answer(endpoints::drops(&server, Duration::from_secs(query.since.unwrap_or(600))).await)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DiffQuery {
    max: Option<usize>,
}

async fn diff(State(server): State<Shared>, Query(query): Query<DiffQuery>) -> Response {
    answer(endpoints::diff(&server, query.max.unwrap_or(100).min(10_000)).await)
}

async fn nodes(State(server): State<Shared>) -> Response {
    answer(server.cluster().nodes().await)
}

async fn ipam_pools(State(server): State<Shared>) -> Response {
    answer(server.cluster().pools().await)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BlocksQuery {
    pool: Option<Cidr>,
}

async fn ipam_blocks(State(server): State<Shared>, Query(query): Query<BlocksQuery>) -> Response {
    answer(server.cluster().blocks(query.pool).await)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BlockQuery {
    cidr: Cidr,
}

async fn ipam_block(State(server): State<Shared>, Query(query): Query<BlockQuery>) -> Response {
    answer(server.cluster().block(server.handle(), query.cidr).await)
}

async fn dry_run(State(server): State<Shared>, bytes: Bytes) -> Response {
    match body::<DryRunRequest>(&bytes) {
        Ok(request) => answer(endpoints::dry_run(&server, request).await),
        Err(response) => *response,
    }
}

/// Installs a table in the kernel, so only root may call it.
async fn policy_live(
    State(server): State<Shared>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    bytes: Bytes,
) -> Response {
    match may_write(caller).and_then(|()| body::<LiveTraceRequest>(&bytes)) {
        Ok(request) => answer(live_trace::trace_packets(&server, request).await),
        Err(response) => *response,
    }
}

async fn policy_trace(State(server): State<Shared>, Query(query): Query<TraceQuery>) -> Response {
    answer(endpoints::trace(&server, query, false).await)
}

async fn why_packet(State(server): State<Shared>, Query(query): Query<TraceQuery>) -> Response {
    answer(endpoints::trace(&server, query, true).await)
}

async fn applied(State(server): State<Shared>, bytes: Bytes) -> Response {
    match body::<AppliedRequest>(&bytes) {
        Ok(request) => json(StatusCode::OK, &control::applied(&server, request).await),
        Err(response) => *response,
    }
}

async fn plugin_call(ConnectInfo(caller): ConnectInfo<Caller>, bytes: Bytes) -> Response {
    match may_write(caller).and_then(|()| body::<PluginCall>(&bytes)) {
        Ok(call) => {
            crate::plugins::metrics::receive(&call);
            json(StatusCode::OK, &ActionResult { text: "counted".to_owned() })
        }
        Err(response) => *response,
    }
}

async fn reset(
    State(server): State<Shared>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    bytes: Bytes,
) -> Response {
    match may_write(caller).and_then(|()| body::<ResetRequest>(&bytes)) {
        Ok(request) => answer(peers::reset(&server, request).await),
        Err(response) => *response,
    }
}

async fn drain(
    State(server): State<Shared>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    bytes: Bytes,
) -> Response {
    match may_write(caller).and_then(|()| body::<DrainRequest>(&bytes)) {
        Ok(request) => answer(peers::drain(&server, request).await),
        Err(response) => *response,
    }
}

async fn hold_drift(
    State(server): State<Shared>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    bytes: Bytes,
) -> Response {
    match may_write(caller).and_then(|()| body::<DiffRequest>(&bytes)) {
        Ok(request) => answer(endpoints::hold_drift(&server, request).await),
        Err(response) => *response,
    }
}

async fn log_level(
    State(server): State<Shared>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    bytes: Bytes,
) -> Response {
    match may_write(caller).and_then(|()| body::<LogLevelRequest>(&bytes)) {
        Ok(request) => answer(control::log_level(&server, request).await),
        Err(response) => *response,
    }
}

async fn accept_store(State(server): State<Shared>, ConnectInfo(caller): ConnectInfo<Caller>) -> Response {
    match may_write(caller) {
        Ok(()) => answer(control::accept_store(&server).await),
        Err(response) => *response,
    }
}
