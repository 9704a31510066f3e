//! Error of a call.

use crate::plugins::cni::CniError;

/// Error of a call: one line for people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct KurmaError(pub(super) String);

impl From<CniError> for KurmaError {
    fn from(error: CniError) -> Self {
        Self(error.msg)
    }
}

macro_rules! from {
    ($($error:ty),*) => {
        $(impl From<$error> for KurmaError {
            fn from(error: $error) -> Self {
                Self(error.to_string())
            }
        })*
    };
}

from!(
    crate::plugins::attach::AttachError,
    tortie_kernel::container::ContainerNetError,
    tortie_engine::ipam::IpamError,
    tortie_store::StoreError
);
