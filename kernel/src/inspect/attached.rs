//! The addresses that routes lead straight to interfaces of this host: what is attached to it, whatever the store says.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;

use crate::inspect::address_use::direct;
use crate::netlink::dump;
use crate::netlink::route;
use crate::netlink::socket::Socket;
use tortie_engine::model::AttachedRoute;

/// The interface that the route of this one address leads straight to; `None`: it has no route of its own. Asks for one route
/// only, as the table may be long.
///
/// # Errors
/// When the kernel cannot be asked.
pub fn attached_at(addr: IpAddr) -> io::Result<Option<String>> {
    let mut socket = Socket::open()?;
    let mut found = None;
    // A refusal says that there is no route.
    let _ = socket.dump(
        |buf, seq| route::encode_ask(buf, seq, addr),
        |message| found = route::decode(message).as_ref().and_then(direct),
    )?;
    let Some((_, index)) = found.filter(|(to, _)| *to == addr) else { return Ok(None) };
    let (links, _) = dump::devices(&mut socket)?;
    Ok(links.into_iter().find(|link| link.index == index && link.is_up()).map(|link| link.name))
}

/// The routes of single addresses to interfaces that are up, sorted. Two dumps, for as long as they take.
///
/// # Errors
/// When the kernel cannot be read.
pub fn attached_routes() -> io::Result<Vec<AttachedRoute>> {
    let mut socket = Socket::open()?;
    let (links, _) = dump::devices(&mut socket)?;
    let up: BTreeMap<u32, String> =
        links.into_iter().filter(|link| link.is_up()).map(|link| (link.index, link.name)).collect();
    let mut found = Vec::new();
    dump::routes(&mut socket, |route| {
        let to = direct(&route).and_then(|(addr, index)| Some((addr, up.get(&index)?.clone())));
        found.extend(to.map(|(addr, interface)| AttachedRoute { addr, interface }));
    })?;
    found.sort_unstable();
    found.dedup();
    Ok(found)
}
