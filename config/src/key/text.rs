//! Formats a [`Key`] as text.

use std::fmt;

use super::{BgpItem, DockerItem, EndpointKey, FelixItem, IpFamily, Key, ProfilePart, Scope, escape};
use tortie_net::Cidr;

fn digit(cidr: &Cidr) -> char {
    if cidr.is_v4() { '4' } else { '6' }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready => f.write_str("/calico/v1/Ready"),
            Self::Setting(Scope::Global, name) => write!(f, "/calico/v1/config/{}", escape(name)),
            Self::Setting(Scope::Host(host), name) => {
                write!(f, "/calico/v1/host/{}/config/{}", escape(host), escape(name))
            }
            Self::Marker { host } => write!(f, "/calico/v1/host/{}/config/marker", escape(host)),
            Self::BirdIp { host } => write!(f, "/calico/v1/host/{}/bird_ip", escape(host)),
            Self::HostMetadata { host } => write!(f, "/calico/v1/host/{}/metadata", escape(host)),
            Self::OrchestratorRefs { host } => {
                write!(f, "/calico/v1/host/{}/orchestrator_refs", escape(host))
            }
            Self::Endpoint(endpoint) => write!(f, "/calico/v1/host/{endpoint}"),
            Self::Profile { name, part } => {
                write!(f, "/calico/v1/policy/profile/{}/{}", escape(name), part.as_str())
            }
            Self::TierMetadata { tier } => write!(f, "/calico/v1/policy/tier/{}/metadata", escape(tier)),
            Self::Policy { tier, name } => {
                write!(f, "/calico/v1/policy/tier/{}/policy/{}", escape(tier), escape(name))
            }
            Self::Pool(cidr) => write!(f, "/calico/v1/ipam/v{}/pool/{}", digit(cidr), cidr.to_key_text()),
            Self::IpamConfig => f.write_str("/calico/ipam/v2/config"),
            Self::Block(cidr) => {
                write!(f, "/calico/ipam/v2/assignment/ipv{}/block/{}", digit(cidr), cidr.to_key_text())
            }
            Self::Handle(id) => write!(f, "/calico/ipam/v2/handle/{}", escape(id)),
            Self::Affinity { host, block } => write!(
                f,
                "/calico/ipam/v2/host/{}/ipv{}/block/{}",
                escape(host),
                digit(block),
                block.to_key_text()
            ),
            Self::Bgp(Scope::Global, item) => write!(f, "/calico/bgp/v1/global/{item}"),
            Self::Bgp(Scope::Host(host), item) => write!(f, "/calico/bgp/v1/host/{}/{item}", escape(host)),
            Self::Felix { region: None, host, item } => {
                write!(f, "/calico/felix/v1/host/{}/{item}", escape(host))
            }
            Self::Felix { region: Some(region), host, item } => {
                write!(f, "/calico/felix/v2/{}/host/{}/{item}", escape(region), escape(host))
            }
            Self::Schema => f.write_str(super::prefix::SCHEMA),
            Self::TortieStatus { host } => write!(f, "/calico/tortie/v1/status/{}", escape(host)),
            Self::Tier { tier } => write!(f, "/calico/tortie/v1/tier/{}", escape(tier)),
            Self::NetworkSet { namespace: None, name } => {
                write!(f, "/calico/tortie/v1/globalnetworkset/{}", escape(name))
            }
            Self::NetworkSet { namespace: Some(namespace), name } => {
                write!(f, "/calico/tortie/v1/networkset/{}/{}", escape(namespace), escape(name))
            }
            Self::BgpFilter(name) => write!(f, "/calico/tortie/v1/bgpfilter/{}", escape(name)),
            Self::IpReservation(name) => write!(f, "/calico/tortie/v1/ipreservation/{}", escape(name)),
            Self::BgpConfiguration => f.write_str("/calico/tortie/v1/bgpconfiguration"),
            Self::LiveMigration { namespace, name } => {
                write!(f, "/calico/tortie/v1/livemigration/{}/{}", escape(namespace), escape(name))
            }
            Self::Docker { host, item } => write!(f, "/calico/tortie/v1/host/{}/docker/{item}", escape(host)),
            Self::Legacy(old) => write_legacy(f, old.canonical()),
            Self::Unknown(text) => f.write_str(text),
        }
    }
}

fn write_legacy(f: &mut fmt::Formatter<'_>, canonical: &Key) -> fmt::Result {
    match canonical {
        Key::Handle(id) => write!(f, "/calico/ipam/v2/assignment/handle/{}", escape(id)),
        Key::Bgp(Scope::Global, BgpItem::NodeMesh) => f.write_str("/calico/v1/config/bgp_node_mesh"),
        Key::Bgp(Scope::Global, BgpItem::Peer { addr, .. }) => {
            write!(f, "/calico/v1/config/bgp_peer_{}/{addr}", IpFamily::of(*addr).as_str())
        }
        Key::Bgp(Scope::Host(host), BgpItem::Peer { addr, .. }) => {
            write!(f, "/calico/v1/host/{}/bgp_peer_{}/{addr}", escape(host), IpFamily::of(*addr).as_str())
        }
        // A `LegacyKey` contains no other kind of key.
        key => fmt::Display::fmt(key, f),
    }
}

impl fmt::Display for EndpointKey {
    /// Formats the part of the key below `/calico/v1/host/`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Workload { host, orchestrator, workload, endpoint } => write!(
                f,
                "{}/workload/{}/{}/endpoint/{}",
                escape(host),
                escape(orchestrator),
                escape(workload),
                escape(endpoint)
            ),
            Self::Host { host, endpoint } => write!(f, "{}/endpoint/{}", escape(host), escape(endpoint)),
        }
    }
}

impl fmt::Display for DockerItem {
    /// Formats the part of the key below `host/<h>/docker/`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Epoch { driver } => write!(f, "driver/{}/epoch", escape(driver)),
            Self::Pool { driver, id } => write!(f, "driver/{}/pool/{}", escape(driver), escape(id)),
            Self::Address { space, addr } => write!(f, "address/{}/{addr}", escape(space)),
            Self::Network(id) => write!(f, "network/{}", escape(id)),
            Self::Endpoint(id) => write!(f, "endpoint/{}", escape(id)),
            Self::Space { name, rest } => write!(f, "{}/{rest}", escape(name)),
        }
    }
}

impl fmt::Display for BgpItem {
    /// Formats the part of the key below `global/` or `host/<h>/`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AsNum => f.write_str("as_num"),
            Self::NodeMesh => f.write_str("node_mesh"),
            Self::LogLevel => f.write_str("loglevel"),
            Self::ListenPort => f.write_str("listen_port"),
            Self::PrefixAdvertisements(family) => write!(f, "prefix_advertisements/ip_{}", family.as_str()),
            Self::BmpStations => f.write_str("bmp_stations"),
            Self::Multipath => f.write_str("multipath"),
            Self::Peer { addr, port } => {
                write!(f, "peer_{}/{addr}", IpFamily::of(*addr).as_str())?;
                port.map_or(Ok(()), |port| write!(f, "-{port}"))
            }
            Self::InterfacePeer(interface) => write!(f, "peer_interface/{}", escape(interface)),
            Self::PeerRange(cidr) => write!(f, "peer_range/{}", cidr.to_key_text()),
            Self::CustomFilter(family, name) => {
                write!(f, "custom_filters/{}/{}", family.as_str(), escape(name))
            }
            Self::Filter(name) => write!(f, "filters/{}", escape(name)),
            Self::Address(family) => write!(f, "ip_addr_{}", family.as_str()),
            Self::Network(family) => write!(f, "network_{}", family.as_str()),
            Self::RrClusterId => f.write_str("rr_cluster_id"),
        }
    }
}

impl fmt::Display for FelixItem {
    /// Formats the part of the key below the host's name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status => f.write_str("status"),
            Self::LastReportedStatus => f.write_str("last_reported_status"),
            Self::Workload { orchestrator, workload, endpoint } => write!(
                f,
                "workload/{}/{}/endpoint/{}",
                escape(orchestrator),
                escape(workload),
                escape(endpoint)
            ),
            Self::HostEndpoint { endpoint } => write!(f, "endpoint/{}", escape(endpoint)),
        }
    }
}

impl ProfilePart {
    /// Returns `rules`, `tags` or `labels`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rules => "rules",
            Self::Tags => "tags",
            Self::Labels => "labels",
        }
    }
}
