//! The CNI protocol: environment, versions, results and errors, and their JSON.
//!
//! The meaning of a network's configuration is in `config`, the commands are in `main_plugin` and
//! `ipam_plugin`.

pub(super) mod address;
pub(super) mod env;
pub(super) mod error;
pub(super) mod json;
pub(super) mod result;
pub(super) mod version;
