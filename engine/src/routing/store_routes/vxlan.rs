//! The VXLAN devices of this host, and the ends of other hosts. Both come from the store.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use tortie_config::key::IpFamily;
use tortie_config::resource::MacAddr;

use super::mac::derived_mac;
use super::{Encapsulation, End, Pools, RemoteRoute, is_way};
use crate::model::{Host, Model};
use crate::routing::local::Local;

/// Desired state of the VXLAN of this host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VxlanIntent {
    /// Device of IPv4, `vxlan.calico`; `None` if there shall be none.
    pub v4: Option<VxlanDevice>,
    /// Device of IPv6, `vxlan-v6.calico`.
    pub v6: Option<VxlanDevice>,
    /// Ends of other hosts, by tunnel address.
    pub remotes: BTreeMap<IpAddr, VxlanRemote>,
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

/// Ends of other hosts by name: of IPv4, and of IPv6.
pub(super) type Ends<'a> = [HashMap<&'a str, End>; 2];

/// Computes the devices and the ends of other hosts.
pub(super) fn vxlan<'a>(model: &'a Model, local: &Local, pools: &Pools) -> (VxlanIntent, Ends<'a>) {
    let mut intent = VxlanIntent {
        v4: device(model, local, pools, IpFamily::V4),
        v6: device(model, local, pools, IpFamily::V6),
        ..VxlanIntent::default()
    };
    let mut ends = [HashMap::new(), HashMap::new()];
    for (family, ends) in [IpFamily::V4, IpFamily::V6].into_iter().zip(&mut ends) {
        if let Some(device) = intent.device(family == IpFamily::V4).cloned() {
            *ends = remotes(model, family, &device, &mut intent.remotes);
        }
    }
    (intent, ends)
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
                    Ok(RemoteRoute::Vxlan(addr))
                }
            }
        };
        Some(End { host, tunnel })
    };
    let others = model.hosts().filter(|(name, _)| *name != model.node());
    others.filter_map(|(name, host)| Some((name, end(name, host)?))).collect()
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
