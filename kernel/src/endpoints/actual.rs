//! Actual state of workload interfaces: links, their on-link routes and their permanent neighbours.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use smallvec::SmallVec;
use tortie_net::Cidr;

use super::{Name, Neighbour};
use crate::netlink::link::Link;
use crate::netlink::route::{RTN_UNICAST, Route};

/// `RTPROT_REDIRECT`, `RTPROT_KERNEL` and `RTPROT_RA`: written by no process.
const KERNEL_PROTOCOLS: [u8; 3] = [1, 2, 9];

/// An on-link route; prefix and metric are its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Onlink {
    pub(super) protocol: u8,
    /// True if it was desired once, so that it is deleted without a grace period.
    pub(super) adopted: bool,
}

impl Onlink {
    pub(super) fn is_of_the_kernel(self) -> bool {
        KERNEL_PROTOCOLS.contains(&self.protocol)
    }
}

/// Result of the last check of the sysctls of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Sysctls {
    #[default]
    Unread,
    /// Correct at the last check, which is no longer recent.
    Stale,
    /// Checked and correct, for this setting of IPv6.
    Verified { ipv6: bool },
}

/// An existing interface.
#[derive(Debug)]
pub(super) struct Device {
    pub(super) name: Name,
    pub(super) up: bool,
    pub(super) last_event: Instant,
    pub(super) routes: BTreeMap<(Cidr, u32), Onlink>,
    /// Permanent neighbours: MAC address, and the protocol of the entry.
    pub(super) neighbours: BTreeMap<IpAddr, ([u8; 6], u8)>,
    pub(super) sysctls: Sysctls,
}

/// The actual state of all interfaces.
#[derive(Debug, Default)]
pub(super) struct ActualState {
    devices: BTreeMap<u32, Device>,
    by_name: BTreeMap<Name, u32>,
    /// Devices with a route of this prefix and metric: the notification of a replacement does not name the
    /// replaced route.
    holders: BTreeMap<(Cidr, u32), SmallVec<[u32; 1]>>,
}

/// Returns the interface of a route that this module manages: on-link, over one device, in the main table.
pub(super) fn onlink(route: &Route) -> Option<u32> {
    let link_local = matches!(route.prefix.addr(), IpAddr::V6(a) if a.is_unicast_link_local());
    match route.legs.as_slice() {
        [leg] if leg.gateway.is_none() && !link_local => Some(leg.ifindex),
        _ => None,
    }
    .filter(|_| route.kind == RTN_UNICAST && route.tos == 0 && route.nexthop == 0)
}

impl ActualState {
    pub(super) fn links(&self) -> impl Iterator<Item = (u32, &Device)> {
        self.devices.iter().map(|(index, device)| (*index, device))
    }

    pub(super) fn link(&self, ifindex: u32) -> Option<&Device> {
        self.devices.get(&ifindex)
    }

    pub(super) fn link_mut(&mut self, ifindex: u32) -> Option<&mut Device> {
        self.devices.get_mut(&ifindex)
    }

    pub(super) fn link_named(&self, name: &str) -> Option<(u32, &Device)> {
        let index = *self.by_name.get(name)?;
        Some((index, self.devices.get(&index)?))
    }

    /// Updates a link. Returns the names that this concerns; none if nothing changed.
    pub(super) fn set_link(&mut self, link: &Link, now: Instant) -> SmallVec<[Name; 2]> {
        let mut concerned = SmallVec::new();
        let name: Name = match self.devices.get(&link.index) {
            Some(device) if *device.name == *link.name => Arc::clone(&device.name),
            _ => link.name.as_str().into(),
        };
        let device = self.devices.entry(link.index).or_insert_with(|| {
            concerned.push(Arc::clone(&name));
            Device {
                name: Arc::clone(&name),
                up: link.is_up(),
                last_event: now,
                routes: BTreeMap::new(),
                neighbours: BTreeMap::new(),
                sysctls: Sysctls::Unread,
            }
        });
        if device.name != name {
            concerned.extend([Arc::clone(&device.name), Arc::clone(&name)]);
            if self.by_name.get(&device.name) == Some(&link.index) {
                self.by_name.remove(&device.name);
            }
            device.name = Arc::clone(&name);
            device.sysctls = Sysctls::Unread;
        }
        let went_down = device.up && !link.is_up();
        if device.up != link.is_up() {
            concerned.push(Arc::clone(&name));
            device.up = link.is_up();
            device.sysctls = Sysctls::Unread;
        }
        self.by_name.insert(name, link.index);
        if went_down {
            self.remove_device(link.index);
        }
        concerned
    }

    /// Removes a link and returns its name.
    pub(super) fn remove_link(&mut self, ifindex: u32) -> Option<Name> {
        self.remove_device(ifindex);
        let device = self.devices.remove(&ifindex)?;
        if self.by_name.get(&device.name) == Some(&ifindex) {
            self.by_name.remove(&device.name);
        }
        Some(device.name)
    }

    /// Forgets the routes and neighbours of a device: the kernel removes them when it goes down.
    fn remove_device(&mut self, ifindex: u32) {
        let Some(device) = self.devices.get_mut(&ifindex) else { return };
        device.neighbours.clear();
        for spot in std::mem::take(&mut device.routes).into_keys() {
            self.release_route(spot, ifindex);
        }
    }

    fn release_route(&mut self, spot: (Cidr, u32), ifindex: u32) {
        if let Some(there) = self.holders.get_mut(&spot) {
            there.retain(|i| *i != ifindex);
            if there.is_empty() {
                self.holders.remove(&spot);
            }
        }
    }

    /// Returns the devices that have a route of this prefix and metric.
    pub(super) fn holders_of(&self, prefix: Cidr, metric: u32) -> &[u32] {
        self.holders.get(&(prefix, metric)).map_or(&[], SmallVec::as_slice)
    }

    /// Adds a route; returns true if it was absent or different.
    pub(super) fn add_route(&mut self, ifindex: u32, prefix: Cidr, metric: u32, protocol: u8) -> bool {
        let Some(device) = self.devices.get_mut(&ifindex) else { return false };
        let spot = (prefix, metric);
        let old = device.routes.get(&spot).copied();
        let adopted = old.is_some_and(|o| o.adopted);
        device.routes.insert(spot, Onlink { protocol, adopted });
        if old.is_none() {
            self.holders.entry(spot).or_default().push(ifindex);
        }
        old.is_none_or(|o| o.protocol != protocol)
    }

    /// Removes a route; returns true if it was present.
    pub(super) fn remove_route(&mut self, ifindex: u32, prefix: Cidr, metric: u32) -> bool {
        let gone =
            self.devices.get_mut(&ifindex).is_some_and(|d| d.routes.remove(&(prefix, metric)).is_some());
        if gone {
            self.release_route((prefix, metric), ifindex);
        }
        gone
    }

    /// Replaces the neighbours of all devices by a dump; returns the devices with differences.
    pub(super) fn replace_neighbours(&mut self, list: &[Neighbour]) -> Vec<u32> {
        let mut by_device: BTreeMap<u32, BTreeMap<IpAddr, ([u8; 6], u8)>> = BTreeMap::new();
        for n in list.iter().filter(|n| n.permanent) {
            by_device.entry(n.ifindex).or_default().insert(n.addr, (n.mac, n.protocol));
        }
        let mut news = Vec::new();
        for (index, device) in &mut self.devices {
            let found = by_device.remove(index).unwrap_or_default();
            if device.neighbours != found {
                device.neighbours = found;
                news.push(*index);
            }
        }
        news
    }
}
