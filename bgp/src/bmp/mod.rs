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

mod error;
mod message;
mod peer;
mod tlv;

pub use error::Error;
pub use message::{HEADER_LEN, MAX_MESSAGE, Message};
pub use peer::{PeerDown, PeerHeader, PeerUp};
pub use tlv::{Statistic, Statistics, Tlv, Tlvs, info, termination};
