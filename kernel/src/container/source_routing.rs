//! Source routing in a container's namespace: packets from an interface's address leave by that interface.
//!
//! A namespace with several interfaces prefers one default route. Without these rules, answers from the
//! address of another interface leave by the preferred one, where this host or another network drops them as
//! spoofed.
//!
//! ```text
//!   ip rule   32000: from A lookup 0x54000000+index
//!             32001: to POOL lookup ...     prefixes of the interface's network, if the engine knows them
//!   table     default via <gateway of A's interface> dev <interface> onlink
//! ```
//!
//! The first rule does not apply to a socket without a source address: another rule or the main table selects
//! its route, and the route selects the address. The kernel removes the table of a deleted interface, but not
//! its rules; [`sweep`] removes those.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE, Parseable};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use serde::{Deserialize, Serialize};

use super::link::{Net, RTPROT_BOOT, link_local};
use super::{ContainerNetError, GATEWAY, HOST_MAC, Namespace};
use crate::endpoints::put_neighbour;
use crate::netlink::codec::{AF_INET, AF_INET6, family_of};
use crate::netlink::message;
use tortie_config::resource::MacAddr;
use tortie_net::Cidr;

/// Table number base; the interface index is added.
const TABLES: u32 = 0x5400_0000;
/// Bits of the interface index that are part of the table number.
const INDEX_BITS: u32 = 0x00ff_ffff;
/// Preference of the rules: before the main table (32766), after rules that operators usually add.
const PREFERENCE: u32 = 32_000;
const RTM_NEWRULE: u16 = 32;

/// Returns the default gateways of the interface with this number (from 1) in a container, one per address
/// family, proxied by the host. Each interface has its own gateways, so that a route via a gateway identifies
/// the interface; dockerd offers no other way.
#[must_use]
pub fn gateways(number: u8, addrs: &[IpAddr]) -> Vec<IpAddr> {
    let [a, b, c, _] = GATEWAY.octets();
    let v4 = Ipv4Addr::new(a, b, c, number);
    let v6 = match number {
        1 => link_local(HOST_MAC),
        _ => {
            let [a, b, c, d] = v4.octets().map(u16::from);
            Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, (a << 8) | b, (c << 8) | d)
        }
    };
    let v4 = addrs.iter().any(IpAddr::is_ipv4).then_some(IpAddr::V4(v4));
    v4.into_iter().chain(addrs.iter().any(IpAddr::is_ipv6).then_some(IpAddr::V6(v6))).collect()
}

/// Packets that a rule selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    /// Packets with this source.
    From(IpAddr),
    /// Packets to a destination in this prefix.
    To(Cidr),
}

/// A routing rule of this module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SourceRule {
    pub(super) which: Which,
    /// Interface index, reduced to [`INDEX_BITS`].
    index: u32,
}

impl SourceRule {
    /// Returns true if the rule selects the table of this interface.
    pub(super) fn leads_to(&self, index: u32) -> bool {
        self.index == index & INDEX_BITS
    }

    /// Returns the source address of the rule, if it selects by source.
    pub(super) fn source(&self) -> Option<IpAddr> {
        match self.which {
            Which::From(addr) => Some(addr),
            Which::To(_) => None,
        }
    }
}

impl std::fmt::Display for SourceRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.which {
            Which::From(addr) => write!(f, "the rule for packets from {addr}"),
            Which::To(prefix) => write!(f, "the rule for packets to {prefix}"),
        }
    }
}

fn table(index: u32) -> u32 {
    TABLES | (index & INDEX_BITS)
}

fn rule(of: &SourceRule) -> RuleMessage {
    let mut rule = RuleMessage::default();
    rule.header.action = RuleAction::ToTable;
    rule.attributes = match of.which {
        Which::From(addr) => {
            rule.header.family = AddressFamily::from(family_of(&addr));
            rule.header.src_len = if addr.is_ipv4() { 32 } else { 128 };
            vec![RuleAttribute::Source(addr), RuleAttribute::Priority(PREFERENCE)]
        }
        Which::To(prefix) => {
            rule.header.family = AddressFamily::from(family_of(&prefix.addr()));
            rule.header.dst_len = prefix.len();
            vec![RuleAttribute::Destination(prefix.addr()), RuleAttribute::Priority(PREFERENCE + 1)]
        }
    };
    rule.attributes.push(RuleAttribute::Table(table(of.index)));
    rule
}

fn default_route(gateway: IpAddr, index: u32) -> RouteMessage {
    let mut route = RouteMessage::default();
    route.header.address_family = AddressFamily::from(family_of(&gateway));
    route.header.protocol = RouteProtocol::from(RTPROT_BOOT);
    route.header.scope = RouteScope::Universe;
    route.header.kind = RouteType::Unicast;
    route.header.flags = RouteFlags::Onlink;
    route.attributes = vec![
        RouteAttribute::Table(table(index)),
        RouteAttribute::Gateway(RouteAddress::from(gateway)),
        RouteAttribute::Oif(index),
    ];
    route
}

/// Parses RTM_NEWRULE; `None` for rules of other programs.
fn decode(kind: u16, body: &[u8]) -> Option<SourceRule> {
    let rule = RuleMessage::parse(body).ok().filter(|_| kind == RTM_NEWRULE)?;
    let (mut which, mut index, mut ours) = (None, None, false);
    for attribute in rule.attributes {
        match attribute {
            RuleAttribute::Source(source) => which = Some(Which::From(source)),
            RuleAttribute::Destination(to) => which = Cidr::new(to, rule.header.dst_len).ok().map(Which::To),
            RuleAttribute::Table(table) if table & !INDEX_BITS == TABLES => index = Some(table & INDEX_BITS),
            RuleAttribute::Priority(preference) => ours = [PREFERENCE, PREFERENCE + 1].contains(&preference),
            _ => {}
        }
    }
    ours.then_some(SourceRule { which: which?, index: index? })
}

/// Lists the rules of this module, for all interfaces.
pub(super) fn rules(net: &mut Net) -> Result<Vec<SourceRule>, ContainerNetError> {
    let mut all = Vec::new();
    for family in [AF_INET, AF_INET6] {
        let mut any = RuleMessage::default();
        any.header.family = AddressFamily::from(family);
        let encode = |buf: &mut Vec<u8>, seq| {
            message::write(buf, NLM_F_DUMP, seq, RouteNetlinkMessage::GetRule(any));
        };
        match net.read("rules by source cannot be read", encode, |m| decode(m.kind, m.body)) {
            // A kernel without policy routing, or without IPv6.
            Err(ContainerNetError::Refused { code: libc::EOPNOTSUPP | libc::EAFNOSUPPORT, .. }) => {}
            other => all.extend(other?),
        }
    }
    Ok(all)
}

/// Routes packets from these addresses and to these prefixes over this interface, which must be up and have
/// the addresses. Existing rules are no error; each prefix has one rule only.
pub(super) fn write(
    net: &mut Net,
    index: u32,
    addrs: &[IpAddr],
    prefixes: &[Cidr],
    gateways: &[IpAddr],
) -> Result<(), ContainerNetError> {
    sweep(net)?;
    for gateway in gateways {
        let route = RouteNetlinkMessage::NewRoute(default_route(*gateway, index));
        let doing = format!("the route by {gateway} cannot be written");
        net.send(&doing, NLM_F_CREATE | NLM_F_REPLACE, &route)?
            .map_err(|refusal| ContainerNetError::refused(doing, &refusal))?;
    }
    let has = |v4: bool| gateways.iter().any(|gateway| gateway.is_ipv4() == v4);
    let from = addrs.iter().filter(|addr| has(addr.is_ipv4())).map(|addr| Which::From(*addr));
    let to = prefixes.iter().filter(|prefix| has(prefix.is_v4())).map(|prefix| Which::To(*prefix));
    for which in from.chain(to) {
        let wanted = SourceRule { which, index: index & INDEX_BITS };
        let doing = format!("{wanted} cannot be written");
        let message = RouteNetlinkMessage::NewRule(rule(&wanted));
        match net.send(&doing, NLM_F_CREATE | NLM_F_EXCL, &message)? {
            Err(refusal) if refusal.code != libc::EEXIST => {
                return Err(ContainerNetError::refused(doing, &refusal));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Removes the rules of an interface and the routes in its table.
pub(super) fn remove(net: &mut Net, index: u32, gateways: &[IpAddr]) -> Result<(), ContainerNetError> {
    for rule in rules(net)?.into_iter().filter(|rule| rule.leads_to(index)) {
        delete(net, &rule)?;
    }
    for gateway in gateways {
        // Removed together with an address or with the interface: no error.
        let _ = net.send(
            "a route by source cannot be removed",
            0,
            &RouteNetlinkMessage::DelRoute(default_route(*gateway, index)),
        )?;
    }
    Ok(())
}

/// Removes rules of interfaces that no longer exist.
pub(super) fn sweep(net: &mut Net) -> Result<(), ContainerNetError> {
    let all = rules(net)?;
    if all.is_empty() {
        return Ok(());
    }
    let devices = net.devices()?;
    for rule in all.iter().filter(|rule| !devices.iter().any(|device| rule.leads_to(device.index))) {
        delete(net, rule)?;
    }
    Ok(())
}

fn delete(net: &mut Net, old: &SourceRule) -> Result<(), ContainerNetError> {
    let doing = format!("{old} cannot be removed");
    match net.send(&doing, 0, &RouteNetlinkMessage::DelRule(rule(old)))? {
        Err(refusal) if refusal.code != libc::ENOENT => Err(ContainerNetError::refused(doing, &refusal)),
        _ => Ok(()),
    }
}

/// Removes rules of interfaces that no longer exist from a container's namespace. A missing namespace is no
/// error.
///
/// # Errors
/// The kernel refuses a request.
pub fn sweep_source_rules(path: &std::path::Path) -> Result<(), ContainerNetError> {
    let namespace = match Namespace::open(path) {
        Ok(namespace) => namespace,
        Err(
            ContainerNetError::NoNamespace(_)
            | ContainerNetError::NotNamespace { .. }
            | ContainerNetError::OwnNamespace(_),
        ) => return Ok(()),
        Err(error) => return Err(error),
    };
    namespace.run(|| sweep(&mut Net::open()?))?
}

/// An interface that another program moves into a container and configures there, as dockerd does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MovedInterface {
    /// Name of the host side of the pair.
    pub host: tortie_config::resource::InterfaceName,
    /// MAC address of the moved side.
    pub mac: MacAddr,
    /// Addresses that the moved side will get.
    pub addrs: Vec<IpAddr>,
    /// Default gateways of the container, one per address family, proxied by the host.
    pub gateways: Vec<IpAddr>,
    /// Prefixes that the container reaches over this interface.
    pub prefixes: Vec<Cidr>,
}

/// Progress of completing a moved interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MoveState {
    /// The container side is still on this host.
    NotMoved,
    /// The namespace does not exist, or the interface in it is not configured yet.
    NotConfigured,
    /// The rules and the neighbour entry are written.
    Complete,
}

/// Completes the configuration of a moved interface: source rules, and the neighbour entry of the gateway.
///
/// # Errors
/// The host side does not exist; the kernel refuses a request.
pub fn complete_moved(
    moved: &MovedInterface,
    namespace: &std::path::Path,
) -> Result<MoveState, ContainerNetError> {
    let mut net = Net::open()?;
    let missing = || ContainerNetError::Missing { name: moved.host.to_string(), place: "on this host" };
    let host = net.device(moved.host.as_str())?.ok_or_else(missing)?;
    if !host.peer_elsewhere {
        return Ok(MoveState::NotMoved);
    }
    let host_mac = host.mac.unwrap_or(HOST_MAC);
    let namespace = match Namespace::open(namespace) {
        Ok(namespace) => namespace,
        Err(ContainerNetError::NoNamespace(_) | ContainerNetError::NotNamespace { .. }) => {
            return Ok(MoveState::NotConfigured);
        }
        Err(error) => return Err(error),
    };
    namespace.run(|| {
        let mut net = Net::open()?;
        let inside = net.devices()?.into_iter().find(|device| device.mac == Some(moved.mac) && device.up);
        let Some(inside) = inside else { return Ok(MoveState::NotConfigured) };
        let has = net.addresses(inside.index)?;
        if !moved.addrs.iter().all(|addr| has.iter().any(|found| found.addr == *addr)) {
            return Ok(MoveState::NotConfigured);
        }
        write(&mut net, inside.index, &moved.addrs, &moved.prefixes, &moved.gateways)?;
        for gateway in moved.gateways.iter().filter(|gateway| gateway.is_ipv4()) {
            net.must(&format!("the neighbour {gateway} cannot be written"), |(), buf, flags, seq| {
                put_neighbour(buf, flags, seq, inside.index, *gateway, host_mac.0, RTPROT_BOOT);
            })?;
        }
        Ok(MoveState::Complete)
    })?
}
