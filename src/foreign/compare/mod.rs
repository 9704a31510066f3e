//! Compares Tortie's intent for a host with the state that BIRD and Felix left, item by item. It does no I/O.
//!
//! An item that cannot be compared is reported as such with the reason; it never counts as equal. An object
//! that neither side has is not an item.

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

/// Compares a host's intent with its state.
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
