//! Table of interned attribute sets: each is stored once, however many routes have it.

use std::hash::BuildHasher;

use tortie_net::HashKey;

use super::decision::Rank;
use super::index::Index;
use super::next_hops::{NO_HOP, NextHopTable};
use super::pool::Pool;
use crate::attr::{Attributes, community};

/// Number that stands for no attribute set: the highest 26-bit number, as numbers in the index have 26 bits.
pub(crate) const NO_ATTR: u32 = (1 << 26) - 1;

/// An attribute set with the values that the decision process compares, so that a comparison touches one
/// place in memory.
#[derive(Debug, Clone, Default)]
pub(crate) struct AttrSet {
    attributes: Option<Attributes>,
    hash: u64,
    refs: u32,
    /// For a set edited by import policy: number of the received set, of which it holds a reference. Equal
    /// results of different received sets are separate entries, so that a path need not store its received
    /// set.
    received: u32,
    /// Number of the next hop.
    pub(crate) hop: u32,
    /// Neighbouring AS, within which MEDs are compared. 0: the AS_PATH is empty or starts with an AS_SET.
    pub(crate) neighbour: u32,
    /// Rank in the decision process up to MED. A learned route with LLGR_STALE counts as stale (RFC 9494
    /// 4.3).
    pub(crate) rank: Rank,
}

/// All attribute sets in use.
#[derive(Debug, Clone)]
pub(crate) struct AttrTable {
    pool: Pool<AttrSet>,
    index: Index,
    /// Octets allocated for the variable parts of all sets.
    heap: usize,
    key: HashKey,
}

impl AttrTable {
    /// Creates an empty table.
    pub(crate) fn new(key: HashKey) -> Self {
        Self { pool: Pool::default(), index: Index::default(), heap: 0, key }
    }

    /// Interns a set and adds a reference. Returns its number. `local`: its next hop is not tracked.
    pub(crate) fn intern(&mut self, attributes: Attributes, local: bool, hops: &mut NextHopTable) -> u32 {
        self.insert(attributes, local, NO_ATTR, hops)
    }

    /// Interns a set that import policy derived from the set `received`, and adds a reference. Returns its
    /// number.
    pub(crate) fn intern_edited(
        &mut self,
        attributes: Attributes,
        received: u32,
        hops: &mut NextHopTable,
    ) -> u32 {
        self.insert(attributes, false, received, hops)
    }

    /// Returns the number of the received set that this set was derived from; without edits by import policy,
    /// the set itself.
    pub(crate) fn received(&self, id: u32) -> u32 {
        self.pool.get(id).map_or(id, |s| if s.received == NO_ATTR { id } else { s.received })
    }

    fn insert(&mut self, attributes: Attributes, local: bool, received: u32, hops: &mut NextHopTable) -> u32 {
        let hash = self.key.hash_one((&attributes, local, received));
        let found = self.index.find(hash, |id| {
            self.pool.get(id).is_some_and(|s| {
                s.hash == hash
                    && (s.hop == NO_HOP) == local
                    && s.received == received
                    && s.attributes.as_ref() == Some(&attributes)
            })
        });
        if let Some(id) = found {
            self.retain(id);
            return id;
        }
        self.retain(received);
        let hop = if local { NO_HOP } else { hops.retain(attributes.next_hop) };
        let path_len = u16::try_from(attributes.as_path.hops()).unwrap_or(u16::MAX);
        let stale = !local && attributes.has_community(community::LLGR_STALE);
        let set = AttrSet {
            hash,
            refs: 1,
            received,
            hop,
            neighbour: attributes.as_path.first().unwrap_or(0),
            // A local route with LOCAL_PREF takes part in the decision like a learned path.
            rank: Rank::new(
                local && attributes.local_pref.is_none(),
                stale,
                attributes.local_pref,
                path_len,
                attributes.origin,
            ),
            attributes: Some(attributes),
        };
        if self.index.is_full() {
            let all = self.pool.iter().filter(|(_, s)| s.attributes.is_some()).map(|(id, s)| (s.hash, id));
            self.index.rebuild(self.pool.len(), all);
        }
        self.heap += set.attributes.as_ref().map_or(0, heap);
        let id = self.pool.insert(set);
        self.index.insert(hash, id);
        id
    }

    #[inline]
    pub(crate) fn retain(&mut self, id: u32) {
        if let Some(set) = self.pool.get_mut(id) {
            set.refs += 1;
        }
    }

    #[inline]
    pub(crate) fn release(&mut self, id: u32, hops: &mut NextHopTable) {
        let Some(set) = self.pool.get_mut(id) else { return };
        set.refs = set.refs.saturating_sub(1);
        if set.refs > 0 || set.attributes.is_none() {
            return;
        }
        let mut received = NO_ATTR;
        if let Some(set) = self.pool.remove(id) {
            self.index.remove(set.hash, id);
            hops.release(set.hop);
            self.heap = self.heap.saturating_sub(set.attributes.as_ref().map_or(0, heap));
            received = set.received;
        }
        if self.index.is_sparse() {
            let all = self.pool.iter().filter(|(_, s)| s.attributes.is_some()).map(|(id, s)| (s.hash, id));
            self.index.rebuild(self.pool.len(), all);
        }
        // One level only: a received set is never derived from another one.
        if received != NO_ATTR {
            self.release(received, hops);
        }
    }

    #[inline]
    pub(crate) fn set(&self, id: u32) -> Option<&AttrSet> {
        self.pool.get(id)
    }

    #[inline]
    pub(crate) fn attributes(&self, id: u32) -> Option<&Attributes> {
        self.pool.get(id)?.attributes.as_ref()
    }

    pub(crate) fn len(&self) -> usize {
        self.pool.len()
    }

    /// Returns the octets allocated, with an estimate of the variable parts.
    pub(crate) fn memory(&self) -> usize {
        self.heap + self.pool.memory() + self.index.memory()
    }
}

/// Returns an estimate of the octets allocated for the variable parts of a set.
fn heap(a: &Attributes) -> usize {
    a.as_path.octets().len() + a.communities.len() * 4 + a.large_communities.len() * 12 + 32
}

impl AttrSet {
    /// Returns the MED; a missing one counts as 0, the lowest (RFC 4271 9.1.2.2 c).
    pub(crate) fn med(&self) -> u32 {
        self.attributes.as_ref().and_then(|a| a.med).unwrap_or(0)
    }

    #[inline]
    pub(crate) fn attributes(&self) -> Option<&Attributes> {
        self.attributes.as_ref()
    }
}
