//! Bidirectional Forwarding Detection (RFC 5880) over IPv4 and IPv6, single hop (RFC 5881) and multihop (RFC
//! 5883). The module is independent of the rest of this crate, opens no socket and reads no clock.
//!
//! The embedder configures [`Endpoint`]s ([`Bfd::set`]), passes in received datagrams ([`Bfd::receive`]),
//! calls [`Bfd::handle_timeout`] at the time of [`Bfd::poll_timeout`], sends the datagrams of
//! [`Bfd::poll_transmit`] and acts on the state changes of [`Bfd::poll_event`].
//!
//! ```text
//!  set, remove, shutdown --+                                +--> poll_event     Change (state and cause)
//!  receive -- packet ------+--> Bfd --> Session (by local --+--> poll_transmit  24 octets for an endpoint
//!  handle_timeout ---------+            discriminator)      +--> poll_timeout
//! ```
//!
//! Asynchronous mode, active role. Demand mode of the peer is respected, but never requested. Echo is not
//! supported (Required Min Echo RX Interval 0). Authentication is not supported: packets with the A bit,
//! keyed SHA1 included, are discarded and counted ([`Refused::Authentication`]). The C bit is never set,
//! because this implementation shares fate with the control plane. Multipoint (RFC 8562) and seamless (RFC
//! 7880) BFD are not implemented.

mod packet;
mod random;
mod session;
mod status;
mod table;

pub use packet::{Diagnostic, PACKET_LEN, Packet, Refused, State};
pub use status::{Cause, Parameters, Status};
pub use table::{Bfd, Change, Endpoint, Path, Received, Transmit};
