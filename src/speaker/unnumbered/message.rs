//! Router advertisements and solicitations (RFC 4861, sections 4.1 and 4.2), and the kernel's list of
//! interface addresses. Pure functions.

use std::net::Ipv6Addr;

use smallvec::SmallVec;

/// ICMPv6 type of a router solicitation (RFC 4861, section 4.1).
pub(super) const SOLICITATION: u8 = 133;
/// ICMPv6 type of a router advertisement (RFC 4861, section 4.2).
pub(super) const ADVERTISEMENT: u8 = 134;
/// ICMPv6 type of a neighbour solicitation (RFC 4861, section 4.3).
const NEIGHBOUR_SOLICITATION: u8 = 135;
/// ICMPv6 type of a neighbour advertisement (RFC 4861, section 4.4).
pub(super) const NEIGHBOUR_ADVERTISEMENT: u8 = 136;

/// An encoded message.
pub(super) type Octets = SmallVec<[u8; 32]>;

/// Builds an advertisement that only announces this router's presence and link-layer address: router lifetime
/// 0, so that no host uses it as default router, and everything else unspecified. The kernel writes the
/// checksum.
pub(super) fn advertisement(mac: Option<[u8; 6]>) -> Octets {
    with_source(&[ADVERTISEMENT, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], mac)
}

/// Builds a solicitation that requests the advertisements of the link's routers. It must be sent from a
/// specified address.
pub(super) fn solicitation(mac: Option<[u8; 6]>) -> Octets {
    with_source(&[SOLICITATION, 0, 0, 0, 0, 0, 0, 0], mac)
}

/// Builds a neighbour solicitation; the node that has the target address answers (RFC 4861, section 7.2.4).
pub(super) fn neighbour_solicitation(target: Ipv6Addr, mac: Option<[u8; 6]>) -> Octets {
    let mut message = Octets::from_slice(&[NEIGHBOUR_SOLICITATION, 0, 0, 0, 0, 0, 0, 0]);
    message.extend_from_slice(&target.octets());
    with_source(&message, mac)
}

/// Returns the solicited-node multicast group of an address (RFC 4291, section 2.7.1).
pub(super) fn solicited_node(addr: Ipv6Addr) -> Ipv6Addr {
    const GROUP: u128 = 0xff02_0000_0000_0000_0000_0001_ff00_0000;
    Ipv6Addr::from(GROUP | u128::from(addr) & 0xff_ffff)
}

/// Appends the option Source Link-layer Address (RFC 4861, section 4.6.1; RFC 2464, section 6 for Ethernet),
/// from which the neighbour's kernel learns the address without a request.
fn with_source(message: &[u8], mac: Option<[u8; 6]>) -> Octets {
    /// Type of the option, and its length in units of eight octets.
    const SOURCE: [u8; 2] = [1, 1];
    let mut octets = Octets::from_slice(message);
    if let Some(mac) = mac {
        octets.extend_from_slice(&SOURCE);
        octets.extend_from_slice(&mac);
    }
    octets
}

/// Kind of a valid message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Message {
    Advertisement,
    Solicitation,
    /// A neighbour advertisement for this address.
    Neighbour(Ipv6Addr),
}

/// Validates a received message (RFC 4861, sections 6.1.1, 6.1.2 and 7.1.2); the kernel has checked the
/// checksum.
pub(super) fn read(octets: &[u8], source: Ipv6Addr, hop_limit: Option<u8>) -> Option<Message> {
    // A packet from beyond the link cannot arrive with hop limit 255.
    if hop_limit != Some(255) {
        return None;
    }
    let (message, fixed) = match octets {
        [ADVERTISEMENT, 0, ..] if source.is_unicast_link_local() => (Message::Advertisement, 16),
        [SOLICITATION, 0, ..] => (Message::Solicitation, 8),
        [NEIGHBOUR_ADVERTISEMENT, 0, ..] => {
            let target: [u8; 16] = octets.get(8..24)?.try_into().ok()?;
            (Message::Neighbour(target.into()), 24)
        }
        _ => return None,
    };
    let mut options = octets.get(fixed..)?;
    // Each option contains its length in units of eight octets; a length of 0 is invalid.
    while let [_, length, ..] = options {
        let length = usize::from(*length) * 8;
        options = options.get(length..).filter(|_| length > 0)?;
    }
    options.is_empty().then_some(message)
}

/// Link-local address of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Own {
    pub(super) ifindex: u32,
    pub(super) addr: Ipv6Addr,
}

/// Finds an interface in the kernel's list of IPv6 addresses (`/proc/net/if_inet6`: address, index, prefix
/// length, scope and flags in hexadecimal, name). Returns its link-local addresses, and true for those that
/// are usable; a tentative one is not.
pub(super) fn own(list: &str, interface: &str) -> impl Iterator<Item = (Own, bool)> {
    const TENTATIVE: u32 = 0x40;
    const DAD_FAILED: u32 = 0x08;
    list.lines().filter_map(move |line| {
        let mut fields = line.split_ascii_whitespace();
        let addr = Ipv6Addr::from(u128::from_str_radix(fields.next()?, 16).ok()?);
        let ifindex = u32::from_str_radix(fields.next()?, 16).ok()?;
        let flags = u32::from_str_radix(fields.nth(2)?, 16).ok()?;
        let here = fields.next()? == interface && addr.is_unicast_link_local();
        (here && flags & DAD_FAILED == 0).then_some((Own { ifindex, addr }, flags & TENTATIVE == 0))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
    const MAC: [u8; 6] = [0x02, 0x00, 0x5e, 0x10, 0x00, 0x01];

    #[test]
    fn our_own_messages_are_valid() {
        for mac in [None, Some(MAC)] {
            assert_eq!(read(&advertisement(mac), ROUTER, Some(255)), Some(Message::Advertisement));
            assert_eq!(read(&solicitation(mac), ROUTER, Some(255)), Some(Message::Solicitation));
        }
    }

    #[test]
    fn our_own_messages_name_our_link_layer_address_if_there_is_one() {
        // RFC 4861, section 4.2: type, code, checksum, hop limit, flags, router lifetime 0 (no default
        // router), reachable time, retransmission timer. Section 4.6.1: type 1, length 1, the address.
        let fixed = [134, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let option = [1, 1, 0x02, 0x00, 0x5e, 0x10, 0x00, 0x01];
        assert_eq!(advertisement(Some(MAC))[..], [&fixed[..], &option].concat());
        assert_eq!(advertisement(None)[..], fixed);
        // Section 4.1: type, code, checksum, reserved.
        let fixed = [133, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(solicitation(Some(MAC))[..], [&fixed[..], &option].concat());
        assert_eq!(solicitation(None)[..], fixed);
    }

    #[test]
    fn a_neighbour_is_asked_for_and_its_answer_read() {
        let message = neighbour_solicitation(ROUTER, Some(MAC));
        let option = [1, 1, 0x02, 0x00, 0x5e, 0x10, 0x00, 0x01];
        assert_eq!(message[..], [&[135, 0, 0, 0, 0, 0, 0, 0][..], &ROUTER.octets(), &option].concat());
        assert_eq!(solicited_node("fe80::aabb:ccdd".parse().unwrap()).to_string(), "ff02::1:ffbb:ccdd");
        let answer =
            [&[136, 0, 0, 0, 0x60, 0, 0, 0][..], &ROUTER.octets(), &[2, 1, 2, 0, 0, 0, 0, 1]].concat();
        assert_eq!(read(&answer, ROUTER, Some(255)), Some(Message::Neighbour(ROUTER)));
        assert_eq!(read(&answer, ROUTER, Some(64)), None, "from another link");
        assert_eq!(read(&answer[..23], ROUTER, Some(255)), None, "cut short");
    }

    #[test]
    fn what_rfc_4861_section_6_1_refuses_is_refused() {
        let good = advertisement(Some(MAC));
        assert_eq!(read(&good, ROUTER, Some(255)), Some(Message::Advertisement));
        assert_eq!(read(&good, ROUTER, Some(254)), None, "from another link");
        assert_eq!(read(&good, ROUTER, None), None);
        assert_eq!(read(&good, Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1), Some(255)), None);
        assert_eq!(read(&good[..15], ROUTER, Some(255)), None, "cut short");
        assert_eq!(read(&good[..20], ROUTER, Some(255)), None, "an option that is cut short");
        let empty = [&advertisement(None)[..], &[1, 0]].concat();
        assert_eq!(read(&empty, ROUTER, Some(255)), None, "an option of length 0");
        let mut code = good.clone();
        code[1] = 1;
        assert_eq!(read(&code, ROUTER, Some(255)), None);
        assert_eq!(read(&[135; 24], ROUTER, Some(255)), None, "another message");
        assert_eq!(read(&[], ROUTER, Some(255)), None);
    }

    #[test]
    fn the_kernels_list_is_read() {
        let list = "00000000000000000000000000000001 01 80 10 80       lo\n\
                    20010db8000000000000000000000001 02 40 00 80     eth0\n\
                    fe8000000000000050540000fe000001 02 40 20 80     eth0\n\
                    fe8000000000000050540000fe000002 0b 40 20 c0     eth1\n\
                    fe8000000000000050540000fe000003 0c 40 20 c8     eth2\n";
        let addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0x5054, 0, 0xfe00, 1);
        let tentative = Ipv6Addr::new(0xfe80, 0, 0, 0, 0x5054, 0, 0xfe00, 2);
        assert!(own(list, "eth0").eq([(Own { ifindex: 2, addr }, true)]));
        assert!(own(list, "eth1").eq([(Own { ifindex: 11, addr: tentative }, false)]));
        assert_eq!(own(list, "eth2").count(), 0, "another node has it");
        assert_eq!(own(list, "lo").count(), 0);
        assert_eq!(own("garbage\n\nfe80 zz", "eth0").count(), 0);
    }
}
