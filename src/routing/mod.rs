//! Pure routing: model -> peers, originated prefixes, export gates, wanted kernel routes and tunnels.
//!
//! What it does not: no I/O, no clock, no BGP state, no netlink. Every answer carries its reason, and explanations call
//! the same functions.

mod types;

pub use types::*;
