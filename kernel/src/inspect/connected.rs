//! The networks that this host is connected to.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use tortie_net::Cidr;

use crate::netlink::dump;
use crate::netlink::link::{Address, Link};
use crate::netlink::socket::Socket;

/// Interfaces whose networks are no networks of machines: workloads, the tunnel, the host itself.
const NEVER: [&str; 3] = ["lo", "tunl", "cali"];

/// The networks of all interfaces but those of workloads and of the tunnel, each with the name of its interface. Of bridges
/// only Docker's own: those of CNI plugins may have their addresses from our pools.
///
/// # Errors
/// When the kernel cannot be read.
pub fn connected_networks() -> io::Result<Vec<(String, Cidr)>> {
    let (links, addresses) = dump::devices(&mut Socket::open()?)?;
    let is_bridge = |name: &str| Path::new("/sys/class/net").join(name).join("bridge").exists();
    Ok(networks(&links, &addresses, is_bridge))
}

/// `docker0`, or `br-` and twelve hexadecimal digits.
fn is_of_docker(name: &str) -> bool {
    let id = name.strip_prefix("br-");
    name == "docker0" || id.is_some_and(|id| id.len() == 12 && id.bytes().all(|c| c.is_ascii_hexdigit()))
}

fn networks(links: &[Link], addresses: &[Address], is_bridge: impl Fn(&str) -> bool) -> Vec<(String, Cidr)> {
    let name = |index: u32| {
        let link = links.iter().find(|link| link.index == index)?;
        let name = &link.name;
        let counts =
            !NEVER.iter().any(|prefix| name.starts_with(prefix)) && (is_of_docker(name) || !is_bridge(name));
        counts.then(|| name.clone())
    };
    let network = |address: &Address| Some((name(address.ifindex)?, address.network()?));
    let found: BTreeSet<_> = addresses.iter().filter_map(network).collect();
    found.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_of_machines_are_listed_and_no_others() {
        let link = |index, name: &str| Link { index, name: name.to_owned(), flags: 1, mtu: 1500 };
        let names = ["lo", "eth0", "docker0", "cali123", "tunl0", "cni0", "br-0123456789ab"];
        let links: Vec<Link> = (1..).zip(names).map(|(index, name)| link(index, name)).collect();
        let at = |ifindex, addr: &str, len| Address { ifindex, addr: addr.parse().unwrap(), len };
        let addresses = [
            at(1, "127.0.0.1", 8),
            at(2, "192.0.2.13", 24),
            at(2, "192.0.2.14", 24),
            at(2, "2001:db8::1", 64),
            at(2, "fe80::1", 64),
            at(2, "203.0.113.1", 32),
            at(3, "172.17.0.1", 16),
            at(4, "10.65.0.1", 24),
            at(5, "10.65.0.9", 24),
            at(6, "10.88.0.1", 16),
            at(7, "172.18.0.1", 16),
        ];
        let found: Vec<String> = networks(&links, &addresses, |name| name != "eth0")
            .iter()
            .map(|(name, network)| format!("{name} {network}"))
            .collect();
        assert_eq!(
            found,
            [
                "br-0123456789ab 172.18.0.0/16",
                "docker0 172.17.0.0/16",
                "eth0 192.0.2.0/24",
                "eth0 2001:db8::/64"
            ]
        );
    }
}
