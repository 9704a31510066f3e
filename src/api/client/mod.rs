//! HTTP client of the agent's unix socket, for the command line and the plugins.

pub mod sse;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::api::status::ApiError;

/// Header with the host to whose agent a request is directed, escaped as in a path ([`escape`]).
pub const NODE_HEADER: &str = "x-tortie-node";
/// Default limit of a call.
const TIMEOUT: Duration = Duration::from_secs(30);

/// An error of a call to the agent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct ClientError {
    /// Kind of the error.
    pub kind: ClientErrorKind,
    /// Stable code, for programs.
    pub code: String,
    /// Text for people: the error, the socket or path, and the next step.
    pub text: String,
}

/// Kind of a [`ClientError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientErrorKind {
    /// No process listens at the socket.
    Absent,
    /// The connection broke, or the answer cannot be parsed.
    Broken,
    /// The caller may not use the socket, or may not make this request.
    Denied,
    /// No answer within the limit.
    TimedOut,
    /// The agent rejected the request as invalid, or it could not be encoded.
    Invalid,
    /// The requested object does not exist.
    NotFound,
    /// The agent answered with any other error.
    Refused,
}

impl ClientError {
    fn new(kind: ClientErrorKind, code: &str, text: impl Into<String>) -> Self {
        Self { kind, code: code.to_owned(), text: text.into() }
    }
}

/// A client of the API; each call opens a connection of its own.
#[derive(Debug, Clone)]
pub struct Client {
    socket: PathBuf,
    /// Host to whose agent requests are directed; `None` accepts any agent at the socket.
    node: Option<String>,
}

impl Client {
    /// Creates a client of the agent that listens at `socket`.
    #[must_use]
    pub fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned(), node: None }
    }

    /// Restricts the client to the agent of one host; the agent of another host rejects its requests.
    #[must_use]
    pub fn of_node(self, node: Option<&str>) -> Self {
        Self { node: node.map(escape), ..self }
    }

    /// Sends a GET request for `path`.
    ///
    /// # Errors
    /// If the agent cannot be reached or answers with an error.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.call(Method::GET, path, Bytes::new(), TIMEOUT).await
    }

    /// Like [`get`](Self::get), with `limit` as the limit of the whole call.
    ///
    /// # Errors
    /// If the agent cannot be reached or answers with an error.
    pub async fn get_within<T: DeserializeOwned>(
        &self,
        path: &str,
        limit: Duration,
    ) -> Result<T, ClientError> {
        self.call(Method::GET, path, Bytes::new(), limit).await
    }

    /// Sends `body` as JSON to `path`.
    ///
    /// # Errors
    /// If the agent cannot be reached or answers with an error.
    pub async fn post<B: Serialize, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
    ) -> Result<T, ClientError> {
        self.post_and_wait(path, body, Duration::ZERO).await
    }

    /// Like [`post`](Self::post), with a limit that is longer by `takes`, the time that the agent needs on
    /// purpose.
    ///
    /// # Errors
    /// If the agent cannot be reached or answers with an error.
    pub async fn post_and_wait<B: Serialize, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
        takes: Duration,
    ) -> Result<T, ClientError> {
        self.post_within(path, body, TIMEOUT + takes).await
    }

    /// Like [`post`](Self::post), with `limit` as the limit of the whole call.
    ///
    /// # Errors
    /// If the agent cannot be reached or answers with an error.
    pub async fn post_within<B: Serialize, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
        limit: Duration,
    ) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body)
            .map_err(|e| ClientError::new(ClientErrorKind::Invalid, "invalid", e.to_string()))?;
        self.call(Method::POST, path, Bytes::from(body), limit).await
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        patience: Duration,
    ) -> Result<T, ClientError> {
        let (status, bytes) =
            tokio::time::timeout(patience, self.exchange(method, path, body)).await.map_err(|_| {
                ClientError::new(
                    ClientErrorKind::TimedOut,
                    "timeout",
                    format!(
                        "the agent at {} did not answer within {} s",
                        self.socket.display(),
                        patience.as_secs_f32()
                    ),
                )
            })??;
        if status.is_success() {
            return serde_json::from_slice(&bytes).map_err(|error| {
                ClientError::new(
                    ClientErrorKind::Broken,
                    "version-skew",
                    format!("the agent's answer cannot be read ({error}): is it another version? see `tortie version`"),
                )
            });
        }
        Err(refused(status, &bytes))
    }

    /// Sends a GET request for `path` and returns the value of the header `header` and the body, which is
    /// read as it arrives.
    ///
    /// # Errors
    /// If the agent cannot be reached or answers with an error.
    pub async fn stream(&self, path: &str, header: &str) -> Result<(Option<String>, Incoming), ClientError> {
        let (response, driver) = self.request(Method::GET, path, Bytes::new()).await?;
        if !response.status().is_success() {
            let status = response.status();
            let bytes = response.into_body().collect().await.map_err(|e| self.broken(&e))?.to_bytes();
            driver.abort();
            return Err(refused(status, &bytes));
        }
        let value = response.headers().get(header).and_then(|v| v.to_str().ok()).map(str::to_owned);
        Ok((value, response.into_body()))
    }

    async fn exchange(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), ClientError> {
        let (response, driver) = self.request(method, path, body).await?;
        let status = response.status();
        let bytes = response.into_body().collect().await.map_err(|e| self.broken(&e))?.to_bytes();
        driver.abort();
        Ok((status, bytes))
    }

    async fn request(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<(hyper::Response<Incoming>, tokio::task::JoinHandle<hyper::Result<()>>), ClientError> {
        let stream = tokio::net::UnixStream::connect(&self.socket).await.map_err(|e| self.unconnected(&e))?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| self.broken(&e))?;
        let driver = tokio::spawn(connection);
        let request = Request::builder().method(method).uri(path).header("host", "localhost");
        let request = match &self.node {
            Some(node) => request.header(NODE_HEADER, node),
            None => request,
        };
        let request = request.body(Full::new(body));
        let request = request.map_err(|e| {
            let text = format!("`{path}` cannot be requested: {e}");
            ClientError::new(ClientErrorKind::Invalid, "invalid", text)
        })?;
        let response = sender.send_request(request).await.map_err(|e| self.broken(&e))?;
        Ok((response, driver))
    }

    fn unconnected(&self, error: &std::io::Error) -> ClientError {
        let socket = self.socket.display();
        match error.kind() {
            ErrorKind::PermissionDenied => ClientError::new(
                ClientErrorKind::Denied,
                "denied",
                format!(
                    "no permission for {socket}: join the group tortie (its members may read) or use sudo"
                ),
            ),
            ErrorKind::NotFound => ClientError::new(
                ClientErrorKind::Absent,
                "no-agent",
                format!(
                    "no agent runs here: {socket} does not exist. Start it (systemctl start tortie), or \
                     give its --socket"
                ),
            ),
            _ => ClientError::new(
                ClientErrorKind::Absent,
                "no-agent",
                format!("the agent does not answer at {socket} ({error}). See: systemctl status tortie"),
            ),
        }
    }

    fn broken(&self, error: &dyn std::error::Error) -> ClientError {
        ClientError::new(
            ClientErrorKind::Broken,
            "broken",
            format!("the connection to the agent at {} broke: {error}", self.socket.display()),
        )
    }
}

/// Converts an answer with an error status into a [`ClientError`].
fn refused(status: StatusCode, bytes: &[u8]) -> ClientError {
    let error = serde_json::from_slice::<ApiError>(bytes).unwrap_or_else(|_| ApiError {
        code: "unknown".to_owned(),
        text: String::from_utf8_lossy(bytes).into_owned(),
    });
    let kind = match status {
        StatusCode::FORBIDDEN => ClientErrorKind::Denied,
        StatusCode::NOT_FOUND => ClientErrorKind::NotFound,
        StatusCode::BAD_REQUEST => ClientErrorKind::Invalid,
        _ => ClientErrorKind::Refused,
    };
    ClientError::new(kind, &error.code, error.text)
}

/// Percent-encodes a text for a query or path of the API.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~:".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}
