//! Addresses that endpoints and tunnels use, which commands must not release by accident.

use std::collections::BTreeMap;
use std::net::IpAddr;

use tortie_config::Resource;
use tortie_config::key::{EndpointKey, Key, prefix};
use tortie_config::resource::{Block, Labels, Setting};
use tortie_net::Cidr;

use crate::ipam::cluster;
use crate::ipam::keyspace::{Keyspace, Place};
use crate::model::endpoint_name::display_name;
use tortie_store::{KeyValue, Snapshot};

/// Addresses that endpoints and tunnels use, and addresses that IPAM has allocated.
#[derive(Debug, Default)]
pub struct UsedAddresses {
    /// For each address the key of its endpoint, or the host whose tunnel has it.
    holders: BTreeMap<IpAddr, String>,
    /// Block and handle of each allocated address.
    allocated: BTreeMap<IpAddr, (Cidr, Option<String>)>,
}

/// An allocated address that is in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsedAddress {
    /// Address in use.
    pub addr: IpAddr,
    /// Endpoint or tunnel that uses it, described for people.
    pub holder: String,
}

impl UsedAddresses {
    /// Returns the prefixes to list.
    #[must_use]
    pub fn prefixes(keyspace: &Keyspace) -> Vec<String> {
        let mut prefixes = vec![prefix::BLOCKS.to_owned()];
        if keyspace.is_calico_3() {
            prefixes.extend(cluster::prefixes_of_holders());
        } else {
            prefixes.push(prefix::HOSTS.to_owned());
        }
        prefixes
    }

    /// Returns true if a key holds or affects address allocations.
    #[must_use]
    pub fn concerns(key: &str) -> bool {
        !matches!(Keyspace::Global.place(key), Some(Place::Config) | None)
    }

    /// Parses a snapshot of [`UsedAddresses::prefixes`].
    #[must_use]
    pub fn of(keyspace: &Keyspace, snapshot: &Snapshot) -> Self {
        if keyspace.is_calico_3() {
            return Self::of_entries(&cluster::project(snapshot).entries);
        }
        Self::of_entries(&snapshot.entries)
    }

    fn of_entries(entries: &[KeyValue]) -> Self {
        let mut used = Self::default();
        for entry in entries {
            match Keyspace::Global.place(&entry.key) {
                Some(Place::Block(cidr)) => used.take_block(cidr, entry),
                _ => used.take_holder(entry),
            }
        }
        used
    }

    fn take_block(&mut self, cidr: Cidr, entry: &KeyValue) {
        let Ok(block) = Block::parse(cidr, &entry.value) else { return };
        for (ordinal, attribute) in block.allocated() {
            if let Some(addr) = cidr.nth(ordinal.into()) {
                self.allocated.insert(addr, (cidr, attribute.handle.clone()));
            }
        }
    }

    fn take_holder(&mut self, entry: &KeyValue) {
        let Ok(key) = Key::parse(&entry.key) else { return };
        match (&key, Resource::parse(&key, &entry.value)) {
            (Key::Endpoint(endpoint), Ok(Resource::WorkloadEndpoint(workload))) => {
                let holder = holder(endpoint, &workload.labels);
                let addrs = workload.nets().filter(|net| net.is_host()).map(Cidr::addr);
                self.holders.extend(addrs.map(|addr| (addr, holder.clone())));
            }
            (Key::Setting(scope, name), Ok(_)) if Setting::TUNNEL_ADDRESSES.contains(&name.as_str()) => {
                let addr = String::from_utf8_lossy(&entry.value).trim().parse().ok();
                if let (Some(host), Some(addr)) = (scope.host(), addr) {
                    self.holders.insert(addr, format!("the tunnel of host {host}"));
                }
            }
            _ => {}
        }
    }

    /// Returns those of `addrs` that are both allocated and in use.
    #[must_use]
    pub fn among(&self, addrs: &[IpAddr]) -> Vec<UsedAddress> {
        let allocated = addrs.iter().filter(|addr| self.allocated.contains_key(addr));
        allocated.filter_map(|addr| self.used(*addr)).collect()
    }

    /// Returns the addresses of a handle that are in use.
    #[must_use]
    pub fn of_handle(&self, handle: &str) -> Vec<UsedAddress> {
        let held = self.allocated.iter().filter(|(_, (_, of))| of.as_deref() == Some(handle));
        held.filter_map(|(addr, _)| self.used(*addr)).collect()
    }

    /// Returns the used addresses of all blocks within a prefix.
    #[must_use]
    pub fn in_blocks(&self, prefix: &Cidr) -> Vec<UsedAddress> {
        let held = self.allocated.iter().filter(|(_, (block, _))| prefix.covers(block));
        held.filter_map(|(addr, _)| self.used(*addr)).collect()
    }

    /// Returns the used addresses that a write to an IPAM key would affect: those of a block, of an
    /// affinity's block, of a handle, or of a pool.
    #[must_use]
    pub fn of_key(&self, key: &str) -> Vec<UsedAddress> {
        match Keyspace::Global.place(key) {
            Some(Place::Block(cidr) | Place::Affinity { block: cidr, .. } | Place::Pool(cidr)) => {
                self.in_blocks(&cidr)
            }
            Some(Place::Handle(id) | Place::LegacyHandle(id)) => self.of_handle(&id),
            Some(Place::Config) | None => Vec::new(),
        }
    }

    fn used(&self, addr: IpAddr) -> Option<UsedAddress> {
        Some(UsedAddress { addr, holder: self.holders.get(&addr)?.clone() })
    }
}

fn holder(key: &EndpointKey, labels: &Labels) -> String {
    match key {
        EndpointKey::Workload { host, .. } => format!("{} on {host}", display_name(key, labels)),
        EndpointKey::Host { host, endpoint } => format!("host endpoint {endpoint} of {host}"),
    }
}
