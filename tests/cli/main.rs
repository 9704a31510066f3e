//! Tests of the command line: an error is reported once, with its place and the next step, and changes
//! nothing.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "a test ends where something is not as it must be"
)]

mod agent;
mod arguments;
mod calico3;
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
