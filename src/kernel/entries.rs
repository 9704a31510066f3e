//! The entries of the table by prefix, each in a slot of its own.
//!
//! Whoever works on many prefixes finds each once and then goes by slot: slots that were filled together lie together,
//! while each look-up by prefix is another place in memory, and half a batch's work was waiting for those.

use rustc_hash::FxHashMap;
use slab::Slab;
use tortie_config::Cidr;

use super::table::Entry;

/// The number of an entry's slot, for as long as the entry is there.
pub(super) type Slot = u32;

/// Entries in slots, found by prefix.
#[derive(Debug, Default)]
pub(super) struct Entries {
    slots: Slab<(Cidr, Entry)>,
    by_prefix: FxHashMap<Cidr, Slot>,
}

fn place(slot: Slot) -> usize {
    usize::try_from(slot).unwrap_or(usize::MAX)
}

impl Entries {
    /// The slot of a prefix.
    pub(super) fn find(&self, prefix: &Cidr) -> Option<Slot> {
        self.by_prefix.get(prefix).copied()
    }

    /// The slot of a prefix, which gets a blank entry if it has none.
    pub(super) fn find_or_add(&mut self, prefix: Cidr) -> Slot {
        *self.by_prefix.entry(prefix).or_insert_with(|| {
            let slot = self.slots.insert((prefix, Entry::default()));
            Slot::try_from(slot).unwrap_or(Slot::MAX)
        })
    }

    /// The prefix and the entry in a slot.
    pub(super) fn at(&self, slot: Slot) -> Option<&(Cidr, Entry)> {
        self.slots.get(place(slot))
    }

    /// The entry in a slot.
    pub(super) fn at_mut(&mut self, slot: Slot) -> Option<&mut Entry> {
        self.slots.get_mut(place(slot)).map(|(_, e)| e)
    }

    /// The entry of a prefix.
    pub(super) fn get(&self, prefix: &Cidr) -> Option<&Entry> {
        self.at(self.find(prefix)?).map(|(_, e)| e)
    }

    /// Forgets what is in a slot; the next new entry may get it.
    pub(super) fn remove(&mut self, slot: Slot) {
        if let Some((prefix, _)) = self.slots.try_remove(place(slot)) {
            self.by_prefix.remove(&prefix);
        }
        if self.slots.is_empty() {
            *self = Self::default();
        }
    }

    /// All entries, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Slot, &Cidr, &Entry)> {
        self.slots
            .iter()
            .map(|(slot, (prefix, entry))| (Slot::try_from(slot).unwrap_or(Slot::MAX), prefix, entry))
    }

    /// All entries, in no order.
    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.slots.iter_mut().map(|(_, (_, entry))| entry)
    }
}
