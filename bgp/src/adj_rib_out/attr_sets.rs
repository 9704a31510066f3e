//! Attribute sets that an update group announces, each stored once: an attribute set of a source with the
//! edits of export policy.

use std::collections::{BTreeMap, HashMap};

use smallvec::SmallVec;
use tortie_net::HashKey;

use crate::attr::Edits;
use crate::rib::Shared;
use crate::rib::index::Index;
use crate::rib::pool::Pool;

/// All inputs of the attributes to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct AttrSetKey {
    /// Attribute set of the path.
    pub(crate) attr: u32,
    /// Source of the path.
    pub(crate) source: u32,
    /// Number of the export policy edits; 0 for none.
    pub(crate) extra: u32,
    /// [`Source::reflection`](crate::rib::source::Source::reflection) for a reflected path, else 0.
    pub(crate) reflection: u32,
}

impl AttrSetKey {
    /// Returns the keyed hash: a peer influences which numbers are in use.
    fn hash(self, key: &HashKey) -> u64 {
        key.numbers([u64::from(self.attr) << 32 | u64::from(self.source), u64::from(self.extra)])
    }
}

/// Edits of export policy: attribute changes, then added communities.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Added {
    pub(crate) edits: Edits,
    pub(crate) communities: SmallVec<[u32; 2]>,
    pub(crate) large: SmallVec<[[u32; 3]; 1]>,
}

#[derive(Debug, Clone, Default)]
struct Out {
    key: AttrSetKey,
    refs: u32,
    /// True if the attributes exceed the maximum message length of the group.
    oversized: bool,
}

/// All attribute sets that a group announces, reference-counted by slots.
#[derive(Debug, Clone)]
pub(crate) struct AttrSets {
    pool: Pool<Out>,
    index: Index,
    /// The set interned last: prefixes received together usually share it.
    last: u32,
    /// Export policy edits, reference-counted by attribute sets.
    added: slab::Slab<(Added, u32)>,
    added_numbers: HashMap<Added, u32, HashKey>,
}

impl AttrSets {
    /// Creates an empty table.
    pub(crate) fn new(key: HashKey) -> Self {
        Self {
            pool: Pool::default(),
            index: Index::default(),
            last: 0,
            added: slab::Slab::new(),
            added_numbers: HashMap::with_hasher(key),
        }
    }

    fn hash_of(&self, key: AttrSetKey) -> u64 {
        key.hash(self.added_numbers.hasher())
    }

    /// Returns the number of these export policy edits. It is valid while an attribute set uses it.
    pub(crate) fn added_number(&mut self, added: Added) -> u32 {
        if added == Added::default() {
            return 0;
        }
        if let Some(number) = self.added_numbers.get(&added) {
            return *number;
        }
        let number = u32::try_from(self.added.insert((added.clone(), 0)) + 1).unwrap_or(0);
        self.added_numbers.insert(added, number);
        number
    }

    pub(crate) fn added(&self, number: u32) -> Option<&Added> {
        self.added.get((number as usize).checked_sub(1)?).map(|(added, _)| added)
    }

    fn drop_added(&mut self, number: u32) {
        let Some(at) = (number as usize).checked_sub(1) else { return };
        let Some((_, refs)) = self.added.get_mut(at) else { return };
        *refs = refs.saturating_sub(1);
        if *refs == 0
            && let Some((added, _)) = self.added.try_remove(at)
        {
            self.added_numbers.remove(&added);
        }
    }

    /// Interns a set and adds a reference. Returns its number. `oversized` is called once per new set.
    pub(crate) fn intern(
        &mut self,
        key: AttrSetKey,
        shared: &mut Shared,
        oversized: impl FnOnce(&Shared, &Self) -> bool,
    ) -> u32 {
        if let Some(out) = self.pool.get_mut(self.last).filter(|o| o.refs > 0 && o.key == key) {
            out.refs += 1;
            return self.last;
        }
        let hash = self.hash_of(key);
        let found = self.index.find(hash, |id| self.pool.get(id).is_some_and(|o| o.refs > 0 && o.key == key));
        if let Some(id) = found {
            if let Some(out) = self.pool.get_mut(id) {
                out.refs += 1;
            }
            self.last = id;
            return id;
        }
        if self.index.is_full() {
            let key = self.added_numbers.hasher();
            let all = self.pool.iter().filter(|(_, o)| o.refs > 0).map(|(id, o)| (o.key.hash(key), id));
            self.index.rebuild(self.pool.len(), all);
        }
        let oversized = oversized(shared, self);
        shared.attrs.retain(key.attr);
        if let Some((_, refs)) = (key.extra as usize).checked_sub(1).and_then(|at| self.added.get_mut(at)) {
            *refs += 1;
        }
        let id = self.pool.insert(Out { key, refs: 1, oversized });
        self.index.insert(hash, id);
        self.last = id;
        id
    }

    /// Releases a reference of a slot.
    pub(crate) fn release(&mut self, id: u32, shared: &mut Shared) {
        let Some(out) = self.pool.get_mut(id) else { return };
        out.refs = out.refs.saturating_sub(1);
        if out.refs == 0
            && let Some(out) = self.pool.remove(id)
        {
            let hash = self.hash_of(out.key);
            self.index.remove(hash, id);
            self.drop_added(out.key.extra);
            shared.attrs.release(out.key.attr, &mut shared.next_hops);
        }
    }

    /// Releases all sets when the group is removed.
    pub(crate) fn release_all(&mut self, shared: &mut Shared) {
        for (_, out) in self.pool.iter().filter(|(_, o)| o.refs > 0) {
            shared.attrs.release(out.key.attr, &mut shared.next_hops);
        }
        *self = Self::new(*self.added_numbers.hasher());
    }

    pub(crate) fn key(&self, id: u32) -> Option<AttrSetKey> {
        self.pool.get(id).map(|o| o.key)
    }

    pub(crate) fn is_oversized(&self, id: u32) -> bool {
        self.pool.get(id).is_some_and(|o| o.oversized)
    }

    /// Returns the number of slots with routes of this source.
    pub(crate) fn of_source(&self, source: u32) -> u32 {
        self.pool.iter().filter(|(_, o)| o.refs > 0 && o.key.source == source).map(|(_, o)| o.refs).sum()
    }

    /// Returns the number of slots with routes of each source.
    pub(crate) fn by_source(&self) -> BTreeMap<u32, u32> {
        let mut all = BTreeMap::new();
        for (_, out) in self.pool.iter().filter(|(_, o)| o.refs > 0) {
            *all.entry(out.key.source).or_insert(0) += out.refs;
        }
        all
    }

    pub(crate) fn memory(&self) -> usize {
        self.pool.memory() + self.index.memory()
    }
}
