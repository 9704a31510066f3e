//! TLV lists: information, termination and statistics (RFC 7854 4.4, 4.5, 4.8).

use super::error::Error;
use crate::reader::ByteReader;

/// Types of Information TLVs (RFC 7854 4.4, RFC 9069 5.2.1).
pub mod info {
    /// Free text.
    pub const TEXT: u16 = 0;
    /// System description (sysDescr of RFC 3418).
    pub const SYS_DESCR: u16 = 1;
    /// System name (sysName of RFC 3418).
    pub const SYS_NAME: u16 = 2;
    /// Name of a VRF or table; `global` for the Loc-RIB of the default table.
    pub const TABLE: u16 = 3;
}

/// Types and reasons of Termination TLVs (RFC 7854 4.5).
pub mod termination {
    /// TLV type: free text.
    pub const TEXT: u16 = 0;
    /// TLV type: reason, two octets.
    pub const REASON: u16 = 1;
    /// Reason: closed by an administrator.
    pub const ADMIN: u16 = 0;
    /// Reason: unspecified.
    pub const UNSPECIFIED: u16 = 1;
    /// Reason: out of resources.
    pub const RESOURCES: u16 = 2;
}

/// One type-length-value element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tlv<'a> {
    /// Type; its meaning depends on the message.
    pub kind: u16,
    /// Value without type and length.
    pub value: &'a [u8],
}

/// A list of TLVs, borrowed from the message. It was checked as a whole, so iteration cannot fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tlvs<'a>(&'a [u8]);

impl<'a> Tlvs<'a> {
    /// Wraps a list that [`Tlvs::push`] wrote.
    ///
    /// # Errors
    /// The octets are not a valid list.
    pub fn new(octets: &'a [u8]) -> Result<Self, Error> {
        Self::read(ByteReader::new(octets, 0))
    }

    pub(super) fn read(octets: ByteReader<'a>) -> Result<Self, Error> {
        let mut rest = octets;
        while !rest.is_empty() {
            let offset = rest.at();
            read_tlv(&mut rest).ok_or(Error { offset, what: "a value that its message has no room for" })?;
        }
        Ok(Self(octets.rest()))
    }

    /// Appends a TLV to a list. Values are truncated to 65,535 octets.
    pub fn push(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
        let value = value.get(..usize::from(u16::MAX)).unwrap_or(value);
        out.extend_from_slice(&kind.to_be_bytes());
        out.extend_from_slice(&u16::try_from(value.len()).unwrap_or(u16::MAX).to_be_bytes());
        out.extend_from_slice(value);
    }

    /// Returns the encoded list.
    #[must_use]
    pub fn octets(&self) -> &'a [u8] {
        self.0
    }

    /// Iterates over the TLVs.
    pub fn iter(&self) -> impl Iterator<Item = Tlv<'a>> + use<'a> {
        let mut rest = ByteReader::new(self.0, 0);
        std::iter::from_fn(move || read_tlv(&mut rest))
    }
}

fn read_tlv<'a>(octets: &mut ByteReader<'a>) -> Option<Tlv<'a>> {
    let (kind, len) = (octets.u16()?, octets.u16()?);
    Some(Tlv { kind, value: octets.take(usize::from(len))? })
}

/// A statistic (RFC 7854 4.8, IANA registry "BMP Statistics Types").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Statistic {
    /// Type 0: number of prefixes rejected by import policy.
    Rejected(u32),
    /// Type 7: number of routes in the Adj-RIB-In, all families.
    AdjIn(u64),
    /// Type 8: number of routes in the Loc-RIB, all families.
    Loc(u64),
    /// Type 9: number of routes in the Adj-RIB-In of a family (AFI, SAFI).
    AdjInFamily(u16, u8, u64),
    /// Type 10: number of routes in the Loc-RIB of a family (AFI, SAFI).
    LocFamily(u16, u8, u64),
    /// Type 11: number of UPDATEs handled as treat-as-withdraw (RFC 7606).
    TreatAsWithdraw(u32),
    /// Another type with a four-octet counter: type and value.
    Counter(u16, u32),
    /// Another type with an eight-octet gauge: type and value.
    Gauge(u16, u64),
}

/// The statistics of a Statistics Report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statistics<'a> {
    count: u32,
    tlvs: Tlvs<'a>,
}

impl<'a> Statistics<'a> {
    pub(super) fn read(mut octets: ByteReader<'a>) -> Result<Self, Error> {
        let offset = octets.at();
        let count = octets.u32().ok_or(Error { offset, what: "no room for the number of statistics" })?;
        let tlvs = Tlvs::read(octets)?;
        if u32::try_from(tlvs.iter().count()) != Ok(count) {
            return Err(Error { offset, what: "another number of statistics than was promised" });
        }
        Ok(Self { count, tlvs })
    }

    /// Wraps a list that [`Statistics::push`] wrote.
    ///
    /// # Errors
    /// The octets are not a valid list.
    pub fn new(octets: &'a [u8]) -> Result<Self, Error> {
        let tlvs = Tlvs::new(octets)?;
        Ok(Self { count: u32::try_from(tlvs.iter().count()).unwrap_or(u32::MAX), tlvs })
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.count.to_be_bytes());
        out.extend_from_slice(self.tlvs.octets());
    }

    /// Appends a statistic to a list.
    pub fn push(out: &mut Vec<u8>, statistic: Statistic) {
        let family = |afi: u16, safi: u8, value: u64| {
            let mut octets = afi.to_be_bytes().to_vec();
            octets.push(safi);
            octets.extend_from_slice(&value.to_be_bytes());
            octets
        };
        match statistic {
            Statistic::Rejected(n) => Tlvs::push(out, 0, &n.to_be_bytes()),
            Statistic::AdjIn(n) => Tlvs::push(out, 7, &n.to_be_bytes()),
            Statistic::Loc(n) => Tlvs::push(out, 8, &n.to_be_bytes()),
            Statistic::AdjInFamily(afi, safi, n) => Tlvs::push(out, 9, &family(afi, safi, n)),
            Statistic::LocFamily(afi, safi, n) => Tlvs::push(out, 10, &family(afi, safi, n)),
            Statistic::TreatAsWithdraw(n) => Tlvs::push(out, 11, &n.to_be_bytes()),
            Statistic::Counter(kind, n) => Tlvs::push(out, kind, &n.to_be_bytes()),
            Statistic::Gauge(kind, n) => Tlvs::push(out, kind, &n.to_be_bytes()),
        }
    }

    /// Iterates over the statistics. Values of an unexpected size are skipped.
    pub fn iter(&self) -> impl Iterator<Item = Statistic> + use<'a> {
        self.tlvs.iter().filter_map(|tlv| {
            let mut value = ByteReader::new(tlv.value, 0);
            let statistic = match (tlv.kind, tlv.value.len()) {
                (0, 4) => Statistic::Rejected(value.u32()?),
                (11, 4) => Statistic::TreatAsWithdraw(value.u32()?),
                (7, 8) => Statistic::AdjIn(u64::from_be_bytes(value.array()?)),
                (8, 8) => Statistic::Loc(u64::from_be_bytes(value.array()?)),
                (9 | 10, 11) => {
                    let (afi, safi, n) = (value.u16()?, value.u8()?, u64::from_be_bytes(value.array()?));
                    if tlv.kind == 9 {
                        Statistic::AdjInFamily(afi, safi, n)
                    } else {
                        Statistic::LocFamily(afi, safi, n)
                    }
                }
                (kind, 4) => Statistic::Counter(kind, value.u32()?),
                (kind, 8) => Statistic::Gauge(kind, u64::from_be_bytes(value.array()?)),
                _ => return None,
            };
            Some(statistic)
        })
    }
}
