//! `tortie-cni` and `tortie-ipam` driven as a runtime drives them: environment, stdin, stdout, exit code, in namespaces, with a
//! real agent.
//!
//! ```text
//!   rig: a host (a namespace) with store and agent; containers (namespaces) ── life, wrong, chain, ipam
//! ```

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test ends where something is not as it must be"
)]

#[path = "../common/netns.rs"]
mod netns;

mod chain;
mod ipam;
mod life;
mod rig;
mod wrong;
