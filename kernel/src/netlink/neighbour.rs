//! Messages about neighbours (RTM_NEWNEIGH and related types, rtnetlink(7)).

use std::net::IpAddr;

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REPLACE, ParseableParametrized};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourHeader, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::RouteProtocol;
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::netlink::codec::{Message, RTM_NEWNEIGH, family_of};
use crate::netlink::message;

/// Length of `struct ndmsg`, in octets.
const NDMSG: usize = 12;

/// A neighbour as the kernel reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Neighbour {
    pub(crate) ifindex: u32,
    pub(crate) addr: IpAddr,
    pub(crate) mac: [u8; 6],
    pub(crate) permanent: bool,
    /// Protocol of the entry (since Linux 5.0); 0 if none is given.
    pub(crate) protocol: u8,
}

/// Encodes the request that adds a permanent neighbour or replaces an existing entry.
pub(crate) fn encode_put(
    buf: &mut Vec<u8>,
    flags: u16,
    seq: u32,
    ifindex: u32,
    addr: IpAddr,
    mac: [u8; 6],
    protocol: u8,
) {
    let mut neighbour = of(ifindex, addr);
    neighbour.header.state = NeighbourState::Permanent;
    neighbour.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.to_vec()));
    neighbour.attributes.push(NeighbourAttribute::Protocol(RouteProtocol::from(protocol)));
    let flags = flags | NLM_F_CREATE | NLM_F_REPLACE;
    message::write(buf, flags, seq, RouteNetlinkMessage::NewNeighbour(neighbour));
}

/// Encodes the request that removes a neighbour.
pub(crate) fn encode_delete(buf: &mut Vec<u8>, flags: u16, seq: u32, ifindex: u32, addr: IpAddr) {
    message::write(buf, flags, seq, RouteNetlinkMessage::DelNeighbour(of(ifindex, addr)));
}

/// Encodes the request for one neighbour.
pub(crate) fn encode_get(buf: &mut Vec<u8>, seq: u32, ifindex: u32, addr: IpAddr) {
    message::write(buf, NLM_F_ACK, seq, RouteNetlinkMessage::GetNeighbour(of(ifindex, addr)));
}

/// Encodes the request for all neighbours of one family.
pub(crate) fn encode_dump(buf: &mut Vec<u8>, seq: u32, family: u8) {
    let mut all = NeighbourMessage::default();
    all.header.family = AddressFamily::from(family);
    message::write(buf, NLM_F_DUMP, seq, RouteNetlinkMessage::GetNeighbour(all));
}

fn of(ifindex: u32, addr: IpAddr) -> NeighbourMessage {
    let mut neighbour = NeighbourMessage::default();
    neighbour.header.family = AddressFamily::from(family_of(&addr));
    neighbour.header.ifindex = ifindex;
    neighbour.attributes.push(NeighbourAttribute::Destination(addr.into()));
    neighbour
}

/// Decodes RTM_NEWNEIGH; `None` for proxy entries, bridge entries, and neighbours without a MAC address.
pub(crate) fn decode(message: &Message<'_>) -> Option<Neighbour> {
    let header = NeighbourHeader::parse(message.body).ok()?;
    if message.kind != RTM_NEWNEIGH
        || !matches!(header.family, AddressFamily::Inet | AddressFamily::Inet6)
        || header.flags.contains(NeighbourFlags::Proxy)
    {
        return None;
    }
    let (mut addr, mut mac, mut protocol) = (None, None, 0);
    for attribute in message::attributes(message.body, NDMSG) {
        match NeighbourAttribute::parse_with_param(&attribute, header.family) {
            Ok(NeighbourAttribute::Destination(NeighbourAddress::Inet(v4))) => addr = Some(IpAddr::V4(v4)),
            Ok(NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6))) => addr = Some(IpAddr::V6(v6)),
            Ok(NeighbourAttribute::LinkLayerAddress(octets)) => mac = octets.try_into().ok(),
            Ok(NeighbourAttribute::Protocol(number)) => protocol = number.into(),
            _ => {}
        }
    }
    let permanent = header.state == NeighbourState::Permanent;
    Some(Neighbour { ifindex: header.ifindex, addr: addr?, mac: mac?, permanent, protocol })
}

/// Decodes state (`NUD_*`) and MAC address from RTM_NEWNEIGH.
pub(crate) fn decode_state(message: &Message<'_>) -> Option<(NeighbourState, Option<[u8; 6]>)> {
    let header = NeighbourHeader::parse(message.body).ok().filter(|_| message.kind == RTM_NEWNEIGH)?;
    let mac = message::attributes(message.body, NDMSG).find_map(|attribute| {
        match NeighbourAttribute::parse_with_param(&attribute, header.family) {
            Ok(NeighbourAttribute::LinkLayerAddress(octets)) => octets.try_into().ok(),
            _ => None,
        }
    });
    Some((header.state, mac))
}
