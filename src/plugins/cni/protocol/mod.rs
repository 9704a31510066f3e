//! The protocol of CNI: its environment, versions, results and errors, and the JSON that they are written in.
//!
//! What it does not: know what a network's configuration means (`config`), or do anything (`main_plugin`, `ipam_plugin`).

pub(super) mod address;
pub(super) mod env;
pub(super) mod error;
pub(super) mod json;
pub(super) mod result;
pub(super) mod version;
