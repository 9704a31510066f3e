//! Network set-up of one container: its interface, the host side of it, its port mappings and its bandwidth
//! limits.
//!
//! This module allocates no addresses, knows neither store nor policy, and runs no other program. It is
//! called by short-lived plugins next to the agent, never by the kernel thread. Every call opens its own
//! sockets and blocks for milliseconds. The state that the agent maintains (`endpoints/`: routes to
//! addresses, sysctls, neighbours of workload interfaces) is written here in the same form, so that the agent
//! finds it correct.
//!
//! ```text
//!   host                                              | network namespace of the container
//!   cali0123456789a (ee:ee:ee:ee:ee:ee) <--- veth ---> eth0  A/32, B/128
//!    | A/32 dev cali..., sysctls, fe80::...:eeee       |      169.254.1.1 dev eth0, default via 169.254.1.1
//!    | tbf: rate limit to the container                |      default via fe80::... of the host side
//!    | ifb: rate limit from the container              |      from A, B: this interface (source_routing.rs)
//!   table inet tortie-ports-...: one per container with port mappings
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

/// Default gateway of every workload, proxied by the host.
pub use crate::endpoints::GATEWAY;

/// MAC address of the host side of every workload's interface, as in Calico.
pub const HOST_MAC: MacAddr = MacAddr([0xee; 6]);

/// Minimum MTU of an interface with IPv6, in octets (RFC 8200 section 5).
pub const MIN_MTU_V6: u32 = 1280;

/// Parameters of a veth pair.
#[derive(Debug, Clone)]
pub struct VethSpec<'a> {
    /// Name of the host side.
    pub host: &'a InterfaceName,
    /// MAC address of the host side; `None` lets the kernel choose one.
    pub host_mac: Option<MacAddr>,
    /// Name of the container side.
    pub peer: &'a InterfaceName,
    /// MAC address of the container side; `None` lets the kernel choose one.
    pub peer_mac: Option<MacAddr>,
    /// Namespace in which the container side is created directly; `None` means this host.
    pub namespace: Option<&'a Namespace>,
    /// MTU of both sides, in octets; `None` means the kernel's default.
    pub mtu: Option<u32>,
    /// Alias of the host side, shown by `ip link`; at most 255 octets.
    pub alias: &'a str,
}

/// Settings of the host side.
#[derive(Debug, Clone)]
pub struct HostSpec<'a> {
    /// Name of the interface.
    pub name: &'a InterfaceName,
    /// Workload addresses to which it leads.
    pub addrs: &'a [IpAddr],
    /// MTU in octets; `None` leaves it as it is.
    pub mtu: Option<u32>,
}

/// State of the configured host side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostSide {
    /// Interface index.
    pub index: u32,
    /// MAC address of the interface.
    pub mac: MacAddr,
    /// MTU in octets.
    pub mtu: u32,
    /// Link-local address, the IPv6 gateway of the workload; `None` without IPv6 addresses.
    pub link_local: Option<Ipv6Addr>,
}

/// Settings of the interface in the container's namespace.
#[derive(Debug, Clone)]
pub struct InsideSpec<'a> {
    /// Current name of the interface.
    pub existing: &'a InterfaceName,
    /// Name to be set.
    pub name: &'a InterfaceName,
    /// MAC address; `None` leaves it as it is.
    pub mac: Option<MacAddr>,
    /// MTU in octets; `None` leaves it as it is.
    pub mtu: Option<u32>,
    /// Addresses of the container, added as /32 and /128.
    pub addrs: &'a [IpAddr],
    /// MAC address of the host side, to which 169.254.1.1 resolves.
    pub host_mac: MacAddr,
    /// IPv6 gateway, the link-local address of the host side.
    pub link_local: Option<Ipv6Addr>,
    /// Destinations routed via the host; `None` means all.
    pub routes: Option<&'a [Cidr]>,
}

/// Transport protocols whose ports can be mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// TCP, protocol 6.
    Tcp,
    /// UDP, protocol 17.
    Udp,
    /// SCTP, protocol 132.
    Sctp,
}

impl Transport {
    /// Returns the protocol number in the IP header.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }

    /// Returns `tcp`, `udp` or `sctp`.
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

    /// Parses a name in upper or lower case.
    fn from_str(text: &str) -> Result<Self, String> {
        match text.to_ascii_lowercase().as_str() {
            "tcp" => Ok(Self::Tcp),
            "udp" => Ok(Self::Udp),
            "sctp" => Ok(Self::Sctp),
            _ => Err(format!("protocol `{text}`: write tcp, udp or sctp")),
        }
    }
}

/// A port of this host that is forwarded to a port of the container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct PortMapping {
    /// Address of the host; `None` means all addresses of both families, an unspecified address means all of
    /// its family.
    pub host_ip: Option<IpAddr>,
    /// Port of the host, 1 to 65535.
    pub host_port: u16,
    /// Port of the container, 1 to 65535.
    pub container_port: u16,
    /// Protocol of both ports.
    pub protocol: Transport,
}

impl std::fmt::Display for PortMapping {
    /// Writes `192.0.2.1:8080 -> 80/tcp`; `*` stands for every address of the host.
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

/// Rate limit of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rate {
    /// Bits per second, at least 8.
    pub bits: u64,
    /// Burst in bits. `None`, 0, and 4294967295 or more (sent by runtimes if none is configured) mean 20 ms
    /// of the rate, at least 32 KiB.
    pub burst: Option<u64>,
}

/// Rate limits, from the point of view of the container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Bandwidth {
    /// Limit of traffic to the container.
    pub ingress: Option<Rate>,
    /// Limit of traffic from the container.
    pub egress: Option<Rate>,
}

/// Failure of a set-up, removal or check of a container's network.
#[derive(Debug, thiserror::Error)]
pub enum ContainerNetError {
    /// The path of the namespace does not exist.
    #[error("network namespace {} does not exist", .0.display())]
    NoNamespace(PathBuf),
    /// The path is not a network namespace.
    #[error("{} is no network namespace: {why}", path.display())]
    NotNamespace {
        /// The path that was given.
        path: PathBuf,
        /// Kind of file that it is.
        why: String,
    },
    /// The path is the namespace of this process.
    #[error(
        "{} is the host's own network namespace, not a container's; nothing was changed",
        .0.display()
    )]
    OwnNamespace(PathBuf),
    /// An interface of that name exists.
    #[error("interface {name} exists already {place}")]
    Exists {
        /// Name of the interface.
        name: String,
        /// `in the container` or `on this host`.
        place: &'static str,
    },
    /// Two owners need the same interface name: names contain 44 bits of a hash of the owner's ID.
    #[error(
        "interface {name} on this host belongs to {holder}, and {wanted} would have the same name: {wanted} \
         is refused, and {holder} stays as it is; give {wanted} another id (start it again), or remove \
         {holder}"
    )]
    Taken {
        /// Name of the interface.
        name: String,
        /// Alias of the interface, which identifies the current owner.
        holder: String,
        /// Alias of the refused owner.
        wanted: String,
    },
    /// An interface does not exist.
    #[error("interface {name} does not exist {place}")]
    Missing {
        /// Name of the interface.
        name: String,
        /// `in the container` or `on this host`.
        place: &'static str,
    },
    /// Another interface has a route to the address.
    #[error(
        "this host has a route to {addr} over {by}: the address is in use, or the route is a leftover; see \
         `tortie ipam check`"
    )]
    AddressInUse {
        /// The address in use.
        addr: IpAddr,
        /// Name of the other interface.
        by: String,
    },
    /// The MTU is too small for IPv6.
    #[error("an MTU of {0} is too small for IPv6 addresses: set 1280 or more")]
    SmallMtu(u32),
    /// The kernel lacks a feature.
    #[error("the kernel lacks {what}: load the module {module}, or do not use this feature")]
    Module {
        /// The missing feature.
        what: &'static str,
        /// Kernel module, or several, that provides it.
        module: &'static str,
    },
    /// An invalid value, with the reason.
    #[error("{0}")]
    Invalid(String),
    /// The kernel refused a request.
    #[error("{doing}: {text}")]
    Refused {
        /// Failed operation, as text.
        doing: String,
        /// Positive errno; 0 if there is none.
        code: i32,
        /// The error as text.
        text: String,
    },
    /// A system call failed, for example for lack of privileges or netlink.
    #[error("{doing}: {error}")]
    Io {
        /// Failed operation, as text.
        doing: String,
        /// Error of the system call.
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

/// Returns 160 bits of the SHA-256 hash of a text in hexadecimal digits, the same in every process and build;
/// used in names of tables.
#[must_use]
pub fn name_hash(text: &str) -> String {
    let digest = Sha256::digest(text);
    digest.iter().take(20).map(|octet| format!("{octet:02x}")).collect()
}

/// Returns a hash of a text (FNV-1a, 64 bits), the same in every process and build; used in names of
/// interfaces, which have at most 15 octets. The alias of an interface, not its name, identifies its owner.
#[must_use]
pub fn hash(text: &str) -> u64 {
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}
