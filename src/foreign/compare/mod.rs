//! Wanted against found, one item after the other. Pure.
//!
//! An item that cannot be known is `not judged`, with the reason; it never counts as equal. What neither side has is no
//! item.

mod routes;
mod rule_bodies;
mod rules;
mod sessions;
mod sets;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use crate::foreign::intent::Wanted;
use crate::foreign::types::Found;

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
pub enum Verdict {
    /// As wanted.
    Equal,
    /// There, and otherwise than wanted.
    Different,
    /// Wanted, and not there.
    Missing,
    /// There, and not wanted.
    Extra,
    /// It cannot be known here.
    NotJudged,
}

impl Verdict {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Equal, Self::Different, Self::Missing, Self::Extra, Self::NotJudged];

    /// The mark of a line in `tortie diff`.
    #[must_use]
    pub fn mark(self) -> char {
        match self {
            Self::Equal => '=',
            Self::Different => '~',
            Self::Missing => '-',
            Self::Extra => '+',
            Self::NotJudged => '?',
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
            Self::NotJudged => "not_judged",
        }
    }
}

/// One item that is not equal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Item {
    /// What it is.
    pub plane: Plane,
    /// What it is of: a prefix, an interface, a session, a chain, a set.
    pub subject: String,
    /// How it compares.
    pub verdict: Verdict,
    /// In words: what is wanted and what was found, or why it cannot be judged.
    pub text: String,
}

/// How many items compare how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// As wanted.
    pub equal: usize,
    /// There, and otherwise.
    pub different: usize,
    /// Not there.
    pub missing: usize,
    /// Too much.
    pub extra: usize,
    /// Cannot be known.
    pub not_judged: usize,
}

impl Tally {
    /// How many differ: different, missing or extra.
    #[must_use]
    pub fn differing(&self) -> usize {
        self.different + self.missing + self.extra
    }

    /// How many compare so.
    #[must_use]
    pub fn of(&self, verdict: Verdict) -> usize {
        match verdict {
            Verdict::Equal => self.equal,
            Verdict::Different => self.different,
            Verdict::Missing => self.missing,
            Verdict::Extra => self.extra,
            Verdict::NotJudged => self.not_judged,
        }
    }
}

/// The whole comparison.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Judgement {
    /// Counts by kind of object.
    pub tallies: BTreeMap<Plane, Tally>,
    /// Every item that is not equal, by kind and subject.
    pub items: Vec<Item>,
}

impl Judgement {
    /// The counts of one kind of object.
    #[must_use]
    pub fn tally(&self, plane: Plane) -> Tally {
        self.tallies.get(&plane).copied().unwrap_or_default()
    }

    /// The counts of everything.
    #[must_use]
    pub fn total(&self) -> Tally {
        let mut sum = Tally::default();
        for tally in self.tallies.values() {
            sum.equal += tally.equal;
            sum.different += tally.different;
            sum.missing += tally.missing;
            sum.extra += tally.extra;
            sum.not_judged += tally.not_judged;
        }
        sum
    }

    /// Adds an item.
    fn put(&mut self, plane: Plane, verdict: Verdict, subject: impl Into<String>, text: impl Into<String>) {
        let tally = self.tallies.entry(plane).or_default();
        let count = match verdict {
            Verdict::Equal => &mut tally.equal,
            Verdict::Different => &mut tally.different,
            Verdict::Missing => &mut tally.missing,
            Verdict::Extra => &mut tally.extra,
            Verdict::NotJudged => &mut tally.not_judged,
        };
        *count += 1;
        if verdict != Verdict::Equal {
            self.items.push(Item { plane, subject: subject.into(), verdict, text: text.into() });
        }
    }

    fn equal(&mut self, plane: Plane) {
        self.tallies.entry(plane).or_default().equal += 1;
    }
}

/// Compares.
#[must_use]
pub fn judge(wanted: &Wanted, found: &Found) -> Judgement {
    let mut judgement = Judgement::default();
    routes::judge(wanted, found, &mut judgement);
    sessions::judge(wanted, found, &mut judgement);
    if wanted.rules {
        rules::judge(wanted, found, &mut judgement);
        sets::judge(wanted, found, &mut judgement);
    }
    judgement.items.sort_unstable();
    judgement
}
