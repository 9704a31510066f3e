//! Counts announced and withdrawn routes of unsupported address families in an UPDATE.

/// Types of MP_REACH_NLRI and MP_UNREACH_NLRI (RFC 4760).
const MP_REACH: u8 = 14;
const MP_UNREACH: u8 = 15;
/// Flag of an attribute with a two-octet length (RFC 4271 4.3).
const EXTENDED: u8 = 0x10;
const UNICAST: u8 = 1;

/// Numbers of routes of other families in an UPDATE.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct OtherRoutes {
    /// Number of announced routes.
    pub(super) announced: u64,
    pub(super) withdrawn: u64,
    /// Number of attributes whose routes cannot be counted, because their format is unknown or they are
    /// truncated.
    pub(super) uncounted: u64,
}

impl OtherRoutes {
    /// Counts the routes in the body of an UPDATE.
    pub(super) fn of(body: &[u8], add_path: bool) -> Self {
        let mut found = Self::default();
        let mut attributes = attributes(body).unwrap_or_default();
        while let Some((kind, value, rest)) = attribute(attributes) {
            attributes = rest;
            if let (MP_REACH | MP_UNREACH, [a, b, safi, after @ ..]) = (kind, value) {
                let afi = u16::from_be_bytes([*a, *b]);
                if matches!(afi, 1 | 2) && *safi == UNICAST {
                    continue;
                }
                let nlri = if kind == MP_REACH { behind_next_hop(after) } else { Some(after) };
                let count = nlri.and_then(|nlri| count(afi, *safi, nlri, add_path));
                let place = if kind == MP_REACH { &mut found.announced } else { &mut found.withdrawn };
                match count {
                    Some(count) => *place += count,
                    None => found.uncounted += 1,
                }
            }
        }
        found
    }

    pub(super) fn add(&mut self, other: Self) {
        self.announced += other.announced;
        self.withdrawn += other.withdrawn;
        self.uncounted += other.uncounted;
    }

    pub(super) fn is_none(self) -> bool {
        self == Self::default()
    }
}

/// Returns the path attributes of an UPDATE.
fn attributes(body: &[u8]) -> Option<&[u8]> {
    let (_, rest) = sized(body)?;
    Some(sized(rest)?.0)
}

/// Splits off a field with a two-octet length, and returns it and the rest.
fn sized(octets: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = octets.split_first_chunk::<2>()?;
    rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))
}

/// Splits off the first attribute: its type, its value, and the rest.
fn attribute(octets: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let ([flags, kind], rest) = octets.split_first_chunk::<2>()?;
    let (value, rest) = if flags & EXTENDED > 0 {
        sized(rest)?
    } else {
        let (length, rest) = rest.split_first()?;
        rest.split_at_checked(usize::from(*length))?
    };
    Some((*kind, value, rest))
}

/// Returns the octets after the next hop and a reserved octet.
fn behind_next_hop(octets: &[u8]) -> Option<&[u8]> {
    let (length, rest) = octets.split_first()?;
    let (_, rest) = rest.split_at_checked(usize::from(*length))?;
    Some(rest.split_first()?.1)
}

/// Counts routes; `None` if the format of the family is unknown or the routes are truncated.
fn count(afi: u16, safi: u8, mut nlri: &[u8], add_path: bool) -> Option<u64> {
    let mut count = 0;
    while !nlri.is_empty() {
        if add_path {
            nlri = nlri.split_first_chunk::<4>()?.1;
        }
        let length = match (afi, safi) {
            // Length in bits: multicast, labels, VPNs, route targets (RFC 4760, 8277, 4364, 6514, 4684).
            (1 | 2, 2 | 4 | 128 | 129 | 132) => {
                let (bits, rest) = nlri.split_first()?;
                nlri = rest;
                usize::from(*bits).div_ceil(8)
            }
            // Type and length: MVPN, MCAST-VPLS, EVPN (RFC 6514, 7117, 7432).
            (1 | 2, 5) | (25, 5 | 70) => {
                let ([_, length], rest) = nlri.split_first_chunk::<2>()?;
                nlri = rest;
                usize::from(*length)
            }
            // Length in octets, two octets from 240 on: flow specifications (RFC 8955 4.1).
            (1 | 2 | 25, 133 | 134) => {
                let (first, rest) = nlri.split_first()?;
                nlri = rest;
                if *first < 0xf0 {
                    usize::from(*first)
                } else {
                    let (second, rest) = nlri.split_first()?;
                    nlri = rest;
                    usize::from(u16::from_be_bytes([*first & 0x0f, *second]))
                }
            }
            // Two-octet length: VPLS (RFC 4761), and after a type: BGP-LS (RFC 9552).
            (25, 65) => {
                let (length, rest) = nlri.split_first_chunk::<2>()?;
                nlri = rest;
                usize::from(u16::from_be_bytes(*length))
            }
            (16_388, 71 | 72) => {
                let ([_, _, a, b], rest) = nlri.split_first_chunk::<4>()?;
                nlri = rest;
                usize::from(u16::from_be_bytes([*a, *b]))
            }
            _ => return None,
        };
        nlri = nlri.split_at_checked(length)?.1;
        count += 1;
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encodes the body of an UPDATE with one attribute.
    fn update(kind: u8, value: &[u8]) -> Vec<u8> {
        let mut attribute = vec![0x80 | EXTENDED, kind];
        attribute.extend(u16::try_from(value.len()).unwrap().to_be_bytes());
        attribute.extend(value);
        let mut body = vec![0, 0];
        body.extend(u16::try_from(attribute.len()).unwrap().to_be_bytes());
        body.extend(attribute);
        body
    }

    /// AFI, SAFI, and the octets of one route of the family.
    const ROUTES: &[(u16, u8, &[u8])] = &[
        (1, 2, &[24, 233, 252, 0]),
        (2, 2, &[16, 0xff, 0x0e]),
        (1, 4, &[48, 0, 1, 1, 10, 0, 0]),
        (1, 128, &[112, 0, 1, 1, 0, 0, 0, 1, 0, 0, 0, 2, 10, 0, 0]),
        (2, 128, &[104, 0, 1, 1, 0, 0, 0, 1, 0, 0, 0, 2, 0x20, 1]),
        (1, 129, &[88, 0, 0, 0, 1, 0, 0, 0, 2, 10, 0, 0]),
        (1, 132, &[96, 0, 0, 0xfd, 0xe8, 0, 2, 0xfd, 0xe8, 0, 0, 0, 1]),
        (1, 5, &[1, 4, 9, 9, 9, 9]),
        (25, 70, &[3, 5, 1, 2, 3, 4, 5]),
        (25, 65, &[0, 3, 1, 2, 3]),
        (1, 133, &[5, 1, 24, 10, 0, 0]),
        (16_388, 71, &[0, 1, 0, 2, 7, 7]),
    ];

    #[test]
    fn routes_of_other_families_are_counted_by_the_form_of_their_family() {
        for (afi, safi, route) in ROUTES {
            let head = [&afi.to_be_bytes()[..], &[*safi]].concat();
            let three = [*route, *route, *route].concat();
            let unreach = update(MP_UNREACH, &[&head[..], &three].concat());
            let expected = OtherRoutes { withdrawn: 3, ..OtherRoutes::default() };
            assert_eq!(OtherRoutes::of(&unreach, false), expected, "{afi}/{safi}");
            let reach = update(MP_REACH, &[&head[..], &[4, 192, 0, 2, 1, 0], &three].concat());
            let expected = OtherRoutes { announced: 3, ..OtherRoutes::default() };
            assert_eq!(OtherRoutes::of(&reach, false), expected, "{afi}/{safi}");
            let with_ids = [&[0, 0, 0, 1], *route, &[0, 0, 0, 2], *route].concat();
            let reach = update(MP_REACH, &[&head[..], &[0, 0], &with_ids].concat());
            assert_eq!(OtherRoutes::of(&reach, true).announced, 2, "{afi}/{safi} with path ids");
            let cut = update(MP_UNREACH, &[&head[..], &three[..three.len() - 1]].concat());
            let expected = OtherRoutes { uncounted: 1, ..OtherRoutes::default() };
            assert_eq!(OtherRoutes::of(&cut, false), expected, "{afi}/{safi}, cut");
        }
        let unknown = update(MP_UNREACH, &[0x40, 0, 9, 1, 2, 3]);
        assert_eq!(OtherRoutes::of(&unknown, false).uncounted, 1);
        for unicast in [&[0, 1, 1, 24, 10, 0, 0][..], &[0, 2, 1, 16, 0x20, 1]] {
            assert!(OtherRoutes::of(&update(MP_UNREACH, unicast), false).is_none());
        }
        // Truncation at any octet causes no panic and no endless loop.
        let whole = update(MP_REACH, &[0, 25, 70, 4, 1, 2, 3, 4, 0, 3, 5, 1, 2, 3, 4, 5]);
        for end in 0..whole.len() {
            let _ = OtherRoutes::of(&whole[..end], end % 2 == 0);
        }
    }
}
