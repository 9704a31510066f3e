//! The decisions of Tortie: no socket, no thread, no kernel.
//!
//! [`model`] is the one in-memory copy of the store that an agent works from. [`routing`] decides from it which peers,
//! announcements and kernel routes there are, [`policy`] which packets pass, [`ipam`] which addresses are allocated. The
//! results are intents, verdicts and transactions, each with its reason; others carry them out.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod ipam;
pub mod model;
pub mod policy;
pub mod routing;
