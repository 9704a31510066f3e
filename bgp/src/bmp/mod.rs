//! BMP, the BGP Monitoring Protocol: a router reports to a monitoring station the routes that it receives
//! (RFC 7854) and selects (RFC 9069).
//!
//! This module encodes and decodes messages in buffers of the caller. It has no sockets and no procedures: a
//! sender has to send Peer Up before routes of the peer, and to keep messages in order.
//!
//! ```text
//!  octets --Message::next--> Message, octets taken       Message::write --> octets
//! ```
//!
//! Decoding never panics: invalid input returns an [`Error`] with its offset. Messages are limited to
//! [`MAX_MESSAGE`].

mod error;
mod message;
mod peer;
mod tlv;

pub use error::Error;
pub use message::{HEADER_LEN, MAX_MESSAGE, Message};
pub use peer::{PeerDown, PeerHeader, PeerUp};
pub use tlv::{Statistic, Statistics, Tlv, Tlvs, info, termination};
