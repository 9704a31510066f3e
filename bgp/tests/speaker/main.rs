//! Tests of speakers connected by byte queues on a virtual clock.

#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, missing_docs)]
#![allow(dead_code)]
#![allow(clippy::disallowed_methods, reason = "the virtual clock starts at the time of the machine")]

#[path = "../wire/message.rs"]
mod message;
#[path = "../support/mod.rs"]
mod support;

mod add_path;
mod bfd;
mod clusters;
mod edits;
mod errors;
mod graceful;
mod graceful_shutdown;
mod hostile;
mod laws;
mod limits;
mod local_pref;
mod long_lived;
mod multipath;
mod net;
mod next_hops;
mod ranges;
mod raw;
mod refresh;
mod restart;
mod rfc7606;
mod roles;
mod routes;
mod scan;
mod sessions;
mod silence;
