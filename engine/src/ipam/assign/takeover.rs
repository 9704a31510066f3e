//! Empty blocks that change their owner by Calico 3's rules: those of other hosts when no block is free, and own
//! ones of pools that no longer serve the host.
//!
//! Both write block and affinities in one transaction that compares them, so that a client that allocates from the
//! block, or claims it in Calico's order of single writes, makes the transaction fail.

use tortie_config::key::IpFamily;
use tortie_config::resource::BlockAffinity;
use tortie_net::Cidr;

use super::own::{OwnBlock, read_own_block};
use super::{Allocator, FamilyRequest, PlannedAddresses};
use crate::ipam::cooldown;
use crate::ipam::reads::PlanStop;

/// Maximum number of own blocks that one request gives up.
const GIVEN_UP_MAX: usize = 8;

impl Allocator<'_, '_, '_> {
    /// Takes over empty blocks of other hosts, unless they were claimed a moment ago, and allocates from them.
    pub(super) fn take_over(
        &mut self,
        ask: &FamilyRequest<'_>,
        taken: &mut PlannedAddresses,
    ) -> Result<(), PlanStop> {
        let host = self.request.host.clone();
        let now = self.draft.state.now();
        for (zone, blocks) in self.existing(ask)? {
            for (seen, cidr) in blocks.iter().enumerate() {
                if self.rest(ask, taken) == 0 {
                    return Ok(());
                }
                let Some(mut block) = self.read_next(&blocks, seen, cidr)? else { continue };
                let owner = match block.affinity() {
                    BlockAffinity::Host(owner) if *owner != host => owner.clone(),
                    _ => continue,
                };
                if !block.is_empty() || !cooldown::is_settled(&block, now) {
                    continue;
                }
                if let Some(limit) = self.limit_reached(ask.family)? {
                    taken.limit = Some(limit);
                    return Ok(());
                }
                let before = taken.addresses.len();
                self.draft.take_ownership(&mut block, &host);
                self.fill(ask, zone, block, true, taken)?;
                if taken.addresses.len() > before {
                    self.draft.delete_known_affinity(&owner, cidr)?;
                    self.draft.guard_pool(&zone.pool.cidr);
                    self.draft.guard_config();
                }
            }
        }
        Ok(())
    }

    /// Deletes the host's empty blocks in pools that no longer serve it, with their affinities.
    pub(super) fn give_up_deselected(&mut self, family: IpFamily) -> Result<(), PlanStop> {
        let host = self.request.host.clone();
        let own = self.draft.affinities_of(&host)?;
        let deselected = own
            .into_iter()
            .filter(|block| IpFamily::of_cidr(block) == family && self.pools.is_deselected(block));
        let blocks: Vec<Cidr> = deselected.take(GIVEN_UP_MAX).collect();
        self.draft.state.request_key(blocks.iter().map(|block| self.draft.keyspace.block(block)), [])?;
        for cidr in blocks {
            if let OwnBlock::Owned(block) = read_own_block(self.draft, &host, &cidr)?
                && block.is_empty()
            {
                self.draft.delete_block(&cidr);
                self.draft.delete_affinity(&host, &cidr);
            }
        }
        Ok(())
    }
}
