//! Requests for interfaces, addresses and routes of one network namespace, over one netlink socket.

use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, ParseableParametrized};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage, AddressScope};
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkFlags, LinkHeader, LinkInfo, LinkMessage};
use netlink_packet_route::route::{RouteAttribute, RouteHeader, RouteLwEnCapType, RouteMessage, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use tortie_config::resource::MacAddr;
use tortie_net::Cidr;

use super::{ContainerNetError, VethSpec};
use crate::netlink::codec::{Message, Put, RTM_NEWLINK, family_of};
use crate::netlink::route::{self, Leg, Route, RouteId, Via};
use crate::netlink::socket::{Refusal, Socket};
use crate::netlink::{dump, link, message};

pub(super) const RTPROT_BOOT: u8 = 3;
/// Metric that `ip route` uses for an IPv6 route without one.
const METRIC_V6: u32 = 1024;
/// Length of `struct rtmsg`, in octets.
const RTMSG: usize = 12;
/// Time limit for work that Linux defers; normally it takes less than a millisecond of processor time.
const PATIENCE: Duration = Duration::from_secs(2);

/// An interface as the kernel reports it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Device {
    pub(super) index: u32,
    pub(super) name: String,
    pub(super) up: bool,
    pub(super) mac: Option<MacAddr>,
    pub(super) mtu: u32,
    /// `veth`, `tun`, `ifb`, ...; empty for a physical interface.
    pub(super) kind: String,
    /// Index of the bridge or other controller device that it is a port of; 0 for none.
    pub(super) master: u32,
    /// True if the other side of the pair is in another namespace.
    pub(super) peer_elsewhere: bool,
    pub(super) alias: String,
}

/// Changes of an interface; `None` leaves the attribute as it is.
#[derive(Debug, Default)]
pub(super) struct Change<'a> {
    pub(super) up: Option<bool>,
    pub(super) name: Option<&'a str>,
    pub(super) mac: Option<MacAddr>,
    pub(super) mtu: Option<u32>,
    /// Index of the controller device; 0 for none.
    pub(super) master: Option<u32>,
    pub(super) alias: Option<&'a str>,
}

/// A netlink socket of the namespace in which it was opened.
pub(super) struct Net(Socket);

impl Net {
    pub(super) fn open() -> Result<Self, ContainerNetError> {
        Socket::open()
            .map(Self)
            .map_err(|error| ContainerNetError::io("a netlink socket cannot be opened", error))
    }

    /// Sends one request and returns its answer.
    pub(super) fn ask(
        &mut self,
        doing: &str,
        encode: impl FnMut(&(), &mut Vec<u8>, u16, u32),
    ) -> Result<Result<(), Refusal>, ContainerNetError> {
        self.0.request(encode).map_err(|error| ContainerNetError::io(doing, error))
    }

    /// Sends one message and returns its answer; `flags` are the NLM_F flags for creation.
    pub(super) fn send(
        &mut self,
        doing: &str,
        flags: u16,
        message: &RouteNetlinkMessage,
    ) -> Result<Result<(), Refusal>, ContainerNetError> {
        self.ask(doing, |(), buf, ack, seq| message::write(buf, ack | flags, seq, message.clone()))
    }

    /// Sends one request and converts a refusal to an error.
    pub(super) fn must(
        &mut self,
        doing: &str,
        encode: impl FnMut(&(), &mut Vec<u8>, u16, u32),
    ) -> Result<(), ContainerNetError> {
        self.ask(doing, encode)?.map_err(|refusal| ContainerNetError::refused(doing, &refusal))
    }

    /// Reads an interface by name.
    pub(super) fn device(&mut self, name: &str) -> Result<Option<Device>, ContainerNetError> {
        let doing = || format!("interface {name} cannot be read");
        let mut found = None;
        let answer = self.0.dump(
            |buf, seq| message::write(buf, NLM_F_ACK, seq, RouteNetlinkMessage::GetLink(link::named(name))),
            |message| found = decode(message).or(found.take()),
        );
        match answer.map_err(|error| ContainerNetError::io(doing(), error))? {
            Ok(_) => Ok(found),
            Err(refusal) if refusal.code == libc::ENODEV => Ok(None),
            Err(refusal) => Err(ContainerNetError::refused(doing(), &refusal)),
        }
    }

    /// Dumps all objects of one kind and collects those for which `read` returns a value.
    pub(super) fn read<T>(
        &mut self,
        doing: &str,
        encode: impl FnOnce(&mut Vec<u8>, u32),
        read: impl Fn(&Message<'_>) -> Option<T>,
    ) -> Result<Vec<T>, ContainerNetError> {
        let mut all = Vec::new();
        let answer = self.dump(doing, encode, |message| all.extend(read(message)))?;
        answer.map_err(|refusal| ContainerNetError::refused(doing, &refusal))?;
        Ok(all)
    }

    /// Calls `each` for every message of a dump.
    pub(super) fn dump(
        &mut self,
        doing: &str,
        encode: impl FnOnce(&mut Vec<u8>, u32),
        each: impl FnMut(&Message<'_>),
    ) -> Result<Result<(), Refusal>, ContainerNetError> {
        let answer = self.0.dump(encode, each).map_err(|error| ContainerNetError::io(doing, error))?;
        Ok(answer.map(drop))
    }

    /// Lists all interfaces.
    pub(super) fn devices(&mut self) -> Result<Vec<Device>, ContainerNetError> {
        self.read("interfaces cannot be read", link::encode_link_dump, decode)
    }

    /// Returns the outgoing interface of the route to an address.
    pub(super) fn way_to(&mut self, addr: IpAddr) -> Result<Option<u32>, ContainerNetError> {
        Ok(self.route_to(addr, None)?.and_then(|(_, by)| by))
    }

    /// Waits until an interface answers for an IPv6 address that was added to it. Linux joins the
    /// solicited-node multicast group, and then adds the local route of the address, asynchronously. A
    /// neighbour solicitation before that is lost and repeated only a second later. Returns silently after
    /// [`PATIENCE`]: the address is late, not wrong.
    pub(super) fn until_answering(&mut self, index: u32, addr: IpAddr) -> Result<(), ContainerNetError> {
        let begin = Instant::now();
        while !matches!(self.route_to(addr, Some(index))?, Some((RouteType::Local, _)))
            && begin.elapsed() < PATIENCE
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Returns the type and the outgoing interface of the route to an address; with `over`, of the route over
    /// that interface.
    fn route_to(
        &mut self,
        addr: IpAddr,
        over: Option<u32>,
    ) -> Result<Option<(RouteType, Option<u32>)>, ContainerNetError> {
        let doing = || format!("the route to {addr} cannot be read");
        let mut wanted = RouteMessage::default();
        wanted.header.address_family = AddressFamily::from(family_of(&addr));
        wanted.header.destination_prefix_length = if addr.is_ipv4() { 32 } else { 128 };
        wanted.attributes.push(RouteAttribute::Destination(addr.into()));
        wanted.attributes.extend(over.map(RouteAttribute::Oif));
        let mut found = None;
        let answer = self.0.dump(
            |buf, seq| message::write(buf, NLM_F_ACK, seq, RouteNetlinkMessage::GetRoute(wanted)),
            |message| {
                let Ok(header) = RouteHeader::parse(message.body) else { return };
                let with = (header.address_family, header.kind, RouteLwEnCapType::None);
                let by = message::attributes(message.body, RTMSG).find_map(|attribute| {
                    match RouteAttribute::parse_with_param(&attribute, with) {
                        Ok(RouteAttribute::Oif(index)) => Some(index),
                        _ => None,
                    }
                });
                found = Some((header.kind, by));
            },
        );
        match answer.map_err(|error| ContainerNetError::io(doing(), error))? {
            Ok(_) => Ok(found),
            Err(refusal)
                if matches!(
                    refusal.code,
                    libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EINVAL | libc::EACCES
                ) =>
            {
                Ok(None)
            }
            Err(refusal) => Err(ContainerNetError::refused(doing(), &refusal)),
        }
    }

    /// Creates a veth pair.
    pub(super) fn add_veth(&mut self, spec: &VethSpec<'_>) -> Result<Result<(), Refusal>, ContainerNetError> {
        let doing = format!("the pair {} and {} cannot be made", spec.host, spec.peer);
        let mut peer = end_of_pair(spec.peer.as_str(), spec.peer_mac, spec.mtu);
        peer.attributes.extend(spec.namespace.map(|namespace| LinkAttribute::NetNsFd(namespace.raw())));
        let pair = end_of_pair(spec.host.as_str(), spec.host_mac, spec.mtu);
        self.send(&doing, NLM_F_CREATE | NLM_F_EXCL, &link::veth(pair, peer))
    }

    /// Creates an interface of a kind that needs no further parameters, and sets it up.
    pub(super) fn add(
        &mut self,
        kind: InfoKind,
        name: &str,
        mtu: u32,
    ) -> Result<Result<(), Refusal>, ContainerNetError> {
        let mut made = link::named(name);
        made.header.flags = LinkFlags::Up;
        made.header.change_mask = LinkFlags::Up;
        made.attributes.push(LinkAttribute::Mtu(mtu));
        made.attributes.push(LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind)]));
        let doing = format!("{name} cannot be made");
        self.send(&doing, NLM_F_CREATE | NLM_F_EXCL, &RouteNetlinkMessage::NewLink(made))
    }

    /// Removes an interface; false if it did not exist.
    pub(super) fn remove(&mut self, name: &str) -> Result<bool, ContainerNetError> {
        let doing = format!("interface {name} cannot be removed");
        let answer = self.send(&doing, 0, &RouteNetlinkMessage::DelLink(link::named(name)))?;
        match answer {
            Ok(()) => Ok(true),
            Err(refusal) if refusal.code == libc::ENODEV => Ok(false),
            Err(refusal) => Err(ContainerNetError::refused(doing, &refusal)),
        }
    }

    /// Changes attributes of an interface.
    pub(super) fn change(
        &mut self,
        index: u32,
        doing: &str,
        change: &Change<'_>,
    ) -> Result<(), ContainerNetError> {
        let mut link = LinkMessage::default();
        link.header.index = index;
        if let Some(up) = change.up {
            link.header.flags.set(LinkFlags::Up, up);
            link.header.change_mask = LinkFlags::Up;
        }
        link.attributes.extend(change.name.map(|name| LinkAttribute::IfName(name.to_owned())));
        link.attributes.extend(change.mac.map(|mac| LinkAttribute::Address(mac.0.to_vec())));
        link.attributes.extend(change.mtu.map(LinkAttribute::Mtu));
        link.attributes.extend(change.master.map(LinkAttribute::Controller));
        link.attributes.extend(change.alias.map(|alias| LinkAttribute::IfAlias(alias.to_owned())));
        let answer = self.send(doing, 0, &RouteNetlinkMessage::NewLink(link))?;
        answer.map_err(|refusal| ContainerNetError::refused(doing, &refusal))
    }

    /// Lists the addresses of an interface.
    pub(super) fn addresses(&mut self, index: u32) -> Result<Vec<link::Address>, ContainerNetError> {
        let all = self.read("addresses cannot be read", link::encode_address_dump, link::decode_address)?;
        Ok(all.into_iter().filter(|a| a.ifindex == index).collect())
    }

    /// Adds an address that is usable at once.
    pub(super) fn add_address(&mut self, index: u32, addr: IpAddr, len: u8) -> Result<(), ContainerNetError> {
        let doing = format!("address {addr} cannot be set");
        let message = RouteNetlinkMessage::NewAddress(address(index, addr, len));
        let answer = self.send(&doing, NLM_F_CREATE | NLM_F_REPLACE, &message)?;
        answer.map_err(|refusal| ContainerNetError::refused(doing, &refusal))
    }

    /// Removes an address if it exists.
    pub(super) fn remove_address(
        &mut self,
        index: u32,
        addr: IpAddr,
        len: u8,
    ) -> Result<(), ContainerNetError> {
        let doing = format!("address {addr} cannot be removed");
        let answer = self.send(&doing, 0, &RouteNetlinkMessage::DelAddress(address(index, addr, len)))?;
        match answer {
            Err(refusal) if refusal.code != libc::EADDRNOTAVAIL => {
                Err(ContainerNetError::refused(doing, &refusal))
            }
            _ => Ok(()),
        }
    }

    /// Lists the routes of the main table.
    pub(super) fn routes(&mut self) -> Result<Vec<Route>, ContainerNetError> {
        let doing = "routes cannot be read";
        dump::all(&mut self.0, route::encode_dump, route::decode)
            .map_err(|error| ContainerNetError::io(doing, error))
    }

    /// Adds `prefix dev INDEX scope link`; false if a route with this prefix and metric exists.
    pub(super) fn add_onlink(&mut self, prefix: &Cidr, index: u32) -> Result<bool, ContainerNetError> {
        let doing = format!("the route to {prefix} cannot be written");
        let answer = self.ask(&doing, |(), buf, flags, seq| {
            route::encode_add_onlink(buf, flags, seq, &id(prefix, metric(prefix)), index);
        })?;
        not_there(&doing, answer)
    }

    /// Adds `prefix via GATEWAY dev INDEX`; false if a route with this prefix and metric exists.
    pub(super) fn add_via(
        &mut self,
        prefix: &Cidr,
        gateway: IpAddr,
        index: u32,
        metric: u32,
    ) -> Result<bool, ContainerNetError> {
        let doing = format!("the route to {prefix} cannot be written");
        let leg = [Leg { ifindex: index, gateway: Some(gateway), onlink: true }];
        let answer = self.ask(&doing, |(), buf, flags, seq| {
            route::encode_put(buf, flags, seq, &id(prefix, metric), Via::Plain(&leg), Put::Add);
        })?;
        not_there(&doing, answer)
    }

    /// Removes a route over an interface if it exists.
    pub(super) fn remove_route(
        &mut self,
        prefix: &Cidr,
        metric: u32,
        index: u32,
    ) -> Result<(), ContainerNetError> {
        let doing = format!("the route to {prefix} cannot be removed");
        let answer = self.ask(&doing, |(), buf, flags, seq| {
            route::encode_delete_onlink(buf, flags, seq, &id(prefix, metric), index);
        })?;
        match answer {
            Err(refusal) if refusal.code != libc::ESRCH => Err(ContainerNetError::refused(doing, &refusal)),
            _ => Ok(()),
        }
    }
}

fn id(prefix: &Cidr, metric: u32) -> RouteId {
    RouteId { prefix: *prefix, protocol: RTPROT_BOOT, metric }
}

/// Returns the metric of routes to workloads.
pub(super) fn metric(prefix: &Cidr) -> u32 {
    if prefix.is_v4() { 0 } else { METRIC_V6 }
}

/// Derives the link-local address from a MAC address (RFC 4291, appendix A).
pub(super) fn link_local(mac: MacAddr) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.0;
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

fn not_there(doing: &str, answer: Result<(), Refusal>) -> Result<bool, ContainerNetError> {
    match answer {
        Ok(()) => Ok(true),
        Err(refusal) if refusal.code == libc::EEXIST => Ok(false),
        Err(refusal) => Err(ContainerNetError::refused(doing, &refusal)),
    }
}

fn end_of_pair(name: &str, mac: Option<MacAddr>, mtu: Option<u32>) -> LinkMessage {
    let mut end = link::named(name);
    end.attributes.extend(mac.map(|mac| LinkAttribute::Address(mac.0.to_vec())));
    end.attributes.extend(mtu.map(LinkAttribute::Mtu));
    end
}

/// Encodes an address without duplicate address detection, so that it is usable at once.
fn address(index: u32, addr: IpAddr, len: u8) -> AddressMessage {
    let mut message = AddressMessage::default();
    let local = matches!(addr, IpAddr::V6(a) if a.segments()[0] == 0xfe80);
    message.header.family = AddressFamily::from(family_of(&addr));
    message.header.prefix_len = len;
    message.header.scope = if local { AddressScope::Link } else { AddressScope::Universe };
    message.header.index = index;
    let flags = if addr.is_ipv4() { AddressFlags::empty() } else { AddressFlags::Nodad };
    message.attributes =
        vec![AddressAttribute::Local(addr), AddressAttribute::Address(addr), AddressAttribute::Flags(flags)];
    message
}

fn decode(message: &Message<'_>) -> Option<Device> {
    if message.kind != RTM_NEWLINK {
        return None;
    }
    let header = LinkHeader::parse(message.body).ok()?;
    let up = header.flags.contains(LinkFlags::Up);
    let mut device = Device { index: header.index, up, ..Device::default() };
    for attribute in link::link_attributes(message, |_| true)? {
        match attribute {
            LinkAttribute::IfName(name) => device.name = name,
            LinkAttribute::Address(octets) => device.mac = <[u8; 6]>::try_from(octets).ok().map(MacAddr),
            LinkAttribute::Mtu(mtu) => device.mtu = mtu,
            LinkAttribute::Controller(master) => device.master = master,
            LinkAttribute::LinkNetNsId(_) => device.peer_elsewhere = true,
            LinkAttribute::IfAlias(alias) => device.alias = alias,
            LinkAttribute::LinkInfo(infos) => {
                let kind = infos.into_iter().find_map(|info| match info {
                    LinkInfo::Kind(kind) => Some(kind.to_string()),
                    _ => None,
                });
                device.kind = kind.unwrap_or_default();
            }
            _ => {}
        }
    }
    Some(device)
}
