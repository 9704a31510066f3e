//! Packets that show that a workload runs on this host. Pure.
//!
//! After a live migration QEMU sends RARP packets, and many guests announce their addresses by ARP or neighbour
//! advertisements. Any other packet from an address of the workload shows the same: before the workload runs,
//! its interface receives nothing.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use socket2::SockFilter;

/// EtherTypes of the packets: IPv4, ARP, RARP and IPv6.
pub(super) const ETHER_TYPES: [u16; 4] = [IPV4, ARP, RARP, IPV6];
const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;
const RARP: u16 = 0x8035;
const IPV6: u16 = 0x86dd;

/// Octets of a packet that are read.
pub(super) const LENGTH: u16 = 128;

/// Protocol number of ICMPv6, and its type of neighbour advertisements (RFC 4861).
const ICMPV6: u8 = 58;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;

/// A workload that is expected on an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Awaited {
    /// Index of the interface.
    pub(crate) ifindex: u32,
    /// MAC address of the workload; `None` accepts any.
    pub(crate) mac: Option<[u8; 6]>,
    /// Addresses of the workload.
    pub(crate) addresses: Vec<IpAddr>,
}

impl Awaited {
    /// Returns true if the workload sent this frame.
    pub(super) fn sent(&self, frame: &[u8]) -> bool {
        let Some((header, rest)) = frame.split_at_checked(14) else { return false };
        if self.mac.is_some_and(|mac| header.get(6..12) != Some(&mac[..])) {
            return false;
        }
        let Some(kind) = header.get(12..14).and_then(|kind| <[u8; 2]>::try_from(kind).ok()) else {
            return false;
        };
        match u16::from_be_bytes(kind) {
            RARP => true,
            ARP => self.has_v4(rest.get(14..18)),
            IPV4 => self.has_v4(rest.get(12..16)),
            IPV6 => self.has_v6(rest.get(8..24)) || self.has_v6(advertised(rest)),
            _ => false,
        }
    }

    fn has_v4(&self, octets: Option<&[u8]>) -> bool {
        let octets = octets.and_then(|octets| <[u8; 4]>::try_from(octets).ok());
        octets.is_some_and(|octets| self.addresses.contains(&Ipv4Addr::from(octets).into()))
    }

    fn has_v6(&self, octets: Option<&[u8]>) -> bool {
        let octets = octets.and_then(|octets| <[u8; 16]>::try_from(octets).ok());
        octets.is_some_and(|octets| self.addresses.contains(&Ipv6Addr::from(octets).into()))
    }
}

/// Returns the target address of a neighbour advertisement, given a whole IPv6 packet.
fn advertised(packet: &[u8]) -> Option<&[u8]> {
    let is_advertisement = packet.get(6) == Some(&ICMPV6) && packet.get(40) == Some(&NEIGHBOUR_ADVERTISEMENT);
    packet.get(48..64).filter(|_| is_advertisement)
}

/// Returns a socket filter that passes the packets received by one interface. A socket that is not bound to an
/// interface receives those of all.
pub(super) fn filter(ifindex: u32) -> [SockFilter; 4] {
    const LOAD: u16 = 0x20;
    const EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    /// SKF_AD_OFF + SKF_AD_IFINDEX.
    const IFINDEX: u32 = 0xffff_f000 + 8;
    [
        SockFilter::new(LOAD, 0, 0, IFINDEX),
        SockFilter::new(EQUAL, 0, 1, ifindex),
        SockFilter::new(RETURN, 0, 0, LENGTH.into()),
        SockFilter::new(RETURN, 0, 0, 0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [0xfa, 0x16, 0x3e, 0, 0, 1];

    fn awaited() -> Awaited {
        let addresses = vec!["10.65.0.5".parse().unwrap(), "fd00::5".parse().unwrap()];
        Awaited { ifindex: 7, mac: Some(MAC), addresses }
    }

    fn frame(source: [u8; 6], kind: u16, rest: &[u8]) -> Vec<u8> {
        [&[0xff; 6][..], &source, &kind.to_be_bytes(), rest].concat()
    }

    fn arp(sender: [u8; 4]) -> Vec<u8> {
        [&[0, 1, 8, 0, 6, 4, 0, 1][..], &MAC, &sender, &[0; 6], &sender].concat()
    }

    fn ipv6(source: &str, next: u8, rest: &[u8]) -> Vec<u8> {
        let source: Ipv6Addr = source.parse().unwrap();
        [&[0x60, 0, 0, 0, 0, 32, next, 255][..], &source.octets(), &[0xff; 16], rest].concat()
    }

    fn advertisement(kind: u8, target: &str) -> Vec<u8> {
        let target: Ipv6Addr = target.parse().unwrap();
        [&[kind, 0, 0, 0, 0x20, 0, 0, 0][..], &target.octets()].concat()
    }

    #[test]
    fn packets_that_the_workload_sent_are_distinguished_from_others() {
        let ipv4 = |source: [u8; 4]| [&[0x45; 12][..], &source, &[10, 65, 0, 9]].concat();
        let other = [0xfa, 0x16, 0x3e, 0, 0, 2];
        for (name, frame, expected) in [
            ("RARP of QEMU", frame(MAC, RARP, &[0; 28]), true),
            ("RARP of another workload", frame(other, RARP, &[0; 28]), false),
            ("gratuitous ARP", frame(MAC, ARP, &arp([10, 65, 0, 5])), true),
            ("ARP of another address", frame(MAC, ARP, &arp([10, 65, 0, 6])), false),
            ("IPv4", frame(MAC, IPV4, &ipv4([10, 65, 0, 5])), true),
            ("IPv4 of another address", frame(MAC, IPV4, &ipv4([0, 0, 0, 0])), false),
            ("IPv6", frame(MAC, IPV6, &ipv6("fd00::5", 6, &[])), true),
            ("advertisement", frame(MAC, IPV6, &ipv6("fe80::1", 58, &advertisement(136, "fd00::5"))), true),
            ("of another", frame(MAC, IPV6, &ipv6("fe80::1", 58, &advertisement(136, "fd00::6"))), false),
            ("solicitation", frame(MAC, IPV6, &ipv6("fe80::1", 58, &advertisement(135, "fd00::5"))), false),
            ("another protocol", frame(MAC, 0x88cc, &[0; 64]), false),
            ("truncated", frame(MAC, ARP, &[0; 10]), false),
            ("empty", Vec::new(), false),
        ] {
            assert_eq!(awaited().sent(&frame), expected, "{name}");
        }
        let any = Awaited { mac: None, ..awaited() };
        assert!(any.sent(&frame(other, RARP, &[0; 28])));
    }
}
