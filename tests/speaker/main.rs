//! The speaker thread against itself, against a crowd of peers, and against BIRD 2, FRR, GoBGP, OpenBGPD and ExaBGP, each
//! test in a network namespace of its own.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

/// The load generator of the benchmarks.
#[path = "../../examples/bgp_load"]
#[allow(dead_code, reason = "the benchmarks use the rest")]
mod bgp_load {
    mod fib;
    mod load;
    pub(crate) mod measure;
    mod mix;
    mod mrt;
    pub(crate) mod run;
    pub(crate) mod scenario;
    mod seen;
    mod session;
}

mod add_path;
mod bfd;
mod bfd_load;
mod bird;
mod bird_tests;
mod communities;
mod configs;
mod crowd;
mod daemon;
mod drain;
mod exchange;
mod features;
mod filters;
mod graceful;
mod limits;
mod multipath;
mod net;
mod node;
mod others;
mod pair;
mod ranges;
mod rig;
mod roles;
mod send_hold;
mod transport;
mod unnumbered;
