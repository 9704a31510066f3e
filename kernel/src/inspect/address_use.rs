//! Finds the addresses in use on this host: on interfaces, in the network namespaces of its workloads, behind
//! routes and as neighbours. Used by `ipam check` and `ipam show`, on separate sockets and a separate thread;
//! it writes nothing.
//!
//! A machine may have more than one host (labs, nested containers). Only namespaces that share a link with
//! the caller's belong to this host: the kernel assigns IDs to those (RTM_GETNSID, ip-netns(8) `list-id`),
//! and to no others.
//!
//! Some namespaces cannot be found or entered. A workload with an interface of its own is found nevertheless,
//! by the route to it. A workload behind a bridge port is not, so that port is reported
//! ([`AddressUses::unreadable`]).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::os::linux::fs::MetadataExt;
use std::path::{Path, PathBuf};

use netlink_packet_core::Parseable;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::LinkAttribute;
use netlink_packet_route::nsid::{NsidAttribute, NsidMessage};
use rustix::thread::LinkNameSpaceType;
use serde::{Deserialize, Serialize};

use crate::endpoints;
use crate::netlink::codec::NLM_F_ACK;
use crate::netlink::link::{self, Address, Link};
use crate::netlink::route::{RTN_UNICAST, Route};
use crate::netlink::socket::Socket;
use crate::netlink::{dump, message};

const RTM_NEWNSID: u16 = 88;
const IFLA_MASTER: u16 = 10;
const IFLA_LINK_NETNSID: u16 = 37;
/// Length of `struct rtgenmsg`, padded, in octets.
const RTGENMSG: usize = 4;

/// Folders of named namespaces: those of iproute2 and CNI, and Docker's by both of its paths.
const MOUNTED: [&str; 3] = ["/run/netns", "/run/docker/netns", "/var/run/docker/netns"];

/// One place where an address is in use on this host.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AddressUse {
    /// The address in use.
    pub addr: IpAddr,
    /// Place where it is in use.
    pub place: UsePlace,
}

/// Kind of place where an address is in use.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum UsePlace {
    /// On an interface of the host itself.
    Host {
        /// Name of the interface.
        interface: String,
    },
    /// On an interface in another network namespace of this host.
    Workload {
        /// Name of the interface in that namespace.
        interface: String,
        /// The namespace: its path, or a process in it.
        namespace: String,
    },
    /// A route of the main table to this single address is on-link over an interface.
    Route {
        /// Name of the interface.
        interface: String,
    },
    /// The neighbour table of the host has a MAC address for it.
    Neighbour {
        /// Name of the interface.
        interface: String,
        /// MAC address of the neighbour.
        mac: [u8; 6],
    },
}

impl std::fmt::Display for UsePlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Host { interface } => write!(f, "on {interface} of this host"),
            Self::Workload { interface, namespace } => write!(f, "on {interface} in {namespace}"),
            Self::Route { interface } => write!(f, "a route leads to {interface}"),
            Self::Neighbour { interface, mac: [a, b, c, d, e, g] } => {
                write!(f, "neighbour {a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x} on {interface}")
            }
        }
    }
}

/// Addresses in use on this host.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressUses {
    /// All uses, sorted by address, except loopback, link-local and multicast addresses.
    pub found: Vec<AddressUse>,
    /// The interfaces of the host's own namespace.
    pub interfaces: BTreeSet<String>,
    /// Number of namespaces that were read, including the host's own.
    pub namespaces: usize,
    /// Descriptions of places that could not be read. An address that is not in `found` may be in use there.
    pub unreadable: Vec<String>,
}

impl AddressUses {
    /// Returns the uses of one address.
    pub fn of(&self, addr: IpAddr) -> impl Iterator<Item = &UsePlace> {
        let from = self.found.partition_point(|s| s.addr < addr);
        self.found.iter().skip(from).take_while(move |s| s.addr == addr).map(|s| &s.place)
    }
}

/// Reads the network namespace of the caller and all namespaces connected with it. Blocks during the dumps:
/// about 1 ms, and 0.2 ms for each further namespace.
///
/// # Errors
/// The caller's own namespace cannot be read.
pub fn address_uses() -> io::Result<AddressUses> {
    let mut uses = AddressUses { namespaces: 1, ..AddressUses::default() };
    let own = File::open("/proc/thread-self/ns/net")?;
    let mut socket = Socket::open()?;
    let (links, addresses) = dump::devices(&mut socket)?;
    note(&mut uses.found, &links, &addresses, |interface| UsePlace::Host { interface });
    uses.interfaces = links.iter().map(|link| link.name.clone()).collect();
    let mut routes = Vec::new();
    dump::routes(&mut socket, |route| routes.extend(direct(&route)))?;
    let names: BTreeMap<u32, &str> = links.iter().map(|link| (link.index, &*link.name)).collect();
    let name = |index| names.get(&index).map_or_else(|| format!("interface {index}"), |n| (*n).to_owned());
    let behind = routes.into_iter().map(|(addr, index)| (addr, UsePlace::Route { interface: name(index) }));
    let neighbours = endpoints::neighbours(&mut socket)?;
    let next = neighbours
        .into_iter()
        .map(|n| (n.addr, UsePlace::Neighbour { interface: name(n.ifindex), mac: n.mac }))
        .chain(behind)
        .filter(|(addr, _)| counts(*addr));
    uses.found.extend(next.map(|(addr, place)| AddressUse { addr, place }));
    let others = other_namespaces(&own);
    let mut unread_ports = bridged(&mut socket)?;
    read_namespaces(&mut uses, &mut socket, &own, others, &mut unread_ports);
    uses.unreadable.extend(unread_ports.into_values().map(|port| {
        format!(
            "the network namespace behind {port}, a port of a bridge, cannot be read: run as root, with \
             access to the host's processes and /run"
        )
    }));
    uses.found.sort_unstable();
    uses.found.dedup();
    Ok(uses)
}

/// Returns the address and the interface of an on-link route to a single address.
pub(super) fn direct(route: &Route) -> Option<(IpAddr, u32)> {
    match route.legs.as_slice() {
        [leg] if leg.gateway.is_none() && route.kind == RTN_UNICAST && route.prefix.is_host() => {
            Some((route.prefix.addr(), leg.ifindex))
        }
        _ => None,
    }
}

fn counts(addr: IpAddr) -> bool {
    let local = match addr {
        IpAddr::V4(a) => a.is_link_local(),
        IpAddr::V6(a) => a.is_unicast_link_local(),
    };
    !(local || addr.is_loopback() || addr.is_multicast() || addr.is_unspecified())
}

fn note(
    found: &mut Vec<AddressUse>,
    links: &[Link],
    addresses: &[Address],
    place: impl Fn(String) -> UsePlace,
) {
    for address in addresses.iter().filter(|a| counts(a.addr)) {
        let link = links.iter().find(|link| link.index == address.ifindex);
        let name = link.map_or_else(|| format!("interface {}", address.ifindex), |link| link.name.clone());
        found.push(AddressUse { addr: address.addr, place: place(name) });
    }
}

/// Lists bridge ports whose other side is in another namespace, by the ID of that namespace.
fn bridged(socket: &mut Socket) -> io::Result<BTreeMap<i32, String>> {
    let mut ports = BTreeMap::new();
    let answer = socket.dump(link::encode_link_dump, |message| {
        let Some(link) = link::decode_link(message) else { return };
        let (mut namespace, mut port) = (None, false);
        let wanted = |kind| matches!(kind, IFLA_MASTER | IFLA_LINK_NETNSID);
        for attribute in link::link_attributes(message, wanted).into_iter().flatten() {
            match attribute {
                LinkAttribute::LinkNetNsId(number) => namespace = Some(number),
                LinkAttribute::Controller(_) => port = true,
                _ => {}
            }
        }
        if let (Some(namespace), true) = (namespace, port) {
            ports.insert(namespace, link.name);
        }
    })?;
    answer.map_err(|refusal| io::Error::other(refusal.to_string()))?;
    Ok(ports)
}

/// Opens the network namespaces of this machine except the caller's, each once, with a name for people.
fn other_namespaces(own: &File) -> Vec<(String, File)> {
    let mut namespaces: BTreeMap<(u64, u64), (String, File)> = BTreeMap::new();
    let known = own.metadata().map(|m| (m.st_dev(), m.st_ino())).ok();
    // Namespaces and processes may end during the search.
    let mut add = |name: &dyn Fn() -> String, path: &Path| {
        let Ok(meta) = std::fs::metadata(path) else { return };
        let id = (meta.st_dev(), meta.st_ino());
        // A file that is no namespace (left by an unmounted one) has the device of its folder.
        let is_one = known.is_none_or(|(device, _)| device == id.0);
        if is_one
            && Some(id) != known
            && !namespaces.contains_key(&id)
            && let Ok(file) = File::open(path)
        {
            namespaces.insert(id, (name(), file));
        }
    };
    for folder in MOUNTED {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            add(&|| path.display().to_string(), &path);
        }
    }
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().filter(|n| n.bytes().all(|b| b.is_ascii_digit())) else { continue };
        let path: PathBuf = ["/proc", pid, "ns", "net"].iter().collect();
        let process_name = || {
            let command = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            format!("process {pid} ({})", command.trim_end())
        };
        add(&process_name, &path);
    }
    namespaces.into_values().collect()
}

/// Reads the addresses of every namespace that shares a link with the caller's. Removes the ports of those
/// that were read from `unread_ports`.
fn read_namespaces(
    uses: &mut AddressUses,
    own_socket: &mut Socket,
    own: &File,
    others: Vec<(String, File)>,
    unread_ports: &mut BTreeMap<i32, String>,
) {
    // A thread has its own network namespace: one short-lived thread enters all of them, and the caller's
    // does not change.
    let looked = std::thread::scope(|scope| {
        let body = || {
            let mut looked = Vec::new();
            for (name, file) in others {
                let number = number(own_socket, &file);
                let entered =
                    rustix::thread::move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network));
                let read = entered.map_err(io::Error::from).and_then(|()| {
                    let mut socket = Socket::open()?;
                    let devices = dump::devices(&mut socket)?;
                    // Once their links were read, they may have an ID for the caller's, for example that of a
                    // macvlan's parent.
                    let shared = number.is_some() || self::number(&mut socket, own).is_some();
                    Ok(shared.then_some(devices))
                });
                looked.push((name, number, read));
            }
            looked
        };
        let thread = std::thread::Builder::new().name("namespaces".to_owned()).spawn_scoped(scope, body)?;
        thread.join().map_err(|_| io::Error::other("the thread that reads namespaces ended"))
    });
    let looked = match looked {
        Ok(looked) => looked,
        Err(error) => return uses.unreadable.push(format!("no other namespace was read: {error}")),
    };
    for (name, number, read) in looked {
        match read {
            Ok(Some((links, addresses))) => {
                uses.namespaces += 1;
                let place = |interface| UsePlace::Workload { interface, namespace: name.clone() };
                note(&mut uses.found, &links, &addresses, place);
                number.and_then(|number| unread_ports.remove(&number));
            }
            Ok(None) => {}
            Err(error) => tracing::debug!(target: "tortie", "{name} was not read: {error}"),
        }
    }
}

/// Returns the ID of a namespace in the namespace of `socket`; the kernel assigns one if a link of `socket`'s
/// has its other side there.
fn number(socket: &mut Socket, namespace: &File) -> Option<i32> {
    let mut found = None;
    let ask = |buf: &mut Vec<u8>, seq| {
        let mut wanted = NsidMessage::default();
        wanted.attributes.push(NsidAttribute::Fd(namespace.as_raw_fd().cast_unsigned()));
        message::write(buf, NLM_F_ACK, seq, RouteNetlinkMessage::GetNsId(wanted));
    };
    let answer = socket.dump(ask, |message| {
        if message.kind == RTM_NEWNSID {
            found =
                message::attributes(message.body, RTGENMSG).find_map(|attribute| match NsidAttribute::parse(
                    &attribute,
                ) {
                    Ok(NsidAttribute::Id(number)) => Some(number),
                    _ => None,
                });
        }
    });
    // -1 means none.
    found.filter(|number| *number != -1 && matches!(answer, Ok(Ok(_))))
}
