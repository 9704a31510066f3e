//! What there is: for checks.

use std::net::{IpAddr, Ipv6Addr};

use tortie_config::resource::{InterfaceName, MacAddr};
use tortie_net::Cidr;

use super::link::{Net, link_local};
use super::{ContainerNetError, Namespace, source_routing};
use crate::endpoints;

/// An interface in a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerState {
    /// Set up.
    pub up: bool,
    /// Its MAC address.
    pub mac: Option<MacAddr>,
    /// In octets.
    pub mtu: u32,
    /// Its addresses with their lengths, but for link-local ones.
    pub addrs: Vec<(IpAddr, u8)>,
    /// Routes over it, with their gateways.
    pub routes: Vec<(Cidr, Option<IpAddr>)>,
    /// Addresses whose packets leave by it because of a rule by source.
    pub source_rules: Vec<IpAddr>,
    /// No other interface is there but the loopback.
    pub alone: bool,
}

/// The host's side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostSideState {
    /// Set up.
    pub up: bool,
    /// Its MAC address.
    pub mac: Option<MacAddr>,
    /// In octets.
    pub mtu: u32,
    /// `veth`, `tun`, ...
    pub kind: String,
    /// Whether it has the link-local address that workloads send to.
    pub link_local: Option<Ipv6Addr>,
    /// Of the addresses asked about, those that the host does not send to this interface.
    pub misplaced_routes: Vec<IpAddr>,
    /// Sysctls that are not as they should be.
    pub wrong_sysctls: usize,
}

/// Reads an interface of a namespace; `None`: it is not there.
///
/// # Errors
/// What the kernel says.
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

/// Reads an interface of this host and where these addresses lead; `None`: it is not there.
///
/// # Errors
/// What the kernel says.
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
