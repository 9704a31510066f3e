//! Tests of the stores: a conformance suite for SQLite and etcd, the agent's feed, and several processes on
//! one file.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "a test ends where something is not as it must be"
)]

#[allow(dead_code, reason = "some cases are for a store that is built in or for one suite alone")]
mod cases;
#[path = "../common/mod.rs"]
mod common;
mod conformance;
mod feed;
mod last_good;
mod openstack;
mod processes;
