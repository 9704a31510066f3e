//! The whole way of a packet through this host: every place where it can be dropped, accepted or translated, in order.
//!
//! What it does: says what becomes of a packet and why ([`Node::path`]), and what becomes of one between two endpoints of
//! the cluster as far as the store tells ([`trace`]), and which small changes would let a denied one pass ([`closest()`]). What it does not: no I/O; it asks the kernel nothing, and it matches
//! no rule itself ([`Ruleset::decide`](super::Ruleset::decide) does).
//!
//! ```text
//!  by an interface: Source | Untracked, PreDnat -- Dnat -- Route --+-- to the host: Tunnel | FromWorkload, ToHost | HostInbound
//!                                                                  +-- onwards: FromWorkload | HostInbound,
//!                                                                               ToWorkload | HostOutbound -- Snat
//!  from the host:   Route -- Untracked -- Dnat -- Tunnel | HostOutbound -- Snat
//! ```

mod closest;
mod eval;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
mod trace;
#[cfg(test)]
mod trace_tests;
#[cfg(test)]
mod translation_tests;
mod types;

pub use closest::{Change, Fix, Side, closest};
pub use eval::{Node, Prepared};
pub use trace::{Excerpt, HostPath, NotEvaluated, OUTSIDE, Party, ProbePacket, Trace, trace};
pub use types::{Flow, Path, Place, Reason, Routes, Stage, State, Step};
