//! Path of a packet through this host: every stage at which it can be dropped, accepted or translated, in
//! order.
//!
//! It computes the verdict on a packet with its reason ([`Node::path`]), the path between two endpoints of
//! the cluster as far as the store determines it ([`trace`]), and small changes that would let a denied
//! packet pass ([`closest()`]). It does no I/O and does not query the kernel. Rules are matched by
//! [`Ruleset::decide`](super::Ruleset::decide).
//!
//! ```text
//!  by an interface: Source | Untracked, PreDnat -- Dnat -- Route --+
//!     to the host:    Tunnel | FromWorkload, ToHost | HostInbound <-+
//!     forwarded:      FromWorkload | HostInbound, ToWorkload | HostOutbound -- Snat
//!       (Calico 3):   ForwardInbound, ForwardOutbound, FromWorkload, ToWorkload -- Snat
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
