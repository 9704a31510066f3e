//! Reads the state of a workload's interface on both sides, for checks.

use std::net::{IpAddr, Ipv6Addr};

use tortie_config::resource::{InterfaceName, MacAddr};
use tortie_net::Cidr;

use super::link::{Net, link_local};
use super::{ContainerNetError, Namespace, source_routing};
use crate::endpoints;

/// State of an interface in a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerState {
    /// True if the interface is administratively up.
    pub up: bool,
    /// The MAC address of the interface.
    pub mac: Option<MacAddr>,
    /// MTU in octets.
    pub mtu: u32,
    /// Addresses with their prefix lengths, except link-local ones.
    pub addrs: Vec<(IpAddr, u8)>,
    /// Routes over the interface, with their gateways.
    pub routes: Vec<(Cidr, Option<IpAddr>)>,
    /// Source addresses with a rule that routes over this interface.
    pub source_rules: Vec<IpAddr>,
    /// True if the namespace has no other interface than the loopback.
    pub alone: bool,
}

/// State of the host side of a workload's interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostSideState {
    /// True if the interface is administratively up.
    pub up: bool,
    /// The MAC address of the interface.
    pub mac: Option<MacAddr>,
    /// MTU in octets.
    pub mtu: u32,
    /// Kind of interface: `veth`, `tun`, ...
    pub kind: String,
    /// The link-local address that workloads use as their IPv6 gateway, if the interface has it.
    pub link_local: Option<Ipv6Addr>,
    /// Workload addresses that this host does not route to the interface.
    pub misplaced_routes: Vec<IpAddr>,
    /// Number of sysctls with wrong values.
    pub wrong_sysctls: usize,
}

/// Reads an interface in a namespace; `None` if it does not exist.
///
/// # Errors
/// The kernel refuses a request.
pub fn inspect_container(
    namespace: &Namespace,
    name: &InterfaceName,
) -> Result<Option<ContainerState>, ContainerNetError> {
    namespace.run(|| {
        let mut net = Net::open()?;
        let Some(device) = net.device(name.as_str())? else { return Ok(None) };
        let addrs = net.addresses(device.index)?.into_iter().map(|a| (a.addr, a.len));
        let unicast = |addr: &IpAddr| !matches!(addr, IpAddr::V6(a) if a.segments()[0] == 0xfe80);
        let addrs = addrs.filter(|(addr, _)| unicast(addr)).collect();
        let routes = net.routes()?.into_iter().flat_map(|route| {
            let legs: Vec<_> = route.legs.iter().filter(|leg| leg.ifindex == device.index).copied().collect();
            legs.into_iter().map(move |leg| (route.prefix, leg.gateway))
        });
        let routes = routes.collect();
        let rules = source_routing::rules(&mut net)?.into_iter();
        let source_rules =
            rules.filter(|rule| rule.leads_to(device.index)).filter_map(|rule| rule.source()).collect();
        let (up, mac, mtu) = (device.up, device.mac, device.mtu);
        let alone = net.devices()?.iter().all(|other| other.index == device.index || other.name == "lo");
        Ok(Some(ContainerState { up, mac, mtu, addrs, routes, source_rules, alone }))
    })?
}

/// Reads an interface of this host and the routes of these addresses; `None` if the interface does not exist.
///
/// # Errors
/// The kernel refuses a request.
pub fn inspect_host_side(
    name: &InterfaceName,
    addrs: &[IpAddr],
) -> Result<Option<HostSideState>, ContainerNetError> {
    let mut net = Net::open()?;
    let Some(device) = net.device(name.as_str())? else { return Ok(None) };
    let mut misplaced_routes = Vec::new();
    for addr in addrs {
        if net.way_to(*addr)? != Some(device.index) {
            misplaced_routes.push(*addr);
        }
    }
    let expected = device.mac.map(link_local);
    let has = net.addresses(device.index)?;
    let router = expected.filter(|router| has.iter().any(|a| a.addr == IpAddr::V6(*router)));
    Ok(Some(HostSideState {
        up: device.up,
        mac: device.mac,
        mtu: device.mtu,
        kind: device.kind,
        link_local: router,
        misplaced_routes,
        wrong_sysctls: endpoints::wrong_sysctls(name.as_str(), addrs.iter().any(IpAddr::is_ipv6)),
    }))
}
