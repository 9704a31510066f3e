//! Opens the store with IPAM, and converts errors of IPAM to failures.

use std::sync::Arc;

use crate::cli::context::Context;
use crate::cli::failure::{Exit, Failure};
use crate::cli::store;
use tortie_engine::ipam::{Ipam, IpamError};
use tortie_store::Store;

/// Opens the store of the global flags, with IPAM. A missing SQLite store is not created.
pub(super) async fn open(context: &Context) -> Result<(Arc<dyn Store>, Ipam), Failure> {
    let store = store::open(&context.globals, false).await?;
    Ok((Arc::clone(&store), Ipam::new(store)))
}

/// Converts an error of IPAM to a failure.
pub(in crate::cli) fn failed(error: IpamError) -> Failure {
    let exit = match &error {
        IpamError::Store(error) => return Failure::from(error.clone()),
        IpamError::OutsidePools { .. }
        | IpamError::UnknownPool { .. }
        | IpamError::PoolUse { .. }
        | IpamError::BadRequest(_) => Exit::Usage,
        IpamError::Refused(_) | IpamError::Excluded { .. } | IpamError::StaleRelease { .. } => Exit::Refused,
        IpamError::Busy { .. } => Exit::TimedOut,
        _ => Exit::No,
    };
    Failure::new(exit, error.code(), error.to_string())
}
