//! The command line as people and scripts use it: what is wrong is said once, with place and next step, and nothing is
//! changed by it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test ends where something is not as it must be"
)]

mod agent;
mod arguments;
mod calico_unit;
mod completion;
mod diags;
mod documents;
#[path = "../common/felix.rs"]
mod felix;
mod help;
mod machine;
mod package;
#[path = "../page/mod.rs"]
mod page;
mod policy;
#[path = "../common/schema.rs"]
mod published;
mod ranges;
mod reasons;
mod rig;
mod schema;
mod service;
mod store;
mod systemd;
