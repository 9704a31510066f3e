//! Attributes as tables keep them (RFC 6396 4.3.4), to and from the speaker's.

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

/// Which format the attributes come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Two-octet ASes.
    TableV1,
    /// Four-octet ASes, and MP_REACH_NLRI cut to its next hop.
    TableV2,
}

/// Path attributes of a path in a table, as they stand there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawAttributes<'a> {
    octets: &'a [u8],
    form: Form,
}

impl<'a> RawAttributes<'a> {
    pub(super) fn new(octets: &'a [u8], form: Form) -> Self {
        Self { octets, form }
    }

    /// The octets, unjudged.
    #[must_use]
    pub fn octets(&self) -> &'a [u8] {
        self.octets
    }

    /// The attributes of the path for `prefix`, judged as those of an UPDATE are (RFC 7606). MP_REACH_NLRI is read in its
    /// short form and in the full one that old collectors write. What the collector originates has no next hop: collectors
    /// write the unspecified address there, which no UPDATE may say.
    ///
    /// # Errors
    /// The error.
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

    /// The UPDATE that would have brought the path: what reads that reads this. `true`: there is no next hop, and one of
    /// the addresses of documentation stands for it.
    fn update_body(&self, prefix: Cidr) -> Option<(Vec<u8>, bool)> {
        let mut attributes = Vec::with_capacity(self.octets.len() + 32);
        let mut rest = ByteReader::new(self.octets, 0);
        // Whether each of the two attributes says that there is no next hop; beside MP_REACH_NLRI NEXT_HOP says nothing
        // (RFC 4760 3).
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
                // Of no meaning in a table.
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

/// What stands for the unspecified address of a family (RFC 5737, RFC 3849).
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

/// The next hop in either form of MP_REACH_NLRI: the full one begins with a family, whose first octet is 0.
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

/// Appends attributes as TABLE_DUMP_V2 keeps them: ASes of four octets, next hops that are not those of classic IPv4
/// routes in a short MP_REACH_NLRI. LOCAL_PREF stands there if the route has one. `false`: one of them is longer than an
/// attribute can be, and nothing was written.
pub fn encode_attributes(attributes: &Attributes, out: &mut Vec<u8>) -> bool {
    write_table_attributes(attributes, out).is_some()
}
