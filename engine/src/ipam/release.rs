//! The plans that take addresses back.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use tortie_config::resource::{Attribute, Block, Handle};
use tortie_net::Cidr;

use super::assign::ordinal;
use super::{Held, IpamError, Released};
use crate::ipam::draft::{self, Desk};
use crate::ipam::keyspace::Space;
use crate::ipam::reads::{Next, State, Stop};
use tortie_store::{Revision, StoreError};

/// Addresses that one transaction releases at most: each may bring a block and a handle with it.
pub(super) const PART: usize = 40;
/// Blocks of a handle that one transaction empties at most.
const BLOCKS: usize = 60;

/// What an attempt did, if it was committed.
#[derive(Debug, Clone, Default)]
pub(super) struct Attempt {
    pub(super) answer: Released,
    /// What was taken back, and from which revision of its block.
    gone: BTreeMap<IpAddr, (Attribute, Revision)>,
}

/// Releases addresses, those of `holder` only when there is one. `tried`: attempts that may have been committed.
pub(super) fn addresses(
    space: &Space,
    state: &State,
    addrs: &[IpAddr],
    holder: Option<&str>,
    tried: &[Attempt],
) -> Next<Attempt> {
    draft::run(space, state, |desk| {
        let mut attempt = Attempt::default();
        let answer = &mut attempt.answer;
        let mut blocks: BTreeMap<Cidr, (Block, Vec<Attribute>)> = BTreeMap::new();
        for (addr, block) in find(desk, addrs)? {
            let before = tried.iter().rev().find_map(|tried| tried.gone.get(&addr));
            let Some(block) = block else {
                if before.is_some() { &mut answer.released } else { &mut answer.absent }.push(addr);
                continue;
            };
            let revision = desk.state.read(&space.block(&block.cidr()))?.map_or(0, |known| known.revision);
            let (block, gone) = blocks.entry(block.cidr()).or_insert((block, Vec::new()));
            let held = ordinal(block, addr).and_then(|ordinal| Some((ordinal, block.allocation(ordinal)?)));
            let Some((ordinal, attribute)) = held else {
                if before.is_some() { &mut answer.released } else { &mut answer.absent }.push(addr);
                continue;
            };
            // An attempt whose answer was lost may have released it, and somebody else may have it by now.
            if let Some((attribute_before, revision_before)) = before {
                if attribute_before != attribute {
                    answer.released.push(addr);
                    continue;
                }
                if attribute.handle.is_none() && *revision_before != revision {
                    let text =
                        format!("whether {addr} was released is not known; see `tortie ipam show {addr}`");
                    return Err(IpamError::Store(StoreError::Away(text)).into());
                }
            }
            if holder.is_some() && attribute.handle.as_deref() != holder {
                answer.kept.push((addr, attribute.handle.clone()));
                continue;
            }
            attempt.gone.insert(addr, (attribute.clone(), revision));
            gone.extend(block.release(ordinal));
            answer.released.push(addr);
        }
        give_back(desk, blocks)?;
        Ok(attempt)
    })
}

/// The blocks of addresses, read in two goes: where they usually are, then everywhere.
fn find(desk: &Desk<'_>, addrs: &[IpAddr]) -> Result<Vec<(IpAddr, Option<Block>)>, Stop> {
    let addrs: BTreeSet<IpAddr> = addrs.iter().copied().collect();
    let around = |addr: &IpAddr| Space::blocks_around(&Cidr::host(*addr));
    let key = |cidr: Cidr| desk.space.block(&cidr);
    desk.state.want(addrs.iter().filter_map(|addr| around(addr).first().copied()).map(key), [])?;
    let mut missing = Vec::new();
    for addr in &addrs {
        if let Some(usual) = around(addr).first()
            && desk.block(usual)?.is_none()
        {
            missing.extend(around(addr));
        }
    }
    desk.state.want(missing.into_iter().map(key), [])?;
    addrs.into_iter().map(|addr| Ok((addr, desk.block_around(addr, None)?))).collect()
}

/// Stores blocks after a release, and what their handles count then.
pub(super) fn give_back(
    desk: &mut Desk<'_>,
    blocks: BTreeMap<Cidr, (Block, Vec<Attribute>)>,
) -> Result<(), Stop> {
    let space = desk.space;
    let handles = blocks.values().flat_map(|(_, gone)| gone).filter_map(|gone| gone.handle.as_deref());
    let keys: Vec<String> =
        handles.flat_map(|id| [space.handle(id)].into_iter().chain(space.old_handle(id))).collect();
    desk.state.want(keys, [])?;
    for (block, gone) in blocks.into_values().filter(|(_, gone)| !gone.is_empty()) {
        desk.forget(&block, &gone)?;
        desk.put_or_delete_block(block);
    }
    Ok(())
}

/// What a step of the release of a handle did.
#[derive(Debug, Clone, Default)]
pub(super) struct Step {
    pub(super) released: Vec<IpAddr>,
    /// The handle has more blocks.
    pub(super) more: bool,
}

/// Releases what a handle has, as much as one transaction holds. What it counts is a hint: every address of it in the blocks
/// that it names goes, and a block that does not exist is done.
pub(super) fn handle(space: &Space, state: &State, id: &str, tried: &[Step]) -> Next<Step> {
    draft::run(space, state, |desk| {
        let mut step = Step::default();
        if let Some(mut handle) = desk.handle(id)? {
            let blocks: Vec<Cidr> = handle.blocks.keys().copied().take(BLOCKS).collect();
            step.more = handle.blocks.len() > blocks.len();
            desk.state.want(blocks.iter().map(|cidr| space.block(cidr)), [])?;
            for cidr in blocks {
                handle.blocks.remove(&cidr);
                let Some(mut block) = desk.block(&cidr)? else { continue };
                let held = ordinals(&block, id);
                for ordinal in &held {
                    block.release(*ordinal);
                    step.released.extend(cidr.nth((*ordinal).into()));
                }
                if !held.is_empty() {
                    desk.put_or_delete_block(block);
                }
            }
            desk.put_handle(handle);
        }
        for lost in tried {
            step.released.extend(lost.released.iter().copied());
        }
        step.released.sort();
        step.released.dedup();
        Ok(step)
    })
}

fn ordinals(block: &Block, handle: &str) -> Vec<u32> {
    let held = block.allocated().filter(|(_, attribute)| attribute.handle.as_deref() == Some(handle));
    held.map(|(ordinal, _)| ordinal).collect()
}

/// The addresses of a handle.
pub(super) fn held_by(space: &Space, state: &State, id: &str) -> Next<Vec<IpAddr>> {
    draft::run(space, state, |desk| {
        let handle = desk.handle(id)?.unwrap_or_else(|| Handle::new(id));
        desk.state.want(handle.blocks.keys().map(|cidr| space.block(cidr)), [])?;
        let mut addrs = Vec::new();
        for cidr in handle.blocks.keys() {
            if let Some(block) = desk.block(cidr)? {
                addrs.extend(ordinals(&block, id).into_iter().filter_map(|ordinal| cidr.nth(ordinal.into())));
            }
        }
        Ok(addrs)
    })
}

/// What is known of an address.
pub(super) fn lookup(space: &Space, state: &State, addr: IpAddr) -> Next<Option<Held>> {
    draft::run(space, state, |desk| {
        let Some(block) = desk.block_around(addr, None)? else { return Ok(None) };
        let attribute = ordinal(&block, addr).and_then(|ordinal| block.allocation(ordinal));
        Ok(attribute.map(|attribute| Held {
            addr,
            block: block.cidr(),
            owner: block.host().map(str::to_owned),
            handle: attribute.handle.clone(),
            attributes: attribute.secondary.clone().unwrap_or_default(),
        }))
    })
}
