//! Hash index of slot numbers. It stores no keys and takes four octets per slot.

const EMPTY: u32 = u32::MAX;
const GONE: u32 = u32::MAX - 1;
const ID_BITS: u32 = 26;
const ID_MASK: u32 = (1 << ID_BITS) - 1;

/// Maximum number of an indexed slot: 26 bits less the two markers.
pub(crate) const MAX_ID: u32 = ID_MASK - 2;

/// Open addressing over numbers below 2^26. The six bits above the number are a tag from the hash, so most
/// probes of other keys end without reading the key. The top bits of the hash select the slot, the low bits
/// are the tag. Hashes are keyed ([`HashKey`](tortie_net::HashKey)), so that a peer that chooses the keys
/// cannot choose their slots.
#[derive(Debug, Clone, Default)]
pub(crate) struct Index {
    slots: Vec<u32>,
    len: usize,
    used: usize,
}

#[inline]
fn word(hash: u64, id: u32) -> u32 {
    // The tag has six bits.
    let tag = (hash & 63) as u32;
    tag << ID_BITS | id & ID_MASK
}

impl Index {
    #[inline]
    fn start(&self, hash: u64) -> usize {
        let bits = self.slots.len().trailing_zeros();
        // The shift result is below `slots.len()`.
        #[expect(clippy::cast_possible_truncation, reason = "below a length")]
        let at = (hash >> (64 - bits)) as usize;
        at
    }

    /// Returns the contents of the home slot of this hash.
    #[inline]
    pub(crate) fn place(&self, hash: u64) -> u32 {
        self.slots.get(self.start(hash)).copied().unwrap_or(EMPTY)
    }

    /// Returns the number in a slot if its tag matches the hash.
    #[inline]
    pub(crate) fn guess(hash: u64, place: u32) -> Option<u32> {
        (place & !ID_MASK == word(hash, 0) && place < GONE).then_some(place & ID_MASK)
    }

    /// Returns the number with this hash for which `is` returns true.
    #[inline]
    pub(crate) fn find(&self, hash: u64, mut is: impl FnMut(u32) -> bool) -> Option<u32> {
        if self.slots.is_empty() {
            return None;
        }
        let tag = word(hash, 0);
        let mask = self.slots.len() - 1;
        let mut at = self.start(hash);
        loop {
            match *self.slots.get(at)? {
                EMPTY => return None,
                GONE => {}
                w if w & !ID_MASK == tag && is(w & ID_MASK) => return Some(w & ID_MASK),
                _ => {}
            }
            at = (at + 1) & mask;
        }
    }

    /// Returns true if [`Index::rebuild`] is required before the next insert.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        (self.used + 1) * 4 > self.slots.len() * 3
    }

    /// Adds a number that is not in the index. There must be room: see [`Index::is_full`].
    pub(crate) fn insert(&mut self, hash: u64, id: u32) {
        let mask = self.slots.len().wrapping_sub(1);
        let mut at = self.start(hash);
        while let Some(slot) = self.slots.get_mut(at) {
            if matches!(*slot, EMPTY | GONE) {
                self.used += usize::from(*slot == EMPTY);
                self.len += 1;
                *slot = word(hash, id);
                return;
            }
            at = (at + 1) & mask;
        }
    }

    /// Removes a number.
    pub(crate) fn remove(&mut self, hash: u64, id: u32) {
        let want = word(hash, id);
        let mask = self.slots.len().wrapping_sub(1);
        let mut at = self.start(hash);
        while let Some(slot) = self.slots.get_mut(at) {
            if *slot == want {
                *slot = GONE;
                self.len -= 1;
                // If the next slot is empty, no probe continues beyond this one, and it can be emptied.
                if self.slots.get((at + 1) & mask) == Some(&EMPTY) {
                    self.used -= 1;
                    if let Some(slot) = self.slots.get_mut(at) {
                        *slot = EMPTY;
                    }
                }
                return;
            }
            if *slot == EMPTY {
                return;
            }
            at = (at + 1) & mask;
        }
    }

    /// Returns true if the index is so sparse that a rebuild would free memory.
    pub(crate) fn is_sparse(&self) -> bool {
        self.slots.len() > 1024 && self.len * 16 < self.slots.len()
    }

    /// Rebuilds the index from all numbers with their hashes. The caller iterates over its own slots, which
    /// reads memory sequentially, while a walk over the old index would not.
    pub(crate) fn rebuild(&mut self, len: usize, all: impl Iterator<Item = (u64, u32)>) {
        let size = ((len + 1) * 2).next_power_of_two().max(16);
        self.slots = vec![EMPTY; size];
        self.len = 0;
        self.used = 0;
        for (hash, id) in all {
            self.insert(hash, id);
        }
    }

    /// Returns the octets allocated.
    pub(crate) fn memory(&self) -> usize {
        self.slots.capacity() * 4
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tortie_net::HashKey;

    use super::*;

    proptest! {
        /// The index and a standard set agree after any sequence of inserts and removals.
        #[test]
        fn agrees_with_a_set(ops in proptest::collection::vec((any::<bool>(), 0u32..400), 0..2000)) {
            let mut index = Index::default();
            let mut model = std::collections::BTreeSet::new();
            // Half of the hashes collide in slot and tag.
            let key = HashKey::new([1, 2]);
            let hash = |id: u32| if id.is_multiple_of(2) { key.short_prefix(id, 0) } else { 42 };
            for (add, id) in ops {
                if add && model.insert(id) {
                    if index.is_full() {
                        index.rebuild(model.len(), model.iter().filter(|i| **i != id).map(|i| (hash(*i), *i)));
                    }
                    index.insert(hash(id), id);
                } else if !add && model.remove(&id) {
                    index.remove(hash(id), id);
                }
            }
            for id in 0..400 {
                prop_assert_eq!(index.find(hash(id), |i| i == id).is_some(), model.contains(&id));
            }
        }
    }

    /// Builds an index of these prefixes and returns its longest probe sequence.
    fn filled(key: HashKey, prefixes: &[u32]) -> usize {
        let mut index = Index::default();
        let hash = |at: u32| usize::try_from(at).map_or(0, |at| key.short_prefix(prefixes[at], 24));
        for at in 0..u32::try_from(prefixes.len()).unwrap() {
            if index.is_full() {
                index.rebuild(at as usize, (0..at).map(|at| (hash(at), at)));
            }
            index.insert(hash(at), at);
        }
        let mask = index.slots.len() - 1;
        let way = |(at, slot): (usize, &u32)| at.wrapping_sub(index.start(hash(slot & ID_MASK))) & mask;
        index.slots.iter().enumerate().filter(|(_, slot)| **slot < GONE).map(way).max().unwrap()
    }

    #[test]
    fn prefixes_chosen_to_collide_cost_what_random_ones_cost() {
        let known = HashKey::new([0, 0]);
        let random: Vec<u32> = (0..4096_u32).map(|n| n.wrapping_mul(0x9e37_79b1) & !255).collect();
        // All of them start in one of 256 parts of the table.
        let chosen: Vec<u32> = (0..1 << 24)
            .map(|n: u32| n << 8)
            .filter(|prefix| known.short_prefix(*prefix, 24) >> 56 == 0)
            .take(4096)
            .collect();
        assert_eq!(chosen.len(), 4096);
        assert!(
            filled(known, &chosen) > 1000,
            "under the key that the prefixes were chosen for they make one long way"
        );
        for seed in 1..20 {
            let secret = HashKey::new([seed, 0]);
            let (random, chosen) = (filled(secret, &random), filled(secret, &chosen));
            assert!(chosen < 64 + 2 * random, "{chosen} steps for chosen ones, {random} for random ones");
        }
    }
}
