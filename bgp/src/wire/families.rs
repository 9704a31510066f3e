//! A set of address families.

use crate::types::Family;

/// A set of families.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Families(u8);

impl Families {
    /// No family.
    pub const NONE: Self = Self(0);
    /// Every family of this speaker.
    pub const ALL: Self = Self(0b11);

    /// The set with this family added.
    #[must_use]
    pub fn with(self, family: Family) -> Self {
        Self(self.0 | 1 << family.index())
    }

    /// True if this family is in the set.
    #[must_use]
    pub fn contains(self, family: Family) -> bool {
        self.0 & (1 << family.index()) != 0
    }

    /// The intersection of both sets.
    #[must_use]
    pub fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// No family in it.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The families in AFI order.
    pub fn iter(self) -> impl Iterator<Item = Family> + Clone {
        Family::ALL.into_iter().filter(move |f| self.contains(*f))
    }
}

impl FromIterator<Family> for Families {
    fn from_iter<I: IntoIterator<Item = Family>>(families: I) -> Self {
        families.into_iter().fold(Self::NONE, Self::with)
    }
}
