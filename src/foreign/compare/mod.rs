//! Wanted against found, one item after the other. Pure.
//!
//! An item that cannot be known is `not judged`, with the reason; it never counts as equal. What neither side has is no
//! item.

mod comparison;
mod routes;
mod rule_bodies;
mod rules;
mod sessions;
mod sets;
#[cfg(test)]
mod tests;

use crate::foreign::intent::HostIntent;
use crate::foreign::types::ForeignState;

pub use comparison::{CompareResult, ComparedItem, Comparison, Plane, PlaneCounts};

/// Compares.
#[must_use]
pub fn compare(wanted: &HostIntent, found: &ForeignState) -> Comparison {
    let mut comparison = Comparison::default();
    routes::compare(wanted, found, &mut comparison);
    sessions::compare(wanted, found, &mut comparison);
    if wanted.rules {
        rules::compare(wanted, found, &mut comparison);
        sets::compare(wanted, found, &mut comparison);
    }
    comparison.items.sort_unstable();
    comparison
}
