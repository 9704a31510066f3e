//! Lists of typed values (RFC 7854 4.4, 4.5, 4.8).

use super::error::Error;
use crate::reader::ByteReader;

/// Types of Information TLVs (RFC 7854 4.4, RFC 9069 5.2.1).
pub mod info {
    /// Free text.
    pub const TEXT: u16 = 0;
    /// What RFC 3418 calls sysDescr.
    pub const SYS_DESCR: u16 = 1;
    /// What RFC 3418 calls sysName.
    pub const SYS_NAME: u16 = 2;
    /// The name of a VRF or table; `global` for the Loc-RIB without one.
    pub const TABLE: u16 = 3;
}

/// Types of TLVs in a Termination, and its reasons (RFC 7854 4.5).
pub mod termination {
    /// Free text.
    pub const TEXT: u16 = 0;
    /// A reason of two octets.
    pub const REASON: u16 = 1;
    /// Reason: somebody closed it.
    pub const ADMIN: u16 = 0;
    /// Reason: not said.
    pub const UNSPECIFIED: u16 = 1;
    /// Reason: no resources.
    pub const RESOURCES: u16 = 2;
}

/// One typed value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tlv<'a> {
    /// Its type; what it means depends on the message.
    pub kind: u16,
    /// Its value.
    pub value: &'a [u8],
}

/// A list of typed values, still in the message. It was checked as a whole, so reading it cannot fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tlvs<'a>(&'a [u8]);

impl<'a> Tlvs<'a> {
    /// A list that [`Tlvs::push`] wrote.
    ///
    /// # Errors
    /// When these octets are no such list.
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

    /// Appends a value to a list; what is beyond 65,535 octets is cut off.
    pub fn push(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
        let value = value.get(..usize::from(u16::MAX)).unwrap_or(value);
        out.extend_from_slice(&kind.to_be_bytes());
        out.extend_from_slice(&u16::try_from(value.len()).unwrap_or(u16::MAX).to_be_bytes());
        out.extend_from_slice(value);
    }

    /// As it is written.
    #[must_use]
    pub fn octets(&self) -> &'a [u8] {
        self.0
    }

    /// One after the other.
    pub fn iter(&self) -> impl Iterator<Item = Tlv<'a>> + use<'a> {
        let mut rest = ByteReader::new(self.0, 0);
        std::iter::from_fn(move || read_tlv(&mut rest))
    }
}

fn read_tlv<'a>(octets: &mut ByteReader<'a>) -> Option<Tlv<'a>> {
    let (kind, len) = (octets.u16()?, octets.u16()?);
    Some(Tlv { kind, value: octets.take(usize::from(len))? })
}

/// A statistic (RFC 7854 4.8, and the IANA registry "BMP Statistics Types").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Statistic {
    /// 0: prefixes that import policy refused.
    Rejected(u32),
    /// 7: routes in the Adj-RIB-In, all families.
    AdjIn(u64),
    /// 8: routes in the Loc-RIB, all families.
    Loc(u64),
    /// 9: routes in the Adj-RIB-In of a family, by AFI and SAFI.
    AdjInFamily(u16, u8, u64),
    /// 10: routes in the Loc-RIB of a family.
    LocFamily(u16, u8, u64),
    /// 11: UPDATEs that were treated as withdrawals (RFC 7606).
    TreatAsWithdraw(u32),
    /// Others that are counters of four octets.
    Counter(u16, u32),
    /// Others that are gauges of eight octets.
    Gauge(u16, u64),
}

/// The statistics of a message.
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

    /// Those that [`Statistics::push`] wrote.
    ///
    /// # Errors
    /// When these octets are no such list.
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

    /// One after the other; those whose value is of a size that no statistic has are left out.
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
