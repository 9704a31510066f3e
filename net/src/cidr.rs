//! A canonical IP prefix.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnetwork::{IpNetwork, Ipv4Network, Ipv6Network};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An IPv4 or IPv6 prefix whose host bits are zero: `10.0.0.0/8`, never `10.0.0.5/8`.
///
/// IPv4 sorts before IPv6, then by address, then the shorter prefix first.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cidr(IpNetwork);

/// Reason why a text, or a pair of address and length, is no valid [`Cidr`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CidrError {
    /// The text is not `ADDRESS/LENGTH`.
    #[error("`{0}` is not a prefix: write ADDRESS/LENGTH, such as 10.0.0.0/26")]
    Syntax(String),
    /// The length exceeds 32 (IPv4) or 128 (IPv6).
    #[error("prefix length {len} of {addr} is out of range: 0 to {max}")]
    Length {
        /// The address before the slash.
        addr: IpAddr,
        /// The prefix length that was given, in bits.
        len: u8,
        /// The greatest prefix length of the address family, in bits.
        max: u8,
    },
}

impl Cidr {
    /// Creates a prefix and clears its host bits.
    ///
    /// # Errors
    /// [`CidrError::Length`] if `len` exceeds the width of the address family.
    pub fn new(addr: IpAddr, len: u8) -> Result<Self, CidrError> {
        let max = if addr.is_ipv4() { 32 } else { 128 };
        if len > max {
            return Err(CidrError::Length { addr, len, max });
        }
        Ok(Self::masked(addr, len))
    }

    /// Returns the IPv4 prefix of `addr`; lengths above 32 count as 32.
    #[must_use]
    pub fn v4(addr: Ipv4Addr, len: u8) -> Self {
        Self::masked(IpAddr::V4(addr), len.min(32))
    }

    /// Returns the IPv6 prefix of `addr`; lengths above 128 count as 128.
    #[must_use]
    pub fn v6(addr: Ipv6Addr, len: u8) -> Self {
        Self::masked(IpAddr::V6(addr), len.min(128))
    }

    /// Returns the /32 or /128 of one address.
    #[must_use]
    pub fn host(addr: IpAddr) -> Self {
        match addr {
            IpAddr::V4(a) => Self::v4(a, 32),
            IpAddr::V6(a) => Self::v6(a, 128),
        }
    }

    fn masked(addr: IpAddr, len: u8) -> Self {
        match addr {
            IpAddr::V4(a) => {
                let bits = u32::from(a) & mask32(len);
                // Every caller bounds the length, so `new` cannot fail; the fallback avoids a panic path.
                Self(IpNetwork::V4(
                    Ipv4Network::new(Ipv4Addr::from(bits), len)
                        .unwrap_or_else(|_| Ipv4Network::from(Ipv4Addr::from(bits))),
                ))
            }
            IpAddr::V6(a) => {
                let bits = u128::from(a) & mask128(len);
                Self(IpNetwork::V6(
                    Ipv6Network::new(Ipv6Addr::from(bits), len)
                        .unwrap_or_else(|_| Ipv6Network::from(Ipv6Addr::from(bits))),
                ))
            }
        }
    }

    /// Returns the first address of the prefix.
    #[must_use]
    pub fn addr(&self) -> IpAddr {
        self.0.ip()
    }

    /// Returns the prefix length in bits.
    #[expect(clippy::len_without_is_empty, reason = "a prefix length, not a container")]
    #[must_use]
    pub fn len(&self) -> u8 {
        self.0.prefix()
    }

    /// Returns the width of the address family in bits: 32 or 128.
    #[must_use]
    pub fn max_len(&self) -> u8 {
        if self.is_v4() { 32 } else { 128 }
    }

    /// Returns true for an IPv4 prefix.
    #[must_use]
    pub fn is_v4(&self) -> bool {
        self.0.is_ipv4()
    }

    /// Returns true for a single address (/32 or /128).
    #[must_use]
    pub fn is_host(&self) -> bool {
        self.len() == self.max_len()
    }

    /// Returns true if `addr` lies in this prefix; false for an address of the other family.
    #[must_use]
    pub fn contains(&self, addr: IpAddr) -> bool {
        match (self.0, addr) {
            (IpNetwork::V4(n), IpAddr::V4(a)) => u32::from(n.ip()) == u32::from(a) & mask32(n.prefix()),
            (IpNetwork::V6(n), IpAddr::V6(a)) => u128::from(n.ip()) == u128::from(a) & mask128(n.prefix()),
            _ => false,
        }
    }

    /// Returns true if `other` is equal to this prefix or more specific (BIRD's `~` with a prefix).
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        self.len() <= other.len() && self.contains(other.addr())
    }

    /// Returns true if the two prefixes share an address, that is, if one covers the other.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.covers(other) || other.covers(self)
    }

    /// Returns the last address of the prefix.
    #[must_use]
    pub fn last(&self) -> IpAddr {
        match self.0 {
            IpNetwork::V4(n) => IpAddr::V4(Ipv4Addr::from(u32::from(n.ip()) | !mask32(n.prefix()))),
            IpNetwork::V6(n) => IpAddr::V6(Ipv6Addr::from(u128::from(n.ip()) | !mask128(n.prefix()))),
        }
    }

    /// Returns the address at `ordinal` (0 is the first), or `None` outside of the prefix.
    #[must_use]
    pub fn nth(&self, ordinal: u128) -> Option<IpAddr> {
        let addr = match self.addr() {
            IpAddr::V4(a) => {
                IpAddr::V4(Ipv4Addr::from(u32::from(a).checked_add(u32::try_from(ordinal).ok()?)?))
            }
            IpAddr::V6(a) => IpAddr::V6(Ipv6Addr::from(u128::from(a).checked_add(ordinal)?)),
        };
        self.contains(addr).then_some(addr)
    }

    /// Returns the ordinal of `addr` in this prefix (0 is the first address), or `None` outside of it.
    #[must_use]
    pub fn ordinal(&self, addr: IpAddr) -> Option<u128> {
        if !self.contains(addr) {
            return None;
        }
        match (self.addr(), addr) {
            (IpAddr::V4(n), IpAddr::V4(a)) => Some(u128::from(u32::from(a) - u32::from(n))),
            (IpAddr::V6(n), IpAddr::V6(a)) => Some(u128::from(a) - u128::from(n)),
            _ => None,
        }
    }

    /// Returns the form used in keys of the data model, with `-` instead of `/`: `10.0.0.0-26`.
    #[must_use]
    pub fn to_key_text(&self) -> String {
        format!("{}-{}", self.addr(), self.len())
    }

    /// Parses the form used in keys of the data model.
    ///
    /// # Errors
    /// The text is not `ADDRESS-LENGTH`.
    pub fn from_key_text(text: &str) -> Result<Self, CidrError> {
        let syntax = || CidrError::Syntax(text.to_owned());
        let (addr, len) = text.rsplit_once('-').ok_or_else(syntax)?;
        parse_parts(addr, len).ok_or_else(syntax).and_then(|(addr, len)| Self::new(addr, len))
    }

    /// Parses `ADDRESS/LENGTH` and rejects host bits, as Calico's Go code does.
    ///
    /// # Errors
    /// The text is no prefix or has host bits.
    pub fn parse_strict(text: &str) -> Result<Self, CidrError> {
        let cidr: Self = text.parse()?;
        let given = text.split('/').next().and_then(|a| a.trim().parse::<IpAddr>().ok());
        if given == Some(cidr.addr()) { Ok(cidr) } else { Err(CidrError::Syntax(text.to_owned())) }
    }
}

fn parse_parts(addr: &str, len: &str) -> Option<(IpAddr, u8)> {
    if !len.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    Some((addr.parse().ok()?, len.parse().ok()?))
}

fn mask32(len: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(len.min(32))).unwrap_or(0)
}

fn mask128(len: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(len.min(128))).unwrap_or(0)
}

impl FromStr for Cidr {
    type Err = CidrError;

    /// Parses `ADDRESS/LENGTH` or a bare address (its /32 or /128) and clears the host bits.
    fn from_str(text: &str) -> Result<Self, CidrError> {
        let syntax = || CidrError::Syntax(text.to_owned());
        match text.split_once('/') {
            Some((addr, len)) => {
                let (addr, len) = parse_parts(addr, len).ok_or_else(syntax)?;
                Self::new(addr, len)
            }
            None => Ok(Self::host(text.parse().map_err(|_| syntax())?)),
        }
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.addr(), self.len())
    }
}

impl fmt::Debug for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Ord for Cidr {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.addr(), self.len()).cmp(&(other.addr(), other.len()))
    }
}

impl PartialOrd for Cidr {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Serialize for Cidr {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Cidr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_bits_are_cleared_and_order_is_by_address_then_length() {
        let cidr: Cidr = "10.0.0.77/26".parse().unwrap();
        assert_eq!(cidr.to_string(), "10.0.0.64/26");
        assert_eq!(cidr.to_key_text(), "10.0.0.64-26");
        assert_eq!(Cidr::from_key_text("fd80:24e2::-122").unwrap().to_string(), "fd80:24e2::/122");
        let mut list: Vec<Cidr> =
            ["::/0", "10.0.0.0/9", "10.0.0.0/8", "9.0.0.0/8"].map(|t| t.parse().unwrap()).to_vec();
        list.sort();
        assert_eq!(format!("{list:?}"), "[9.0.0.0/8, 10.0.0.0/8, 10.0.0.0/9, ::/0]");
    }

    #[test]
    fn covers_is_equal_or_more_specific_of_one_family() {
        let pool: Cidr = "10.0.0.0/8".parse().unwrap();
        assert!(pool.covers(&pool));
        assert!(pool.covers(&"10.200.0.0/26".parse().unwrap()));
        assert!(!pool.covers(&"0.0.0.0/0".parse().unwrap()));
        assert!(!"0.0.0.0/0".parse::<Cidr>().unwrap().contains("::1".parse().unwrap()));
        assert!("0.0.0.0/0".parse::<Cidr>().unwrap().covers(&pool));
    }

    #[test]
    fn ordinals_stay_inside() {
        let block: Cidr = "10.0.0.64/26".parse().unwrap();
        assert_eq!(block.nth(63), Some("10.0.0.127".parse().unwrap()));
        assert_eq!(block.nth(64), None);
        assert_eq!(block.ordinal("10.0.0.70".parse().unwrap()), Some(6));
        assert_eq!(block.ordinal("10.0.0.63".parse().unwrap()), None);
        assert_eq!("255.255.255.255/32".parse::<Cidr>().unwrap().nth(1), None);
    }

    #[test]
    fn bad_texts_name_themselves() {
        for bad in ["", "10.0.0.0/", "10.0.0.0/+8", "10.0.0/8", "10.0.0.0/33", "::/129", "10.0.0.0/8/8"] {
            assert!(bad.parse::<Cidr>().is_err(), "{bad}");
        }
        assert!(Cidr::parse_strict("10.0.0.1/8").is_err());
        assert!(Cidr::parse_strict("10.0.0.0/8").is_ok());
    }
}
