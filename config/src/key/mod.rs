//! Keys of the data model: key text <-> typed [`Key`].
//!
//! What it does: knows every path of the data model below `/calico/`, the escaping of names, and the older paths that
//! the specification's text still names. What it does not: it knows no value (see [`crate::resource`]) and decides
//! nothing about which of an old and a new key wins; it only says which is which ([`Key::is_legacy`], [`Key::canonical`]).
//!
//! ```text
//!  text --parse.rs--> Key --text.rs--> text        escape.rs: `/` <-> `%2f`, `%` <-> `%25` in names
//! ```

mod escape;
mod parse;
pub mod prefix;
#[cfg(test)]
pub(crate) mod tests;
mod text;

use std::net::IpAddr;

pub use escape::{escape, unescape};
pub use parse::KeyError;

use tortie_net::Cidr;

/// The root of the data model, with a slash at the end.
pub const ROOT: &str = "/calico/";

/// The BGP port that a peer key without a port means.
pub const BGP_PORT: u16 = 179;

/// A key of the data model. Names are unescaped and compare as bytes.
///
/// `Key::parse(text)` and `to_string()` are inverse for every key whose text is canonical (lower-case `%2f` and `%25`,
/// addresses in their shortest form); another spelling of a key that is already stored is read as the same key.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// `v1/Ready`.
    Ready,
    /// `v1/config/<Name>`, or `v1/host/<h>/config/<Name>`: a parameter of the agent.
    Setting(Scope, String),
    /// `v1/host/<h>/config/marker`: of the Python era, read past and never written.
    Marker {
        /// The host.
        host: String,
    },
    /// `v1/host/<h>/bird_ip`.
    BirdIp {
        /// The host.
        host: String,
    },
    /// `v1/host/<h>/metadata`.
    HostMetadata {
        /// The host.
        host: String,
    },
    /// `v1/host/<h>/orchestrator_refs`.
    OrchestratorRefs {
        /// The host.
        host: String,
    },
    /// `v1/host/<h>/workload/<orch>/<wl>/endpoint/<ep>` or `v1/host/<h>/endpoint/<ep>`.
    Endpoint(EndpointKey),
    /// `v1/policy/profile/<p>/{rules,tags,labels}`.
    Profile {
        /// The profile.
        name: String,
        /// Which of its three values.
        part: ProfilePart,
    },
    /// `v1/policy/tier/<t>/metadata`.
    TierMetadata {
        /// The tier.
        tier: String,
    },
    /// `v1/policy/tier/<t>/policy/<n>`.
    Policy {
        /// The tier, usually `default`.
        tier: String,
        /// The policy.
        name: String,
    },
    /// `v1/ipam/v{4,6}/pool/<cidr>`.
    Pool(Cidr),
    /// `ipam/v2/config`.
    IpamConfig,
    /// `ipam/v2/assignment/ipv{4,6}/block/<cidr>`.
    Block(Cidr),
    /// `ipam/v2/handle/<id>`.
    Handle(String),
    /// `ipam/v2/host/<h>/ipv{4,6}/block/<cidr>`.
    Affinity {
        /// The host that the block belongs to.
        host: String,
        /// The block.
        block: Cidr,
    },
    /// `bgp/v1/global/...` or `bgp/v1/host/<h>/...`.
    Bgp(Scope, BgpItem),
    /// `felix/v1/host/<h>/...`: what an agent reports in Calico's form.
    Felix {
        /// The host.
        host: String,
        /// What is reported.
        item: FelixItem,
    },
    /// `tortie/v1/schema`: who may follow and write the store.
    Schema,
    /// `tortie/v1/status/<h>`, leased.
    TortieStatus {
        /// The host.
        host: String,
    },
    /// `tortie/v1/host/<h>/docker/...`: what the Docker drivers of a host remember.
    Docker {
        /// The host.
        host: String,
        /// What is remembered.
        item: DockerItem,
    },
    /// A key under one of the older paths of the specification's text.
    Legacy(LegacyKey),
    /// Any other key below `/calico/`; the full text. Kept, never an error.
    Unknown(String),
}

/// Whether a value is for every host or for one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// For every host that has no value of its own.
    Global,
    /// For this host.
    Host(String),
}

impl Scope {
    /// The host, if this is one's own value.
    #[must_use]
    pub fn host(&self) -> Option<&str> {
        match self {
            Self::Global => None,
            Self::Host(host) => Some(host),
        }
    }
}

/// IPv4 or IPv6, where a key or a value belongs to one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IpFamily {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl IpFamily {
    /// The family of an address.
    #[must_use]
    pub fn of(addr: IpAddr) -> Self {
        if addr.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// The family of a prefix.
    #[must_use]
    pub fn of_cidr(cidr: &Cidr) -> Self {
        if cidr.is_v4() { Self::V4 } else { Self::V6 }
    }

    /// `v4` or `v6`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V4 => "v4",
            Self::V6 => "v6",
        }
    }
}

/// Names one endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EndpointKey {
    /// The interface of a workload.
    Workload {
        /// The host that it runs on.
        host: String,
        /// `cni`, `k8s`, `libnetwork`, `kurma`, ...
        orchestrator: String,
        /// The orchestrator's name of the workload.
        workload: String,
        /// The endpoint, often an interface name inside the workload.
        endpoint: String,
    },
    /// An interface of a host.
    Host {
        /// The host.
        host: String,
        /// The endpoint.
        endpoint: String,
    },
}

/// As the text of its key, so that it may be the key of a map.
impl serde::Serialize for EndpointKey {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&Key::Endpoint(self.clone()))
    }
}

impl<'de> serde::Deserialize<'de> for EndpointKey {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(from)?;
        match Key::parse(&text) {
            Ok(Key::Endpoint(key)) => Ok(key),
            Ok(_) => Err(serde::de::Error::custom(format!("{text} is not the key of an endpoint"))),
            Err(error) => Err(serde::de::Error::custom(error)),
        }
    }
}

impl EndpointKey {
    /// The host that the endpoint is on.
    #[must_use]
    pub fn host(&self) -> &str {
        match self {
            Self::Workload { host, .. } | Self::Host { host, .. } => host,
        }
    }
}

/// The three values of a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ProfilePart {
    /// Its rules.
    Rules,
    /// Its tags.
    Tags,
    /// Labels that its endpoints inherit.
    Labels,
}

/// The values of `bgp/v1`. Not each exists in both scopes: see [`BgpItem::allowed_in`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BgpItem {
    /// `as_num`.
    AsNum,
    /// `node_mesh` (global).
    NodeMesh,
    /// `loglevel`.
    LogLevel,
    /// `listen_port`.
    ListenPort,
    /// `prefix_advertisements/ip_v{4,6}`; the host's list replaces the global one.
    PrefixAdvertisements(IpFamily),
    /// `bmp_stations`: Tortie's; the host's list replaces the global one.
    BmpStations,
    /// `multipath`: Tortie's; the host's value replaces the global one.
    Multipath,
    /// `peer_v{4,6}/<ip>` or `.../<ip>-<port>`.
    Peer {
        /// The peer's address.
        addr: IpAddr,
        /// The port in the key, never 0 and never 179.
        port: Option<u16>,
    },
    /// `peer_interface/<interface>`: Tortie's unnumbered peers, whose link-local address is found by router
    /// advertisements. Beside `peer_v6`, because every reader of Calico takes what stands there for an address.
    InterfacePeer(String),
    /// `peer_range/<address>-<length>`: Tortie's dynamic neighbours, the addresses from which sessions are taken although no peer
    /// is configured there.
    PeerRange(Cidr),
    /// `custom_filters/v{4,6}/<any>` (global): BIRD text, reported as unsupported.
    CustomFilter(IpFamily, String),
    /// `filters/<name>`: Tortie's filters.
    Filter(String),
    /// `ip_addr_v{4,6}` (host).
    Address(IpFamily),
    /// `network_v{4,6}` (host).
    Network(IpFamily),
    /// `rr_cluster_id` (host).
    RrClusterId,
}

impl BgpItem {
    /// A peer; ports 0 and 179 are left out of the key.
    #[must_use]
    pub fn peer(addr: IpAddr, port: u16) -> Self {
        Self::Peer { addr, port: (port != 0 && port != BGP_PORT).then_some(port) }
    }

    /// Whether the data model has this value in this scope.
    #[must_use]
    pub fn allowed_in(&self, scope: &Scope) -> bool {
        match self {
            Self::NodeMesh | Self::CustomFilter(..) => matches!(scope, Scope::Global),
            Self::Address(_) | Self::Network(_) | Self::RrClusterId => matches!(scope, Scope::Host(_)),
            Self::AsNum
            | Self::LogLevel
            | Self::ListenPort
            | Self::PrefixAdvertisements(_)
            | Self::BmpStations
            | Self::Multipath
            | Self::Peer { .. }
            | Self::InterfacePeer(_)
            | Self::PeerRange(_)
            | Self::Filter(_) => true,
        }
    }
}

/// What an agent writes in Calico's form.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FelixItem {
    /// `status`, with a time to live.
    Status,
    /// `last_reported_status`, the same value without one.
    LastReportedStatus,
    /// `workload/<orch>/<wl>/endpoint/<ep>`.
    Workload {
        /// The orchestrator.
        orchestrator: String,
        /// The workload.
        workload: String,
        /// The endpoint.
        endpoint: String,
    },
    /// `endpoint/<ep>`.
    HostEndpoint {
        /// The endpoint.
        endpoint: String,
    },
}

/// What the Docker drivers of a host remember. IPAM's part is under the name by which dockerd knows the driver.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DockerItem {
    /// `driver/<name>/epoch`: how often a dockerd has introduced itself.
    Epoch {
        /// The driver.
        driver: String,
    },
    /// `driver/<name>/pool/<id>`: a pool that networks use.
    Pool {
        /// The driver.
        driver: String,
        /// The pool's id in the protocol.
        id: String,
    },
    /// `address/<space>/<address>`: an address that was given out.
    Address {
        /// The address space.
        space: String,
        /// The address.
        addr: IpAddr,
    },
    /// `network/<id>`: a network of the network driver.
    Network(String),
    /// `endpoint/<id>`: an endpoint of the network driver.
    Endpoint(String),
    /// `<name>/...`: a key of IPAM for an address space of this host alone, whose name is none of those above.
    Space {
        /// The address space.
        name: String,
        /// The rest of the key, as it is written.
        rest: String,
    },
}

impl DockerItem {
    /// Names that no address space can have, because they stand in the same place.
    pub const RESERVED: [&str; 4] = ["driver", "address", "network", "endpoint"];
}

/// A key under an older path; [`LegacyKey::canonical`] is what it means.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LegacyKey(Box<Key>);

impl LegacyKey {
    /// The same thing under today's path.
    #[must_use]
    pub fn canonical(&self) -> &Key {
        &self.0
    }

    /// The older key of `key`, where there is one: the mesh, a peer without a port in its key, a handle.
    #[must_use]
    pub fn of(key: &Key) -> Option<Self> {
        let has_old = match key {
            Key::Handle(_) | Key::Bgp(Scope::Global, BgpItem::NodeMesh) => true,
            Key::Bgp(_, BgpItem::Peer { port, .. }) => port.is_none(),
            _ => false,
        };
        has_old.then(|| Self(Box::new(key.clone())))
    }
}

impl Key {
    /// What the key means, under today's path: itself unless it [is a legacy one](Key::is_legacy).
    #[must_use]
    pub fn canonical(&self) -> &Self {
        match self {
            Self::Legacy(old) => old.canonical(),
            key => key,
        }
    }

    /// Whether this is one of the older paths; where both exist, the new key wins.
    #[must_use]
    pub fn is_legacy(&self) -> bool {
        matches!(self, Self::Legacy(_))
    }

    /// The canonical text: the same as `to_string()`.
    #[must_use]
    pub fn to_text(&self) -> String {
        self.to_string()
    }

    /// The host that the key belongs to, for everything that vanishes with a host.
    #[must_use]
    pub fn host(&self) -> Option<&str> {
        match self.canonical() {
            Self::Setting(scope, _) | Self::Bgp(scope, _) => scope.host(),
            Self::Marker { host }
            | Self::BirdIp { host }
            | Self::HostMetadata { host }
            | Self::OrchestratorRefs { host }
            | Self::Affinity { host, .. }
            | Self::Felix { host, .. }
            | Self::Docker { host, .. }
            | Self::TortieStatus { host } => Some(host),
            Self::Endpoint(endpoint) => Some(endpoint.host()),
            _ => None,
        }
    }

    /// A host's value of `bgp/v1`.
    #[must_use]
    pub fn bgp_host(host: &str, item: BgpItem) -> Self {
        Self::Bgp(Scope::Host(host.to_owned()), item)
    }

    /// A global value of `bgp/v1`.
    #[must_use]
    pub fn bgp_global(item: BgpItem) -> Self {
        Self::Bgp(Scope::Global, item)
    }
}
