//! Per-peer header, Peer Up and Peer Down (RFC 7854 4.2, 4.9, 4.10).

use std::net::{IpAddr, Ipv4Addr};

use super::error::Error;
use super::tlv::Tlvs;
use crate::reader::ByteReader;

const V6: u8 = 0x80;
/// F flag: the same bit in the header of a Loc-RIB (RFC 9069 4.2).
const FILTERED: u8 = 0x80;
const POST_POLICY: u8 = 0x40;
const AS2: u8 = 0x20;
/// Minimum length of an OPEN in octets, header included.
const MIN_OPEN: usize = 29;

/// Per-peer header (RFC 7854 4.2, RFC 9069 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerHeader {
    /// Peer type. 0: global instance, the only one that this speaker reports; 1: RD instance (L3VPN); 2:
    /// local instance; [`PeerHeader::LOC_RIB`].
    pub kind: u8,
    /// F flag (RFC 9069 4.2): the Loc-RIB is reported in part only.
    pub filtered: bool,
    /// L flag: post-policy Adj-RIB-In; otherwise pre-policy.
    pub post_policy: bool,
    /// A flag: AS numbers in AS_PATHs have two octets.
    pub as2: bool,
    /// Route distinguisher if the peer type has one, else 0.
    pub distinguisher: u64,
    /// Address of the peer; 0.0.0.0 for a Loc-RIB.
    pub address: IpAddr,
    /// AS number of the peer.
    pub asn: u32,
    /// BGP identifier of the peer.
    pub router_id: Ipv4Addr,
    /// Time of the event in seconds since 1970; 0 if unknown.
    pub seconds: u32,
    /// Microseconds part of the time.
    pub micros: u32,
}

impl PeerHeader {
    /// Peer type of the Loc-RIB (RFC 9069 4.1): the router itself, with its own AS number and BGP identifier.
    pub const LOC_RIB: u8 = 3;

    pub(super) fn read(octets: &mut ByteReader<'_>) -> Option<Self> {
        let (kind, flags) = (octets.u8()?, octets.u8()?);
        let distinguisher = u64::from_be_bytes(octets.array()?);
        let loc_rib = kind == Self::LOC_RIB;
        let address = read_address(octets, !loc_rib && flags & V6 != 0)?;
        let (asn, router_id) = (octets.u32()?, octets.v4()?);
        let (seconds, micros) = (octets.u32()?, octets.u32()?);
        Some(Self {
            kind,
            filtered: loc_rib && flags & FILTERED != 0,
            post_policy: flags & POST_POLICY != 0,
            as2: flags & AS2 != 0,
            distinguisher,
            address,
            asn,
            router_id,
            seconds,
            micros,
        })
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        let first = if self.kind == Self::LOC_RIB {
            flag(self.filtered, FILTERED)
        } else {
            flag(self.address.is_ipv6(), V6)
        };
        let flags = first | flag(self.post_policy, POST_POLICY) | flag(self.as2, AS2);
        out.extend_from_slice(&[self.kind, flags]);
        out.extend_from_slice(&self.distinguisher.to_be_bytes());
        write_address(out, self.address);
        out.extend_from_slice(&self.asn.to_be_bytes());
        out.extend_from_slice(&self.router_id.octets());
        out.extend_from_slice(&self.seconds.to_be_bytes());
        out.extend_from_slice(&self.micros.to_be_bytes());
    }
}

/// Reads the 16 octets of an address field; an IPv4 address is in the last four.
fn read_address(octets: &mut ByteReader<'_>, v6: bool) -> Option<IpAddr> {
    if v6 {
        return octets.ip(true);
    }
    octets.take(12)?;
    octets.ip(false)
}

fn write_address(out: &mut Vec<u8>, address: IpAddr) {
    match address {
        IpAddr::V4(a) => {
            out.extend_from_slice(&[0; 12]);
            out.extend_from_slice(&a.octets());
        }
        IpAddr::V6(a) => out.extend_from_slice(&a.octets()),
    }
}

/// Contents of a Peer Up (RFC 7854 4.10).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerUp<'a> {
    /// Local address, of the same family as that of the peer.
    pub local: IpAddr,
    /// Local port.
    pub local_port: u16,
    /// Port of the peer.
    pub remote_port: u16,
    /// The whole OPEN that this router sent.
    pub sent: &'a [u8],
    /// The whole OPEN that the peer sent.
    pub received: &'a [u8],
    /// Information TLVs.
    pub information: Tlvs<'a>,
}

impl<'a> PeerUp<'a> {
    /// Decodes a Peer Up. `v6`: the V flag of the per-peer header, which applies to both addresses.
    pub(super) fn read(mut octets: ByteReader<'a>, v6: bool) -> Result<Self, Error> {
        let fail = |octets: &ByteReader<'_>, what| Error { offset: octets.at(), what };
        let (Some(local), Some(local_port), Some(remote_port)) =
            (read_address(&mut octets, v6), octets.u16(), octets.u16())
        else {
            return Err(fail(&octets, "no room for the ends of the session"));
        };
        let sent = read_open(&mut octets).ok_or_else(|| fail(&octets, "no OPEN that was sent"))?;
        let received = read_open(&mut octets).ok_or_else(|| fail(&octets, "no OPEN that was received"))?;
        Ok(Self { local, local_port, remote_port, sent, received, information: Tlvs::read(octets)? })
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        write_address(out, self.local);
        out.extend_from_slice(&self.local_port.to_be_bytes());
        out.extend_from_slice(&self.remote_port.to_be_bytes());
        out.extend_from_slice(self.sent);
        out.extend_from_slice(self.received);
        out.extend_from_slice(self.information.octets());
    }
}

/// Reads a whole BGP message of type OPEN.
fn read_open<'a>(octets: &mut ByteReader<'a>) -> Option<&'a [u8]> {
    let len = usize::from(u16::from_be_bytes(*octets.rest().get(16..)?.first_chunk()?));
    if len < MIN_OPEN || octets.rest().get(18) != Some(&1) {
        return None;
    }
    octets.take(len)
}

/// Reason of a Peer Down (RFC 7854 4.9).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerDown<'a> {
    /// 1: the router sent this NOTIFICATION (whole message).
    LocalNotification(&'a [u8]),
    /// 2: the router closed the connection without a NOTIFICATION, because of this FSM event (RFC 4271 8.1);
    /// 0 if none applies.
    LocalEvent(u16),
    /// 3: the peer sent this NOTIFICATION (whole message).
    RemoteNotification(&'a [u8]),
    /// 4: the connection closed without a NOTIFICATION.
    RemoteClosed,
    /// 5: the session is no longer monitored, but may still be up.
    NotMonitored,
    /// 6: end of a Loc-RIB, with the table name of its Peer Up (RFC 9069 5.3).
    LocRib(Tlvs<'a>),
    /// A reason that later documents define.
    Other {
        /// Reason code.
        reason: u8,
        /// Data of the reason.
        octets: &'a [u8],
    },
}

impl<'a> PeerDown<'a> {
    pub(super) fn read(mut octets: ByteReader<'a>) -> Result<Self, Error> {
        let offset = octets.at();
        let reason = octets.u8().ok_or(Error { offset, what: "no room for the reason" })?;
        Ok(match reason {
            1 => Self::LocalNotification(octets.rest()),
            2 => {
                let event = octets.u16();
                Self::LocalEvent(event.ok_or(Error { offset: offset + 1, what: "no room for the event" })?)
            }
            3 => Self::RemoteNotification(octets.rest()),
            4 => Self::RemoteClosed,
            5 => Self::NotMonitored,
            6 => Self::LocRib(Tlvs::read(octets)?),
            _ => Self::Other { reason, octets: octets.rest() },
        })
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let (reason, event, octets): (u8, Option<u16>, &[u8]) = match self {
            Self::LocalNotification(octets) => (1, None, octets),
            Self::LocalEvent(event) => (2, Some(*event), &[]),
            Self::RemoteNotification(octets) => (3, None, octets),
            Self::RemoteClosed => (4, None, &[]),
            Self::NotMonitored => (5, None, &[]),
            Self::LocRib(tlvs) => (6, None, tlvs.octets()),
            Self::Other { reason, octets } => (*reason, None, octets),
        };
        out.push(reason);
        out.extend(event.iter().flat_map(|e| e.to_be_bytes()));
        out.extend_from_slice(octets);
    }
}
