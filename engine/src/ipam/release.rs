//! Plans that release addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use tortie_config::resource::{Attribute, Block, Handle};
use tortie_net::Cidr;

use super::assign::ordinal;
use super::error::holder_name;
use super::{AllocatedAddress, IpamError, ReleaseRequest, ReleaseResult};
use crate::ipam::draft::{self, Draft};
use crate::ipam::keyspace::Keyspace;
use crate::ipam::reads::{PlanStep, PlanStop, ReadState};
use tortie_store::{Revision, StoreError};

/// Maximum number of addresses that one transaction releases, because each may involve a block and a handle.
pub(super) const ADDRESSES_PER_TXN: usize = 40;
/// Maximum number of blocks of a handle that one transaction releases.
const BLOCKS: usize = 60;

/// Effect of one attempt, if it was committed.
#[derive(Debug, Clone, Default)]
pub(super) struct ReleasePlan {
    pub(super) answer: ReleaseResult,
    /// Released allocations, with the revision of their block before the release.
    gone: BTreeMap<IpAddr, (Attribute, Revision)>,
}

/// Plans the release of addresses, with `holder` only of those that it holds. `tried` lists attempts that may
/// have been committed.
pub(super) fn addresses(
    keyspace: &Keyspace,
    state: &ReadState,
    addrs: &[IpAddr],
    holder: Option<&str>,
    tried: &[ReleasePlan],
) -> PlanStep<ReleasePlan> {
    draft::run(keyspace, state, |draft| {
        let mut attempt = ReleasePlan::default();
        let answer = &mut attempt.answer;
        let mut blocks: BTreeMap<Cidr, (Block, Vec<Attribute>)> = BTreeMap::new();
        for (addr, block) in find(draft, addrs)? {
            let before = tried.iter().rev().find_map(|tried| tried.gone.get(&addr));
            let Some(block) = block else {
                if before.is_some() { &mut answer.released } else { &mut answer.absent }.push(addr);
                continue;
            };
            let revision =
                draft.state.read(&keyspace.block(&block.cidr()))?.map_or(0, |known| known.revision);
            let (block, gone) = blocks.entry(block.cidr()).or_insert((block, Vec::new()));
            let held = ordinal(block, addr).and_then(|ordinal| Some((ordinal, block.allocation(ordinal)?)));
            let Some((ordinal, attribute)) = held else {
                if before.is_some() { &mut answer.released } else { &mut answer.absent }.push(addr);
                continue;
            };
            // An attempt whose reply was lost may have released the address, and another holder may have
            // allocated it since.
            if let Some((attribute_before, revision_before)) = before {
                if attribute_before != attribute {
                    answer.released.push(addr);
                    continue;
                }
                if attribute.handle.is_none() && *revision_before != revision {
                    let text =
                        format!("whether {addr} was released is not known; see `tortie ipam show {addr}`");
                    return Err(IpamError::Store(StoreError::Unreachable(text)).into());
                }
            }
            if holder.is_some() && attribute.handle.as_deref() != holder {
                answer.kept.push((addr, attribute.handle.clone()));
                continue;
            }
            attempt.gone.insert(addr, (attribute.clone(), revision));
            gone.extend(draft.release(block, ordinal)?);
            answer.released.push(addr);
        }
        give_back(draft, blocks)?;
        Ok(attempt)
    })
}

/// Plans the release of addresses, all of them or none: each must have the handle and the sequence number of its
/// request. `tried` lists attempts that may have been committed.
pub(super) fn same(
    keyspace: &Keyspace,
    state: &ReadState,
    requests: &[ReleaseRequest],
    tried: &[ReleasePlan],
) -> PlanStep<ReleasePlan> {
    let addrs: Vec<IpAddr> = requests.iter().map(|request| request.addr).collect();
    if requests.len() > ADDRESSES_PER_TXN {
        let text =
            format!("{} addresses in one release, at most {ADDRESSES_PER_TXN} are possible", addrs.len());
        return PlanStep::Err(IpamError::BadRequest(text));
    }
    let checked = draft::run(keyspace, state, |draft| {
        let found: BTreeMap<IpAddr, Option<Block>> = find(draft, &addrs)?.into_iter().collect();
        for request in requests {
            // An attempt whose reply was lost may have released the address.
            if tried.iter().any(|tried| tried.gone.contains_key(&request.addr)) {
                continue;
            }
            let block = found.get(&request.addr).and_then(Option::as_ref);
            check_same(block, request)?;
        }
        Ok(())
    });
    match checked {
        PlanStep::Txn(..) => addresses(keyspace, state, &addrs, None, tried),
        PlanStep::Need(needs) => PlanStep::Need(needs),
        PlanStep::Err(error) => PlanStep::Err(error),
    }
}

/// Returns an error unless an allocation is the one that a request names.
fn check_same(block: Option<&Block>, request: &ReleaseRequest) -> Result<(), IpamError> {
    let addr = request.addr;
    let stale = |found: String| Err(IpamError::StaleRelease { addr, found });
    let ordinal = block.and_then(|block| ordinal(block, addr));
    let held = block
        .zip(ordinal)
        .and_then(|(block, ordinal)| Some((block.allocation(ordinal)?, block.allocation_sequence(ordinal))));
    match (held, request.sequence) {
        (None, None) => Ok(()),
        (None, Some(_)) => stale("not allocated".to_owned()),
        (Some((_, number)), Some(wanted)) if number != wanted => {
            stale(format!("allocated with sequence number {number}"))
        }
        (Some((attribute, _)), _) if request.handle.is_some() && attribute.handle != request.handle => {
            stale(format!("allocated to {}", holder_name(attribute.handle.as_deref())))
        }
        (Some(_), _) => Ok(()),
    }
}

/// Finds the blocks of addresses in two reads: blocks of the default size first, then of all sizes.
fn find(draft: &Draft<'_>, addrs: &[IpAddr]) -> Result<Vec<(IpAddr, Option<Block>)>, PlanStop> {
    let addrs: BTreeSet<IpAddr> = addrs.iter().copied().collect();
    let around = |addr: &IpAddr| Keyspace::blocks_overlapping(&Cidr::host(*addr));
    let key = |cidr: Cidr| draft.keyspace.block(&cidr);
    draft.state.request_key(addrs.iter().filter_map(|addr| around(addr).first().copied()).map(key), [])?;
    let mut missing = Vec::new();
    for addr in &addrs {
        if let Some(usual) = around(addr).first()
            && draft.block(usual)?.is_none()
        {
            missing.extend(around(addr));
        }
    }
    draft.state.request_key(missing.into_iter().map(key), [])?;
    addrs.into_iter().map(|addr| Ok((addr, draft.block_containing(addr, None)?))).collect()
}

/// Writes blocks after a release, with the reduced counts of their handles.
pub(super) fn give_back(
    draft: &mut Draft<'_>,
    blocks: BTreeMap<Cidr, (Block, Vec<Attribute>)>,
) -> Result<(), PlanStop> {
    let keyspace = draft.keyspace;
    let handles = blocks.values().flat_map(|(_, gone)| gone).filter_map(|gone| gone.handle.as_deref());
    let keys: Vec<String> =
        handles.flat_map(|id| [keyspace.handle(id)].into_iter().chain(keyspace.legacy_handle(id))).collect();
    draft.state.request_key(keys, [])?;
    for (block, gone) in blocks.into_values().filter(|(_, gone)| !gone.is_empty()) {
        draft.forget(&block, &gone)?;
        draft.put_or_delete_block(block);
    }
    Ok(())
}

/// Effect of one step in the release of a handle.
#[derive(Debug, Clone, Default)]
pub(super) struct HandleReleaseStep {
    pub(super) released: Vec<IpAddr>,
    /// True if the handle has more blocks.
    pub(super) more: bool,
}

/// Plans the release of a handle's addresses, as many as fit one transaction. The counts are hints: all
/// addresses of the handle in the listed blocks are released, and a block that does not exist is skipped.
pub(super) fn handle(
    keyspace: &Keyspace,
    state: &ReadState,
    id: &str,
    tried: &[HandleReleaseStep],
) -> PlanStep<HandleReleaseStep> {
    draft::run(keyspace, state, |draft| {
        let mut step = HandleReleaseStep::default();
        if let Some(mut handle) = draft.handle(id)? {
            // Calico 3 counts an address before it allocates it. Another client may be about to do so, and could
            // not release it by its handle if the count were gone.
            let counts_are_kept = keyspace.is_calico_3();
            let all = handle.blocks.keys().copied();
            let mut blocks: Vec<Cidr> =
                if counts_are_kept { all.collect() } else { all.take(BLOCKS).collect() };
            draft.state.request_key(blocks.iter().map(|cidr| keyspace.block(cidr)), [])?;
            if counts_are_kept {
                blocks = holding(draft, &blocks, id)?;
                step.more = blocks.len() > BLOCKS;
                blocks.truncate(BLOCKS);
            } else {
                step.more = handle.blocks.len() > blocks.len();
            }
            for cidr in blocks {
                let count = handle.blocks.remove(&cidr).unwrap_or(0);
                let Some(mut block) = draft.block(&cidr)? else { continue };
                let held = ordinals(&block, id);
                for ordinal in &held {
                    draft.release(&mut block, *ordinal)?;
                    step.released.extend(cidr.nth((*ordinal).into()));
                }
                let rest = count.saturating_sub(u32::try_from(held.len()).unwrap_or(u32::MAX));
                if counts_are_kept && rest > 0 {
                    handle.blocks.insert(cidr, rest);
                }
                if !held.is_empty() {
                    draft.put_or_delete_block(block);
                }
            }
            draft.put_handle(handle);
        }
        for lost in tried {
            step.released.extend(lost.released.iter().copied());
        }
        step.released.sort();
        step.released.dedup();
        Ok(step)
    })
}

/// Returns the blocks that hold addresses of a handle.
fn holding(draft: &Draft<'_>, blocks: &[Cidr], id: &str) -> Result<Vec<Cidr>, PlanStop> {
    let mut found = Vec::new();
    for cidr in blocks {
        if draft.block(cidr)?.is_some_and(|block| !ordinals(&block, id).is_empty()) {
            found.push(*cidr);
        }
    }
    Ok(found)
}

fn ordinals(block: &Block, handle: &str) -> Vec<u32> {
    let held = block.allocated().filter(|(_, attribute)| attribute.handle.as_deref() == Some(handle));
    held.map(|(ordinal, _)| ordinal).collect()
}

/// Returns the addresses allocated under a handle.
pub(super) fn allocated_to(keyspace: &Keyspace, state: &ReadState, id: &str) -> PlanStep<Vec<IpAddr>> {
    draft::run(keyspace, state, |draft| {
        let handle = draft.handle(id)?.unwrap_or_else(|| Handle::new(id));
        draft.state.request_key(handle.blocks.keys().map(|cidr| keyspace.block(cidr)), [])?;
        let mut addrs = Vec::new();
        for cidr in handle.blocks.keys() {
            if let Some(block) = draft.block(cidr)? {
                addrs.extend(ordinals(&block, id).into_iter().filter_map(|ordinal| cidr.nth(ordinal.into())));
            }
        }
        Ok(addrs)
    })
}

/// Returns the allocation of an address.
pub(super) fn lookup(
    keyspace: &Keyspace,
    state: &ReadState,
    addr: IpAddr,
) -> PlanStep<Option<AllocatedAddress>> {
    draft::run(keyspace, state, |draft| {
        let Some(block) = draft.block_containing(addr, None)? else { return Ok(None) };
        let Some(ordinal) = ordinal(&block, addr) else { return Ok(None) };
        let sequence = block.sequence().map(|_| block.allocation_sequence(ordinal));
        Ok(block.allocation(ordinal).map(|attribute| AllocatedAddress {
            addr,
            block: block.cidr(),
            owner: block.host().map(str::to_owned),
            handle: attribute.handle.clone(),
            attributes: attribute.secondary.clone().unwrap_or_default(),
            sequence,
        }))
    })
}
