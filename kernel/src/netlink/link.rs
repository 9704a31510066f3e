//! Messages about links and addresses (RTM_NEWLINK, RTM_NEWADDR and related types, rtnetlink(7)).

use std::net::{IpAddr, Ipv4Addr};

use netlink_packet_core::{
    NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE, Parseable, ParseableParametrized,
};
use netlink_packet_route::address::{AddressAttribute, AddressHeader, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkHeader, LinkInfo, LinkMessage,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use tortie_net::Cidr;

use crate::netlink::codec::Message;
use crate::netlink::message;

const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const BRIDGE: &[u8] = b"bridge\0";
/// Length of `struct ifinfomsg`, in octets.
const IFINFOMSG: usize = 16;
/// Length of `struct ifaddrmsg`, in octets.
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
    /// True for a bridge.
    pub(crate) is_bridge: bool,
}

impl Link {
    /// Returns true if the link is administratively up.
    pub(crate) fn is_up(&self) -> bool {
        self.flags & IFF_UP != 0
    }

    /// Returns true if the link is up and has carrier, so that the kernel accepts nexthops on it.
    pub(crate) fn can_carry(&self) -> bool {
        self.flags & (IFF_UP | IFF_LOWER_UP) == IFF_UP | IFF_LOWER_UP
    }
}

/// An address of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Address {
    pub(crate) ifindex: u32,
    pub(crate) addr: IpAddr,
    pub(crate) len: u8,
}

impl Address {
    /// Returns the network to which the address connects the interface; `None` for a single, link-local or
    /// loopback address.
    pub(crate) fn network(&self) -> Option<Cidr> {
        self.network_or_host().filter(|network| !network.is_host())
    }

    /// Returns the same, or a single address as a host prefix; `None` for a link-local or loopback address.
    pub(crate) fn network_or_host(&self) -> Option<Cidr> {
        let is_routed = match self.addr {
            IpAddr::V4(addr) => !addr.is_loopback() && !addr.is_link_local(),
            IpAddr::V6(addr) => !addr.is_loopback() && !addr.is_unicast_link_local(),
        };
        Cidr::new(self.addr, self.len).ok().filter(|_| is_routed)
    }
}

/// Decodes RTM_NEWLINK or RTM_DELLINK; `None` for messages of a bridge or another family about the same link.
pub(crate) fn decode_link(message: &Message<'_>) -> Option<Link> {
    let header = LinkHeader::parse(message.body).ok()?;
    let flags = header.flags.bits();
    let mut link = Link { index: header.index, name: String::new(), flags, mtu: 0, is_bridge: false };
    // Only two of some sixty attributes (statistics among them) are parsed, since the kernel thread reads
    // this message for every link.
    let wanted = |kind| matches!(kind, IFLA_IFNAME | IFLA_MTU);
    for attribute in link_attributes(message, wanted)? {
        match attribute {
            LinkAttribute::IfName(name) => link.name = name,
            LinkAttribute::Mtu(mtu) => link.mtu = mtu,
            _ => {}
        }
    }
    link.is_bridge = is_of_kind(message, BRIDGE);
    Some(link)
}

/// Returns true if a link is of this kind, given with a terminating zero. The kind's own attributes are not
/// parsed.
fn is_of_kind(message: &Message<'_>, kind: &[u8]) -> bool {
    let info =
        message::attributes(message.body, IFINFOMSG).find(|attribute| attribute.kind() == IFLA_LINKINFO);
    info.is_some_and(|info| {
        let mut inside = message::attributes(info.value(), 0);
        inside.any(|attribute| attribute.kind() == IFLA_INFO_KIND && attribute.value() == kind)
    })
}

/// Returns the `wanted` attributes of RTM_NEWLINK or RTM_DELLINK; `None` for messages that [`decode_link`]
/// ignores.
pub(crate) fn link_attributes(
    message: &Message<'_>,
    wanted: impl Fn(u16) -> bool,
) -> Option<impl Iterator<Item = LinkAttribute>> {
    let family = LinkHeader::parse(message.body).ok()?.interface_family;
    let attributes = message::attributes(message.body, IFINFOMSG)
        .filter(move |attribute| wanted(attribute.kind()))
        .filter_map(move |attribute| LinkAttribute::parse_with_param(&attribute, family).ok());
    (family == AddressFamily::Unspec).then_some(attributes)
}

/// Decodes RTM_NEWADDR or RTM_DELADDR.
pub(crate) fn decode_address(message: &Message<'_>) -> Option<Address> {
    let header = AddressHeader::parse(message.body).ok()?;
    let (mut local, mut peer) = (None, None);
    for attribute in message::attributes(message.body, IFADDRMSG) {
        match AddressAttribute::parse(&attribute) {
            Ok(AddressAttribute::Local(addr)) => local = Some(addr),
            Ok(AddressAttribute::Address(addr)) => peer = Some(addr),
            _ => {}
        }
    }
    Some(Address { ifindex: header.index, addr: local.or(peer)?, len: header.prefix_len })
}

/// Encodes the request for all links.
pub(crate) fn encode_link_dump(buf: &mut Vec<u8>, seq: u32) {
    message::write(buf, NLM_F_DUMP, seq, RouteNetlinkMessage::GetLink(LinkMessage::default()));
}

/// Encodes the request for all addresses of both families.
pub(crate) fn encode_address_dump(buf: &mut Vec<u8>, seq: u32) {
    message::write(buf, NLM_F_DUMP, seq, RouteNetlinkMessage::GetAddress(AddressMessage::default()));
}

/// Returns a message for an interface identified by name.
pub(crate) fn named(name: &str) -> LinkMessage {
    let mut link = LinkMessage::default();
    link.attributes.push(LinkAttribute::IfName(name.to_owned()));
    link
}

/// Returns the request that creates a veth pair.
pub(crate) fn veth(mut near: LinkMessage, far: LinkMessage) -> RouteNetlinkMessage {
    near.attributes.push(LinkAttribute::LinkInfo(vec![
        LinkInfo::Kind(InfoKind::Veth),
        LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(far))),
    ]));
    RouteNetlinkMessage::NewLink(near)
}

/// Changes of links and addresses; rare.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LinkChange {
    /// `ip link add NAME type ipip`: it also makes the kernel load the module, whose fallback device is
    /// `tunl0`.
    CreateIpip { name: String },
    /// Sets a link up, and its MTU in bytes.
    Set { ifindex: u32, mtu: Option<u32> },
    /// Adds an address as /32.
    AddAddress { ifindex: u32, addr: Ipv4Addr },
    /// Removes an address.
    DeleteAddress { ifindex: u32, addr: Ipv4Addr, len: u8 },
}

impl LinkChange {
    /// Encodes the request.
    pub(crate) fn encode(&self, buf: &mut Vec<u8>, flags: u16, seq: u32) {
        let (inner, more) = match self {
            Self::CreateIpip { name } => {
                let mut link = named(name);
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
        message::write(buf, flags | more, seq, inner);
    }
}

fn address(ifindex: u32, addr: Ipv4Addr, len: u8) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.family = AddressFamily::Inet;
    message.header.prefix_len = len;
    message.header.index = ifindex;
    message.attributes.push(AddressAttribute::Local(IpAddr::V4(addr)));
    message.attributes.push(AddressAttribute::Address(IpAddr::V4(addr)));
    message
}
