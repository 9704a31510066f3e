//! Pure routing: model -> peers, originated prefixes, export gates, wanted kernel routes and tunnels.
//!
//! What it does not: no I/O, no clock, no BGP state, no netlink. Every answer carries its reason, and explanations call
//! the same functions with a recorder.
//!
//! ```text
//!  RoutingView --export_gate, import--> speaker        (gates.rs)
//!  RoutingView --kernel_route---------> kernel thread  (forward.rs)
//! ```

mod cover;
mod explain;
mod forward;
mod gates;
mod types;

pub use explain::{Step, StepOutcome};
pub use forward::{explain_kernel_route, kernel_route};
pub use gates::{
    EXPORT_GATES, INSIDE_POOL, OWN_ENDPOINT, explain_export, explain_import, export_gate, import,
};
pub use types::*;
