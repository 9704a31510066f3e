//! BGP identifier and address family, which all parts of the speaker use.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

/// A BGP identifier: four octets, not 0 (RFC 6286). Text form: dotted quad.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RouterId(pub u32);

impl fmt::Display for RouterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Ipv4Addr::from(self.0), f)
    }
}

impl fmt::Debug for RouterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An address family that this speaker carries (RFC 4760).
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// AFI 1, SAFI 1.
    Ipv4Unicast,
    /// AFI 2, SAFI 1.
    Ipv6Unicast,
}

impl Family {
    /// Both families, in AFI order.
    pub const ALL: [Self; 2] = [Self::Ipv4Unicast, Self::Ipv6Unicast];

    /// Returns the unicast family of an address.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::Ipv4Unicast,
            IpAddr::V6(_) => Self::Ipv6Unicast,
        }
    }

    /// Returns the family with this AFI and SAFI, or `None` if this speaker does not carry it.
    #[must_use]
    pub fn from_codes(afi: u16, safi: u8) -> Option<Self> {
        match (afi, safi) {
            (1, 1) => Some(Self::Ipv4Unicast),
            (2, 1) => Some(Self::Ipv6Unicast),
            _ => None,
        }
    }

    /// Returns the AFI (IANA "Address Family Numbers"): 1 or 2.
    #[must_use]
    pub fn afi(self) -> u16 {
        match self {
            Self::Ipv4Unicast => 1,
            Self::Ipv6Unicast => 2,
        }
    }

    /// Returns the SAFI: always 1, unicast.
    #[must_use]
    pub fn safi(self) -> u8 {
        1
    }

    /// Returns the index into per-family arrays: 0 for IPv4, 1 for IPv6.
    #[must_use]
    pub fn index(self) -> usize {
        match self {
            Self::Ipv4Unicast => 0,
            Self::Ipv6Unicast => 1,
        }
    }

    /// Returns the family as text: `ipv4` or `ipv6`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ipv4Unicast => "ipv4",
            Self::Ipv6Unicast => "ipv6",
        }
    }
}

/// True under test and fuzzing, where logs, rings and table pages are tiny: a few routes fill them, and a
/// slow reader falls behind.
pub(crate) const TINY: bool = cfg!(any(test, fuzzing));
