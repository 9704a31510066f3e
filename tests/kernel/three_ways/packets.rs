//! Encoding of packets with a number in the payload, by which they are recognised wherever they are received.

use std::net::IpAddr;

use tortie_engine::policy::Packet;

/// Precedes the number.
const MAGIC: [u8; 4] = *b"TrTi";

/// Encodes the packet with a number. Its checksum is wrong, so that no host answers it, except for ICMPv6,
/// where raw sockets check it.
pub(crate) fn bytes(packet: &Packet, number: u32) -> Vec<u8> {
    let mut inner = inner(packet, number);
    if packet.protocol == 58 {
        inner[2..4].fill(0);
        let sum = checksum(packet, &inner);
        inner[2..4].copy_from_slice(&sum.to_be_bytes());
    }
    let len = u16::try_from(inner.len()).unwrap();
    let mut out = Vec::new();
    match (packet.src, packet.dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            out.extend([0x45, 0]);
            out.extend((20 + len).to_be_bytes());
            out.extend([0, 1, 0, 0, 64, packet.protocol, 0, 0]);
            out.extend(src.octets());
            out.extend(dst.octets());
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            out.extend([0x60, 0, 0, 0]);
            out.extend(len.to_be_bytes());
            out.extend([packet.protocol, 64]);
            out.extend(src.octets());
            out.extend(dst.octets());
        }
        other => panic!("two families in {other:?}"),
    }
    out.extend(inner);
    out
}

/// Returns the ICMPv6 checksum (RFC 8200 8.1).
fn checksum(packet: &Packet, inner: &[u8]) -> u16 {
    let octets = |addr: IpAddr| match addr {
        IpAddr::V6(addr) => addr.octets(),
        IpAddr::V4(addr) => panic!("{addr} has no ICMPv6"),
    };
    let mut all = [octets(packet.src), octets(packet.dst)].concat();
    all.extend(u32::try_from(inner.len()).unwrap().to_be_bytes());
    all.extend([0, 0, 0, packet.protocol]);
    all.extend(inner);
    let sum: u32 =
        all.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum();
    let folded = (sum >> 16) + (sum & 0xffff);
    !u16::try_from((folded >> 16) + (folded & 0xffff)).unwrap()
}

fn inner(packet: &Packet, number: u32) -> Vec<u8> {
    let (src, dst) = packet.ports.unwrap_or_default();
    let ports = [src.to_be_bytes(), dst.to_be_bytes()].concat();
    let known: Vec<u8> = [MAGIC, number.to_be_bytes()].concat();
    let mut out = Vec::new();
    match packet.protocol {
        6 => {
            out.extend(ports);
            // Sequence number, no acknowledgement, five words, SYN, a window.
            out.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x02, 0xff, 0xff, 0xde, 0xad, 0, 0]);
            out.extend(known);
        }
        17 | 136 => {
            out.extend(ports);
            out.extend([0, 16, 0xde, 0xad]);
            out.extend(known);
        }
        132 => {
            out.extend(ports);
            // Verification tag 0 and an INIT chunk, with the number in place of tag and window.
            out.extend([0, 0, 0, 0, 0xde, 0xad, 0, 0, 1, 0, 0, 20]);
            out.extend(known);
            out.extend([0, 1, 0, 1, 0, 0, 0, 1]);
        }
        1 | 58 => {
            let (kind, code) = packet.icmp.unwrap_or_default();
            out.extend([kind, code, 0xde, 0xad]);
            // The identifier is the lower half of the number, so every packet starts a new connection.
            let [_, _, a, b] = number.to_be_bytes();
            out.extend([a, b, 0, 1]);
            out.extend(known);
            out.extend([0; 12]);
        }
        47 => {
            out.extend([0, 0, 0x88, 0xbe]);
            out.extend(known);
        }
        _ => out.extend(known),
    }
    out
}

/// Layer at which received octets start.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Layer {
    /// Ethernet header.
    Frame,
    /// IP header.
    Packet,
    /// Payload of an IPv6 packet of this protocol.
    Payload(u8),
}

/// Returns the number in received octets, and the addresses if present. Packets quoted in error messages do
/// not count.
pub(crate) fn read(bytes: &[u8], layer: Layer) -> Option<(u32, Option<(IpAddr, IpAddr)>)> {
    let (protocol, ends, inner) = match layer {
        Layer::Payload(protocol) => (protocol, None, bytes),
        Layer::Frame | Layer::Packet => {
            let packet = if matches!(layer, Layer::Frame) { bytes.get(14..)? } else { bytes };
            if packet.first()? >> 4 == 4 {
                let addr = |at: usize| <[u8; 4]>::try_from(packet.get(at..at + 4)?).ok().map(IpAddr::from);
                (*packet.get(9)?, Some((addr(12)?, addr(16)?)), packet.get(20..)?)
            } else {
                let addr = |at: usize| <[u8; 16]>::try_from(packet.get(at..at + 16)?).ok().map(IpAddr::from);
                (*packet.get(6)?, Some((addr(8)?, addr(24)?)), packet.get(40..)?)
            }
        }
    };
    let at = match protocol {
        6 => 20,
        17 | 136 | 1 | 58 => 8,
        132 => 16,
        47 => 4,
        _ => 0,
    };
    let number = inner.get(at + 4..at + 8).filter(|_| inner[at..].starts_with(&MAGIC))?;
    Some((u32::from_be_bytes(number.try_into().ok()?), ends))
}
