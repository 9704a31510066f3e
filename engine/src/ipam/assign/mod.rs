//! Plans an allocation request: addresses from the host's own blocks first, then from new blocks, then from
//! blocks of other hosts.

mod own;
mod search;
mod takeover;

use std::collections::BTreeMap;
use std::net::IpAddr;

use tortie_config::key::IpFamily;
use tortie_config::resource::{Attribute, Block, BlockAffinity, Handle, IpamConfig};
use tortie_net::Cidr;

use super::pools::{PoolRange, PoolSelection, names};
use super::{AddressRequest, Allocation, AllocationRequest, Exclusions, IpamError};
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
    /// Prefixes whose addresses are only allocated if explicitly requested.
    reserved: Vec<Cidr>,
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
        let (keys, prefixes) = keyspace.basis(Some(&request.host));
        let handle_keys = handle.map(|id| keyspace.handle(id)).into_iter();
        let old_keys = handle.and_then(|id| keyspace.legacy_handle(id));
        let (tunnel, hosts) = Excluded::reads(keyspace, &request.host, exclusions);
        draft.state.request_key(
            keys.into_iter().chain(handle_keys).chain(old_keys).chain(tunnel),
            prefixes.into_iter().chain([keyspace.affinities(&request.host)]).chain(hosts),
        )?;
        draft.ready()?;
        let config = draft.config()?;
        let pools = draft.pool_selection(&request.host, request.address_use)?;
        let excluded = Excluded::of(draft, request, exclusions, |cidr| pools.overlap(cidr))?;
        let reserved = draft.reserved(&config)?;
        Ok(Self { draft, request, config, reserved, pools, excluded })
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
        // Calico 3 allocates nothing from a disabled pool.
        let use_up = pools.is_empty() && !self.draft.keyspace.is_calico_3();
        let leftover = if use_up { self.pools.disabled(family) } else { Vec::new() };
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
            _ if none => self.pools.none_of(family, &self.request.host),
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

    fn allocate(&self, block: &mut Block, addr: IpAddr) {
        if let Some(ordinal) = ordinal(block, addr) {
            block.allocate(ordinal, &attribute(self.request, addr));
        }
    }

    /// Returns true if only its owner may allocate from the block. Blocks of Calico 3 do not record it.
    fn is_strict(&self, block: &Block) -> bool {
        self.config.strict_affinity || (block.strict() && !self.draft.keyspace.is_calico_3())
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
                let strict = self.is_strict(&block);
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
                    self.draft.take_ownership(&mut block, &host);
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
                self.draft.guard_config();
                return self
                    .draft
                    .new_block(cidr, &self.request.host, &self.config)
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
