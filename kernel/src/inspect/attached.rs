//! Reads the on-link routes to single addresses: the addresses attached to interfaces of this host,
//! regardless of the store.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;

use crate::inspect::address_use::direct;
use crate::netlink::dump;
use crate::netlink::route;
use crate::netlink::socket::Socket;
use tortie_engine::model::AttachedRoute;

/// Returns the interface of the on-link route to this address; `None` if it has no such route. Queries one
/// route only, since the table may be long.
///
/// # Errors
/// The kernel cannot be queried.
pub fn attached_at(addr: IpAddr) -> io::Result<Option<String>> {
    let mut socket = Socket::open()?;
    let mut found = None;
    // A refusal means that there is no route.
    let _ = socket.dump(
        |buf, seq| route::encode_ask(buf, seq, addr),
        |message| found = route::decode(message).as_ref().and_then(direct),
    )?;
    let Some((_, index)) = found.filter(|(to, _)| *to == addr) else { return Ok(None) };
    let (links, _) = dump::devices(&mut socket)?;
    Ok(links.into_iter().find(|link| link.index == index && link.is_up()).map(|link| link.name))
}

/// Lists the on-link routes to single addresses over interfaces that are up, sorted. Blocks for two dumps.
///
/// # Errors
/// The kernel cannot be read.
pub fn attached_routes() -> io::Result<Vec<AttachedRoute>> {
    let mut socket = Socket::open()?;
    let (links, _) = dump::devices(&mut socket)?;
    let up: BTreeMap<u32, String> =
        links.into_iter().filter(|link| link.is_up()).map(|link| (link.index, link.name)).collect();
    let mut found = Vec::new();
    dump::routes(&mut socket, |route| {
        let to = direct(&route).and_then(|(addr, index)| Some((addr, up.get(&index)?.clone())));
        let metric = route.metric;
        found.extend(to.map(|(addr, interface)| AttachedRoute { addr, interface, metric }));
    })?;
    found.sort_unstable();
    found.dedup();
    Ok(found)
}
