//! The errors of a start.

use crate::agent::http::ServeError;
use crate::plugins::docker;

/// Why the agent does not start or ends.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// Settings that cannot be.
    #[error("{0}")]
    Settings(String),
    /// The store refuses for good.
    #[error("{0}")]
    Store(#[from] tortie_store::StoreError),
    /// The API cannot be served.
    #[error("{0}")]
    Serve(#[from] ServeError),
    /// The Docker drivers cannot be served.
    #[error("{0}")]
    Docker(#[from] docker::DockerError),
    /// Another live host has our address.
    #[error("{0}")]
    Taken(String),
    /// Another machine runs an agent under our name.
    #[error("{0}")]
    Twin(String),
    /// Another agent programs our network namespace.
    #[error("{0}")]
    NamespaceTaken(String),
    /// The system refuses a thread, a socket or a signal handler.
    #[error("cannot {0}: {1}")]
    System(&'static str, std::io::Error),
}
