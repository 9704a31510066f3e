//! What BIRD and Felix left on this host: the types of findings.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use tortie_net::Cidr;

pub use tortie_kernel::{MainHop, MainRoute, NetworkSnapshot, RouteKind};

/// BIRD's number for routes that it writes (`RTPROT_BIRD`, linux/rtnetlink.h).
pub const BIRD: u8 = 12;

/// Something that was not looked at, and why: nothing of it counts as equal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unreadable {
    /// What.
    pub what: String,
    /// Why, with what would help.
    pub why: String,
}

/// Everything that one look found.
#[derive(Debug, Default)]
pub struct ForeignState {
    /// The main table of the kernel with links and addresses.
    pub look: NetworkSnapshot,
    /// Packet rules and address sets.
    pub felix: Felix,
    /// What BIRD says of itself, of each of its sockets that answered: one for both families (BIRD 2), or one each.
    pub birds: Vec<Bird>,
    /// What could not be looked at.
    pub unreadable: Vec<Unreadable>,
}

impl ForeignState {
    /// Whether some BIRD tells of routes of this family.
    #[must_use]
    pub fn bird_has_routes_of(&self, v4: bool) -> bool {
        self.birds.iter().any(|bird| bird.has_routes_of(v4))
    }
}

// Felix.

/// The two generations of packet rules in the kernel; Felix writes one of them, and both act on packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// `iptables-legacy`.
    Legacy,
    /// `iptables-nft`.
    Nft,
}

impl Backend {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Legacy, Self::Nft];

    /// What its tools for a family are called, before `-save` and `-restore`.
    #[must_use]
    pub fn tool(self, v4: bool) -> &'static str {
        match (self, v4) {
            (Self::Legacy, true) => "iptables-legacy",
            (Self::Legacy, false) => "ip6tables-legacy",
            (Self::Nft, true) => "iptables-nft",
            (Self::Nft, false) => "ip6tables-nft",
        }
    }
}

/// Chains and sets of Felix.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Felix {
    /// The tables that have chains of Felix.
    pub tables: Vec<FelixTable>,
    /// Its sets by name: `cali40...` (IPv4), `cali60...` (IPv6), of Calico 1 `felix-...`.
    pub sets: BTreeMap<String, FelixSet>,
    /// Whether the rules of each backend and family could be read.
    pub read: BTreeSet<(Backend, bool)>,
    /// Whether sets could be read.
    pub sets_read: bool,
}

impl Felix {
    /// The table of this name (`filter`, `nat`, ...) of a family, with chains of Felix 2; of two backends the one with more.
    #[must_use]
    pub fn table(&self, v4: bool, name: &str) -> Option<&FelixTable> {
        let named = self.tables.iter().filter(|t| t.v4 == v4 && t.name == name && !t.old);
        named.max_by_key(|t| t.chains.len())
    }

    /// Whether a table of this name of a family has chains of Calico 1.
    #[must_use]
    pub fn has_old(&self, v4: bool, name: &str) -> bool {
        self.tables.iter().any(|t| t.v4 == v4 && t.name == name && t.old)
    }

    /// Nothing of Felix is here.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty() && self.sets.is_empty()
    }
}

/// The chains of Felix in one table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FelixTable {
    /// Whose rules.
    pub backend: Backend,
    /// IPv4, else IPv6.
    pub v4: bool,
    /// Of Calico 1, whose chains are found and not compared.
    pub old: bool,
    /// `filter`, `nat`, `mangle`, `raw`.
    pub name: String,
    /// Chains of Felix (`cali-...`, of Calico 1 `felix-...`) with their rules.
    pub chains: BTreeMap<String, Vec<FelixRule>>,
    /// Rules of other chains that lead into Felix's, with the chain that they stand in.
    pub hooks: Vec<(String, FelixRule)>,
}

/// One rule, as `iptables-save` writes it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FelixRule {
    /// Its words after `-A CHAIN`, quotes taken off.
    pub words: Vec<String>,
}

impl FelixRule {
    /// The word after an option, unless it is negated.
    fn after(&self, option: &str) -> Option<&str> {
        let at = self.words.iter().position(|word| word == option)?;
        let negated = at.checked_sub(1).and_then(|before| self.words.get(before)).is_some_and(|w| w == "!");
        self.words.get(at + 1).filter(|_| !negated).map(String::as_str)
    }

    /// What becomes of a packet that matches: a chain, `ACCEPT`, `DROP`, `MARK`, ...
    #[must_use]
    pub fn target(&self) -> Option<&str> {
        self.after("-j").or_else(|| self.after("-g"))
    }

    /// The interface that a packet came by (`-i`).
    #[must_use]
    pub fn comes_by(&self) -> Option<&str> {
        self.after("-i")
    }

    /// The interface that a packet leaves by (`-o`).
    #[must_use]
    pub fn leaves_by(&self) -> Option<&str> {
        self.after("-o")
    }
}

/// A set of Felix.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FelixSet {
    /// `hash:ip`, `hash:net`, ...
    pub kind: String,
    /// IPv4, else IPv6.
    pub v4: bool,
    /// Its members that are addresses or networks.
    pub members: BTreeSet<Cidr>,
    /// How many members are something else (with ports).
    pub others: usize,
}

// BIRD.

/// What one BIRD says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Bird {
    /// Its socket.
    pub socket: String,
    /// Its version, as it says it.
    pub version: String,
    /// Its router id.
    pub router_id: Option<std::net::Ipv4Addr>,
    /// It was started a short time ago and waits for its peers before it writes and tells routes (graceful restart).
    pub recovery: Option<BirdRecovery>,
    /// Its protocol instances.
    pub protocols: Vec<BirdProtocol>,
    /// Its routes of all protocols, best or not.
    pub routes: Vec<BirdRoute>,
}

impl Bird {
    /// Its BGP sessions.
    pub fn sessions(&self) -> impl Iterator<Item = &BirdProtocol> {
        self.protocols.iter().filter(|protocol| protocol.proto == "BGP")
    }

    /// Whether it has a kernel channel of this family, so that its silence about a route means that it has none.
    #[must_use]
    pub fn has_routes_of(&self, v4: bool) -> bool {
        let family = if v4 { "ipv4" } else { "ipv6" };
        self.protocols.iter().any(|p| p.proto == "Kernel" && p.is_of(family, v4, self))
    }
}

/// The recovery of a BIRD that was started with `-R`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BirdRecovery {
    /// When it waits no longer, in seconds from when it was asked.
    pub seconds: Option<u64>,
}

/// A protocol instance of BIRD.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BirdProtocol {
    /// Its name: `Mesh_192_0_2_15`, `Global_...`, `Node_...` where Calico wrote its configuration.
    pub name: String,
    /// `BGP`, `Kernel`, `Static`, ...
    pub proto: String,
    /// `up`, `start`, `down`.
    pub state: String,
    /// Of BGP: `Established`, `Active`, ... with the last error.
    pub info: String,
    /// Of BGP.
    pub neighbor: Option<IpAddr>,
    /// Of BGP.
    pub neighbor_as: Option<u32>,
    /// Of BGP.
    pub local_as: Option<u32>,
    /// Of BGP: the neighbor restarted, and has not sent all its routes again.
    pub neighbor_restarts: bool,
    /// Of BGP: whether the neighbor knows graceful restarts, so that it keeps routes through one; not known of a session that
    /// is down.
    pub neighbor_keeps: Option<bool>,
    /// BIRD's own recovery waits for it.
    pub awaited: bool,
    /// `ipv4`, `ipv6` (BIRD 2).
    pub channels: Vec<String>,
}

impl BirdProtocol {
    /// The session is up.
    #[must_use]
    pub fn is_established(&self) -> bool {
        self.info.starts_with("Established")
    }

    /// BIRD 1 has no channels: a daemon is of the family that its addresses are of, as its socket says.
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
    /// The prefix.
    pub prefix: Cidr,
    /// The protocol instance that it came from: of BGP a session.
    pub from: String,
    /// BIRD's choice for this prefix.
    pub best: bool,
    /// BGP next hop.
    pub next_hop: Option<IpAddr>,
    /// BIRD does not reach the next hop.
    pub unreachable: bool,
}
