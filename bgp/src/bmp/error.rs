//! Errors of reading.

/// Why a message cannot be read; the connection has to end (RFC 7854 3.2 knows no way to go on).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what} at octet {offset} of a BMP message")]
pub struct Error {
    /// The octet at which reading stopped, counted from the start of the message.
    pub offset: usize,
    /// In words.
    pub what: &'static str,
}
