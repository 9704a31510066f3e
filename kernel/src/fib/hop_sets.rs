//! Interned sets of BGP next hops, each with a metric: one is stored once for all prefixes learned with it.

use std::collections::HashMap;

use smallvec::SmallVec;
use tortie_net::ScopedAddr;

/// Index of a set.
pub(super) type SetId = u32;
/// Index for no set: nothing was learned.
pub(super) const NO_SET: SetId = SetId::MAX;

#[derive(Debug)]
struct HopSet {
    hops: SmallVec<[ScopedAddr; 2]>,
    metric: u32,
    refs: u32,
}

/// The sets in use, with reference counts of the entries that hold them.
#[derive(Debug, Default)]
pub(super) struct HopSets {
    sets: Vec<Option<HopSet>>,
    free: Vec<SetId>,
    /// Index by content. The standard library's maps hash with a secret key, since peers choose the next hops.
    by_content: HashMap<(SmallVec<[ScopedAddr; 2]>, u32), SetId>,
}

impl HopSets {
    /// Returns the next hops of a set.
    pub(super) fn get(&self, id: SetId) -> Option<&[ScopedAddr]> {
        self.set(id).map(|set| &*set.hops)
    }

    /// Returns the metric of a set; 0 for Tortie's usual one.
    pub(super) fn metric(&self, id: SetId) -> u32 {
        self.set(id).map_or(0, |set| set.metric)
    }

    fn set(&self, id: SetId) -> Option<&HopSet> {
        usize::try_from(id).ok().and_then(|i| self.sets.get(i)).and_then(Option::as_ref)
    }

    /// Iterates over the sets by index; `None` if the index is free.
    pub(super) fn iter(&self) -> impl Iterator<Item = Option<&[ScopedAddr]>> + '_ {
        self.sets.iter().map(|set| set.as_ref().map(|set| &*set.hops))
    }

    /// Returns the set of these next hops with this metric, and adds a reference.
    pub(super) fn acquire(&mut self, hops: &[ScopedAddr], metric: u32) -> SetId {
        let content = (SmallVec::from_slice(hops), metric);
        if let Some(id) = self.by_content.get(&content).copied() {
            if let Some(Some(set)) = usize::try_from(id).ok().and_then(|i| self.sets.get_mut(i)) {
                set.refs += 1;
            }
            return id;
        }
        let set = Some(HopSet { hops: SmallVec::from_slice(hops), metric, refs: 1 });
        let id = self.free.pop().unwrap_or_else(|| {
            self.sets.push(None);
            SetId::try_from(self.sets.len() - 1).unwrap_or(NO_SET)
        });
        if let Some(slot) = usize::try_from(id).ok().and_then(|i| self.sets.get_mut(i)) {
            *slot = set;
        }
        self.by_content.insert(content, id);
        id
    }

    /// Drops a reference to this set.
    pub(super) fn release(&mut self, id: SetId) {
        let Some(slot) = usize::try_from(id).ok().and_then(|i| self.sets.get_mut(i)) else { return };
        let Some(set) = slot.as_mut() else { return };
        set.refs = set.refs.saturating_sub(1);
        if set.refs == 0 {
            self.by_content.remove(&(std::mem::take(&mut set.hops), set.metric));
            *slot = None;
            self.free.push(id);
        }
    }
}
