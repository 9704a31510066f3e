//! Metrics over HTTP: the native page in the format that the scraper accepts, compatible pages on their own
//! ports, and request counts.

use std::time::Instant;

use axum::Router;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::agent::http::extract::Shared;
use crate::api::MetricsPage;

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
const OPEN: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves the native page, as OpenMetrics if the client accepts it.
pub(super) async fn native(State(server): State<Shared>, headers: HeaderMap) -> Response {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let open = accept.contains("application/openmetrics-text");
    let (page, kind) = if open { (MetricsPage::OpenMetrics, OPEN) } else { (MetricsPage::Prometheus, TEXT) };
    ([(header::CONTENT_TYPE, kind)], server.metrics().page(page).await).into_response()
}

/// Counts requests by route; requests without a matching route count as `none`.
pub(super) async fn count(State(server): State<Shared>, request: Request, next: Next) -> Response {
    let begin = Instant::now();
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let response = next.run(request).await;
    let route = route.unwrap_or_else(|| "none".to_owned());
    server.metrics().count_request(route, response.status().as_u16(), begin.elapsed());
    response
}

/// Returns the routes of one metrics page: `/metrics`, and `/` for scrapers without a path.
pub(super) fn page_routes(page: MetricsPage) -> Router<Shared> {
    let answer = move |State(server): State<Shared>| async move {
        ([(header::CONTENT_TYPE, TEXT)], server.metrics().page(page).await).into_response()
    };
    Router::new().route("/metrics", get(answer)).route("/", get(answer))
}
