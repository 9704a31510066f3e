//! The routes of the API over axum, on a unix socket and on loopback TCP.

pub(super) mod explain;
pub(super) mod guard;
pub(super) mod metrics;
pub mod page;

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::extract::{FromRequestParts, Path as UrlPath, Query, Request, State};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::serve::IncomingStream;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::net::{TcpListener, UnixListener};
use tortie_net::Cidr;

use super::policy::{DiffRequest, DryRunRequest, LiveTraceRequest, TraceQuery};
use super::{Backend, OctetStream, RouteQuery};
use crate::api::http::guard::{Names, guard};
use crate::api::status::{
    ApiError, AppliedRequest, Done, DrainRequest, KernelRouteRow, List, LogLevelRequest, ResetRequest, Told,
};

pub(super) type Shared = Arc<dyn Backend>;

/// Why the API cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Another agent answers there.
    #[error("another agent answers at {0}: stop it, or give this one another --socket")]
    Taken(PathBuf),
    /// The path is something else.
    #[error("{0} exists and is no socket: remove it, or give another --socket")]
    NotASocket(PathBuf),
    /// The system refused.
    #[error("cannot {what} {place}: {error}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// Where.
        place: String,
        /// The system's answer.
        error: std::io::Error,
    },
}

/// Who is at the other end of the unix socket.
#[derive(Debug, Clone, Copy)]
struct Caller {
    may_write: bool,
}

impl Connected<IncomingStream<'_, UnixListener>> for Caller {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Self {
        let uid = stream.io().peer_cred().ok().map(|cred| cred.uid());
        // A rootless agent serves the user who started it.
        let own = rustix::process::geteuid().as_raw();
        Self { may_write: uid.is_some_and(|uid| uid == 0 || uid == own) }
    }
}

/// Serves what was bound until it is dropped.
pub type Serving = Pin<Box<dyn Future<Output = Result<(), ServeError>> + Send>>;

/// Listens for reads and writes on a unix socket. The file is 0660 and belongs to the group `tortie` where that exists:
/// the group may read, root may write.
///
/// # Errors
/// When the path is taken or cannot be made.
pub async fn serve_unix(path: PathBuf, backend: Shared) -> Result<Serving, ServeError> {
    let place = path.display().to_string();
    let io = |what, error| ServeError::Io { what, place: path.display().to_string(), error };
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).map_err(|e| io("make the folder of", e))?;
    }
    if let Ok(meta) = fs::symlink_metadata(&path) {
        if !meta.file_type().is_socket() {
            return Err(ServeError::NotASocket(path));
        }
        if std::os::unix::net::UnixStream::connect(&path).is_ok() {
            return Err(ServeError::Taken(path));
        }
        fs::remove_file(&path).map_err(|e| io("remove the stale", e))?;
    }
    let listener = UnixListener::bind(&path).map_err(|e| io("listen on", e))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o660)).map_err(|e| io("set the mode of", e))?;
    if let Some(gid) = group_id("tortie") {
        // Not being allowed to give the file away only means that the group cannot read.
        if let Err(error) = std::os::unix::fs::chown(&path, None, Some(gid)) {
            tracing::warn!(%error, "the group tortie does not get the socket");
        }
    }
    let app = counted(reads().merge(writes()), &backend);
    let app = app.with_state(backend).into_make_service_with_connect_info::<Caller>();
    Ok(Box::pin(async move {
        axum::serve(listener, app).await.map_err(|error| ServeError::Io { what: "serve on", place, error })
    }))
}

/// Listens for reads over TCP. Only requests to loopback names, to the address itself and to `names` are answered (DNS
/// rebinding).
///
/// # Errors
/// When the address cannot be bound.
pub async fn serve_tcp(addr: SocketAddr, names: &[String], backend: Shared) -> Result<Serving, ServeError> {
    let io = move |what, error| ServeError::Io { what, place: addr.to_string(), error };
    let listener = TcpListener::bind(addr).await.map_err(|e| io("listen on", e))?;
    let names = Names::new(addr.ip(), names);
    let reads = reads()
        .layer(middleware::from_fn(move |request: Request, next: Next| guard(names.clone(), request, next)));
    let app = counted(reads, &backend).with_state(backend);
    Ok(Box::pin(async move { axum::serve(listener, app).await.map_err(|e| io("serve on", e)) }))
}

/// Group id from `/etc/group`; name services are not asked, because a daemon must not hang on them.
fn group_id(name: &str) -> Option<u32> {
    let text = fs::read_to_string(Path::new("/etc/group")).ok()?;
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok())?
    })
}

fn counted(routes: Router<Shared>, backend: &Shared) -> Router<Shared> {
    routes.layer(middleware::from_fn_with_state(Arc::clone(backend), crate::api::http::metrics::count))
}

fn reads() -> Router<Shared> {
    Router::new()
        .route("/", get(async || page::page()))
        .route("/livez", get(live))
        .route("/liveness", get(live))
        .route("/readyz", get(ready))
        .route("/readiness", get(ready))
        .route("/metrics", get(crate::api::http::metrics::native))
        .route("/v1/status", get(status))
        .route("/v1/bgp/peers", get(peers))
        .route("/v1/bgp/peers/{peer}", get(peer))
        .route("/v1/bgp/ranges", get(ranges))
        .route("/v1/bgp/routes", get(bgp_routes))
        .route("/v1/bgp/mrt/table", get(mrt_table))
        .route("/v1/bgp/mrt/updates", get(mrt_updates))
        .route("/v1/routes", get(kernel_routes))
        .route("/v1/routes/get/{address}", get(route_get))
        .route("/v1/endpoints", get(endpoints))
        .route("/v1/endpoint", get(endpoint))
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
        .fallback(async || failure(StatusCode::NOT_FOUND, "not-found", "no such page: the API is under /v1/"))
}

fn writes() -> Router<Shared> {
    Router::new()
        .route("/v1/applied", post(applied))
        .route("/v1/told", post(told))
        .route("/v1/policy/dry-run", post(dry_run))
        .route("/v1/policy/live", post(policy_live))
        .route("/v1/bgp/reset", post(reset))
        .route("/v1/bgp/drain", post(drain))
        .route("/v1/store/accept", post(accept_store))
        .route("/v1/log/level", post(log_level))
        .route("/v1/diff", post(study))
}

pub(super) fn failure(status: StatusCode, code: &str, text: &str) -> Response {
    json(status, &ApiError { code: code.to_owned(), text: text.to_owned() })
}

fn json<T: Serialize>(status: StatusCode, value: &T) -> Response {
    match serde_json::to_vec(value) {
        Ok(body) => (status, [(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

pub(super) fn answer<T: Serialize>(result: Result<T, ApiError>) -> Response {
    match result {
        Ok(value) => json(StatusCode::OK, &value),
        Err(error) => {
            let status = match error.code.as_str() {
                "not-found" => StatusCode::NOT_FOUND,
                "invalid" => StatusCode::BAD_REQUEST,
                _ => StatusCode::SERVICE_UNAVAILABLE,
            };
            json(status, &error)
        }
    }
}

fn health(yes: bool) -> Response {
    if yes { (StatusCode::OK, "ok\n") } else { (StatusCode::SERVICE_UNAVAILABLE, "no\n") }.into_response()
}

async fn live(State(backend): State<Shared>) -> Response {
    health(backend.live())
}

async fn ready(State(backend): State<Shared>) -> Response {
    if backend.ready() {
        return health(true);
    }
    let status = backend.status().await;
    (StatusCode::SERVICE_UNAVAILABLE, format!("{}\n", status.summary)).into_response()
}

async fn status(State(backend): State<Shared>) -> Response {
    json(StatusCode::OK, &*backend.status().await)
}

async fn ranges(State(backend): State<Shared>) -> Response {
    answer(backend.ranges().await)
}

async fn peers(State(backend): State<Shared>) -> Response {
    answer(backend.peers().await)
}

async fn peer(State(backend): State<Shared>, UrlPath(wanted): UrlPath<String>) -> Response {
    answer(backend.peers().await.and_then(|list| {
        list.items
            .into_iter()
            .find(|p| p.session == wanted || p.name == wanted || p.address == wanted)
            .ok_or_else(|| ApiError {
                code: "not-found".to_owned(),
                text: format!("no peer `{wanted}` is wanted here: `tortie bgp peers` lists them"),
            })
    }))
}

async fn bgp_routes(State(backend): State<Shared>, Asked(query): Asked<RouteQuery>) -> Response {
    answer(backend.bgp_routes(query).await)
}

/// What a stream says in its header beforehand: how many prefixes are about to come.
const PREFIXES: &str = "x-tortie-prefixes";

fn octets(stream: OctetStream, prefixes: Option<u64>) -> Response {
    let body = axum::body::Body::from_stream(stream);
    let mut response = ([(header::CONTENT_TYPE, "application/octet-stream")], body).into_response();
    if let Some(prefixes) = prefixes {
        response.headers_mut().insert(PREFIXES, prefixes.into());
    }
    response
}

async fn mrt_table(State(backend): State<Shared>) -> Response {
    match backend.mrt_table().await {
        Ok((prefixes, stream)) => octets(stream, Some(prefixes)),
        Err(error) => answer::<()>(Err(error)),
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MrtQuery {
    peer: Option<String>,
}

async fn mrt_updates(State(backend): State<Shared>, Asked(query): Asked<MrtQuery>) -> Response {
    match backend.mrt_updates(query.peer).await {
        Ok(stream) => octets(stream, None),
        Err(error) => answer::<()>(Err(error)),
    }
}

/// Prefixes of one question for kernel routes.
const PREFIXES_ASKED: usize = 256;

async fn kernel_routes(State(backend): State<Shared>, Asked(query): Asked<RouteQuery>) -> Response {
    answer(several(&*backend, query).await)
}

/// Kernel routes; `prefix` may be several with commas, as a page of BGP routes has them.
async fn several(backend: &dyn Backend, query: RouteQuery) -> Result<List<KernelRouteRow>, ApiError> {
    let Some(list) = query.prefix.clone().filter(|list| list.contains(',')) else {
        return backend.kernel_routes(query).await;
    };
    if list.split(',').count() > PREFIXES_ASKED {
        let text = format!("at most {PREFIXES_ASKED} prefixes can be asked for at once");
        return Err(ApiError { code: "invalid".to_owned(), text });
    }
    let mut found: Option<List<KernelRouteRow>> = None;
    for prefix in list.split(',') {
        let one =
            backend.kernel_routes(RouteQuery { prefix: Some(prefix.to_owned()), ..query.clone() }).await?;
        match &mut found {
            Some(found) => found.items.extend(one.items),
            None => found = Some(one),
        }
    }
    found.ok_or_else(|| ApiError { code: "invalid".to_owned(), text: "no prefix is given".to_owned() })
}

async fn route_get(State(backend): State<Shared>, UrlPath(address): UrlPath<String>) -> Response {
    match address.parse() {
        Ok(address) => answer(backend.route_get(address).await),
        Err(_) => failure(StatusCode::BAD_REQUEST, "invalid", &format!("`{address}` is no IP address")),
    }
}

/// Names hold slashes, so they are no part of a path.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    name: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Extent {
    #[serde(default)]
    all: bool,
}

/// What stands behind the `?`; what cannot be read is answered before the handler runs.
pub(super) struct Asked<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Asked<T> {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Response> {
        match Query::try_from_uri(&parts.uri) {
            Ok(Query(query)) => Ok(Self(query)),
            Err(error) => Err(failure(StatusCode::BAD_REQUEST, "invalid", &error.body_text())),
        }
    }
}

async fn endpoints(State(backend): State<Shared>, Asked(query): Asked<Extent>) -> Response {
    answer(backend.endpoints(query.all).await)
}

async fn endpoint(State(backend): State<Shared>, Asked(query): Asked<Named>) -> Response {
    answer(backend.endpoint(query.name).await)
}

async fn policies(State(backend): State<Shared>, Asked(query): Asked<Extent>) -> Response {
    answer(backend.policies(query.all).await)
}

async fn policy(State(backend): State<Shared>, Asked(query): Asked<Named>) -> Response {
    answer(backend.policy(query.name).await)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DropQuery {
    /// Seconds.
    since: Option<u64>,
}

async fn why_drop(State(backend): State<Shared>, Asked(query): Asked<DropQuery>) -> Response {
    answer(backend.drops(Duration::from_secs(query.since.unwrap_or(600))).await)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DiffQuery {
    max: Option<usize>,
}

async fn diff(State(backend): State<Shared>, Asked(query): Asked<DiffQuery>) -> Response {
    answer(backend.diff(query.max.unwrap_or(100).min(10_000)).await)
}

async fn nodes(State(backend): State<Shared>) -> Response {
    answer(backend.nodes().await)
}

async fn ipam_pools(State(backend): State<Shared>) -> Response {
    answer(backend.ipam_pools().await)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BlocksQuery {
    pool: Option<Cidr>,
}

async fn ipam_blocks(State(backend): State<Shared>, Asked(query): Asked<BlocksQuery>) -> Response {
    answer(backend.ipam_blocks(query.pool).await)
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BlockQuery {
    cidr: Cidr,
}

async fn ipam_block(State(backend): State<Shared>, Asked(query): Asked<BlockQuery>) -> Response {
    answer(backend.ipam_block(query.cidr).await)
}

async fn dry_run(State(backend): State<Shared>, bytes: Bytes) -> Response {
    match body::<DryRunRequest>(&bytes) {
        Ok(request) => answer(backend.dry_run(request).await),
        Err(response) => *response,
    }
}

/// It puts a table into the kernel, so that it is for root only.
async fn policy_live(
    State(backend): State<Shared>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    bytes: Bytes,
) -> Response {
    match may_write(caller).and_then(|()| body::<LiveTraceRequest>(&bytes)) {
        Ok(request) => answer(backend.live_trace(request).await),
        Err(response) => *response,
    }
}

async fn policy_trace(State(backend): State<Shared>, Asked(query): Asked<TraceQuery>) -> Response {
    answer(backend.trace(query, false).await)
}

async fn why_packet(State(backend): State<Shared>, Asked(query): Asked<TraceQuery>) -> Response {
    answer(backend.trace(query, true).await)
}

/// Reads a body as JSON whatever its content type says: some clients send none.
fn body<T: DeserializeOwned>(bytes: &Bytes) -> Result<T, Box<Response>> {
    serde_json::from_slice(bytes).map_err(|error| {
        Box::new(failure(
            StatusCode::BAD_REQUEST,
            "invalid",
            &format!("the body is not as documented: {error}"),
        ))
    })
}

fn may_write(caller: Caller) -> Result<(), Box<Response>> {
    if caller.may_write {
        return Ok(());
    }
    Err(Box::new(failure(
        StatusCode::FORBIDDEN,
        "forbidden",
        "writing needs root: run it with sudo (members of the group tortie may read)",
    )))
}

async fn applied(State(backend): State<Shared>, bytes: Bytes) -> Response {
    match body::<AppliedRequest>(&bytes) {
        Ok(request) => json(StatusCode::OK, &backend.applied(request).await),
        Err(response) => *response,
    }
}

async fn told(
    State(backend): State<Shared>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    bytes: Bytes,
) -> Response {
    match may_write(caller).and_then(|()| body::<Told>(&bytes)) {
        Ok(told) => {
            backend.told(told);
            json(StatusCode::OK, &Done { text: "counted".to_owned() })
        }
        Err(response) => *response,
    }
}

async fn reset(
    State(backend): State<Shared>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    bytes: Bytes,
) -> Response {
    match may_write(caller).and_then(|()| body::<ResetRequest>(&bytes)) {
        Ok(request) => answer(backend.reset(request).await),
        Err(response) => *response,
    }
}

async fn drain(
    State(backend): State<Shared>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    bytes: Bytes,
) -> Response {
    match may_write(caller).and_then(|()| body::<DrainRequest>(&bytes)) {
        Ok(request) => answer(backend.drain(request).await),
        Err(response) => *response,
    }
}

async fn study(
    State(backend): State<Shared>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    bytes: Bytes,
) -> Response {
    match may_write(caller).and_then(|()| body::<DiffRequest>(&bytes)) {
        Ok(request) => answer(backend.study(request).await),
        Err(response) => *response,
    }
}

async fn log_level(
    State(backend): State<Shared>,
    ConnectInfo(caller): ConnectInfo<Caller>,
    bytes: Bytes,
) -> Response {
    match may_write(caller).and_then(|()| body::<LogLevelRequest>(&bytes)) {
        Ok(request) => answer(backend.log_level(request).await),
        Err(response) => *response,
    }
}

async fn accept_store(State(backend): State<Shared>, ConnectInfo(caller): ConnectInfo<Caller>) -> Response {
    match may_write(caller) {
        Ok(()) => answer(backend.accept_store().await),
        Err(response) => *response,
    }
}
