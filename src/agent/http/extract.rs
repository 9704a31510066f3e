//! Extractors for the query, the body and the caller of a request.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{FromRequestParts, Query as UrlQuery};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::Response;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use crate::agent::api::server::Server;
use crate::agent::http::respond::error_response;

/// State shared by all handlers.
pub(super) type Shared = Arc<Server>;

/// Client process at the other end of the unix socket.
#[derive(Debug, Clone, Copy)]
pub(super) struct Caller {
    pub(super) may_write: bool,
}

impl Caller {
    pub(super) fn of(stream: &UnixStream) -> Self {
        let uid = stream.peer_cred().ok().map(|cred| cred.uid());
        // A rootless agent also accepts writes from the user who started it.
        let own = rustix::process::geteuid().as_raw();
        Self { may_write: uid.is_some_and(|uid| uid == 0 || uid == own) }
    }
}

/// Parsed query string; a malformed one is rejected before the handler runs.
pub(super) struct Query<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Response> {
        match UrlQuery::try_from_uri(&parts.uri) {
            Ok(UrlQuery(query)) => Ok(Self(query)),
            Err(error) => Err(error_response(StatusCode::BAD_REQUEST, "invalid", &error.body_text())),
        }
    }
}

/// Parses a body as JSON, whatever its content type: some clients send none.
pub(super) fn body<T: DeserializeOwned>(bytes: &Bytes) -> Result<T, Box<Response>> {
    serde_json::from_slice(bytes).map_err(|error| {
        Box::new(error_response(
            StatusCode::BAD_REQUEST,
            "invalid",
            &format!("the request body is not valid: {error}"),
        ))
    })
}

pub(super) fn may_write(caller: Caller) -> Result<(), Box<Response>> {
    if caller.may_write {
        return Ok(());
    }
    Err(Box::new(error_response(
        StatusCode::FORBIDDEN,
        "forbidden",
        "writing needs root: run it with sudo (members of the group tortie may read)",
    )))
}
