//! The VXLAN of this host: its devices, the ends of other hosts, and the routes to their addresses.
//!
//! All of it comes from the store and nothing from BGP: a block's owner from the block's value, a borrowed
//! address from the attribute `node` of its allocation.
//!
//! | destination | route |
//! | --- | --- |
//! | block of another host, pool `always` | via the host's tunnel address on the VXLAN device |
//! | the same, pool `cross-subnet`, host in this node's network | via the host's address, without the tunnel |
//! | the same, host elsewhere | as for `always` |
//! | address borrowed by another host | as for a block of that host |
//!
//! A tunnel address is the end of its own route if it is a block by itself or borrowed. Addresses of this
//! host's own workloads have no such route: the local one counts. What cannot be right has none either, with
//! the reason: [`VxlanIntent::withheld`].

mod mac;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use tortie_config::key::IpFamily;
use tortie_config::resource::{IpipMode, MacAddr};
use tortie_net::{Cidr, cover};

use super::local::Local;
use crate::model::{Host, Model, ModelChanges};

pub use mac::derived_mac;

/// Desired state of the VXLAN of this host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VxlanIntent {
    /// Device of IPv4, `vxlan.calico`; `None` if there shall be none.
    pub v4: Option<VxlanDevice>,
    /// Device of IPv6, `vxlan-v6.calico`.
    pub v6: Option<VxlanDevice>,
    /// Ends of other hosts, by tunnel address.
    pub remotes: BTreeMap<IpAddr, VxlanRemote>,
    /// Routes to addresses of other hosts.
    pub routes: BTreeMap<Cidr, VxlanRoute>,
    /// Prefixes without a route, each with the reason.
    pub withheld: BTreeMap<Cidr, String>,
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

/// Route to addresses of another host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VxlanRoute {
    /// Through the tunnel, to the host with this tunnel address.
    Tunnel(IpAddr),
    /// Without the tunnel, to the host with this address in the node's network.
    Direct(IpAddr),
}

impl VxlanRoute {
    /// Returns `vxlan` or `vxlan-same-subnet`.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::Tunnel(_) => "vxlan",
            Self::Direct(_) => "vxlan-same-subnet",
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
    let pools: Pools = model.pools().map(|pool| (*pool.key, pool.value.vxlan)).collect();
    let mut intent = VxlanIntent {
        v4: device(model, local, &pools, IpFamily::V4),
        v6: device(model, local, &pools, IpFamily::V6),
        ..VxlanIntent::default()
    };
    if !intent.is_on() {
        return intent;
    }
    let mut ends = [HashMap::new(), HashMap::new()];
    for (family, ends) in [IpFamily::V4, IpFamily::V6].into_iter().zip(&mut ends) {
        if let Some(device) = intent.device(family == IpFamily::V4).cloned() {
            *ends = remotes(model, family, &device, &mut intent.remotes);
        }
    }
    let mut add = |prefix: Cidr, host: &str, mode: IpipMode| {
        let [v4, v6] = &ends;
        if intent.device(prefix.is_v4()).is_none() || (prefix.is_host() && is_own(&prefix.addr())) {
            return;
        }
        let end = if prefix.is_v4() { v4.get(host) } else { v6.get(host) };
        match route(model, local, prefix, host, mode, end) {
            Ok(route) => drop(intent.routes.insert(prefix, route)),
            Err(reason) => drop(intent.withheld.insert(prefix, reason)),
        }
    };
    for block in model.blocks() {
        let Some(mode) = cover::in_list(&pools, |pool| &pool.0, block.key).and_then(|pool| pool.1) else {
            continue;
        };
        if let Some(owner) = block.value.host().filter(|owner| *owner != model.node()) {
            add(*block.key, owner, mode);
        }
        for (ordinal, holder) in block.value.borrowed().filter(|(_, holder)| *holder != model.node()) {
            if let Some(addr) = block.key.nth(ordinal.into()) {
                add(Cidr::host(addr), holder, mode);
            }
        }
    }
    intent
}

/// Pools with their VXLAN modes, sorted by prefix.
type Pools = Vec<(Cidr, Option<IpipMode>)>;

/// What is known of another host in one family.
struct End {
    host: IpAddr,
    /// Its tunnel address, or the reason why packets cannot be sent through the tunnel.
    tunnel: Result<IpAddr, String>,
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
                    Ok(addr)
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
    mode: IpipMode,
    end: Option<&End>,
) -> Result<VxlanRoute, String> {
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
    if mode == IpipMode::CrossSubnet && network.is_some_and(|network| network.contains(end.host)) {
        return Ok(VxlanRoute::Direct(end.host));
    }
    end.tunnel.clone().map(VxlanRoute::Tunnel)
}

/// Returns the device of a family, if a pool of it uses VXLAN and the setting does not say otherwise. A
/// disabled pool counts too, since addresses in use keep using the tunnel.
fn device(model: &Model, local: &Local, pools: &Pools, family: IpFamily) -> Option<VxlanDevice> {
    let is_v4 = family == IpFamily::V4;
    let local = local.addr(family)?;
    let settings = model.settings();
    let used = pools.iter().any(|(pool, mode)| pool.is_v4() == is_v4 && mode.is_some());
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
