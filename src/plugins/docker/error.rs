//! The one way to say no in the protocol.

use tortie_engine::ipam::IpamError;
use tortie_store::StoreError;

/// Why a request is refused: a sentence that `docker` prints.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub(super) struct Refusal {
    text: String,
}

impl Refusal {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into() }
    }

    /// The body of a failure. dockerd reads `Error` of an IPAM driver and `Err` of a network driver.
    pub(super) fn body(&self) -> serde_json::Value {
        serde_json::json!({ "Err": self.text, "Error": self.text })
    }
}

impl From<IpamError> for Refusal {
    fn from(error: IpamError) -> Self {
        Self::new(error.to_string())
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        Self::new(error.to_string())
    }
}
