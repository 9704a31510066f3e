//! Tortie: one daemon per host for BGP, IPAM, kernel routes and network policy.
//!
//! docs/concepts/architecture.md draws the folders and the path that data takes through them. The `mod.rs` of each
//! folder says what the folder does and what it does not do.

pub mod agent;
pub mod api;
pub mod cli;
pub mod foreign;
pub mod host_checks;
pub mod plugins;
pub mod speaker;
