//! Metrics over HTTP: the page in the form that the scraper asks for, the pages with the names of others on ports of their
//! own, and the count of requests.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::TcpListener;

use crate::api::http::{ServeError, Serving};
use crate::api::{Backend, MetricsPage};

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
const OPEN: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The native page: OpenMetrics for those who ask for it.
pub(in crate::api) async fn native(State(backend): State<Arc<dyn Backend>>, headers: HeaderMap) -> Response {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let open = accept.contains("application/openmetrics-text");
    let (page, kind) = if open { (MetricsPage::OpenMetrics, OPEN) } else { (MetricsPage::Prometheus, TEXT) };
    ([(header::CONTENT_TYPE, kind)], backend.metrics(page).await).into_response()
}

/// Counts requests by the route that answered them; what no route answers is one of its own.
pub(in crate::api) async fn count(
    State(backend): State<Arc<dyn Backend>>,
    request: Request,
    next: Next,
) -> Response {
    let begin = Instant::now();
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let response = next.run(request).await;
    let route = route.unwrap_or_else(|| "none".to_owned());
    backend.served(&route, response.status().as_u16(), begin.elapsed());
    response
}

/// Listens for scrapes of one page: `/metrics`, and `/` for scrapers that are told nothing else.
///
/// # Errors
/// When the address cannot be bound.
pub async fn serve_metrics(
    addr: SocketAddr,
    page: MetricsPage,
    backend: Arc<dyn Backend>,
) -> Result<Serving, ServeError> {
    let io = move |what, error| ServeError::Io { what, place: addr.to_string(), error };
    let listener = TcpListener::bind(addr).await.map_err(|error| io("serve metrics on", error))?;
    let answer = move |State(backend): State<Arc<dyn Backend>>| async move {
        ([(header::CONTENT_TYPE, TEXT)], backend.metrics(page).await).into_response()
    };
    let app = Router::new().route("/metrics", get(answer)).route("/", get(answer)).with_state(backend);
    Ok(Box::pin(async move { axum::serve(listener, app).await.map_err(|e| io("serve on", e)) }))
}
