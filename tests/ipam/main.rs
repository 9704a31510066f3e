//! IPAM on real stores: what Calico's users rely on, what its writers leave behind, and many at once.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "a test ends where something is not as it must be"
)]

#[path = "ipam/check.rs"]
mod check;
#[path = "store/etcd.rs"]
#[allow(dead_code, reason = "shared with the tests of the store")]
mod cluster;
#[path = "ipam/faults.rs"]
mod faults;
#[path = "ipam/half_done.rs"]
mod half_done;
#[path = "ipam/lost.rs"]
mod lost;
#[path = "ipam/model.rs"]
mod model;
#[path = "ipam/processes.rs"]
mod processes;
#[path = "ipam/rig.rs"]
mod rig;
#[path = "ipam/scenes.rs"]
mod scenes;
