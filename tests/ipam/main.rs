//! IPAM on real stores: the behaviour that Calico's users rely on, the leftovers of its writers, and
//! concurrency.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "a test ends where something is not as it must be"
)]

mod calico3;
mod check;
mod command;
#[path = "../common/mod.rs"]
mod common;
mod faults;
mod half_done;
mod holders;
mod lost;
mod model;
mod processes;
mod rehearsal;
mod rig;
mod scenes;
