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
mod error;
mod message;
mod record;
mod table;

pub use attributes::{RawAttributes, encode_attributes};
pub use error::Error;
pub use message::{Message, StateChange};
pub use record::{Body, HEADER_LEN, MAX_RECORD, Raw, Reader, Record, Stamp, write_null};
pub use table::{Entries, Entry, EntryList, PeerEntry, PeerIndex, Rib, TableDump};
