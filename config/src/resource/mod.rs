//! Values of the data model: conversion between value bytes and typed [`Resource`].
//!
//! It parses the formats of all Calico versions, writes the newest v1 format, keeps unknown fields, and
//! reports field, text and next step if a value cannot be parsed. It handles one value at a time: references
//! to other values, such as profiles, and the precedence of host over global values belong to the model. It
//! opens no files.
//!
//! ```text
//!  (Key, bytes) --Resource::parse--> Resource --to_value--> bytes
//!                    |                                        json, text, duration, names: shared parts
//!                    +-- one file per resource
//! ```

mod advertisement;
mod affinity;
mod asn;
mod attribute;
mod bgp_configuration;
mod bgp_filter;
mod block;
mod bmp;
pub(crate) mod duration;
mod endpoint;
mod error;
mod filter;
mod filter_community;
mod filter_match;
mod filter_set;
mod handle;
mod host;
mod interface_regex;
mod ipam_config;
mod json;
mod live_migration;
mod mesh;
mod multipath;
mod names;
mod network_set;
mod peer;
mod peer_auth;
mod peer_options;
mod policy;
mod pool;
mod port_name;
mod rule;
mod rule_match;
mod schema;
mod setting;
mod setting_value;
mod status;
#[cfg(test)]
mod tests;
mod text;

use std::net::{IpAddr, Ipv4Addr};

pub use advertisement::{Community, PrefixAdvertisement};
pub use affinity::{Affinity, AffinityState};
pub use asn::{Asn, PeerAs};
pub use attribute::Attribute;
pub use bgp_configuration::{BgpConfiguration, NORMAL_PRIORITY, ProgramClusterRoutes};
pub use bgp_filter::{
    BgpFilter, BgpFilterAction, BgpFilterOperation, BgpFilterRule, BgpPeerType, InterfacePattern,
    PRIORITY_MAX, PrefixCondition,
};
pub use block::{BLOCK_LEN_V4, BLOCK_LEN_V6, BLOCK_SHORTEST_V4, BLOCK_SHORTEST_V6, Block, BlockAffinity};
pub use bmp::{BmpPolicy, BmpStation};
pub use endpoint::{HostEndpoint, Nat, WorkloadEndpoint};
pub use error::ValueError;
pub use filter::{Filter, FilterDefault, FilterRule, FilterThen, RULES_MAX};
pub use filter_community::{CommunityKind, CommunityPattern};
pub use filter_match::{
    AsRange, CommunityMatch, FilterMatch, PathElement, PathMatch, PathPattern, PrefixRange, RouteSource,
};
pub use filter_set::{CommunityChange, FilterSet, MedChange, NextHopChange, PREPEND_MAX, Prepend};
pub use handle::Handle;
pub use host::OrchestratorRef;
pub use interface_regex::InterfaceRegex;
pub use ipam_config::IpamConfig;
pub use json::Extra;
pub(crate) use json::{Fields, UnreadMember, recorded};
pub use live_migration::{LiveMigration, MigrationTarget, MovingEndpoint};
pub use mesh::NodeMesh;
pub use multipath::Multipath;
pub(crate) use names::is_label_name;
pub use names::{InterfaceName, Labels, MacAddr};
pub use network_set::NetworkSet;
pub use peer::Peer;
pub use peer_auth::{AoAlgorithm, Password, SECRETS_DIR, TcpAo};
pub use peer_options::{AddPath, Bfd, MaxPrefixes, NextHopMode, Role, SourceAddr};
pub use policy::{EndAction, Order, Policy, PolicyTypes, Rules, Tier, TierMetadata};
pub use pool::{AllowedUse, AssignmentMode, Ipip, IpipMode, Pool};
pub use port_name::{EndpointPort, PortName};
pub use rule::{Action, Rule, Side};
pub use rule_match::{Icmp, PortRange, Protocol};
pub use schema::StoreSchema;
pub use setting::{Setting, Settings};
pub use setting_value::{AllowAction, Failsafe, HostAction, InsertMode, MarkMask, Region, Severity};
pub use status::{AgentStatus, EndpointState, EndpointStatus};
pub use text::BgpLogLevel;

use crate::dialect::Dialect;
use crate::key::{BgpItem, DockerItem, EndpointKey, FelixItem, Key, ProfilePart};
use tortie_net::Cidr;

/// A value of the data model; the key determines its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resource {
    /// `Ready`: true if the value is exactly `true`.
    Ready(bool),
    /// A setting of the agent.
    Setting(Setting),
    /// IPv4 address of a host as agents of other hosts use it.
    BirdIp(Option<Ipv4Addr>),
    /// Marks that a host exists.
    HostMetadata(Extra),
    /// Names of a host in orchestrators.
    OrchestratorRefs(Vec<OrchestratorRef>),
    /// A workload endpoint.
    WorkloadEndpoint(Box<WorkloadEndpoint>),
    /// A host endpoint.
    HostEndpoint(Box<HostEndpoint>),
    /// Rules of a profile.
    ProfileRules(Rules),
    /// Tags of a profile.
    ProfileTags(Vec<String>),
    /// Labels of a profile.
    ProfileLabels(Labels),
    /// Order of a tier.
    TierMetadata(TierMetadata),
    /// A tier of Calico 3.
    Tier(Tier),
    /// Labelled networks of Calico 3.
    NetworkSet(Box<NetworkSet>),
    /// A policy with its selector and rules.
    Policy(Box<Policy>),
    /// An address pool.
    Pool(Pool),
    /// The IPAM configuration.
    IpamConfig(IpamConfig),
    /// An allocation block.
    Block(Box<Block>),
    /// An allocation handle.
    Handle(Handle),
    /// Affinity of a block to a host.
    Affinity(Affinity),
    /// Local AS number, global or of a host.
    AsNum(Asn),
    /// The node-to-node mesh.
    NodeMesh(NodeMesh),
    /// BGP log level.
    LogLevel(BgpLogLevel),
    /// BGP listen port.
    ListenPort(u16),
    /// Prefixes to announce, of one family.
    PrefixAdvertisements(Vec<PrefixAdvertisement>),
    /// BMP stations.
    BmpStations(Vec<BmpStation>),
    /// Multipath setting.
    Multipath(Multipath),
    /// A BGP peer, unnumbered peer or peer range.
    Peer(Box<Peer>),
    /// BIRD filter text, which Tortie does not run.
    CustomFilter(String),
    /// A route filter of Tortie.
    Filter(Box<Filter>),
    /// A route filter of Calico 3.
    BgpFilter(Box<BgpFilter>),
    /// BGP settings of Calico 3.
    BgpConfiguration(Box<BgpConfiguration>),
    /// A live migration of Calico 3.
    LiveMigration(Box<LiveMigration>),
    /// BGP address of a host; `None` (an empty value) for no BGP in this family.
    Address(Option<IpAddr>),
    /// Connected network of a host's address.
    Network(Option<Cidr>),
    /// Cluster id of a host; `None` (an empty value) if it is not a route reflector.
    RrClusterId(Option<Ipv4Addr>),
    /// Status report of an agent.
    AgentStatus(AgentStatus),
    /// Status report on an endpoint.
    EndpointStatus(EndpointStatus),
    /// Schema version that the store requires.
    Schema(StoreSchema),
    /// Tortie's status of a host.
    TortieStatus(Extra),
    /// State of a Docker driver.
    Docker(Extra),
    /// Value of a key that is not parsed, kept as it is.
    Opaque(Vec<u8>),
}

impl Resource {
    /// Parses the value of `key` in a v1 store. An older key has the same value as the current one.
    ///
    /// # Errors
    /// If the value is not valid for the key; the error contains the field, the text found and the text
    /// expected.
    pub fn parse(key: &Key, bytes: &[u8]) -> Result<Self, ValueError> {
        Self::parse_in(Dialect::V1, key, bytes)
    }

    /// Parses the value of `key` in a v1 store, or in the projection of a Calico 3 store: there selectors
    /// have the grammar of Calico 3, and ports may have names.
    ///
    /// # Errors
    /// As [`Resource::parse`].
    pub fn parse_in(dialect: Dialect, key: &Key, bytes: &[u8]) -> Result<Self, ValueError> {
        Ok(match key.canonical() {
            Key::Ready => Self::Ready(bytes == b"true"),
            Key::Setting(_, name) => Self::Setting(Setting::parse(name, bytes)?),
            Key::BirdIp { .. } => Self::BirdIp(text::ipv4(bytes)?),
            Key::HostMetadata { .. } => Self::HostMetadata(policy::parse_object(bytes)?),
            Key::OrchestratorRefs { .. } => Self::OrchestratorRefs(OrchestratorRef::parse_list(bytes)?),
            Key::Endpoint(EndpointKey::Workload { .. }) => {
                Self::WorkloadEndpoint(Box::new(WorkloadEndpoint::parse_in(dialect, bytes)?))
            }
            Key::Endpoint(EndpointKey::Host { .. }) => {
                Self::HostEndpoint(Box::new(HostEndpoint::parse_in(dialect, bytes)?))
            }
            Key::Profile { part: ProfilePart::Rules, .. } => {
                Self::ProfileRules(Rules::parse_in(dialect, bytes)?)
            }
            Key::Profile { part: ProfilePart::Tags, .. } => Self::ProfileTags(policy::parse_tags(bytes)?),
            Key::Profile { part: ProfilePart::Labels, .. } => {
                Self::ProfileLabels(policy::parse_labels(bytes)?)
            }
            Key::TierMetadata { .. } => Self::TierMetadata(TierMetadata::parse(bytes)?),
            Key::Tier { .. } => Self::Tier(Tier::parse(bytes)?),
            Key::NetworkSet { .. } => Self::NetworkSet(Box::new(NetworkSet::parse(bytes)?)),
            Key::Policy { .. } => Self::Policy(Box::new(Policy::parse_in(dialect, bytes)?)),
            Key::Pool(cidr) => Self::Pool(Pool::parse(*cidr, bytes)?),
            Key::IpamConfig => Self::IpamConfig(IpamConfig::parse(bytes)?),
            Key::Block(cidr) => Self::Block(Box::new(Block::parse(*cidr, bytes)?)),
            Key::Handle(id) => Self::Handle(Handle::parse(id, bytes)?),
            Key::Affinity { .. } => Self::Affinity(Affinity::parse(bytes)?),
            Key::Bgp(_, item) => Self::parse_bgp(item, bytes)?,
            Key::Felix { item: FelixItem::Status | FelixItem::LastReportedStatus, .. } => {
                Self::AgentStatus(AgentStatus::parse(bytes)?)
            }
            Key::Felix { .. } => Self::EndpointStatus(EndpointStatus::parse(bytes)?),
            Key::Schema => Self::Schema(StoreSchema::parse(bytes)?),
            Key::TortieStatus { .. } => Self::TortieStatus(policy::parse_object(bytes)?),
            Key::Docker { item: DockerItem::Space { .. }, .. } => Self::Opaque(bytes.to_vec()),
            Key::Docker { .. } => Self::Docker(policy::parse_object(bytes)?),
            // Their owners parse these where they are read.
            Key::IpReservation(_) => Self::Opaque(bytes.to_vec()),
            Key::BgpFilter(_) => Self::BgpFilter(Box::new(BgpFilter::parse(bytes)?)),
            Key::BgpConfiguration => Self::BgpConfiguration(Box::new(BgpConfiguration::parse(bytes)?)),
            Key::LiveMigration { .. } => Self::LiveMigration(Box::new(LiveMigration::parse(bytes)?)),
            Key::Marker { .. } | Key::Unknown(_) | Key::Legacy(_) => Self::Opaque(bytes.to_vec()),
        })
    }

    fn parse_bgp(item: &BgpItem, bytes: &[u8]) -> Result<Self, ValueError> {
        Ok(match item {
            BgpItem::AsNum => Self::AsNum(text::text(bytes)?.parse()?),
            BgpItem::NodeMesh => Self::NodeMesh(NodeMesh::parse(bytes)?),
            BgpItem::LogLevel => Self::LogLevel(BgpLogLevel::from_text(text::text(bytes)?)),
            BgpItem::ListenPort => Self::ListenPort(text::port(bytes)?),
            BgpItem::PrefixAdvertisements(family) => {
                Self::PrefixAdvertisements(PrefixAdvertisement::parse_list(*family, bytes)?)
            }
            BgpItem::BmpStations => Self::BmpStations(BmpStation::parse_list(bytes)?),
            BgpItem::Multipath => Self::Multipath(Multipath::parse(bytes)?),
            BgpItem::Peer { addr, port } => Self::Peer(Box::new(Peer::parse(*addr, *port, bytes)?)),
            BgpItem::InterfacePeer(interface) => {
                Self::Peer(Box::new(Peer::parse_interface(interface, bytes)?))
            }
            BgpItem::PeerRange(prefix) => Self::Peer(Box::new(Peer::parse_range(*prefix, bytes)?)),
            BgpItem::CustomFilter(..) => Self::CustomFilter(text::text(bytes)?.to_owned()),
            BgpItem::Filter(_) => Self::Filter(Box::new(Filter::parse(bytes)?)),
            BgpItem::Address(family) => Self::Address(text::address(bytes, *family)?),
            BgpItem::Network(family) => Self::Network(text::network(bytes, *family)?),
            BgpItem::RrClusterId => Self::RrClusterId(text::cluster_id(bytes)?),
        })
    }

    /// Returns the unknown members. `None` for values without members, and for values in which any member is
    /// allowed.
    #[must_use]
    pub fn extra(&self) -> Option<&Extra> {
        match self {
            Self::WorkloadEndpoint(value) => Some(&value.extra),
            Self::HostEndpoint(value) => Some(&value.extra),
            Self::ProfileRules(value) => Some(&value.extra),
            Self::TierMetadata(value) => Some(&value.extra),
            Self::Policy(value) => Some(&value.extra),
            Self::Pool(value) => Some(&value.extra),
            Self::IpamConfig(value) => Some(&value.extra),
            Self::Block(value) => Some(value.extra()),
            Self::Handle(value) => Some(&value.extra),
            Self::Affinity(value) => Some(&value.extra),
            Self::NodeMesh(value) => Some(&value.extra),
            Self::Multipath(value) => Some(&value.extra),
            Self::Peer(value) => Some(&value.extra),
            Self::Filter(value) => Some(&value.extra),
            _ => None,
        }
    }

    /// Formats the value in its newest form, including unknown fields. It may contain a secret and must not
    /// be logged.
    #[must_use]
    pub fn to_value(&self) -> Vec<u8> {
        fn bytes(text: &impl ToString) -> Vec<u8> {
            text.to_string().into_bytes()
        }
        fn optional(text: Option<&impl ToString>) -> Vec<u8> {
            text.map(bytes).unwrap_or_default()
        }
        match self {
            Self::Ready(ready) => bytes(ready),
            Self::Setting(setting) => setting.to_text().into_bytes(),
            Self::BirdIp(addr) | Self::RrClusterId(addr) => optional(addr.as_ref()),
            Self::HostMetadata(object) | Self::TortieStatus(object) | Self::Docker(object) => {
                json::Writer::default().bytes(object)
            }
            Self::Schema(schema) => schema.to_value(),
            Self::Filter(filter) => filter.to_value(),
            Self::BgpFilter(filter) => filter.to_value(),
            Self::BgpConfiguration(configuration) => configuration.to_value(),
            Self::LiveMigration(migration) => migration.to_value(),
            Self::OrchestratorRefs(list) => OrchestratorRef::list_to_value(list),
            Self::WorkloadEndpoint(endpoint) => endpoint.to_value(),
            Self::HostEndpoint(endpoint) => endpoint.to_value(),
            Self::ProfileRules(rules) => rules.to_value(),
            Self::ProfileTags(tags) => policy::tags_to_value(tags),
            Self::ProfileLabels(labels) => policy::labels_to_value(labels),
            Self::TierMetadata(metadata) => metadata.to_value(),
            Self::Tier(tier) => tier.to_value(),
            Self::NetworkSet(set) => set.to_value(),
            Self::Policy(policy) => policy.to_value(),
            Self::Pool(pool) => pool.to_value(),
            Self::IpamConfig(config) => config.to_value(),
            Self::Block(block) => block.to_value(),
            Self::Handle(handle) => handle.to_value(),
            Self::Affinity(affinity) => affinity.to_value(),
            Self::AsNum(asn) => bytes(asn),
            Self::NodeMesh(mesh) => mesh.to_value(),
            Self::LogLevel(level) => level.as_str().into(),
            Self::ListenPort(port) => bytes(port),
            Self::PrefixAdvertisements(list) => PrefixAdvertisement::list_to_value(list),
            Self::BmpStations(list) => BmpStation::list_to_value(list),
            Self::Multipath(multipath) => multipath.to_value(),
            Self::Peer(peer) => peer.to_value(),
            Self::CustomFilter(text) => text.clone().into_bytes(),
            Self::Address(addr) => optional(addr.as_ref()),
            Self::Network(cidr) => optional(cidr.as_ref()),
            Self::AgentStatus(status) => status.to_value(),
            Self::EndpointStatus(status) => status.to_value(),
            Self::Opaque(bytes) => bytes.clone(),
        }
    }
}
