//! Reads the networks to which this host is connected, for commands and plugins.

use std::io;

use tortie_net::Cidr;

use crate::facts::ConnectedNetwork;
use crate::fib::connected::networks;
use crate::netlink::dump;
use crate::netlink::socket::Socket;

/// Lists the networks of all interfaces except those of workloads and the tunnel, each with the name of its
/// interface. Of bridges only Docker's own are included: bridges of CNI plugins may have addresses from
/// Tortie's pools.
///
/// # Errors
/// The kernel cannot be read.
pub fn connected_networks() -> io::Result<Vec<(String, Cidr)>> {
    let networks = host_networks()?.into_iter().filter(|found| !found.network.is_host());
    Ok(networks.map(|found| (found.interface, found.network)).collect())
}

/// Lists the same networks with this host's addresses, and single addresses without a network.
///
/// # Errors
/// The kernel cannot be read.
pub fn host_networks() -> io::Result<Vec<ConnectedNetwork>> {
    let (links, addresses) = dump::devices(&mut Socket::open()?)?;
    let link = |index: u32| links.iter().find(|link| link.index == index);
    Ok(networks(link, &addresses))
}
