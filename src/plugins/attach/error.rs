//! The errors of [`attach`](super::attach) and [`detach`](super::detach).

use tortie_kernel::container::ContainerNetError;
use tortie_store::StoreError;

/// Why it was not done. [`attach`](super::attach) has undone what it did.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// Interfaces, routes, port mappings, bandwidth.
    #[error(transparent)]
    Network(#[from] ContainerNetError),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// `Ready` is not `true`.
    #[error("the network is frozen ({0}): try again later")]
    NotReady(String),
    /// The agent cannot be asked.
    #[error("{0}")]
    AgentAbsent(String),
    /// The agent has not done it in time.
    #[error("{0}")]
    Timeout(String),
    /// The agent says why it cannot be done.
    #[error("the agent cannot put it in force: {0}")]
    Failed(String),
    /// A value in the store that cannot be read.
    #[error("{key}: {why}; see `tortie store validate`")]
    Unreadable {
        /// The key.
        key: String,
        /// Why not.
        why: String,
    },
    /// What was asked for makes no sense.
    #[error("{0}")]
    Invalid(String),
}

impl AttachError {
    /// Whether the same call may succeed later (CNI code 11).
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

/// Runs what blocks for milliseconds off the runtime.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, AttachError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| AttachError::Invalid(format!("a task of this program ended early: {error}")))
}
