//! Routes that the store gives, without BGP: to addresses of other hosts, in VXLAN pools and, if the setting
//! `ProgramClusterRoutes` says so, in IPIP pools; and to peers that are reached by a gateway.
//!
//! A block's owner comes from the block's value, a borrowed address from the attribute `node` of its
//! allocation, a gateway from `reachable_by` of the peer.
//!
//! | destination | route |
//! | --- | --- |
//! | block of another host, pool `always` | via the host's tunnel address on the VXLAN device |
//! | the same, pool `cross-subnet`, host in this node's network | via the host's address, without the tunnel |
//! | the same, host elsewhere | as for `always` |
//! | block of another host in an IPIP pool | the same with `tunl0`, via the host's address |
//! | address borrowed by another host | as for a block of that host |
//! | address of a peer with `reachable_by` | via that gateway, which is resolved like a BGP next hop |
//!
//! A tunnel address is the end of its own route if it is a block by itself or borrowed. Addresses of this
//! host's own workloads have no such route: the local one counts. What cannot be right has none either, with
//! the reason: [`StoreRoutes::withheld`].

mod gateways;
mod mac;
#[cfg(test)]
mod tests;
mod vxlan;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use tortie_config::key::IpFamily;
use tortie_config::resource::{IpipMode, Pool};
use tortie_net::{Cidr, cover};

use super::local::Local;
use crate::model::{Model, ModelChanges};

pub use mac::derived_mac;
pub use vxlan::{VxlanDevice, VxlanIntent, VxlanRemote};

/// Routes that the store gives.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreRoutes {
    /// Routes to addresses of other hosts.
    pub remote: BTreeMap<Cidr, RemoteRoute>,
    /// Routes to peers, with the gateway that `reachable_by` of the peer names.
    pub gateways: BTreeMap<Cidr, IpAddr>,
    /// Addresses of other hosts without a route, each with the reason.
    pub withheld: BTreeMap<Cidr, Withheld>,
}

/// Why the store gives no route to a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Withheld {
    /// Encapsulation of the pool.
    pub encapsulation: Encapsulation,
    /// The reason.
    pub reason: String,
}

/// Encapsulation of the packets to a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encapsulation {
    /// IP in IP, `tunl0`.
    Ipip,
    /// VXLAN, `vxlan.calico` and `vxlan-v6.calico`.
    Vxlan,
}

impl Encapsulation {
    /// Returns `ipip` or `vxlan`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ipip => "ipip",
            Self::Vxlan => "vxlan",
        }
    }
}

/// Route of the store to addresses of another host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemoteRoute {
    /// Through the VXLAN, to the host with this tunnel address.
    Vxlan(IpAddr),
    /// Through the IPIP tunnel, to the host with this address.
    Ipip(Ipv4Addr),
    /// In a pool with this encapsulation, without the tunnel: to the host with this address in the node's
    /// network.
    Direct(IpAddr, Encapsulation),
}

impl RemoteRoute {
    /// Returns the encapsulation of the pool.
    #[must_use]
    pub fn encapsulation(self) -> Encapsulation {
        match self {
            Self::Vxlan(_) => Encapsulation::Vxlan,
            Self::Ipip(_) => Encapsulation::Ipip,
            Self::Direct(_, encapsulation) => encapsulation,
        }
    }

    /// Returns the tunnel of its packets.
    #[must_use]
    pub fn tunnel(self) -> Option<Encapsulation> {
        match self {
            Self::Direct(..) => None,
            Self::Vxlan(_) | Self::Ipip(_) => Some(self.encapsulation()),
        }
    }

    /// Returns `vxlan` or `ipip`, or `vxlan-same-subnet` or `same-subnet` without the tunnel.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::Vxlan(_) => "vxlan",
            Self::Ipip(_) => "ipip",
            Self::Direct(_, Encapsulation::Vxlan) => "vxlan-same-subnet",
            Self::Direct(_, Encapsulation::Ipip) => "same-subnet",
        }
    }
}

/// Returns true if [`store_routes`] may return another result after these changes of the model.
pub(super) fn may_differ(changes: &ModelChanges) -> bool {
    changes.vxlan || changes.pools || changes.settings || changes.node || changes.hosts || changes.peers.any()
}

/// Computes the VXLAN and the routes of the store; `is_own` is true for addresses of this host's workloads.
/// The cost is proportional to the number of hosts and blocks.
pub(super) fn store_routes(
    model: &Model,
    local: &Local,
    is_own: impl Fn(&IpAddr) -> bool,
) -> (VxlanIntent, StoreRoutes) {
    let ipip_from_store = model.gives_ipip_routes();
    let pools: Pools = model.pools().map(|pool| (*pool.key, way(pool.value, ipip_from_store))).collect();
    let (vxlan, ends) = vxlan::vxlan(model, local, &pools);
    let mut routes = StoreRoutes { gateways: gateways::gateways(model, local), ..StoreRoutes::default() };
    let has_ipip = pools.iter().any(|pool| is_way(pool, Encapsulation::Ipip)) && local.v4.is_some();
    if !vxlan.is_on() && !has_ipip {
        return (vxlan, routes);
    }
    let mut add = |prefix: Cidr, host: &str, way: Way| {
        let [v4, v6] = &ends;
        let is_used = match way.encapsulation {
            Encapsulation::Vxlan => vxlan.device(prefix.is_v4()).is_some(),
            Encapsulation::Ipip => has_ipip,
        };
        if !is_used || (prefix.is_host() && is_own(&prefix.addr())) {
            return;
        }
        let ipip_end;
        let end = match way.encapsulation {
            Encapsulation::Ipip => {
                ipip_end = ipip_remote(model, host);
                ipip_end.as_ref()
            }
            Encapsulation::Vxlan if prefix.is_v4() => v4.get(host),
            Encapsulation::Vxlan => v6.get(host),
        };
        match route(model, local, prefix, host, way, end) {
            Ok(route) => drop(routes.remote.insert(prefix, route)),
            Err(reason) => {
                drop(routes.withheld.insert(prefix, Withheld { encapsulation: way.encapsulation, reason }));
            }
        }
    };
    for block in model.blocks() {
        let Some(way) = cover::in_list(&pools, |pool| &pool.0, block.key).and_then(|pool| pool.1) else {
            continue;
        };
        if let Some(owner) = block.value.host().filter(|owner| *owner != model.node()) {
            add(*block.key, owner, way);
        }
        for (ordinal, holder) in block.value.borrowed().filter(|(_, holder)| *holder != model.node()) {
            if let Some(addr) = block.key.nth(ordinal.into()) {
                add(Cidr::host(addr), holder, way);
            }
        }
    }
    (vxlan, routes)
}

/// Pools with the way of their packets as far as the store gives their routes, sorted by prefix.
type Pools = Vec<(Cidr, Option<Way>)>;

/// Encapsulation of a pool's packets, and when they have it.
#[derive(Clone, Copy)]
struct Way {
    encapsulation: Encapsulation,
    mode: IpipMode,
}

fn way(pool: &Pool, ipip_from_store: bool) -> Option<Way> {
    let vxlan = pool.vxlan.map(|mode| Way { encapsulation: Encapsulation::Vxlan, mode });
    let ipip = pool.ipip.as_ref().filter(|_| ipip_from_store && pool.cidr.is_v4());
    vxlan.or_else(|| ipip.map(|ipip| Way { encapsulation: Encapsulation::Ipip, mode: ipip.mode }))
}

fn is_way(pool: &(Cidr, Option<Way>), encapsulation: Encapsulation) -> bool {
    pool.1.is_some_and(|way| way.encapsulation == encapsulation)
}

/// What is known of another host in one family.
struct End {
    host: IpAddr,
    /// Route through the tunnel, or the reason why packets cannot be sent through it.
    tunnel: Result<RemoteRoute, String>,
}

/// Returns the end of a host in an IPIP pool, whose outer packets lead to the host itself.
fn ipip_remote(model: &Model, name: &str) -> Option<End> {
    let host = model.host(name)?.addr(IpFamily::V4)?;
    let IpAddr::V4(remote) = host else { return None };
    Some(End { host, tunnel: Ok(RemoteRoute::Ipip(remote)) })
}

fn route(
    model: &Model,
    local: &Local,
    prefix: Cidr,
    host: &str,
    way: Way,
    end: Option<&End>,
) -> Result<RemoteRoute, String> {
    // Outer packets to that address would follow this route themselves.
    let covered = [local.v4, local.v6].into_iter().flatten().find(|addr| prefix.contains(*addr));
    if let Some(addr) = covered.or_else(|| model.neighbour_addresses_within(&prefix).next()) {
        return Err(format!("it covers {addr}, the address of a host or BGP neighbour"));
    }
    let Some(end) = end else {
        let family = if prefix.is_v4() { "IPv4" } else { "IPv6" };
        return Err(format!("host {host} has no {family} address"));
    };
    let network = if prefix.is_v4() { local.network_v4 } else { local.network_v6 };
    if local.is_own(end.host) {
        return Err(format!("host {host} has the address {} of this host", end.host));
    }
    if way.mode == IpipMode::CrossSubnet && network.is_some_and(|network| network.contains(end.host)) {
        return Ok(RemoteRoute::Direct(end.host, way.encapsulation));
    }
    end.tunnel.clone()
}
