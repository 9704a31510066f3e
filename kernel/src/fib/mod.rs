//! The forwarding table: desired and actual routes and nexthop objects, and the requests that make them
//! equal.
//!
//! Pure: no I/O and no clock. `thread` sends the requests and passes on the answers.

pub(super) mod acks;
pub(super) mod connected;
pub(super) mod counts;
pub(super) mod drift_hold;
pub(super) mod entries;
pub(super) mod foreign_changes;
mod hop_sets;
pub(super) mod ipip_tunnel;
pub(super) mod network;
pub(super) mod next_hops;
pub(super) mod nexthop_objects;
pub(super) mod plan;
pub(super) mod request;
pub(super) mod route_state;
pub(super) mod table;
