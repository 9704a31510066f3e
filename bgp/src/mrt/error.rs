//! Errors of reading.

/// Why a record cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what} at octet {offset}")]
pub struct Error {
    /// The octet at which reading stopped, counted from the start of the record's header, or in errors of [`Reader`](super::Reader) from
    /// the start of its input.
    pub offset: u64,
    /// In words.
    pub what: &'static str,
}

impl Error {
    pub(super) fn at(offset: usize, what: &'static str) -> Self {
        Self { offset: offset as u64, what }
    }
}
