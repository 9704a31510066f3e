//! The store of the flags with IPAM on it, and its errors as failures of a command.

use std::sync::Arc;

use crate::cli::context::Context;
use crate::cli::failure::{Exit, Failure};
use crate::cli::store;
use tortie_engine::ipam::{Ipam, IpamError};
use tortie_store::Store;

/// The store of the flags, and IPAM on it. A SQLite store that is not there is not made.
pub(super) async fn open(context: &Context) -> Result<(Arc<dyn Store>, Ipam), Failure> {
    let store = store::open(&context.globals, false).await?;
    Ok((Arc::clone(&store), Ipam::new(store)))
}

/// How an answer of IPAM ends a command.
pub(in crate::cli) fn failed(error: IpamError) -> Failure {
    let exit = match &error {
        IpamError::Store(error) => return Failure::from(error.clone()),
        IpamError::OutsidePools { .. } | IpamError::UnknownPool { .. } | IpamError::BadRequest(_) => {
            Exit::Usage
        }
        IpamError::Refused(_) | IpamError::Excluded { .. } => Exit::Refused,
        IpamError::Busy { .. } => Exit::TimedOut,
        _ => Exit::No,
    };
    Failure::new(exit, error.code(), error.to_string())
}
