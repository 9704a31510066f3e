//! Errors of writing workload endpoints.

/// Reason why a workload endpoint cannot be written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// A name or a value has no form in the dialect of the store.
    #[error("{what}: {why}")]
    Invalid {
        /// What cannot be written.
        what: String,
        /// What was found, and what to write.
        why: String,
    },
    /// The stored value cannot be parsed, so that its unknown members would be lost.
    #[error("{key}: {why}; correct or delete it")]
    Unreadable {
        /// Store key of the value.
        key: String,
        /// Parse error.
        why: String,
    },
}

impl EndpointError {
    /// Creates the error for what cannot be written.
    pub(super) fn invalid(what: impl Into<String>, why: impl ToString) -> Self {
        Self::Invalid { what: what.into(), why: why.to_string() }
    }
}
