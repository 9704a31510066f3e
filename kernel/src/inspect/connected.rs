//! The networks that this host is connected to, read for commands and plugins.

use std::io;

use tortie_net::Cidr;

use crate::facts::ConnectedNetwork;
use crate::fib::connected::networks;
use crate::netlink::dump;
use crate::netlink::socket::Socket;

/// The networks of all interfaces but those of workloads and of the tunnel, each with the name of its interface. Of bridges
/// only Docker's own: those of CNI plugins may have their addresses from our pools.
///
/// # Errors
/// When the kernel cannot be read.
pub fn connected_networks() -> io::Result<Vec<(String, Cidr)>> {
    let networks = host_networks()?.into_iter().filter(|found| !found.network.is_host());
    Ok(networks.map(|found| (found.interface, found.network)).collect())
}

/// The same with this host's addresses, also with those that are in no network.
///
/// # Errors
/// When the kernel cannot be read.
pub fn host_networks() -> io::Result<Vec<ConnectedNetwork>> {
    let (links, addresses) = dump::devices(&mut Socket::open()?)?;
    let link = |index: u32| links.iter().find(|link| link.index == index);
    Ok(networks(link, &addresses))
}
