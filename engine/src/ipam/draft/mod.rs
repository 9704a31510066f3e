//! Pending changes of a plan, layered over the values that were read from the store.
//!
//! Every changed key is compared with the revision that was read. A key that a change depends on without
//! changing it is guarded: the transaction compares it too.

mod dialect;

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use tortie_config::key::IpFamily;
use tortie_config::resource::{
    Affinity, AffinityState, Attribute, Block, BlockAffinity, Handle, IpamConfig, ValueError,
};
use tortie_net::Cidr;

use super::IpamError;
use crate::ipam::cluster::Cluster;
use crate::ipam::cooldown;
use crate::ipam::keyspace::{Keyspace, Place};
use crate::ipam::overlap;
use crate::ipam::reads::{PlanStep, PlanStop, ReadState};
use tortie_store::{Compare, MAX_TXN_OPS, Op, Txn};

/// Maximum number of stale affinities of other writers that one transaction cleans up.
const CLEANUP_MAX: usize = 8;

/// Runs a plan and returns its step: more reads, a transaction, or an error.
pub(in crate::ipam) fn run<'a, A>(
    keyspace: &'a Keyspace,
    state: &'a ReadState,
    plan: impl FnOnce(&mut Draft<'a>) -> Result<A, PlanStop>,
) -> PlanStep<A> {
    let mut draft = Draft {
        keyspace,
        state,
        cluster: OnceCell::new(),
        blocks: BTreeMap::new(),
        affinities: BTreeMap::new(),
        handles: BTreeMap::new(),
        config: None,
        guards: BTreeSet::new(),
        cleanup: BTreeSet::new(),
    };
    let planned = plan(&mut draft).and_then(|answer| Ok((draft.finish()?, answer)));
    match planned {
        Ok((txn, answer)) => PlanStep::Txn(txn, answer),
        Err(PlanStop::Need(needs)) => PlanStep::Need(needs),
        Err(PlanStop::Err(error)) => PlanStep::Err(error),
    }
}

/// Pending changes of a plan. All accessors reflect the changes made so far.
pub(in crate::ipam) struct Draft<'a> {
    pub(in crate::ipam) keyspace: &'a Keyspace,
    pub(in crate::ipam) state: &'a ReadState,
    /// Projection of a Calico 3 store's objects, computed when it is first needed.
    cluster: OnceCell<Cluster>,
    blocks: BTreeMap<Cidr, Option<Block>>,
    affinities: BTreeMap<(String, Cidr), Option<Affinity>>,
    handles: BTreeMap<String, Option<Handle>>,
    config: Option<IpamConfig>,
    guards: BTreeSet<String>,
    /// Stale affinities, by host and block.
    cleanup: BTreeSet<(String, Cidr)>,
}

impl Draft<'_> {
    fn typed<T>(
        &self,
        place: &Place,
        parse: impl FnOnce(&[u8]) -> Result<T, ValueError>,
    ) -> Result<Option<T>, PlanStop> {
        let key = self.keyspace.text(place);
        let Some(known) = self.state.read(&key)? else { return Ok(None) };
        parse(&known.value)
            .map(Some)
            .map_err(|error| PlanStop::Err(IpamError::Unreadable { key, why: error.to_string() }))
    }

    pub(in crate::ipam) fn config(&self) -> Result<IpamConfig, PlanStop> {
        Ok(self.typed(&Place::Config, IpamConfig::parse)?.unwrap_or_default())
    }

    pub(in crate::ipam) fn put_config(&mut self, config: IpamConfig) {
        self.config = Some(config);
    }

    /// Makes the transaction fail if the pool changes concurrently.
    pub(in crate::ipam) fn guard_pool(&mut self, pool: &Cidr) {
        let key = self.keyspace.pool(pool);
        if !self.keyspace.is_calico_3() {
            self.guards.insert(key);
            return;
        }
        self.guards.extend(self.cluster.get().into_iter().flat_map(|cluster| cluster.origin(&key)));
    }

    /// Makes the transaction fail if the configuration changes concurrently.
    pub(in crate::ipam) fn guard_config(&mut self) {
        self.guards.insert(self.keyspace.config());
    }

    /// Makes the transaction fail if the block changes concurrently.
    pub(in crate::ipam) fn guard_block(&mut self, cidr: &Cidr) {
        self.guards.insert(self.keyspace.block(cidr));
    }

    pub(in crate::ipam) fn block(&self, cidr: &Cidr) -> Result<Option<Block>, PlanStop> {
        match self.blocks.get(cidr) {
            Some(block) => Ok(block.clone()),
            None => {
                let stored = self.typed(&Place::Block(*cidr), |bytes| Block::parse(*cidr, bytes))?;
                stored.filter(|block| !block.is_deleted()).map(|block| self.at_present(block)).transpose()
            }
        }
    }

    /// Returns true if the host owns the block and it is full, as far as a scan of the raw value can tell.
    pub(in crate::ipam) fn is_full(&self, host: &str, cidr: &Cidr) -> bool {
        let known = || self.state.get(&self.keyspace.block(cidr)).flatten();
        !self.blocks.contains_key(cidr)
            && known().is_some_and(|known| {
                Block::is_full_of(host, *cidr, &known.value)
                    && !(self.keyspace.is_calico_3() && cooldown::may_cool(&known.value))
            })
    }

    /// Returns the block that contains an address. `usual` is the block size of its pool, which is tried
    /// first.
    pub(in crate::ipam) fn block_containing(
        &self,
        addr: IpAddr,
        usual: Option<u8>,
    ) -> Result<Option<Block>, PlanStop> {
        let around = Keyspace::blocks_overlapping(&Cidr::host(addr));
        let first = around.iter().find(|cidr| usual.is_none_or(|len| cidr.len() == len));
        if let Some(first) = first
            && let Some(block) = self.block(first)?
        {
            return Ok(Some(block));
        }
        self.state.request_key(around.iter().map(|cidr| self.keyspace.block(cidr)), [])?;
        for cidr in &around {
            if let Some(block) = self.block(cidr)? {
                return Ok(Some(block));
            }
        }
        Ok(None)
    }

    pub(in crate::ipam) fn put_block(&mut self, block: Block) {
        self.blocks.insert(block.cidr(), Some(block));
    }

    pub(in crate::ipam) fn delete_block(&mut self, cidr: &Cidr) {
        self.blocks.insert(*cidr, None);
    }

    /// Returns all blocks that share an address with `cidr`, including `cidr` itself.
    pub(in crate::ipam) fn overlapping(&self, cidr: &Cidr) -> Result<Vec<Cidr>, PlanStop> {
        let around = overlap::of(self.keyspace, cidr);
        self.state.request_existence(around.keys.iter().cloned(), around.prefixes.iter().cloned())?;
        let texts = around.keys.iter().chain(&around.prefixes);
        let found = texts.flat_map(|text| self.state.names(text));
        let mut blocks: BTreeSet<Cidr> = found
            .filter_map(|key| match self.keyspace.place(key) {
                Some(Place::Block(block)) => Some(block),
                _ => None,
            })
            .filter(|block| !matches!(self.blocks.get(block), Some(None)) && !self.is_marked_deleted(block))
            .collect();
        blocks.extend(self.blocks.iter().filter(|(_, block)| block.is_some()).map(|(cidr, _)| *cidr));
        Ok(blocks.into_iter().filter(|block| block.overlaps(cidr)).collect())
    }

    /// Returns true if a block that has been read is marked as deleted.
    fn is_marked_deleted(&self, cidr: &Cidr) -> bool {
        let known = || self.state.get(&self.keyspace.block(cidr)).flatten();
        self.keyspace.is_calico_3()
            && known()
                .is_some_and(|known| Block::parse(*cidr, &known.value).is_ok_and(|block| block.is_deleted()))
    }

    /// Returns true if the content of a block is loaded, or its absence is known.
    pub(in crate::ipam) fn is_read(&self, cidr: &Cidr) -> bool {
        self.blocks.contains_key(cidr) || self.state.get(&self.keyspace.block(cidr)).is_some()
    }

    /// Returns the prefixes of all blocks of a family, unordered. The contents are not read, since there may
    /// be thousands.
    pub(in crate::ipam) fn all_blocks(&self, family: IpFamily) -> Result<Vec<Cidr>, PlanStop> {
        let prefix = self.keyspace.blocks(family);
        self.state.request_names(&prefix)?;
        let stored = self.state.names(&prefix).filter_map(|key| match self.keyspace.place(key) {
            Some(Place::Block(block)) => Some(block),
            _ => None,
        });
        let mut all: BTreeSet<Cidr> = stored.collect();
        for (cidr, block) in self.blocks.iter().filter(|(cidr, _)| IpFamily::of_cidr(cidr) == family) {
            if block.is_some() {
                all.insert(*cidr)
            } else {
                all.remove(cidr)
            };
        }
        Ok(all.into_iter().collect())
    }

    pub(in crate::ipam) fn affinity(&self, host: &str, block: &Cidr) -> Result<Option<Affinity>, PlanStop> {
        match self.affinities.get(&(host.to_owned(), *block)) {
            Some(affinity) => Ok(affinity.clone()),
            None => {
                let place = Place::Affinity { host: host.to_owned(), block: *block };
                Ok(self.typed(&place, Affinity::parse)?.filter(|affinity| !affinity.is_deleted()))
            }
        }
    }

    /// Returns the blocks for which a host has an affinity, in key order.
    pub(in crate::ipam) fn affinities_of(&self, host: &str) -> Result<Vec<Cidr>, PlanStop> {
        let prefix = self.keyspace.affinities(host);
        self.state.request_key([], [prefix.clone()])?;
        let is_deleted = |value: &[u8]| Affinity::parse(value).is_ok_and(|affinity| affinity.is_deleted());
        let stored = self.state.existing(&prefix).filter_map(|(key, known)| match self.keyspace.place(key) {
            Some(Place::Affinity { block, .. }) if !is_deleted(&known.value) => Some(block),
            _ => None,
        });
        let changed = |block: &Cidr| self.affinities.get(&(host.to_owned(), *block));
        let mut all: Vec<Cidr> = stored.filter(|block| !matches!(changed(block), Some(None))).collect();
        for ((owner, block), affinity) in &self.affinities {
            if owner == host && affinity.is_some() && !all.contains(block) {
                all.push(*block);
            }
        }
        Ok(all)
    }

    /// Writes a confirmed affinity of the host for the block, unless there is one.
    pub(in crate::ipam) fn confirm(&mut self, host: &str, block: &Cidr) -> Result<(), PlanStop> {
        let known = match self.affinity(host, block) {
            Err(PlanStop::Err(IpamError::Unreadable { .. })) => None,
            known => known?,
        };
        // Calico 3 confirms a claim without a state at its next use.
        let is_stateless = |affinity: &Affinity| affinity.state.is_none() && self.keyspace.is_calico_3();
        if known.as_ref().is_some_and(|affinity| affinity.is_confirmed() && !is_stateless(affinity)) {
            return Ok(());
        }
        let affinity = Affinity { state: Some(AffinityState::Confirmed), ..known.unwrap_or_default() };
        self.affinities.insert((host.to_owned(), *block), Some(affinity));
        Ok(())
    }

    pub(in crate::ipam) fn delete_affinity(&mut self, host: &str, block: &Cidr) {
        self.affinities.insert((host.to_owned(), *block), None);
    }

    /// Deletes the affinity of another host, if it exists. The transaction compares it either way.
    pub(in crate::ipam) fn delete_known_affinity(
        &mut self,
        host: &str,
        block: &Cidr,
    ) -> Result<(), PlanStop> {
        self.state.read(&self.keyspace.affinity(host, block))?;
        self.guards.insert(self.keyspace.affinity(host, block));
        self.delete_affinity(host, block);
        Ok(())
    }

    /// Deletes a stale affinity of another writer, if the transaction writes anything else.
    pub(in crate::ipam) fn remove_stale_affinity(&mut self, host: &str, block: &Cidr) {
        self.cleanup.insert((host.to_owned(), *block));
    }

    /// Returns a handle, merged with the one at its legacy key.
    pub(in crate::ipam) fn handle(&self, id: &str) -> Result<Option<Handle>, PlanStop> {
        if let Some(handle) = self.handles.get(id) {
            return Ok(handle.clone());
        }
        let old_key = self.keyspace.legacy_handle(id);
        self.state.request_key([self.keyspace.handle(id)].into_iter().chain(old_key.clone()), [])?;
        let new = self.typed(&Place::Handle(id.to_owned()), |bytes| Handle::parse(id, bytes))?;
        let new = new.filter(|handle| !handle.is_deleted());
        if old_key.is_none() {
            return Ok(new);
        }
        let old = self.typed(&Place::LegacyHandle(id.to_owned()), |bytes| Handle::parse(id, bytes))?;
        Ok(match (new, old) {
            (Some(mut new), Some(old)) => {
                for (block, count) in old.blocks {
                    new.blocks.entry(block).or_insert(count);
                }
                Some(new)
            }
            (new, old) => new.or(old),
        })
    }

    /// Writes a handle, or deletes it if it has no addresses.
    pub(in crate::ipam) fn put_handle(&mut self, handle: Handle) {
        let id = handle.id.clone();
        self.handles.insert(id, Some(handle).filter(|handle| !handle.blocks.is_empty()));
    }

    /// Subtracts the `released` allocations of a block from the counts of their handles. Counts are hints: an
    /// entry stays while the block holds addresses of the handle, or while its count exceeds the number
    /// released.
    pub(in crate::ipam) fn forget(&mut self, block: &Block, released: &[Attribute]) -> Result<(), PlanStop> {
        let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
        for handle in released.iter().filter_map(|attribute| attribute.handle.as_deref()) {
            *counts.entry(handle).or_default() += 1;
        }
        let old_keys = counts.keys().filter_map(|id| self.keyspace.legacy_handle(id));
        self.state.request_key(counts.keys().map(|id| self.keyspace.handle(id)).chain(old_keys), [])?;
        for (id, count) in counts {
            let known = match self.handle(id) {
                // No reader can parse this handle, so there is nothing to subtract; `check` reports it.
                Err(PlanStop::Err(IpamError::Unreadable { .. })) => continue,
                known => known?,
            };
            let Some(mut handle) = known else { continue };
            let left = block.allocated().filter(|(_, attribute)| attribute.handle.as_deref() == Some(id));
            let left = u32::try_from(left.count()).unwrap_or(u32::MAX);
            if let Some(entry) = handle.blocks.get_mut(&block.cidr()) {
                *entry = entry.saturating_sub(count).max(left);
                if *entry == 0 {
                    handle.blocks.remove(&block.cidr());
                }
            }
            self.put_handle(handle);
        }
        Ok(())
    }

    /// Writes a block after a release, or deletes it if it has neither owner nor addresses.
    pub(in crate::ipam) fn put_or_delete_block(&mut self, block: Block) {
        if block.is_empty() && *block.affinity() == BlockAffinity::None {
            self.delete_block(&block.cidr());
        } else {
            self.put_block(block);
        }
    }

    fn finish(self) -> Result<Txn, PlanStop> {
        let mut writes: BTreeMap<String, Option<Vec<u8>>> = BTreeMap::new();
        for (cidr, block) in &self.blocks {
            let key = self.keyspace.block(cidr);
            let known = self.state.read(&key)?;
            let written = block.as_ref().map(|block| counted(block, known.map(|known| &*known.value)));
            writes.insert(key, written);
        }
        for ((host, cidr), affinity) in &self.affinities {
            writes.insert(self.keyspace.affinity(host, cidr), affinity.as_ref().map(Affinity::to_value));
        }
        for (id, handle) in &self.handles {
            let key = self.keyspace.handle(id);
            let written = match handle {
                Some(handle) if self.keyspace.is_calico_3() => {
                    Some(handle.to_calico_3(self.state.read(&key)?.map(|known| &*known.value)))
                }
                handle => handle.as_ref().map(Handle::to_value),
            };
            writes.insert(key, written);
            if let Some(old) = self.keyspace.legacy_handle(id) {
                writes.insert(old, None);
            }
        }
        if let Some(config) = &self.config {
            writes.insert(self.keyspace.config(), Some(config.to_value()));
        }
        // Values that are already in the store are not written again.
        let mut needed = BTreeMap::new();
        for (key, value) in writes {
            let known = self.state.read(&key)?;
            if known.map(|known| known.value.as_slice()) != value.as_deref() {
                needed.insert(key, value);
            }
        }
        if needed.is_empty() {
            return Ok(Txn::default());
        }
        let mut guards = self.guards;
        for (host, block) in self.cleanup.iter().take(CLEANUP_MAX) {
            let key = self.keyspace.affinity(host, block);
            if self.state.read(&key)?.is_some() && !needed.contains_key(&key) {
                needed.insert(key, None);
                // A client of Calico may be about to create the block under this affinity.
                if self.keyspace.is_calico_3() {
                    guards.insert(self.keyspace.block(block));
                }
            }
        }
        let guards = guards.into_iter().filter(|key| !needed.contains_key(key)).collect::<Vec<_>>();
        let mut txn = Txn::default();
        for key in needed.keys().chain(&guards) {
            txn.compare.push(match self.state.read(key)? {
                Some(known) => Compare::ModRevision(key.clone(), known.revision),
                None => Compare::Absent(key.clone()),
            });
        }
        txn.ops.extend(needed.into_iter().map(|(key, value)| match value {
            Some(value) => Op::Put { key, value, lease: None },
            None => Op::Delete { key },
        }));
        if txn.ops.len() > MAX_TXN_OPS || txn.compare.len() > MAX_TXN_OPS {
            let text = format!(
                "this writes {} keys, and one transaction has at most {MAX_TXN_OPS}; request fewer \
                 addresses at a time",
                txn.ops.len()
            );
            return Err(IpamError::BadRequest(text).into());
        }
        Ok(txn)
    }
}

/// Formats a block for a write, which its sequence number counts. Returns the known value if nothing changed.
fn counted(block: &Block, known: Option<&[u8]>) -> Vec<u8> {
    let value = block.to_value();
    if known == Some(&value) {
        return value;
    }
    let mut block = block.clone();
    block.count_write();
    block.to_value()
}
