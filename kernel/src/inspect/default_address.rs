//! Selects the address by which a host is identified: that of the interface of its default route.

use std::io;
use std::net::IpAddr;

use crate::netlink::dump;
use crate::netlink::link::{Address, Link};
use crate::netlink::route::Route;
use crate::netlink::socket::Socket;

/// Name prefixes of interfaces that are never selected, even if a default route uses them.
const NEVER: [&str; 10] =
    ["lo", "docker", "br-", "virbr", "tunl", "vxlan.calico", "vxlan-v6.calico", "cali", "veth", "cni"];

/// An address of this host with the prefix length of its network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostAddress {
    /// The address of the interface.
    pub addr: IpAddr,
    /// Prefix length of its network, in bits.
    pub len: u8,
}

/// Returns the IPv4 and IPv6 addresses of the interfaces of the default routes.
///
/// # Errors
/// The kernel cannot be read.
pub fn default_addresses() -> io::Result<(Option<HostAddress>, Option<HostAddress>)> {
    let mut socket = Socket::open()?;
    let (links, addresses) = dump::devices(&mut socket)?;
    let mut defaults: Vec<Route> = Vec::new();
    dump::routes(&mut socket, |route| {
        if route.prefix.len() == 0 {
            defaults.push(route);
        }
    })?;
    defaults.sort_by_key(|r| r.metric);
    Ok((pick(true, &defaults, &links, &addresses), pick(false, &defaults, &links, &addresses)))
}

fn pick(v4: bool, defaults: &[Route], links: &[Link], addresses: &[Address]) -> Option<HostAddress> {
    let usable = |name: &str| !NEVER.iter().any(|prefix| name.starts_with(prefix));
    let mut out = defaults
        .iter()
        .filter(|r| r.prefix.is_v4() == v4)
        .flat_map(|r| r.legs.iter())
        .filter(|leg| links.iter().any(|l| l.index == leg.ifindex && usable(&l.name)))
        .map(|leg| leg.ifindex);
    let index = out.next()?;
    let global = |addr: IpAddr| match addr {
        IpAddr::V4(a) => !a.is_loopback() && !a.is_link_local(),
        IpAddr::V6(a) => !a.is_loopback() && !a.is_unicast_link_local(),
    };
    let found = addresses.iter().find(|a| a.ifindex == index && a.addr.is_ipv4() == v4 && global(a.addr))?;
    Some(HostAddress { addr: found.addr, len: found.len })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::route::Leg;

    fn route(ifindex: u32, metric: u32) -> Route {
        let leg = Leg { ifindex, gateway: Some("192.0.2.1".parse().unwrap()), onlink: false };
        Route {
            prefix: "0.0.0.0/0".parse().unwrap(),
            tos: 0,
            protocol: 3,
            kind: crate::netlink::route::RTN_UNICAST,
            metric,
            nexthop: 0,
            legs: [leg].into_iter().collect(),
        }
    }

    #[test]
    fn bridges_and_tunnels_are_never_taken() {
        let link =
            |index, name: &str| Link { index, name: name.to_owned(), flags: 1, mtu: 1500, is_bridge: false };
        let links = [link(1, "docker0"), link(2, "eth0")];
        let at = |ifindex, addr: &str| Address { ifindex, addr: addr.parse().unwrap(), len: 24 };
        let addresses = [at(1, "172.17.0.1"), at(2, "169.254.3.3"), at(2, "192.0.2.13")];
        let found = pick(true, &[route(1, 0), route(2, 100)], &links, &addresses);
        assert_eq!(found.map(|f| f.addr.to_string()).as_deref(), Some("192.0.2.13"));
        assert_eq!(pick(true, &[route(1, 0)], &links, &addresses), None);
        assert_eq!(pick(false, &[route(2, 0)], &links, &addresses), None);
    }
}
