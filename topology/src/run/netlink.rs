//! Configures links and addresses of one network namespace over a blocking netlink socket.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

use super::ns;

/// A netlink socket, which acts in the namespace in which it was created, regardless of the thread that uses
/// it.
#[derive(Debug)]
pub(crate) struct Netlink {
    socket: Socket,
    sequence: u32,
}

/// One end of a veth pair to be created.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plug<'a> {
    pub(crate) interface: &'a str,
    pub(crate) namespace: BorrowedFd<'a>,
    pub(crate) mac: Option<[u8; 6]>,
}

impl Netlink {
    /// Opens a socket in the namespace of this thread.
    pub(crate) fn here() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Opens a socket in the network namespace of process `pid`.
    pub(crate) fn of(pid: i32) -> io::Result<Self> {
        ns::inside(pid, false, Self::here)
    }

    /// Creates a veth pair with each end directly in its namespace, so that no temporary name can collide.
    pub(crate) fn add_veth(&mut self, a: Plug<'_>, b: Plug<'_>, mtu: Option<u32>) -> io::Result<()> {
        let mut peer = LinkMessage::default();
        peer.attributes = plug(b, mtu);
        let mut message = LinkMessage::default();
        message.attributes = plug(a, mtu);
        message.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
        ]));
        self.change(RouteNetlinkMessage::NewLink(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Creates an interface of a kind without further parameters, such as `dummy` or `bridge`.
    pub(crate) fn add_link(&mut self, name: &str, kind: InfoKind, mtu: Option<u32>) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.attributes =
            vec![LinkAttribute::IfName(name.to_owned()), LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind)])];
        message.attributes.extend(mtu.map(LinkAttribute::Mtu));
        self.change(RouteNetlinkMessage::NewLink(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Deletes an interface.
    pub(crate) fn remove_link(&mut self, name: &str) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = self.index(name)?;
        self.change(RouteNetlinkMessage::DelLink(message), 0)
    }

    /// Sets an interface up or down.
    pub(crate) fn set_up(&mut self, name: &str, up: bool) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = self.index(name)?;
        message.header.change_mask = LinkFlags::Up;
        message.header.flags = if up { LinkFlags::Up } else { LinkFlags::empty() };
        self.change(RouteNetlinkMessage::SetLink(message), 0)
    }

    /// Makes an interface a port of a bridge.
    pub(crate) fn set_master(&mut self, name: &str, bridge: &str) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = self.index(name)?;
        message.attributes.push(LinkAttribute::Controller(self.index(bridge)?));
        self.change(RouteNetlinkMessage::SetLink(message), 0)
    }

    /// Adds an address to an interface. IPv6 addresses skip duplicate address detection, because both ends of
    /// a lab's link are known.
    pub(crate) fn add_address(&mut self, name: &str, address: IpAddr, len: u8) -> io::Result<()> {
        let mut message = AddressMessage::default();
        message.header.index = self.index(name)?;
        message.header.prefix_len = len;
        message.attributes.push(AddressAttribute::Address(address));
        match address {
            IpAddr::V4(v4) => {
                message.header.family = AddressFamily::Inet;
                message.attributes.push(AddressAttribute::Local(address));
                if len < 31 {
                    let hosts = u32::MAX.checked_shr(u32::from(len)).unwrap_or(0);
                    let broadcast = Ipv4Addr::from(u32::from(v4) | hosts);
                    message.attributes.push(AddressAttribute::Broadcast(broadcast));
                }
            }
            IpAddr::V6(_) => {
                message.header.family = AddressFamily::Inet6;
                message.header.flags = AddressHeaderFlags::Nodad;
            }
        }
        self.change(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Returns the index of an interface.
    pub(crate) fn index(&mut self, name: &str) -> io::Result<u32> {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        match self.ask(RouteNetlinkMessage::GetLink(message), 0)? {
            Some(RouteNetlinkMessage::NewLink(link)) => Ok(link.header.index),
            _ => Err(io::Error::other("the kernel gave no interface")),
        }
    }

    fn change(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.ask(message, flags | NLM_F_ACK).map(drop)
    }

    /// Sends one message and reads the reply: the acknowledgement, or the requested object.
    fn ask(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<Option<RouteNetlinkMessage>> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut packet = NetlinkMessage::from(message);
        packet.header.flags = NLM_F_REQUEST | flags;
        packet.header.sequence_number = self.sequence;
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        loop {
            let (answer, _) = self.socket.recv_from_full()?;
            let answer =
                NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer).map_err(io::Error::other)?;
            if answer.header.sequence_number != self.sequence {
                continue;
            }
            return match answer.payload {
                NetlinkPayload::Error(error) if error.code.is_some() => Err(error.to_io()),
                NetlinkPayload::InnerMessage(inner) => Ok(Some(inner)),
                _ => Ok(None),
            };
        }
    }
}

fn plug(plug: Plug<'_>, mtu: Option<u32>) -> Vec<LinkAttribute> {
    let mut attributes = vec![
        LinkAttribute::IfName(plug.interface.to_owned()),
        LinkAttribute::NetNsFd(plug.namespace.as_raw_fd()),
    ];
    attributes.extend(plug.mac.map(|mac| LinkAttribute::Address(mac.to_vec())));
    attributes.extend(mtu.map(LinkAttribute::Mtu));
    attributes
}
