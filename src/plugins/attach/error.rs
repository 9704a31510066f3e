//! Errors of [`attach`](super::attach) and [`detach`](super::detach).

use tortie_kernel::container::ContainerNetError;
use tortie_store::StoreError;

/// An error of attaching or detaching. After an error, [`attach`](super::attach) has undone its changes.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// Error with interfaces, routes, port mappings or bandwidth.
    #[error(transparent)]
    Network(#[from] ContainerNetError),
    /// Error of the store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store's `Ready` is not `true`, or the agent is frozen.
    #[error("the network is frozen ({0}): try again later")]
    NotReady(String),
    /// The agent cannot be reached.
    #[error("{0}")]
    AgentAbsent(String),
    /// The agent did not finish in time.
    #[error("{0}")]
    Timeout(String),
    /// The agent rejected the endpoint, with its reason.
    #[error("the agent cannot put it in force: {0}")]
    Failed(String),
    /// A value in the store cannot be parsed.
    #[error("{key}: {why}; see `tortie store validate`")]
    Unreadable {
        /// Store key of the value.
        key: String,
        /// Parse error.
        why: String,
    },
    /// The request is invalid.
    #[error("{0}")]
    Invalid(String),
}

impl AttachError {
    /// True if the same call may succeed later (CNI code 11).
    #[must_use]
    pub fn try_later(&self) -> bool {
        match self {
            Self::NotReady(_)
            | Self::AgentAbsent(_)
            | Self::Timeout(_)
            | Self::Store(StoreError::Unreachable(_)) => true,
            Self::Network(_)
            | Self::Store(_)
            | Self::Failed(_)
            | Self::Unreadable { .. }
            | Self::Invalid(_) => false,
        }
    }
}

/// Runs blocking work on a thread outside of the async runtime.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, AttachError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| AttachError::Invalid(format!("a task of this program ended early: {error}")))
}
