//! A BGP-4 speaker as a library: it opens no socket, asks no clock, starts no thread and keeps no global.
//!
//! The embedder feeds [`Input`]s with the current time into [`Speaker::handle`], asks [`Speaker::poll_event`] what
//! to do, [`Speaker::poll_transmit`] which bytes to write, and [`Speaker::poll_timeout`] when to call again.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

// The tests in here share helpers with those outside, which know the crate by its name.
#[cfg(test)]
extern crate self as tortie_bgp;

mod api;
pub mod attr;
pub mod bfd;
pub mod bmp;
pub mod mrt;
mod octets;
mod out;
mod query;
mod rib;
mod session;
mod speaker;
mod types;
pub mod wire;

pub use api::*;
pub use query::*;
pub use speaker::Speaker;
pub use tortie_config::Cidr;
pub use types::{Family, RouterId};
