//! Tests with whole agents on hosts: life cycle, an unreachable store, other daemons and routers, tunnels,
//! policy.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test ends where something is not as it must be"
)]

mod calico3;
#[path = "../common/mod.rs"]
mod common;
mod interop;
mod ipip;
mod life;
mod live_migration;
mod openstack;
mod policy;
mod route_flood;
mod store_away;
mod vxlan;
