//! Set of address families, as negotiated for a session.

use crate::types::Family;

/// Set of address families.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Families(u8);

impl Families {
    /// The empty set.
    pub const NONE: Self = Self(0);
    /// All families that this speaker carries.
    pub const ALL: Self = Self(0b11);

    /// Returns the set with this family added.
    #[must_use]
    pub fn with(self, family: Family) -> Self {
        Self(self.0 | 1 << family.index())
    }

    /// Returns true if the family is in the set.
    #[must_use]
    pub fn contains(self, family: Family) -> bool {
        self.0 & (1 << family.index()) != 0
    }

    /// Returns the intersection of both sets.
    #[must_use]
    pub fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Returns true if the set is empty.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Iterates over the families in AFI order.
    pub fn iter(self) -> impl Iterator<Item = Family> + Clone {
        Family::ALL.into_iter().filter(move |f| self.contains(*f))
    }
}

impl FromIterator<Family> for Families {
    fn from_iter<I: IntoIterator<Item = Family>>(families: I) -> Self {
        families.into_iter().fold(Self::NONE, Self::with)
    }
}
