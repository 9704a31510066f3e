//! Common header and message types of BMP (RFC 7854 4).

use super::error::Error;
use super::peer::{PeerDown, PeerHeader, PeerUp};
use super::tlv::{Statistics, Tlvs};
use crate::reader::ByteReader;

/// Length of the common header in octets.
pub const HEADER_LEN: usize = 6;

/// Maximum length of a decoded message in octets: over a dozen BGP messages of maximum length.
pub const MAX_MESSAGE: usize = 1024 * 1024;

const VERSION: u8 = 3;

/// A BMP message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Message<'a> {
    /// Route Monitoring: a whole UPDATE of a peer (RFC 7854 4.6).
    RouteMonitoring {
        /// Peer that the routes belong to.
        peer: PeerHeader,
        /// BGP message from its marker on, not validated.
        update: &'a [u8],
    },
    /// Statistics Report of a peer (RFC 7854 4.8).
    Statistics {
        /// Peer that the counters belong to.
        peer: PeerHeader,
        /// Counters and gauges.
        statistics: Statistics<'a>,
    },
    /// Peer Down: the session ended, and all routes of the peer are removed (RFC 7854 4.9).
    PeerDown {
        /// Peer whose session ended.
        peer: PeerHeader,
        /// Reason.
        reason: PeerDown<'a>,
    },
    /// Peer Up: a session was established (RFC 7854 4.10).
    PeerUp {
        /// Peer of the session.
        peer: PeerHeader,
        /// Addresses, ports and both OPENs.
        up: PeerUp<'a>,
    },
    /// Initiation: name and description of the router; the first message (RFC 7854 4.3).
    Initiation(Tlvs<'a>),
    /// Termination: the last message (RFC 7854 4.5).
    Termination(Tlvs<'a>),
    /// Route Mirroring: messages as received, valid or not (RFC 7854 4.7).
    Mirroring {
        /// Peer that sent them.
        peer: PeerHeader,
        /// Mirrored messages and information.
        tlvs: Tlvs<'a>,
    },
    /// A message type that RFC 7854 does not define; to be skipped.
    Other {
        /// Message type.
        kind: u8,
        /// Message without the common header.
        octets: &'a [u8],
    },
}

impl<'a> Message<'a> {
    /// Decodes the first message in `buffer`. Returns it with its length, or `None` if it is not complete
    /// yet.
    ///
    /// # Errors
    /// Any input other than BMP version 3.
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

    /// Appends the encoded message.
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
        // The length covers the whole message.
        let len = u32::try_from(out.len() - start).unwrap_or(u32::MAX);
        if let Some(place) = out.get_mut(start + 1..).and_then(<[u8]>::first_chunk_mut) {
            *place = len.to_be_bytes();
        }
    }
}
