//! Sessions as values: peers, their connections, the finite state machine of each, and what an OPEN offers.
//!
//! The state machine of RFC 4271 8.2.2 is [`fsm`]: a pure function of state and event. What happens between the two
//! connections of one peer is [`collision`] (RFC 4271 6.8). [`peer::Peer`] and [`connection::Conn`] hold the state, in a
//! [`peer_table::PeerTable`] and in [`connections::Connections`]. [`open`] says what we offer and whether the peer's OPEN fits,
//! [`capability_fallback`] what the next OPEN leaves out because the peer refused it, [`damping`] how often a peer may fail, [`range`]
//! from which addresses peers are taken that nobody configured. [`timers`] is the heap of deadlines.
//!
//! Here is no I/O and no table of routes: events are fed to the state machines, and their actions carried out, by
//! [`speaker`](crate::speaker).
//!
//! A peer has up to two connections, one in each direction, until a collision or Established leaves one. The state that
//! is reported is that of its furthest connection; without any it is Connect (dialling), Active (waiting) or Idle.

pub(crate) mod capability_fallback;
pub(crate) mod collision;
pub(crate) mod connection;
pub(crate) mod connections;
pub(crate) mod damping;
pub(crate) mod fsm;
pub(crate) mod jitter;
pub(crate) mod last_error;
pub(crate) mod open;
pub(crate) mod peer;
pub(crate) mod peer_table;
pub(crate) mod range;
#[cfg(test)]
mod tests;
pub(crate) mod timers;
