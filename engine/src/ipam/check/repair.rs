//! Repairs one finding of the consistency check, if the store is still as it was found.

use std::collections::BTreeMap;

use tortie_config::resource::{AffinityState, Attribute, BlockAffinity, Handle};
use tortie_net::Cidr;

use super::{Repair, RepairOutcome};
use crate::ipam::IpamError;
use crate::ipam::assign::ordinal;
use crate::ipam::draft::{self, Draft};
use crate::ipam::host::{AttributeHolding, drop_same};
use crate::ipam::keyspace::Keyspace;
use crate::ipam::reads::{PlanStep, PlanStop, ReadState};

/// Plans the transaction of a repair.
pub(in crate::ipam) fn repair(
    keyspace: &Keyspace,
    state: &ReadState,
    fix: &Repair,
) -> PlanStep<RepairOutcome> {
    draft::run(keyspace, state, |draft| {
        let done = match fix {
            Repair::Release { addr, block, handle, attributes, revision, sequence } => {
                let secondary = Some(attributes.clone()).filter(|attributes| !attributes.is_empty());
                let nameless = secondary.is_none();
                let attribute = Attribute { handle: handle.clone(), secondary, ..Attribute::default() };
                let known = draft.state.read(&keyspace.block(block))?;
                if nameless && known.is_none_or(|known| known.revision != *revision) {
                    false
                } else {
                    release(draft, AttributeHolding { addr: *addr, block: *block, attribute }, *sequence)?
                }
            }
            Repair::Handle { handle, blocks } => count(draft, handle, blocks)?,
            Repair::Affinity { host, block } => settle(draft, host, block)?,
            Repair::ClearOwner { block, owner } => clear_owner(draft, block, owner.as_deref())?,
        };
        Ok(if done { RepairOutcome::Done } else { RepairOutcome::Changed })
    })
}

/// The allocation in the store may have more fields than the finding. Handle and attributes identify the
/// allocation.
fn release(
    draft: &mut Draft<'_>,
    mut holding: AttributeHolding,
    sequence: Option<u64>,
) -> Result<bool, PlanStop> {
    let Some(block) = draft.block(&holding.block)? else { return Ok(false) };
    let Some(ordinal) = ordinal(&block, holding.addr) else { return Ok(false) };
    let Some(held) = block.allocation(ordinal) else { return Ok(false) };
    if sequence.is_some_and(|sequence| sequence != block.allocation_sequence(ordinal)) {
        return Ok(false);
    }
    let named = |attribute: &Attribute| attribute.secondary.clone().unwrap_or_default();
    if held.handle != holding.attribute.handle || named(held) != named(&holding.attribute) {
        return Ok(false);
    }
    holding.attribute = held.clone();
    Ok(!drop_same(draft, &[holding])?.is_empty())
}

/// Sets the counts of a handle to the allocations in its blocks. The transaction compares the blocks too, so
/// a concurrent allocation causes a conflict.
fn count(draft: &mut Draft<'_>, id: &str, blocks: &[Cidr]) -> Result<bool, PlanStop> {
    draft.state.request_key(blocks.iter().map(|block| draft.keyspace.block(block)), [])?;
    let known = draft.handle(id)?;
    let mut handle = known.clone().unwrap_or_else(|| Handle::new(id));
    let mut counts: BTreeMap<Cidr, u32> = BTreeMap::new();
    for cidr in handle.blocks.keys().chain(blocks) {
        let Some(block) = draft.block(cidr)? else { continue };
        let held = block.allocated().filter(|(_, attribute)| attribute.handle.as_deref() == Some(id)).count();
        if let Some(held) = u32::try_from(held).ok().filter(|held| *held > 0) {
            counts.insert(*cidr, held);
        }
        draft.guard_block(cidr);
    }
    let empty = counts.is_empty();
    handle.blocks = counts;
    if known.as_ref() == Some(&handle) || (known.is_none() && empty) {
        return Ok(false);
    }
    draft.put_handle(handle);
    Ok(true)
}

/// Makes an affinity consistent with its block.
fn settle(draft: &mut Draft<'_>, host: &str, cidr: &Cidr) -> Result<bool, PlanStop> {
    draft.state.request_key([draft.keyspace.affinity(host, cidr), draft.keyspace.block(cidr)], [])?;
    let affinity = match draft.affinity(host, cidr) {
        // An affinity that cannot be parsed has no meaning for any reader, so it counts as absent.
        Err(PlanStop::Err(IpamError::Unreadable { .. })) => None,
        affinity => affinity?,
    };
    let releasing =
        affinity.as_ref().is_some_and(|affinity| affinity.state == Some(AffinityState::PendingDeletion));
    match draft.block(cidr)? {
        Some(mut block) if block.host() == Some(host) => {
            if releasing && block.is_empty() {
                draft.delete_block(cidr);
                draft.delete_affinity(host, cidr);
                return Ok(true);
            }
            if affinity.is_some_and(|affinity| affinity.is_confirmed()) {
                return Ok(false);
            }
            // Both keys get a new revision, so a writer in the middle of a claim or release gets a conflict.
            block.set_affinity(BlockAffinity::Host(host.to_owned()));
            draft.confirm(host, cidr)?;
            draft.guard_block(cidr);
            Ok(true)
        }
        _ => {
            draft.guard_block(cidr);
            draft.delete_affinity(host, cidr);
            Ok(true)
        }
    }
}

/// Removes the owner of a block if it is still `owner`, and deletes the block if it is empty.
fn clear_owner(draft: &mut Draft<'_>, cidr: &Cidr, owner: Option<&str>) -> Result<bool, PlanStop> {
    draft.state.request_key(
        owner
            .map(|owner| draft.keyspace.affinity(owner, cidr))
            .into_iter()
            .chain([draft.keyspace.block(cidr)]),
        [],
    )?;
    let Some(mut block) = draft.block(cidr)?.filter(|block| block.host() == owner) else { return Ok(false) };
    if matches!(block.affinity(), BlockAffinity::Other(_)) || (owner.is_none() && !block.is_empty()) {
        return Ok(false);
    }
    block.set_affinity(BlockAffinity::None);
    if let Some(owner) = owner {
        draft.delete_affinity(owner, cidr);
    }
    draft.put_or_delete_block(block);
    Ok(true)
}
