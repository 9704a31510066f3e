//! Tests of the speaker thread with itself, with many peers, and with BIRD 2, FRR, GoBGP, OpenBGPD and
//! ExaBGP, each in its own network namespace.

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
    mod received;
    pub(crate) mod run;
    pub(crate) mod scenario;
    mod session;
}

mod bfd;
mod calico3;
mod crowd;
mod hostile;
mod monitor;
mod rig;
mod routes;
mod sessions;
