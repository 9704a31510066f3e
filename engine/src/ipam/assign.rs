//! Plans an allocation request: addresses from the host's own blocks first, then from new blocks, then from
//! blocks of other hosts.

use std::collections::BTreeMap;
use std::net::IpAddr;

use tortie_config::key::{IpFamily, Key};
use tortie_config::resource::{AffinityState, Attribute, Block, BlockAffinity, Handle, IpamConfig};
use tortie_net::Cidr;

use super::pools::{PoolRange, PoolSelection, names};
use super::{AddressRequest, Allocation, AllocationRequest, Exclusions, IpamError};
use crate::ipam::block_order::BlockOrder;
use crate::ipam::draft;
use crate::ipam::draft::Draft;
use crate::ipam::holders::excluded::Excluded;
use crate::ipam::keyspace::Keyspace;
use crate::ipam::reads::{PlanStep, PlanStop, ReadState};

/// Maximum number of addresses per request, bounded by the size of one transaction.
pub(super) const ADDRESSES_MAX: u32 = 4096;

/// Plans an allocation request. `tried` holds the answers of earlier attempts whose commit result is unknown
/// because the store became unreachable.
pub(super) fn plan(
    keyspace: &Keyspace,
    state: &ReadState,
    request: &AllocationRequest,
    exclusions: &Exclusions,
    tried: &[Vec<Allocation>],
) -> PlanStep<Vec<Allocation>> {
    draft::run(keyspace, state, |draft| {
        for answer in tried {
            if stands(draft, request, answer)? {
                return Ok(answer.clone());
            }
        }
        Allocator::new(draft, request, exclusions)?.take()
    })
}

/// Returns true if an earlier attempt was committed: its blocks hold the addresses with the attributes of
/// this request.
fn stands(draft: &Draft<'_>, request: &AllocationRequest, answer: &[Allocation]) -> Result<bool, PlanStop> {
    for addresses in answer {
        let attribute = attribute(request, addresses.addr);
        let block = draft.block(&addresses.block)?;
        let held = block.as_ref().and_then(|block| block.allocation(ordinal(block, addresses.addr)?));
        if held != Some(&attribute) {
            return Ok(false);
        }
    }
    Ok(!answer.is_empty())
}

pub(super) fn ordinal(block: &Block, addr: IpAddr) -> Option<u32> {
    u32::try_from(block.cidr().ordinal(addr)?).ok()
}

fn attribute(request: &AllocationRequest, addr: IpAddr) -> Attribute {
    let handle = match &request.handle {
        Some(handle) if request.handle_per_address => Some(format!("{handle}{addr}")),
        handle => handle.clone(),
    };
    let secondary = Some(request.attributes.clone()).filter(|attributes| !attributes.is_empty());
    Attribute { handle, secondary, ..Attribute::default() }
}

/// Number of blocks fetched by one read when a plan needs many blocks.
const PREFETCH: usize = 100;

/// A number of addresses of one family, with the pools that may supply them.
struct FamilyRequest<'a> {
    family: IpFamily,
    count: u32,
    /// Pool ranges to allocate from, in order of preference.
    zones: Vec<PoolRange>,
    /// Ranges of disabled pools. Blocks that the host already owns there are used up, but no new block is
    /// claimed.
    leftover: Vec<PoolRange>,
    except: &'a [IpAddr],
}

/// Addresses planned so far for one [`FamilyRequest`].
struct PlannedAddresses {
    addresses: Vec<Allocation>,
    /// The host's block limit, if the host has reached it.
    limit: Option<u32>,
}

/// Plans one allocation request on a [`Draft`].
struct Allocator<'d, 's, 'r> {
    draft: &'d mut Draft<'s>,
    request: &'r AllocationRequest,
    config: IpamConfig,
    pools: PoolSelection,
    excluded: Excluded,
}

impl<'d, 's, 'r> Allocator<'d, 's, 'r> {
    fn new(
        draft: &'d mut Draft<'s>,
        request: &'r AllocationRequest,
        exclusions: &Exclusions,
    ) -> Result<Self, PlanStop> {
        let bad = |text: &str| Err(IpamError::BadRequest(text.to_owned()).into());
        if request.host.is_empty() {
            return bad("the request names no host; give the name of the node");
        }
        if request.handle.as_deref() == Some("") && !request.handle_per_address {
            return bad("the handle is empty; leave it out or give it a name");
        }
        let count = |request_key: &AddressRequest| {
            if let AddressRequest::Any { count, .. } = request_key { *count } else { 1 }
        };
        let requested = request.addresses.iter().map(count).fold(0u32, u32::saturating_add);
        if requested > ADDRESSES_MAX {
            return bad(&format!(
                "{requested} addresses in one request, at most {ADDRESSES_MAX} are possible; split the \
                 request"
            ));
        }
        let keyspace = draft.keyspace;
        let handle = request.handle.as_deref().filter(|_| !request.handle_per_address);
        let keys = [Key::Ready.to_string(), keyspace.config()];
        let handle_keys = handle.map(|id| keyspace.handle(id)).into_iter();
        let old_keys = handle.and_then(|id| keyspace.legacy_handle(id));
        let (tunnel, hosts) = Excluded::reads(keyspace, &request.host, exclusions);
        draft.state.request_key(
            keys.into_iter().chain(handle_keys).chain(old_keys).chain(tunnel),
            [keyspace.pools(), keyspace.affinities(&request.host)].into_iter().chain(hosts),
        )?;
        draft.ready()?;
        let config = draft.config()?;
        let pools = PoolSelection::new(draft.pools()?);
        let excluded = Excluded::of(draft, request, exclusions, |cidr| pools.overlap(cidr))?;
        Ok(Self { draft, request, config, pools, excluded })
    }

    fn take(mut self) -> Result<Vec<Allocation>, PlanStop> {
        let mut all = Vec::new();
        let request = self.request;
        for request_key in &request.addresses {
            match request_key {
                AddressRequest::Any { family, count, pools } => all.extend(self.any(*family, *count, pools)?),
                AddressRequest::Exact(addr) => all.push(self.exact(*addr)?),
                AddressRequest::OneOf(ranges) => all.push(self.one_of(ranges)?),
            }
        }
        self.count_handles(&all)?;
        Ok(all)
    }

    fn any(&mut self, family: IpFamily, count: u32, pools: &[Cidr]) -> Result<Vec<Allocation>, PlanStop> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let zones = self.pools.chosen(family, pools)?;
        let leftover = if pools.is_empty() { self.pools.disabled(family) } else { Vec::new() };
        let none = zones.is_empty();
        let place = zones.iter().map(|zone| zone.pool.cidr.to_string()).collect::<Vec<_>>().join(", ");
        let place = place + &self.excluded.note(&zones);
        let [zones, leftover] = [zones, leftover].map(|ranges| self.excluded.without_networks(ranges));
        let taken = self.serve(&FamilyRequest { family, count, zones, leftover, except: &[] })?;
        let free = u32::try_from(taken.addresses.len()).unwrap_or(u32::MAX);
        if free == count || (self.request.partial && !none) {
            return Ok(taken.addresses);
        }
        Err(match taken.limit {
            _ if none => IpamError::NoPools(family),
            Some(limit) => IpamError::BlockLimit { host: self.request.host.clone(), limit },
            None => IpamError::Full { requested: count, free, place },
        }
        .into())
    }

    fn one_of(&mut self, ranges: &[super::AddressRange]) -> Result<Allocation, PlanStop> {
        let mut inside = false;
        let mut limit = None;
        for range in ranges {
            let zones = self.pools.inside(range)?;
            if zones.is_empty() {
                continue;
            }
            inside = true;
            let zones = self.excluded.without_networks(zones);
            let family = IpFamily::of_cidr(&range.subnet);
            let ask = FamilyRequest { family, count: 1, zones, leftover: Vec::new(), except: &range.except };
            let taken = self.serve(&ask)?;
            if let Some(addresses) = taken.addresses.first() {
                return Ok(*addresses);
            }
            limit = limit.or(taken.limit);
        }
        if !inside {
            return Err(self.pools.outside(ranges).into());
        }
        Err(match limit {
            Some(limit) => IpamError::BlockLimit { host: self.request.host.clone(), limit },
            None => IpamError::Full { requested: 1, free: 0, place: names(ranges) },
        }
        .into())
    }

    /// Allocates up to `ask.count` addresses, fewer if the pools run out.
    fn serve(&mut self, ask: &FamilyRequest<'_>) -> Result<PlannedAddresses, PlanStop> {
        let mut taken = PlannedAddresses { addresses: Vec::new(), limit: None };
        let revivable = self.use_own(ask, &mut taken)?;
        for (zone, block) in revivable {
            if self.rest(ask, &taken) > 0 && self.draft.overlapping(&block)?.is_empty() {
                self.claim(ask, &zone, block, &mut taken)?;
            }
        }
        if self.rest(ask, &taken) > 0 && self.config.auto_allocate_blocks {
            self.claim_new(ask, &mut taken)?;
        }
        if self.rest(ask, &taken) > 0 && taken.limit.is_none() && !self.config.strict_affinity {
            self.borrow(ask, &mut taken)?;
        }
        Ok(taken)
    }

    fn rest(&self, ask: &FamilyRequest<'_>, taken: &PlannedAddresses) -> usize {
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
                    OwnBlock::Owned(block) => self.fill(ask, zone, block, true, taken)?,
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
        let mut needs = crate::ipam::reads::ReadRequest::default();
        for candidate in order.blocks().skip(seen).take(batch) {
            if let Err(PlanStop::Need(more)) = self.draft.overlapping(&candidate) {
                needs.keys.extend(more.keys);
                needs.prefixes.extend(more.prefixes);
            }
        }
        PlanStop::Need(needs)
    }

    /// Returns the configured limit if the host has that many blocks of the family.
    fn limit_reached(&self, family: IpFamily) -> Result<Option<u32>, PlanStop> {
        let Some(limit) = self.config.max_blocks_per_host else { return Ok(None) };
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
        let owner = BlockAffinity::Host(self.request.host.clone());
        // The affinity names a prefix that is not a valid block.
        let Ok(block) = Block::new(cidr, owner, self.config.strict_affinity) else { return Ok(()) };
        let before = taken.addresses.len();
        self.fill(ask, zone, block, true, taken)?;
        if taken.addresses.len() > before {
            self.draft.guard_pool(&zone.pool.cidr);
            self.draft.guard_config();
        }
        Ok(())
    }

    /// Allocates from blocks of other hosts and from blocks without an owner. The first reads fetch few
    /// blocks, later reads fetch more.
    fn borrow(&mut self, ask: &FamilyRequest<'_>, taken: &mut PlannedAddresses) -> Result<(), PlanStop> {
        let host = self.request.host.as_str();
        let all = self.draft.all_blocks(ask.family)?;
        for zone in &ask.zones {
            let order = BlockOrder::new(host, zone.pool.cidr, zone.pool.block_len(), zone.first, zone.last);
            let in_zone = |cidr: &&Cidr| self.zone([zone], cidr).is_some();
            let mut blocks: Vec<Cidr> = all.iter().filter(in_zone).copied().collect();
            blocks.sort_by_key(|block| (order.place(block), *block));
            for (seen, cidr) in blocks.iter().enumerate() {
                if self.rest(ask, taken) == 0 {
                    return Ok(());
                }
                if !self.draft.is_read(cidr) {
                    let batch = blocks.iter().skip(seen).take((seen * 3).clamp(4, PREFETCH));
                    self.draft.state.request_key(batch.map(|cidr| self.draft.keyspace.block(cidr)), [])?;
                }
                let block = match self.draft.block(cidr) {
                    Err(PlanStop::Err(IpamError::Unreadable { .. })) => continue,
                    block => block?,
                };
                let Some(block) = block else { continue };
                // A block that this host owns without an affinity does not count as borrowed.
                let own = block.host() == Some(host);
                let lendable = match block.affinity() {
                    BlockAffinity::Host(_) => own || !block.strict(),
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

    /// Allocates usable free addresses of one block, in the order of its free list.
    fn fill(
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
                && !self.config.reserved.iter().any(|reserved| reserved.contains(*addr))
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

    fn allocate(&self, block: &mut Block, addr: IpAddr) {
        if let Some(ordinal) = ordinal(block, addr) {
            block.allocate(ordinal, &attribute(self.request, addr));
        }
    }

    fn exact(&mut self, addr: IpAddr) -> Result<Allocation, PlanStop> {
        if self.request.attached.contains(&addr) {
            let holder = Some("an interface of this host".to_owned());
            return Err(IpamError::AddressInUse { addr, holder }.into());
        }
        let pool = self.pools.enabled_of(addr)?.clone();
        if let Some(holder) = self.excluded.holder(addr) {
            return Err(IpamError::Excluded { addr, holder }.into());
        }
        let host = self.request.host.clone();
        let (mut block, own) = match self.draft.block_containing(addr, Some(pool.block_len()))? {
            None => (self.block_for(addr, pool.block_len())?, true),
            Some(block) => {
                if let Some(held) = ordinal(&block, addr).and_then(|ordinal| block.allocation(ordinal)) {
                    return Err(IpamError::AddressInUse { addr, holder: held.handle.clone() }.into());
                }
                let strict = self.config.strict_affinity || block.strict();
                let owner = match block.affinity() {
                    BlockAffinity::Host(owner) if *owner == host => None,
                    BlockAffinity::Host(owner) => Some(owner.clone()).filter(|_| strict),
                    BlockAffinity::Other(owner) => Some(owner.clone()),
                    BlockAffinity::None => None,
                };
                if let Some(owner) = owner {
                    return Err(IpamError::StrictOwner { addr, block: block.cidr(), owner }.into());
                }
                let mut block = block;
                if strict && *block.affinity() == BlockAffinity::None {
                    // With strict affinity no host could allocate from a block without an owner.
                    block.set_affinity(BlockAffinity::Host(host.clone()));
                }
                let own = block.host() == Some(host.as_str());
                (block, own)
            }
        };
        self.allocate(&mut block, addr);
        let cidr = block.cidr();
        if own {
            self.draft.confirm(&host, &cidr)?;
        }
        self.draft.guard_pool(&pool.cidr);
        self.draft.put_block(block);
        Ok(Allocation { addr, block: cidr, pool: pool.cidr })
    }

    /// Creates a block that contains the address: of the pool's block size, or of the largest smaller size
    /// that overlaps no other block.
    fn block_for(&mut self, addr: IpAddr, len: u8) -> Result<Block, PlanStop> {
        let family = IpFamily::of(addr);
        if let Some(limit) = self.limit_reached(family)? {
            return Err(IpamError::BlockLimit { host: self.request.host.clone(), limit }.into());
        }
        let max = Cidr::host(addr).len();
        for cidr in (len..=max).filter_map(|len| Cidr::new(addr, len).ok()) {
            if self.draft.overlapping(&cidr)?.is_empty() {
                let owner = BlockAffinity::Host(self.request.host.clone());
                self.draft.guard_config();
                return Block::new(cidr, owner, self.config.strict_affinity)
                    .map_err(|error| IpamError::Refused(error.to_string()).into());
            }
        }
        // Unreachable: a /32 or /128 block overlaps another block only if that block contains the address.
        Err(IpamError::Busy { attempts: 1 }.into())
    }

    /// Adds the allocated addresses to the counts of their handles.
    fn count_handles(&mut self, addresses: &[Allocation]) -> Result<(), PlanStop> {
        let mut counts: BTreeMap<String, BTreeMap<Cidr, u32>> = BTreeMap::new();
        for addresses in addresses {
            if let Some(handle) = attribute(self.request, addresses.addr).handle {
                *counts.entry(handle).or_default().entry(addresses.block).or_default() += 1;
            }
        }
        let keyspace = self.draft.keyspace;
        let keys =
            counts.keys().flat_map(|id| [keyspace.handle(id)].into_iter().chain(keyspace.legacy_handle(id)));
        self.draft.state.request_key(keys.collect::<Vec<_>>(), [])?;
        for (id, blocks) in counts {
            let mut handle = self.draft.handle(&id)?.unwrap_or_else(|| Handle::new(&id));
            for (block, count) in blocks {
                let entry = handle.blocks.entry(block).or_default();
                *entry = entry.saturating_add(count);
            }
            self.draft.put_handle(handle);
        }
        Ok(())
    }
}

/// State of a block for which the host has an affinity.
pub(super) enum OwnBlock {
    /// The block exists and the host owns it.
    Owned(Block),
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
        Ok(Some(block)) if block.host() == Some(host) => Ok(OwnBlock::Owned(block)),
        Ok(None) if affinity.state != Some(AffinityState::PendingDeletion) => Ok(OwnBlock::Missing),
        Ok(_) => {
            draft.remove_stale_affinity(host, cidr);
            Ok(OwnBlock::NotOwned)
        }
    }
}
