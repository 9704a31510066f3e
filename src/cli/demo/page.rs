//! The demo's web page: serves a list of the hosts and every host's own page on one loopback port, and relays
//! requests to the agents' unix sockets.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, RawQuery, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::get;
use serde::Serialize;
use serde_json::json;

use crate::api::client::{Client, ClientErrorKind, escape};
use crate::api::page;
use crate::api::status::Status;

/// TCP port that is tried first; if it is in use, any free port.
const PORT: u16 = 7979;

/// The hosts and their sockets, once these exist.
#[derive(Debug, Clone, Default)]
pub(super) struct Hosts(Arc<Mutex<Vec<(String, PathBuf)>>>);

impl Hosts {
    pub(super) fn set(&self, hosts: Vec<(String, PathBuf)>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = hosts;
    }

    fn all(&self) -> Vec<(String, PathBuf)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn client(&self, name: &str) -> Option<Client> {
        self.all().iter().find(|(host, _)| host == name).map(|(_, socket)| Client::new(socket))
    }
}

/// Serves the page on a thread of its own for the life of the process.
///
/// # Errors
/// If no loopback port can be bound.
pub(super) fn serve(hosts: Hosts) -> std::io::Result<SocketAddr> {
    let bind = |port| std::net::TcpListener::bind(("127.0.0.1", port));
    let listener = bind(PORT).or_else(|_| bind(0))?;
    listener.set_nonblocking(true)?;
    let addr = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("page".to_owned()).spawn(move || {
        runtime.block_on(async move {
            let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
            let _ = axum::serve(listener, router(hosts)).await;
        });
    })?;
    Ok(addr)
}

fn router(hosts: Hosts) -> Router {
    Router::new()
        .route("/", get(list_page))
        .route("/v1/hosts", get(list))
        .route(
            "/{host}",
            get(async |Path(host): Path<String>| Redirect::permanent(&format!("/{}/", escape(&host)))),
        )
        .route("/{host}/", get(async || page::page()))
        .route("/{host}/v1/{*what}", get(relay))
        .layer(middleware::from_fn(own_name_only))
        .with_state(hosts)
}

/// Rejects other host names: a page of another site must not read this one by DNS rebinding.
async fn own_name_only(request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).and_then(|h| h.to_str().ok()).unwrap_or_default();
    match host.split(':').next() {
        Some("127.0.0.1" | "localhost") => next.run(request).await,
        _ => refuse(StatusCode::FORBIDDEN, "forbidden-host", "use http://127.0.0.1 or localhost"),
    }
}

fn refuse(status: StatusCode, code: &str, text: &str) -> Response {
    (status, axum::Json(json!({ "code": code, "text": text }))).into_response()
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    name: String,
    status: Option<Status>,
    error: Option<String>,
}

async fn rows(hosts: &Hosts) -> Vec<Row> {
    let mut rows = Vec::new();
    for (name, socket) in hosts.all() {
        let asked = Client::new(&socket).get::<Status>("/v1/status").await;
        let (status, error) = match asked {
            Ok(status) => (Some(status), None),
            Err(error) => (None, Some(error.text)),
        };
        rows.push(Row { name, status, error });
    }
    rows
}

async fn list(State(hosts): State<Hosts>) -> Response {
    axum::Json(json!({ "items": rows(&hosts).await })).into_response()
}

/// Relays a GET request and streams the answer, because `v1/events` never ends.
async fn relay(
    State(hosts): State<Hosts>,
    Path((host, what)): Path<(String, String)>,
    RawQuery(query): RawQuery,
) -> Response {
    let Some(client) = hosts.client(&host) else {
        return refuse(StatusCode::NOT_FOUND, "not-found", "no such host: /v1/hosts lists them");
    };
    let path = what.split('/').map(escape).collect::<Vec<_>>().join("/");
    let query = query.map_or_else(String::new, |query| format!("?{query}"));
    match client.stream(&format!("/v1/{path}{query}"), header::CONTENT_TYPE.as_str()).await {
        Ok((kind, body)) => {
            let kind = kind.unwrap_or_else(|| "application/json".to_owned());
            ([(header::CONTENT_TYPE, kind)], Body::new(body)).into_response()
        }
        Err(error) => {
            let status = match error.kind {
                ClientErrorKind::NotFound => StatusCode::NOT_FOUND,
                ClientErrorKind::Invalid => StatusCode::BAD_REQUEST,
                ClientErrorKind::Refused => StatusCode::SERVICE_UNAVAILABLE,
                _ => StatusCode::BAD_GATEWAY,
            };
            refuse(status, &error.code, &error.text)
        }
    }
}

async fn list_page(State(hosts): State<Hosts>) -> Html<String> {
    let mut body = String::new();
    for row in rows(&hosts).await {
        let name = quote(&row.name);
        let cells = match (&row.status, &row.error) {
            (Some(s), _) => format!(
                "<td>{}</td><td>{}/{}</td><td>{}/{}</td><td>{}</td><td>{}</td>",
                quote(&s.verdict),
                s.bgp.mesh.up,
                s.bgp.mesh.of,
                s.bgp.peers.up,
                s.bgp.peers.of,
                s.routes.installed,
                quote(&s.summary)
            ),
            (None, error) => {
                format!(
                    "<td>DOWN</td><td></td><td></td><td></td><td>{}</td>",
                    quote(error.as_deref().unwrap_or(""))
                )
            }
        };
        body += &format!("<tr><th><a href=\"/{}/\">{name}</a></th>{cells}</tr>\n", escape(&row.name));
    }
    Html(format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta http-equiv=\"refresh\" content=\"1\"><title>tortie demo</title>\
         <style>body{{font:15px/1.5 system-ui,sans-serif;margin:2em}}td,th{{text-align:left;padding:.2em 1.2em .2em 0}}</style>\
         <h1>tortie demo</h1><table><tr><th>Host</th><th>State</th><th>Mesh</th><th>Router</th><th>Kernel routes</th>\
         <th></th></tr>\n{body}</table>"
    ))
}

fn quote(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
