//! The blocks for which a host has an affinity.

use tortie_config::resource::{AffinityState, Block};
use tortie_net::Cidr;

use crate::ipam::IpamError;
use crate::ipam::draft::Draft;
use crate::ipam::reads::PlanStop;

/// State of a block for which the host has an affinity.
pub(super) enum OwnBlock {
    /// The block exists and the host owns it.
    Owned(Box<Block>),
    /// The block does not exist: a claim was interrupted.
    Missing,
    /// The block belongs to another host, so the affinity is stale and will be deleted; or block or affinity
    /// cannot be read.
    NotOwned,
}

/// Reads a block for which the host has an affinity, and classifies it.
pub(super) fn read_own_block(draft: &mut Draft<'_>, host: &str, cidr: &Cidr) -> Result<OwnBlock, PlanStop> {
    let unreadable = |stop: &PlanStop| matches!(stop, PlanStop::Err(IpamError::Unreadable { .. }));
    let affinity = match draft.affinity(host, cidr) {
        Err(stop) if unreadable(&stop) => return Ok(OwnBlock::NotOwned),
        affinity => affinity?.unwrap_or_default(),
    };
    match draft.block(cidr) {
        Err(stop) if unreadable(&stop) => Ok(OwnBlock::NotOwned),
        Err(stop) => Err(stop),
        Ok(Some(block)) if block.host() == Some(host) => Ok(OwnBlock::Owned(Box::new(block))),
        Ok(None) if affinity.state != Some(AffinityState::PendingDeletion) => Ok(OwnBlock::Missing),
        Ok(_) => {
            draft.remove_stale_affinity(host, cidr);
            Ok(OwnBlock::NotOwned)
        }
    }
}
