//! Table dumps: TABLE_DUMP_V2 (RFC 6396 4.3, RFC 8050 4) and TABLE_DUMP (RFC 6396 4.2).

use std::net::{IpAddr, Ipv4Addr};

use tortie_net::Cidr;

use super::attributes::{Form, RawAttributes};
use super::error::Error;
use crate::reader::{ByteReader, write_ip};
use crate::types::Family;

/// Subtypes of TABLE_DUMP_V2.
pub(super) mod subtype {
    use crate::types::Family;

    pub(in crate::mrt) const PEER_INDEX_TABLE: u16 = 1;

    pub(in crate::mrt) fn family(subtype: u16) -> Option<(Family, bool)> {
        match subtype {
            2 => Some((Family::Ipv4Unicast, false)),
            4 => Some((Family::Ipv6Unicast, false)),
            8 => Some((Family::Ipv4Unicast, true)),
            10 => Some((Family::Ipv6Unicast, true)),
            _ => None,
        }
    }

    pub(in crate::mrt) fn of(family: Family, add_path: bool) -> u16 {
        match (family, add_path) {
            (Family::Ipv4Unicast, false) => 2,
            (Family::Ipv6Unicast, false) => 4,
            (Family::Ipv4Unicast, true) => 8,
            (Family::Ipv6Unicast, true) => 10,
        }
    }
}

/// PEER_INDEX_TABLE: the collector and its peers (RFC 6396 4.3.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerIndex<'a> {
    /// BGP identifier of the collector.
    pub collector: Ipv4Addr,
    /// View name, at most 65,535 octets in any encoding.
    pub view: &'a [u8],
    /// Peers by index, at most 65,535.
    pub peers: Vec<PeerEntry>,
}

/// A peer in a [`PeerIndex`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerEntry {
    /// BGP identifier; 0.0.0.0 if unknown.
    pub router_id: Ipv4Addr,
    /// Address; 0.0.0.0 for routes that the collector itself originates.
    pub address: IpAddr,
    /// AS number.
    pub asn: u32,
}

impl<'a> PeerIndex<'a> {
    pub(super) fn read(mut octets: ByteReader<'a>) -> Result<Self, Error> {
        let mut head = || {
            let collector = octets.v4()?;
            let len = octets.u16()?;
            Some((collector, octets.take(usize::from(len))?, octets.u16()?))
        };
        let (collector, view, count) =
            head().ok_or_else(|| Error::at(octets.at(), "no room for the head of the peer index"))?;
        // The capacity is limited by the octets present, not by the count field.
        let mut peers = Vec::with_capacity(usize::from(count).min(octets.rest().len() / 11));
        for _ in 0..count {
            let at = octets.at();
            peers.push(PeerEntry::read(&mut octets).ok_or(Error::at(at, "fewer peers than were promised"))?);
        }
        Ok(Self { collector, view, peers })
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.collector.octets());
        let view = self.view.get(..usize::from(u16::MAX)).unwrap_or(self.view);
        out.extend_from_slice(&u16::try_from(view.len()).unwrap_or(u16::MAX).to_be_bytes());
        out.extend_from_slice(view);
        let count = u16::try_from(self.peers.len()).unwrap_or(u16::MAX);
        out.extend_from_slice(&count.to_be_bytes());
        for peer in self.peers.iter().take(usize::from(count)) {
            peer.write(out);
        }
    }
}

impl PeerEntry {
    const V6: u8 = 1;
    const AS4: u8 = 2;

    fn read(octets: &mut ByteReader<'_>) -> Option<Self> {
        let flags = octets.u8()?;
        let router_id = octets.v4()?;
        let address = octets.ip(flags & Self::V6 != 0)?;
        let asn = if flags & Self::AS4 != 0 { octets.u32()? } else { octets.u16()?.into() };
        Some(Self { router_id, address, asn })
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.push(Self::AS4 | if self.address.is_ipv6() { Self::V6 } else { 0 });
        out.extend_from_slice(&self.router_id.octets());
        write_ip(out, self.address);
        out.extend_from_slice(&self.asn.to_be_bytes());
    }
}

/// A prefix and its paths (RFC 6396 4.3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rib<'a> {
    /// Sequence number of the record in the dump, from 0.
    pub sequence: u32,
    /// Destination prefix.
    pub prefix: Cidr,
    /// Paths of the prefix.
    pub entries: Entries<'a>,
}

impl<'a> Rib<'a> {
    pub(super) fn read(mut octets: ByteReader<'a>, family: Family, add_path: bool) -> Result<Self, Error> {
        let start = octets.at();
        let (Some(sequence), Some(len)) = (octets.u32(), octets.u8()) else {
            return Err(Error::at(start, "no room for sequence number and prefix length"));
        };
        let prefix = read_prefix(&mut octets, family, len).ok_or(Error::at(start + 4, "no such prefix"))?;
        let at = octets.at();
        let count = octets.u16().ok_or(Error::at(at, "no room for the number of paths"))?;
        let mut rest = octets;
        for _ in 0..count {
            let at = rest.at();
            read_entry(&mut rest, add_path).ok_or(Error::at(at, "a path that its record has no room for"))?;
        }
        if !rest.is_empty() {
            return Err(Error::at(rest.at(), "octets behind the last path"));
        }
        let entries = Entries { count, add_path, octets: octets.rest() };
        Ok(Self { sequence, prefix, entries })
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.sequence.to_be_bytes());
        out.push(self.prefix.len());
        let len = usize::from(self.prefix.len().div_ceil(8));
        match self.prefix.addr() {
            IpAddr::V4(a) => out.extend(a.octets().into_iter().take(len)),
            IpAddr::V6(a) => out.extend(a.octets().into_iter().take(len)),
        }
        out.extend_from_slice(&self.entries.count.to_be_bytes());
        out.extend_from_slice(self.entries.octets);
    }

    /// Returns the family of the prefix.
    #[must_use]
    pub fn family(&self) -> Family {
        Family::of(self.prefix.addr())
    }
}

fn read_prefix(octets: &mut ByteReader<'_>, family: Family, len: u8) -> Option<Cidr> {
    let given = octets.take(usize::from(len.div_ceil(8)))?;
    let mut whole = [0; 16];
    for (to, from) in whole.iter_mut().zip(given) {
        *to = *from;
    }
    let address = match family {
        Family::Ipv4Unicast => IpAddr::V4(Ipv4Addr::from(*whole.first_chunk::<4>()?)),
        Family::Ipv6Unicast => IpAddr::from(whole),
    };
    Cidr::new(address, len).ok()
}

fn read_entry<'a>(octets: &mut ByteReader<'a>, add_path: bool) -> Option<Entry<'a>> {
    let (peer, originated) = (octets.u16()?, octets.u32()?);
    let path_id = if add_path { octets.u32()? } else { 0 };
    let len = octets.u16()?;
    let attributes = RawAttributes::new(octets.take(usize::from(len))?, Form::TableV2);
    Some(Entry { peer, originated, path_id, attributes })
}

/// A path of a [`Rib`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Index of the peer in the [`PeerIndex`].
    pub peer: u16,
    /// Time at which the path was learned, in seconds since 1970.
    pub originated: u32,
    /// Path identifier (RFC 7911); 0 if not present.
    pub path_id: u32,
    /// Encoded path attributes.
    pub attributes: RawAttributes<'a>,
}

/// The paths of a prefix, borrowed from the record. They were checked as a whole, so iteration cannot fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entries<'a> {
    count: u16,
    add_path: bool,
    octets: &'a [u8],
}

impl<'a> Entries<'a> {
    /// Returns the number of paths.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.count)
    }

    /// Returns true if there is no path.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns true if the paths have path identifiers (RFC 8050).
    #[must_use]
    pub fn add_path(&self) -> bool {
        self.add_path
    }

    /// Iterates over the paths.
    pub fn iter(&self) -> impl Iterator<Item = Entry<'a>> + use<'a> {
        let (mut rest, add_path) = (ByteReader::new(self.octets, 0), self.add_path);
        std::iter::from_fn(move || read_entry(&mut rest, add_path))
    }
}

/// Builder of the paths of a [`Rib`] to be written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EntryList {
    count: u16,
    add_path: bool,
    octets: Vec<u8>,
}

impl EntryList {
    /// Creates an empty list. `add_path`: with path identifiers (RFC 8050).
    #[must_use]
    pub fn new(add_path: bool) -> Self {
        Self { count: 0, add_path, octets: Vec::new() }
    }

    /// Removes all paths and keeps the allocation.
    pub fn clear(&mut self) {
        self.count = 0;
        self.octets.clear();
    }

    /// Appends a path with attributes encoded by [`encode_attributes`](super::encode_attributes). Returns
    /// false, without a change, if the attributes exceed 65,535 octets or the list has 65,535 paths.
    pub fn push(&mut self, peer: u16, originated: u32, path_id: u32, attributes: &[u8]) -> bool {
        let (Ok(len), Some(count)) = (u16::try_from(attributes.len()), self.count.checked_add(1)) else {
            return false;
        };
        self.count = count;
        self.octets.extend_from_slice(&peer.to_be_bytes());
        self.octets.extend_from_slice(&originated.to_be_bytes());
        if self.add_path {
            self.octets.extend_from_slice(&path_id.to_be_bytes());
        }
        self.octets.extend_from_slice(&len.to_be_bytes());
        self.octets.extend_from_slice(attributes);
        true
    }

    /// Returns the paths for [`Rib::entries`].
    #[must_use]
    pub fn entries(&self) -> Entries<'_> {
        Entries { count: self.count, add_path: self.add_path, octets: &self.octets }
    }
}

/// A path in the TABLE_DUMP format, used before 2008, with two-octet AS numbers (RFC 6396 4.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableDump<'a> {
    /// View number, normally 0.
    pub view: u16,
    /// Sequence number of the record in the dump, modulo 65,536.
    pub sequence: u16,
    /// Destination prefix.
    pub prefix: Cidr,
    /// Time at which the path was learned, in seconds since 1970.
    pub originated: u32,
    /// Address of the peer, of the same family as the prefix.
    pub peer: IpAddr,
    /// AS number of the peer.
    pub peer_as: u16,
    /// Encoded path attributes.
    pub attributes: RawAttributes<'a>,
}

impl<'a> TableDump<'a> {
    pub(super) fn read(mut octets: ByteReader<'a>, v6: bool) -> Result<Self, Error> {
        let mut read = || {
            let (view, sequence) = (octets.u16()?, octets.u16()?);
            let prefix = Cidr::new(octets.ip(v6)?, octets.u8()?).ok()?;
            // The status octet is always 1.
            octets.u8()?;
            let (originated, peer, peer_as) = (octets.u32()?, octets.ip(v6)?, octets.u16()?);
            let len = octets.u16()?;
            let attributes = RawAttributes::new(octets.take(usize::from(len))?, Form::TableV1);
            Some(Self { view, sequence, prefix, originated, peer, peer_as, attributes })
        };
        read().ok_or_else(|| Error::at(octets.at(), "a path that its record has no room for"))
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.view.to_be_bytes());
        out.extend_from_slice(&self.sequence.to_be_bytes());
        write_ip(out, self.prefix.addr());
        out.extend_from_slice(&[self.prefix.len(), 1]);
        out.extend_from_slice(&self.originated.to_be_bytes());
        write_ip(out, self.peer);
        out.extend_from_slice(&self.peer_as.to_be_bytes());
        let octets = self.attributes.octets();
        let octets = octets.get(..usize::from(u16::MAX)).unwrap_or(octets);
        out.extend_from_slice(&u16::try_from(octets.len()).unwrap_or(u16::MAX).to_be_bytes());
        out.extend_from_slice(octets);
    }
}
