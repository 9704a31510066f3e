//! Plans that claim, give up and empty the blocks of a host.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use tortie_config::key::IpFamily;
use tortie_config::resource::{Attribute, Block, BlockAffinity};
use tortie_net::Cidr;

use super::assign::ordinal;
use super::check::IpamState;
use super::{AddressUse, ClaimResult, IpamError, UnclaimResult, release};
use crate::ipam::draft::{self, Draft};
use crate::ipam::keyspace::Keyspace;
use crate::ipam::reads::{PlanStep, PlanStop, ReadState};

/// Maximum number of blocks per `claim` call.
const BLOCKS_MAX: u32 = 4096;

/// Returns the blocks that a claim of `cidr` covers.
pub(super) fn blocks_in(keyspace: &Keyspace, state: &ReadState, cidr: Cidr) -> PlanStep<Vec<Cidr>> {
    draft::run(keyspace, state, |draft| {
        let (keys, prefixes) = keyspace.basis(None);
        draft.state.request_key(keys, prefixes)?;
        draft.ready()?;
        let pools = draft.any_pools()?;
        let pool = pools.enabled_of(cidr.addr())?;
        if !pool.cidr.covers(&cidr) {
            let text = format!("{cidr} is larger than pool {}; claim the pool or a part of it", pool.cidr);
            return Err(IpamError::BadRequest(text).into());
        }
        let len = pool.block_len();
        if cidr.len() > len {
            let text = format!("{cidr} is less than a block: the blocks of pool {} are /{len}", pool.cidr);
            return Err(IpamError::BadRequest(text).into());
        }
        let count = 1u32.checked_shl(u32::from(len - cidr.len())).filter(|count| *count <= BLOCKS_MAX);
        let Some(count) = count else {
            let text = format!("{cidr} has more than {BLOCKS_MAX} blocks; claim parts of it");
            return Err(IpamError::BadRequest(text).into());
        };
        let step = u32::from(cidr.max_len() - len);
        let nth =
            |n: u32| cidr.nth(u128::from(n).checked_shl(step)?).and_then(|addr| Cidr::new(addr, len).ok());
        Ok((0..count).filter_map(nth).collect())
    })
}

/// Plans the claim of one block.
pub(super) fn claim(keyspace: &Keyspace, state: &ReadState, host: &str, cidr: Cidr) -> PlanStep<ClaimResult> {
    draft::run(keyspace, state, |draft| {
        let (keys, prefixes) = keyspace.basis(Some(host));
        draft.state.request_key(
            keys.into_iter().chain([keyspace.block(&cidr)]),
            prefixes.into_iter().chain([keyspace.affinities(host)]),
        )?;
        draft.ready()?;
        let config = draft.config()?;
        let pools = draft.pool_selection(host, AddressUse::default())?;
        let pool = pools.enabled_of(cidr.addr())?;
        let mut claims = ClaimResult::default();
        let others = draft.overlapping(&cidr)?;
        let block = match others.as_slice() {
            [] => {
                let own = draft.affinities_of(host)?;
                let family = IpFamily::of_cidr(&cidr);
                let own = own.iter().filter(|own| IpFamily::of_cidr(own) == family && **own != cidr).count();
                if let Some(limit) = draft.block_limit(&config).filter(|limit| own >= *limit as usize) {
                    return Err(IpamError::BlockLimit { host: host.to_owned(), limit }.into());
                }
                draft
                    .new_block(cidr, host, &config)
                    .map_err(|error| IpamError::BadRequest(error.to_string()))?
            }
            [same] if *same == cidr => {
                let Some(mut block) = draft.block(same)? else { return Ok(claims) };
                match block.affinity() {
                    BlockAffinity::None => draft.take_ownership(&mut block, host),
                    BlockAffinity::Host(owner) if owner == host => {}
                    BlockAffinity::Host(owner) | BlockAffinity::Other(owner) => {
                        claims.refused.push((cidr, owner.clone()));
                        return Ok(claims);
                    }
                }
                block
            }
            [other, ..] => {
                claims.refused.push((cidr, format!("block {other}, which overlaps it")));
                return Ok(claims);
            }
        };
        draft.confirm(host, &cidr)?;
        draft.guard_pool(&pool.cidr);
        draft.guard_config();
        draft.put_block(block);
        claims.claimed.push(cidr);
        Ok(claims)
    })
}

/// Returns the blocks for which the host has an affinity.
pub(super) fn affinities(keyspace: &Keyspace, state: &ReadState, host: &str) -> PlanStep<Vec<Cidr>> {
    draft::run(keyspace, state, |draft| draft.affinities_of(host))
}

/// Plans to give up one block. An empty block is deleted; a block with addresses stays without an owner.
pub(super) fn unclaim(
    keyspace: &Keyspace,
    state: &ReadState,
    host: &str,
    cidr: Cidr,
) -> PlanStep<UnclaimResult> {
    draft::run(keyspace, state, |draft| {
        draft.state.request_key([keyspace.affinity(host, &cidr), keyspace.block(&cidr)], [])?;
        let mut unclaims = UnclaimResult::default();
        match draft.block(&cidr)? {
            Some(mut block) if block.host() == Some(host) => {
                block.set_affinity(BlockAffinity::None);
                let list = if block.is_empty() { &mut unclaims.deleted } else { &mut unclaims.kept };
                list.push(cidr);
                draft.put_or_delete_block(block);
            }
            // Another host owns the block, so this affinity was stale.
            Some(_) => {}
            None => unclaims.deleted.push(cidr),
        }
        // Another client may create the block, or claim it for the host, at this moment.
        draft.guard_block(&cidr);
        draft.delete_affinity(host, &cidr);
        Ok(unclaims)
    })
}

/// An allocated address, with the attribute that identifies the allocation.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct AttributeHolding {
    pub(super) addr: IpAddr,
    pub(super) block: Cidr,
    pub(super) attribute: Attribute,
}

/// Returns the handles of a host's tunnel addresses.
pub(super) fn tunnel_handles(host: &str) -> [String; 5] {
    ["ipip", "vxlan", "vxlan-v6", "wireguard", "wireguard-v6"]
        .map(|tunnel| format!("{tunnel}-tunnel-addr-{host}"))
}

/// Returns the allocations of a host: those whose attributes name it, those of its endpoints, and those in
/// its blocks, unless an endpoint of another host has the address.
pub(super) fn holdings(state: &IpamState, host: &str) -> Vec<AttributeHolding> {
    let mut users: BTreeMap<IpAddr, Vec<&str>> = BTreeMap::new();
    for endpoint in &state.endpoints {
        for net in endpoint.nets.iter().filter(|net| net.is_host()) {
            users.entry(net.addr()).or_default().push(&endpoint.host);
        }
    }
    let tunnels = tunnel_handles(host);
    let mut holdings = Vec::new();
    for (cidr, stored) in &state.blocks {
        let block = &stored.value;
        for (ordinal, attribute) in block.allocated() {
            let Some(addr) = cidr.nth(ordinal.into()) else { continue };
            let only_his = |users: &Vec<&str>| users.iter().all(|user| *user == host);
            let his = match (attribute.get("node"), users.get(&addr)) {
                (Some(node), users) => node == host && users.is_none_or(only_his),
                (None, Some(users)) => only_his(users),
                (None, None) => {
                    let handle = attribute.handle.as_ref();
                    block.host() == Some(host) || handle.is_some_and(|handle| tunnels.contains(handle))
                }
            };
            if his {
                holdings.push(AttributeHolding { addr, block: *cidr, attribute: attribute.clone() });
            }
        }
    }
    holdings
}

/// Returns the allocations of a host that its endpoints use.
pub(super) fn endpoint_holdings(state: &IpamState, host: &str) -> Vec<AttributeHolding> {
    let own = state.endpoints.iter().filter(|endpoint| endpoint.host == host);
    let own: BTreeSet<IpAddr> = own.flat_map(|endpoint| &endpoint.nets).map(|net| net.addr()).collect();
    let mut holdings = holdings(state, host);
    holdings.retain(|holding| own.contains(&holding.addr));
    holdings
}

/// Plans the release of allocations that have not changed. Returns the released addresses.
pub(super) fn drop_holdings(
    keyspace: &Keyspace,
    state: &ReadState,
    holdings: &[AttributeHolding],
) -> PlanStep<Vec<IpAddr>> {
    draft::run(keyspace, state, |draft| drop_same(draft, holdings))
}

pub(super) fn drop_same(
    draft: &mut Draft<'_>,
    holdings: &[AttributeHolding],
) -> Result<Vec<IpAddr>, PlanStop> {
    let mut blocks: BTreeMap<Cidr, (Block, Vec<Attribute>)> = BTreeMap::new();
    let mut released = Vec::new();
    draft.state.request_key(holdings.iter().map(|holding| draft.keyspace.block(&holding.block)), [])?;
    for holding in holdings {
        if let std::collections::btree_map::Entry::Vacant(vacant) = blocks.entry(holding.block) {
            let Some(block) = draft.block(&holding.block)? else { continue };
            vacant.insert((block, Vec::new()));
        }
        let Some((block, gone)) = blocks.get_mut(&holding.block) else { continue };
        let Some(ordinal) = ordinal(block, holding.addr) else { continue };
        if block.allocation(ordinal) == Some(&holding.attribute) {
            gone.extend(draft.release(block, ordinal)?);
            released.push(holding.addr);
        }
    }
    release::give_back(draft, blocks)?;
    Ok(released)
}
