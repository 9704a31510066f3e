//! A snapshot of links, addresses and all routes of the main table with their protocols. Nothing is written
//! or tracked.
//!
//! Next hops are resolved with the same network state as on the kernel thread. Routes that are or would
//! become Tortie's are left out of it, whether Tortie or another daemon has written them.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;

use tortie_net::{Cidr, ScopedAddr};

use crate::fib::ipip_tunnel;
use crate::fib::network::NetworkState;
use crate::netlink::dump;
use crate::netlink::link::{Address, Link};
use crate::netlink::route::{Leg, RTN_BLACKHOLE, RTN_UNICAST, Route};
use crate::netlink::socket::Socket;
use crate::netlink::vxlan::{self as messages, DeviceChange, FoundDevice};
use crate::vxlan::device::{self, WantedDevice};
use crate::vxlan::remotes::{RemoteChange, RemoteEntries};
use crate::vxlan::{name, read};
use tortie_engine::routing::{Resolved, TunnelIntent, VxlanIntent};

/// Flags of a link that can carry packets: `IFF_UP` and `IFF_LOWER_UP` (linux/if.h).
const CARRIES: u32 = 0x1_0001;

/// Effect of a route on packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteKind {
    /// Forwards packets.
    Unicast,
    /// Drops packets silently.
    Blackhole,
    /// Any other type: unreachable, prohibit, throw.
    Other,
}

/// One leg of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MainHop {
    /// The gateway; `None` if on-link.
    pub gateway: Option<IpAddr>,
    /// Index of the interface.
    pub ifindex: u32,
}

/// A route of the main table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MainRoute {
    /// Destination prefix.
    pub prefix: Cidr,
    /// Protocol number (`rtm_protocol`, see [`crate::protocol_name`]).
    pub protocol: u8,
    /// Metric, also called priority; the smallest is preferred.
    pub metric: u32,
    /// Effect on packets.
    pub kind: RouteKind,
    /// Legs, sorted; empty if it drops packets, or uses a nexthop object on a kernel that does not expand
    /// them.
    pub hops: Vec<MainHop>,
}

/// State of the network at the time of the snapshot.
#[derive(Debug, Default)]
pub struct NetworkSnapshot {
    network: NetworkState,
    routes: Vec<MainRoute>,
    /// True if routes may be missing, because the table changed during every attempt to read it.
    partial: bool,
    /// VXLAN devices of IPv4 and of IPv6, with their permanent entries.
    vxlan: [Option<(FoundDevice, RemoteEntries)>; 2],
}

/// Comparison of a VXLAN device with the intent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VxlanDifference {
    /// Name of the device.
    pub device: &'static str,
    /// Differences; none if the device is as desired.
    pub texts: Vec<String>,
    /// False if Tortie would not take the device over, because it would have to be made again.
    pub fits: bool,
}

impl NetworkSnapshot {
    /// Reads the network namespace of the caller. Blocks while the kernel is read. Routes of the protocols in
    /// `ours` are not used to resolve next hops.
    ///
    /// # Errors
    /// The kernel cannot be read.
    pub fn read(ours: &[u8]) -> io::Result<Self> {
        let mut socket = Socket::open()?;
        let (mut all, mut partial) = (Vec::new(), true);
        for _ in 0..3 {
            all.clear();
            if dump::routes(&mut socket, |route| all.push(route))? {
                partial = false;
                break;
            }
        }
        // Read last: a device that was removed meanwhile explains a missing route.
        let (links, addresses) = dump::devices(&mut socket)?;
        let mut vxlan = [None, None];
        for (found, v4) in vxlan.iter_mut().zip([true, false]) {
            if let Some(device) = messages::read(&mut socket, name(v4))? {
                let entries = read::entries(&mut socket, v4, device.ifindex)?;
                *found = Some((device, entries));
            }
        }
        Ok(Self { partial, vxlan, ..Self::put_together(links, addresses, all, ours) })
    }

    /// Builds a snapshot for tests of pure functions, from interfaces (index and name, all up), addresses
    /// (with prefix length and interface index) and routes.
    #[must_use]
    pub fn of_parts(
        interfaces: &[(u32, &str)],
        addresses: &[(IpAddr, u8, u32)],
        routes: &[MainRoute],
        ours: &[u8],
    ) -> Self {
        let link = |(index, name): &(u32, &str)| Link {
            index: *index,
            name: (*name).to_owned(),
            flags: CARRIES,
            mtu: 1500,
            is_bridge: false,
        };
        let address =
            |(addr, len, ifindex): &(IpAddr, u8, u32)| Address { ifindex: *ifindex, addr: *addr, len: *len };
        let route = |route: &MainRoute| Route {
            prefix: route.prefix,
            tos: 0,
            protocol: route.protocol,
            kind: match route.kind {
                RouteKind::Unicast => RTN_UNICAST,
                RouteKind::Blackhole => RTN_BLACKHOLE,
                RouteKind::Other => RTN_BLACKHOLE + 1,
            },
            metric: route.metric,
            nexthop: 0,
            legs: route
                .hops
                .iter()
                .map(|hop| Leg { ifindex: hop.ifindex, gateway: hop.gateway, onlink: false })
                .collect(),
        };
        Self::put_together(
            interfaces.iter().map(link).collect(),
            addresses.iter().map(address).collect(),
            routes.iter().map(route).collect(),
            ours,
        )
    }

    fn put_together(links: Vec<Link>, addresses: Vec<Address>, all: Vec<Route>, ours: &[u8]) -> Self {
        let mut network = NetworkState::default();
        network.replace_devices(links, addresses);
        let mut routes: Vec<MainRoute> = all.iter().map(description).collect();
        routes.sort_unstable_by_key(|route| (route.prefix, route.metric));
        network.replace_routes(all.into_iter().filter(|r| !ours.contains(&r.protocol)).collect());
        Self { network, routes, partial: false, vxlan: [None, None] }
    }

    /// Returns the routes of the main table, by prefix and metric.
    #[must_use]
    pub fn routes(&self) -> &[MainRoute] {
        &self.routes
    }

    /// Returns the routes for exactly this prefix, by metric; the kernel uses the first.
    #[must_use]
    pub fn at(&self, prefix: &Cidr) -> &[MainRoute] {
        let first = self.routes.partition_point(|route| route.prefix < *prefix);
        let rest = self.routes.get(first..).unwrap_or_default();
        let count = rest.partition_point(|route| route.prefix == *prefix);
        rest.get(..count).unwrap_or_default()
    }

    /// Returns true if routes may be missing, because the table changed during every attempt to read it.
    #[must_use]
    pub fn is_partial(&self) -> bool {
        self.partial
    }

    /// Resolves a next hop without routes that are or would become Tortie's.
    #[must_use]
    pub fn resolve(&self, addr: impl Into<ScopedAddr>) -> Option<Resolved> {
        self.network.resolve(addr.into())
    }

    /// Returns the name of an interface.
    #[must_use]
    pub fn interface(&self, ifindex: u32) -> Option<&str> {
        self.network.link(ifindex).map(|link| link.name.as_str())
    }

    /// Returns the index of an interface, and true if it is up.
    #[must_use]
    pub fn link(&self, name: &str) -> Option<(u32, bool)> {
        self.network.link_named(name).map(|link| (link.index, link.is_up()))
    }

    /// Returns all interfaces with their addresses.
    #[must_use]
    pub fn interfaces(&self) -> BTreeMap<&str, Vec<IpAddr>> {
        let links = self.network.links();
        let mut found: BTreeMap<&str, Vec<IpAddr>> =
            links.map(|link| (link.name.as_str(), Vec::new())).collect();
        for address in self.network.addresses() {
            let name = self.interface(address.ifindex);
            if let Some(addrs) = name.and_then(|name| found.get_mut(name)) {
                addrs.push(address.addr);
            }
        }
        found
    }

    /// Returns true if `tunl0` exists and is up.
    #[must_use]
    pub fn has_tunnel(&self) -> bool {
        self.link(ipip_tunnel::DEVICE).is_some_and(|(_, up)| up)
    }

    /// Describes the differences between the tunnel device and the intent; empty if there are none.
    #[must_use]
    pub fn tunnel_differences(&self, wanted: &TunnelIntent, node: Option<IpAddr>) -> Vec<String> {
        ipip_tunnel::plan(wanted, &self.network, node).iter().map(ipip_tunnel::describe).collect()
    }

    /// Compares the VXLAN devices of both families, and their permanent entries, with the intent. A device
    /// that neither side has is left out.
    #[must_use]
    pub fn vxlan_differences(&self, wanted: &VxlanIntent) -> Vec<VxlanDifference> {
        let both = [true, false].into_iter().zip(&self.vxlan);
        both.filter_map(|(v4, found)| self.vxlan_difference(v4, wanted, found.as_ref())).collect()
    }

    fn vxlan_difference(
        &self,
        v4: bool,
        wanted: &VxlanIntent,
        found: Option<&(FoundDevice, RemoteEntries)>,
    ) -> Option<VxlanDifference> {
        let is = |texts, fits| Some(VxlanDifference { device: name(v4), texts, fits });
        let Some(intent) = wanted.device(v4) else {
            found?;
            return is(vec![format!("{} is not desired: no pool uses it", name(v4))], true);
        };
        let planned = WantedDevice::of(intent, &self.network)
            .and_then(|device| device::plan(&device, found.map(|(device, _)| device), &self.network));
        let changes = match planned {
            Ok(changes) => changes,
            Err(problem) => return is(vec![problem], false),
        };
        // The mark of Tortie's devices is put on them when they are taken over.
        let matters = changes.iter().filter(|change| !matches!(change, DeviceChange::SetAlias { .. }));
        let mut texts: Vec<String> = matters.map(|change| device::describe(name(v4), change)).collect();
        let desired = RemoteEntries::wanted(wanted.remotes.iter().filter(|(addr, _)| addr.is_ipv4() == v4));
        if let Some((_, entries)) = found {
            let changes = entries.changes(&desired);
            if let Some(first) = changes.first() {
                texts.push(format!(
                    "{} has {} entries for other hosts that differ, first: {}",
                    name(v4),
                    changes.len(),
                    describe_entry(first)
                ));
            }
        }
        is(texts, true)
    }
}

fn describe_entry(change: &RemoteChange) -> String {
    let mac = |mac: &[u8; 6]| tortie_config::resource::MacAddr(*mac).to_string();
    match change {
        RemoteChange::PutForwarding(entry) => {
            format!("{} should lead to {}", mac(&entry.mac), entry.host)
        }
        RemoteChange::DeleteForwarding(entry) => {
            format!("{} leads to {}, which is not desired", mac(&entry.mac), entry.host)
        }
        RemoteChange::PutNeighbour(addr, of) => format!("{addr} should have the MAC address {}", mac(of)),
        RemoteChange::DeleteNeighbour(addr) => format!("{addr} is a neighbour that is not desired"),
    }
}

fn description(route: &Route) -> MainRoute {
    let mut hops: Vec<MainHop> =
        route.legs.iter().map(|leg| MainHop { gateway: leg.gateway, ifindex: leg.ifindex }).collect();
    hops.sort_unstable();
    MainRoute {
        prefix: route.prefix,
        protocol: route.protocol,
        metric: route.metric,
        kind: match route.kind {
            RTN_UNICAST => RouteKind::Unicast,
            RTN_BLACKHOLE => RouteKind::Blackhole,
            _ => RouteKind::Other,
        },
        // IPv6 blackholes have the loopback interface as their leg.
        hops: if route.kind == RTN_UNICAST { hops } else { Vec::new() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_that_would_be_ours_resolve_nothing() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let route = |prefix: &str, protocol, via: &str| MainRoute {
            prefix: prefix.parse().unwrap(),
            protocol,
            metric: 0,
            kind: RouteKind::Unicast,
            hops: vec![MainHop { gateway: (!via.is_empty()).then(|| ip(via)), ifindex: 2 }],
        };
        let routes = [
            route("192.0.2.0/24", 2, ""),
            route("198.51.100.0/24", 12, "192.0.2.254"),
            route("203.0.113.0/24", 4, "192.0.2.254"),
        ];
        let addresses = [(ip("192.0.2.1"), 24, 2)];
        let look = NetworkSnapshot::of_parts(&[(2, "eth0")], &addresses, &routes, &[12, 179]);
        assert_eq!(look.resolve(ip("192.0.2.2")).unwrap().gateway, None);
        assert_eq!(look.resolve(ip("203.0.113.7")).unwrap().gateway, Some(ip("192.0.2.254")));
        assert_eq!(look.resolve(ip("198.51.100.7")), None, "BIRD's route would not be there");
        assert_eq!(look.at(&"198.51.100.0/24".parse().unwrap()).len(), 1);
        assert!(look.at(&"198.51.100.0/25".parse().unwrap()).is_empty());
        assert_eq!(look.interfaces()["eth0"], [ip("192.0.2.1")]);
        let tunnel = look.tunnel_differences(&TunnelIntent { addr: None, mtu: None, max_mtu: None }, None);
        assert_eq!(tunnel, ["tunl0 is missing"]);
    }
}
