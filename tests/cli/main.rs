//! The command line as people and scripts use it: what is wrong is said once, with place and next step, and nothing is
//! changed by it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "a test ends where something is not as it must be"
)]

mod agent;
mod arguments;
#[path = "../common/mod.rs"]
mod common;
mod completion;
mod demo;
mod diags;
mod documents;
mod help;
mod lab;
mod packaging;
mod page;
mod policy;
mod ranges;
mod reasons;
mod schema;
mod store;
mod terminal;
