//! The VXLAN of this host with the ends of other hosts, and the routes that the store gives to their addresses:
//! those of VXLAN pools, and those of IPIP pools if the setting `ProgramClusterRoutes` says so.
//!
//! All of it comes from the store and nothing from BGP: a block's owner from the block's value, a borrowed
//! address from the attribute `node` of its allocation.
//!
//! | destination | route |
//! | --- | --- |
//! | block of another host, pool `always` | via the host's tunnel address on the VXLAN device |
//! | the same, pool `cross-subnet`, host in this node's network | via the host's address, without the tunnel |
//! | the same, host elsewhere | as for `always` |
//! | block of another host in an IPIP pool | the same with `tunl0`, via the host's address |
//! | address borrowed by another host | as for a block of that host |
//!
//! A tunnel address is the end of its own route if it is a block by itself or borrowed. Addresses of this
//! host's own workloads have no such route: the local one counts. What cannot be right has none either, with
//! the reason: [`VxlanIntent::withheld`].

mod mac;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr};

use tortie_config::key::IpFamily;
use tortie_config::resource::{IpipMode, MacAddr, Pool};
use tortie_net::{Cidr, cover};

use super::local::Local;
use crate::model::{Host, Model, ModelChanges};

pub use mac::derived_mac;

/// Desired state of the VXLAN of this host, and the routes of the store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VxlanIntent {
    /// Device of IPv4, `vxlan.calico`; `None` if there shall be none.
    pub v4: Option<VxlanDevice>,
    /// Device of IPv6, `vxlan-v6.calico`.
    pub v6: Option<VxlanDevice>,
    /// Ends of other hosts, by tunnel address.
    pub remotes: BTreeMap<IpAddr, VxlanRemote>,
    /// Routes of the store to addresses of other hosts, through VXLAN or IPIP.
    pub routes: BTreeMap<Cidr, StoreRoute>,
    /// Prefixes without a route, each with the reason.
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

impl VxlanIntent {
    /// Returns the device of a family.
    #[must_use]
    pub fn device(&self, v4: bool) -> Option<&VxlanDevice> {
        if v4 { self.v4.as_ref() } else { self.v6.as_ref() }
    }

    /// Returns true if the host uses VXLAN for a family.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.v4.is_some() || self.v6.is_some()
    }
}

/// Desired configuration of a VXLAN device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VxlanDevice {
    /// Network identifier (`VXLANVNI`).
    pub vni: u32,
    /// UDP port (`VXLANPort`).
    pub port: u16,
    /// Address of this host: source of the outer packets, and the address of the parent interface.
    pub local: IpAddr,
    /// MAC address of the device.
    pub mac: [u8; 6],
    /// Tunnel address; `None` until one is allocated, and the device is up without an address.
    pub addr: Option<IpAddr>,
    /// MTU (`VXLANMTU`, `VXLANMTUV6`); `None` for that of the parent interface less the overhead.
    pub mtu: Option<u32>,
}

/// Another host's end of the tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VxlanRemote {
    /// Address of the host, to which outer packets are sent.
    pub host: IpAddr,
    /// MAC address of its device.
    pub mac: [u8; 6],
}

/// Route of the store to addresses of another host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreRoute {
    /// Through the VXLAN, to the host with this tunnel address.
    Vxlan(IpAddr),
    /// Through the IPIP tunnel, to the host with this address.
    Ipip(Ipv4Addr),
    /// In a pool with this encapsulation, without the tunnel: to the host with this address in the node's
    /// network.
    Direct(IpAddr, Encapsulation),
}

impl StoreRoute {
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

/// Returns true if [`vxlan`] may return another result after these changes of the model.
pub(super) fn may_differ(changes: &ModelChanges) -> bool {
    changes.vxlan || changes.pools || changes.settings || changes.node || changes.hosts || changes.peers.any()
}

/// Computes the desired state; `is_own` is true for addresses of this host's workloads. The cost is
/// proportional to the number of hosts and blocks.
pub(super) fn vxlan(model: &Model, local: &Local, is_own: impl Fn(&IpAddr) -> bool) -> VxlanIntent {
    let ipip_from_store = model.gives_ipip_routes();
    let pools: Pools = model.pools().map(|pool| (*pool.key, way(pool.value, ipip_from_store))).collect();
    let mut intent = VxlanIntent {
        v4: device(model, local, &pools, IpFamily::V4),
        v6: device(model, local, &pools, IpFamily::V6),
        ..VxlanIntent::default()
    };
    let has_ipip = pools.iter().any(|pool| is_way(pool, Encapsulation::Ipip)) && local.v4.is_some();
    if !intent.is_on() && !has_ipip {
        return intent;
    }
    let mut ends = [HashMap::new(), HashMap::new()];
    for (family, ends) in [IpFamily::V4, IpFamily::V6].into_iter().zip(&mut ends) {
        if let Some(device) = intent.device(family == IpFamily::V4).cloned() {
            *ends = remotes(model, family, &device, &mut intent.remotes);
        }
    }
    let mut add = |prefix: Cidr, host: &str, way: Way| {
        let [v4, v6] = &ends;
        let is_used = match way.encapsulation {
            Encapsulation::Vxlan => intent.device(prefix.is_v4()).is_some(),
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
            Ok(route) => drop(intent.routes.insert(prefix, route)),
            Err(reason) => {
                drop(intent.withheld.insert(prefix, Withheld { encapsulation: way.encapsulation, reason }));
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
    intent
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
    tunnel: Result<StoreRoute, String>,
}

/// Returns the end of a host in an IPIP pool, whose outer packets lead to the host itself.
fn ipip_remote(model: &Model, name: &str) -> Option<End> {
    let host = model.host(name)?.addr(IpFamily::V4)?;
    let IpAddr::V4(remote) = host else { return None };
    Some(End { host, tunnel: Ok(StoreRoute::Ipip(remote)) })
}

/// Returns the ends of all other hosts with an address in this family, by name, and adds those that can be
/// used to `known`.
fn remotes<'a>(
    model: &'a Model,
    family: IpFamily,
    own: &VxlanDevice,
    known: &mut BTreeMap<IpAddr, VxlanRemote>,
) -> HashMap<&'a str, End> {
    let mut macs: BTreeSet<[u8; 6]> = [own.mac].into();
    let mut end = |name: &str, at: &Host| {
        let host = at.addr(family)?;
        let tunnel = match (at.vxlan_addr(family), at.vxlan_mac(family)) {
            (None, _) => Err(format!("host {name} has no VXLAN tunnel address")),
            (_, Err(_)) => Err(format!("the VXLAN MAC address of host {name} is unreadable")),
            (Some(addr), Ok(mac)) => {
                let mac = mac.unwrap_or_else(|| derived_mac(name, family)).0;
                if own.addr == Some(addr) || known.contains_key(&addr) {
                    Err(format!("the VXLAN tunnel address {addr} of host {name} is another host's, too"))
                } else if !macs.insert(mac) {
                    Err(format!(
                        "the VXLAN MAC address {} of host {name} is another host's, too",
                        MacAddr(mac)
                    ))
                } else {
                    known.insert(addr, VxlanRemote { host, mac });
                    Ok(StoreRoute::Vxlan(addr))
                }
            }
        };
        Some(End { host, tunnel })
    };
    let others = model.hosts().filter(|(name, _)| *name != model.node());
    others.filter_map(|(name, host)| Some((name, end(name, host)?))).collect()
}

fn route(
    model: &Model,
    local: &Local,
    prefix: Cidr,
    host: &str,
    way: Way,
    end: Option<&End>,
) -> Result<StoreRoute, String> {
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
        return Ok(StoreRoute::Direct(end.host, way.encapsulation));
    }
    end.tunnel.clone()
}

/// Returns the device of a family, if a pool of it uses VXLAN and the setting does not say otherwise. A
/// disabled pool counts too, since addresses in use keep using the tunnel.
fn device(model: &Model, local: &Local, pools: &Pools, family: IpFamily) -> Option<VxlanDevice> {
    let is_v4 = family == IpFamily::V4;
    let local = local.addr(family)?;
    let settings = model.settings();
    let used = pools.iter().any(|pool| pool.0.is_v4() == is_v4 && is_way(pool, Encapsulation::Vxlan));
    if !settings.vxlan_enabled.unwrap_or(used) || !(is_v4 || settings.ipv6_support) {
        return None;
    }
    let stored = model.host(model.node()).and_then(|host| host.vxlan_mac(family).ok().flatten());
    Some(VxlanDevice {
        vni: settings.vxlan_vni,
        port: settings.vxlan_port,
        local,
        mac: stored.unwrap_or_else(|| derived_mac(model.node(), family)).0,
        addr: model.vxlan_address(family).unwrap_or_default(),
        mtu: if is_v4 { settings.vxlan_mtu } else { settings.vxlan_mtu_v6 },
    })
}
