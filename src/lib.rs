//! Tortie: one process per host for BGP, IPAM, kernel routes and policy.
//!
//! The rooms and the way data takes through them are drawn in docs/architecture.md; each folder's `mod.rs` says what it does and
//! what it does not.

pub mod agent;
pub mod beside;
pub mod cli;
pub mod ipam;
pub mod kernel;
pub mod measure;
pub mod model;
#[cfg(test)]
mod netns;
pub mod plugins;
pub mod policy;
pub mod routing;
pub mod serve;
pub mod speaker;
pub mod store;
