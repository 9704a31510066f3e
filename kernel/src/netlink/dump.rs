//! Dumps of kernel state: links, addresses, nexthop objects, routes of the main table.

use std::io;

use super::link::{self, Address, Link};
use super::nexthop::{self, NexthopList};
use super::route::{self, Route};
use crate::netlink::codec::{AF_INET, AF_INET6, Message};
use crate::netlink::socket::Socket;

/// Number of attempts at a dump that the kernel reports as interrupted; then the last result is used.
const TRIES: usize = 3;

/// Dumps all links and addresses.
pub(crate) fn devices(socket: &mut Socket) -> io::Result<(Vec<Link>, Vec<Address>)> {
    let (mut links, mut addresses) = (Vec::new(), Vec::new());
    for _ in 0..TRIES {
        links.clear();
        let answer = socket.dump(link::encode_link_dump, |m| links.extend(link::decode_link(m)))?;
        if answer.map_err(refused)? {
            break;
        }
    }
    for _ in 0..TRIES {
        addresses.clear();
        let answer = socket.dump(link::encode_address_dump, |m| addresses.extend(link::decode_address(m)))?;
        if answer.map_err(refused)? {
            break;
        }
    }
    Ok((links, addresses))
}

/// Dumps all nexthop objects, including foreign ones; true if the list is complete.
pub(crate) fn nexthops(socket: &mut Socket) -> io::Result<(NexthopList, bool)> {
    let mut list = NexthopList::default();
    for _ in 0..TRIES {
        list.clear();
        let answer = socket.dump(nexthop::encode_dump, |m| {
            list.extend(nexthop::decode(m).map(|n| (n.id, n)));
        })?;
        if answer.map_err(refused)? {
            return Ok((list, true));
        }
    }
    Ok((list, false))
}

/// Dumps all routes of the main table; false if the table changed during the dump, so that routes may be
/// missing.
pub(crate) fn routes(socket: &mut Socket, mut each: impl FnMut(Route)) -> io::Result<bool> {
    route_messages(socket, |message| message.and_then(route::decode).into_iter().for_each(&mut each))
}

/// Dumps all routes of the main table, one datagram at a time. The kernel continues when the next datagram is
/// read, so `each` may do other work first.
pub(crate) fn route_slices(socket: &mut Socket, mut each: impl FnMut(&mut Vec<Route>)) -> io::Result<bool> {
    let mut slice = Vec::new();
    route_messages(socket, |message| match message {
        Some(message) => slice.extend(route::decode(message)),
        None => {
            each(&mut slice);
            slice.clear();
        }
    })
}

/// Dumps those routes of the main table that are `wanted`, converted by `of`; true if none is missing.
pub(crate) fn routes_of<T>(
    socket: &mut Socket,
    wanted: impl Fn(&Route) -> bool,
    of: impl Fn(&Message<'_>, Route) -> Option<T>,
) -> io::Result<(Vec<T>, bool)> {
    let mut found = Vec::new();
    let complete = route_messages(socket, |message| {
        let Some(message) = message else { return };
        let route = route::decode(message).filter(&wanted);
        found.extend(route.and_then(|route| of(message, route)));
    })?;
    Ok((found, complete))
}

/// Calls `each` for every message about a route of the main table, and with `None` after each datagram.
fn route_messages(socket: &mut Socket, mut each: impl FnMut(Option<&Message<'_>>)) -> io::Result<bool> {
    let mut complete = true;
    for family in [AF_INET, AF_INET6] {
        match socket.dump_by_datagram(|buf, seq| route::encode_dump(buf, seq, family), &mut each)? {
            Ok(whole) => complete &= whole,
            // The table, or the whole family, does not exist (yet).
            Err(r) if matches!(r.code, libc::ENOENT | libc::EOPNOTSUPP | libc::EAFNOSUPPORT) => {}
            Err(r) => return Err(refused(r)),
        }
    }
    Ok(complete)
}

/// Dumps all objects of one kind, for both families; an interrupted dump is not repeated, since a later one
/// shows missing objects.
pub(crate) fn all<T>(
    socket: &mut Socket,
    encode: impl Fn(&mut Vec<u8>, u32, u8),
    decode: impl Fn(&Message<'_>) -> Option<T>,
) -> io::Result<Vec<T>> {
    let mut list = Vec::new();
    for family in [AF_INET, AF_INET6] {
        let answer = socket.dump(|buf, seq| encode(buf, seq, family), |m| list.extend(decode(m)))?;
        match answer {
            Ok(_) => {}
            Err(r) if matches!(r.code, libc::EOPNOTSUPP | libc::EAFNOSUPPORT) => {}
            Err(r) => return Err(refused(r)),
        }
    }
    Ok(list)
}

fn refused(refusal: crate::netlink::socket::Refusal) -> io::Error {
    io::Error::other(format!("the kernel refuses to be read: {refusal}"))
}
