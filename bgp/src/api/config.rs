//! Configuration of a [`Speaker`](crate::Speaker) and its peers.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tortie_net::{Cidr, HashKey};

use crate::types::{Family, RouterId};
use crate::wire::{Families, Role};

/// Configuration of the speaker as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlobalConfig {
    /// Local AS number, not 0; four octets (RFC 6793).
    pub asn: u32,
    /// BGP identifier (RFC 6286), not 0.
    pub router_id: RouterId,
    /// Restart time to advertise (RFC 4724), in whole seconds, at most 4,095.
    pub restart_time: Duration,
    /// `Some` after a restart that preserved forwarding state: the R bit is set, and the F bit for the
    /// families listed. `None` for a first start: the R bit is clear.
    pub restarting: Option<Vec<Family>>,
    /// Families in which packets to originated routes were forwarded throughout the start, although no learned
    /// route was kept: the F bit is set for them, too, and route selection is not deferred.
    pub forwarding: Vec<Family>,
    /// Selection and maximum number of ECMP paths.
    pub multipath: Multipath,
    /// Key of the hash tables whose entries peers choose: prefixes, attributes, next hops. It is read once,
    /// when the speaker is created, and has no effect on protocol behaviour.
    pub hash_key: HashKey,
}

impl GlobalConfig {
    /// Returns the configuration of a first start, with a restart time of 120 s and ECMP over all eligible
    /// paths. The hash key is a public constant: set [`GlobalConfig::hash_key`] to [`HashKey::random`] if
    /// peers are not trusted, or a peer can slow the tables down with colliding entries.
    #[must_use]
    pub fn new(asn: u32, router_id: RouterId) -> Self {
        let restart_time = Duration::from_secs(120);
        Self {
            asn,
            router_id,
            restart_time,
            restarting: None,
            forwarding: Vec::new(),
            multipath: Multipath::default(),
            hash_key: HashKey::new([0, 0]),
        }
    }
}

/// Selection of the paths that share load with the best path (ECMP). Candidates tie with it in the decision
/// process (RFC 4271 9.1.2.2) up to, but not including, the comparison of BGP identifiers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Multipath {
    /// Maximum number of next hops per prefix, at least 1: that of the best path, then those of the next
    /// paths in the order of the decision process. `None`: no limit.
    pub max: Option<u16>,
    /// AS_PATHs need only be of equal length, not equal (`multipath-relax`).
    pub relax: bool,
}

impl Default for Multipath {
    /// Returns the setting without a limit and with `relax`.
    fn default() -> Self {
        Self { max: None, relax: true }
    }
}

/// Delay before a peer without a connection is dialled. Incoming connections are accepted in all cases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dial {
    /// No delay.
    #[default]
    Now,
    /// This delay. The peer is not dialled if a session comes up before.
    After(Duration),
    /// The peer is never dialled.
    Passive,
}

/// Next hop of announced routes (RFC 4271 5.1.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum NextHopMode {
    /// The local address; reflected routes keep their next hop.
    #[default]
    Auto,
    /// The local address, for reflected routes too.
    Own,
    /// The received next hop, towards eBGP peers too.
    Keep,
}

/// Configuration of one peer. A change affects only the sessions of this peer, and resets them only where the
/// OPEN or the transport would differ ([`PeerConfig::needs_reset`]).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerConfig {
    /// Address and port to dial. Incoming connections are matched by address only. A link-local address needs
    /// its scope id (RFC 4007). Link-local next hops on such a session belong to that link.
    pub remote: SocketAddr,
    /// Local address to dial from. `None`: the kernel selects one.
    pub local: Option<IpAddr>,
    /// AS number of the peer, or [`ANY_EXTERNAL`].
    pub asn: u32,
    /// Local AS number towards this peer. `None`: [`GlobalConfig::asn`].
    pub local_asn: Option<u32>,
    /// Families to offer. A session carries those that both ends offer.
    pub families: Vec<Family>,
    /// Delay before the peer is dialled.
    pub dial: Dial,
    /// Administrative shutdown (`Some`): the peer is not dialled, sessions end and connections are refused
    /// with Cease subcode 2 (RFC 4486) and this shutdown communication (RFC 9003: at most 255 octets; if
    /// empty, none is sent).
    pub shutdown: Option<Arc<str>>,
    /// Hold time to propose, in whole seconds: 0, or at least 3 (RFC 4271 4.2).
    pub hold_time: Duration,
    /// Keepalive interval. `None`: a third of the negotiated hold time.
    pub keepalive: Option<Duration>,
    /// Next hop of announced routes.
    pub next_hop: NextHopMode,
    /// Next hop of announced IPv4 routes where the local address of the session is IPv6 (dual stack over one
    /// session) or link-local. `None`: chosen by the rules of RFC 4760 and RFC 8950. For the family of the
    /// session itself, the local address of the session is used.
    pub local_v4: Option<IpAddr>,
    /// Next hop of announced IPv6 routes; see [`PeerConfig::local_v4`].
    pub local_v6: Option<IpAddr>,
    /// Cluster id if the peer is a client of this route reflector (RFC 4456).
    pub reflector_client: Option<u32>,
    /// Number of occurrences of the local AS accepted in a received AS_PATH (`allowas-in`).
    pub allow_own_as: u8,
    /// Offers graceful restart (RFC 4724) with this restart time, in whole seconds. `None`:
    /// [`GlobalConfig::restart_time`].
    pub restart_time: Option<Duration>,
    /// Offers long-lived graceful restart (RFC 9494) with this stale time, in whole seconds, at most
    /// 16,777,215. It is also the upper limit on how long the peer's routes are kept. `None`: not offered,
    /// and no routes are kept.
    pub long_lived_restart_time: Option<Duration>,
    /// Offers extended messages (RFC 8654).
    pub extended_messages: bool,
    /// Offers to receive several paths per prefix (RFC 7911).
    pub add_path_receive: bool,
    /// Number of paths per prefix to send to a peer that accepts several (RFC 7911): 1 to [`ADD_PATH_MAX`],
    /// in the order of the decision process. 0: not offered.
    pub add_path_send: u8,
    /// Limit on the routes that the peer may announce, per family. With add-path (RFC 7911) each path counts,
    /// as in BIRD, FRR, GoBGP and OpenBGPD.
    pub max_prefixes: Option<PrefixLimit>,
    /// Limit on the prefixes announced to the peer, per family. If an export would exceed it, the session
    /// ends with Cease subcode 1 before the prefixes are sent, and the peer is not dialled or accepted for a
    /// minute: the likely cause is a missing filter, and the peer must not receive the leak.
    pub max_prefixes_out: Option<u32>,
    /// Send hold time (RFC 9687): the peer counts as dead if nothing could be sent for this long. At least
    /// the negotiated hold time. `None`: the greater of 8 minutes and twice the hold time.
    pub send_hold_time: Option<Duration>,
    /// Class of the peer for export policy. Two peers with the same class and the same session parameters
    /// share an update group.
    pub policy_class: u64,
    /// Local role on the session (RFC 9234). Applies to eBGP sessions only: it is sent in the OPEN, must pair
    /// with the role of the peer, and decides on ONLY_TO_CUSTOMER (section 5).
    pub role: Option<Role>,
    /// Refuses an eBGP peer that sends no role (strict mode, RFC 9234 4.2). No effect without a local role.
    pub role_strict: bool,
    /// States that the embedder's policy covers this peer. If false, no routes are accepted from or announced
    /// to an eBGP peer, but End-of-RIB is still sent (RFC 8212). No effect on iBGP peers.
    pub ebgp_policy: bool,
    /// Name of the peer, for reports only.
    pub name: Arc<str>,
}

impl PeerConfig {
    /// Returns a peer that is dialled at once and carries IPv4 unicast, with a hold time of 90 s and no
    /// options. If it is an eBGP peer, it exchanges no routes until [`PeerConfig::ebgp_policy`] is set. Its
    /// name is its address.
    #[must_use]
    pub fn new(remote: SocketAddr, asn: u32) -> Self {
        Self {
            remote,
            local: None,
            asn,
            local_asn: None,
            families: vec![Family::Ipv4Unicast],
            dial: Dial::Now,
            shutdown: None,
            hold_time: Duration::from_secs(90),
            keepalive: None,
            next_hop: NextHopMode::Auto,
            local_v4: None,
            local_v6: None,
            reflector_client: None,
            allow_own_as: 0,
            restart_time: None,
            long_lived_restart_time: None,
            extended_messages: false,
            add_path_receive: false,
            add_path_send: 0,
            max_prefixes: None,
            max_prefixes_out: None,
            send_hold_time: None,
            policy_class: 0,
            role: None,
            role_strict: false,
            ebgp_policy: false,
            name: remote.ip().to_string().into(),
        }
    }

    /// Returns true if replacing this configuration with `new` ends the session, because the OPEN or the
    /// transport would differ.
    #[must_use]
    pub fn needs_reset(&self, new: &Self) -> bool {
        let key = |c: &Self| {
            let families: Families = c.families.iter().copied().collect();
            (
                c.remote,
                c.local,
                c.asn,
                c.local_asn,
                families,
                c.hold_time.as_secs(),
                (c.restart_time, c.long_lived_restart_time),
                c.extended_messages,
                c.role,
                c.role_strict,
                (c.add_path_receive, c.add_path_send > 0),
            )
        };
        key(self) != key(new)
    }

    /// Returns this configuration with the OPEN and transport parameters of `other`, so that replacing
    /// `other` with it ends no session.
    #[must_use]
    pub fn with_session_of(self, other: &Self) -> Self {
        Self {
            remote: other.remote,
            local: other.local,
            asn: other.asn,
            local_asn: other.local_asn,
            families: other.families.clone(),
            hold_time: other.hold_time,
            restart_time: other.restart_time,
            long_lived_restart_time: other.long_lived_restart_time,
            extended_messages: other.extended_messages,
            role: other.role,
            role_strict: other.role_strict,
            add_path_receive: other.add_path_receive,
            add_path_send: other.add_path_send,
            ..self
        }
    }
}

/// A range of addresses whose connections are accepted without a configured peer (dynamic neighbours, `listen
/// range`). Each connecting address becomes a dynamic peer. It is never dialled, and it is removed when its
/// session is over and none of its routes is kept (RFC 4724 4.2).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RangeConfig {
    /// Prefix of accepted addresses. Where ranges overlap, the longest prefix applies. A configured peer
    /// takes precedence over all ranges.
    pub prefix: Cidr,
    /// Maximum number of dynamic peers at a time, including peers that are connecting and peers whose stale
    /// routes are kept. Further connections are refused with Cease subcode 5 (RFC 4486).
    pub max_peers: u32,
    /// Template of the dynamic peers. The address of each peer comes from its connection, and is appended to
    /// `name` as its name. `remote` (except for the port shown) and `dial` are ignored.
    pub peer: PeerConfig,
}

impl RangeConfig {
    /// Returns a range of at most 100 peers of this AS (or [`ANY_EXTERNAL`]), with the defaults of
    /// [`PeerConfig::new`] and the unicast family of the prefix. Peers are named by their addresses.
    #[must_use]
    pub fn new(prefix: Cidr, asn: u32) -> Self {
        let mut peer = PeerConfig::new(SocketAddr::new(prefix.addr(), 179), asn);
        peer.families = vec![Family::of(prefix.addr())];
        peer.dial = Dial::Passive;
        peer.name = "".into();
        Self { prefix, max_peers: 100, peer }
    }
}

/// Value of [`PeerConfig::asn`] that accepts any AS other than the local one. The OPEN of the peer decides.
pub const ANY_EXTERNAL: u32 = 0;

/// Maximum of [`PeerConfig::add_path_send`]: paths per prefix sent to a peer (RFC 7911).
pub const ADD_PATH_MAX: u8 = 8;

/// Limit on the prefixes received from a peer, per family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrefixLimit {
    /// Maximum number per family. More end the session with Cease subcode 1 (RFC 4486), with family and limit
    /// in the data.
    pub max: u32,
    /// Share of `max`, in percent, at which [`Event::PrefixWarning`](crate::Event::PrefixWarning) is
    /// reported. `None`: no warning.
    pub warn: Option<u8>,
    /// Time after such a reset during which the peer is neither dialled nor accepted.
    pub restart: Duration,
}

impl PrefixLimit {
    /// Returns a limit with a warning at 75 % and a restart time of 60 s.
    #[must_use]
    pub fn new(max: u32) -> Self {
        Self { max, warn: Some(75), restart: Duration::from_secs(60) }
    }
}
