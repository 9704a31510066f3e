//! SCTP packets built by hand (RFC 9260): the kernel of a test need not support the protocol.

use std::io::Read as _;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

use crate::common::concurrency::uninterrupted;

pub(crate) const INIT: u8 = 1;
pub(crate) const INIT_ACK: u8 = 2;
/// Verification tag of the answer to an INIT of [`send`].
pub(crate) const INITIATE_TAG: u32 = 0x5454_5454;

/// A packet with one INIT or INIT ACK chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Packet {
    /// Source and destination port.
    pub(crate) ports: (u16, u16),
    pub(crate) tag: u32,
    pub(crate) chunk: u8,
}

/// Opens a raw socket in the namespace of this thread.
pub(crate) fn open() -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(132))).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    socket
}

/// Returns the CRC32c (RFC 9260 appendix A).
fn checksum(octets: &[u8]) -> [u8; 4] {
    let mut crc = !0u32;
    for octet in octets {
        crc ^= u32::from(*octet);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
        }
    }
    (!crc).to_le_bytes()
}

pub(crate) fn send(socket: &Socket, to: &str, packet: &Packet) {
    let mut octets = Vec::new();
    octets.extend(packet.ports.0.to_be_bytes());
    octets.extend(packet.ports.1.to_be_bytes());
    octets.extend(packet.tag.to_be_bytes());
    octets.extend([0; 4]);
    octets.extend([packet.chunk, 0, 0, 20]);
    octets.extend(INITIATE_TAG.to_be_bytes());
    // Receiver window, outbound and inbound streams, initial TSN.
    octets.extend([0, 0, 0x40, 0, 0, 1, 0, 1, 0, 0, 0, 1]);
    let sum = checksum(&octets);
    octets[8..12].copy_from_slice(&sum);
    let to = SocketAddr::new(to.parse().unwrap(), 0);
    socket.send_to(&octets, &to.into()).unwrap();
}

/// Returns the next packet and its source address; checks its checksum.
pub(crate) fn receive(socket: &Socket) -> (IpAddr, Packet) {
    let mut octets = [0; 256];
    let mut from = socket;
    let len = uninterrupted(|| from.read(&mut octets)).expect("a packet comes");
    let octets = &octets[..len];
    let from = IpAddr::from(<[u8; 4]>::try_from(&octets[12..16]).unwrap());
    let header = usize::from(octets[0] & 15) * 4;
    let mut octets = octets[header..].to_vec();
    let sum: [u8; 4] = octets[8..12].try_into().unwrap();
    octets[8..12].fill(0);
    assert_eq!(sum, checksum(&octets), "CRC32c");
    let port = |at: usize| u16::from_be_bytes([octets[at], octets[at + 1]]);
    let tag = u32::from_be_bytes(octets[4..8].try_into().unwrap());
    (from, Packet { ports: (port(0), port(2)), tag, chunk: octets[12] })
}
