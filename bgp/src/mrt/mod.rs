//! MRT, the format in which route collectors keep tables and updates (RFC 6396, RFC 8050).
//!
//! Here are records to values and back, over octets that the caller has. What is not: files, compression, clocks.
//!
//! ```text
//!  octets --Raw::next--> header + body --Raw::decode--> Record { stamp, body }
//!                                                         | PeerIndex, Rib    TABLE_DUMP_V2: a table, prefix by prefix
//!                                                         | TableDump         TABLE_DUMP: the same before 2008
//!                                                         | Message           BGP4MP: one BGP message as it was on the wire
//!                                                         | StateChange       BGP4MP: a session came or went
//!                                                         ` Other             everything else, passed through
//!  Record::write --> octets          RawAttributes::decode <--> encode_attributes: Attributes of the speaker
//! ```
//!
//! Reading is total: hostile octets give an [`Error`] that names the place, and the next record can be read after it.
//! Nothing is kept beyond the record at hand, and no record may be longer than [`MAX_RECORD`].

mod attributes;
mod message;
mod record;
mod table;

pub use attributes::{RawAttributes, encode_attributes};
pub use message::{Message, StateChange};
pub use record::{Body, HEADER_LEN, MAX_RECORD, Raw, Reader, Record, Stamp, write_null};
pub use table::{Entries, Entry, EntryList, PeerEntry, PeerIndex, Rib, TableDump};

/// Why a record cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{what} at octet {offset}")]
pub struct Error {
    /// The octet at which reading stopped, counted from the start of the record's header, or in errors of [`Reader`] from
    /// the start of its input.
    pub offset: u64,
    /// In words.
    pub what: &'static str,
}

impl Error {
    fn at(offset: usize, what: &'static str) -> Self {
        Self { offset: offset as u64, what }
    }
}

/// Record types (RFC 6396 4).
mod kind {
    pub(super) const NULL: u16 = 0;
    pub(super) const TABLE_DUMP: u16 = 12;
    pub(super) const TABLE_DUMP_V2: u16 = 13;
    pub(super) const BGP4MP: u16 = 16;
    pub(super) const BGP4MP_ET: u16 = 17;
}
