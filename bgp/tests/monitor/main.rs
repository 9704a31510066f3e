//! MRT and BMP from outside: records written by hand from the documents, laws, and recorded files.

#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a panic is how a test fails"
)]

mod bmp;
mod mrt;
