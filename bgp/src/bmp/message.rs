//! The common header and the seven kinds of message (RFC 7854 4).

use super::error::Error;
use super::peer::{PeerDown, PeerHeader, PeerUp};
use super::tlv::{Statistics, Tlvs};
use crate::reader::ByteReader;

/// Octets of the common header.
pub const HEADER_LEN: usize = 6;

/// Longest message in octets that is read: some hundred of the longest BGP messages.
pub const MAX_MESSAGE: usize = 1024 * 1024;

const VERSION: u8 = 3;

/// A BMP message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Message<'a> {
    /// Routes: an UPDATE of a peer, whole (RFC 7854 4.6).
    RouteMonitoring {
        /// Whose.
        peer: PeerHeader,
        /// The BGP message from its marker on, unjudged.
        update: &'a [u8],
    },
    /// Counters of a peer (RFC 7854 4.8).
    Statistics {
        /// Whose.
        peer: PeerHeader,
        /// Counters.
        statistics: Statistics<'a>,
    },
    /// A session ended; all routes of the peer are gone (RFC 7854 4.9).
    PeerDown {
        /// Whose.
        peer: PeerHeader,
        /// Why.
        reason: PeerDown<'a>,
    },
    /// A session came up (RFC 7854 4.10).
    PeerUp {
        /// Whose.
        peer: PeerHeader,
        /// Its ends and both OPENs.
        up: PeerUp<'a>,
    },
    /// Name and description of the router; the first message (RFC 7854 4.3).
    Initiation(Tlvs<'a>),
    /// The last message (RFC 7854 4.5).
    Termination(Tlvs<'a>),
    /// Messages as they came, good or bad (RFC 7854 4.7).
    Mirroring {
        /// Whose.
        peer: PeerHeader,
        /// What it sent.
        tlvs: Tlvs<'a>,
    },
    /// A type that RFC 7854 does not know; to be passed over.
    Other {
        /// Its type.
        kind: u8,
        /// The part after the common header.
        octets: &'a [u8],
    },
}

impl<'a> Message<'a> {
    /// The first message in `buffer` and the octets that it takes; `None` when it is not all there yet.
    ///
    /// # Errors
    /// Anything that is no BMP of version 3.
    pub fn next(buffer: &'a [u8]) -> Result<Option<(Self, usize)>, Error> {
        match buffer.first() {
            None => return Ok(None),
            Some(&VERSION) => {}
            Some(_) => return Err(Error { offset: 0, what: "another version than 3" }),
        }
        let mut octets = ByteReader::new(buffer, 0);
        let (Some(_), Some(len), Some(kind)) = (octets.u8(), octets.u32(), octets.u8()) else {
            return Ok(None);
        };
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        if !(HEADER_LEN..=MAX_MESSAGE).contains(&len) {
            return Err(Error { offset: 1, what: "a length that no message has" });
        }
        let Some(body) = octets.take(len - HEADER_LEN) else { return Ok(None) };
        let message = Self::read(kind, ByteReader::new(body, HEADER_LEN))?;
        Ok(Some((message, len)))
    }

    fn read(kind: u8, mut octets: ByteReader<'a>) -> Result<Self, Error> {
        let mut peer = || {
            PeerHeader::read(&mut octets)
                .ok_or(Error { offset: HEADER_LEN, what: "no room for the per-peer header" })
        };
        Ok(match kind {
            0 => Self::RouteMonitoring { peer: peer()?, update: octets.rest() },
            1 => Self::Statistics { peer: peer()?, statistics: Statistics::read(octets)? },
            2 => Self::PeerDown { peer: peer()?, reason: PeerDown::read(octets)? },
            3 => {
                let peer = peer()?;
                Self::PeerUp { peer, up: PeerUp::read(octets, peer.address.is_ipv6())? }
            }
            4 => Self::Initiation(Tlvs::read(octets)?),
            5 => Self::Termination(Tlvs::read(octets)?),
            6 => Self::Mirroring { peer: peer()?, tlvs: Tlvs::read(octets)? },
            _ => Self::Other { kind, octets: octets.rest() },
        })
    }

    /// Appends the message.
    pub fn write(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let kind = match self {
            Self::RouteMonitoring { .. } => 0,
            Self::Statistics { .. } => 1,
            Self::PeerDown { .. } => 2,
            Self::PeerUp { .. } => 3,
            Self::Initiation(_) => 4,
            Self::Termination(_) => 5,
            Self::Mirroring { .. } => 6,
            Self::Other { kind, .. } => *kind,
        };
        out.extend_from_slice(&[VERSION, 0, 0, 0, 0, kind]);
        match self {
            Self::RouteMonitoring { peer, update } => {
                peer.write(out);
                out.extend_from_slice(update);
            }
            Self::Statistics { peer, statistics } => {
                peer.write(out);
                statistics.write(out);
            }
            Self::PeerDown { peer, reason } => {
                peer.write(out);
                reason.write(out);
            }
            Self::PeerUp { peer, up } => {
                peer.write(out);
                up.write(out);
            }
            Self::Initiation(tlvs) | Self::Termination(tlvs) => out.extend_from_slice(tlvs.octets()),
            Self::Mirroring { peer, tlvs } => {
                peer.write(out);
                out.extend_from_slice(tlvs.octets());
            }
            Self::Other { octets, .. } => out.extend_from_slice(octets),
        }
        // The length counts the whole message.
        let len = u32::try_from(out.len() - start).unwrap_or(u32::MAX);
        if let Some(place) = out.get_mut(start + 1..).and_then(<[u8]>::first_chunk_mut) {
            *place = len.to_be_bytes();
        }
    }
}
