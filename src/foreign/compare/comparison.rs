//! Result of a comparison: counts per kind of object, and every item that is not equal.

use std::collections::BTreeMap;

/// Kind of object that an item belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Plane {
    /// A route to a block, or a learned route.
    Route,
    /// An interface of a workload, or the tunnel.
    Interface,
    /// A BGP session.
    Session,
    /// A chain of packet filter rules.
    Rule,
    /// An address set.
    Set,
}

impl Plane {
    /// All kinds, in the order of output.
    pub const ALL: [Self; 5] = [Self::Route, Self::Interface, Self::Session, Self::Rule, Self::Set];

    /// Returns the value of the `plane` label of metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Route => "route",
            Self::Interface => "interface",
            Self::Session => "session",
            Self::Rule => "rule",
            Self::Set => "set",
        }
    }
}

/// Result of comparing one item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CompareResult {
    /// The host's state equals the intent.
    Equal,
    /// The host's state differs from the intent.
    Different,
    /// The intent has the item, the host does not.
    Missing,
    /// The host has the item, the intent does not.
    Extra,
    /// The item cannot be compared on this host.
    NotCompared,
}

impl CompareResult {
    /// All results.
    pub const ALL: [Self; 5] = [Self::Equal, Self::Different, Self::Missing, Self::Extra, Self::NotCompared];

    /// Returns the mark of a line in `tortie diff`.
    #[must_use]
    pub fn mark(self) -> char {
        match self {
            Self::Equal => '=',
            Self::Different => '~',
            Self::Missing => '-',
            Self::Extra => '+',
            Self::NotCompared => '?',
        }
    }

    /// Returns the value of the `kind` label of metrics, which is also the word in JSON.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Equal => "equal",
            Self::Different => "different",
            Self::Missing => "missing",
            Self::Extra => "extra",
            Self::NotCompared => "not_judged",
        }
    }
}

/// An item that is not equal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ComparedItem {
    /// Kind of object.
    pub plane: Plane,
    /// Subject: a prefix, an interface, a session, a chain or a set.
    pub subject: String,
    /// Result of the comparison.
    pub verdict: CompareResult,
    /// Description: the intent and the actual state, or the reason why the item cannot be compared.
    pub text: String,
}

/// Number of items per result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PlaneCounts {
    /// Number of equal items.
    pub equal: usize,
    /// Number of items that differ.
    pub different: usize,
    /// Number of items that the host lacks.
    pub missing: usize,
    /// Number of items that the intent lacks.
    pub extra: usize,
    /// Number of items that cannot be compared.
    pub not_compared: usize,
}

impl PlaneCounts {
    /// Returns the number of items that are different, missing or extra.
    #[must_use]
    pub fn differing(&self) -> usize {
        self.different + self.missing + self.extra
    }

    /// Returns the number of items with this result.
    #[must_use]
    pub fn of(&self, verdict: CompareResult) -> usize {
        match verdict {
            CompareResult::Equal => self.equal,
            CompareResult::Different => self.different,
            CompareResult::Missing => self.missing,
            CompareResult::Extra => self.extra,
            CompareResult::NotCompared => self.not_compared,
        }
    }
}

/// A comparison of the whole host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Counts per kind of object.
    pub counts_by_plane: BTreeMap<Plane, PlaneCounts>,
    /// Every item that is not equal, sorted by kind and subject.
    pub items: Vec<ComparedItem>,
}

impl Comparison {
    /// Returns the counts of one kind of object.
    #[must_use]
    pub fn counts(&self, plane: Plane) -> PlaneCounts {
        self.counts_by_plane.get(&plane).copied().unwrap_or_default()
    }

    /// Returns the sum of all counts.
    #[must_use]
    pub fn total(&self) -> PlaneCounts {
        let mut sum = PlaneCounts::default();
        for counts in self.counts_by_plane.values() {
            sum.equal += counts.equal;
            sum.different += counts.different;
            sum.missing += counts.missing;
            sum.extra += counts.extra;
            sum.not_compared += counts.not_compared;
        }
        sum
    }

    /// Adds an item and counts it.
    pub(super) fn put(
        &mut self,
        plane: Plane,
        verdict: CompareResult,
        subject: impl Into<String>,
        text: impl Into<String>,
    ) {
        let counts = self.counts_by_plane.entry(plane).or_default();
        let count = match verdict {
            CompareResult::Equal => &mut counts.equal,
            CompareResult::Different => &mut counts.different,
            CompareResult::Missing => &mut counts.missing,
            CompareResult::Extra => &mut counts.extra,
            CompareResult::NotCompared => &mut counts.not_compared,
        };
        *count += 1;
        if verdict != CompareResult::Equal {
            self.items.push(ComparedItem { plane, subject: subject.into(), verdict, text: text.into() });
        }
    }

    pub(super) fn equal(&mut self, plane: Plane) {
        self.counts_by_plane.entry(plane).or_default().equal += 1;
    }
}
