//! Configuration of a [`Speaker`](crate::Speaker) and its peers.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tortie_net::{Cidr, HashKey};

use crate::types::{Family, RouterId};
use crate::wire::{Families, Role};

/// Configuration of the speaker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlobalConfig {
    /// The local AS (RFC 6793: four octets), not 0.
    pub asn: u32,
    /// The BGP identifier (RFC 6286), not 0.
    pub router_id: RouterId,
    /// Restart time that is advertised with RFC 4724, in whole seconds (at most 4095).
    pub restart_time: Duration,
    /// This start is a restart whose forwarding state was kept: R bit set, and F bit for the families named.
    /// `None`: a first start, R bit clear.
    pub restarting: Option<Vec<Family>>,
    /// How many paths share the load of a prefix, and which.
    pub multipath: Multipath,
    /// Key of the hash tables of what peers choose: prefixes, attributes, next hops. It counts when the speaker is made, and changes
    /// nothing that the speaker says or does.
    pub hash_key: HashKey,
}

impl GlobalConfig {
    /// A first start with a restart time of 120 s, on which all paths share the load that may. The hash key is one that everybody knows:
    /// who has peers of others puts a random one ([`HashKey::random`]) in its place, or a peer can make the tables slow.
    #[must_use]
    pub fn new(asn: u32, router_id: RouterId) -> Self {
        let restart_time = Duration::from_secs(120);
        Self {
            asn,
            router_id,
            restart_time,
            restarting: None,
            multipath: Multipath::default(),
            hash_key: HashKey::new([0, 0]),
        }
    }
}

/// Which paths are used together with the best one (ECMP): those that tie with it in the decision process (RFC 4271 9.1.2.2) up to
/// the comparison of BGP identifiers, and the following of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Multipath {
    /// Most next hops of a prefix, at least 1: that of the best path, then those of the paths that come next in the
    /// decision. `None`: all.
    pub max: Option<u16>,
    /// The AS_PATHs need not be equal, only of equal length.
    pub relax: bool,
}

impl Default for Multipath {
    /// All, whatever their AS_PATHs.
    fn default() -> Self {
        Self { max: None, relax: true }
    }
}

/// Which end dials first; both ends of a session accept at any time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Dial {
    /// At once.
    #[default]
    Now,
    /// After this delay, and only when no session came up until then.
    After(Duration),
    /// Never.
    Passive,
}

/// How the next hop of announced routes is chosen (RFC 4271 5.1.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum NextHopMode {
    /// Self, except on reflected routes, which keep theirs.
    #[default]
    Auto,
    /// Always the local address.
    Own,
    /// Keep what was received, also towards eBGP peers.
    Keep,
}

/// One peer. A change of a field moves only the sessions of this peer, and resets them only where the OPEN or the
/// transport would differ.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerConfig {
    /// Address and port to dial; incoming connections are matched by address. A link-local address needs its scope id
    /// (RFC 4007): next hops on such a session are on that link.
    pub remote: SocketAddr,
    /// Local address to dial from; `None`: the kernel chooses one.
    pub local: Option<IpAddr>,
    /// The peer's AS, or [`ANY_EXTERNAL`].
    pub asn: u32,
    /// Another local AS towards this peer, else the global one.
    pub local_asn: Option<u32>,
    /// Families to offer; a session carries those that both ends offer.
    pub families: Vec<Family>,
    /// Which end dials first.
    pub dial: Dial,
    /// Administratively down: it is not dialled, sessions end and connections are refused with Cease 2 (RFC 4486) and this
    /// shutdown communication (RFC 9003; at most 255 octets, empty: none).
    pub shutdown: Option<Arc<str>>,
    /// Hold time to propose; 0 or at least 3 s (RFC 4271 4.2).
    pub hold_time: Duration,
    /// Keepalive interval; `None`: a third of the negotiated hold time.
    pub keepalive: Option<Duration>,
    /// Next hop rule.
    pub next_hop: NextHopMode,
    /// Own next hop of IPv4 routes where the session's own address is of the other family (dual stack over one session), or of a
    /// link; `None`: see RFC 4760 and RFC 8950 rules. The next hop of the session's family is the session's own address.
    pub local_v4: Option<IpAddr>,
    /// See `local_v4`.
    pub local_v6: Option<IpAddr>,
    /// We reflect for this peer (RFC 4456) with this cluster id.
    pub reflector_client: Option<u32>,
    /// How often the own AS may stand in a received path (allowas-in).
    pub allow_own_as: u8,
    /// Offer graceful restart (RFC 4724) with this restart time; `None`: the global one.
    pub restart_time: Option<Duration>,
    /// Offer long-lived graceful restart (RFC 9494) with this time, in whole seconds (at most 16,777,215), and keep the
    /// peer's routes for what it offers, at most as long. `None`: neither.
    pub long_lived_restart_time: Option<Duration>,
    /// Offer extended messages (RFC 8654).
    pub extended_messages: bool,
    /// Offer to take several paths of a prefix (RFC 7911).
    pub add_path_receive: bool,
    /// Paths of a prefix to send where the peer takes several (RFC 7911): 1 to [`ADD_PATH_MAX`], in the order of the
    /// decision process. 0: not offered.
    pub add_path_send: u8,
    /// How many routes the peer may announce in a family. With several paths of a prefix (RFC 7911) each counts, as with
    /// BIRD, FRR, GoBGP and OpenBGPD.
    pub max_prefixes: Option<PrefixLimit>,
    /// How many prefixes are announced to the peer in a family; more ends the session with Cease 1 before they are sent,
    /// and it is left alone for a minute: a filter is missing, and the peer must not learn of it.
    pub max_prefixes_out: Option<u32>,
    /// How long nothing may be sent before the peer counts as dead (RFC 9687), at least the negotiated hold time. `None`:
    /// the greater of eight minutes and twice the hold time.
    pub send_hold_time: Option<Duration>,
    /// Distinguishes peers for policy; two peers with equal class and equal session parameters share an update group.
    pub policy_class: u64,
    /// Our role on the session (RFC 9234). It acts on eBGP sessions only: it is offered, has to fit the peer's, and routes
    /// are marked with and judged by ONLY_TO_CUSTOMER (section 5).
    pub role: Option<Role>,
    /// Refuse an eBGP peer that offers no role (RFC 9234 4.2, strict mode). Without a role of ours it does nothing.
    pub role_strict: bool,
    /// The embedder's policy was written with this peer in mind. Without that an eBGP peer is neither taken routes from
    /// nor sent any, while End-of-RIB is sent all the same (RFC 8212). iBGP peers do not need it.
    pub ebgp_policy: bool,
    /// Text of the peer's name, for reports only.
    pub name: Arc<str>,
}

impl PeerConfig {
    /// A peer that is dialled at once and carries IPv4 unicast, with a hold time of 90 s, without any option, and (see
    /// [`PeerConfig::ebgp_policy`]) closed when it is an eBGP peer. Its name is its address.
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

    /// Whether a session ends when `new` takes the place of this configuration: OPEN or transport would be others.
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

    /// This configuration with OPEN and transport of another one, in whose place it ends no session.
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

/// Addresses from which sessions are taken although no peer is configured there: dynamic neighbours, or listen ranges. Each
/// that comes makes a peer, which is never dialled, and which is forgotten when its session is over and none of its routes
/// is kept (RFC 4724 4.2).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RangeConfig {
    /// The addresses. Of several ranges that hold an address the one with the longest prefix counts; a configured peer
    /// counts before all ranges.
    pub prefix: Cidr,
    /// Peers at one time, those included that are coming up and those whose routes are kept. Further connections are told
    /// Cease 5 (RFC 4486).
    pub max_peers: u32,
    /// Configuration of its peers. Each gets the address that it comes from, and that behind `name` as its name;
    /// `remote` (but for the port that is shown) and `dial` do not count.
    pub peer: PeerConfig,
}

impl RangeConfig {
    /// A range of at most 100 peers of this AS (or [`ANY_EXTERNAL`]), as [`PeerConfig::new`] makes them, in the unicast
    /// family of the prefix. Their names are their addresses.
    #[must_use]
    pub fn new(prefix: Cidr, asn: u32) -> Self {
        let mut peer = PeerConfig::new(SocketAddr::new(prefix.addr(), 179), asn);
        peer.families = vec![Family::of(prefix.addr())];
        peer.dial = Dial::Passive;
        peer.name = "".into();
        Self { prefix, max_peers: 100, peer }
    }
}

/// As [`PeerConfig::asn`]: any AS but our own towards the peer; which, its OPEN says.
pub const ANY_EXTERNAL: u32 = 0;

/// Most paths of a prefix that are sent to a peer (RFC 7911).
pub const ADD_PATH_MAX: u8 = 8;

/// A limit of received prefixes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrefixLimit {
    /// More than these in a family end the session with Cease 1 (RFC 4486), family and limit in its data.
    pub max: u32,
    /// From this share of `max` on, in percent, [`Event::PrefixWarning`](crate::Event::PrefixWarning) is given once;
    /// `None`: never.
    pub warn: Option<u8>,
    /// How long the peer is neither dialled nor let in after that.
    pub restart: Duration,
}

impl PrefixLimit {
    /// A limit that warns at three quarters, and a minute until the next session.
    #[must_use]
    pub fn new(max: u32) -> Self {
        Self { max, warn: Some(75), restart: Duration::from_secs(60) }
    }
}
