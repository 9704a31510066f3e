//! Decision logic of Tortie, without sockets, threads or kernel calls.
//!
//! [`model`] holds the in-memory copy of the store. From it [`routing`] computes peers, announcements and
//! kernel routes, [`policy`] computes the packet rules, and [`ipam`] allocates addresses. The results are
//! intents, verdicts and transactions, each with its reason; other crates carry them out.

#![forbid(unsafe_code)]
#![warn(missing_docs)]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests start at the time of the machine"))]

pub mod ipam;
pub mod model;
pub mod policy;
pub mod routing;
pub mod writer;
