//! Mending one finding, if all is still as it was found.

use std::collections::BTreeMap;

use tortie_config::resource::{AffinityState, Attribute, BlockAffinity, Handle};
use tortie_net::Cidr;

use super::{Fix, Mended};
use crate::ipam::IpamError;
use crate::ipam::assign::ordinal;
use crate::ipam::draft::{self, Desk};
use crate::ipam::host::{Holding, drop_same};
use crate::ipam::keyspace::Space;
use crate::ipam::reads::{Next, State, Stop};

/// Plans a fix.
pub(in crate::ipam) fn mend(space: &Space, state: &State, fix: &Fix) -> Next<Mended> {
    draft::run(space, state, |desk| {
        let done = match fix {
            Fix::Release { addr, block, handle, attributes, revision } => {
                let secondary = Some(attributes.clone()).filter(|attributes| !attributes.is_empty());
                let nameless = secondary.is_none();
                let attribute = Attribute { handle: handle.clone(), secondary, ..Attribute::default() };
                let known = desk.state.read(&space.block(block))?;
                if nameless && known.is_none_or(|known| known.revision != *revision) {
                    false
                } else {
                    release(desk, Holding { addr: *addr, block: *block, attribute })?
                }
            }
            Fix::Handle { handle, blocks } => count(desk, handle, blocks)?,
            Fix::Affinity { host, block } => settle(desk, host, block)?,
            Fix::Disown { block, owner } => disown(desk, block, owner.as_deref())?,
        };
        Ok(if done { Mended::Done } else { Mended::Changed })
    })
}

/// The stored attribute may have fields that nobody named; handle and attributes are what identifies it.
fn release(desk: &mut Desk<'_>, mut holding: Holding) -> Result<bool, Stop> {
    let Some(block) = desk.block(&holding.block)? else { return Ok(false) };
    let held = ordinal(&block, holding.addr).and_then(|ordinal| block.allocation(ordinal));
    let Some(held) = held else { return Ok(false) };
    let named = |attribute: &Attribute| attribute.secondary.clone().unwrap_or_default();
    if held.handle != holding.attribute.handle || named(held) != named(&holding.attribute) {
        return Ok(false);
    }
    holding.attribute = held.clone();
    Ok(!drop_same(desk, &[holding])?.is_empty())
}

/// Makes a handle count what the blocks hold. They are compared, too: an allocation meanwhile is a conflict.
fn count(desk: &mut Desk<'_>, id: &str, blocks: &[Cidr]) -> Result<bool, Stop> {
    desk.state.want(blocks.iter().map(|block| desk.space.block(block)), [])?;
    let known = desk.handle(id)?;
    let mut handle = known.clone().unwrap_or_else(|| Handle::new(id));
    let mut counts: BTreeMap<Cidr, u32> = BTreeMap::new();
    for cidr in handle.blocks.keys().chain(blocks) {
        let Some(block) = desk.block(cidr)? else { continue };
        let held = block.allocated().filter(|(_, attribute)| attribute.handle.as_deref() == Some(id)).count();
        if let Some(held) = u32::try_from(held).ok().filter(|held| *held > 0) {
            counts.insert(*cidr, held);
        }
        desk.guard_block(cidr);
    }
    let empty = counts.is_empty();
    handle.blocks = counts;
    if known.as_ref() == Some(&handle) || (known.is_none() && empty) {
        return Ok(false);
    }
    desk.put_handle(handle);
    Ok(true)
}

/// Brings an affinity into agreement with its block.
fn settle(desk: &mut Desk<'_>, host: &str, cidr: &Cidr) -> Result<bool, Stop> {
    desk.state.want([desk.space.affinity(host, cidr), desk.space.block(cidr)], [])?;
    let affinity = match desk.affinity(host, cidr) {
        // It says nothing to anybody.
        Err(Stop::Err(IpamError::Unreadable { .. })) => None,
        affinity => affinity?,
    };
    let releasing =
        affinity.as_ref().is_some_and(|affinity| affinity.state == Some(AffinityState::PendingDeletion));
    match desk.block(cidr)? {
        Some(mut block) if block.host() == Some(host) => {
            if releasing && block.is_empty() {
                desk.delete_block(cidr);
                desk.delete_affinity(host, cidr);
                return Ok(true);
            }
            if affinity.is_some_and(|affinity| affinity.is_confirmed()) {
                return Ok(false);
            }
            // A writer in the middle of its claim or release meets a new revision of both.
            block.set_affinity(BlockAffinity::Host(host.to_owned()));
            desk.confirm(host, cidr)?;
            desk.guard_block(cidr);
            Ok(true)
        }
        _ => {
            desk.guard_block(cidr);
            desk.delete_affinity(host, cidr);
            Ok(true)
        }
    }
}

/// Takes the owner from a block, if it is still that one, and deletes the block when it is empty.
fn disown(desk: &mut Desk<'_>, cidr: &Cidr, owner: Option<&str>) -> Result<bool, Stop> {
    desk.state.want(
        owner.map(|owner| desk.space.affinity(owner, cidr)).into_iter().chain([desk.space.block(cidr)]),
        [],
    )?;
    let Some(mut block) = desk.block(cidr)?.filter(|block| block.host() == owner) else { return Ok(false) };
    if matches!(block.affinity(), BlockAffinity::Other(_)) || (owner.is_none() && !block.is_empty()) {
        return Ok(false);
    }
    block.set_affinity(BlockAffinity::None);
    if let Some(owner) = owner {
        desk.delete_affinity(owner, cidr);
    }
    desk.put_or_delete_block(block);
    Ok(true)
}
