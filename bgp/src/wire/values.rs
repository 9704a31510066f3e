//! Decoders of single attribute values (RFC 7606 section 7), independent of the attribute list: octets in,
//! value or error out.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::notification::ErrorCode;
use super::problem::Fault::{self, Discard, Withdraw};
use crate::attr::{Aggregator, AsPath, Origin, SegmentKind};
use crate::types::Family;

const WRONG_LENGTH: Fault = Withdraw(ErrorCode::ATTRIBUTE_LENGTH, "wrong length");

pub(super) fn fixed<const N: usize>(value: &[u8]) -> Result<[u8; N], Fault> {
    value.try_into().map_err(|_| WRONG_LENGTH)
}

pub(super) fn number(value: &[u8]) -> Result<u32, Fault> {
    fixed(value).map(u32::from_be_bytes)
}

/// Splits a value into items of `N` octets; an error if it is empty or not a multiple of `N`.
pub(super) fn chunks<const N: usize>(value: &[u8]) -> Result<&[[u8; N]], Fault> {
    match value.as_chunks::<N>() {
        (items, []) if !items.is_empty() => Ok(items),
        _ => Err(WRONG_LENGTH),
    }
}

pub(super) fn numbers(value: &[u8]) -> Result<Box<[u32]>, Fault> {
    Ok(chunks::<4>(value)?.iter().map(|c| u32::from_be_bytes(*c)).collect())
}

/// Decodes ORIGIN (RFC 7606 7.1).
pub(super) fn origin(value: &[u8]) -> Result<Origin, Fault> {
    let [code] = fixed(value)?;
    Origin::from_code(code).ok_or(Withdraw(ErrorCode::INVALID_ORIGIN, "undefined value"))
}

/// Decodes AGGREGATOR or AS4_AGGREGATOR (RFC 7606 7.7, RFC 7607).
pub(super) fn aggregator(value: &[u8], as4: bool) -> Result<Aggregator, Fault> {
    let (asn, id) = match *value {
        [a, b, c, d, ref id @ ..] if as4 && id.len() == 4 => (u32::from_be_bytes([a, b, c, d]), id),
        [a, b, ref id @ ..] if !as4 && id.len() == 4 => (u32::from(u16::from_be_bytes([a, b])), id),
        _ => return Err(Discard("wrong length")),
    };
    if asn == 0 {
        return Err(Discard("AS 0 (RFC 7607)"));
    }
    Ok(Aggregator { asn, router_id: Ipv4Addr::from(fixed::<4>(id)?) })
}

/// Number of items above which duplicates are found with a sorted set. Pairwise comparison of the 5,000 items
/// of an extended message would take milliseconds. Not a hash set, because the peer chooses the items.
const FEW: usize = 16;

/// Decodes large communities without duplicates (RFC 8092 3, 6).
pub(super) fn large_communities(value: &[u8]) -> Result<Box<[[u32; 3]]>, Fault> {
    let items = chunks::<12>(value)?;
    let mut all: Vec<[u32; 3]> = Vec::with_capacity(items.len());
    let mut set = BTreeSet::new();
    for item in items {
        let mut numbers = [0; 3];
        for (to, from) in numbers.iter_mut().zip(item.as_chunks::<4>().0) {
            *to = u32::from_be_bytes(*from);
        }
        let fresh = if items.len() <= FEW { !all.contains(&numbers) } else { set.insert(numbers) };
        if fresh {
            all.push(numbers);
        }
    }
    Ok(all.into_boxed_slice())
}

/// Handling of confederation segments. This speaker is never a member of a confederation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Confed {
    /// AS_PATH: malformed (RFC 5065 5).
    Refuse,
    /// AS4_PATH: the segments are removed (RFC 6793 6).
    LeaveOut,
}

/// Decodes AS_PATH or AS4_PATH (RFC 7606 7.2, RFC 5065 5, RFC 7607).
pub(super) fn as_path(value: &[u8], as4: bool, confed: Confed) -> Result<AsPath, &'static str> {
    let mut octets = Vec::with_capacity(if as4 { value.len() } else { value.len() * 2 });
    let mut rest = value;
    while let [kind, count, tail @ ..] = rest {
        let kind = SegmentKind::from_code(*kind).ok_or("unknown segment type")?;
        let size = usize::from(*count) * if as4 { 4 } else { 2 };
        let (ases, tail) = tail.split_at_checked(size).ok_or("segment longer than the path")?;
        rest = tail;
        if ases.is_empty() {
            return Err("empty segment");
        }
        if kind.is_confed() {
            match confed {
                Confed::Refuse => return Err("confederation segment"),
                Confed::LeaveOut => continue,
            }
        }
        octets.extend_from_slice(&[kind as u8, *count]);
        if as4 {
            if ases.as_chunks::<4>().0.contains(&[0; 4]) {
                return Err("AS 0 (RFC 7607)");
            }
            octets.extend_from_slice(ases);
        } else {
            for [a, b] in ases.as_chunks::<2>().0 {
                if (*a, *b) == (0, 0) {
                    return Err("AS 0 (RFC 7607)");
                }
                octets.extend_from_slice(&[0, 0, *a, *b]);
            }
        }
    }
    if rest.is_empty() {
        Ok(AsPath::from_checked(octets.into_boxed_slice()))
    } else {
        Err("segment cut short")
    }
}

/// Decodes the next hop of MP_REACH_NLRI (RFC 4760, RFC 2545, RFC 8950, draft-ietf-idr-linklocal-capability)
/// to the next hop and the link-local address. Forms: IPv4; global IPv6; link-local alone; global and
/// link-local; link-local twice; unspecified and link-local; IPv4-mapped. `None` for a length that the family
/// does not allow. Bits 32 to 63 of a link-local address, which are zero by definition (RFC 4291 2.5.6), are
/// cleared, because [`ScopedAddr`](tortie_net::ScopedAddr) stores the interface index there.
pub(super) fn mp_next_hop(
    family: Family,
    octets: &[u8],
    ext_nexthop: bool,
) -> Option<(IpAddr, Option<Ipv6Addr>)> {
    if let (Family::Ipv4Unicast, Ok(v4)) = (family, <[u8; 4]>::try_from(octets)) {
        return Some((IpAddr::V4(Ipv4Addr::from(v4)), None));
    }
    if family == Family::Ipv4Unicast && !ext_nexthop {
        return None;
    }
    let read = |octets: [u8; 16]| match (Ipv6Addr::from(octets), Ipv6Addr::from(octets).segments()) {
        (link_local, [a, b, _, _, e, f, g, h]) if link_local.is_unicast_link_local() => {
            Ipv6Addr::new(a, b, 0, 0, e, f, g, h)
        }
        (other, _) => other,
    };
    let (first, second) = match octets.as_chunks::<16>() {
        ([first], []) => (read(*first), None),
        ([first, second], []) => (read(*first), Some(read(*second))),
        _ => return None,
    };
    let second = second.filter(Ipv6Addr::is_unicast_link_local);
    let link_local = if first.is_unicast_link_local() { second.or(Some(first)) } else { second };
    let hop = match link_local {
        Some(link_local) if first.is_unspecified() || first.is_unicast_link_local() => link_local,
        _ => first,
    };
    match hop.to_ipv4_mapped() {
        Some(v4) if family == Family::Ipv4Unicast => Some((IpAddr::V4(v4), None)),
        _ => Some((IpAddr::V6(hop), link_local)),
    }
}

/// Returns true if the address can be a unicast address of a neighbour.
pub(super) fn is_host(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(a) => {
            // 0/8, loopback, multicast and the reserved range including broadcast.
            !matches!(a.octets(), [0 | 127 | 224.., ..])
        }
        IpAddr::V6(a) => !a.is_unspecified() && !a.is_loopback() && !a.is_multicast(),
    }
}
