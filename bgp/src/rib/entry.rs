//! Entries of a table: prefixes and their paths.

use tortie_net::{Cidr, HashKey};

use super::attr_table::NO_ATTR;
use super::source::LOCAL;
use crate::wire::Address;

/// An address as a key of the table.
pub(crate) trait Key: Address + Default + std::hash::Hash {
    /// Returns the keyed hash of a prefix: peers choose the prefixes.
    fn hash(self, key: &HashKey, len: u8) -> u64;
}

impl Key for u32 {
    #[inline]
    fn hash(self, key: &HashKey, len: u8) -> u64 {
        key.short_prefix(self, len)
    }
}

impl Key for u128 {
    #[inline]
    fn hash(self, key: &HashKey, len: u8) -> u64 {
        key.long_prefix(self, len)
    }
}

pub(super) const NO_PATH: u32 = u32::MAX;

/// A path of a prefix. Tables store it as [`Packed`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Path {
    /// Number of the attribute set; [`NO_ATTR`] in an empty slot.
    pub(crate) attr: u32,
    /// Number of the source (peer), or [`LOCAL`].
    pub(crate) source: u32,
    /// Path identifier within the source (RFC 7911); 0 if the session has one path per prefix.
    pub(crate) path_id: u32,
    pub(super) next: u32,
    /// Generation of the source that the path was received in.
    pub(crate) generation: u8,
    /// Number of the reason for rejection by import, at most [`REASON_MAX`];
    /// [`ACCEPTED`](super::import::ACCEPTED) if accepted.
    pub(crate) reason: u8,
    /// True for the best path and for paths that share load with it (ECMP).
    pub(crate) multipath: bool,
    /// True if the path reached the MED step in the last decision: its rank equals that of the best path.
    pub(super) tied: bool,
}

impl Default for Path {
    fn default() -> Self {
        Self {
            attr: NO_ATTR,
            source: LOCAL,
            path_id: 0,
            next: NO_PATH,
            generation: 0,
            reason: 0,
            multipath: false,
            tied: false,
        }
    }
}

impl Path {
    /// Returns true if both are the same path of an entry, whatever its attributes. Path identifiers belong
    /// to one session: a path kept from an earlier session may have the identifier of a new one.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        (self.source, self.path_id, self.generation) == (other.source, other.path_id, other.generation)
    }
}

/// Highest number of a rejection reason that a path can store.
pub(crate) const REASON_MAX: u8 = 63;

/// Bits of an attribute set's number (as [`NO_ATTR`]); the reason is stored above them.
const ATTR_BITS: u32 = 26;
/// Bits of a source's number (as [`LOCAL`]); generation and two flags are stored above them.
const SOURCE_BITS: u32 = 22;
const MULTIPATH: u32 = 1 << 30;
const TIED: u32 = 1 << 31;

/// A path in 16 octets: there may be millions, and reading them is the main cost of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Packed {
    attr: u32,
    source: u32,
    path_id: u32,
    next: u32,
}

impl Packed {
    #[inline]
    pub(super) fn path(self) -> Path {
        Path {
            attr: self.attr & NO_ATTR,
            source: self.source & LOCAL,
            path_id: self.path_id,
            next: self.next,
            generation: self.generation(),
            // The upper six bits.
            reason: (self.attr >> ATTR_BITS) as u8,
            multipath: self.source & MULTIPATH != 0,
            tied: self.source & TIED != 0,
        }
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "cut to eight bits on purpose")]
    fn generation(self) -> u8 {
        (self.source >> SOURCE_BITS) as u8
    }

    #[inline]
    pub(super) fn next(self) -> u32 {
        self.next
    }

    #[inline]
    pub(super) fn set_next(&mut self, next: u32) {
        self.next = next;
    }

    /// Returns true if the slot holds no path.
    #[inline]
    pub(super) fn is_empty(self) -> bool {
        self.attr & NO_ATTR == NO_ATTR
    }
}

impl From<Path> for Packed {
    #[inline]
    fn from(path: Path) -> Self {
        let marks = if path.multipath { MULTIPATH } else { 0 } | if path.tied { TIED } else { 0 };
        Self {
            attr: path.attr & NO_ATTR | u32::from(path.reason) << ATTR_BITS,
            source: path.source & LOCAL | u32::from(path.generation) << SOURCE_BITS | marks,
            path_id: path.path_id,
            next: path.next,
        }
    }
}

impl Default for Packed {
    fn default() -> Self {
        Path::default().into()
    }
}

/// Identity of a best path towards peers: attribute set and source.
pub(crate) type BestKey = Option<(u32, u32)>;

pub(super) mod flag {
    /// The slot is in use.
    pub(in crate::rib) const LIVE: u8 = 1;
    /// The first path is the best path.
    pub(in crate::rib) const BEST: u8 = 2;
    /// The entry is in the queue of changes.
    pub(in crate::rib) const DIRTY: u8 = 4;
    /// The entry is in the queue of entries without paths.
    pub(in crate::rib) const VACANT: u8 = 8;
    /// The entry has been logged since it was created.
    pub(in crate::rib) const LOGGED: u8 = 16;
    /// Paths other than the best one have its rank.
    pub(in crate::rib) const TIES: u8 = 32;
    /// The loss of the best path is not reported to the embedder yet: a path waits for its next hop.
    pub(in crate::rib) const HELD: u8 = 64;
}

/// A prefix with its first path; the others are a linked list.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Entry<A> {
    pub(super) address: A,
    /// Log position of the last change, truncated to 32 bits.
    pub(super) seq: u32,
    pub(super) first: Packed,
    pub(super) len: u8,
    pub(super) flags: u8,
    /// Bloom filter of the sources with a path here: see [`source_bit`].
    pub(super) sources: u16,
}

/// Returns the bit of this source in [`Entry::sources`]. If it is clear, the source has no path in the entry.
pub(super) fn source_bit(source: u32) -> u16 {
    1 << (source % u16::BITS)
}

impl<A: Key> Entry<A> {
    pub(crate) fn is_live(&self) -> bool {
        self.flags & flag::LIVE != 0
    }

    pub(crate) fn prefix(&self) -> (A, u8) {
        (self.address, self.len)
    }

    pub(crate) fn cidr(&self) -> Cidr {
        self.address.cidr(self.len)
    }

    /// Returns the first path; an empty one if there is none.
    #[inline]
    pub(super) fn first(&self) -> Path {
        self.first.path()
    }

    /// Returns the best path, if any is usable.
    #[inline]
    pub(crate) fn best(&self) -> Option<Path> {
        (self.flags & flag::BEST != 0).then(|| self.first())
    }

    /// Returns true if other paths have the rank of the best one and may share load with it.
    #[inline]
    pub(crate) fn has_ties(&self) -> bool {
        self.flags & flag::TIES != 0
    }

    /// Records if the first path is the best one. `ties`: other paths have its rank.
    pub(super) fn set_best(&mut self, best: bool, ties: bool) {
        self.flags &= !(flag::BEST | flag::TIES);
        self.flags |= if best { flag::BEST } else { 0 } | if ties { flag::TIES } else { 0 };
    }

    /// Returns true if this source may have a path here.
    #[inline]
    pub(super) fn may_have(&self, source: u32) -> bool {
        self.sources & source_bit(source) != 0
    }

    /// Returns true if the loss of the best path is not reported yet.
    #[inline]
    pub(crate) fn is_held(&self) -> bool {
        self.flags & flag::HELD != 0
    }

    pub(super) fn best_key(&self) -> BestKey {
        self.best().map(|p| (p.attr, p.source))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_empty()
    }
}

/// A locally originated route, without its attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LocalRoute {
    pub(crate) kind: u32,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_packed_path_is_the_same_path(
            (attr, source, path_id, next) in (0..=NO_ATTR, 0..=LOCAL, any::<u32>(), any::<u32>()),
            (generation, reason, multipath, tied) in (any::<u8>(), 0..=REASON_MAX, any::<bool>(), any::<bool>()),
        ) {
            let path = Path { attr, source, path_id, next, generation, reason, multipath, tied };
            let packed = Packed::from(path);
            prop_assert_eq!(packed.path(), path);
            prop_assert_eq!((packed.next(), packed.is_empty()), (next, attr == NO_ATTR));
        }
    }

    #[test]
    fn an_entry_is_small() {
        assert_eq!((size_of::<Packed>(), size_of::<Entry<u32>>()), (16, 28), "there may be millions");
        assert!(Packed::default().is_empty());
    }
}
