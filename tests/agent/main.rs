//! Tests with whole agents on hosts: life cycle, an unreachable store, other daemons and routers, tunnels,
//! policy.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test ends where something is not as it must be"
)]

#[path = "../common/mod.rs"]
mod common;
mod interop;
mod ipip;
mod life;
mod policy;
mod route_flood;
mod store_away;
