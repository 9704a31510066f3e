//! How many entries of the table are in which state, counted as they change: a scrape of metrics walks no routes.
//!
//! Whether a route over a nexthop object is right depends on the object, too, which may change under a hundred thousand
//! routes at once. Those are counted by object and target, and judged when a query asks: there are few of them.

use rustc_hash::FxHashMap;

use super::nexthop_objects::NexthopObjects;
use super::request::TargetId;
use super::route_state::{Actual, Desired};

/// What an entry counts as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RouteClass {
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
    InSync,
    /// Something else is there.
    Different,
    /// Over this object where this target is wanted.
    ViaTarget(u32, TargetId),
}

impl RouteClass {
    /// `objects`: routes use nexthop objects.
    pub(crate) fn of(want: Desired, known: Actual, stale: bool, objects: bool) -> Self {
        let there = known.is_there();
        match (want, known) {
            (Desired::Nothing(reason), _) if !there => {
                if reason.is_some() {
                    Self::Withheld
                } else {
                    Self::Nothing
                }
            }
            (Desired::Nothing(_), _) if stale => Self::Stale,
            (Desired::Nothing(_), _) => Self::Extra,
            _ if !there => Self::Missing,
            (Desired::Blackhole, Actual::Blackhole) => Self::InSync,
            (Desired::Via(target, _), Actual::Nexthop(id)) if objects => Self::ViaTarget(id, target),
            (Desired::Via(target, _), Actual::Plain(known)) if !objects && target == known => Self::InSync,
            _ => Self::Different,
        }
    }
}

/// Entries by what they count as.
#[derive(Debug, Default)]
pub(crate) struct RouteCounts {
    withheld: usize,
    stale: usize,
    extra: usize,
    missing: usize,
    in_sync: usize,
    different: usize,
    via_target: FxHashMap<(u32, TargetId), usize>,
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
    pub(crate) in_sync: usize,
}

impl Sums {
    /// All that are not as wanted.
    pub(crate) fn out_of_sync(&self) -> usize {
        self.extra + self.missing + self.different
    }
}

impl RouteCounts {
    /// An entry counts as something else.
    #[inline]
    pub(crate) fn moved(&mut self, from: RouteClass, to: RouteClass) {
        if from != to {
            self.count(from, false);
            self.count(to, true);
        }
    }

    /// An entry goes.
    pub(crate) fn gone(&mut self, class: RouteClass) {
        self.count(class, false);
    }

    fn count(&mut self, class: RouteClass, more: bool) {
        let place = match class {
            RouteClass::Nothing => return,
            RouteClass::Withheld => &mut self.withheld,
            RouteClass::Stale => &mut self.stale,
            RouteClass::Extra => &mut self.extra,
            RouteClass::Missing => &mut self.missing,
            RouteClass::InSync => &mut self.in_sync,
            RouteClass::Different => &mut self.different,
            RouteClass::ViaTarget(id, target) => {
                let count = self.via_target.entry((id, target)).or_insert(0);
                *count = if more { *count + 1 } else { count.saturating_sub(1) };
                if *count == 0 {
                    self.via_target.remove(&(id, target));
                }
                return;
            }
        };
        *place = if more { *place + 1 } else { place.saturating_sub(1) };
    }

    /// What it comes to with these nexthop objects.
    pub(crate) fn sums(&self, objects: &NexthopObjects) -> Sums {
        let mut sums = Sums {
            withheld: self.withheld,
            stale: self.stale,
            extra: self.extra,
            missing: self.missing,
            different: self.different,
            in_sync: self.in_sync,
        };
        for ((id, target), count) in &self.via_target {
            let place = if objects.expresses(*id, *target) { &mut sums.in_sync } else { &mut sums.different };
            *place += count;
        }
        sums
    }
}
