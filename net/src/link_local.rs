//! Link-local IPv6 addresses that say on which link they are.
//!
//! `fe80::1` exists on every link, so that an address alone names no neighbour. Its bits 10 to 63 are zero on every link
//! (RFC 4291 2.5.6), and inside this program the index of the interface stands in the last 32 of them, as in the kernels
//! that descend from KAME. So tables of next hops need no second column, and two neighbours with one address are two. Such an
//! address never leaves the program: sockets, messages and netlink get [`split`] ones, people read [`text`].

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// The address on this interface: whatever stood in the place of the index is gone, so that nobody outside can name an
/// interface. 0: no interface is known. Other than link-local addresses stay as they are.
#[must_use]
pub fn on(addr: IpAddr, interface: u32) -> IpAddr {
    match addr {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => {
            IpAddr::V6(Ipv6Addr::from(u128::from(bare(v6)) | u128::from(interface) << 64))
        }
        other => other,
    }
}

/// The address without an interface, and without whatever somebody else wrote in that place.
#[must_use]
pub fn bare(addr: Ipv6Addr) -> Ipv6Addr {
    let place = if addr.is_unicast_link_local() { 0xffff_ffff_u128 << 64 } else { 0 };
    Ipv6Addr::from(u128::from(addr) & !place)
}

/// The address as the outside knows it, and the index of its interface (0: none).
#[must_use]
pub fn split(addr: IpAddr) -> (IpAddr, u32) {
    match addr {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => {
            let [.., a, b, c, d, _, _, _, _, _, _, _, _] = v6.octets();
            (on(addr, 0), u32::from_be_bytes([a, b, c, d]))
        }
        other => (other, 0),
    }
}

/// The link of a link-local address, as the index of its interface (`sin6_scope_id`, RFC 4007); else 0.
#[must_use]
pub fn link_of(remote: SocketAddr) -> u32 {
    match remote {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => v6.scope_id(),
        _ => 0,
    }
}

/// What tells neighbours apart: the address, and its link where it needs one. An IPv4 address inside an IPv6 one
/// (RFC 4291 2.5.5.2) is that IPv4 address.
#[must_use]
pub fn address_of(remote: SocketAddr) -> IpAddr {
    on(remote.ip().to_canonical(), link_of(remote))
}

/// For people: `fe80::1%3`, with the interface's index.
#[must_use]
pub fn text(addr: IpAddr) -> String {
    match split(addr) {
        (addr, 0) => addr.to_string(),
        (addr, interface) => format!("{addr}%{interface}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_interface_is_put_into_link_local_addresses_only() {
        let scoped = on(ip("fe80::1:2"), 7);
        assert_eq!(split(scoped), (ip("fe80::1:2"), 7));
        assert_eq!(text(scoped), "fe80::1:2%7");
        assert_ne!(scoped, on(ip("fe80::1:2"), 8));
        assert_eq!(split(on(ip("fe80::1"), u32::MAX)), (ip("fe80::1"), u32::MAX));
        for other in ["192.0.2.1", "2001:db8:1:2:3:4:5:6", "::", "ff02::1"] {
            assert_eq!(on(ip(other), 7), ip(other));
            assert_eq!(split(ip(other)), (ip(other), 0));
        }
    }

    #[test]
    fn what_a_neighbour_wrote_in_that_place_is_not_taken_for_an_interface() {
        assert_eq!(split(on(ip("fe80:0:0:9::1"), 0)), (ip("fe80::1"), 0));
        assert_eq!(split(on(ip("fe80:0:1:9::1"), 3)), (ip("fe80::1"), 3));
    }

    #[test]
    fn neighbours_on_two_links_are_two_and_a_mapped_address_is_no_other() {
        let of = |text: &str| address_of(text.parse().unwrap());
        assert_ne!(of("[fe80::1%3]:179"), of("[fe80::1%4]:179"));
        assert_eq!(split(of("[fe80::1%3]:179")), (ip("fe80::1"), 3));
        assert_eq!(of("[2001:db8::1%3]:179"), ip("2001:db8::1"));
        assert_eq!(of("[::ffff:192.0.2.1]:179"), ip("192.0.2.1"));
    }
}
