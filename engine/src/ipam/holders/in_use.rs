//! Addresses that endpoints have, so that nobody frees them by accident.

use std::collections::BTreeMap;
use std::net::IpAddr;

use tortie_config::Resource;
use tortie_config::key::{EndpointKey, Key, prefix};
use tortie_config::resource::{Block, Labels};
use tortie_net::Cidr;

use crate::ipam::keyspace::{Keyspace, Place};
use crate::model::endpoint_name::display_name;
use tortie_store::{KeyValue, Snapshot};

/// The endpoints of the store with their addresses, and what IPAM has allocated.
#[derive(Debug, Default)]
pub struct UsedAddresses {
    /// By address: the endpoint, by its key, or the host whose tunnel it is.
    holders: BTreeMap<IpAddr, String>,
    /// What is allocated, with its block and its handle.
    allocated: BTreeMap<IpAddr, (Cidr, Option<String>)>,
}

/// An allocated address that an endpoint has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsedAddress {
    /// The address.
    pub addr: IpAddr,
    /// Who has it, in words.
    pub holder: String,
}

impl UsedAddresses {
    /// What has to be listed for it.
    #[must_use]
    pub fn prefixes() -> Vec<String> {
        vec![prefix::HOSTS.to_owned(), prefix::BLOCKS.to_owned()]
    }

    /// Whether a key says which addresses are allocated or may be.
    #[must_use]
    pub fn concerns(key: &str) -> bool {
        !matches!(Keyspace::Global.place(key), Some(Place::Config) | None)
    }

    /// Reads a listing of [`UsedAddresses::prefixes`].
    #[must_use]
    pub fn of(snapshot: &Snapshot) -> Self {
        let mut used = Self::default();
        for entry in &snapshot.entries {
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
            (Key::Setting(scope, name), Ok(_)) if name == "IpInIpTunnelAddr" => {
                let addr = String::from_utf8_lossy(&entry.value).trim().parse().ok();
                if let (Some(host), Some(addr)) = (scope.host(), addr) {
                    self.holders.insert(addr, format!("the tunnel of host {host}"));
                }
            }
            _ => {}
        }
    }

    /// Those of these addresses that are allocated and that somebody has.
    #[must_use]
    pub fn among(&self, addrs: &[IpAddr]) -> Vec<UsedAddress> {
        let allocated = addrs.iter().filter(|addr| self.allocated.contains_key(addr));
        allocated.filter_map(|addr| self.used(*addr)).collect()
    }

    /// The addresses of a handle that somebody has.
    #[must_use]
    pub fn of_handle(&self, handle: &str) -> Vec<UsedAddress> {
        let held = self.allocated.iter().filter(|(_, (_, of))| of.as_deref() == Some(handle));
        held.filter_map(|(addr, _)| self.used(*addr)).collect()
    }

    /// The addresses of blocks that lie in a prefix, as far as somebody has them.
    #[must_use]
    pub fn in_blocks(&self, prefix: &Cidr) -> Vec<UsedAddress> {
        let held = self.allocated.iter().filter(|(_, (block, _))| prefix.covers(block));
        held.filter_map(|(addr, _)| self.used(*addr)).collect()
    }

    /// The addresses that a key of IPAM speaks for, as far as somebody has them: of a block, of an affinity its block, of a
    /// handle what it holds, of a pool all that lies in it.
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
