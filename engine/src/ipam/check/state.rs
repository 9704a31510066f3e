//! Reads and parses all IPAM data at one revision of the store.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use tortie_config::Resource;
use tortie_config::key::{DockerItem, EndpointKey, Key, Scope, prefix};
use tortie_config::resource::{Affinity, Block, Handle, IpamConfig, Pool, Setting, ValueError};
use tortie_net::Cidr;

use crate::ipam::cluster;
use crate::ipam::keyspace::{Keyspace, Place};
use tortie_store::{KeyValue, Snapshot, Store, StoreError};

/// A parsed value with the revision of its last write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredValue<T> {
    /// Parsed value.
    pub value: T,
    /// Store revision of the last write.
    pub revision: u64,
}

/// A workload endpoint as the consistency check needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Store key of the endpoint.
    pub key: String,
    /// Host that the endpoint is on.
    pub host: String,
    /// IPv4 and IPv6 addresses, as prefixes.
    pub nets: Vec<Cidr>,
    /// Interface name on the host side.
    pub interface: String,
    /// True if the endpoint's state is active.
    pub active: bool,
}

/// All IPAM data at one revision of the store.
#[derive(Debug, Clone, Default)]
pub struct IpamState {
    /// Store revision that the data was read at.
    pub revision: u64,
    /// Pools by prefix.
    pub pools: BTreeMap<Cidr, StoredValue<Pool>>,
    /// IPAM configuration; the default if the key does not exist.
    pub config: IpamConfig,
    /// Blocks by prefix.
    pub blocks: BTreeMap<Cidr, StoredValue<Block>>,
    /// Handles by identifier.
    pub handles: BTreeMap<String, StoredValue<Handle>>,
    /// Affinities by host and block.
    pub affinities: BTreeMap<(String, Cidr), StoredValue<Affinity>>,
    /// Workload endpoints of all hosts. Empty for a local keyspace, whose addresses have no endpoints.
    pub endpoints: Vec<Endpoint>,
    /// Hosts with the addresses of their tunnels, up to three of each.
    pub tunnels: BTreeSet<(String, IpAddr)>,
    /// Hosts by the addresses that their Docker drivers allocated. Gateways and auxiliary addresses of a
    /// Docker network are on no interface.
    pub docker: BTreeMap<IpAddr, String>,
    /// Hosts that keys other than IPAM and endpoint keys refer to.
    pub hosts: BTreeSet<String>,
    /// Keys whose values cannot be parsed, with the reason.
    pub unreadable: Vec<(String, String)>,
    /// True for a Calico 3 store, whose addresses may have holders of kinds that only Calico knows.
    pub is_calico_3: bool,
}

impl IpamState {
    /// Returns the prefixes to list for the state of `keyspace`.
    #[must_use]
    pub fn prefixes(keyspace: &Keyspace) -> Vec<String> {
        let mut prefixes = keyspace.root_prefixes();
        if *keyspace == Keyspace::Global {
            prefixes.extend([format!("{}host/", prefix::V1), prefix::BGP.to_owned()]);
        }
        if keyspace.is_shared() {
            prefixes.extend([prefix::STATUS.to_owned(), prefix::TORTIE_HOSTS.to_owned()]);
        }
        prefixes
    }

    /// Returns the prefixes to list, in addition to the blocks, for the state of one host in a shared
    /// keyspace. It is the part of [`IpamState::prefixes`] that may show that an address allocated by this
    /// host is in use. Docker's drivers record addresses that are on no interface.
    #[must_use]
    pub fn prefixes_of(keyspace: &Keyspace, host: &str) -> Vec<String> {
        if keyspace.is_calico_3() {
            let mut prefixes = cluster::prefixes_of_holders();
            prefixes.extend([
                prefix::IPAM_CONFIG.to_owned(),
                prefix::affinities_of(host),
                prefix::tortie_host(host),
            ]);
            return prefixes;
        }
        vec![
            prefix::POOLS.to_owned(),
            prefix::IPAM_CONFIG.to_owned(),
            prefix::affinities_of(host),
            prefix::host(host),
            prefix::tortie_host(host),
        ]
    }

    /// Reads the state from the store.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn load(store: &dyn Store, keyspace: &Keyspace) -> Result<Self, StoreError> {
        Ok(Self::of(keyspace, &store.list(&Self::prefixes(keyspace)).await?))
    }

    /// Parses a snapshot of [`IpamState::prefixes`].
    #[must_use]
    pub fn of(keyspace: &Keyspace, snapshot: &Snapshot) -> Self {
        if !keyspace.is_calico_3() {
            return Self::of_entries(keyspace, snapshot.revision, &snapshot.entries);
        }
        let projected = cluster::project(snapshot);
        let mut state = Self::of_entries(keyspace, snapshot.revision, &projected.entries);
        state.is_calico_3 = true;
        state.hosts.extend(projected.hosts);
        state.unreadable.extend(projected.unreadable);
        state
    }

    fn of_entries(keyspace: &Keyspace, revision: u64, entries: &[KeyValue]) -> Self {
        let mut state = Self { revision, ..Self::default() };
        let mut old = Vec::new();
        for entry in entries {
            match keyspace.place(&entry.key) {
                Some(Place::LegacyHandle(id)) => old.push((id, entry)),
                Some(place) => state.take(place, entry),
                None if keyspace.is_shared() => state.take_other(entry),
                None => {}
            }
        }
        for (id, entry) in old {
            match Handle::parse(&id, &entry.value) {
                Ok(handle) => {
                    state
                        .handles
                        .entry(id)
                        .or_insert(StoredValue { value: handle, revision: entry.mod_revision });
                }
                Err(error) => state.unreadable.push((entry.key.clone(), error.to_string())),
            }
        }
        state
    }

    fn take(&mut self, place: Place, entry: &KeyValue) {
        let revision = entry.mod_revision;
        let bytes = &entry.value;
        let taken: Result<(), ValueError> = match place {
            Place::Pool(cidr) => Pool::parse(cidr, bytes)
                .map(|value| drop(self.pools.insert(cidr, StoredValue { value, revision }))),
            Place::Config => IpamConfig::parse(bytes).map(|config| self.config = config),
            // What a writer marked as deleted does not exist.
            Place::Block(cidr) => Block::parse(cidr, bytes).map(|value| {
                if !value.is_deleted() {
                    self.blocks.insert(cidr, StoredValue { value, revision });
                }
            }),
            Place::Handle(id) | Place::LegacyHandle(id) => Handle::parse(&id, bytes).map(|value| {
                if !value.is_deleted() {
                    self.handles.insert(id, StoredValue { value, revision });
                }
            }),
            Place::Affinity { host, block } => Affinity::parse(bytes).map(|value| {
                if !value.is_deleted() {
                    self.affinities.insert((host, block), StoredValue { value, revision });
                }
            }),
        };
        if let Err(error) = taken {
            self.unreadable.push((entry.key.clone(), error.to_string()));
        }
    }

    /// Parses keys outside of IPAM, and records IPAM keys that are invalid.
    fn take_other(&mut self, entry: &KeyValue) {
        let key = match Key::parse(&entry.key) {
            Ok(key) => key,
            Err(error) => return self.unreadable.push((entry.key.clone(), error.to_string())),
        };
        match &key {
            Key::Endpoint(EndpointKey::Workload { host, .. }) => match Resource::parse(&key, &entry.value) {
                Ok(Resource::WorkloadEndpoint(endpoint)) => {
                    let nets = endpoint.ipv4_nets.iter().chain(&endpoint.ipv6_nets).copied().collect();
                    self.endpoints.push(Endpoint {
                        key: entry.key.clone(),
                        host: host.clone(),
                        nets,
                        interface: endpoint.name.to_string(),
                        active: endpoint.active,
                    });
                }
                Ok(_) => {}
                Err(error) => self.unreadable.push((entry.key.clone(), error.to_string())),
            },
            Key::Docker { host, item: DockerItem::Address { space, addr } } if space == "global" => {
                self.docker.insert(*addr, host.clone());
            }
            Key::Felix { .. } | Key::Docker { .. } => {}
            Key::Setting(Scope::Host(host), name) if Setting::TUNNEL_ADDRESSES.contains(&name.as_str()) => {
                let addr = std::str::from_utf8(&entry.value).ok().and_then(|text| text.trim().parse().ok());
                if let Some(addr) = addr {
                    self.tunnels.insert((host.clone(), addr));
                }
            }
            key if entry.key.starts_with(prefix::IPAM) => {
                let why = format!("a key of IPAM is written {}", key.canonical());
                self.unreadable.push((entry.key.clone(), why));
            }
            key => self.hosts.extend(key.host().map(str::to_owned)),
        }
    }

    /// Returns the block that contains an address.
    #[must_use]
    pub fn block_of(&self, addr: IpAddr) -> Option<&StoredValue<Block>> {
        Keyspace::blocks_overlapping(&Cidr::host(addr)).iter().find_map(|cidr| self.blocks.get(cidr))
    }

    /// Returns the most specific pool that contains an address.
    #[must_use]
    pub fn pool_of(&self, addr: IpAddr) -> Option<&Pool> {
        let pools = self.pools.values().map(|stored| &stored.value);
        pools.filter(|pool| pool.cidr.contains(addr)).max_by_key(|pool| pool.cidr.len())
    }
}
