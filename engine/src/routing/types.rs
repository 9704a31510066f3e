//! What routing concludes from the model: the contract with the speaker, the kernel room and the agent.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tortie_config::key::{BgpItem, IpFamily, Key};
use tortie_net::{Cidr, ScopedAddr};

use super::filter::{FilterChanges, Filters};
use super::ranges::RangeIntent;
use crate::routing::persistent_map::Persistent;

/// What the values of the store say of pools and peers means the same here.
pub use tortie_config::resource::{
    AddPath, AoAlgorithm, Bfd, IpipMode, MaxPrefixes, Multipath, NextHopMode, Password, PrefixAdvertisement,
    Role, TcpAo,
};

/// A change on its way from a store revision (or an UPDATE) to the kernel's acknowledgement; unique while the agent
/// runs, 0 = none. Written `c-7f31`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, serde::Serialize, serde::Deserialize,
)]
pub struct ChangeId(pub u64);

/// A source of change ids. Core and speaker own one each, on threads of their own, and need no counter between them: the
/// core's ids are odd, the speaker's even.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ChangeIds {
    next: u64,
}

impl ChangeIds {
    /// The core's: 1, 3, 5 and so on.
    #[must_use]
    pub const fn of_core() -> Self {
        Self { next: 1 }
    }

    /// The speaker's: 2, 4, 6 and so on.
    #[must_use]
    pub const fn of_speaker() -> Self {
        Self { next: 2 }
    }

    /// An id that was not given before.
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

/// Everything that the model wants of this host's routing. A copy shares all that is large with what it was made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoutingIntent {
    /// The local AS.
    pub asn: u32,
    /// The BGP identifier, as a number.
    pub router_id: u32,
    /// How many paths share the load of a prefix, and which.
    pub multipath: Multipath,
    /// Where to listen for BGP when no flag says so: the node's addresses and port.
    pub listen: Vec<SocketAddr>,
    /// The peers, by stable name: `Mesh_192_0_2_15`, `Global_192_0_2_1`, `Node_192_0_2_1_port_1790`.
    pub peers: Persistent<String, PeerIntent>,
    /// Ranges of addresses from which sessions are taken, by stable name: `Global_range_192_0_2_0-24`.
    pub ranges: Persistent<String, RangeIntent>,
    /// What this host announces from itself.
    pub originated: Persistent<Cidr, Originated>,
    /// Own blocks that need a blackhole (every own block but /32 and /128), in the kernel before they are announced.
    pub blackholes: Arc<BTreeSet<Cidr>>,
    /// Own blocks that are neither announced nor have a blackhole, each with the reason: it would cut this host off.
    pub withheld_blocks: Arc<BTreeMap<Cidr, String>>,
    /// The tunnel, when an IPv4 pool has IPIP.
    pub tunnel: Option<TunnelIntent>,
    /// What decisions about single routes read.
    pub view: Arc<RoutingView>,
    /// What this host's endpoints hold.
    pub addresses: Addresses,
    /// Things worth saying in `status`: no errors, but surprises (a host without address, a hint at `own_only`).
    pub notes: Arc<[Note]>,
}

/// Addresses that this host's endpoints hold: a learned route to one of them is refused. Beside the view, because they
/// come and go with each endpoint, and decide about themselves alone.
pub type Addresses = Persistent<IpAddr, ()>;

/// A remark for `status`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Note {
    /// Stable, such as `node-without-address`.
    pub code: &'static str,
    /// The key or object concerned.
    pub subject: String,
    /// In words, with the next step.
    pub text: String,
}

/// Where a peer comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PeerKind {
    /// Another host of the node-to-node mesh.
    Mesh,
    /// Configured for all hosts.
    Global,
    /// Configured for this host.
    Node,
    /// Came from a range of addresses.
    Dynamic,
}

impl PeerKind {
    /// `mesh`, `global`, `node` or `dynamic`: the `type` label of metrics.
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

/// What in the store asks for a session. Its text is the reason that people read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerSource {
    /// A configured peer, interface or range: its key.
    Key(Key),
    /// The node-to-node mesh with this host.
    Mesh(String),
    /// This host has us as its own peer.
    PeerOfHost(String),
    /// We are a peer of all hosts, and so of this one.
    PeerOfAll(String),
}

impl PeerSource {
    /// The key that the session rests on: the configured one, or the address of the other host in this family.
    #[must_use]
    pub fn key(&self, family: IpFamily) -> Key {
        match self {
            Self::Key(key) => key.clone(),
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
            Self::Mesh(host) => write!(f, "node-to-node mesh with {host}"),
            Self::PeerOfHost(host) => write!(f, "{host} has this host as its peer"),
            Self::PeerOfAll(host) => write!(f, "this host is a global peer, so {host} peers with it"),
        }
    }
}

/// Proposed hold time where none is configured (RFC 4271 10 suggests 90 s).
pub const HOLD_TIME: Duration = Duration::from_secs(90);
/// Advertised restart time (RFC 4724) where none is configured.
pub const RESTART_TIME: Duration = Duration::from_secs(120);

/// A configured session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerIntent {
    /// Mesh, global, node or dynamic.
    pub kind: PeerKind,
    /// The node's name where the peer is a host, else its address.
    pub name: String,
    /// Where the session comes from; its text says for people why the peer is wanted.
    pub source: PeerSource,
    /// Where it listens. Of an unnumbered peer only the port counts, and a link-local address where one is configured.
    pub remote: SocketAddr,
    /// The interface of an unnumbered peer, whose address router advertisements tell.
    pub interface: Option<String>,
    /// The range that a dynamic peer came from.
    pub range: Option<Cidr>,
    /// Address to dial from; `None`: the kernel chooses. The next hop of the transport family is the session's own address.
    pub local: Option<IpAddr>,
    /// The node's own addresses: next hops of announced routes of the family that the session's own address is not of.
    pub local_v4: Option<IpAddr>,
    /// See `local_v4`.
    pub local_v6: Option<IpAddr>,
    /// The peer's AS; 0: any other than ours, as its OPEN says.
    pub asn: u32,
    /// `local_as_num`.
    pub local_asn: Option<u32>,
    /// Carry IPv4 unicast.
    pub ipv4: bool,
    /// Carry IPv6 unicast.
    pub ipv6: bool,
    /// Dial at once, after a delay, or (`None`) never.
    pub dial_after: Option<Duration>,
    /// `shutdown`: no session, by order of an administrator, and what the peer is told of it (RFC 9003).
    pub shutdown: Option<Arc<str>>,
    /// `hold_time`, else the default of 90 s.
    pub hold_time: Duration,
    /// `send_hold_time` (RFC 9687), else the speaker's default.
    pub send_hold_time: Option<Duration>,
    /// `keepalive_time`, else a third of the hold time.
    pub keepalive_time: Option<Duration>,
    /// `restart_time`, else the default of 120 s.
    pub restart_time: Duration,
    /// `long_lived_restart_time` (RFC 9494).
    pub long_lived_restart_time: Option<Duration>,
    /// The peer is a reflector client of ours, with this cluster id (RFC 4456).
    pub reflector_client: Option<u32>,
    /// `next_hop_mode` or `keep_next_hop`.
    pub next_hop: NextHopMode,
    /// `num_allow_local_as`.
    pub allow_local_as: u8,
    /// `ttl_security`: greatest distance in hops (RFC 5082).
    pub ttl_security: Option<u8>,
    /// `max_prefixes`.
    pub max_prefixes: Option<MaxPrefixes>,
    /// `extended_messages`.
    pub extended_messages: bool,
    /// `add_path`: several paths of a prefix (RFC 7911).
    pub add_path: Option<AddPath>,
    /// TCP MD5 secret (RFC 2385), as text or as a file below `/etc/tortie/secrets`.
    pub password: Option<Password>,
    /// `tcp_ao`: TCP-AO key (RFC 5925).
    pub tcp_ao: Option<TcpAo>,
    /// `bfd`, of the peer or of the mesh.
    pub bfd: Option<Bfd>,
    /// `role`: ours on the session (RFC 9234).
    pub role: Option<Role>,
    /// `role_strict`: refuse an eBGP peer that offers no role.
    pub role_strict: bool,
    /// What export and import decisions read of this peer.
    pub policy: PeerPolicy,
}

impl PeerIntent {
    /// A session without options: both families, dialled at once, the default times; the kernel chooses its address.
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

    /// Whether its key stands in a file, which may change while the intent stays.
    #[must_use]
    pub fn has_key_file(&self) -> bool {
        let key = self.password.as_ref().or(self.tcp_ao.as_ref().map(|ao| &ao.password));
        matches!(key, Some(Password::File(_)))
    }

    /// Whether the session is one of eBGP, as far as the configuration says; `asn` is the AS of this host. A peer that may have any
    /// AS counts as external.
    #[must_use]
    pub fn is_external(&self, asn: u32) -> bool {
        self.asn != self.local_asn.unwrap_or(asn)
    }

    /// A configured peer that is no host of the cluster.
    #[must_use]
    pub fn is_router(&self) -> bool {
        self.kind != PeerKind::Mesh && (self.interface.is_some() || self.name.parse::<IpAddr>().is_ok())
    }
}

/// What a learned path tells of where it comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LearnedPath {
    /// The prefix.
    pub prefix: Cidr,
    /// BGP next hop.
    pub next_hop: IpAddr,
    /// ORIGINATOR_ID (RFC 4456 8).
    pub originator: Option<u32>,
    /// The last AS of the AS_PATH; `None` where it is empty or ends in a set.
    pub origin_as: Option<u32>,
}

/// What decisions about routes to and from a peer depend on. Peers with an equal value share their update group.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerPolicy {
    /// Announce nothing but what this host originates. Acts towards eBGP peers; see the gate `own-only`.
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
    /// What it is.
    pub kind: OriginKind,
    /// The key it comes from.
    pub key: Arc<str>,
    /// The store revision that made it so, 0 when unknown.
    pub revision: u64,
}

/// Kinds of originated routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OriginKind {
    /// A block with a confirmed (or state-less) affinity, whose value names this host.
    OwnBlock,
    /// A workload address outside of the own blocks.
    Borrowed,
    /// The outside address of a 1:1 NAT mapping.
    Floating,
}

/// The wanted `tunl0`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TunnelIntent {
    /// `IpInIpTunnelAddr`; `None` while none is assigned: the device is up without an address.
    pub addr: Option<Ipv4Addr>,
    /// `IpInIpMtu`, else `None`: 1440, or the link's MTU minus 20 where that is smaller.
    pub mtu: Option<u32>,
}

/// A pool as routing sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolView {
    /// The prefix.
    pub cidr: Cidr,
    /// IPIP mode, for IPv4 pools with `ipip` set.
    pub ipip: Option<IpipMode>,
    /// Disabled pools are still exported.
    pub disabled: bool,
}

/// What decisions about single routes read; immutable, replaced as a whole.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RoutingView {
    /// This host's name.
    pub node: String,
    /// The node's IPv4 address.
    pub node_v4: Option<IpAddr>,
    /// The node's IPv6 address.
    pub node_v6: Option<IpAddr>,
    /// The connected network of the node's IPv4 address, for `cross-subnet`.
    pub network_v4: Option<Cidr>,
    /// All pools of both families, sorted by prefix, no prefix twice.
    pub pools: Vec<PoolView>,
    /// Own blocks (announced ones), for the gates `own-block` and `inside-own-block`.
    pub own_blocks: BTreeSet<Cidr>,
    /// The host's list, else the global one.
    pub advertisements: Vec<PrefixAdvertisement>,
    /// The filters that peers name.
    pub filters: Filters,
}

/// The answer of an export gate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GateDecision {
    /// Announce.
    pub accept: bool,
    /// Which gate decided, one of [`EXPORT_GATES`](super::EXPORT_GATES).
    pub gate: &'static str,
    /// Communities to add after a yes.
    pub communities: Vec<u32>,
    /// Large communities to add after a yes.
    pub large_communities: Vec<[u32; 3]>,
    /// Rules of the peer's filters whose changes it gets, after a yes.
    pub changes: FilterChanges,
}

/// A learned route as the speaker decided it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LearnedChange {
    /// The prefix.
    pub prefix: Cidr,
    /// BGP next hops, sorted; empty: the prefix is gone.
    pub next_hops: SmallVec<[ScopedAddr; 2]>,
    /// The change that brought it.
    pub change: ChangeId,
}

/// How the kernel reaches a next hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct Resolved {
    /// Output interface.
    pub ifindex: u32,
    /// `None`: on-link; else the gateway of the covering route.
    pub gateway: Option<IpAddr>,
    /// Metric of the covering route, 0 when on-link.
    pub metric: u32,
}

/// What the kernel should hold for a learned prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KernelRoute {
    /// A route over these hops (several: ECMP), sorted, not empty.
    Via {
        /// The hops.
        hops: Vec<Hop>,
        /// Why so: `plain`, `ipip-always`, `ipip-cross-subnet`, `same-subnet`, `outside-pools`.
        reason: &'static str,
    },
    /// No route of ours.
    Withheld {
        /// Why: `unresolved`, `no-network` (cross-subnet without `network_v4`), `no-tunnel`.
        reason: &'static str,
    },
}

/// One next hop in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Hop {
    /// Through a gateway (or on-link neighbour) on an interface.
    Plain {
        /// The neighbour that gets the packet.
        gateway: IpAddr,
        /// The interface.
        ifindex: u32,
    },
    /// `via <BGP next hop> dev tunl0 onlink`.
    Tunnel {
        /// The tunnel's far end.
        remote: Ipv4Addr,
    },
}
