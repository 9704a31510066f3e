//! Tests of BFD: packets octet by octet, two ends on a virtual clock, and properties under arbitrary loss.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]
#![allow(clippy::disallowed_methods, reason = "the virtual clock starts at the time of the machine")]

mod laws;
mod net;
mod packet;
mod sessions;
