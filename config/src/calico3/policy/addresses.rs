//! Addresses, networks and hardware addresses as Calico's Go code reads them.

use std::net::IpAddr;

use crate::resource::MacAddr;
use tortie_net::Cidr;

/// Parses an address; IPv4-mapped IPv6 addresses are IPv4.
pub(super) fn address(text: &str) -> Option<IpAddr> {
    text.parse::<IpAddr>().ok().map(|addr| addr.to_canonical())
}

/// Parses `ADDRESS/LENGTH` or a bare address, and clears the host bits.
pub(super) fn network(text: &str) -> Option<Cidr> {
    if text.contains('/') { text.parse().ok() } else { address(text).map(Cidr::host) }
}

/// Parses the address of `ADDRESS/LENGTH`, or a bare address.
pub(super) fn address_of_network(text: &str) -> Option<IpAddr> {
    match text.split_once('/') {
        Some((addr, _)) => text.parse::<Cidr>().ok().and_then(|_| address(addr)),
        None => address(text),
    }
}

/// A hardware address.
pub(super) enum Hardware {
    /// An Ethernet address.
    Mac(MacAddr),
    /// An address of 8 or 20 bytes, which Calico accepts and no workload has.
    Other,
}

/// Parses a hardware address: pairs of hexadecimal digits between `:` or `-`, or groups of four between `.`.
pub(super) fn hardware(text: &str) -> Option<Hardware> {
    let separator = text.chars().find(|c| matches!(c, ':' | '-' | '.'))?;
    let width = if separator == '.' { 4 } else { 2 };
    let mut bytes = Vec::new();
    for group in text.split(separator) {
        if group.len() != width || !group.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        let number = u16::from_str_radix(group, 16).ok()?;
        let [high, low] = number.to_be_bytes();
        bytes.extend((width == 4).then_some(high));
        bytes.push(low);
    }
    match bytes.len() {
        6 => <[u8; 6]>::try_from(bytes).ok().map(|bytes| Hardware::Mac(MacAddr(bytes))),
        8 | 20 => Some(Hardware::Other),
        _ => None,
    }
}
