//! Errors that prevent or end the agent's run.

use crate::agent::http::ServeError;
use crate::plugins::docker;

/// Reason why the agent does not start, or ends.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The settings are invalid or do not fit together.
    #[error("{0}")]
    Settings(String),
    /// The store rejects the agent permanently.
    #[error("{0}")]
    Store(#[from] tortie_store::StoreError),
    /// The API cannot be served.
    #[error("{0}")]
    Serve(#[from] ServeError),
    /// The Docker drivers cannot be served.
    #[error("{0}")]
    Docker(#[from] docker::DockerError),
    /// Another running host has the same address.
    #[error("{0}")]
    Taken(String),
    /// Another machine runs an agent under the same node name.
    #[error("{0}")]
    Twin(String),
    /// Another agent programs this network namespace.
    #[error("{0}")]
    NamespaceTaken(String),
    /// The operating system refuses a thread, a socket or a signal handler.
    #[error("cannot {0}: {1}")]
    System(&'static str, std::io::Error),
}
