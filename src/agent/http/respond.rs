//! Responses: JSON, errors with their status, and octet streams.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::agent::api::mrt::OctetStream;
use crate::api::status::ApiError;

pub(super) fn error_response(status: StatusCode, code: &str, text: &str) -> Response {
    json(status, &ApiError { code: code.to_owned(), text: text.to_owned() })
}

pub(super) fn json<T: Serialize>(status: StatusCode, value: &T) -> Response {
    match serde_json::to_vec(value) {
        Ok(mut body) => {
            // A slow client should hold only the size of the body, not its spare capacity.
            body.shrink_to_fit();
            (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
        }
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

pub(super) fn health(yes: bool) -> Response {
    if yes { (StatusCode::OK, "ok\n") } else { (StatusCode::SERVICE_UNAVAILABLE, "no\n") }.into_response()
}

/// Response header with the number of prefixes in the stream.
const PREFIXES: &str = "x-tortie-prefixes";

pub(super) fn octet_response(stream: OctetStream, prefixes: Option<u64>) -> Response {
    let body = axum::body::Body::from_stream(stream);
    let mut response = ([(header::CONTENT_TYPE, "application/octet-stream")], body).into_response();
    if let Some(prefixes) = prefixes {
        response.headers_mut().insert(PREFIXES, prefixes.into());
    }
    response
}
