//! Plan of changes for the IPIP tunnel device `tunl0`. Pure.

use std::net::{IpAddr, Ipv4Addr};

use super::network::NetworkState;
use crate::netlink::link::LinkChange;
use tortie_engine::routing::TunnelIntent;

/// The fallback device of the kernel's ipip module, used whatever name the pool specifies.
pub(crate) const DEVICE: &str = "tunl0";
/// Octets that IPIP adds to a packet (RFC 2003).
pub const OVERHEAD: u32 = 20;
/// MTU if none is configured and the link is unknown, in bytes.
const DEFAULT_MTU: u32 = 1440;
/// Minimum MTU of an IPv4 link (RFC 791), in bytes.
const MIN_MTU: u32 = 68;

/// Returns the changes that the device needs, in order; empty if it is as desired.
pub(crate) fn plan(intent: &TunnelIntent, network: &NetworkState, node: Option<IpAddr>) -> Vec<LinkChange> {
    let Some(device) = network.link_named(DEVICE) else {
        return vec![LinkChange::CreateIpip { name: DEVICE.to_owned() }];
    };
    let ifindex = device.index;
    let mut changes = Vec::new();
    let mtu = desired_mtu(intent, network, node);
    if !device.is_up() || device.mtu != mtu {
        changes.push(LinkChange::Set { ifindex, mtu: (device.mtu != mtu).then_some(mtu) });
    }
    let held = |a: Ipv4Addr| {
        network.addresses().any(|x| x.ifindex == ifindex && x.addr == IpAddr::V4(a) && x.len == 32)
    };
    // The desired address is added first, so that packets of established flows keep their source.
    if let Some(addr) = intent.addr
        && !held(addr)
    {
        changes.push(LinkChange::AddAddress { ifindex, addr });
    }
    for address in network.addresses().filter(|a| a.ifindex == ifindex) {
        if let IpAddr::V4(addr) = address.addr
            && (intent.addr != Some(addr) || address.len != 32)
        {
            changes.push(LinkChange::DeleteAddress { ifindex, addr, len: address.len });
        }
    }
    changes
}

/// Returns the change that removes the address that Tortie assigned to the device.
pub(crate) fn removal_plan(addr: Ipv4Addr, network: &NetworkState) -> Option<LinkChange> {
    let ifindex = network.link_named(DEVICE)?.index;
    let held = crate::netlink::link::Address { ifindex, addr: IpAddr::V4(addr), len: 32 };
    network.has_address(&held).then_some(LinkChange::DeleteAddress { ifindex, addr, len: 32 })
}

fn desired_mtu(intent: &TunnelIntent, network: &NetworkState, node: Option<IpAddr>) -> u32 {
    intent.mtu.unwrap_or_else(|| {
        let link = node.and_then(|n| network.link_with(n)).map(|link| link.mtu.saturating_sub(OVERHEAD));
        link.map_or(DEFAULT_MTU, |fitting| fitting.min(intent.max_mtu.unwrap_or(u32::MAX))).max(MIN_MTU)
    })
}

/// Describes the difference that a change repairs.
pub(crate) fn describe(change: &LinkChange) -> String {
    match change {
        LinkChange::CreateIpip { name } => format!("{name} is missing"),
        LinkChange::Set { mtu: Some(mtu), .. } => format!("{DEVICE} is not up with an MTU of {mtu}"),
        LinkChange::Set { mtu: None, .. } => format!("{DEVICE} is not up"),
        LinkChange::AddAddress { addr, .. } => format!("{DEVICE} does not have the address {addr}/32"),
        LinkChange::DeleteAddress { addr, len, .. } => format!("{DEVICE} has the address {addr}/{len}, too"),
    }
}

/// Explains why a change of the device failed.
pub(crate) fn explain(change: &LinkChange, code: i32, text: &str) -> String {
    match change {
        LinkChange::CreateIpip { .. } if code == libc::EOPNOTSUPP => {
            "this kernel has no ipip (CONFIG_NET_IPIP): load the module, or use pools without IPIP".to_owned()
        }
        // The kernel has one fallback device per namespace, and it has another name.
        LinkChange::CreateIpip { name } if code == libc::EEXIST => format!(
            "the kernel's ipip device has another name: find it with `ip -d link show type ipip`, then `ip link set DEVICE \
             name {name}`"
        ),
        LinkChange::CreateIpip { name } => format!("{name} cannot be created: {text}"),
        LinkChange::Set { .. } => format!("{DEVICE} cannot be set up: {text}"),
        LinkChange::AddAddress { addr, .. } => {
            format!("{DEVICE} does not take the address {addr}/32: {text}")
        }
        LinkChange::DeleteAddress { addr, len, .. } => {
            format!("{DEVICE} does not give up the address {addr}/{len}: {text}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::link::{Address, Link};

    const NODE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    const TUNNEL: Ipv4Addr = Ipv4Addr::new(10, 65, 0, 1);

    fn network(link_mtu: u32) -> NetworkState {
        let mut p = NetworkState::default();
        p.set_link(Link { index: 2, name: "eth0".into(), flags: 0x1_0041, mtu: link_mtu, is_bridge: false });
        p.add_address(Address { ifindex: 2, addr: NODE, len: 24 });
        p.set_link(Link { index: 5, name: DEVICE.into(), flags: 0, mtu: 1480, is_bridge: false });
        p
    }

    fn intent(mtu: Option<u32>) -> TunnelIntent {
        TunnelIntent { addr: Some(TUNNEL), mtu, max_mtu: Some(1440) }
    }

    #[test]
    fn a_fresh_device_is_set_up_with_address_and_mtu() {
        let set = |mtu| LinkChange::Set { ifindex: 5, mtu: Some(mtu) };
        let add = LinkChange::AddAddress { ifindex: 5, addr: TUNNEL };
        for (link, wanted, mtu) in [(1500, None, 1440), (1420, None, 1400), (9000, Some(8980), 8980)] {
            assert_eq!(plan(&intent(wanted), &network(link), Some(NODE)), vec![set(mtu), add.clone()]);
        }
        // Calico 3 sets no bound: the whole MTU of the link is used.
        let unbound = TunnelIntent { max_mtu: None, ..intent(None) };
        assert_eq!(plan(&unbound, &network(9000), Some(NODE)), vec![set(8980), add]);
    }

    #[test]
    fn other_addresses_are_removed_and_a_right_device_is_left_alone() {
        let mut p = network(1500);
        p.set_link(Link { index: 5, name: DEVICE.into(), flags: 0x1_0081, mtu: 1440, is_bridge: false });
        p.add_address(Address { ifindex: 5, addr: TUNNEL.into(), len: 32 });
        assert_eq!(plan(&intent(None), &p, Some(NODE)), vec![]);
        let old = Ipv4Addr::new(10, 65, 0, 9);
        p.add_address(Address { ifindex: 5, addr: old.into(), len: 24 });
        assert_eq!(
            plan(&intent(None), &p, Some(NODE)),
            vec![LinkChange::DeleteAddress { ifindex: 5, addr: old, len: 24 }]
        );
    }

    #[test]
    fn a_missing_device_is_asked_for() {
        assert_eq!(
            plan(&intent(None), &NetworkState::default(), None),
            vec![LinkChange::CreateIpip { name: DEVICE.into() }]
        );
    }

    #[test]
    fn a_tunnel_wanted_no_more_loses_our_address_and_nothing_else() {
        let mut p = network(1500);
        assert_eq!(removal_plan(TUNNEL, &p), None);
        p.add_address(Address { ifindex: 5, addr: Ipv4Addr::new(192, 0, 2, 9).into(), len: 32 });
        p.add_address(Address { ifindex: 2, addr: TUNNEL.into(), len: 32 });
        assert_eq!(removal_plan(TUNNEL, &p), None, "the same address elsewhere is not ours");
        p.add_address(Address { ifindex: 5, addr: TUNNEL.into(), len: 32 });
        assert_eq!(
            removal_plan(TUNNEL, &p),
            Some(LinkChange::DeleteAddress { ifindex: 5, addr: TUNNEL, len: 32 })
        );
    }
}
