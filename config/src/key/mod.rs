//! Keys of Calico's data model: conversion between key text and typed [`Key`].
//!
//! This module knows every path of the data model below `/calico/`, the escaping of names, and the older
//! paths that the text of the specification still uses. It does not parse values (see [`crate::resource`]),
//! and does not decide between an old and a new key; it only distinguishes them ([`Key::is_legacy`],
//! [`Key::canonical`]).
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

/// Root of the data model, with a trailing slash.
pub const ROOT: &str = "/calico/";

/// BGP port of a peer key without a port.
pub const BGP_PORT: u16 = 179;

/// A key of the data model. Names are unescaped and compare as bytes.
///
/// `Key::parse(text)` and `to_string()` are inverse for every key with canonical text (lower-case `%2f` and
/// `%25`, addresses in their shortest form). Another spelling of a stored key is parsed as the same key.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// `v1/Ready`: readiness of the data model.
    Ready,
    /// `v1/config/<Name>`, or `v1/host/<h>/config/<Name>`: a setting of the agent.
    Setting(Scope, String),
    /// `v1/host/<h>/config/marker`: written by the Python version of Calico; ignored and never written.
    Marker {
        /// Host name.
        host: String,
    },
    /// `v1/host/<h>/bird_ip`: IPv4 address of the host.
    BirdIp {
        /// Host name.
        host: String,
    },
    /// `v1/host/<h>/metadata`: marks that the host exists.
    HostMetadata {
        /// Host name.
        host: String,
    },
    /// `v1/host/<h>/orchestrator_refs`: names of the host in orchestrators.
    OrchestratorRefs {
        /// Host name.
        host: String,
    },
    /// `v1/host/<h>/workload/<orch>/<wl>/endpoint/<ep>` or `v1/host/<h>/endpoint/<ep>`: an endpoint.
    Endpoint(EndpointKey),
    /// `v1/policy/profile/<p>/{rules,tags,labels}`: a part of a profile.
    Profile {
        /// Profile name.
        name: String,
        /// Part of the profile that the key holds.
        part: ProfilePart,
    },
    /// `v1/policy/tier/<t>/metadata`: the order of a policy tier.
    TierMetadata {
        /// Tier name.
        tier: String,
    },
    /// `v1/policy/tier/<t>/policy/<n>`: a policy.
    Policy {
        /// Tier name, usually `default`.
        tier: String,
        /// Policy name.
        name: String,
    },
    /// `v1/ipam/v{4,6}/pool/<cidr>`: an address pool.
    Pool(Cidr),
    /// `ipam/v2/config`: the IPAM configuration.
    IpamConfig,
    /// `ipam/v2/assignment/ipv{4,6}/block/<cidr>`: an allocation block.
    Block(Cidr),
    /// `ipam/v2/handle/<id>`: an allocation handle.
    Handle(String),
    /// `ipam/v2/host/<h>/ipv{4,6}/block/<cidr>`: the affinity of a block to a host.
    Affinity {
        /// Host that claims the block.
        host: String,
        /// Prefix of the block.
        block: Cidr,
    },
    /// `bgp/v1/global/...` or `bgp/v1/host/<h>/...`: a BGP value, global or of a host.
    Bgp(Scope, BgpItem),
    /// `felix/v1/host/<h>/...`, or in Calico 3's form `felix/v2/<region>/host/<h>/...`: status reports of an
    /// agent in Calico's format.
    Felix {
        /// Element of the key for the region ([`prefix::region`]); `None` for v1's form.
        region: Option<String>,
        /// Host name.
        host: String,
        /// Kind of report.
        item: FelixItem,
    },
    /// `tortie/v1/schema`: schema version that a program must support to follow and write the store.
    Schema,
    /// `tortie/v1/status/<h>`: leased status of a host.
    TortieStatus {
        /// Host name.
        host: String,
    },
    /// `tortie/v1/host/<h>/docker/...`: state of the Docker drivers of a host.
    Docker {
        /// Host name.
        host: String,
        /// Kind of state.
        item: DockerItem,
    },
    /// `tortie/v1/tier/<name>`: a tier of Calico 3 with its end action. Like the five below it exists in the
    /// projection of a Calico 3 store only, and is never written.
    Tier {
        /// Tier name.
        tier: String,
    },
    /// `tortie/v1/globalnetworkset/<name>` or `tortie/v1/networkset/<namespace>/<name>`: labelled networks.
    NetworkSet {
        /// Namespace; `None` for a global set.
        namespace: Option<String>,
        /// Name of the set.
        name: String,
    },
    /// `tortie/v1/bgpfilter/<name>`: a route filter of Calico 3.
    BgpFilter(String),
    /// `tortie/v1/ipreservation/<name>`: addresses that automatic assignment skips.
    IpReservation(String),
    /// `tortie/v1/bgpconfiguration`: BGP values of this host for which v1 has no key.
    BgpConfiguration,
    /// `tortie/v1/livemigration/<namespace>/<name>`: the move of a workload between hosts.
    LiveMigration {
        /// Namespace.
        namespace: String,
        /// Name of the migration.
        name: String,
    },
    /// A key under one of the older paths in the text of the specification.
    Legacy(LegacyKey),
    /// Any other key below `/calico/`, as full text. It is kept and never an error.
    Unknown(String),
}

/// Scope of a value: all hosts or one host.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// Applies to every host that has no value of its own.
    Global,
    /// Applies to the named host.
    Host(String),
}

impl Scope {
    /// Returns the host of a host value; `None` for a global value.
    #[must_use]
    pub fn host(&self) -> Option<&str> {
        match self {
            Self::Global => None,
            Self::Host(host) => Some(host),
        }
    }
}

/// Address family of a key or value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum IpFamily {
    /// Internet Protocol version 4.
    V4,
    /// Internet Protocol version 6.
    V6,
}

impl IpFamily {
    /// Returns the family of an address.
    #[must_use]
    pub fn of(addr: IpAddr) -> Self {
        if addr.is_ipv4() { Self::V4 } else { Self::V6 }
    }

    /// Returns the family of a prefix.
    #[must_use]
    pub fn of_cidr(cidr: &Cidr) -> Self {
        if cidr.is_v4() { Self::V4 } else { Self::V6 }
    }

    /// Returns `v4` or `v6`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V4 => "v4",
            Self::V6 => "v6",
        }
    }
}

/// Identifies an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EndpointKey {
    /// A workload endpoint.
    Workload {
        /// Host that the workload runs on.
        host: String,
        /// Orchestrator: `cni`, `k8s`, `libnetwork`, `kurma` or another.
        orchestrator: String,
        /// Name of the workload in the orchestrator.
        workload: String,
        /// Name of the endpoint, often an interface name inside the workload.
        endpoint: String,
    },
    /// A host endpoint.
    Host {
        /// Host name.
        host: String,
        /// Name of the endpoint.
        endpoint: String,
    },
}

/// Serialized as the text of its key, so that it can be a map key in JSON.
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
    /// Returns the host that the endpoint is on.
    #[must_use]
    pub fn host(&self) -> &str {
        match self {
            Self::Workload { host, .. } | Self::Host { host, .. } => host,
        }
    }
}

/// Part of a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ProfilePart {
    /// Rules of the profile.
    Rules,
    /// Tags of the profile.
    Tags,
    /// Labels that endpoints inherit from the profile.
    Labels,
}

/// Values below `bgp/v1`. Some exist in one scope only; see [`BgpItem::allowed_in`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BgpItem {
    /// `as_num`: local AS number.
    AsNum,
    /// `node_mesh` (global): the node-to-node mesh.
    NodeMesh,
    /// `loglevel`: BGP log level.
    LogLevel,
    /// `listen_port`: BGP listen port.
    ListenPort,
    /// `prefix_advertisements/ip_v{4,6}`: prefixes to announce; the host's list replaces the global one.
    PrefixAdvertisements(IpFamily),
    /// `bmp_stations`: BMP stations, a key of Tortie; the host's list replaces the global one.
    BmpStations,
    /// `multipath`: multipath setting, a key of Tortie; the host's value replaces the global one.
    Multipath,
    /// `peer_v{4,6}/<ip>` or `.../<ip>-<port>`: a peer with a configured address.
    Peer {
        /// Address of the peer.
        addr: IpAddr,
        /// Port in the key, never 0 or 179.
        port: Option<u16>,
    },
    /// `peer_interface/<interface>`: unnumbered peers, keys of Tortie. Router advertisements provide their
    /// link-local address. Separate from `peer_v6`, because readers of Calico parse an address there.
    InterfacePeer(String),
    /// `peer_range/<address>-<length>`: prefixes of dynamic neighbours, keys of Tortie. BGP connections from
    /// them are accepted without a configured peer.
    PeerRange(Cidr),
    /// `custom_filters/v{4,6}/<any>` (global): BIRD filter text, reported as unsupported.
    CustomFilter(IpFamily, String),
    /// `filters/<name>`: route filters of Tortie.
    Filter(String),
    /// `ip_addr_v{4,6}` (host): BGP address of the host.
    Address(IpFamily),
    /// `network_v{4,6}` (host): connected network of that address.
    Network(IpFamily),
    /// `rr_cluster_id` (host): cluster id of a route reflector.
    RrClusterId,
}

impl BgpItem {
    /// Returns the item of a peer; ports 0 and 179 are omitted from the key.
    #[must_use]
    pub fn peer(addr: IpAddr, port: u16) -> Self {
        Self::Peer { addr, port: (port != 0 && port != BGP_PORT).then_some(port) }
    }

    /// Returns true if the data model defines this value in the scope.
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

/// Status reports in Calico's format.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FelixItem {
    /// `status`: agent status, with a time to live.
    Status,
    /// `last_reported_status`: the same value without a time to live.
    LastReportedStatus,
    /// `workload/<orch>/<wl>/endpoint/<ep>`: status of a workload endpoint.
    Workload {
        /// Orchestrator name.
        orchestrator: String,
        /// Workload name.
        workload: String,
        /// Endpoint name.
        endpoint: String,
    },
    /// `endpoint/<ep>`: status of a host endpoint.
    HostEndpoint {
        /// Endpoint name.
        endpoint: String,
    },
}

/// State of the Docker drivers of a host. The part of IPAM uses the driver name registered with dockerd.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DockerItem {
    /// `driver/<name>/epoch`: number of times that a dockerd has registered with the driver.
    Epoch {
        /// Driver name.
        driver: String,
    },
    /// `driver/<name>/pool/<id>`: a pool that Docker networks use.
    Pool {
        /// Driver name.
        driver: String,
        /// Pool id in Docker's protocol.
        id: String,
    },
    /// `address/<space>/<address>`: an address allocated to Docker.
    Address {
        /// Address space of Docker's protocol.
        space: String,
        /// Allocated address.
        addr: IpAddr,
    },
    /// `network/<id>`: a network of the network driver.
    Network(String),
    /// `endpoint/<id>`: an endpoint of the network driver.
    Endpoint(String),
    /// `<name>/...`: an IPAM key of a host-local address space, whose name is none of the above.
    Space {
        /// Name of the address space.
        name: String,
        /// Remaining path, as written.
        rest: String,
    },
}

impl DockerItem {
    /// Names that are reserved at this place and unavailable for address spaces.
    pub const RESERVED: [&str; 4] = ["driver", "address", "network", "endpoint"];
}

/// A key under an older path; [`LegacyKey::canonical`] returns the current one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LegacyKey(Box<Key>);

impl LegacyKey {
    /// Returns the corresponding key under the current path.
    #[must_use]
    pub fn canonical(&self) -> &Key {
        &self.0
    }

    /// Returns the older key of `key`, if there is one: for the mesh, a peer without a port in its key, and a
    /// handle.
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
    /// Returns the key under the current path: the key itself unless it [is a legacy one](Key::is_legacy).
    #[must_use]
    pub fn canonical(&self) -> &Self {
        match self {
            Self::Legacy(old) => old.canonical(),
            key => key,
        }
    }

    /// Returns true for an older path. If both paths exist, the current key takes precedence.
    #[must_use]
    pub fn is_legacy(&self) -> bool {
        matches!(self, Self::Legacy(_))
    }

    /// Returns the canonical text, the same as `to_string()`.
    #[must_use]
    pub fn to_text(&self) -> String {
        self.to_string()
    }

    /// Returns the host that the key belongs to, for keys that are deleted together with a host.
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

    /// Returns the key of a host's value below `bgp/v1`.
    #[must_use]
    pub fn bgp_host(host: &str, item: BgpItem) -> Self {
        Self::Bgp(Scope::Host(host.to_owned()), item)
    }

    /// Returns the key of a global value below `bgp/v1`.
    #[must_use]
    pub fn bgp_global(item: BgpItem) -> Self {
        Self::Bgp(Scope::Global, item)
    }
}
