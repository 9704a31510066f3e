//! Tests of container networking: the CNI, Docker and Kurma plugins by their specifications, and real engines
//! that use them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    missing_docs,
    reason = "a test says with a panic what is wrong"
)]

mod cni;
#[path = "../common/mod.rs"]
mod common;
mod docker;
mod engines;
mod kurma;
