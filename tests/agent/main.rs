//! Whole agents on hosts: their life, a store that goes away, others' daemons and routers beside them, tunnels, policy.

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
