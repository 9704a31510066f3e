//! The result of a comparison: counts by kind of object, and every item that is not equal.

use std::collections::BTreeMap;

/// What kind of object an item is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Plane {
    /// A route to a block, or one that was learned.
    Route,
    /// What a workload's interface or the tunnel needs.
    Interface,
    /// A BGP session.
    Session,
    /// A chain of packet rules.
    Rule,
    /// An address set.
    Set,
}

impl Plane {
    /// All of them, in the order of answers.
    pub const ALL: [Self; 5] = [Self::Route, Self::Interface, Self::Session, Self::Rule, Self::Set];

    /// The `plane` label of metrics.
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

/// How an item compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CompareResult {
    /// As wanted.
    Equal,
    /// There, and otherwise than wanted.
    Different,
    /// Wanted, and not there.
    Missing,
    /// There, and not wanted.
    Extra,
    /// It cannot be known here.
    NotCompared,
}

impl CompareResult {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Equal, Self::Different, Self::Missing, Self::Extra, Self::NotCompared];

    /// The mark of a line in `tortie diff`.
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

    /// The `kind` label of metrics, and the word in JSON.
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

/// One item that is not equal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ComparedItem {
    /// What it is.
    pub plane: Plane,
    /// What it is of: a prefix, an interface, a session, a chain, a set.
    pub subject: String,
    /// How it compares.
    pub verdict: CompareResult,
    /// In words: what is wanted and what was found, or why it cannot be judged.
    pub text: String,
}

/// How many items compare how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PlaneCounts {
    /// As wanted.
    pub equal: usize,
    /// There, and otherwise.
    pub different: usize,
    /// Not there.
    pub missing: usize,
    /// Too much.
    pub extra: usize,
    /// Cannot be known.
    pub not_compared: usize,
}

impl PlaneCounts {
    /// How many differ: different, missing or extra.
    #[must_use]
    pub fn differing(&self) -> usize {
        self.different + self.missing + self.extra
    }

    /// How many compare so.
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

/// The whole comparison.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Counts by kind of object.
    pub counts_by_plane: BTreeMap<Plane, PlaneCounts>,
    /// Every item that is not equal, by kind and subject.
    pub items: Vec<ComparedItem>,
}

impl Comparison {
    /// The counts of one kind of object.
    #[must_use]
    pub fn counts(&self, plane: Plane) -> PlaneCounts {
        self.counts_by_plane.get(&plane).copied().unwrap_or_default()
    }

    /// The counts of everything.
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

    /// Adds an item.
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
