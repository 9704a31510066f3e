//! MRT, the format of route collectors for tables and updates (RFC 6396, RFC 8050).
//!
//! This module encodes and decodes records in buffers of the caller. It has no files, compression or clocks.
//!
//! ```text
//!  octets --Raw::next--> header + body --Raw::decode--> Record { stamp, body }
//!                                            | PeerIndex, Rib    TABLE_DUMP_V2: a table, prefix by prefix
//!                                            | TableDump         TABLE_DUMP: format used before 2008
//!                                            | Message           BGP4MP: a BGP message as on the wire
//!                                            | StateChange       BGP4MP: state change of a session
//!                                            ` Other             unsupported records, passed through
//!  Record::write --> octets     RawAttributes::decode <--> encode_attributes: Attributes of the speaker
//! ```
//!
//! Decoding never panics: an invalid record returns an [`Error`] with its offset, and the next record can
//! still be decoded. Only one record is held at a time, limited to [`MAX_RECORD`].

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
