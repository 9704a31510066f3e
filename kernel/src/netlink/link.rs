//! Links and addresses: read with a tolerant reader, written with netlink-packet-route.

use std::net::{IpAddr, Ipv4Addr};

use netlink_packet_core::{
    NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};

use crate::netlink::codec::{
    self, Attrs, Message, NLM_F_DUMP, RTM_GETADDR, RTM_GETLINK, Writer, u8_at, u32_at,
};

const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
/// `struct ifinfomsg`.
const IFINFOMSG: usize = 16;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
/// `struct ifaddrmsg`.
const IFADDRMSG: usize = 8;
const IFF_UP: u32 = 0x1;
const IFF_LOWER_UP: u32 = 0x1_0000;

/// A network interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) index: u32,
    pub(crate) name: String,
    pub(crate) flags: u32,
    pub(crate) mtu: u32,
}

impl Link {
    /// Set up by the administrator.
    pub(crate) fn is_up(&self) -> bool {
        self.flags & IFF_UP != 0
    }

    /// Up and with carrier: the kernel accepts nexthops on it.
    pub(crate) fn can_carry(&self) -> bool {
        self.flags & (IFF_UP | IFF_LOWER_UP) == IFF_UP | IFF_LOWER_UP
    }
}

/// An address of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Address {
    pub(crate) ifindex: u32,
    pub(crate) addr: IpAddr,
    pub(crate) len: u8,
}

/// Reads RTM_NEWLINK or RTM_DELLINK; `None` for messages of a bridge or another family about the same link.
pub(crate) fn decode_link(message: &Message<'_>) -> Option<Link> {
    if u8_at(message.body, 0)? != 0 {
        return None;
    }
    let mut link = Link {
        index: u32_at(message.body, 4)?,
        name: String::new(),
        flags: u32_at(message.body, 8)?,
        mtu: 0,
    };
    for (kind, data) in Attrs::after(message.body, IFINFOMSG) {
        match kind {
            IFLA_IFNAME => link.name = codec::text(data),
            IFLA_MTU => link.mtu = u32_at(data, 0)?,
            _ => {}
        }
    }
    Some(link)
}

/// Reads RTM_NEWADDR or RTM_DELADDR.
pub(crate) fn decode_address(message: &Message<'_>) -> Option<Address> {
    let (mut local, mut peer) = (None, None);
    for (kind, data) in Attrs::after(message.body, IFADDRMSG) {
        match kind {
            IFA_LOCAL => local = codec::addr(data),
            IFA_ADDRESS => peer = codec::addr(data),
            _ => {}
        }
    }
    Some(Address { ifindex: u32_at(message.body, 4)?, addr: local.or(peer)?, len: u8_at(message.body, 1)? })
}

/// Writes the request for all links.
pub(crate) fn encode_link_dump(buf: &mut Vec<u8>, seq: u32) {
    let mut w = Writer::begin(buf, RTM_GETLINK, NLM_F_DUMP, seq);
    w.raw(&[0; IFINFOMSG]);
    w.end();
}

/// Writes the request for all addresses of both families.
pub(crate) fn encode_address_dump(buf: &mut Vec<u8>, seq: u32) {
    let mut w = Writer::begin(buf, RTM_GETADDR, NLM_F_DUMP, seq);
    w.raw(&[0; IFADDRMSG]);
    w.end();
}

/// Changes to links and addresses; few and rare.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// `ip link add NAME type ipip`: also makes the kernel load the module, whose fallback device is `tunl0`.
    CreateIpip { name: String },
    /// Sets a link up and its MTU, in bytes.
    Set { ifindex: u32, mtu: Option<u32> },
    /// Adds an address as /32.
    AddAddress { ifindex: u32, addr: Ipv4Addr },
    /// Removes an address.
    DeleteAddress { ifindex: u32, addr: Ipv4Addr, len: u8 },
}

impl Change {
    /// Writes the request.
    pub(crate) fn encode(&self, buf: &mut Vec<u8>, flags: u16, seq: u32) {
        let (inner, more) = match self {
            Self::CreateIpip { name } => {
                let mut link = LinkMessage::default();
                link.attributes.push(LinkAttribute::IfName(name.clone()));
                link.attributes.push(LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::IpIp)]));
                (RouteNetlinkMessage::NewLink(link), NLM_F_CREATE | NLM_F_EXCL)
            }
            Self::Set { ifindex, mtu } => {
                let mut link = LinkMessage::default();
                link.header.index = *ifindex;
                link.header.flags = LinkFlags::Up;
                link.header.change_mask = LinkFlags::Up;
                link.attributes.extend(mtu.map(LinkAttribute::Mtu));
                (RouteNetlinkMessage::SetLink(link), 0)
            }
            Self::AddAddress { ifindex, addr } => {
                (RouteNetlinkMessage::NewAddress(address(*ifindex, *addr, 32)), NLM_F_CREATE | NLM_F_REPLACE)
            }
            Self::DeleteAddress { ifindex, addr, len } => {
                (RouteNetlinkMessage::DelAddress(address(*ifindex, *addr, *len)), 0)
            }
        };
        let mut header = NetlinkHeader::default();
        header.flags = codec::NLM_F_REQUEST | flags | more;
        header.sequence_number = seq;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(inner));
        message.finalize();
        let at = buf.len();
        buf.resize(at + codec::align(message.buffer_len()), 0);
        if let Some(place) = buf.get_mut(at..) {
            message.serialize(place);
        }
    }
}

fn address(ifindex: u32, addr: Ipv4Addr, len: u8) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = netlink_packet_route::AddressFamily::Inet;
    message.header.prefix_len = len;
    message.header.index = ifindex;
    message.attributes.push(AddressAttribute::Local(IpAddr::V4(addr)));
    message.attributes.push(AddressAttribute::Address(IpAddr::V4(addr)));
    message
}
