//! Port mappings from this host to a container, in one nftables table per container, so that one message
//! removes all of them and no two plugins write the same object.
//!
//! ```text
//!   from other hosts and other containers --prerouting--+
//!                                                       +--> to an address of this host? --> ports: dnat
//!   from this host, also to 127.0.0.1 -------output-----+
//!   postrouting: packets from a container to itself, and from 127.0.0.1 of the host, are masqueraded:
//!                answers to the original source address would bypass this host
//! ```
//!
//! A UDP client that sends continuously keeps its conntrack entry, and nat rules only match the first packet
//! of a connection. So entries of a port are deleted when the port is mapped. (Entries that lead to a
//! container are deleted by the agent when the container's endpoint is removed.)
//!
//! The tables are recorded ([`mapped`]), so that the agent can restore tables that another process flushed.
//! Policy is applied after the translation, to packets with the container's address and port.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use tortie_config::resource::PortRange;
use tortie_net::Cidr;

use super::link::Net;
use super::mapped::{self, Interface, MappedPorts};
use super::{ContainerNetError, PortMapping, Transport, hash, name_hash};
use crate::endpoints::conntrack::Conntrack;
use crate::nft::dump;
use crate::nft::ir::{At, Chain, Edit, Hook, Kind, Match, Name, Rule, Side, Statement};
use crate::nft::socket::{BatchError, Socket};

/// Default prefix of the names of port mapping tables.
pub const PORTS_PREFIX: &str = "tortie-ports";
/// Before the agent's own chain (-100) and Docker's: an explicit port mapping takes precedence.
const DSTNAT: i32 = -105;
const SRCNAT: i32 = 95;
/// Index of `lo` in every network namespace: the outgoing interface of routes to the host's own addresses.
const LOOPBACK: u32 = 1;
const LOOPBACK_V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);
/// Maximum length of a prefix, in octets. Kernels that translate addresses in tables of family inet (Linux
/// 5.2) accept names of 255 octets.
const PREFIX_MAX: usize = 100;
/// Maximum length of table names in earlier versions, in octets.
const FORMER_NAME_MAX: usize = 31;

/// Returns the table name of one interface of one container; `id` must be unique on this host. The name ends
/// in 160 bits of SHA-256, so that no two containers share a table.
#[must_use]
pub fn ports_table(prefix: &str, id: &str) -> String {
    let prefix = prefix.get(..prefix.floor_char_boundary(PREFIX_MAX)).unwrap_or_default();
    format!("{prefix}-{}", name_hash(id))
}

/// Returns the table name that earlier versions used, which ends in 48 bits of a hash: a container attached
/// by one keeps that table until it is removed.
#[must_use]
pub fn former_ports_table(prefix: &str, id: &str) -> String {
    let digits = format!("{:016x}", hash(id));
    let room = FORMER_NAME_MAX.saturating_sub(13);
    let prefix = prefix.get(..prefix.floor_char_boundary(room)).unwrap_or_default();
    format!("{prefix}-{}", digits.get(..12).unwrap_or_default())
}

/// Maps ports of this host to these addresses in one transaction. A table of that name is replaced.
///
/// # Errors
/// A port 0; an address that is not of this host, or of a family that the container lacks; the kernel refuses
/// a request.
pub fn map_ports(table: &str, addrs: &[IpAddr], mappings: &[PortMapping]) -> Result<(), ContainerNetError> {
    let mut net = Net::open()?;
    for host in mappings.iter().filter_map(|mapping| mapping.host_ip).filter(|ip| !ip.is_unspecified()) {
        if !matches!(net.way_to(host), Ok(Some(LOOPBACK))) {
            return Err(ContainerNetError::Invalid(format!(
                "{host} is no address of this host, so no port of it can be mapped: leave the address out, or give one that \
                 `ip address` shows"
            )));
        }
    }
    // If the folder is not writable, ports are mapped all the same, but cannot be restored after a flush.
    let lock = mapped::lock().ok();
    write_table(table, addrs, mappings)?;
    let (addrs, mappings) = (addrs.to_vec(), mappings.to_vec());
    let interface = Interface::towards(&mut net, &addrs)?;
    let mapped = MappedPorts { table: table.to_owned(), addrs, mappings, interface };
    if let Some(Err(error)) = lock.map(|lock| mapped::remember(&lock, &mapped)) {
        tracing::warn!(target: "tortie", %error, "a port mapping is not written down");
    }
    Ok(())
}

/// Writes the table, and deletes old conntrack entries of its ports.
pub(super) fn write_table(
    table: &str,
    addrs: &[IpAddr],
    mappings: &[PortMapping],
) -> Result<(), ContainerNetError> {
    let doing = "ports cannot be mapped";
    let edits = edits(addrs, mappings)?;
    let mut socket = Socket::open().map_err(|error| ContainerNetError::io(doing, error))?;
    socket.batch(&edits, table).map_err(|error| refused(doing, error))?;
    forget_datagrams(mappings)
}

/// Deletes the conntrack entries of datagrams to these ports of this host. Entries of forwarded packets to
/// the same ports of other hosts are kept.
fn forget_datagrams(mappings: &[PortMapping]) -> Result<(), ContainerNetError> {
    let doing = "connections to mapped ports cannot be deleted";
    let mapped: Vec<&PortMapping> = mappings.iter().filter(|m| m.protocol == Transport::Udp).collect();
    if mapped.is_empty() {
        return Ok(());
    }
    let mut net = Net::open()?;
    let mut local: BTreeMap<IpAddr, bool> = BTreeMap::new();
    let mut concerned = |addr: IpAddr, port: u16| {
        let is_meant = |mapping: &&PortMapping| {
            mapping.host_port == port
                && mapping.host_ip.is_none_or(|host| {
                    host == addr || (host.is_unspecified() && host.is_ipv4() == addr.is_ipv4())
                })
        };
        mapped.iter().any(is_meant)
            && *local.entry(addr).or_insert_with(|| matches!(net.way_to(addr), Ok(Some(LOOPBACK))))
    };
    match Conntrack::default().delete_to(Transport::Udp.number(), &mut concerned) {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(refusal)) => Err(ContainerNetError::refused(doing, &refusal)),
        Err(error) => Err(ContainerNetError::io(doing, error)),
    }
}

/// Removes the port mappings; a missing table is no error.
///
/// # Errors
/// The kernel refuses a request.
pub fn unmap_ports(table: &str) -> Result<(), ContainerNetError> {
    let doing = "port mappings cannot be removed";
    let lock = mapped::lock().ok();
    if let Some(lock) = &lock {
        mapped::forget(lock, table)?;
    }
    match Socket::open() {
        // Without nftables there are no mappings.
        Err(error) if error.raw_os_error() == Some(libc::EPROTONOSUPPORT) => Ok(()),
        Err(error) => Err(ContainerNetError::io(doing, error)),
        Ok(mut socket) => match socket.remove(table) {
            Err(BatchError::Refused(refusal)) if matches!(refusal.code, libc::EOPNOTSUPP | libc::EINVAL) => {
                Ok(())
            }
            other => other.map_err(|error| refused(doing, error)),
        },
    }
}

/// Lists the tables of family inet whose names begin with `prefix`.
///
/// # Errors
/// The kernel refuses a request.
pub fn mapped_tables(prefix: &str) -> Result<Vec<String>, ContainerNetError> {
    let doing = "port mappings cannot be read";
    let mut socket = Socket::open().map_err(|error| ContainerNetError::io(doing, error))?;
    let all = dump::tables(&mut socket).map_err(|error| ContainerNetError::io(doing, error))?;
    Ok(all.into_iter().filter(|name| name.starts_with(prefix)).collect())
}

fn refused(doing: &str, error: BatchError) -> ContainerNetError {
    match error {
        BatchError::Refused(refusal) if matches!(refusal.code, libc::ENOENT | libc::EOPNOTSUPP) => {
            ContainerNetError::Module { what: "port mappings", module: "nft_nat, nft_masq or nft_fib_inet" }
        }
        BatchError::Refused(refusal) => {
            ContainerNetError::Refused { doing: doing.to_owned(), code: refusal.code, text: refusal.text }
        }
        BatchError::Unknown => ContainerNetError::Refused {
            doing: doing.to_owned(),
            code: 0,
            text: "its answer was lost".to_owned(),
        },
        BatchError::Socket(error) => ContainerNetError::io(doing, error),
    }
}

/// Returns the edits that write the table, after deleting an existing one in the same transaction.
fn edits(addrs: &[IpAddr], mappings: &[PortMapping]) -> Result<Vec<Edit>, ContainerNetError> {
    let mut edits = vec![Edit::DeleteTable];
    edits
        .extend(chains(addrs, mappings)?.into_iter().map(|(name, chain)| Edit::Chain(name, Arc::new(chain))));
    Ok(edits)
}

fn chains(addrs: &[IpAddr], mappings: &[PortMapping]) -> Result<BTreeMap<Name, Chain>, ContainerNetError> {
    let mut rules = Vec::new();
    let mut seen = BTreeSet::new();
    for mapping in mappings.iter().filter(|mapping| seen.insert(**mapping)) {
        rules.extend(rules_of(addrs, mapping)?);
    }
    let ports: Name = "ports".into();
    let entry = |at| {
        let matches = vec![Match::Local { side: Side::Dst }];
        let rule = Rule { matches, statement: Statement::Goto(Arc::clone(&ports)), ..Rule::default() };
        Chain { hook: Some(Hook { kind: Kind::Nat, at, priority: DSTNAT }), rules: vec![rule] }
    };
    let postrouting = Chain {
        hook: Some(Hook { kind: Kind::Nat, at: At::Postrouting, priority: SRCNAT }),
        rules: addrs.iter().flat_map(|addr| hairpins(*addr)).collect(),
    };
    Ok(BTreeMap::from([
        ("prerouting".into(), entry(At::Prerouting)),
        ("output".into(), entry(At::Output)),
        ("postrouting".into(), postrouting),
        (ports, Chain { hook: None, rules }),
    ]))
}

fn rules_of(addrs: &[IpAddr], mapping: &PortMapping) -> Result<Vec<Rule>, ContainerNetError> {
    let PortMapping { host_ip, host_port, container_port, protocol } = *mapping;
    let invalid = |text: String| Err(ContainerNetError::Invalid(text));
    if host_port == 0 || container_port == 0 {
        return invalid(format!(
            "port mapping {host_port} to {container_port}/{}: ports are 1 to 65535",
            protocol.as_str()
        ));
    }
    if host_ip == Some(LOOPBACK_V6) {
        return invalid(format!(
            "port {host_port} of ::1 cannot lead to a container: Linux does not route packets from ::1; map it at 127.0.0.1"
        ));
    }
    let of_family = |addr: &&IpAddr| host_ip.is_none_or(|host| host.is_ipv4() == addr.is_ipv4());
    let mut rules = Vec::new();
    // Only the first address of each family is used.
    for v4 in [true, false] {
        let Some(to) = addrs.iter().filter(of_family).find(|addr| addr.is_ipv4() == v4) else { continue };
        let mut matches = vec![Match::Family { v4 }];
        if let Some(host) = host_ip.filter(|host| !host.is_unspecified()) {
            matches.push(Match::InNet { side: Side::Dst, not: false, net: Cidr::host(host) });
        } else if !v4 {
            // Linux has no route_localnet for IPv6, so packets from ::1 cannot be forwarded. Without a
            // mapping the port refuses at once.
            matches.push(Match::InNet { side: Side::Dst, not: true, net: Cidr::host(LOOPBACK_V6) });
        }
        matches.push(Match::Protocol { not: false, number: protocol.number() });
        let ranges = PortRange::new(host_port, host_port).into_iter().collect();
        matches.push(Match::Port { side: Side::Dst, not: false, ranges });
        let statement = Statement::DestinationNatTo { addr: *to, port: container_port };
        rules.push(Rule { matches, counted: true, statement, ..Rule::default() });
    }
    if rules.is_empty() {
        let host = host_ip.map_or_else(String::new, |host| format!(" of {host}"));
        return invalid(format!("port {host_port}{host} cannot lead to a container without such an address"));
    }
    Ok(rules)
}

/// Masquerades packets whose answers would bypass this host.
fn hairpins(addr: IpAddr) -> [Rule; 2] {
    let loopback = match addr {
        IpAddr::V4(_) => Cidr::v4(Ipv4Addr::new(127, 0, 0, 0), 8),
        IpAddr::V6(_) => Cidr::host(LOOPBACK_V6),
    };
    [Cidr::host(addr), loopback].map(|from| Rule {
        matches: vec![
            Match::Family { v4: addr.is_ipv4() },
            Match::InNet { side: Side::Src, not: false, net: from },
            Match::InNet { side: Side::Dst, not: false, net: Cidr::host(addr) },
        ],
        statement: Statement::Masquerade,
        ..Rule::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nft::text;

    fn mapping(
        host_ip: Option<&str>,
        host_port: u16,
        container_port: u16,
        protocol: Transport,
    ) -> PortMapping {
        PortMapping { host_ip: host_ip.map(|ip| ip.parse().unwrap()), host_port, container_port, protocol }
    }

    fn rendered(addrs: &[&str], mappings: &[PortMapping]) -> Vec<String> {
        let addrs: Vec<IpAddr> = addrs.iter().map(|a| a.parse().unwrap()).collect();
        let chains = chains(&addrs, mappings).unwrap();
        chains["ports"].rules.iter().map(text::rule).collect()
    }

    #[test]
    fn a_mapping_without_host_address_is_for_every_family_that_the_container_has() {
        let both = ["10.65.0.2", "2001:db8::2"];
        assert_eq!(
            rendered(&both, &[mapping(None, 8080, 80, Transport::Tcp)]),
            [
                "meta nfproto ipv4 meta l4proto 6 th dport 8080 counter dnat ip to 10.65.0.2:80",
                "meta nfproto ipv6 ip6 daddr != ::1 meta l4proto 6 th dport 8080 counter dnat ip6 to [2001:db8::2]:80",
            ]
        );
        assert_eq!(rendered(&both[..1], &[mapping(Some("0.0.0.0"), 53, 5353, Transport::Udp)]).len(), 1);
        let one = rendered(&both, &[mapping(Some("192.0.2.1"), 8080, 80, Transport::Sctp)]);
        assert_eq!(one.len(), 1);
        assert!(one[0].contains("ip daddr 192.0.2.1"), "{one:?}");
    }

    #[test]
    fn what_cannot_be_is_said() {
        let addrs = ["10.65.0.2".parse().unwrap()];
        for (bad, word) in [
            (mapping(Some("2001:db8::1"), 80, 80, Transport::Tcp), "2001:db8::1"),
            (mapping(Some("::1"), 80, 80, Transport::Tcp), "map it at 127.0.0.1"),
            (mapping(None, 0, 80, Transport::Tcp), "1 to 65535"),
            (mapping(None, 80, 0, Transport::Udp), "80 to 0/udp"),
        ] {
            let error = chains(&addrs, &[bad]).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn names_of_tables_fit_every_kernel_and_differ_by_container() {
        let long = "a-very-long-prefix-of-a-network-of-somebody".repeat(9);
        assert_eq!((ports_table(&long, "x").len(), former_ports_table(&long, "x").len()), (141, 31));
        // `printf 'a eth0' | sha256sum`, `printf 'a eth0' | fnv1a64`
        assert_eq!(ports_table("p", "a eth0"), "p-6f483a98af25b8c78bdb0cfd38dd414d241f6336");
        assert_eq!(former_ports_table("p", "a eth0"), "p-1daf9b5277c4");
        assert_ne!(ports_table(PORTS_PREFIX, "a eth0"), ports_table(PORTS_PREFIX, "a eth1"));
        assert!(ports_table(PORTS_PREFIX, "x").starts_with("tortie-ports-"));
    }
}
