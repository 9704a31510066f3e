//! A BGP-4 speaker as a sans-IO library: it opens no socket, reads no clock, starts no thread and has no
//! global state.
//!
//! The embedder passes each [`Input`] with the current time to [`Speaker::handle`]. It then takes actions
//! from [`Speaker::poll_event`], octets to write from [`Speaker::poll_transmit`], and the time of the next
//! call from [`Speaker::poll_timeout`].
//!
//! ```
//! # use std::time::Instant;
//! # use tortie_bgp::{Event, GlobalConfig, Input, PeerConfig, PeerId, PolicyHandle, RouterId, Speaker};
//! let now = Instant::now();
//! let global = GlobalConfig::new(64512, RouterId(0xc000_0201));
//! let mut speaker = Speaker::new(global, PolicyHandle::accept_all(), now);
//! let peer = PeerConfig::new("192.0.2.2:179".parse()?, 64512);
//! speaker.handle(Input::Peer(PeerId(1), Box::new(peer)), now);
//! speaker.handle(Input::LocalReady, now);
//! speaker.handle(Input::Tick, now);
//! assert!(std::iter::from_fn(|| speaker.poll_event()).any(|event| event == Event::Dial(PeerId(1))));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The README has a longer example, the guarantees of this crate and the daemons that it is tested with.
//! `examples/speaker.rs` drives a speaker over TCP.

#![forbid(unsafe_code)]
#![warn(missing_docs)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing))]
#![cfg_attr(not(test), forbid(clippy::disallowed_methods, clippy::disallowed_types))]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests start at the time of the machine"))]

// Unit tests and integration tests share helpers, which refer to the crate by its public name.
#[cfg(test)]
extern crate self as tortie_bgp;

mod adj_rib_out;
mod api;
pub mod attr;
pub mod bfd;
pub mod bmp;
pub mod mrt;
mod query;
mod reader;
mod rib;
mod ribs;
mod role;
mod session;
mod speaker;
mod types;
pub mod wire;

/// Compiles and runs the example of the README as a doc test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub use api::*;
pub use speaker::{Speaker, TapEvent, TapItem, TapSession, Tapped};
pub use tortie_net::{Cidr, HashKey};
pub use types::{Family, RouterId};
