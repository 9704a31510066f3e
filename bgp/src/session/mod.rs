//! Sessions as values: peers, their connections with one FSM each, and the contents of an OPEN.
//!
//! [`fsm`] is the state machine of RFC 4271 8.2.2, a pure function of state and event. [`collision`] resolves
//! two connections to one peer (RFC 4271 6.8). [`peer::Peer`] and [`connection::Conn`] hold the state, in a
//! [`peer_table::PeerTable`] and in [`connections::Connections`]. [`open`] builds our OPEN and checks that of
//! the peer, [`capability_fallback`] omits capabilities that the peer rejected, [`damping`] limits the rate
//! of a peer's failures and refreshes, [`range`] maps addresses to ranges of dynamic peers, and [`timers`] is
//! a heap of deadlines.
//!
//! This module does no I/O and has no routes: [`speaker`](crate::speaker) supplies the events of the state
//! machines and carries out their actions.
//!
//! A peer has up to two connections, one per direction, until a collision or Established leaves one. Its
//! reported state is that of the connection that has progressed furthest; without a connection it is Connect
//! (dialling), Active (waiting) or Idle.

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
