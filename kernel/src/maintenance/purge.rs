//! What the agent leaves in the kernel on purpose, taken away: routes, nexthop objects and neighbours with our number, our
//! tables of packet rules, the tunnel's address.
//!
//! What it does not: sysctls (others may rely on them by now), interfaces of workloads (their runtimes own them), `tunl0` itself
//! (the kernel's). Nobody else may write at the same time: the caller sees to it that no agent runs.

use std::io;
use std::net::Ipv4Addr;

use crate::endpoints;
use crate::fib::ipip_tunnel;
use crate::netlink::link::{Address, LinkChange};
use crate::netlink::socket::{Refusal, Socket};
use crate::netlink::{dump, nexthop, route};
use crate::nft::{self, dump as rules, socket::Socket as Rules};
use crate::options::Marks;

/// Routes of one prefix and metric go one by one; the next reading shows what is left.
const ROUNDS: usize = 8;

/// What was there, or is there with [`Purge::dry_run`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Purged {
    /// Routes of the main table.
    pub routes: usize,
    /// Nexthop objects.
    pub nexthops: usize,
    /// Permanent neighbours of workloads.
    pub neighbours: usize,
    /// Tables of family `inet`.
    pub tables: Vec<String>,
    /// Rules in Docker's chain for rules of others.
    pub docker_rules: usize,
    /// The address that the tunnel device lost.
    pub tunnel: Option<Ipv4Addr>,
}

/// What to take away.
#[derive(Debug, Clone, Copy)]
pub struct Purge {
    /// Whose routes and nexthop objects.
    pub marks: Marks,
    /// This host's address in the tunnel, as far as the store says.
    pub tunnel: Option<Ipv4Addr>,
    /// Look only.
    pub dry_run: bool,
}

/// Takes our objects out of the caller's network namespace; twice is once. Blocks for as long as the kernel takes.
///
/// # Errors
/// Without the right to do it, and when the kernel refuses something that is not gone by itself.
pub fn purge(what: &Purge) -> io::Result<Purged> {
    let mut socket = Socket::open()?;
    let mut done = Purged { tables: tables(what.dry_run)?, ..Purged::default() };
    done.docker_rules = nft::withdraw(what.dry_run)?;
    let mut first = true;
    for round in 0.. {
        let (own, _) = dump::routes_of(&mut socket, what.marks.protocol, |_, route| Some(route))?;
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
            // Gone with its interface in between, or more than one of a kind.
            _ => {}
        }
    }
    let (all, _) = match dump::nexthops(&mut socket) {
        Ok(found) => found,
        // A kernel before 5.3.
        Err(_) => (crate::netlink::nexthop::NexthopList::default(), true),
    };
    let mut own: Vec<_> = all
        .into_values()
        .filter(|n| n.protocol == what.marks.protocol && n.id >= what.marks.nexthop_base)
        .collect();
    done.nexthops = own.len();
    // Groups before their members.
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
    done.neighbours = neighbours(&mut socket, what)?;
    if let Some(addr) = what.tunnel {
        done.tunnel = remove_tunnel(&mut socket, addr, what.dry_run)?;
    }
    Ok(done)
}

/// The names of the interfaces of this namespace that begin so.
///
/// # Errors
/// When the kernel does not report them.
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

/// Our tables that are there; taken away unless `dry_run`. A kernel without nf_tables has none.
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

fn describe(what: &str, refusal: &Refusal) -> io::Error {
    let kind = io::Error::from_raw_os_error(refusal.code).kind();
    io::Error::new(kind, format!("{what} cannot be removed: {refusal}"))
}
