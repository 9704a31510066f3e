//! Conversion between the attribute encoding of MRT table dumps (RFC 6396 4.3.4) and [`Attributes`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tortie_net::Cidr;

use crate::attr::Attributes;
use crate::reader::ByteReader;
use crate::types::Family;
use crate::wire::{Families, Negotiated, Problem, Update, write_table_attributes};

const NEXT_HOP: u8 = 3;
const MP_REACH: u8 = 14;
const MP_UNREACH: u8 = 15;
const EXTENDED: u8 = 0x10;

/// Attribute encoding by table format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// TABLE_DUMP: two-octet AS numbers.
    TableV1,
    /// TABLE_DUMP_V2: four-octet AS numbers, and MP_REACH_NLRI reduced to its next hop.
    TableV2,
}

/// Encoded path attributes of a table dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawAttributes<'a> {
    octets: &'a [u8],
    form: Form,
}

impl<'a> RawAttributes<'a> {
    pub(super) fn new(octets: &'a [u8], form: Form) -> Self {
        Self { octets, form }
    }

    /// Returns the octets, not validated.
    #[must_use]
    pub fn octets(&self) -> &'a [u8] {
        self.octets
    }

    /// Decodes the attributes of the path for `prefix`, with the error handling of an UPDATE (RFC 7606).
    /// MP_REACH_NLRI is accepted in its reduced form and in the full form that old collectors write. For
    /// routes that the collector itself originates, the next hop is the unspecified address, which an UPDATE
    /// could not have.
    ///
    /// # Errors
    /// The first attribute error.
    pub fn decode(&self, prefix: Cidr) -> Result<Attributes, Problem> {
        let (body, originated) =
            self.update_body(prefix).ok_or(problem(0, "the attributes do not add up"))?;
        let session = Negotiated {
            ebgp: false,
            as4: self.form == Form::TableV2,
            extended: true,
            families: Families::ALL,
            ext_nexthop: true,
            add_path_receive: Families::NONE,
            add_path_send: Families::NONE,
            reject_as_sets: false,
        };
        let update = Update::decode(&body, &session)
            .map_err(|n| problem(n.data.first().copied().unwrap_or(0), n.code.text()))?;
        if let Some(problem) = update.malformed {
            return Err(problem);
        }
        let reach = update.reach.into_iter().find(|r| r.nlri.cidrs().eq([prefix]));
        let mut attributes =
            reach.map(|r| r.attributes).ok_or(problem(MP_REACH, "no next hop for this prefix"))?;
        if originated {
            attributes.next_hop = match attributes.next_hop.addr() {
                IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
            };
        }
        Ok(attributes)
    }

    /// Builds the body of an UPDATE that announces the path, so that the UPDATE decoder can read it. Returns
    /// true with it if the next hop is unspecified and a documentation address replaces it.
    fn update_body(&self, prefix: Cidr) -> Option<(Vec<u8>, bool)> {
        let mut attributes = Vec::with_capacity(self.octets.len() + 32);
        let mut rest = ByteReader::new(self.octets, 0);
        // Per attribute: true if its next hop is unspecified. NEXT_HOP is ignored next to MP_REACH_NLRI (RFC
        // 4760 3).
        let (mut multiprotocol, mut classic) = (None, false);
        while !rest.is_empty() {
            let start = rest.rest();
            let (flags, code) = (rest.u8()?, rest.u8()?);
            let len = if flags & EXTENDED != 0 { usize::from(rest.u16()?) } else { usize::from(rest.u8()?) };
            let value = rest.take(len)?;
            match code {
                MP_REACH => {
                    let said = next_hop(value)?;
                    let hop = stand_in(said).unwrap_or(said);
                    multiprotocol = Some(hop != said);
                    let family = Family::of(prefix.addr());
                    let mut full = family.afi().to_be_bytes().to_vec();
                    full.extend_from_slice(&[family.safi(), u8::try_from(hop.len()).ok()?]);
                    full.extend_from_slice(hop);
                    full.push(0);
                    write_nlri(&mut full, prefix);
                    attributes.extend_from_slice(&[flags | EXTENDED, code]);
                    attributes.extend_from_slice(&u16::try_from(full.len()).ok()?.to_be_bytes());
                    attributes.extend_from_slice(&full);
                }
                // Meaningless in a table.
                MP_UNREACH => {}
                NEXT_HOP if let Some(hop) = stand_in(value) => {
                    classic = true;
                    attributes.extend_from_slice(&[flags & !EXTENDED, code, u8::try_from(hop.len()).ok()?]);
                    attributes.extend_from_slice(hop);
                }
                _ => {
                    let whole = start.len().checked_sub(rest.rest().len())?;
                    attributes.extend_from_slice(start.get(..whole)?);
                }
            }
        }
        let mut body = vec![0, 0];
        body.extend_from_slice(&u16::try_from(attributes.len()).ok()?.to_be_bytes());
        body.extend_from_slice(&attributes);
        if multiprotocol.is_none() && prefix.is_v4() {
            write_nlri(&mut body, prefix);
        }
        Some((body, multiprotocol.unwrap_or(classic)))
    }
}

/// Returns the documentation address that replaces the unspecified address of a family (RFC 5737, RFC 3849).
fn stand_in(hop: &[u8]) -> Option<&'static [u8]> {
    const V4: [u8; 4] = [192, 0, 2, 1];
    const V6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
    match hop {
        [0, 0, 0, 0] => Some(&V4),
        hop if hop.len() == V6.len() && hop.iter().all(|octet| *octet == 0) => Some(&V6),
        _ => None,
    }
}

fn problem(attribute: u8, reason: &'static str) -> Problem {
    Problem { attribute, reason }
}

/// Returns the next hop of either form of MP_REACH_NLRI. The full form begins with an AFI, whose first octet
/// is 0.
fn next_hop(value: &[u8]) -> Option<&[u8]> {
    let mut octets = ByteReader::new(value, 0);
    if value.first() == Some(&0) {
        octets.take(3)?;
        let len = octets.u8()?;
        octets.take(usize::from(len))
    } else {
        let len = octets.u8()?;
        octets.take(usize::from(len)).filter(|_| octets.is_empty())
    }
}

fn write_nlri(out: &mut Vec<u8>, prefix: Cidr) {
    out.push(prefix.len());
    let len = usize::from(prefix.len().div_ceil(8));
    match prefix.addr() {
        std::net::IpAddr::V4(a) => out.extend(a.octets().into_iter().take(len)),
        std::net::IpAddr::V6(a) => out.extend(a.octets().into_iter().take(len)),
    }
}

/// Appends attributes in the TABLE_DUMP_V2 encoding: four-octet AS numbers, and a reduced MP_REACH_NLRI for
/// all routes other than IPv4 with an IPv4 next hop. LOCAL_PREF is written if the route has one. Returns
/// false, and writes nothing, if an attribute exceeds the maximum length.
pub fn encode_attributes(attributes: &Attributes, out: &mut Vec<u8>) -> bool {
    write_table_attributes(attributes, out).is_some()
}
