//! Communities of three kinds in filters, exact or with wildcards.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

/// A community pattern: a value and the mask of its significant bits. It matches all communities with equal
/// significant bits.
///
/// `T` is `u32` for communities (RFC 1997), `[u32; 3]` for large (RFC 8092) and `[u8; 8]` for extended ones
/// (RFC 4360).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CommunityPattern<T> {
    /// Required bits; 0 where the mask is 0.
    pub value: T,
    /// Mask of the significant bits.
    pub mask: T,
}

/// A kind of community.
pub trait CommunityKind: Copy + PartialEq + fmt::Debug {
    /// Expected format of a pattern, for errors.
    const EXPECTED: &'static str;
    /// Mask with all bits set.
    const FULL: Self;
    /// Mask without bits.
    const EMPTY: Self;
    /// Returns the bitwise AND.
    #[must_use]
    fn and(self, other: Self) -> Self;
    /// Parses value and mask.
    fn read(text: &str) -> Option<(Self, Self)>;
    /// Formats a pattern so that [`CommunityKind::read`] can parse it.
    ///
    /// # Errors
    /// Errors of the formatter.
    fn write(pattern: &CommunityPattern<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result;
}

impl<T: CommunityKind> CommunityPattern<T> {
    /// Pattern that matches every community.
    pub const ALL: Self = Self { value: T::EMPTY, mask: T::EMPTY };

    /// Returns the pattern that matches a single community.
    #[must_use]
    pub fn exactly(value: T) -> Self {
        Self { value, mask: T::FULL }
    }

    /// Returns true if the pattern matches the community.
    #[must_use]
    pub fn matches(&self, community: &T) -> bool {
        community.and(self.mask) == self.value
    }

    /// Returns the community, if the pattern matches only one.
    #[must_use]
    pub fn single(&self) -> Option<T> {
        (self.mask == T::FULL).then_some(self.value)
    }
}

impl<T: CommunityKind> FromStr for CommunityPattern<T> {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (value, mask) = T::read(text).ok_or(())?;
        Ok(Self { value: value.and(mask), mask })
    }
}

impl<T: CommunityKind> fmt::Display for CommunityPattern<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        T::write(self, f)
    }
}

/// Well-known communities of RFC 1997, 7611, 7999, 8326 and 9494.
const WELL_KNOWN: [(&str, u32); 8] = [
    ("graceful-shutdown", 0xFFFF_0000),
    ("accept-own", 0xFFFF_0001),
    ("llgr-stale", 0xFFFF_0006),
    ("no-llgr", 0xFFFF_0007),
    ("blackhole", 0xFFFF_029A),
    ("no-export", 0xFFFF_FF01),
    ("no-advertise", 0xFFFF_FF02),
    ("no-export-subconfed", 0xFFFF_FF03),
];

/// Parses a decimal number, or `*` as `None`.
fn part(text: &str, max: u32) -> Option<Option<u32>> {
    if text == "*" {
        return Some(None);
    }
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|n| digits && *n <= max).map(Some)
}

fn star(value: u32, mask: u32) -> String {
    if mask == 0 { "*".to_owned() } else { value.to_string() }
}

impl CommunityKind for u32 {
    const EXPECTED: &'static str = "write a community such as 65000:100, 65000:* or no-export";
    const FULL: Self = Self::MAX;
    const EMPTY: Self = 0;

    fn and(self, other: Self) -> Self {
        self & other
    }

    fn read(text: &str) -> Option<(Self, Self)> {
        if let Some((_, value)) = WELL_KNOWN.iter().find(|(name, _)| *name == text) {
            return Some((*value, Self::MAX));
        }
        let (high, low) = text.split_once(':')?;
        let (high, low) = (part(high, 0xffff)?, part(low, 0xffff)?);
        let mask = (if high.is_some() { 0xffff_0000 } else { 0 }) | if low.is_some() { 0xffff } else { 0 };
        Some((high.unwrap_or(0) << 16 | low.unwrap_or(0), mask))
    }

    fn write(pattern: &CommunityPattern<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = WELL_KNOWN.iter().find(|(_, value)| pattern.single() == Some(*value));
        if let Some((name, _)) = known {
            return f.write_str(name);
        }
        let high = star(pattern.value >> 16, pattern.mask >> 16);
        write!(f, "{high}:{}", star(pattern.value & 0xffff, pattern.mask & 0xffff))
    }
}

impl CommunityKind for [u32; 3] {
    const EXPECTED: &'static str = "write a large community such as 65000:1:2 or 65000:1:*";
    const FULL: Self = [u32::MAX; 3];
    const EMPTY: Self = [0; 3];

    fn and(self, [a, b, c]: Self) -> Self {
        let [x, y, z] = self;
        [x & a, y & b, z & c]
    }

    fn read(text: &str) -> Option<(Self, Self)> {
        let mut parts = text.split(':').map(|text| part(text, u32::MAX));
        let all = [parts.next()??, parts.next()??, parts.next()??];
        let mask = all.map(|n| if n.is_some() { u32::MAX } else { 0 });
        parts.next().is_none().then(|| (all.map(|n| n.unwrap_or(0)), mask))
    }

    fn write(pattern: &CommunityPattern<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([a, b, c], [x, y, z]) = (pattern.value, pattern.mask);
        write!(f, "{}:{}:{}", star(a, x), star(b, y), star(c, z))
    }
}

/// Names of subtypes that exist for 2-octet AS, IPv4 and 4-octet AS (RFC 4360, sections 4 and 5).
const SUBTYPES: [(&str, u8); 2] = [("rt", 2), ("soo", 3)];

impl CommunityKind for [u8; 8] {
    const EXPECTED: &'static str = "write an extended community such as rt:65000:100, soo:192.0.2.1:7, rt:65000:*, or its \
                                    first octets as 0x00020064*";
    const FULL: Self = [0xff; 8];
    const EMPTY: Self = [0; 8];

    fn and(self, other: Self) -> Self {
        (u64::from_be_bytes(self) & u64::from_be_bytes(other)).to_be_bytes()
    }

    fn read(text: &str) -> Option<(Self, Self)> {
        if let Some(hex) = text.strip_prefix("0x") {
            return octets(hex);
        }
        let mut parts = text.split(':');
        let (name, admin, local) = (parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() {
            return None;
        }
        let (_, subtype) = SUBTYPES.into_iter().find(|(known, _)| *known == name)?;
        // The type of the administrator field determines the size of the remainder (RFC 4360, sections 3.1
        // and 3.2, and RFC 5668, section 2).
        let (kind, admin, short) = if let Ok(address) = admin.parse::<Ipv4Addr>() {
            (1u8, u32::from(address), true)
        } else {
            let asn = part(admin, u32::MAX)??;
            if asn > 0xffff { (2, asn, true) } else { (0, asn, false) }
        };
        let local = part(local, if short { 0xffff } else { u32::MAX })?;
        let number = local.unwrap_or(0);
        let low = if short {
            u64::from(admin) << 16 | u64::from(number)
        } else {
            u64::from(admin) << 32 | u64::from(number)
        };
        let open = match (local, short) {
            (Some(_), _) => 0,
            (None, true) => 0xffff,
            (None, false) => 0xffff_ffff_u64,
        };
        let value = u64::from(kind) << 56 | u64::from(subtype) << 48 | low;
        Some((value.to_be_bytes(), (!open).to_be_bytes()))
    }

    fn write(pattern: &CommunityPattern<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [kind, subtype, a, b, c, d, e, g] = pattern.value;
        let name = SUBTYPES.iter().find(|(_, known)| *known == subtype).map(|(name, _)| *name);
        let open = (!u64::from_be_bytes(pattern.mask)).count_ones();
        let long = u32::from_be_bytes([a, b, c, d]);
        let text = |admin: String, local: u32, width: u32| {
            let local = if open == 0 { local.to_string() } else { "*".to_owned() };
            name.filter(|_| open == 0 || open == width).map(|name| format!("{name}:{admin}:{local}"))
        };
        let short = u32::from(u16::from_be_bytes([e, g]));
        let named = match kind {
            0 => text(u16::from_be_bytes([a, b]).to_string(), u32::from_be_bytes([c, d, e, g]), 32),
            1 => text(Ipv4Addr::from(long).to_string(), short, 16),
            2 if long > 0xffff => text(long.to_string(), short, 16),
            _ => None,
        };
        if let Some(named) = named {
            return f.write_str(&named);
        }
        f.write_str("0x")?;
        for (octet, mask) in pattern.value.iter().zip(pattern.mask) {
            if mask == 0 {
                return f.write_str("*");
            }
            write!(f, "{octet:02x}")?;
        }
        Ok(())
    }
}

/// Parses eight octets in hexadecimal, or the first of them followed by `*`.
fn octets(hex: &str) -> Option<([u8; 8], [u8; 8])> {
    let (digits, open) = hex.strip_suffix('*').map_or((hex, false), |digits| (digits, true));
    let valid = digits.bytes().all(|b| b.is_ascii_hexdigit()) && digits.len().is_multiple_of(2);
    if !valid || digits.len() > 16 || (digits.len() == 16) == open {
        return None;
    }
    let width = u32::try_from(digits.len()).ok()? * 4;
    let value = if digits.is_empty() { 0 } else { u64::from_str_radix(digits, 16).ok()? };
    let mask = u64::MAX.checked_shl(64 - width).unwrap_or(0);
    Some((value.checked_shl(64 - width).unwrap_or(0).to_be_bytes(), mask.to_be_bytes()))
}
