//! Removes the objects that an agent leaves in the kernel on purpose: routes, nexthop objects and neighbours
//! with Tortie's protocol number, Tortie's nftables tables, the IPIP tunnel's address, VXLAN devices.
//!
//! Not removed: sysctls (other programs may rely on them), interfaces of workloads (owned by their runtimes)
//! and `tunl0` itself (the kernel's). No other process may write at the same time: the caller ensures that no
//! agent runs.

use std::io;
use std::net::Ipv4Addr;

use crate::endpoints;
use crate::fib::ipip_tunnel;
use crate::netlink::link::{Address, LinkChange};
use crate::netlink::socket::{Refusal, Socket};
use crate::netlink::{dump, nexthop, route, vxlan as messages};
use crate::nft::{self, dump as rules, socket::Socket as Rules};
use crate::options::Marks;
use crate::vxlan;

/// Maximum number of rounds: several routes of one prefix and metric are removed one per round.
const ROUNDS: usize = 8;

/// Removed objects; with [`Purge::dry_run`], existing ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Purged {
    /// Number of routes of the main table.
    pub routes: usize,
    /// Number of nexthop objects.
    pub nexthops: usize,
    /// Number of permanent neighbours of workloads.
    pub neighbours: usize,
    /// Names of tables of family `inet`.
    pub tables: Vec<String>,
    /// Number of rules in Docker's chain for user rules.
    pub docker_rules: usize,
    /// Address removed from the tunnel device.
    pub tunnel: Option<Ipv4Addr>,
    /// Names of VXLAN devices.
    pub devices: Vec<&'static str>,
}

/// Parameters of a purge.
#[derive(Debug, Clone, Copy)]
pub struct Purge {
    /// Identifies Tortie's routes and nexthop objects.
    pub marks: Marks,
    /// This host's tunnel address according to the store, if known.
    pub tunnel: Option<Ipv4Addr>,
    /// Reads only, removes nothing.
    pub dry_run: bool,
}

/// Removes Tortie's objects from the caller's network namespace; a second call finds nothing. Blocks until
/// the kernel is done.
///
/// # Errors
/// The caller lacks the privilege, or the kernel refuses to remove an object that still exists.
pub fn purge(what: &Purge) -> io::Result<Purged> {
    let mut socket = Socket::open()?;
    let mut done = Purged { tables: tables(what.dry_run)?, ..Purged::default() };
    done.docker_rules = nft::withdraw(what.dry_run)?;
    let mut first = true;
    for round in 0.. {
        let is_own = |route: &route::Route| route.protocol == what.marks.protocol;
        let (own, _) = dump::routes_of(&mut socket, is_own, |_, route| Some(route))?;
        if first {
            done.routes = own.len();
            first = false;
        }
        if what.dry_run || own.is_empty() {
            break;
        }
        let mut refused: Option<Refusal> = None;
        socket.batch(
            &own,
            |r, buf, flags, seq| {
                route::encode_delete(buf, flags, seq, &r.id());
            },
            |_, result| {
                if let Err(refusal) = result {
                    refused.get_or_insert(refusal);
                }
            },
        )?;
        match refused {
            Some(refusal) if round >= ROUNDS => return Err(describe("a route", &refusal)),
            // Removed together with its interface, or one of several of its kind.
            _ => {}
        }
    }
    let (all, _) = match dump::nexthops(&mut socket) {
        Ok(found) => found,
        // Kernels before 5.3 have no nexthop objects.
        Err(_) => (crate::netlink::nexthop::NexthopList::default(), true),
    };
    let mut own: Vec<_> = all
        .into_values()
        .filter(|n| n.protocol == what.marks.protocol && n.id >= what.marks.nexthop_base)
        .collect();
    done.nexthops = own.len();
    // Groups are removed before their members.
    own.sort_by_key(|n| (!matches!(n.content, nexthop::Content::Group(_)), n.id));
    if !what.dry_run {
        let mut refused = None;
        socket.batch(
            &own,
            |n, buf, flags, seq| nexthop::encode_delete(buf, flags, seq, n.id),
            |_, result| {
                if let Err(refusal) = result
                    && refusal.code != libc::ENOENT
                {
                    refused.get_or_insert(refusal);
                }
            },
        )?;
        if let Some(refusal) = refused {
            return Err(describe("a nexthop object", &refusal));
        }
    }
    // Their neighbours go with the devices.
    done.devices = remove_devices(&mut socket, what.dry_run)?;
    done.neighbours = neighbours(&mut socket, what)?;
    if let Some(addr) = what.tunnel {
        done.tunnel = remove_tunnel(&mut socket, addr, what.dry_run)?;
    }
    Ok(done)
}

/// Lists the interfaces of this namespace whose names begin with `prefix`.
///
/// # Errors
/// The kernel does not report them.
pub fn links_named(prefix: &str) -> io::Result<Vec<String>> {
    let (links, _) = dump::devices(&mut Socket::open()?)?;
    let mut names: Vec<String> =
        links.into_iter().map(|l| l.name).filter(|n| n.starts_with(prefix)).collect();
    names.sort();
    Ok(names)
}

fn neighbours(socket: &mut Socket, what: &Purge) -> io::Result<usize> {
    let mut own = endpoints::neighbours(socket)?;
    own.retain(|n| n.permanent && n.protocol == what.marks.protocol);
    if !what.dry_run {
        let mut refused = None;
        socket.batch(
            &own,
            |n, buf, flags, seq| endpoints::delete_neighbour(buf, flags, seq, n.ifindex, n.addr),
            |_, result| {
                if let Err(refusal) = result
                    && !matches!(refusal.code, libc::ENOENT | libc::ENODEV)
                {
                    refused.get_or_insert(refusal);
                }
            },
        )?;
        if let Some(refusal) = refused {
            return Err(describe("a neighbour", &refusal));
        }
    }
    Ok(own.len())
}

/// Lists Tortie's existing tables, and removes them unless `dry_run`. A kernel without nf_tables has none.
fn tables(dry_run: bool) -> io::Result<Vec<String>> {
    let Ok(mut socket) = Rules::open() else { return Ok(Vec::new()) };
    let Ok(mut found) = rules::tables(&mut socket) else { return Ok(Vec::new()) };
    found.retain(|name| nft::OWN_TABLES.contains(&name.as_str()));
    if !dry_run {
        for name in &found {
            socket.close(name).map_err(|error| match error {
                nft::socket::BatchError::Refused(refusal) if refusal.code != 0 => {
                    let kind = io::Error::from_raw_os_error(refusal.code).kind();
                    io::Error::new(kind, format!("table inet {name} cannot be removed: {refusal}"))
                }
                other => io::Error::other(format!("table inet {name} cannot be removed: {other}")),
            })?;
        }
    }
    Ok(found)
}

fn remove_tunnel(socket: &mut Socket, addr: Ipv4Addr, dry_run: bool) -> io::Result<Option<Ipv4Addr>> {
    let (links, addresses) = dump::devices(socket)?;
    let Some(device) = links.into_iter().find(|l| l.name == ipip_tunnel::DEVICE) else { return Ok(None) };
    let held = Address { ifindex: device.index, addr: addr.into(), len: 32 };
    if !addresses.contains(&held) {
        return Ok(None);
    }
    if !dry_run {
        let change = LinkChange::DeleteAddress { ifindex: device.index, addr, len: 32 };
        let answer = socket.request(|(), buf, flags, seq| change.encode(buf, flags, seq))?;
        answer.map_err(|refusal| describe("the tunnel's address", &refusal))?;
    }
    Ok(Some(addr))
}

/// Removes the VXLAN devices that Tortie made or took over.
fn remove_devices(socket: &mut Socket, dry_run: bool) -> io::Result<Vec<&'static str>> {
    let mut removed = Vec::new();
    for name in [true, false].map(vxlan::name) {
        let Some(change) = vxlan::device::removal(messages::read(socket, name)?.as_ref()) else { continue };
        if !dry_run {
            let answer = socket.request(|(), buf, flags, seq| change.encode(buf, flags, seq))?;
            answer.map_err(|refusal| describe(name, &refusal))?;
        }
        removed.push(name);
    }
    Ok(removed)
}

fn describe(what: &str, refusal: &Refusal) -> io::Error {
    let kind = io::Error::from_raw_os_error(refusal.code).kind();
    io::Error::new(kind, format!("{what} cannot be removed: {refusal}"))
}
