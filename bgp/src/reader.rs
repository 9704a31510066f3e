//! A cursor over octets for the BMP and MRT decoders, whose errors report an offset.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The unread octets and their offset in the input.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ByteReader<'a> {
    rest: &'a [u8],
    at: usize,
}

impl<'a> ByteReader<'a> {
    /// Creates a reader of `rest`, whose first octet has offset `at`.
    pub(crate) fn new(rest: &'a [u8], at: usize) -> Self {
        Self { rest, at }
    }

    /// Returns the offset of the next octet.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        self.at += count;
        Some(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_be_bytes)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn v4(&mut self) -> Option<Ipv4Addr> {
        self.array::<4>().map(Ipv4Addr::from)
    }

    pub(crate) fn ip(&mut self, v6: bool) -> Option<IpAddr> {
        if v6 { self.array::<16>().map(|a| IpAddr::V6(Ipv6Addr::from(a))) } else { self.v4().map(IpAddr::V4) }
    }
}

/// Appends the octets of an address: 4 for IPv4, 16 for IPv6.
pub(crate) fn write_ip(out: &mut Vec<u8>, ip: IpAddr) {
    match ip {
        IpAddr::V4(a) => out.extend_from_slice(&a.octets()),
        IpAddr::V6(a) => out.extend_from_slice(&a.octets()),
    }
}

/// Writes the 32-bit length field at offset `at`: the number of octets behind the field, up to the end of
/// `out`.
pub(crate) fn patch_len(out: &mut [u8], at: usize) {
    let len = u32::try_from(out.len().saturating_sub(at + 4)).unwrap_or(u32::MAX);
    if let Some(place) = out.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
        *place = len.to_be_bytes();
    }
}
