//! Tests of packet rules with the real kernel, and tables for tests.

mod firewall;
pub(in crate::nft) mod fixtures;
mod forward;
pub(in crate::nft) mod kernel;
mod passing;
