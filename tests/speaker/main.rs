//! The speaker thread against itself, against BIRD 2 and against a crowd of peers, each test in a network namespace of
//! its own.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod add_path;
mod bfd;
mod bfd_load;
mod bird;
mod bird_tests;
mod crowd;
mod exchange;
mod features;
mod filters;
mod frr;
mod graceful;
mod limits;
mod load;
mod net;
mod node;
mod openbgpd;
mod others;
mod pair;
mod ranges;
mod rig;
mod transport;
