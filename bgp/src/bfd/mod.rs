//! Bidirectional Forwarding Detection (RFC 5880) over IPv4 and IPv6, single hop (RFC 5881) and multihop (RFC 5883): a
//! module of its own that uses nothing else of this crate, opens no socket and asks no clock.
//!
//! The embedder says which [`Endpoint`]s to watch ([`Bfd::set`]), feeds what came to the ports ([`Bfd::receive`]), calls
//! [`Bfd::handle_timeout`] when [`Bfd::poll_timeout`] says so, sends what [`Bfd::poll_transmit`] gives and acts on
//! [`Bfd::poll_event`].
//!
//! ```text
//!  set, remove, shutdown --+                              +--> poll_event     Change (what became of a session, why)
//!  receive -- packet ------+--> Bfd --> Session (by our --+--> poll_transmit  24 octets for an endpoint
//!  handle_timeout ---------+            discriminator)    +--> poll_timeout
//! ```
//!
//! Asynchronous mode in the active role. A peer's demand mode is respected, ours is never asked for; echo is not
//! offered (Required Min Echo RX Interval 0). Authentication is not offered: packets with the A bit are refused and
//! counted ([`Refused::Authentication`]), keyed SHA1 among them. The C bit is never set: this code shares its fate with
//! the control plane. Multipoint (RFC 8562) and seamless (RFC 7880) BFD are other protocols.

mod packet;
mod random;
mod session;
mod status;
mod table;

pub use packet::{Diagnostic, PACKET_LEN, Packet, Refused, State};
pub use status::{Cause, Parameters, Status};
pub use table::{Bfd, Change, Endpoint, Path, Received, Transmit};
