//! Types of the state that BIRD and Felix left on this host.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use tortie_net::Cidr;

pub use tortie_kernel::maintenance::handover::{BIRD, FELIX};
pub use tortie_kernel::{MainHop, MainRoute, NetworkSnapshot, RouteKind};

/// An object that could not be read; nothing of it counts as equal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unreadable {
    /// Name of the object.
    pub what: String,
    /// Reason, with a remedy.
    pub why: String,
}

/// State of other programs on this host, from one pass.
#[derive(Debug, Default)]
pub struct ForeignState {
    /// The kernel's main table with links and addresses.
    pub look: NetworkSnapshot,
    /// Packet filter rules and address sets of Felix.
    pub felix: Felix,
    /// State of each BIRD that answered on a socket: one for both families (BIRD 2), or one per family.
    pub birds: Vec<Bird>,
    /// Objects that could not be read.
    pub unreadable: Vec<Unreadable>,
}

impl ForeignState {
    /// True if some BIRD reports routes of this family.
    #[must_use]
    pub fn bird_has_routes_of(&self, v4: bool) -> bool {
        self.birds.iter().any(|bird| bird.has_routes_of(v4))
    }
}

/// A form of packet filter rules in the kernel. Felix writes one of them, but all filter packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// The older backend, `iptables-legacy`.
    Legacy,
    /// The backend on nftables, `iptables-nft`.
    Nft,
    /// Felix's own tables of nftables (Calico 3.29 and later).
    Nftables,
}

impl Backend {
    /// All forms.
    pub const ALL: [Self; 3] = [Self::Legacy, Self::Nft, Self::Nftables];
    /// The two backends of iptables.
    pub const IPTABLES: [Self; 2] = [Self::Legacy, Self::Nft];

    /// Returns the name of the tool for a family, without `-save` or `-restore`.
    #[must_use]
    pub fn tool(self, v4: bool) -> &'static str {
        match (self, v4) {
            (Self::Legacy, true) => "iptables-legacy",
            (Self::Legacy, false) => "ip6tables-legacy",
            (Self::Nft, true) => "iptables-nft",
            (Self::Nft, false) => "ip6tables-nft",
            (Self::Nftables, _) => "nft",
        }
    }
}

/// Chains and sets of Felix.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Felix {
    /// Tables that contain chains of Felix.
    pub tables: Vec<FelixTable>,
    /// Sets by name: `cali40...` (IPv4), `cali60...` (IPv6), `felix-...` for Calico 1; those of nftables with
    /// their names in ipset.
    pub sets: BTreeMap<String, FelixSet>,
    /// Forms and families (true for IPv4) whose rules were read.
    pub read: BTreeSet<(Backend, bool)>,
    /// True if the sets were read.
    pub sets_read: bool,
}

impl Felix {
    /// Returns the table of this name (`filter`, `nat`, ...) and family with chains of Felix 2 and later; if
    /// several have one, the table with more chains.
    #[must_use]
    pub fn table(&self, v4: bool, name: &str) -> Option<&FelixTable> {
        let named = self.tables.iter().filter(|t| t.v4 == v4 && t.name == name && !t.old);
        named.max_by_key(|t| t.chains.len())
    }

    /// True if a table of this name and family has chains of Calico 1.
    #[must_use]
    pub fn has_old(&self, v4: bool, name: &str) -> bool {
        self.tables.iter().any(|t| t.v4 == v4 && t.name == name && t.old)
    }

    /// True if the host has no chains and no sets of Felix.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty() && self.sets.is_empty()
    }
}

/// The chains of Felix in one table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FelixTable {
    /// Form that the table has.
    pub backend: Backend,
    /// True for IPv4, false for IPv6.
    pub v4: bool,
    /// True for chains of Calico 1, which are found but not compared.
    pub old: bool,
    /// Name of the table: `filter`, `nat`, `mangle` or `raw`.
    pub name: String,
    /// Chains of Felix (`cali-...`, or `felix-...` for Calico 1) with their rules.
    pub chains: BTreeMap<String, Vec<FelixRule>>,
    /// Rules of other chains that jump to Felix's, each with the name of its chain.
    pub hooks: Vec<(String, FelixRule)>,
}

/// One rule, as `iptables-save` writes it. Of a rule of nftables only interfaces, verdict and comment have this
/// form.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FelixRule {
    /// Words after `-A CHAIN`, unquoted.
    pub words: Vec<String>,
}

impl FelixRule {
    /// Returns the word after an option, unless the option is negated.
    fn after(&self, option: &str) -> Option<&str> {
        let at = self.words.iter().position(|word| word == option)?;
        let negated = at.checked_sub(1).and_then(|before| self.words.get(before)).is_some_and(|w| w == "!");
        self.words.get(at + 1).filter(|_| !negated).map(String::as_str)
    }

    /// Returns the target: a chain, `ACCEPT`, `DROP`, `MARK` and so on.
    #[must_use]
    pub fn target(&self) -> Option<&str> {
        self.after("-j").or_else(|| self.after("-g"))
    }

    /// Returns the input interface (`-i`).
    #[must_use]
    pub fn comes_by(&self) -> Option<&str> {
        self.after("-i")
    }

    /// Returns the output interface (`-o`).
    #[must_use]
    pub fn leaves_by(&self) -> Option<&str> {
        self.after("-o")
    }
}

/// A set of Felix.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FelixSet {
    /// Type of the set: `hash:ip`, `hash:net` and so on.
    pub kind: String,
    /// True for IPv4, false for IPv6.
    pub v4: bool,
    /// Members that are addresses or networks.
    pub members: BTreeSet<Cidr>,
    /// Number of other members, such as those with ports.
    pub others: usize,
}

/// State of one BIRD.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Bird {
    /// Path of its socket.
    pub socket: String,
    /// Version as BIRD reports it.
    pub version: String,
    /// BGP router id.
    pub router_id: Option<std::net::Ipv4Addr>,
    /// Graceful restart recovery: BIRD started shortly before and waits for its peers before it installs and
    /// announces routes.
    pub recovery: Option<BirdRecovery>,
    /// Protocol instances, such as BGP sessions.
    pub protocols: Vec<BirdProtocol>,
    /// Routes of all protocols, best or not.
    pub routes: Vec<BirdRoute>,
}

impl Bird {
    /// Returns the BGP sessions.
    pub fn sessions(&self) -> impl Iterator<Item = &BirdProtocol> {
        self.protocols.iter().filter(|protocol| protocol.proto == "BGP")
    }

    /// True if it has a kernel channel of this family; only then does a missing route mean that BIRD has
    /// none.
    #[must_use]
    pub fn has_routes_of(&self, v4: bool) -> bool {
        let family = if v4 { "ipv4" } else { "ipv6" };
        self.protocols.iter().any(|p| p.proto == "Kernel" && p.is_of(family, v4, self))
    }
}

/// Graceful restart recovery of a BIRD that was started with `-R`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BirdRecovery {
    /// Remaining seconds of its wait timer at the time of the query.
    pub seconds: Option<u64>,
}

/// A protocol instance of BIRD.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BirdProtocol {
    /// Name; from Calico's configuration `Mesh_192_0_2_15`, `Global_...` or `Node_...`.
    pub name: String,
    /// Protocol: `BGP`, `Kernel`, `Static` and so on.
    pub proto: String,
    /// State of the instance: `up`, `start` or `down`.
    pub state: String,
    /// For BGP: `Established`, `Active` and so on, with the last error.
    pub info: String,
    /// For BGP: address of the neighbor.
    pub neighbor: Option<IpAddr>,
    /// For BGP: AS number of the neighbor.
    pub neighbor_as: Option<u32>,
    /// For BGP: local AS number.
    pub local_as: Option<u32>,
    /// For BGP: the neighbor restarted and has not sent all its routes again.
    pub neighbor_restarts: bool,
    /// For BGP: true if the neighbor supports graceful restart, so that it retains routes during one; `None`
    /// while the session is down.
    pub neighbor_keeps: Option<bool>,
    /// True if BIRD's own graceful restart recovery waits for this instance.
    pub awaited: bool,
    /// Channels: `ipv4`, `ipv6` (BIRD 2 only).
    pub channels: Vec<String>,
}

impl BirdProtocol {
    /// True if the session is established.
    #[must_use]
    pub fn is_established(&self) -> bool {
        self.info.starts_with("Established")
    }

    /// True if the instance carries this family. BIRD 1 has no channels: one daemon serves one family, which
    /// the name of its socket shows.
    fn is_of(&self, family: &str, v4: bool, bird: &Bird) -> bool {
        if self.channels.is_empty() {
            bird.socket.ends_with("6.ctl") != v4
        } else {
            self.channels.iter().any(|c| c == family)
        }
    }
}

/// A route in BIRD's tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BirdRoute {
    /// Destination prefix.
    pub prefix: Cidr,
    /// Protocol instance that supplied the route; for BGP a session.
    pub from: String,
    /// True if BIRD selected this route for the prefix.
    pub best: bool,
    /// BGP next hop.
    pub next_hop: Option<IpAddr>,
    /// True if BIRD cannot reach the next hop.
    pub unreachable: bool,
}
