//! What a group announces, each thing once: an attribute set of a source with what policy adds.

use smallvec::SmallVec;

use crate::rib::Shared;
use crate::rib::index::{Index, mix};
use crate::rib::pool::Pool;

/// What determines the attributes that are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct OutKey {
    /// Attribute set of the best path.
    pub(crate) attr: u32,
    /// Source of the best path.
    pub(crate) source: u32,
    /// Number of the communities that policy adds; 0: none.
    pub(crate) extra: u32,
}

impl OutKey {
    fn hash(self) -> u64 {
        mix(mix(u64::from(self.attr) << 32 | u64::from(self.source)) ^ u64::from(self.extra))
    }
}

/// Communities that policy adds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Added {
    pub(crate) communities: SmallVec<[u32; 2]>,
    pub(crate) large: SmallVec<[[u32; 3]; 1]>,
}

#[derive(Debug, Default)]
struct Out {
    key: OutKey,
    refs: u32,
    /// Its attributes exceed what a message of the group can hold.
    oversized: bool,
}

/// All outs of a group, counted by the slots that have them.
#[derive(Debug, Default)]
pub(crate) struct Outs {
    pool: Pool<Out>,
    index: Index,
    added: Vec<Added>,
}

impl Outs {
    /// The number of what policy adds.
    pub(crate) fn added_number(&mut self, added: Added) -> u32 {
        if added == Added::default() {
            return 0;
        }
        let at = self.added.iter().position(|a| *a == added).unwrap_or_else(|| {
            self.added.push(added);
            self.added.len() - 1
        });
        u32::try_from(at + 1).unwrap_or(0)
    }

    pub(crate) fn added(&self, number: u32) -> Option<&Added> {
        self.added.get((number as usize).checked_sub(1)?)
    }

    /// The number of an out, counted once more; `oversized` is asked once for a new one.
    pub(crate) fn intern(
        &mut self,
        key: OutKey,
        shared: &mut Shared,
        oversized: impl FnOnce(&Shared, &Self) -> bool,
    ) -> u32 {
        let hash = key.hash();
        let found = self.index.find(hash, |id| self.pool.get(id).is_some_and(|o| o.refs > 0 && o.key == key));
        if let Some(id) = found {
            if let Some(out) = self.pool.get_mut(id) {
                out.refs += 1;
            }
            return id;
        }
        if self.index.is_full() {
            let all = self.pool.iter().filter(|(_, o)| o.refs > 0).map(|(id, o)| (o.key.hash(), id));
            self.index.rebuild(self.pool.len(), all);
        }
        let oversized = oversized(shared, self);
        shared.attrs.retain(key.attr);
        let id = self.pool.insert(Out { key, refs: 1, oversized });
        self.index.insert(hash, id);
        id
    }

    /// One slot fewer has it.
    pub(crate) fn release(&mut self, id: u32, shared: &mut Shared) {
        let Some(out) = self.pool.get_mut(id) else { return };
        out.refs = out.refs.saturating_sub(1);
        if out.refs == 0
            && let Some(out) = self.pool.remove(id)
        {
            self.index.remove(out.key.hash(), id);
            shared.attrs.release(out.key.attr, &mut shared.hops);
        }
    }

    /// All are dropped with their group.
    pub(crate) fn release_all(&mut self, shared: &mut Shared) {
        for (_, out) in self.pool.iter().filter(|(_, o)| o.refs > 0) {
            shared.attrs.release(out.key.attr, &mut shared.hops);
        }
        *self = Self::default();
    }

    pub(crate) fn key(&self, id: u32) -> Option<OutKey> {
        self.pool.get(id).map(|o| o.key)
    }

    pub(crate) fn is_oversized(&self, id: u32) -> bool {
        self.pool.get(id).is_some_and(|o| o.oversized)
    }

    /// How many slots have routes of this source.
    pub(crate) fn of_source(&self, source: u32) -> u32 {
        self.pool.iter().filter(|(_, o)| o.refs > 0 && o.key.source == source).map(|(_, o)| o.refs).sum()
    }

    /// How many slots have routes of each source.
    pub(crate) fn by_source(&self) -> rustc_hash::FxHashMap<u32, u32> {
        let mut all = rustc_hash::FxHashMap::default();
        for (_, out) in self.pool.iter().filter(|(_, o)| o.refs > 0) {
            *all.entry(out.key.source).or_insert(0) += out.refs;
        }
        all
    }

    pub(crate) fn memory(&self) -> usize {
        self.pool.memory() + self.index.memory()
    }
}
