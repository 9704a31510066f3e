//! The other end of the agent's unix socket: what the command line and the plugins ask with.

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

/// The header with the host whose agent a question is for, escaped as in a path ([`escape`]).
pub const NODE_HEADER: &str = "x-tortie-node";
/// Longest wait for an answer of the agent.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct ClientError {
    /// What kind.
    pub kind: ClientErrorKind,
    /// Stable, for machines.
    pub code: String,
    /// For people: what, where, and the next step.
    pub text: String,
}

/// The kinds of [`ClientError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientErrorKind {
    /// Nobody listens at the socket.
    Absent,
    /// The connection broke, or the answer cannot be read.
    Broken,
    /// No permission for the socket, or for the question.
    Denied,
    /// No answer in time.
    TimedOut,
    /// The question itself is wrong.
    Invalid,
    /// There is no such thing.
    NotFound,
    /// Any other answer that is an error.
    Refused,
}

impl ClientError {
    fn new(kind: ClientErrorKind, code: &str, text: impl Into<String>) -> Self {
        Self { kind, code: code.to_owned(), text: text.into() }
    }
}

/// A caller of the API; one connection a call.
#[derive(Debug, Clone)]
pub struct Client {
    socket: PathBuf,
    /// The host whose agent is asked; `None`: whichever listens there.
    node: Option<String>,
}

impl Client {
    /// A client of the agent that listens at `socket`.
    #[must_use]
    pub fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned(), node: None }
    }

    /// The same, of this host's agent alone: that of another one refuses the question.
    #[must_use]
    pub fn of_node(self, node: Option<&str>) -> Self {
        Self { node: node.map(escape), ..self }
    }

    /// Asks for `path`.
    ///
    /// # Errors
    /// When the agent cannot be reached or answers with an error.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.call(Method::GET, path, Bytes::new(), TIMEOUT).await
    }

    /// The same with a limit of one's own for the whole call.
    ///
    /// # Errors
    /// When the agent cannot be reached or answers with an error.
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
    /// When the agent cannot be reached or answers with an error.
    pub async fn post<B: Serialize, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
    ) -> Result<T, ClientError> {
        self.post_and_wait(path, body, Duration::ZERO).await
    }

    /// The same, for what takes the agent so long on purpose.
    ///
    /// # Errors
    /// When the agent cannot be reached or answers with an error.
    pub async fn post_and_wait<B: Serialize, T: DeserializeOwned>(
        &self,
        path: &str,
        body: &B,
        takes: Duration,
    ) -> Result<T, ClientError> {
        self.post_within(path, body, TIMEOUT + takes).await
    }

    /// The same with a limit of one's own for the whole call.
    ///
    /// # Errors
    /// When the agent cannot be reached or answers with an error.
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

    /// Asks for `path` and gives the answer while it comes: the value of this header, and the body.
    ///
    /// # Errors
    /// When the agent cannot be reached or answers with an error.
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
                format!("no permission for {socket}: join the group tortie (it may read) or use sudo"),
            ),
            ErrorKind::NotFound => ClientError::new(
                ClientErrorKind::Absent,
                "no-agent",
                format!(
                    "no agent here: {socket} does not exist. Start it (systemctl start tortie), or name its --socket"
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

/// An answer that is an error.
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

/// Escapes a text for a query or path of the API.
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
