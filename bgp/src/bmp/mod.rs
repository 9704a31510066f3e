//! BMP, the BGP Monitoring Protocol: a router reports to a monitoring station what its peers send (RFC 7854) and what it uses (RFC 9069).
//!
//! Here are messages to values and back, over octets that the caller has. What is not: sockets, and when to say what;
//! a sender has to bring a peer up before its routes, and to keep the order of what it passes on.
//!
//! ```text
//!  octets --Message::next--> Message, octets taken       Message::write --> octets
//! ```
//!
//! Reading is total: hostile octets give an [`Error`] that names the place. No message may be longer than [`MAX_MESSAGE`].

mod message;
mod peer;
mod tlv;

pub use message::{HEADER_LEN, MAX_MESSAGE, Message};
pub use peer::{PeerDown, PeerHeader, PeerUp};
pub use tlv::{Statistic, Statistics, Tlv, Tlvs, info, termination};

/// Why a message cannot be read; the connection has to end (RFC 7854 3.2 knows no way to go on).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what} at octet {offset} of a BMP message")]
pub struct Error {
    /// The octet at which reading stopped, counted from the start of the message.
    pub offset: usize,
    /// In words.
    pub what: &'static str,
}
