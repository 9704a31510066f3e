//! How many entries of the table are in which state, counted as they change: a scrape of metrics walks no routes.
//!
//! Whether a route over a nexthop object is right depends on the object, too, which may change under a hundred thousand
//! routes at once. Those are counted by object and target, and judged when somebody asks: there are few of them.

use rustc_hash::FxHashMap;

use super::nexthop_objects::Objects;
use super::request::TargetId;
use super::route_state::{Known, Want};

/// What an entry counts as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// Nothing is wanted and nothing is there.
    Nothing,
    /// Learned, with a reason for no route.
    Withheld,
    /// Found at start and not spoken of since.
    Stale,
    /// In the kernel and not wanted.
    Extra,
    /// Wanted and not in the kernel.
    Missing,
    /// As wanted, whatever becomes of nexthop objects.
    Right,
    /// Something else is there.
    Different,
    /// Over this object where this target is wanted.
    Over(u32, TargetId),
}

impl Class {
    /// `objects`: routes use nexthop objects.
    pub(crate) fn of(want: Want, known: Known, stale: bool, objects: bool) -> Self {
        let there = known.is_there();
        match (want, known) {
            (Want::Nothing(reason), _) if !there => {
                if reason.is_some() {
                    Self::Withheld
                } else {
                    Self::Nothing
                }
            }
            (Want::Nothing(_), _) if stale => Self::Stale,
            (Want::Nothing(_), _) => Self::Extra,
            _ if !there => Self::Missing,
            (Want::Blackhole, Known::Blackhole) => Self::Right,
            (Want::Via(target, _), Known::Nexthop(id)) if objects => Self::Over(id, target),
            (Want::Via(target, _), Known::Plain(known)) if !objects && target == known => Self::Right,
            _ => Self::Different,
        }
    }
}

/// Entries by what they count as.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    withheld: usize,
    stale: usize,
    extra: usize,
    missing: usize,
    right: usize,
    different: usize,
    over: FxHashMap<(u32, TargetId), usize>,
}

/// A tally as it is now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) withheld: usize,
    pub(crate) stale: usize,
    /// In the kernel and not wanted.
    pub(crate) extra: usize,
    /// Wanted and not in the kernel.
    pub(crate) missing: usize,
    /// Something else is there.
    pub(crate) different: usize,
    /// As wanted.
    pub(crate) right: usize,
}

impl Sums {
    /// All that are not as wanted.
    pub(crate) fn wrong(&self) -> usize {
        self.extra + self.missing + self.different
    }
}

impl Tally {
    /// An entry counts as something else.
    #[inline]
    pub(crate) fn moved(&mut self, from: Class, to: Class) {
        if from != to {
            self.count(from, false);
            self.count(to, true);
        }
    }

    /// An entry goes.
    pub(crate) fn gone(&mut self, class: Class) {
        self.count(class, false);
    }

    fn count(&mut self, class: Class, more: bool) {
        let place = match class {
            Class::Nothing => return,
            Class::Withheld => &mut self.withheld,
            Class::Stale => &mut self.stale,
            Class::Extra => &mut self.extra,
            Class::Missing => &mut self.missing,
            Class::Right => &mut self.right,
            Class::Different => &mut self.different,
            Class::Over(id, target) => {
                let count = self.over.entry((id, target)).or_insert(0);
                *count = if more { *count + 1 } else { count.saturating_sub(1) };
                if *count == 0 {
                    self.over.remove(&(id, target));
                }
                return;
            }
        };
        *place = if more { *place + 1 } else { place.saturating_sub(1) };
    }

    /// What it comes to with these nexthop objects.
    pub(crate) fn sums(&self, objects: &Objects) -> Sums {
        let mut sums = Sums {
            withheld: self.withheld,
            stale: self.stale,
            extra: self.extra,
            missing: self.missing,
            different: self.different,
            right: self.right,
        };
        for ((id, target), count) in &self.over {
            let place = if objects.expresses(*id, *target) { &mut sums.right } else { &mut sums.different };
            *place += count;
        }
        sums
    }
}
