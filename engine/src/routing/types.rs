//! Types of routing decisions, shared by core, speaker and kernel thread.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tortie_config::key::{BgpItem, IpFamily, Key};
use tortie_net::{Cidr, ScopedAddr};

use super::calico3::Calico3View;
use super::filter::{FilterChanges, Filters};
use super::live_migration::EndpointRoutings;
use super::ranges::RangeIntent;
use super::store_routes::{StoreRoutes, VxlanIntent};
use crate::routing::persistent_map::Persistent;

/// Types of the data model that routing uses unchanged.
pub use tortie_config::resource::{
    AddPath, AoAlgorithm, Bfd, IpipMode, MaxPrefixes, Multipath, NextHopMode, Password, PrefixAdvertisement,
    Role, TcpAo,
};

/// Identifies a change from its store revision (or BGP UPDATE) to the kernel's acknowledgement. Unique while
/// the agent runs; 0 for none. Displayed as `c-7f31`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, serde::Serialize, serde::Deserialize,
)]
pub struct ChangeId(pub u64);

/// Generator of change ids. Core and speaker have one each, on their own threads, and need no shared counter:
/// the core's ids are odd, the speaker's even.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ChangeIds {
    next: u64,
}

impl ChangeIds {
    /// Creates the generator of the core: 1, 3, 5 and so on.
    #[must_use]
    pub const fn of_core() -> Self {
        Self { next: 1 }
    }

    /// Creates the generator of the speaker: 2, 4, 6 and so on.
    #[must_use]
    pub const fn of_speaker() -> Self {
        Self { next: 2 }
    }

    /// Returns a new id.
    #[must_use]
    pub fn next_id(&mut self) -> ChangeId {
        let id = ChangeId(self.next);
        self.next += 2;
        id
    }
}

impl std::fmt::Display for ChangeId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "c-{:x}", self.0)
    }
}

/// Routing intent of this host. A copy shares all large parts with the original.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoutingIntent {
    /// Local AS number.
    pub asn: u32,
    /// BGP identifier as a number.
    pub router_id: u32,
    /// Multipath: maximum number and kind of paths used for one prefix.
    pub multipath: Multipath,
    /// BGP listen addresses if no flag sets them: the node's addresses and port.
    pub listen: Vec<SocketAddr>,
    /// Peers, by stable name: `Mesh_192_0_2_15`, `Global_192_0_2_1`, `Node_192_0_2_1_port_1790`.
    pub peers: Persistent<String, PeerIntent>,
    /// Ranges of dynamic peers, by stable name: `Global_range_192_0_2_0-24`.
    pub ranges: Persistent<String, RangeIntent>,
    /// Routes that this host originates.
    pub originated: Persistent<Cidr, Originated>,
    /// Own blocks with a blackhole (all but /32 and /128), which is installed before the block is announced.
    pub blackholes: Arc<BTreeSet<Cidr>>,
    /// Own blocks that are neither announced nor have a blackhole, because it would cut this host off; each
    /// with the reason.
    pub withheld_blocks: Arc<BTreeMap<Cidr, String>>,
    /// IPIP tunnel, if an IPv4 pool has IPIP.
    pub tunnel: Option<TunnelIntent>,
    /// The VXLAN.
    pub vxlan: Arc<VxlanIntent>,
    /// Routes that the store gives, without BGP.
    pub store_routes: Arc<StoreRoutes>,
    /// View that decisions about single routes use.
    pub view: Arc<RoutingView>,
    /// Addresses of this host's endpoints.
    pub addresses: Addresses,
    /// Endpoints of this host whose addresses are not routed as usual, because their workloads move.
    pub endpoint_routings: Arc<EndpointRoutings>,
    /// Notes for `status`: unexpected conditions that are not errors (a host without address, a suggestion to
    /// set `own_only`).
    pub notes: Arc<[Note]>,
}

/// Addresses of this host's endpoints; learned routes to them are rejected. Separate from the view, because
/// they change with each endpoint and affect only routes to themselves.
pub type Addresses = Persistent<IpAddr, ()>;

/// A note for `status`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Note {
    /// Stable code, such as `node-without-address`.
    pub code: &'static str,
    /// Key or object concerned.
    pub subject: String,
    /// Explanation for people, with the next step.
    pub text: String,
}

/// Origin of a peer's configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PeerKind {
    /// Another host of the node-to-node mesh.
    Mesh,
    /// Configured for all hosts.
    Global,
    /// Configured for this host.
    Node,
    /// Connected from a peer range.
    Dynamic,
}

impl PeerKind {
    /// Returns `mesh`, `global`, `node` or `dynamic`, the `type` label of metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Mesh => "mesh",
            Self::Global => "global",
            Self::Node => "node",
            Self::Dynamic => "dynamic",
        }
    }
}

/// Source of a session in the store. Its text form is shown to operators as the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerSource {
    /// Key of a configured peer, interface or range.
    Key(Key),
    /// Object of a Calico 3 store that gave the key.
    Object {
        /// Key of the entry.
        key: Key,
        /// Kind and name of the object.
        title: String,
    },
    /// Node-to-node mesh with this host.
    Mesh(String),
    /// Reverse of a peering: this host is an own peer of the named one.
    PeerOfHost(String),
    /// Reverse of a peering: this host is a global peer, and so a peer of the named one.
    PeerOfAll(String),
}

impl PeerSource {
    /// Returns the key that the session depends on: the configured one, or the address of the other host in
    /// this family.
    #[must_use]
    pub fn key(&self, family: IpFamily) -> Key {
        match self {
            Self::Key(key) | Self::Object { key, .. } => key.clone(),
            Self::Mesh(host) | Self::PeerOfHost(host) | Self::PeerOfAll(host) => {
                Key::bgp_host(host, BgpItem::Address(family))
            }
        }
    }
}

impl std::fmt::Display for PeerSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Key(key) => write!(f, "{key}"),
            Self::Object { title, .. } => f.write_str(title),
            Self::Mesh(host) => write!(f, "node-to-node mesh with {host}"),
            Self::PeerOfHost(host) => write!(f, "{host} has this host as its peer"),
            Self::PeerOfAll(host) => write!(f, "this host is a global peer, so {host} peers with it"),
        }
    }
}

/// Default of the proposed hold time (RFC 4271, section 10 suggests 90 s).
pub const HOLD_TIME: Duration = Duration::from_secs(90);
/// Default of the advertised restart time (RFC 4724).
pub const RESTART_TIME: Duration = Duration::from_secs(120);

/// A configured session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerIntent {
    /// Origin of the configuration.
    pub kind: PeerKind,
    /// Node name if the peer is a host, otherwise its address.
    pub name: String,
    /// Source of the session; its text form tells operators the reason for the session.
    pub source: PeerSource,
    /// Address and port that the peer listens on. For an unnumbered peer only the port counts, and a
    /// link-local address if one is configured.
    pub remote: SocketAddr,
    /// Interface of an unnumbered peer, whose address is learned from router advertisements.
    pub interface: Option<String>,
    /// Range that a dynamic peer connected from.
    pub range: Option<Cidr>,
    /// Local address to dial from; `None` lets the kernel choose. The next hop of the transport family is the
    /// session's own address.
    pub local: Option<IpAddr>,
    /// IPv4 address of the node: next hop of announced IPv4 routes on a session over IPv6.
    pub local_v4: Option<IpAddr>,
    /// IPv6 address of the node: next hop of announced IPv6 routes on a session over IPv4.
    pub local_v6: Option<IpAddr>,
    /// AS number of the peer; 0 accepts any AS other than the local one, as received in its OPEN.
    pub asn: u32,
    /// Local AS number on this session (`local_as_num`), if it differs from the host's.
    pub local_asn: Option<u32>,
    /// True if the session carries IPv4 unicast.
    pub ipv4: bool,
    /// True if the session carries IPv6 unicast.
    pub ipv6: bool,
    /// Delay before dialling; `None` for never.
    pub dial_after: Option<Duration>,
    /// Administrative shutdown (`shutdown`): there is no session, and this text is sent to the peer (RFC
    /// 9003).
    pub shutdown: Option<Arc<str>>,
    /// Proposed hold time (`hold_time`), by default 90 s.
    pub hold_time: Duration,
    /// Send hold time (`send_hold_time`, RFC 9687); `None` for the speaker's default.
    pub send_hold_time: Option<Duration>,
    /// Keepalive interval (`keepalive_time`); `None` for a third of the hold time.
    pub keepalive_time: Option<Duration>,
    /// Advertised restart time (`restart_time`), by default 120 s.
    pub restart_time: Duration,
    /// Long-lived graceful restart time (`long_lived_restart_time`, RFC 9494).
    pub long_lived_restart_time: Option<Duration>,
    /// Cluster id, if the peer is a route reflector client of this host (RFC 4456).
    pub reflector_client: Option<u32>,
    /// Next hop handling (`next_hop_mode` or `keep_next_hop`).
    pub next_hop: NextHopMode,
    /// Number of times that the local AS may occur in a received AS_PATH (`num_allow_local_as`).
    pub allow_local_as: u8,
    /// Maximum distance of the peer in hops (`ttl_security`, RFC 5082).
    pub ttl_security: Option<u8>,
    /// Limit on the number of received prefixes (`max_prefixes`).
    pub max_prefixes: Option<MaxPrefixes>,
    /// True if extended messages are negotiated (`extended_messages`, RFC 8654).
    pub extended_messages: bool,
    /// Several paths per prefix (`add_path`, RFC 7911).
    pub add_path: Option<AddPath>,
    /// TCP MD5 secret (RFC 2385), as text or as a file below `/etc/tortie/secrets`.
    pub password: Option<Password>,
    /// TCP-AO key (`tcp_ao`, RFC 5925).
    pub tcp_ao: Option<TcpAo>,
    /// BFD parameters (`bfd`), of the peer or of the mesh.
    pub bfd: Option<Bfd>,
    /// Local role on the session (`role`, RFC 9234).
    pub role: Option<Role>,
    /// Reject eBGP peers that send no role (`role_strict`).
    pub role_strict: bool,
    /// Parameters of export and import decisions.
    pub policy: PeerPolicy,
}

impl PeerIntent {
    /// Creates a session without options: both families, dialled at once, default times, local address chosen
    /// by the kernel.
    #[must_use]
    pub fn new(kind: PeerKind, name: String, source: PeerSource, remote: SocketAddr, asn: u32) -> Self {
        Self {
            kind,
            name,
            source,
            remote,
            interface: None,
            range: None,
            local: None,
            local_v4: None,
            local_v6: None,
            asn,
            local_asn: None,
            ipv4: true,
            ipv6: true,
            dial_after: Some(Duration::ZERO),
            shutdown: None,
            hold_time: HOLD_TIME,
            send_hold_time: None,
            keepalive_time: None,
            restart_time: RESTART_TIME,
            long_lived_restart_time: None,
            reflector_client: None,
            next_hop: NextHopMode::Auto,
            allow_local_as: 0,
            ttl_security: None,
            max_prefixes: None,
            extended_messages: true,
            add_path: None,
            password: None,
            tcp_ao: None,
            bfd: None,
            role: None,
            role_strict: false,
            policy: PeerPolicy::default(),
        }
    }

    /// Returns true if the key is stored in a file, which may change while the intent stays the same.
    #[must_use]
    pub fn has_key_file(&self) -> bool {
        let key = self.password.as_ref().or(self.tcp_ao.as_ref().map(|ao| &ao.password));
        matches!(key, Some(Password::File(_)))
    }

    /// Returns true if the session is eBGP according to the configuration; `asn` is the AS of this host. A
    /// peer that may have any AS counts as external.
    #[must_use]
    pub fn is_external(&self, asn: u32) -> bool {
        self.asn != self.local_asn.unwrap_or(asn)
    }

    /// Returns true for a configured peer that is not a host of the cluster.
    #[must_use]
    pub fn is_router(&self) -> bool {
        self.kind != PeerKind::Mesh && (self.interface.is_some() || self.name.parse::<IpAddr>().is_ok())
    }
}

/// Origin of a learned path, as far as its attributes show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LearnedPath {
    /// Destination prefix.
    pub prefix: Cidr,
    /// BGP next hop.
    pub next_hop: IpAddr,
    /// ORIGINATOR_ID (RFC 4456, section 8).
    pub originator: Option<u32>,
    /// Last AS number of the AS_PATH; `None` if it is empty or ends with a set.
    pub origin_as: Option<u32>,
}

/// Parameters of export and import decisions for a peer. Peers with equal values share an update group.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerPolicy {
    /// Announce only routes that this host originates. Applies to eBGP peers; see the gate `own-only`.
    pub own_only: bool,
    /// Accept routes inside pools (`import_pools`, default true).
    pub import_pools: bool,
    /// Names of filters, in order.
    pub filters: Vec<String>,
}

impl Default for PeerPolicy {
    fn default() -> Self {
        Self { own_only: false, import_pools: true, filters: Vec::new() }
    }
}

/// A route that this host originates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Originated {
    /// Kind of the route.
    pub kind: OriginKind,
    /// Store key that the route comes from.
    pub key: Arc<str>,
    /// Store revision that the route comes from; 0 if unknown.
    pub revision: u64,
    /// Priority (metric) of the address of a workload in a store of Calico 3; a learned path with a better one
    /// is preferred. `None` for all other routes, which are preferred to every learned path.
    pub priority: Option<u32>,
}

/// Kind of an originated route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OriginKind {
    /// A block with a confirmed (or state-less) affinity, whose value names this host.
    OwnBlock,
    /// A workload address outside of the own blocks, or announced in addition to its block.
    Borrowed,
    /// The external address of a 1:1 NAT mapping.
    Floating,
    /// A configured range of service addresses (Calico 3).
    ServiceRange,
}

/// Desired configuration of `tunl0`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TunnelIntent {
    /// Tunnel address (`IpInIpTunnelAddr`); `None` until one is allocated, and the device is up without an
    /// address.
    pub addr: Option<Ipv4Addr>,
    /// MTU (`IpInIpMtu`); `None` for the link's MTU minus 20, and at most `max_mtu`.
    pub mtu: Option<u32>,
    /// Upper bound of an MTU that is not configured. Calico 3 has none.
    pub max_mtu: Option<u32>,
}

/// A pool as routing uses it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolView {
    /// Prefix of the pool.
    pub cidr: Cidr,
    /// IPIP mode, for IPv4 pools with `ipip` set.
    pub ipip: Option<IpipMode>,
    /// VXLAN mode, for pools of both families with `vxlan_mode` set.
    pub vxlan: Option<IpipMode>,
    /// True if the pool is disabled; its routes are still exported.
    pub disabled: bool,
}

/// Input of decisions about single routes; immutable, replaced as a whole.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RoutingView {
    /// Name of this host.
    pub node: String,
    /// IPv4 address of the node.
    pub node_v4: Option<IpAddr>,
    /// IPv6 address of the node.
    pub node_v6: Option<IpAddr>,
    /// Connected network of the node's IPv4 address, for `cross-subnet`.
    pub network_v4: Option<Cidr>,
    /// Pools of both families, sorted by prefix, without duplicates.
    pub pools: Vec<PoolView>,
    /// True if the routes of IPIP pools come from the store and not from BGP.
    pub ipip_from_store: bool,
    /// Announced own blocks, for the gates `own-block` and `inside-own-block`.
    pub own_blocks: BTreeSet<Cidr>,
    /// Prefix advertisements: this host's list, else the global one.
    pub advertisements: Vec<PrefixAdvertisement>,
    /// Filters that peers reference.
    pub filters: Filters,
    /// Values that only a store of Calico 3 has; `None` in a store of the v1 model.
    pub calico3: Option<Calico3View>,
}

/// Result of the export gates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateDecision {
    /// True if the route is announced.
    pub accept: bool,
    /// Name of the deciding gate, one of [`EXPORT_GATES`](super::EXPORT_GATES) or
    /// [`EXPORT_GATES_CALICO_3`](super::EXPORT_GATES_CALICO_3).
    pub gate: &'static str,
    /// Communities to add if the route is announced.
    pub communities: Vec<u32>,
    /// Large communities to add if the route is announced.
    pub large_communities: Vec<[u32; 3]>,
    /// Filter rules whose changes apply if the route is announced.
    pub changes: FilterChanges,
    /// LOCAL_PREF towards iBGP peers, before the changes; `None` for that of the route.
    pub local_pref: Option<u32>,
}

/// A learned route as the speaker selected it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LearnedChange {
    /// Destination prefix.
    pub prefix: Cidr,
    /// BGP next hops, sorted; empty if the prefix was withdrawn.
    pub next_hops: SmallVec<[ScopedAddr; 2]>,
    /// LOCAL_PREF of the best path; `None` for the default.
    pub local_pref: Option<u32>,
    /// Change that this route belongs to.
    pub change: ChangeId,
}

/// Leg to a next hop: interface and gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct Resolved {
    /// Index of the output interface.
    pub ifindex: u32,
    /// Gateway of the covering route; `None` if the next hop is on-link.
    pub gateway: Option<IpAddr>,
    /// Metric of the covering route; 0 if on-link.
    pub metric: u32,
}

/// Kernel route of a learned prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KernelRoute {
    /// A route over one or more hops (ECMP), sorted.
    Via {
        /// Next hops of the route; not empty.
        hops: Vec<Hop>,
        /// Reason: `plain`, `ipip-always`, `ipip-cross-subnet`, `same-subnet`, `outside-pools`, `vxlan`,
        /// `vxlan-same-subnet`, `ipip`.
        reason: &'static str,
    },
    /// No route is installed.
    Withheld {
        /// Reason: `unresolved`, `no-network` (cross-subnet without `network_v4`), `no-tunnel`, `vxlan-pool`
        /// (routes in the pool come from the store).
        reason: &'static str,
    },
}

/// One next hop in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Hop {
    /// Through a gateway (or on-link neighbour) on an interface.
    Plain {
        /// Neighbour that receives the packets.
        gateway: IpAddr,
        /// Index of the output interface.
        ifindex: u32,
    },
    /// Route `via <BGP next hop> dev tunl0 onlink`.
    Tunnel {
        /// Remote tunnel endpoint.
        remote: Ipv4Addr,
    },
    /// Route `via <tunnel address> dev vxlan.calico onlink`, for IPv6 on `vxlan-v6.calico`.
    Vxlan {
        /// Tunnel address of the other host.
        remote: IpAddr,
    },
}
