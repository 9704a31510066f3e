//! Tests of the wire format: published attack shapes, RFC 7606 section by section, properties, and recorded
//! feeds.

#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a panic is how a test fails"
)]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "kept inputs and recorded files are read, and the virtual clock starts at the time of the machine"
)]

#[allow(unreachable_pub, reason = "a library of its own for the fuzz targets")]
#[path = "../../fuzz/src/lib.rs"]
mod laws;

#[path = "../support/mod.rs"]
mod support;

mod cve;
mod message;
mod mutate;
mod open;
mod rfc7606;
mod ris;
mod roundtrip;
