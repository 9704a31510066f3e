//! An IP address with the index of its interface, which IPv6 link-local addresses need.
//!
//! `fe80::1` may exist on every link, so the address alone identifies no neighbour. Bits 10 to 63 of a
//! link-local address are zero (RFC 4291 2.5.6); the last 32 of them hold the interface index, as in kernels
//! derived from KAME. So tables of neighbours and next hops need no second column. This form never leaves the
//! type: sockets, messages and netlink get address and index separately; people and JSON get the text form.

use std::borrow::Cow;
use std::fmt;
use std::net::{AddrParseError, IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU32;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bit position of the interface index in an IPv6 address.
const PLACE: u32 = 64;

/// An IP address, with its interface if it is IPv6 link-local (RFC 4007), in the size of an [`IpAddr`]. The
/// interface index occupies bits that are zero in every link-local address. The value is read only through
/// [`ScopedAddr::addr`] and [`ScopedAddr::interface`], so the index bits reach no socket, message or text.
///
/// Two values are equal if address and interface are equal. The text form, also in JSON, is `192.0.2.1`,
/// `2001:db8::1` or `fe80::1%3` (RFC 4007 11, with the interface index as the zone).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ScopedAddr(IpAddr);

impl ScopedAddr {
    /// Combines an address with an interface index; 0 means no interface. Addresses other than IPv6
    /// link-local are the same on every interface, so the index is ignored for them. An index that `addr`
    /// already carries is replaced.
    #[must_use]
    pub fn new(addr: IpAddr, interface: u32) -> Self {
        match addr {
            IpAddr::V6(v6) if v6.is_unicast_link_local() => {
                let bits = u128::from(v6) & !(u128::from(u32::MAX) << PLACE);
                Self(Ipv6Addr::from(bits | u128::from(interface) << PLACE).into())
            }
            other => Self(other),
        }
    }

    /// Converts a socket address, with its `sin6_scope_id` as the interface. An IPv4-mapped IPv6 address (RFC
    /// 4291 2.5.5.2) becomes the IPv4 address.
    #[must_use]
    pub fn of(socket: SocketAddr) -> Self {
        let interface = match socket {
            SocketAddr::V6(v6) => v6.scope_id(),
            SocketAddr::V4(_) => 0,
        };
        Self::new(socket.ip().to_canonical(), interface)
    }

    /// Returns the address without its interface.
    #[must_use]
    pub fn addr(self) -> IpAddr {
        Self::new(self.0, 0).0
    }

    /// Returns the index of the interface; 0 means none.
    #[must_use]
    pub fn interface(self) -> u32 {
        match self.0 {
            IpAddr::V6(v6) if v6.is_unicast_link_local() => {
                let [.., a, b, c, d, _, _, _, _, _, _, _, _] = v6.octets();
                u32::from_be_bytes([a, b, c, d])
            }
            _ => 0,
        }
    }

    /// Returns true for an IPv6 link-local address (`fe80::/10`), with or without an interface.
    #[must_use]
    pub fn is_link_local(self) -> bool {
        matches!(self.0, IpAddr::V6(v6) if v6.is_unicast_link_local())
    }

    /// Returns true for an IPv4 address.
    #[must_use]
    pub fn is_v4(self) -> bool {
        self.0.is_ipv4()
    }
}

/// Converts an address without an interface.
impl From<IpAddr> for ScopedAddr {
    fn from(addr: IpAddr) -> Self {
        Self::new(addr, 0)
    }
}

impl From<Ipv4Addr> for ScopedAddr {
    fn from(addr: Ipv4Addr) -> Self {
        Self(addr.into())
    }
}

/// Converts an address without an interface.
impl From<Ipv6Addr> for ScopedAddr {
    fn from(addr: Ipv6Addr) -> Self {
        Self::new(addr.into(), 0)
    }
}

/// Compares with an address that has no interface; a value with an interface is never equal to it.
impl PartialEq<IpAddr> for ScopedAddr {
    fn eq(&self, other: &IpAddr) -> bool {
        *self == Self::from(*other)
    }
}

/// Parses the text form that [`Display`](fmt::Display) writes: an address; a link-local one may have `%` and
/// an index from 1 on.
impl FromStr for ScopedAddr {
    type Err = AddrParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some((addr, zone)) = text.split_once('%')
            && zone.bytes().all(|digit| digit.is_ascii_digit())
            && let (Ok(addr), Ok(interface)) = (addr.parse::<Ipv6Addr>(), zone.parse::<NonZeroU32>())
            && addr.is_unicast_link_local()
        {
            return Ok(Self::new(addr.into(), interface.get()));
        }
        // No plain address contains `%`, so an invalid zone fails here.
        text.parse::<IpAddr>().map(Self::from)
    }
}

impl fmt::Display for ScopedAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.addr(), self.interface()) {
            (addr, 0) => fmt::Display::fmt(&addr, f),
            (addr, interface) => write!(f, "{addr}%{interface}"),
        }
    }
}

impl fmt::Debug for ScopedAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for ScopedAddr {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ScopedAddr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn only_link_local_addresses_have_an_interface() {
        let scoped = ScopedAddr::new(ip("fe80::1"), 3);
        assert_eq!(
            (scoped.addr(), scoped.interface(), scoped.to_string()),
            (ip("fe80::1"), 3, "fe80::1%3".into())
        );
        assert!(scoped != ip("fe80::1") && scoped != ScopedAddr::new(ip("fe80::1"), 4));
        for text in ["192.0.2.1", "2001:db8::1", "::"] {
            let global = ScopedAddr::new(ip(text), 3);
            assert_eq!((global.addr(), global.interface(), global.to_string()), (ip(text), 0, text.into()));
            assert!(global == ip(text) && Ok(global) == text.parse());
        }
        assert_eq!(size_of::<ScopedAddr>(), size_of::<IpAddr>());
    }

    #[test]
    fn nobody_outside_names_an_interface() {
        let written = ScopedAddr::from(ip("fe80:0:0:9::1"));
        assert_eq!((written.addr(), written.interface()), (ip("fe80::1"), 0));
    }

    #[test]
    fn the_address_of_a_socket_has_its_scope() {
        let of = |text: &str| ScopedAddr::of(text.parse().unwrap()).to_string();
        assert_eq!(of("[fe80::1%7]:179"), "fe80::1%7");
        assert_eq!(of("[::ffff:192.0.2.1]:179"), "192.0.2.1");
        assert_eq!(of("[2001:db8::1]:179"), "2001:db8::1");
    }

    #[test]
    fn neighbours_on_two_links_are_two_and_a_mapped_address_is_no_other() {
        let of = |text: &str| ScopedAddr::of(text.parse().unwrap());
        assert_ne!(of("[fe80::1%3]:179"), of("[fe80::1%4]:179"));
        assert_eq!(of("[2001:db8::1%3]:179"), ip("2001:db8::1"));
        assert_eq!(of("[::ffff:192.0.2.1]:179"), ip("192.0.2.1"));
        assert_eq!(ScopedAddr::new(ip("fe80:0:1:9::1"), 3).to_string(), "fe80::1%3");
    }

    #[test]
    fn only_what_it_writes_is_read() {
        for text in [
            "",
            "%3",
            "fe80::1%",
            "fe80::1%0",
            "fe80::1%+3",
            "fe80::1%eth0",
            "fe80::1%3%4",
            "fe80::1%4294967296",
            "192.0.2.1%3",
            "2001:db8::1%3",
            "ff02::1%3",
        ] {
            assert!(text.parse::<ScopedAddr>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn the_text_says_all_and_is_read_as_the_same(bits: u128, interface: u32, kind in 0..3) {
            let addr = match kind {
                0 => IpAddr::from(Ipv6Addr::from(bits)),
                1 => IpAddr::from(Ipv6Addr::from(bits >> 10 | 0xfe80 << 112)),
                _ => IpAddr::from(bits.to_be_bytes().first_chunk::<4>().copied().unwrap()),
            };
            let scoped = ScopedAddr::new(addr, interface);
            prop_assert_eq!(scoped.to_string().parse(), Ok(scoped));
            prop_assert_eq!(ScopedAddr::new(scoped.addr(), scoped.interface()), scoped);
            prop_assert_eq!(scoped.interface(), if scoped.is_link_local() { interface } else { 0 });
            let json = serde_json::to_string(&scoped).unwrap();
            prop_assert_eq!(&json, &format!("\"{scoped}\""));
            prop_assert_eq!(serde_json::from_str::<ScopedAddr>(&json).unwrap(), scoped);
            let map = std::collections::BTreeMap::from([(scoped, 1)]);
            let json = serde_json::to_string(&map).unwrap();
            prop_assert_eq!(serde_json::from_str::<std::collections::BTreeMap<ScopedAddr, i32>>(&json).unwrap(), map);
        }
    }
}
