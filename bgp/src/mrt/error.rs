//! Decoding errors of MRT records.

/// Decoding error of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what} at octet {offset}")]
pub struct Error {
    /// Offset of the error in octets, from the start of the record header. For errors of
    /// [`Reader`](super::Reader): from the start of the input.
    pub offset: u64,
    /// Description of the error.
    pub what: &'static str,
}

impl Error {
    pub(super) fn at(offset: usize, what: &'static str) -> Self {
        Self { offset: offset as u64, what }
    }
}
