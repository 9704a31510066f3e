//! Read access to the model. The functions resolve "host value over global value" only; all other decisions
//! belong to routing and policy.

mod vxlan;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use tortie_config::key::{BgpItem, EndpointKey, IpFamily, Key, ProfilePart, Scope};
use tortie_config::resource::{
    Affinity, Asn, BgpLogLevel, Block, BmpStation, Filter, IpamConfig, Multipath, NodeMesh, Peer, Pool,
    PrefixAdvertisement, Setting, Settings, WorkloadEndpoint,
};
use tortie_config::{Dialect, Resource};
use tortie_net::Cidr;

use crate::model::guard::ObjectCounts;
use crate::model::host::Host;
use crate::model::slot::Slot;
use crate::model::state::{InvalidKey, Model};
use crate::model::value::{Ready, Value};
use tortie_store::{Revision, schema};

/// A resource with its key and revisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredValue<'a, K: ?Sized, T> {
    /// Key of the resource, or the part of the key that identifies it.
    pub key: &'a K,
    /// Value in force.
    pub value: &'a T,
    /// Revision of the last write of the key.
    pub revision: Revision,
    /// Revision of the write that created the key.
    pub created: Revision,
}

impl Model {
    /// Returns the name of the host that this model is for.
    #[must_use]
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Returns the newest store revision that was applied.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Returns the identity of the store that the last snapshot came from.
    #[must_use]
    pub fn store_id(&self) -> &str {
        &self.store_id
    }

    /// Returns the identity of the store that the last list of blocks came from; empty if blocks were read
    /// one by one.
    #[must_use]
    pub fn blocks_store_id(&self) -> &str {
        &self.blocks_store_id
    }

    /// Returns the keys that cannot be used as they are, sorted by text.
    pub fn invalid_keys(&self) -> impl ExactSizeIterator<Item = &InvalidKey> {
        self.invalid_keys.values()
    }

    /// Returns the number of keys outside of the data model.
    #[must_use]
    pub fn unknown_keys(&self) -> usize {
        self.unknown
    }

    /// Counts the objects whose loss must not go unnoticed.
    #[must_use]
    pub fn object_counts(&self) -> ObjectCounts {
        ObjectCounts {
            pools: self.pools().count(),
            own_blocks: self.own_blocks().count(),
            hosts: self.hosts.len(),
            endpoints: self.endpoints,
        }
    }

    /// Returns the value of the key `Ready`.
    #[must_use]
    pub fn ready(&self) -> &Ready {
        match self.rest.get(&Key::Ready).and_then(Slot::value) {
            Some(Value::Ready(ready)) => ready,
            _ => &Ready::Absent,
        }
    }

    /// Checks that this program supports the schema of the store.
    ///
    /// # Errors
    /// An explanation, if the store requires a later program.
    pub fn schema(&self) -> Result<(), String> {
        match self.rest.get(&Key::Schema).and_then(Slot::value) {
            Some(Value::Schema(needed)) => schema::check(*needed),
            _ => Ok(()),
        }
    }

    /// Returns a host by name.
    #[must_use]
    pub fn host(&self, name: &str) -> Option<&Host> {
        self.hosts.get(name)
    }

    /// Returns all hosts, sorted by name.
    pub fn hosts(&self) -> impl ExactSizeIterator<Item = (&str, &Host)> {
        self.hosts.iter().map(|(name, host)| (&**name, host))
    }

    /// Returns the hosts with this address, sorted by name. More than one is a configuration error.
    pub fn hosts_by_address(&self, addr: IpAddr) -> impl Iterator<Item = (&str, &Host)> {
        let names = self.hosts_by_address.get(&addr).map_or(&[][..], Vec::as_slice);
        names.iter().filter_map(|name| self.hosts.get_key_value(name)).map(|(name, host)| (&**name, host))
    }

    /// Returns the host addresses (as /32 or /128 prefixes) and host networks that overlap a prefix, each
    /// with its host. The search visits no others.
    pub fn hosts_within<'a>(&'a self, prefix: &Cidr) -> impl Iterator<Item = (Cidr, &'a str)> + use<'a> {
        let prefix = *prefix;
        let addresses = self.hosts_by_address.range(prefix.addr()..=prefix.last());
        let addresses = addresses.map(|(addr, hosts)| (Cidr::host(*addr), hosts));
        // In prefix order, a prefix is followed by those that it contains.
        let inside =
            self.hosts_by_network.range(prefix..).take_while(move |(network, _)| prefix.covers(network));
        let around = (0..prefix.len()).filter_map(move |len| {
            let network = Cidr::new(prefix.addr(), len).ok()?;
            self.hosts_by_network.get_key_value(&network)
        });
        let networks = around.chain(inside).map(|(network, hosts)| (*network, hosts));
        addresses.chain(networks).flat_map(|(cidr, hosts)| hosts.iter().map(move |host| (cidr, &**host)))
    }

    /// Returns the addresses within a prefix that may be the remote end of a session of this host: those of
    /// hosts and of numbered peers.
    pub fn neighbour_addresses_within(&self, prefix: &Cidr) -> impl Iterator<Item = IpAddr> {
        let range = prefix.addr()..=prefix.last();
        let hosts = self.hosts_by_address.range(range.clone()).map(|(addr, _)| *addr);
        hosts.chain(self.hosts_by_peer.range(range).map(|(addr, _)| *addr))
    }

    /// Returns the addresses that more than one host claims, sorted.
    pub fn shared_addrs(&self) -> impl Iterator<Item = IpAddr> {
        self.shared_addresses.iter().copied()
    }

    /// Returns the hosts without any address, sorted by name.
    pub fn hosts_without_address(&self) -> impl Iterator<Item = &str> {
        self.hosts_without_address.iter().map(|name| &**name)
    }

    /// Counts the hosts that have a peer of their own at this address.
    #[must_use]
    pub fn count_of_peers_at(&self, addr: IpAddr) -> usize {
        let Some(hosts) = self.hosts_by_peer.get(&addr) else { return 0 };
        // The list is sorted, and names a host once per port. The empty name stands for a peer of all hosts.
        hosts.chunk_by(|a, b| a == b).filter(|same| same.first().is_some_and(|name| !name.is_empty())).count()
    }

    /// Returns true if there is an explicit peer at this address, of all hosts (`None`) or of the given one.
    #[must_use]
    pub fn has_peer(&self, host: Option<&str>, addr: IpAddr) -> bool {
        let name = host.unwrap_or_default();
        self.hosts_by_peer
            .get(&addr)
            .is_some_and(|names| names.binary_search_by(|other| (**other).cmp(name)).is_ok())
    }

    /// Returns the AS number of a host: its own, else the global one, else the default.
    #[must_use]
    pub fn as_num(&self, host: Option<&Host>) -> Asn {
        host.and_then(Host::as_num).unwrap_or_else(|| match self.global(BgpItem::AsNum) {
            Some(Value::Asn(asn)) => *asn,
            _ => Asn::DEFAULT,
        })
    }

    /// Returns the BGP port of a host: its own, else the global one, else 179.
    #[must_use]
    pub fn listen_port(&self, host: Option<&Host>) -> u16 {
        host.and_then(Host::listen_port).unwrap_or_else(|| match self.global(BgpItem::ListenPort) {
            Some(Value::Port(port)) => *port,
            _ => tortie_config::key::BGP_PORT,
        })
    }

    /// Returns the BGP log level of this host: its own, else the global one, else `info`.
    #[must_use]
    pub fn bgp_log_level(&self) -> BgpLogLevel {
        let item = crate::model::host::HostItem::LogLevel;
        let own = self.host(&self.node).and_then(|host| host.value(item));
        match own.or_else(|| self.global(BgpItem::LogLevel)) {
            Some(Value::LogLevel(level)) => *level,
            _ => BgpLogLevel::default(),
        }
    }

    /// Returns the node-to-node mesh, which is on by default, and the revision of its key (0 if absent).
    #[must_use]
    pub fn node_mesh(&self) -> (NodeMesh, Revision) {
        let key = Key::bgp_global(BgpItem::NodeMesh);
        let found = self.stored(&key, |resource| match resource {
            Resource::NodeMesh(mesh) => Some(mesh),
            _ => None,
        });
        found.map_or_else(|| (NodeMesh::default(), 0), |stored| (stored.value.clone(), stored.revision))
    }

    /// Returns the explicit peers of one scope: of all hosts, or of one host.
    pub fn peers<'a>(
        &'a self,
        scope: &Scope,
    ) -> impl Iterator<Item = StoredValue<'a, BgpItem, Peer>> + use<'a> {
        self.peers_from(scope, BgpItem::Peer { addr: IpAddr::V4(Ipv4Addr::UNSPECIFIED), port: None }, None)
    }

    /// Returns the explicit peers of one scope at one address: one per port.
    pub fn peers_at<'a>(
        &'a self,
        scope: &Scope,
        addr: IpAddr,
    ) -> impl Iterator<Item = StoredValue<'a, BgpItem, Peer>> + use<'a> {
        self.peers_from(scope, BgpItem::Peer { addr, port: None }, Some(addr))
    }

    /// Returns the unnumbered peers of one scope, by interface.
    pub fn interface_peers<'a>(
        &'a self,
        scope: &Scope,
    ) -> impl Iterator<Item = StoredValue<'a, str, Peer>> + use<'a> {
        let wanted = scope.clone();
        self.rest
            .range(Key::Bgp(scope.clone(), BgpItem::InterfacePeer(String::new()))..)
            .map_while(move |(key, slot)| match key {
                Key::Bgp(scope, BgpItem::InterfacePeer(name)) if *scope == wanted => Some((&**name, slot)),
                _ => None,
            })
            .filter_map(|(name, slot)| {
                stored(name, slot, |resource| match resource {
                    Resource::Peer(peer) => Some(&**peer),
                    _ => None,
                })
            })
    }

    /// Returns the peer ranges of one scope, by prefix.
    pub fn ranges<'a>(
        &'a self,
        scope: &Scope,
    ) -> impl Iterator<Item = StoredValue<'a, Cidr, Peer>> + use<'a> {
        let wanted = scope.clone();
        let first = BgpItem::PeerRange(Cidr::v4(Ipv4Addr::UNSPECIFIED, 0));
        self.rest
            .range(Key::Bgp(scope.clone(), first)..)
            .map_while(move |(key, slot)| match key {
                Key::Bgp(scope, BgpItem::PeerRange(prefix)) if *scope == wanted => Some((prefix, slot)),
                _ => None,
            })
            .filter_map(|(prefix, slot)| {
                stored(prefix, slot, |resource| match resource {
                    Resource::Peer(peer) => Some(&**peer),
                    _ => None,
                })
            })
    }

    /// Returns all peer configuration of one scope: by address, by interface, and ranges.
    pub fn all_peers<'a>(&'a self, scope: &Scope) -> impl Iterator<Item = (BgpItem, &'a Peer)> + use<'a> {
        let numbered = self.peers(scope).map(|p| (p.key.clone(), p.value));
        let interfaces =
            self.interface_peers(scope).map(|p| (BgpItem::InterfacePeer(p.key.to_owned()), p.value));
        let ranges = self.ranges(scope).map(|p| (BgpItem::PeerRange(*p.key), p.value));
        numbered.chain(interfaces).chain(ranges)
    }

    fn peers_from<'a>(
        &'a self,
        scope: &Scope,
        first: BgpItem,
        only: Option<IpAddr>,
    ) -> impl Iterator<Item = StoredValue<'a, BgpItem, Peer>> + use<'a> {
        let wanted = scope.clone();
        self.rest
            .range(Key::Bgp(scope.clone(), first)..)
            .map_while(move |(key, slot)| match key {
                Key::Bgp(scope, item @ BgpItem::Peer { addr, .. })
                    if *scope == wanted && only.is_none_or(|only| only == *addr) =>
                {
                    Some((item, slot))
                }
                _ => None,
            })
            .filter_map(|(item, slot)| {
                stored(item, slot, |resource| match resource {
                    Resource::Peer(peer) => Some(&**peer),
                    _ => None,
                })
            })
    }

    /// Returns the pools of both families that hosts may have addresses of, sorted by prefix. One for load
    /// balancers only is no pool for NAT, tunnels and routes.
    pub fn pools(&self) -> impl Iterator<Item = StoredValue<'_, Cidr, Pool>> {
        let first = Key::Pool(Cidr::v4(Ipv4Addr::UNSPECIFIED, 0));
        self.rest
            .range(first..)
            .map_while(|(key, slot)| if let Key::Pool(cidr) = key { Some((cidr, slot)) } else { None })
            .filter_map(|(cidr, slot)| {
                stored(cidr, slot, |resource| match resource {
                    Resource::Pool(pool) if pool.is_for_hosts() => Some(pool),
                    _ => None,
                })
            })
    }

    /// Returns the affinities of a host, sorted by block.
    pub fn affinities<'a>(
        &'a self,
        host: &str,
    ) -> impl Iterator<Item = StoredValue<'a, Cidr, Affinity>> + use<'a> {
        let first = Key::Affinity { host: host.to_owned(), block: Cidr::v4(Ipv4Addr::UNSPECIFIED, 0) };
        let wanted = host.to_owned();
        self.rest
            .range(first..)
            .map_while(move |(key, slot)| match key {
                Key::Affinity { host, block } if *host == wanted => Some((block, slot)),
                _ => None,
            })
            .filter_map(|(block, slot)| {
                stored(block, slot, |resource| match resource {
                    Resource::Affinity(affinity) => Some(affinity),
                    _ => None,
                })
            })
    }

    /// Returns a block, if this model watches it.
    #[must_use]
    pub fn block(&self, cidr: Cidr) -> Option<StoredValue<'_, Cidr, Block>> {
        match self.rest.get_key_value(&Key::Block(cidr))? {
            (Key::Block(cidr), slot) => stored(cidr, slot, |resource| match resource {
                Resource::Block(block) => Some(&**block),
                _ => None,
            }),
            _ => None,
        }
    }

    /// Returns the blocks of this host: those whose affinity is confirmed (or older than affinity states) and
    /// whose value names this host. The revision is the later one of the affinity's last write and the
    /// block's creation.
    pub fn own_blocks(&self) -> impl Iterator<Item = (Cidr, Revision)> {
        self.affinities(&self.node).filter(|affinity| affinity.value.is_confirmed()).filter_map(|affinity| {
            let block = self.block(*affinity.key)?;
            let ours = block.value.host() == Some(self.node.as_str());
            ours.then(|| (*affinity.key, affinity.revision.max(block.created)))
        })
    }

    /// Returns the workload endpoints of a host.
    pub fn workloads<'a>(
        &'a self,
        host: &str,
    ) -> impl Iterator<Item = StoredValue<'a, EndpointKey, WorkloadEndpoint>> + use<'a> {
        let wanted = host.to_owned();
        self.rest
            .range(first_endpoint(host)..)
            .map_while(move |(key, slot)| match key {
                Key::Endpoint(endpoint @ EndpointKey::Workload { host, .. }) if *host == wanted => {
                    Some((endpoint, slot))
                }
                _ => None,
            })
            .filter_map(|(endpoint, slot)| {
                stored(endpoint, slot, |resource| match resource {
                    Resource::WorkloadEndpoint(workload) => Some(&**workload),
                    _ => None,
                })
            })
    }

    /// Returns a workload endpoint of any host.
    #[must_use]
    pub fn workload(&self, key: &EndpointKey) -> Option<StoredValue<'_, Key, WorkloadEndpoint>> {
        self.stored(&Key::Endpoint(key.clone()), |resource| match resource {
            Resource::WorkloadEndpoint(workload) => Some(&**workload),
            _ => None,
        })
    }

    /// Returns the prefixes that this host announces in addition to blocks and pools: its own list of the
    /// family, else the global one.
    #[must_use]
    pub fn advertisements(&self, family: IpFamily) -> &[PrefixAdvertisement] {
        self.own_or_global(&BgpItem::PrefixAdvertisements(family), |resource| match resource {
            Resource::PrefixAdvertisements(list) => Some(list),
            _ => None,
        })
        .map_or(&[], Vec::as_slice)
    }

    /// Returns the BMP stations: this host's own list, else the global one.
    #[must_use]
    pub fn bmp_stations(&self) -> &[BmpStation] {
        self.own_or_global(&BgpItem::BmpStations, |resource| match resource {
            Resource::BmpStations(list) => Some(list),
            _ => None,
        })
        .map_or(&[], Vec::as_slice)
    }

    /// Returns the multipath setting: this host's own, else the global one, else the default.
    #[must_use]
    pub fn multipath(&self) -> Multipath {
        self.own_or_global(&BgpItem::Multipath, |resource| match resource {
            Resource::Multipath(multipath) => Some(multipath),
            _ => None,
        })
        .cloned()
        .unwrap_or_default()
    }

    /// Returns a filter by name: this host's own, else the global one. `None` if neither exists.
    #[must_use]
    pub fn filter(&self, name: &str) -> Option<FilterValue<'_>> {
        let item = BgpItem::Filter(name.to_owned());
        let slot = self.rest.get(&Key::bgp_host(&self.node, item.clone()));
        let slot = slot.or_else(|| self.rest.get(&Key::bgp_global(item)))?;
        Some(match slot.value().and_then(Value::resource).map(|resource| &**resource) {
            Some(Resource::Filter(filter)) => FilterValue::Valid(filter),
            _ => FilterValue::Unreadable,
        })
    }

    /// Returns the names of BIRD filter texts, which Tortie does not run.
    pub fn custom_filters(&self) -> impl Iterator<Item = (&Key, IpFamily, &str)> {
        let first = Key::bgp_global(BgpItem::CustomFilter(IpFamily::V4, String::new()));
        self.rest.range(first..).map_while(|(key, _)| match key {
            Key::Bgp(Scope::Global, BgpItem::CustomFilter(family, name)) => Some((key, *family, &**name)),
            _ => None,
        })
    }

    /// Returns the settings of this host: defaults, overridden by global values, overridden by its own.
    #[must_use]
    pub fn settings(&self) -> Settings {
        self.settings_of(&self.node)
    }

    /// Returns the settings of a host. The model does not keep the own values of other hosts, so for those
    /// they are missing.
    #[must_use]
    pub fn settings_of(&self, host: &str) -> Settings {
        let mut settings = match self.dialect() {
            Dialect::V1 => Settings::default(),
            Dialect::V3 => Settings::calico3(),
        };
        for scope in [Scope::Global, Scope::Host(host.to_owned())] {
            let first = Key::Setting(scope.clone(), String::new());
            let of_scope = self
                .rest
                .range(first..)
                .take_while(|(key, _)| matches!(key, Key::Setting(s, _) if *s == scope));
            for (_, slot) in of_scope {
                if let Some(Resource::Setting(setting)) = slot.value().and_then(Value::resource).map(|r| &**r)
                {
                    settings.apply(setting);
                }
            }
        }
        self.apply_vxlan_settings(host, &mut settings);
        settings
    }

    /// Returns true if workloads of this host may have sources in addition to their addresses, which a Calico 3
    /// store allows with `WorkloadSourceSpoofing`. The own settings of other hosts are not known.
    #[must_use]
    pub fn allows_spoofed_sources(&self, host: &str) -> bool {
        let of = |scope| match &**self.resource(&Key::Setting(scope, "WorkloadSourceSpoofing".to_owned()))? {
            Resource::Setting(Setting::Other { text, .. }) => Some(text.eq_ignore_ascii_case("any")),
            _ => None,
        };
        let setting = of(Scope::Host(host.to_owned())).or_else(|| of(Scope::Global));
        self.dialect() == Dialect::V3 && setting == Some(true)
    }

    /// Returns the configured tunnel address of this host, if any. An address that a host or peer already has
    /// is refused, because assigning it here would divert the packets meant for that host or peer.
    ///
    /// # Errors
    /// The current holder of the address.
    pub fn tunnel_address(&self) -> Result<Option<Ipv4Addr>, String> {
        let Some(addr) = self.settings().ip_in_ip_tunnel_addr else { return Ok(None) };
        self.unless_held(addr.into(), "IpInIpTunnelAddr").map(|()| Some(addr))
    }

    /// Refuses a tunnel address that is the address of a host or peer.
    fn unless_held(&self, addr: IpAddr, setting: &str) -> Result<(), String> {
        let holder = if let Some((host, _)) = self.hosts_by_address(addr).next() {
            Some(format!("it is the address of host {host}"))
        } else {
            self.hosts_by_peer.contains_key(&addr).then(|| "it is the address of a peer".to_owned())
        };
        match holder {
            Some(why) => Err(format!("{setting} {addr} is not used: {why}; correct or delete it")),
            None => Ok(()),
        }
    }

    /// Returns the IPAM configuration, or the defaults if the key is absent.
    #[must_use]
    pub fn ipam_config(&self) -> IpamConfig {
        self.stored(&Key::IpamConfig, |resource| match resource {
            Resource::IpamConfig(config) => Some(config),
            _ => None,
        })
        .map_or_else(IpamConfig::default, |stored| stored.value.clone())
    }

    /// Returns a resource by its key: an endpoint, profile, policy, pool, peer or other value that is not a
    /// small host value.
    #[must_use]
    pub fn resource(&self, key: &Key) -> Option<&Arc<Resource>> {
        self.rest.get(key)?.value()?.resource()
    }

    /// Returns the resources from a key on, in key order. All resources of one kind form one range.
    pub fn resources_from(&self, first: Key) -> impl Iterator<Item = (&Key, &Arc<Resource>)> {
        self.rest.range(first..).filter_map(|(key, slot)| Some((key, slot.value()?.resource()?)))
    }

    /// Returns profiles, tiers, policies and network sets, each kind in key order.
    pub fn policy_resources(&self) -> impl Iterator<Item = (&Key, &Arc<Resource>)> {
        let first = Key::Profile { name: String::new(), part: ProfilePart::Rules };
        let of_v1 = self.resources_from(first).take_while(|(key, _)| {
            matches!(key, Key::Profile { .. } | Key::TierMetadata { .. } | Key::Policy { .. })
        });
        let first = Key::Tier { tier: String::new() };
        let of_v3 = self
            .resources_from(first)
            .take_while(|(key, _)| matches!(key, Key::Tier { .. } | Key::NetworkSet { .. }));
        of_v1.chain(of_v3)
    }

    /// Returns the endpoints of all hosts, workload endpoints first.
    pub fn endpoint_resources(&self) -> impl Iterator<Item = (&EndpointKey, &Arc<Resource>)> {
        self.resources_from(first_endpoint("")).map_while(|(key, resource)| match key {
            Key::Endpoint(endpoint) => Some((endpoint, resource)),
            _ => None,
        })
    }

    /// Returns the unknown names of settings and JSON members, by key. Endpoints and blocks are not checked,
    /// because there are many.
    pub fn unread_names(&self) -> impl ExactSizeIterator<Item = (&Key, &[String])> {
        self.unread_names.iter().map(|(key, names)| (key, names.as_slice()))
    }

    /// Returns true if the current value of a key cannot be parsed; an earlier value may still be in force.
    #[must_use]
    pub fn is_unreadable(&self, key: &Key) -> bool {
        let spelled = self.slot(key).into_iter().flat_map(Slot::spellings);
        spelled.into_iter().any(|(spelling, _)| self.invalid_keys.contains_key(&*spelling.text(key)))
    }

    /// Returns the revision of the last write of the value in force.
    #[must_use]
    pub fn revision_of(&self, key: &Key) -> Option<Revision> {
        Some(self.slot(key)?.entry()?.revision)
    }

    /// Returns this host's value of an item, else the global one.
    fn own_or_global<T>(&self, item: &BgpItem, pick: impl Fn(&Resource) -> Option<&T>) -> Option<&T> {
        let under = |key: &Key| pick(self.resource(key)?);
        under(&Key::bgp_host(&self.node, item.clone())).or_else(|| under(&Key::bgp_global(item.clone())))
    }

    fn global(&self, item: BgpItem) -> Option<&Value> {
        self.rest.get(&Key::bgp_global(item))?.value()
    }

    fn stored<T>(
        &self,
        key: &Key,
        pick: impl FnOnce(&Resource) -> Option<&T>,
    ) -> Option<StoredValue<'_, Key, T>> {
        let (key, slot) = self.rest.get_key_value(key)?;
        stored(key, slot, pick)
    }
}

/// Returns the first key of a host's endpoints, or of all endpoints if `host` is empty.
fn first_endpoint(host: &str) -> Key {
    let (orchestrator, workload, endpoint) = (String::new(), String::new(), String::new());
    Key::Endpoint(EndpointKey::Workload { host: host.to_owned(), orchestrator, workload, endpoint })
}

/// State of a filter key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilterValue<'a> {
    /// Last value that could be parsed.
    Valid(&'a Filter),
    /// No value of the key could ever be parsed.
    Unreadable,
}

fn stored<'a, K: ?Sized, T>(
    key: &'a K,
    slot: &'a Slot,
    pick: impl FnOnce(&'a Resource) -> Option<&'a T>,
) -> Option<StoredValue<'a, K, T>> {
    let entry = slot.entry()?;
    let value = pick(entry.value.as_ref()?.resource()?)?;
    Some(StoredValue { key, value, revision: entry.revision, created: entry.created })
}
