//! Per-host index of the short values (addresses, AS numbers, ports) that routing reads for every host,
//! stored in one compact list.

use std::net::{IpAddr, Ipv4Addr};

use tortie_config::key::{BgpItem, IpFamily, Key, Scope};
use tortie_config::resource::{Asn, MacAddr};
use tortie_net::Cidr;

use super::slot::Slot;
use super::value::Value;

/// Kind of a short per-host value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum HostItem {
    Address(IpFamily),
    Network(IpFamily),
    AsNum,
    ListenPort,
    ClusterId,
    LogLevel,
    BirdIp,
    Metadata,
    VxlanAddress(IpFamily),
    VxlanMac(IpFamily),
}

/// Settings that the model keeps of every host, since they identify its end of the VXLAN.
const OF_ALL_HOSTS: [(&str, HostItem); 4] = [
    ("IPv4VXLANTunnelAddr", HostItem::VxlanAddress(IpFamily::V4)),
    ("IPv6VXLANTunnelAddr", HostItem::VxlanAddress(IpFamily::V6)),
    ("VXLANTunnelMACAddr", HostItem::VxlanMac(IpFamily::V4)),
    ("VXLANTunnelMACAddrV6", HostItem::VxlanMac(IpFamily::V6)),
];

impl HostItem {
    /// Returns the host and the item that a key refers to; `None` for other keys.
    pub(super) fn of(key: &Key) -> Option<(&str, Self)> {
        Some(match key {
            Key::Setting(Scope::Host(host), name) => {
                (host, OF_ALL_HOSTS.iter().find(|(setting, _)| setting == name)?.1)
            }
            Key::BirdIp { host } => (host, Self::BirdIp),
            Key::HostMetadata { host } => (host, Self::Metadata),
            Key::Bgp(scope, item) => {
                let item = match item {
                    BgpItem::Address(family) => Self::Address(*family),
                    BgpItem::Network(family) => Self::Network(*family),
                    BgpItem::AsNum => Self::AsNum,
                    BgpItem::ListenPort => Self::ListenPort,
                    BgpItem::RrClusterId => Self::ClusterId,
                    BgpItem::LogLevel => Self::LogLevel,
                    _ => return None,
                };
                (scope.host()?, item)
            }
            _ => return None,
        })
    }

    /// Returns the key of this item for a host.
    pub(super) fn key(self, host: &str) -> Key {
        let item = match self {
            Self::BirdIp => return Key::BirdIp { host: host.to_owned() },
            Self::Metadata => return Key::HostMetadata { host: host.to_owned() },
            Self::VxlanAddress(_) | Self::VxlanMac(_) => {
                let name = OF_ALL_HOSTS.iter().find(|(_, item)| *item == self).map_or("", |(name, _)| *name);
                return Key::Setting(Scope::Host(host.to_owned()), name.to_owned());
            }
            Self::Address(family) => BgpItem::Address(family),
            Self::Network(family) => BgpItem::Network(family),
            Self::AsNum => BgpItem::AsNum,
            Self::ListenPort => BgpItem::ListenPort,
            Self::ClusterId => BgpItem::RrClusterId,
            Self::LogLevel => BgpItem::LogLevel,
        };
        Key::bgp_host(host, item)
    }
}

/// The MAC address of a host cannot be parsed, so packets to the host cannot be addressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnreadableMac;

/// Addresses, networks, AS number, port, cluster id and other short values of one host. A host exists in the
/// model while it has at least one of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Host {
    /// Sorted by item. A host has few items, so a list is smaller than a map and no slower.
    slots: Vec<(HostItem, Slot)>,
}

impl Host {
    /// Returns the address of a family. Both an absent and an empty value mean that the host does not use the
    /// family.
    #[must_use]
    pub fn addr(&self, family: IpFamily) -> Option<IpAddr> {
        match self.value(HostItem::Address(family)) {
            Some(Value::Address(addr)) => *addr,
            _ => None,
        }
    }

    /// Returns the addresses of both families, IPv4 first.
    pub fn addrs(&self) -> impl Iterator<Item = IpAddr> {
        [IpFamily::V4, IpFamily::V6].into_iter().filter_map(|family| self.addr(family))
    }

    /// Returns the network that the host's address of a family is in.
    #[must_use]
    pub fn network(&self, family: IpFamily) -> Option<Cidr> {
        match self.value(HostItem::Network(family)) {
            Some(Value::Network(network)) => *network,
            _ => None,
        }
    }

    /// Returns the host's own AS number; `None` if the global one applies.
    #[must_use]
    pub fn as_num(&self) -> Option<Asn> {
        match self.value(HostItem::AsNum) {
            Some(Value::Asn(asn)) => Some(*asn),
            _ => None,
        }
    }

    /// Returns the host's own BGP port; `None` if the global one applies.
    #[must_use]
    pub fn listen_port(&self) -> Option<u16> {
        match self.value(HostItem::ListenPort) {
            Some(Value::Port(port)) => Some(*port),
            _ => None,
        }
    }

    /// Returns the cluster id. A host with a cluster id is a route reflector and not part of the mesh.
    #[must_use]
    pub fn cluster_id(&self) -> Option<Ipv4Addr> {
        match self.value(HostItem::ClusterId) {
            Some(Value::ClusterId(id)) => *id,
            _ => None,
        }
    }

    /// Returns `bird_ip`, the address from which packet rules accept IPIP of this host.
    #[must_use]
    pub fn bird_ip(&self) -> Option<Ipv4Addr> {
        match self.value(HostItem::BirdIp) {
            Some(Value::Address(Some(IpAddr::V4(addr)))) => Some(*addr),
            _ => None,
        }
    }

    /// Returns the host's address in the VXLAN of a family.
    #[must_use]
    pub fn vxlan_addr(&self, family: IpFamily) -> Option<IpAddr> {
        match self.value(HostItem::VxlanAddress(family)) {
            Some(Value::Address(addr)) => *addr,
            _ => None,
        }
    }

    /// Returns the stored MAC address of the host's VXLAN device; `Ok(None)` if the one that its name gives
    /// applies.
    ///
    /// # Errors
    /// A MAC address is stored and cannot be parsed.
    pub fn vxlan_mac(&self, family: IpFamily) -> Result<Option<MacAddr>, UnreadableMac> {
        match self.slot(HostItem::VxlanMac(family)).map(Slot::value) {
            None => Ok(None),
            Some(Some(Value::Mac(mac))) => Ok(*mac),
            Some(_) => Err(UnreadableMac),
        }
    }

    pub(super) fn value(&self, item: HostItem) -> Option<&Value> {
        self.slot(item)?.value()
    }

    pub(super) fn slot(&self, item: HostItem) -> Option<&Slot> {
        let at = self.slots.binary_search_by_key(&item, |(i, _)| *i).ok()?;
        self.slots.get(at).map(|(_, slot)| slot)
    }

    pub(super) fn slot_mut(&mut self, item: HostItem) -> &mut Slot {
        let at = match self.slots.binary_search_by_key(&item, |(i, _)| *i) {
            Ok(at) => at,
            Err(at) => {
                // Doubling the capacity would waste as much memory as is used, for each of thousands of
                // hosts.
                self.slots.reserve_exact(1);
                self.slots.insert(at, (item, Slot::default()));
                at
            }
        };
        &mut self.slots[at].1
    }

    pub(super) fn slots(&self) -> impl Iterator<Item = (HostItem, &Slot)> {
        self.slots.iter().map(|(item, slot)| (*item, slot))
    }

    /// Removes slots without keys. Returns true if no slot is left.
    pub(super) fn tidy(&mut self) -> bool {
        self.slots.retain(|(_, slot)| !slot.is_empty());
        self.slots.is_empty()
    }
}
