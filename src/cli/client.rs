//! Client of the agent's unix socket for commands: wraps [`crate::api::client`] and returns failures with
//! exit codes.

use std::path::Path;
use std::time::Duration;

use hyper::body::Incoming;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::context::Globals;
use super::failure::{Exit, Failure};
use super::output;
use crate::api::client::{self, ClientError, ClientErrorKind};

pub use crate::api::client::escape;

/// A client of the API; each call opens a connection of its own.
#[derive(Debug, Clone)]
pub struct Client(client::Client);

impl Client {
    /// Creates a client of the agent that listens at `socket`.
    #[must_use]
    pub fn new(socket: &Path) -> Self {
        Self(client::Client::new(socket))
    }

    /// Creates a client for the global flags: socket and host. The agent of another host rejects its
    /// requests.
    #[must_use]
    pub fn of(globals: &Globals) -> Self {
        Self(client::Client::new(&globals.socket).of_node(globals.node.as_deref()))
    }

    /// Sends a GET request for `path`.
    ///
    /// # Errors
    /// If the agent cannot be reached or answers with an error.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        if !output::for_people() {
            return Ok(self.0.get(path).await?);
        }
        // Texts of external origin must stay on one line of the output.
        let mut answer: serde_json::Value = self.0.get(path).await?;
        one_line_each(&mut answer);
        serde_json::from_value(answer).map_err(|error| {
            Failure::new(
                Exit::Unreachable,
                "version-skew",
                format!(
                    "the agent's answer cannot be read ({error}): is it another version? see `tortie version`"
                ),
            )
        })
    }

    /// Sends `body` as JSON to `path`.
    ///
    /// # Errors
    /// If the agent cannot be reached or answers with an error.
    pub async fn post<B: Serialize, T: DeserializeOwned>(&self, path: &str, body: &B) -> Result<T, Failure> {
        Ok(self.0.post(path, body).await?)
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
    ) -> Result<T, Failure> {
        Ok(self.0.post_and_wait(path, body, takes).await?)
    }

    /// Sends a GET request for `path` and returns the value of the header `header` and the body, which is
    /// read as it arrives.
    ///
    /// # Errors
    /// If the agent cannot be reached or answers with an error.
    pub async fn stream(&self, path: &str, header: &str) -> Result<(Option<String>, Incoming), Failure> {
        Ok(self.0.stream(path, header).await?)
    }
}

fn one_line_each(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::String(text) => {
            if let std::borrow::Cow::Owned(shown) = crate::api::escape::line(text) {
                *text = shown;
            }
        }
        serde_json::Value::Array(list) => list.iter_mut().for_each(one_line_each),
        serde_json::Value::Object(map) => map.values_mut().for_each(one_line_each),
        _ => {}
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let exit = match error.kind {
            ClientErrorKind::Absent | ClientErrorKind::Broken => Exit::Unreachable,
            ClientErrorKind::Denied => Exit::Permission,
            ClientErrorKind::TimedOut => Exit::TimedOut,
            ClientErrorKind::Invalid => Exit::Usage,
            ClientErrorKind::NotFound => Exit::No,
            ClientErrorKind::Refused => Exit::Partial,
        };
        Self::new(exit, &error.code, error.text)
    }
}
