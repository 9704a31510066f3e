//! Neighbours (RTM_NEWNEIGH and its kin, rtnetlink(7)): written and read.

use std::net::IpAddr;

use crate::netlink::codec::{
    self, AF_INET, AF_INET6, Attrs, Message, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REPLACE, Writer, u8_at, u16_at,
    u32_at,
};

const RTM_NEWNEIGH: u16 = 28;
const RTM_DELNEIGH: u16 = 29;
const RTM_GETNEIGH: u16 = 30;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NDA_PROTOCOL: u16 = 12;
const NUD_PERMANENT: u16 = 0x80;
const NTF_PROXY: u8 = 0x08;
/// `struct ndmsg`: family, three of padding, interface, state, flags, type.
const NDMSG: usize = 12;

/// A neighbour as the kernel shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Neighbour {
    pub(crate) ifindex: u32,
    pub(crate) addr: IpAddr,
    pub(crate) mac: [u8; 6],
    pub(crate) permanent: bool,
    /// Who wrote it (Linux 5.0), 0: not said.
    pub(crate) protocol: u8,
}

/// Writes the request that makes a permanent neighbour, in place of whatever is known of the address.
pub(crate) fn encode_put(
    buf: &mut Vec<u8>,
    flags: u16,
    seq: u32,
    ifindex: u32,
    addr: IpAddr,
    mac: [u8; 6],
    protocol: u8,
) {
    let mut w = Writer::begin(buf, RTM_NEWNEIGH, flags | NLM_F_CREATE | NLM_F_REPLACE, seq);
    header(&mut w, codec::family_of(&addr), ifindex, NUD_PERMANENT);
    w.attr_addr(NDA_DST, addr).attr(NDA_LLADDR, &mac).attr(NDA_PROTOCOL, &[protocol]);
    w.end();
}

/// Writes the request that removes a neighbour.
pub(crate) fn encode_delete(buf: &mut Vec<u8>, flags: u16, seq: u32, ifindex: u32, addr: IpAddr) {
    let mut w = Writer::begin(buf, RTM_DELNEIGH, flags, seq);
    header(&mut w, codec::family_of(&addr), ifindex, 0);
    w.attr_addr(NDA_DST, addr);
    w.end();
}

/// Writes the request for all neighbours of one family.
pub(crate) fn encode_dump(buf: &mut Vec<u8>, seq: u32, family: u8) {
    let mut w = Writer::begin(buf, RTM_GETNEIGH, NLM_F_DUMP, seq);
    header(&mut w, family, 0, 0);
    w.end();
}

fn header(w: &mut Writer<'_>, family: u8, ifindex: u32, state: u16) {
    w.raw(&[family, 0, 0, 0]).raw(&ifindex.to_ne_bytes()).raw(&state.to_ne_bytes()).raw(&[0, 0]);
}

/// Reads RTM_NEWNEIGH; `None` for proxies, bridges, and neighbours without a MAC address.
pub(crate) fn decode(message: &Message<'_>) -> Option<Neighbour> {
    let body = message.body;
    let family = u8_at(body, 0)?;
    if message.kind != RTM_NEWNEIGH
        || !matches!(family, AF_INET | AF_INET6)
        || u8_at(body, 10)? & NTF_PROXY != 0
    {
        return None;
    }
    let (mut addr, mut mac, mut protocol) = (None, None, 0);
    for (kind, data) in Attrs::after(body, NDMSG) {
        match kind {
            NDA_DST => addr = codec::addr(data),
            NDA_LLADDR => mac = <[u8; 6]>::try_from(data).ok(),
            NDA_PROTOCOL => protocol = u8_at(data, 0)?,
            _ => {}
        }
    }
    Some(Neighbour {
        ifindex: u32_at(body, 4)?,
        addr: addr?,
        mac: mac?,
        permanent: u16_at(body, 8)? & NUD_PERMANENT != 0,
        protocol,
    })
}
