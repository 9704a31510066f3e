//! Tortie: one process per host for BGP, IPAM, kernel routes and policy.
//!
//! The rooms and the way data takes through them are drawn in docs/architecture.md; each folder's `mod.rs` says what it does and
//! what it does not.

pub mod agent;
pub mod api;
pub mod cli;
pub mod foreign;
pub mod host_checks;
pub mod plugins;
pub mod speaker;
