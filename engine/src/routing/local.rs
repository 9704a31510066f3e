//! BGP identity of this host: addresses, AS and port. Command line flags override the store, which overrides
//! defaults.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use sha2::{Digest, Sha256};
use tortie_config::Dialect;
use tortie_config::key::{BgpItem, IpFamily, Scope};
use tortie_config::resource::{NodeMesh, Peer};
use tortie_net::Cidr;

use crate::model::Model;

/// Settings of this host from flags and environment; all others come from the store.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct NodeOptions {
    /// IPv4 address (`--ip4`).
    pub ip4: AddressOption,
    /// IPv6 address (`--ip6`).
    pub ip6: AddressOption,
    /// Local AS number (`--as`); not 0.
    pub asn: Option<u32>,
    /// Listen addresses (`--bgp-listen`); if empty, the node's addresses and port.
    pub listen: Vec<SocketAddr>,
    /// BGP identifier (`CALICO_ROUTER_ID`).
    #[serde(default)]
    pub router_id: RouterId,
    /// Addresses of the store, as far as flags name them; no blackhole may cover them.
    #[serde(default)]
    pub store: Vec<IpAddr>,
    /// Networks that this host is connected to according to the kernel; no blackhole may cover them.
    /// [`super::Planner::connect`] updates them.
    #[serde(default)]
    pub connected: Vec<Cidr>,
}

/// Choice of the BGP identifier.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum RouterId {
    /// The IPv4 address of the node, else a hash of its name.
    #[default]
    Address,
    /// This number, as an address.
    Given(Ipv4Addr),
    /// Calico's hash of the name of the node, for nodes without IPv4 address.
    Hash,
}

impl FromStr for RouterId {
    type Err = String;

    /// Parses the value of Calico's `CALICO_ROUTER_ID`: empty, an address, or `hash`.
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "" => Ok(Self::Address),
            "hash" => Ok(Self::Hash),
            addr => addr
                .parse()
                .map(Self::Given)
                .map_err(|_| format!("`{addr}` is no router id: write an IPv4 address, or hash")),
        }
    }
}

/// A flag for an address of this host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum AddressOption {
    /// Use the stored address (no flag, or `auto`: node registration stores the address that it finds).
    #[default]
    Stored,
    /// Do not use this family on this host.
    Off,
    /// Use this address, and this network if the flag contains a prefix length.
    Given(IpAddr, Option<Cidr>),
}

/// BGP identity of this host.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Local {
    pub(super) asn: u32,
    pub(super) v4: Option<IpAddr>,
    pub(super) v6: Option<IpAddr>,
    /// Both addresses as text; hosts compare them to agree on the side that dials.
    texts: [String; 2],
    pub(super) network_v4: Option<Cidr>,
    pub(super) network_v6: Option<Cidr>,
    pub(super) cluster_id: Option<Ipv4Addr>,
    pub(super) port: u16,
    /// Calico 3 listens on all addresses, unless `bindMode` names those of the node.
    listens_everywhere: bool,
    /// Data model of the store. Of Calico 3, all peers of this host are explicit or in the mesh.
    pub(super) dialect: Dialect,
    pub(super) mesh: NodeMesh,
    /// Values of global peers at this host's own addresses, which make every other host peer with this one.
    pub(super) wanted_by_all: Vec<Peer>,
    /// Restart time of the sessions of the mesh (Calico 3).
    pub(super) mesh_restart_time: Option<Duration>,
}

impl Local {
    pub(super) fn of(model: &Model, options: &NodeOptions) -> Self {
        let host = model.host(model.node());
        let addr = |option: AddressOption, family| match option {
            AddressOption::Stored => model.node_addr(family),
            AddressOption::Off => None,
            AddressOption::Given(addr, _) => Some(addr),
        };
        let (v4, v6) = (addr(options.ip4, IpFamily::V4), addr(options.ip6, IpFamily::V6));
        let network_v4 = match options.ip4 {
            AddressOption::Given(_, Some(network)) => Some(network),
            _ => host.and_then(|host| host.network(IpFamily::V4)),
        };
        let network_v6 = match options.ip6 {
            AddressOption::Given(_, Some(network)) => Some(network),
            _ => host.and_then(|host| host.network(IpFamily::V6)),
        };
        let is_v3 = model.dialect() == Dialect::V3;
        let at_us = [v4, v6].into_iter().flatten().filter(|_| !is_v3);
        let at_us = at_us.flat_map(|addr| model.peers_at(&Scope::Global, addr));
        let configuration = model.bgp_configuration();
        let mut mesh = model.node_mesh().0;
        // The two daemons of Calico have a session each.
        mesh.per_family |= is_v3;
        Self {
            asn: options.asn.unwrap_or_else(|| model.as_num(host).get()),
            v4,
            v6,
            texts: [v4, v6].map(|addr| addr.map_or_else(String::new, |addr| addr.to_string())),
            network_v4,
            network_v6,
            cluster_id: host.and_then(|host| host.cluster_id()),
            port: model.listen_port(host),
            mesh,
            mesh_restart_time: configuration.mesh_restart_time,
            listens_everywhere: is_v3 && !configuration.listen_on_node_address,
            dialect: model.dialect(),
            wanted_by_all: at_us.map(|peer| peer.value.clone()).collect(),
        }
    }

    pub(super) fn addr(&self, family: IpFamily) -> Option<IpAddr> {
        match family {
            IpFamily::V4 => self.v4,
            IpFamily::V6 => self.v6,
        }
    }

    pub(super) fn text(&self, family: IpFamily) -> &str {
        match family {
            IpFamily::V4 => &self.texts[0],
            IpFamily::V6 => &self.texts[1],
        }
    }

    pub(super) fn is_own(&self, addr: IpAddr) -> bool {
        self.v4 == Some(addr) || self.v6 == Some(addr)
    }

    /// Returns the BGP identifier: the one of the options, else the IPv4 address, else a 32-bit hash of the
    /// name that is never a multicast or reserved address.
    pub(super) fn router_id(&self, node: &str, options: &NodeOptions) -> u32 {
        match options.router_id {
            RouterId::Given(id) => return u32::from(id),
            RouterId::Hash => return calicos_hash(node),
            RouterId::Address => {}
        }
        match self.v4 {
            Some(IpAddr::V4(addr)) => u32::from(addr),
            _ => {
                // FNV-1a.
                let hash =
                    node.bytes().fold(0x811c_9dc5_u32, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193));
                let hash = if hash >> 24 >= 224 { hash - (32 << 24) } else { hash };
                hash.max(1)
            }
        }
    }

    pub(super) fn listen(&self, options: &NodeOptions) -> Vec<SocketAddr> {
        if !options.listen.is_empty() {
            return options.listen.clone();
        }
        let addrs = [self.v4, self.v6].into_iter().flatten();
        let any = |addr: IpAddr| match addr {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        addrs
            .map(|addr| if self.listens_everywhere { any(addr) } else { addr })
            .map(|addr| SocketAddr::new(addr, self.port))
            .collect()
    }
}

/// Returns the hash of a node name that Calico's `CALICO_ROUTER_ID=hash` means.
fn calicos_hash(node: &str) -> u32 {
    let digest = Sha256::digest(node.as_bytes());
    let hash = digest.iter().take(4).fold(0_u32, |hash, byte| hash << 8 | u32::from(*byte));
    if hash >> 24 > 223 { hash - (32 << 24) } else { hash }
}

/// Returns every address that may be the remote end of a session of this host, sorted and unique.
pub(super) fn candidates(model: &Model) -> Vec<IpAddr> {
    let mut addrs: Vec<IpAddr> = model.hosts().flat_map(|(_, host)| host.addrs()).collect();
    for scope in [Scope::Global, Scope::Host(model.node().to_owned())] {
        addrs.extend(model.peers(&scope).filter_map(|peer| match peer.key {
            BgpItem::Peer { addr, .. } => Some(*addr),
            _ => None,
        }));
    }
    addrs.sort_unstable();
    addrs.dedup();
    addrs
}
