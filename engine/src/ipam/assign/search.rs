//! Searches the blocks that may serve a request, in the order of preference.

use std::net::IpAddr;

use tortie_config::key::IpFamily;
use tortie_config::resource::{Block, BlockAffinity};
use tortie_net::Cidr;

use super::own::{OwnBlock, read_own_block};
use super::{Allocator, FamilyRequest, PlannedAddresses};
use crate::ipam::block_order::BlockOrder;
use crate::ipam::pools::PoolRange;
use crate::ipam::reads::{PlanStop, ReadRequest};
use crate::ipam::{Allocation, IpamError};

/// Number of blocks fetched by one read when a plan needs many blocks.
const PREFETCH: usize = 100;

impl Allocator<'_, '_, '_> {
    /// Allocates up to `ask.count` addresses, fewer if the pools run out.
    pub(super) fn serve(&mut self, ask: &FamilyRequest<'_>) -> Result<PlannedAddresses, PlanStop> {
        let mut taken = PlannedAddresses { addresses: Vec::new(), limit: None };
        let revivable = self.use_own(ask, &mut taken)?;
        for (zone, block) in revivable {
            if self.rest(ask, &taken) > 0 && self.draft.overlapping(&block)?.is_empty() {
                self.claim(ask, &zone, block, &mut taken)?;
            }
        }
        if self.rest(ask, &taken) > 0 && self.config.auto_allocate_blocks {
            self.claim_new(ask, &mut taken)?;
            if self.rest(ask, &taken) > 0 && taken.limit.is_none() && self.draft.keyspace.is_calico_3() {
                self.take_over(ask, &mut taken)?;
            }
        }
        if self.rest(ask, &taken) > 0 && taken.limit.is_none() && !self.config.strict_affinity {
            self.borrow(ask, &mut taken)?;
        }
        Ok(taken)
    }

    pub(super) fn rest(&self, ask: &FamilyRequest<'_>, taken: &PlannedAddresses) -> usize {
        (ask.count as usize).saturating_sub(taken.addresses.len())
    }

    /// Returns the range that a block belongs to. A block belongs to the most specific pool that covers it.
    fn zone<'z>(
        &self,
        zones: impl IntoIterator<Item = &'z PoolRange>,
        block: &Cidr,
    ) -> Option<&'z PoolRange> {
        let pool = self.pools.of(block)?.cidr;
        zones.into_iter().find(|zone| zone.pool.cidr == pool && zone.touches(block))
    }

    /// Allocates from the host's own blocks. Returns the blocks for which the host has an affinity but no
    /// block exists.
    fn use_own(
        &mut self,
        ask: &FamilyRequest<'_>,
        taken: &mut PlannedAddresses,
    ) -> Result<Vec<(PoolRange, Cidr)>, PlanStop> {
        let host = self.request.host.as_str();
        let affinities = self.draft.affinities_of(host)?;
        let own: Vec<(Cidr, &PoolRange)> = affinities
            .into_iter()
            .filter(|block| IpFamily::of_cidr(block) == ask.family)
            .filter_map(|block| Some((block, self.zone(ask.zones.iter().chain(&ask.leftover), &block)?)))
            .collect();
        if self.draft.keyspace.is_calico_3() {
            self.give_up_deselected(ask.family)?;
        }
        let mut revivable = Vec::new();
        // A host has few blocks, so one read fetches all of them.
        for part in own.chunks(64) {
            if self.rest(ask, taken) == 0 {
                break;
            }
            self.draft
                .state
                .request_key(part.iter().map(|(block, _)| self.draft.keyspace.block(block)), [])?;
            for (cidr, zone) in part {
                if self.draft.is_full(host, cidr) {
                    continue;
                }
                match read_own_block(self.draft, host, cidr)? {
                    OwnBlock::Owned(block) => self.fill(ask, zone, *block, true, taken)?,
                    OwnBlock::Missing if !zone.pool.disabled => revivable.push(((*zone).clone(), *cidr)),
                    OwnBlock::Missing | OwnBlock::NotOwned => {}
                }
            }
        }
        Ok(revivable)
    }

    /// Allocates from new blocks, which the host claims.
    fn claim_new(&mut self, ask: &FamilyRequest<'_>, taken: &mut PlannedAddresses) -> Result<(), PlanStop> {
        let host = self.request.host.as_str();
        for zone in &ask.zones {
            let len = zone.pool.block_len();
            let order = BlockOrder::new(host, zone.pool.cidr, len, zone.first, zone.last);
            for (seen, candidate) in order.blocks().enumerate() {
                if self.rest(ask, taken) == 0 {
                    return Ok(());
                }
                if self.pools.of(&candidate).is_none_or(|pool| pool.cidr != zone.pool.cidr) {
                    continue;
                }
                let others = match self.draft.overlapping(&candidate) {
                    Err(PlanStop::Need(_)) => return Err(self.prefetch(&order, ask.family, seen)),
                    others => others?,
                };
                match others.as_slice() {
                    [] => {
                        if let Some(limit) = self.limit_reached(ask.family)? {
                            taken.limit = Some(limit);
                            return Ok(());
                        }
                        self.claim(ask, zone, candidate, taken)?;
                    }
                    // The block was claimed for this host a moment ago, or by a writer that never wrote the
                    // affinity. Blocks that this loop has not read are left to `borrow`.
                    [same] if *same == candidate && self.draft.is_read(same) => {
                        match self.draft.block(same) {
                            Ok(Some(block)) if block.host() == Some(host) => {
                                self.fill(ask, zone, block, true, taken)?;
                            }
                            Ok(_) | Err(PlanStop::Err(IpamError::Unreadable { .. })) => {}
                            Err(stop) => return Err(stop),
                        }
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Requests the next blocks in the search order: larger batches as the search goes on, in the end all
    /// blocks of the family.
    fn prefetch(&self, order: &BlockOrder, family: IpFamily, seen: usize) -> PlanStop {
        let (batch, most) = (seen * 4 + 1, 100);
        if seen > most {
            let all = self.draft.all_blocks(family);
            return all.err().unwrap_or_else(|| IpamError::Busy { attempts: 0 }.into());
        }
        let mut needs = ReadRequest::default();
        for candidate in order.blocks().skip(seen).take(batch) {
            if let Err(PlanStop::Need(more)) = self.draft.overlapping(&candidate) {
                needs.keys.extend(more.keys);
                needs.prefixes.extend(more.prefixes);
            }
        }
        PlanStop::Need(needs)
    }

    /// Returns the configured limit if the host has that many blocks of the family.
    pub(super) fn limit_reached(&self, family: IpFamily) -> Result<Option<u32>, PlanStop> {
        let Some(limit) = self.draft.block_limit(&self.config) else { return Ok(None) };
        let own = self.draft.affinities_of(&self.request.host)?;
        let own = own.iter().filter(|block| IpFamily::of_cidr(block) == family).count();
        Ok((own >= limit as usize).then_some(limit))
    }

    /// Creates a block owned by the host, if the block has a usable address.
    fn claim(
        &mut self,
        ask: &FamilyRequest<'_>,
        zone: &PoolRange,
        cidr: Cidr,
        taken: &mut PlannedAddresses,
    ) -> Result<(), PlanStop> {
        let new = self.draft.new_block(cidr, &self.request.host, &self.config);
        // The affinity names a prefix that is not a valid block.
        let Ok(block) = new else { return Ok(()) };
        let before = taken.addresses.len();
        self.fill(ask, zone, block, true, taken)?;
        if taken.addresses.len() > before {
            self.draft.guard_pool(&zone.pool.cidr);
            self.draft.guard_config();
        }
        Ok(())
    }

    /// Allocates from blocks of other hosts and from blocks without an owner.
    fn borrow(&mut self, ask: &FamilyRequest<'_>, taken: &mut PlannedAddresses) -> Result<(), PlanStop> {
        let host = self.request.host.as_str();
        for (zone, blocks) in self.existing(ask)? {
            for (seen, cidr) in blocks.iter().enumerate() {
                if self.rest(ask, taken) == 0 {
                    return Ok(());
                }
                let Some(block) = self.read_next(&blocks, seen, cidr)? else { continue };
                // A block that this host owns without an affinity does not count as borrowed.
                let own = block.host() == Some(host);
                let lendable = match block.affinity() {
                    BlockAffinity::Host(_) => own || !self.is_strict(&block),
                    BlockAffinity::None => true,
                    BlockAffinity::Other(_) => false,
                };
                if lendable {
                    self.fill(ask, zone, block, own, taken)?;
                }
            }
        }
        Ok(())
    }

    /// Returns the existing blocks of each zone of a request, in search order.
    pub(super) fn existing<'z>(
        &self,
        ask: &'z FamilyRequest<'_>,
    ) -> Result<Vec<(&'z PoolRange, Vec<Cidr>)>, PlanStop> {
        let host = self.request.host.as_str();
        let all = self.draft.all_blocks(ask.family)?;
        let of_zone = |zone: &'z PoolRange| {
            let order = BlockOrder::new(host, zone.pool.cidr, zone.pool.block_len(), zone.first, zone.last);
            let in_zone = |cidr: &&Cidr| self.zone([zone], cidr).is_some();
            let mut blocks: Vec<Cidr> = all.iter().filter(in_zone).copied().collect();
            blocks.sort_by_key(|block| (order.place(block), *block));
            (zone, blocks)
        };
        Ok(ask.zones.iter().map(of_zone).collect())
    }

    /// Reads one of the blocks of a search; `None` if it does not exist or cannot be parsed. The first reads
    /// fetch few of the following blocks, later reads fetch more.
    pub(super) fn read_next(
        &self,
        blocks: &[Cidr],
        seen: usize,
        cidr: &Cidr,
    ) -> Result<Option<Block>, PlanStop> {
        if !self.draft.is_read(cidr) {
            let batch = blocks.iter().skip(seen).take((seen * 3).clamp(4, PREFETCH));
            self.draft.state.request_key(batch.map(|cidr| self.draft.keyspace.block(cidr)), [])?;
        }
        match self.draft.block(cidr) {
            Err(PlanStop::Err(IpamError::Unreadable { .. })) => Ok(None),
            block => block,
        }
    }

    /// Allocates usable free addresses of one block, in the order of its free list.
    pub(super) fn fill(
        &mut self,
        ask: &FamilyRequest<'_>,
        zone: &PoolRange,
        mut block: Block,
        own: bool,
        taken: &mut PlannedAddresses,
    ) -> Result<(), PlanStop> {
        let cidr = block.cidr();
        // An excluded network may split a pool into two ranges that share one block.
        let wanted = ask.zones.iter().chain(&ask.leftover).filter(|range| range.pool.cidr == zone.pool.cidr);
        let wanted: Vec<&PoolRange> = wanted.collect();
        let usable = |addr: &IpAddr| {
            wanted.iter().any(|range| range.contains(*addr))
                && self.excluded.allows(*addr)
                && !ask.except.contains(addr)
                && !self.request.attached.contains(addr)
                && !self.reserved.iter().any(|reserved| reserved.contains(*addr))
        };
        let free = block.free().iter().filter_map(|ordinal| cidr.nth((*ordinal).into())).filter(usable);
        let chosen: Vec<IpAddr> = free.take(self.rest(ask, taken)).collect();
        if chosen.is_empty() {
            return Ok(());
        }
        for addr in chosen {
            self.allocate(&mut block, addr);
            taken.addresses.push(Allocation { addr, block: cidr, pool: zone.pool.cidr });
        }
        if own {
            self.draft.confirm(&self.request.host, &cidr)?;
        }
        self.draft.put_block(block);
        Ok(())
    }
}
