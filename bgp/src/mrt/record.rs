//! Record header and record types (RFC 6396 2, 3).

use super::error::Error;
use super::message::{Message, StateChange, subtype as bgp4mp};
use super::table::{PeerIndex, Rib, TableDump, subtype as v2};
use crate::reader::{ByteReader, patch_len};

/// Record types (RFC 6396 4).
mod kind {
    pub(super) const NULL: u16 = 0;
    pub(super) const TABLE_DUMP: u16 = 12;
    pub(super) const TABLE_DUMP_V2: u16 = 13;
    pub(super) const BGP4MP: u16 = 16;
    pub(super) const BGP4MP_ET: u16 = 17;
}

/// Length of the record header in octets. BGP4MP_ET has four more, which count as body.
pub const HEADER_LEN: usize = 12;

/// Maximum body length in octets. A prefix with a 64 KiB path from each of 250 peers fits; a longer record is
/// not MRT.
pub const MAX_RECORD: usize = 16 * 1024 * 1024;

/// Timestamp of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Stamp {
    /// Seconds since 1970, without leap seconds.
    pub seconds: u32,
    /// Microseconds part (RFC 6396 3); BGP4MP_ET only.
    pub micros: Option<u32>,
}

/// A complete record that is not decoded yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Raw<'a> {
    /// Timestamp in seconds since 1970.
    pub seconds: u32,
    /// Record type.
    pub kind: u16,
    /// Record subtype.
    pub subtype: u16,
    /// Record without the header.
    pub body: &'a [u8],
}

impl<'a> Raw<'a> {
    /// Returns the first record in `buffer`, or `None` if it is not complete yet.
    ///
    /// # Errors
    /// The header has a length above [`MAX_RECORD`]: the input is not MRT or is damaged, and no further
    /// record can be found.
    pub fn next(buffer: &'a [u8]) -> Result<Option<Self>, Error> {
        let mut octets = ByteReader::new(buffer, 0);
        let (Some(seconds), Some(kind), Some(subtype), Some(len)) =
            (octets.u32(), octets.u16(), octets.u16(), octets.u32())
        else {
            return Ok(None);
        };
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if len > MAX_RECORD {
            return Err(Error::at(8, "a record of more than 16 MiB, which no MRT file has"));
        }
        Ok(octets.take(len).map(|body| Self { seconds, kind, subtype, body }))
    }

    /// Returns the length of the record in octets, header included.
    #[must_use]
    pub fn len(&self) -> usize {
        HEADER_LEN + self.body.len()
    }

    /// Returns false: a record always has a header.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Decodes the record. Unsupported types and subtypes become [`Body::Other`].
    ///
    /// # Errors
    /// The body does not match type and subtype.
    pub fn decode(&self) -> Result<Record<'a>, Error> {
        let mut octets = ByteReader::new(self.body, HEADER_LEN);
        let mut stamp = Stamp { seconds: self.seconds, micros: None };
        let body = match (self.kind, self.subtype) {
            (kind::TABLE_DUMP_V2, v2::PEER_INDEX_TABLE) => Body::PeerIndex(PeerIndex::read(octets)?),
            (kind::TABLE_DUMP_V2, subtype) => match v2::family(subtype) {
                Some((family, add_path)) => Body::Rib(Rib::read(octets, family, add_path)?),
                None => self.other(),
            },
            (kind::TABLE_DUMP, 1 | 2) => Body::TableDump(TableDump::read(octets, self.subtype == 2)?),
            (kind::BGP4MP | kind::BGP4MP_ET, subtype) => {
                if self.kind == kind::BGP4MP_ET {
                    let micros = octets.u32().ok_or(Error::at(HEADER_LEN, "no room for microseconds"))?;
                    stamp.micros = Some(micros);
                }
                if bgp4mp::is_state_change(subtype) {
                    Body::StateChange(StateChange::read(octets, subtype)?)
                } else if bgp4mp::is_message(subtype) {
                    Body::Message(Message::read(octets, subtype)?)
                } else {
                    stamp.micros = None;
                    self.other()
                }
            }
            _ => self.other(),
        };
        Ok(Record { stamp, body })
    }

    fn other(&self) -> Body<'a> {
        Body::Other { kind: self.kind, subtype: self.subtype, octets: self.body }
    }
}

/// A decoded record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record<'a> {
    /// Time of the dump or of the message.
    pub stamp: Stamp,
    /// Contents of the record.
    pub body: Body<'a>,
}

/// Contents of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Body<'a> {
    /// Peer index of the following [`Rib`] records.
    PeerIndex(PeerIndex<'a>),
    /// A prefix with its paths.
    Rib(Rib<'a>),
    /// A path in the TABLE_DUMP format.
    TableDump(TableDump<'a>),
    /// A BGP message.
    Message(Message<'a>),
    /// A state change of a session.
    StateChange(StateChange),
    /// An unsupported family or protocol.
    Other {
        /// Record type.
        kind: u16,
        /// Record subtype.
        subtype: u16,
        /// Record without the header.
        octets: &'a [u8],
    },
}

impl Record<'_> {
    /// Appends the encoded record. View names and messages are truncated to 65,535 octets.
    pub fn write(&self, out: &mut Vec<u8>) {
        let (kind, subtype) = match &self.body {
            Body::PeerIndex(_) => (kind::TABLE_DUMP_V2, v2::PEER_INDEX_TABLE),
            Body::Rib(rib) => (kind::TABLE_DUMP_V2, v2::of(rib.family(), rib.entries.add_path())),
            Body::TableDump(dump) => (kind::TABLE_DUMP, if dump.prefix.is_v4() { 1 } else { 2 }),
            Body::Message(message) => (self.bgp4mp(), bgp4mp::of_message(message)),
            Body::StateChange(change) => (self.bgp4mp(), bgp4mp::of_state_change(change)),
            Body::Other { kind, subtype, .. } => (*kind, *subtype),
        };
        let start = write_header(out, self.stamp.seconds, kind, subtype);
        if let (kind::BGP4MP_ET, Some(micros)) = (kind, self.stamp.micros) {
            out.extend_from_slice(&micros.to_be_bytes());
        }
        match &self.body {
            Body::PeerIndex(index) => index.write(out),
            Body::Rib(rib) => rib.write(out),
            Body::TableDump(dump) => dump.write(out),
            Body::Message(message) => message.write(out),
            Body::StateChange(change) => change.write(out),
            Body::Other { octets, .. } => out.extend_from_slice(octets),
        }
        patch_len(out, start + HEADER_LEN - 4);
    }

    fn bgp4mp(&self) -> u16 {
        if self.stamp.micros.is_some() { kind::BGP4MP_ET } else { kind::BGP4MP }
    }
}

fn write_header(out: &mut Vec<u8>, seconds: u32, kind: u16, subtype: u16) -> usize {
    let start = out.len();
    out.extend_from_slice(&seconds.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&subtype.to_be_bytes());
    out.extend_from_slice(&[0; 4]);
    start
}

/// Appends a NULL record with these octets, which every reader skips (RFC 6396 appendix B.1).
pub fn write_null(out: &mut Vec<u8>, seconds: u32, octets: &[u8]) {
    let start = write_header(out, seconds, kind::NULL, 0);
    out.extend_from_slice(octets);
    patch_len(out, start + HEADER_LEN - 4);
}

/// Iterator over the records of a complete input. An invalid record yields an error, and iteration continues
/// with the next one. An input that ends inside a record yields a final error.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    octets: &'a [u8],
    at: u64,
}

impl<'a> Reader<'a> {
    /// Creates an iterator over these octets.
    #[must_use]
    pub fn new(octets: &'a [u8]) -> Self {
        Self { octets, at: 0 }
    }
}

impl<'a> Iterator for Reader<'a> {
    type Item = Result<Record<'a>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.octets.is_empty() {
            return None;
        }
        let start = self.at;
        let from_start = |e: Error| Error { offset: start + e.offset, ..e };
        match Raw::next(self.octets) {
            Ok(Some(raw)) => {
                self.octets = self.octets.get(raw.len()..).unwrap_or_default();
                self.at += raw.len() as u64;
                Some(raw.decode().map_err(from_start))
            }
            Ok(None) => {
                let offset = start + self.octets.len() as u64;
                self.octets = &[];
                Some(Err(Error { offset, what: "the input ends in the middle of a record" }))
            }
            Err(error) => {
                self.octets = &[];
                Some(Err(from_start(error)))
            }
        }
    }
}
