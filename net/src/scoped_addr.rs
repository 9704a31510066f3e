//! An IP address with the link that it is on, where it needs one.

use std::fmt;
use std::net::{AddrParseError, IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use crate::link_local;

/// An IP address with its interface if it is IPv6 link-local (RFC 4007), and as small as an [`IpAddr`]: the index stands in those bits of
/// the address that are zero on every link. [`ScopedAddr::addr`] and [`ScopedAddr::interface`] are the only way out,
/// so that no such bits reach a socket, a message or a text.
///
/// Two addresses are equal if address and interface are. It is written `192.0.2.1`, `2001:db8::1`, `fe80::1%3`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ScopedAddr(IpAddr);

impl ScopedAddr {
    /// The address on the interface with this index; 0: no interface is given. Only IPv6 link-local addresses take one, all others
    /// are the same on every interface. Whatever stood in the place of the index is cleared.
    #[must_use]
    pub fn new(addr: IpAddr, interface: u32) -> Self {
        Self(link_local::on(addr, interface))
    }

    /// The address of a socket, on the interface that is its scope (`sin6_scope_id`). An IPv4 address inside an IPv6 one
    /// (RFC 4291 2.5.5.2) is that IPv4 address.
    #[must_use]
    pub fn of(socket: SocketAddr) -> Self {
        Self(link_local::address_of(socket))
    }

    /// The address without its interface.
    #[must_use]
    pub fn addr(self) -> IpAddr {
        link_local::split(self.0).0
    }

    /// The index of the interface; 0: none.
    #[must_use]
    pub fn interface(self) -> u32 {
        link_local::split(self.0).1
    }

    /// From the form that [`link_local`] makes: the index inside the address.
    #[must_use]
    pub fn from_embedded(addr: IpAddr) -> Self {
        Self(addr)
    }

    /// In the form that [`link_local`] reads: the index inside the address.
    #[must_use]
    pub fn embedded(self) -> IpAddr {
        self.0
    }
}

/// Without an interface.
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

/// Without an interface.
impl From<Ipv6Addr> for ScopedAddr {
    fn from(addr: Ipv6Addr) -> Self {
        Self::new(addr.into(), 0)
    }
}

/// An address without an interface is that address.
impl PartialEq<IpAddr> for ScopedAddr {
    fn eq(&self, other: &IpAddr) -> bool {
        *self == Self::from(*other)
    }
}

/// Reads an address without an interface.
impl FromStr for ScopedAddr {
    type Err = AddrParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
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

#[cfg(test)]
mod tests {
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
    fn the_embedded_form_goes_both_ways() {
        let scoped = ScopedAddr::new(ip("fe80::1"), 3);
        assert_eq!(ScopedAddr::from_embedded(scoped.embedded()), scoped);
        assert_eq!(link_local::split(scoped.embedded()), (ip("fe80::1"), 3));
    }
}
