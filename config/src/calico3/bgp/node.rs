//! Nodes: addresses, AS and cluster id for BGP, and tunnel addresses.
//!
//! A member that is not valid is emitted as it is written: the v1 model reports it, and keeps the last good
//! value.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::super::output::Output;
use super::super::{Object, ObjectKey};
use super::members::{Members, interface_address};
use crate::key::{BgpItem, IpFamily, Key, Scope};
use crate::resource::{Asn, MacAddr};

/// Settings of a host that its Node gives.
pub(in crate::calico3) const SETTINGS: [&str; 5] = [
    "IpInIpTunnelAddr",
    "IPv4VXLANTunnelAddr",
    "IPv6VXLANTunnelAddr",
    "VXLANTunnelMACAddr",
    "VXLANTunnelMACAddrV6",
];

/// Projects a Node. A node without addresses has empty ones, so that it is known as a host.
pub(in crate::calico3) fn node(object: &Object) -> Output {
    let mut out = Output::default();
    let mut emitted = Vec::new();
    let mut spec = Members::of(object, &mut out);
    match spec.object("bgp") {
        Some(bgp) => of_bgp(&mut spec.inside(bgp, ".bgp"), &object.key, &mut emitted),
        None => {
            for item in
                [IpFamily::V4, IpFamily::V6].map(BgpItem::Address).into_iter().chain([BgpItem::RrClusterId])
            {
                emitted.push((Key::bgp_host(&object.key.name, item), String::new()));
            }
        }
    }
    let mut put = |setting: &str, text: Option<&str>| {
        emitted.extend(text.map(|text| (setting_of(&object.key, setting), text.to_owned())));
    };
    let (v4, v6) = ("write an IPv4 address", "write an IPv6 address");
    put("IPv4VXLANTunnelAddr", spec.checked::<Ipv4Addr>("ipv4VXLANTunnelAddr", v4));
    put("IPv6VXLANTunnelAddr", spec.checked::<Ipv6Addr>("ipv6VXLANTunnelAddr", v6));
    for (member, setting) in
        [("vxlanTunnelMACAddr", "VXLANTunnelMACAddr"), ("vxlanTunnelMACAddrV6", "VXLANTunnelMACAddrV6")]
    {
        put(setting, spec.checked::<MacAddr>(member, "write a MAC address"));
    }
    for (key, value) in emitted {
        out.put(key, value, &object.key);
    }
    out
}

/// Emits what a Node says about BGP, and the address of its IPIP tunnel.
fn of_bgp(bgp: &mut Members<'_, '_>, node: &ObjectKey, emitted: &mut Vec<(Key, String)>) {
    let mut put = |item, value| emitted.push((Key::bgp_host(&node.name, item), value));
    for (family, member) in [(IpFamily::V4, "ipv4Address"), (IpFamily::V6, "ipv6Address")] {
        let text = bgp.text(member).unwrap_or_default();
        match interface_address(text).filter(|(addr, _)| IpFamily::of(*addr) == family) {
            Some((addr, network)) => {
                put(BgpItem::Address(family), addr.to_string());
                put(BgpItem::Network(family), network.to_string());
            }
            None => {
                if !text.is_empty() {
                    bgp.invalid(member, format_args!("`{text}`"), "write ADDRESS/LENGTH of this family");
                }
                put(BgpItem::Address(family), text.to_owned());
            }
        }
    }
    if let Some(value) = bgp.get("asNumber") {
        let raw = value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
        let asn = bgp.asn("asNumber").map(|asn| asn.to_string());
        if asn.is_some() || !matches!(raw.as_str(), "" | "0") {
            put(BgpItem::AsNum, asn.unwrap_or(raw));
        }
    }
    let expected = "write a cluster id as a dotted quad, such as 244.0.0.1";
    let cluster_id = bgp.checked::<Ipv4Addr>("routeReflectorClusterID", expected).unwrap_or_default();
    put(BgpItem::RrClusterId, cluster_id.to_owned());
    if let Some(addr) = bgp.checked::<Ipv4Addr>("ipv4IPIPTunnelAddr", "write an IPv4 address") {
        emitted.push((setting_of(node, "IpInIpTunnelAddr"), addr.to_owned()));
    }
}

fn setting_of(node: &ObjectKey, setting: &str) -> Key {
    Key::Setting(Scope::Host(node.name.clone()), setting.to_owned())
}

/// What a Node says about BGP, as far as the peers of other nodes depend on it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::calico3) struct NodeBgp {
    v4: Option<IpAddr>,
    v6: Option<IpAddr>,
    /// AS of the node; `None` for the global one.
    pub(super) asn: Option<Asn>,
    /// Cluster id, if it is a route reflector.
    pub(super) cluster_id: Option<Ipv4Addr>,
}

impl NodeBgp {
    /// Reads a Node, without reporting: [`node`] does.
    pub(in crate::calico3) fn of(object: &Object) -> Self {
        let bgp = object.spec.get("bgp").and_then(|bgp| bgp.as_object());
        let text = |member| bgp.and_then(|bgp| bgp.get(member)).and_then(|value| value.as_str());
        let addr = |member, v4: bool| {
            let (addr, _) = interface_address(text(member)?)?;
            (addr.is_ipv4() == v4).then_some(addr)
        };
        Self {
            v4: addr("ipv4Address", true),
            v6: addr("ipv6Address", false),
            asn: bgp.and_then(|bgp| bgp.get("asNumber")).and_then(|value| Asn::from_json(value).ok()),
            cluster_id: text("routeReflectorClusterID").and_then(|id| id.parse().ok()),
        }
    }

    /// Returns the addresses, IPv4 first.
    pub(super) fn addrs(&self) -> impl Iterator<Item = IpAddr> + use<> {
        self.v4.into_iter().chain(self.v6)
    }
}
