//! Counts of table entries by state, updated with each change, so that a scrape of metrics does not traverse
//! the routes.
//!
//! The state of a route over a nexthop object also depends on the object, which may change for a hundred
//! thousand routes at once. Such routes are counted by object and target, of which there are few, and
//! classified at each query.

use rustc_hash::FxHashMap;

use super::nexthop_objects::NexthopObjects;
use super::request::TargetId;
use super::route_state::{Actual, Desired};

/// State as which an entry is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RouteClass {
    /// No desired and no actual route.
    Nothing,
    /// Learned, with a reason for having no route.
    Withheld,
    /// Found at the start and not learned again since.
    Stale,
    /// In the kernel and not desired.
    Extra,
    /// Desired and not in the kernel.
    Missing,
    /// As desired, independent of nexthop objects.
    InSync,
    /// Another route is in the kernel.
    Different,
    /// The kernel has this nexthop object where this target is desired.
    ViaTarget(u32, TargetId),
}

impl RouteClass {
    /// Classifies an entry; `objects` is true if routes use nexthop objects.
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

/// Number of entries per state.
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

/// Number of entries per state, with the current nexthop objects.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) withheld: usize,
    pub(crate) stale: usize,
    /// In the kernel and not desired.
    pub(crate) extra: usize,
    /// Desired and not in the kernel.
    pub(crate) missing: usize,
    /// Another route is in the kernel.
    pub(crate) different: usize,
    /// As desired.
    pub(crate) in_sync: usize,
}

impl Sums {
    /// Returns the number of entries that are not as desired.
    pub(crate) fn out_of_sync(&self) -> usize {
        self.extra + self.missing + self.different
    }
}

impl RouteCounts {
    /// Counts an entry in another state.
    #[inline]
    pub(crate) fn moved(&mut self, from: RouteClass, to: RouteClass) {
        if from != to {
            self.count(from, false);
            self.count(to, true);
        }
    }

    /// Removes an entry from the counts.
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

    /// Returns the sums with these nexthop objects.
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
