//! Error answers of the driver protocol.

use tortie_engine::ipam::IpamError;
use tortie_store::StoreError;

/// Reason for rejecting a request: a sentence that `docker` prints.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub(super) struct Refusal {
    text: String,
}

impl Refusal {
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into() }
    }

    /// Returns the body of an error answer. dockerd reads `Error` of an IPAM driver and `Err` of a network
    /// driver.
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
