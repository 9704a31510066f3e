//! Tests of MRT and BMP: records encoded by hand from the RFCs, properties, and recorded files.

#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a panic is how a test fails"
)]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "recorded files are read by gzip and timed"
)]

mod bmp;
mod mrt;
