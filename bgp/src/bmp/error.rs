//! Decoding errors of BMP messages.

/// Decoding error of a message. The connection has to be closed, as RFC 7854 3.2 defines no recovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what} at octet {offset} of a BMP message")]
pub struct Error {
    /// Offset of the error in octets from the start of the message.
    pub offset: usize,
    /// Description of the error.
    pub what: &'static str,
}
