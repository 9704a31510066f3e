//! Entries of the table by prefix, each in a numbered slot.
//!
//! Code that works on many prefixes looks each up once and then uses its slot. Slots that were filled
//! together are adjacent in memory, while each lookup by prefix is a cache miss, which took half of the time
//! of a batch.

use std::net::IpAddr;

use hashbrown::HashTable;
use slab::Slab;
use tortie_net::{Cidr, HashKey};

/// Number of an entry's slot, valid as long as the entry exists.
pub(crate) type Slot = u32;

/// Entries in slots, found by prefix.
#[derive(Debug)]
pub(crate) struct Entries<E> {
    slots: Slab<(Cidr, E)>,
    /// Slot numbers only: the prefix is stored in the slot, which is read next anyway.
    by_prefix: HashTable<Slot>,
    /// Secret hash key, since peers choose the prefixes.
    key: HashKey,
    /// Number of prefixes per length, by family; only a few lengths are in use.
    lengths: [Vec<u32>; 2],
}

impl<E> Default for Entries<E> {
    fn default() -> Self {
        let lengths = [vec![0; 33], vec![0; 129]];
        Self { slots: Slab::new(), by_prefix: HashTable::new(), key: HashKey::random(), lengths }
    }
}

fn family(is_v4: bool) -> usize {
    usize::from(!is_v4)
}

fn place(slot: Slot) -> usize {
    usize::try_from(slot).unwrap_or(usize::MAX)
}

/// Returns true if this slot contains this prefix.
fn holds<E>(slots: &Slab<(Cidr, E)>, slot: Slot, prefix: &Cidr) -> bool {
    slots.get(place(slot)).is_some_and(|(known, _)| known == prefix)
}

impl<E: Default> Entries<E> {
    /// Returns the slot of a prefix.
    pub(crate) fn find(&self, prefix: &Cidr) -> Option<Slot> {
        self.by_prefix.find(self.key.prefix(prefix), |slot| holds(&self.slots, *slot, prefix)).copied()
    }

    /// Returns the slot of a prefix, adding a default entry if there is none.
    pub(crate) fn find_or_add(&mut self, prefix: Cidr) -> Slot {
        if let Some(slot) = self.find(&prefix) {
            return slot;
        }
        let slot = Slot::try_from(self.slots.insert((prefix, E::default()))).unwrap_or(Slot::MAX);
        let hash_of =
            |slot: &Slot| self.slots.get(place(*slot)).map_or(0, |(prefix, _)| self.key.prefix(prefix));
        self.by_prefix.insert_unique(self.key.prefix(&prefix), slot, hash_of);
        if let Some(count) = self.count_of(&prefix) {
            *count += 1;
        }
        slot
    }

    fn count_of(&mut self, prefix: &Cidr) -> Option<&mut u32> {
        self.lengths.get_mut(family(prefix.is_v4()))?.get_mut(usize::from(prefix.len()))
    }

    /// Returns the entries whose prefixes cover an address, longest first. Only prefix lengths in use are
    /// looked up.
    pub(crate) fn covering(&self, addr: IpAddr) -> impl Iterator<Item = (Cidr, &E)> {
        let counts = self.lengths.get(family(addr.is_ipv4())).map_or(&[][..], Vec::as_slice);
        let lengths = counts.iter().enumerate().rev().filter(|(_, count)| **count > 0);
        lengths.filter_map(move |(len, _)| {
            let prefix = Cidr::new(addr, u8::try_from(len).ok()?).ok()?;
            Some((prefix, self.get(&prefix)?))
        })
    }

    /// Returns the prefix and the entry of a slot.
    pub(crate) fn get_slot(&self, slot: Slot) -> Option<&(Cidr, E)> {
        self.slots.get(place(slot))
    }

    /// Returns the entry of a slot.
    pub(crate) fn at_mut(&mut self, slot: Slot) -> Option<&mut E> {
        self.slots.get_mut(place(slot)).map(|(_, e)| e)
    }

    /// Returns the entry of a prefix.
    pub(crate) fn get(&self, prefix: &Cidr) -> Option<&E> {
        self.get_slot(self.find(prefix)?).map(|(_, e)| e)
    }

    /// Removes the entry of a slot; the next new entry may reuse the slot.
    pub(crate) fn remove(&mut self, slot: Slot) {
        if let Some((prefix, _)) = self.slots.try_remove(place(slot))
            && let Ok(found) = self.by_prefix.find_entry(self.key.prefix(&prefix), |known| *known == slot)
        {
            found.remove();
            if let Some(count) = self.count_of(&prefix) {
                *count = count.saturating_sub(1);
            }
        }
        if self.slots.is_empty() {
            *self = Self::default();
        }
    }

    /// Applies `of` to entries in the order of slots, starting at `from`: returns at most `max` results from
    /// at most `slots` slots, and the slot to continue from, `None` at the end.
    pub(crate) fn walk<T>(
        &self,
        from: Slot,
        slots: u32,
        max: usize,
        mut of: impl FnMut(&Cidr, &E) -> Option<T>,
    ) -> (Vec<T>, Option<Slot>) {
        let last = self.slots.iter().next_back().and_then(|(slot, _)| Slot::try_from(slot).ok());
        let limit = last.map_or(0, |slot| slot.saturating_add(1));
        let end = from.saturating_add(slots).min(limit);
        let (mut found, mut next) = (Vec::new(), from);
        while next < end && found.len() < max {
            found.extend(self.get_slot(next).and_then(|(prefix, entry)| of(prefix, entry)));
            next += 1;
        }
        (found, (next < limit).then_some(next))
    }

    /// Iterates over all entries, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Slot, &Cidr, &E)> {
        self.slots
            .iter()
            .map(|(slot, (prefix, entry))| (Slot::try_from(slot).unwrap_or(Slot::MAX), prefix, entry))
    }

    /// Iterates over all entries, in no order.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut E> {
        self.slots.iter_mut().map(|(_, (_, entry))| entry)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn prefix(n: u8) -> Cidr {
        Cidr::host([192, 0, 2, n].into())
    }

    /// Generates prefixes of both families that cover each other.
    fn nested() -> impl Strategy<Value = Cidr> {
        let v4 = (any::<u32>(), 0..=32_u8)
            .prop_map(|(bits, len)| Cidr::v4((0x0a00_0000 | bits & 0xff).into(), len));
        let v6 = (any::<u128>(), 0..=128_u8).prop_map(|(bits, len)| Cidr::v6((bits & 0xff).into(), len));
        prop_oneof![v4, v6]
    }

    proptest! {
        #[test]
        fn what_covers_an_address_is_what_a_look_up_of_every_length_finds(
            changes in vec((nested(), any::<bool>()), 0..100), asked in nested(),
        ) {
            let mut entries = Entries::<u8>::default();
            let addr = asked.addr();
            for (prefix, there) in changes {
                match (there, entries.find(&prefix)) {
                    (true, _) => _ = entries.find_or_add(prefix),
                    (false, Some(slot)) => entries.remove(slot),
                    (false, None) => {}
                }
                let every = (0..=asked.max_len()).rev().map(|len| Cidr::new(addr, len).unwrap());
                let walked: Vec<Cidr> = every.filter(|prefix| entries.get(prefix).is_some()).collect();
                let found: Vec<Cidr> = entries.covering(addr).map(|(prefix, _)| prefix).collect();
                prop_assert_eq!(found, walked);
                let used = entries.lengths.iter().flatten().sum::<u32>();
                prop_assert_eq!(used as usize, entries.iter().count());
            }
        }

        #[test]
        fn pages_one_after_the_other_are_the_whole_list(
            changes in vec((any::<u8>(), any::<bool>()), 0..200), slots in 1_u32..40, max in 1_usize..40,
        ) {
            let mut entries = Entries::<u8>::default();
            for (n, there) in changes {
                match (there, entries.find(&prefix(n))) {
                    (true, _) => _ = entries.find_or_add(prefix(n)),
                    (false, Some(slot)) => entries.remove(slot),
                    (false, None) => {}
                }
            }
            let (mut listed, mut from) = (Vec::new(), Some(0));
            while let Some(slot) = from {
                let (page, next) = entries.walk(slot, slots, max, |prefix, _| Some(*prefix));
                prop_assert!(page.len() <= max && next.is_none_or(|next| next > slot));
                listed.extend(page);
                from = next;
            }
            let all: Vec<Cidr> = entries.iter().map(|(_, prefix, _)| *prefix).collect();
            prop_assert_eq!(listed, all);
        }

        #[test]
        fn what_is_there_throughout_is_listed_once_whatever_else_changes(
            stays in vec(any::<u8>(), 1..50), changes in vec((any::<u8>(), any::<bool>()), 0..200), max in 1_usize..9,
        ) {
            let mut entries = Entries::<u8>::default();
            let mut changes = changes.into_iter().filter(|(n, _)| !stays.contains(n));
            for n in &stays {
                entries.find_or_add(prefix(*n));
                if let Some((other, _)) = changes.next() {
                    entries.find_or_add(prefix(other));
                }
            }
            let (mut listed, mut from) = (Vec::new(), Some(0));
            while let Some(slot) = from {
                let (page, next) = entries.walk(slot, 16, max, |prefix, _| Some(*prefix));
                listed.extend(page);
                from = next;
                match changes.next() {
                    Some((n, true)) => _ = entries.find_or_add(prefix(n)),
                    Some((n, false)) => entries.find(&prefix(n)).into_iter().for_each(|slot| entries.remove(slot)),
                    None => {}
                }
            }
            for n in &stays {
                prop_assert_eq!(listed.iter().filter(|p| **p == prefix(*n)).count(), 1);
            }
        }
    }
}
