//! The plumbing of one container: its interface, what the host side of it needs, its port mappings and its bandwidth.
//!
//! What it does not: it gives no address, knows no store and no policy, and runs no other program. It is called by
//! short-lived plugins next to the agent, never by the kernel thread; every call opens its own sockets and blocks for
//! milliseconds. What the agent looks after (`ends/`: routes to addresses, sysctls, neighbours of workload interfaces) is
//! written here in the same form, so that the agent finds it right.
//!
//! ```text
//!   host                                              | the container's network namespace
//!   caliXXXXXXXXXXX (ee:ee:ee:ee:ee:ee) <--- veth ---> eth0  A/32, 169.254.1.1 dev eth0, default via 169.254.1.1
//!    | A/32 dev cali..., sysctls, fe80::...:eeee       |      B/128, default via the host side's fe80::...
//!    | tbf: what goes to the container                 |
//!    | ifb: what comes from it                         |  from A or B: default by this interface (source_routing.rs)
//!   table inet tortie-ports-...: one for each container with port mappings
//! ```

mod bandwidth;
mod host;
mod inside;
mod inspect;
mod link;
mod mapped;
mod namespace;
mod ports;
mod source_routing;

use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;

use sha2::{Digest as _, Sha256};
use tortie_config::resource::{InterfaceName, MacAddr};
use tortie_net::Cidr;

pub use self::bandwidth::{limit, shaped, unlimit};
pub use self::host::{
    Adopted, add_router, alias_of, create_veth, host_routes, host_side, is_attached, orphans, remove_link,
    restore_link, take_link, unmark,
};
pub use self::inside::{Stripped, configure_container};
pub use self::mapped::{FOLDER as PORTS_FOLDER, MappedPorts, mapped_ports, restore_ports};
pub use self::namespace::Namespace;
pub use self::ports::{PORTS_PREFIX, former_ports_table, map_ports, mapped_tables, ports_table, unmap_ports};
pub use self::source_routing::{MoveState, MovedInterface, complete_moved, gateways, sweep_source_rules};
pub use crate::container::inspect::{ContainerState, HostSideState, inspect_container, inspect_host_side};

/// What every workload sends to instead of a router.
pub use crate::endpoints::GATEWAY;

/// The MAC address of the host side of every workload's interface, as Calico has it.
pub const HOST_MAC: MacAddr = MacAddr([0xee; 6]);

/// Least MTU of an interface with IPv6, in octets (RFC 8200 section 5).
pub const MIN_MTU_V6: u32 = 1280;

/// A pair of interfaces to be made.
#[derive(Debug, Clone)]
pub struct VethSpec<'a> {
    /// The one on this host.
    pub host: &'a InterfaceName,
    /// Its MAC address; `None`: the kernel draws one.
    pub host_mac: Option<MacAddr>,
    /// The other one.
    pub peer: &'a InterfaceName,
    /// Its MAC address.
    pub peer_mac: Option<MacAddr>,
    /// Where the other one is made, without ever being seen elsewhere; `None`: on this host.
    pub namespace: Option<&'a Namespace>,
    /// Of both, in octets; `None`: the kernel's default.
    pub mtu: Option<u32>,
    /// Shown with the one on this host by `ip link`; at most 255 octets.
    pub alias: &'a str,
}

/// What the host side needs.
#[derive(Debug, Clone)]
pub struct HostSpec<'a> {
    /// The interface.
    pub name: &'a InterfaceName,
    /// The addresses that it leads to.
    pub addrs: &'a [IpAddr],
    /// In octets; `None`: as it is.
    pub mtu: Option<u32>,
}

/// What the host side has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostSide {
    /// Its number.
    pub index: u32,
    /// Its MAC address.
    pub mac: MacAddr,
    /// In octets.
    pub mtu: u32,
    /// Its link-local address: the workload's IPv6 router. `None` without IPv6 addresses.
    pub link_local: Option<Ipv6Addr>,
}

/// What the interface inside of the namespace should have.
#[derive(Debug, Clone)]
pub struct InsideSpec<'a> {
    /// The interface as it is now.
    pub existing: &'a InterfaceName,
    /// The name that it should have.
    pub name: &'a InterfaceName,
    /// Its MAC address; `None`: as it is.
    pub mac: Option<MacAddr>,
    /// In octets; `None`: as it is.
    pub mtu: Option<u32>,
    /// Its addresses, as /32 and /128.
    pub addrs: &'a [IpAddr],
    /// The MAC address of the host side, which is what 169.254.1.1 resolves to.
    pub host_mac: MacAddr,
    /// The IPv6 router.
    pub link_local: Option<Ipv6Addr>,
    /// Where to by the host; `None`: everywhere.
    pub routes: Option<&'a [Cidr]>,
}

/// The transport protocols that ports can be mapped of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl Transport {
    /// Its number in the IP header.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }

    /// `tcp`, `udp` or `sctp`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }
}

impl std::str::FromStr for Transport {
    type Err = String;

    /// Reads a name in any case.
    fn from_str(text: &str) -> Result<Self, String> {
        match text.to_ascii_lowercase().as_str() {
            "tcp" => Ok(Self::Tcp),
            "udp" => Ok(Self::Udp),
            "sctp" => Ok(Self::Sctp),
            _ => Err(format!("protocol `{text}`: write tcp, udp or sctp")),
        }
    }
}

/// A port of this host that leads to a port of the container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct PortMapping {
    /// The address of the host; `None`: all of them, of both families. An unspecified one is all of its family.
    pub host_ip: Option<IpAddr>,
    /// 1 to 65535.
    pub host_port: u16,
    /// 1 to 65535.
    pub container_port: u16,
    /// Of both ports.
    pub protocol: Transport,
}

impl std::fmt::Display for PortMapping {
    /// `192.0.2.1:8080 -> 80/tcp`; `*`: every address of the host.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { host_ip, host_port, container_port, protocol } = self;
        match host_ip {
            Some(IpAddr::V6(v6)) => write!(f, "[{v6}]")?,
            Some(v4) => write!(f, "{v4}")?,
            None => f.write_str("*")?,
        }
        write!(f, ":{host_port} -> {container_port}/{}", protocol.as_str())
    }
}

/// How much may pass in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rate {
    /// Bits a second, at least 8.
    pub bits: u64,
    /// Bits that may pass at once after a pause. `None`, 0, and 4294967295 or more (what runtimes send for "do not
    /// care"): as many as 20 ms of the rate, at least 32 KiB.
    pub burst: Option<u64>,
}

/// How much may pass, as the container sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Bandwidth {
    /// To the container.
    pub ingress: Option<Rate>,
    /// From the container.
    pub egress: Option<Rate>,
}

/// Why it was not done.
#[derive(Debug, thiserror::Error)]
pub enum ContainerNetError {
    /// The path leads nowhere.
    #[error("network namespace {} does not exist", .0.display())]
    NoNamespace(PathBuf),
    /// The path leads to something else.
    #[error("{} is no network namespace: {why}", path.display())]
    NotNamespace {
        /// The path.
        path: PathBuf,
        /// What it is.
        why: String,
    },
    /// The path leads to the namespace of this process.
    #[error(
        "{} is the host's own network namespace, not a container's; nothing was changed",
        .0.display()
    )]
    OwnNamespace(PathBuf),
    /// An interface of that name is there already.
    #[error("interface {name} exists already {place}")]
    Exists {
        /// Its name.
        name: String,
        /// `in the container` or `on this host`.
        place: &'static str,
    },
    /// Two things would have one interface: names have 44 bits of an id.
    #[error(
        "interface {name} on this host is {holder}'s, and {wanted} would have the same name: {wanted} is refused, and {holder} stays as it \
         is; give {wanted} another id (start it anew), or remove {holder}"
    )]
    Taken {
        /// Its name.
        name: String,
        /// The text at the interface: whose it is.
        holder: String,
        /// Who would have it, too.
        wanted: String,
    },
    /// An interface is not there.
    #[error("interface {name} does not exist {place}")]
    Missing {
        /// Its name.
        name: String,
        /// `in the container` or `on this host`.
        place: &'static str,
    },
    /// Another interface has the address.
    #[error(
        "this host has a route to {addr} over {by}: the address is in use, or was left behind; see `tortie ipam check`"
    )]
    AddressInUse {
        /// The address.
        addr: IpAddr,
        /// The other interface.
        by: String,
    },
    /// IPv6 on a link that is too small for it.
    #[error("an MTU of {0} is too small for IPv6 addresses: set 1280 or more")]
    SmallMtu(u32),
    /// The kernel lacks something.
    #[error("the kernel lacks {what}: load the module {module}, or do without")]
    Module {
        /// What for.
        what: &'static str,
        /// The module, or several.
        module: &'static str,
    },
    /// A value that cannot be.
    #[error("{0}")]
    Invalid(String),
    /// The kernel refuses something.
    #[error("{doing}: {text}")]
    Refused {
        /// What was tried.
        doing: String,
        /// The errno, positive; 0 when there is none.
        code: i32,
        /// In words.
        text: String,
    },
    /// No privileges, or no netlink.
    #[error("{doing}: {error}")]
    Io {
        /// What was tried.
        doing: String,
        /// The system's answer.
        error: io::Error,
    },
}

impl ContainerNetError {
    fn refused(doing: impl Into<String>, refusal: &crate::netlink::socket::Refusal) -> Self {
        Self::Refused { doing: doing.into(), code: refusal.code, text: refusal.text.clone() }
    }

    fn io(doing: impl Into<String>, error: io::Error) -> Self {
        Self::Io { doing: doing.into(), error }
    }
}

/// 160 bits of SHA-256 of a text in hexadecimal digits, the same in every process and build: names of tables are made of it.
#[must_use]
pub fn name_hash(text: &str) -> String {
    let digest = Sha256::digest(text);
    digest.iter().take(20).map(|octet| format!("{octet:02x}")).collect()
}

/// A hash of a text (FNV-1a, 64 bits), the same in every process and build: names of interfaces, which have 15 octets, are made of it.
/// Whose an interface is says the text at it, not its name.
#[must_use]
pub fn hash(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}
