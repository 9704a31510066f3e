//! Networks to which this host is connected, derived from its links and addresses. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;

use tortie_net::Cidr;

use crate::facts::{ConnectedNetwork, is_of_docker};
use crate::netlink::link::{Address, Link};

/// Name prefixes of interfaces whose networks connect no machines: loopback, tunnel, workloads.
const NEVER: [&str; 5] = ["lo", "tunl", "vxlan.calico", "vxlan-v6.calico", "cali"];
const LOOPBACK: &str = "lo";

/// Returns the networks of these addresses. `link` returns an interface by its index.
pub(crate) fn networks<'a>(
    link: impl Fn(u32) -> Option<&'a Link>,
    addresses: impl IntoIterator<Item = &'a Address>,
) -> Vec<ConnectedNetwork> {
    let mut found = BTreeMap::new();
    for address in addresses {
        let Some(network) = address.network_or_host() else { continue };
        let Some(Link { name, is_bridge, .. }) = link(address.ifindex) else { continue };
        // A single address of the loopback interface belongs to this host; a network there connects no
        // machines.
        let never = NEVER.iter().any(|prefix| name.starts_with(prefix));
        let counts = if name == LOOPBACK { network.is_host() } else { !never };
        if counts && (is_of_docker(name) || !is_bridge) {
            found.entry((name, network)).or_insert(address.addr);
        }
    }
    let network = |((interface, network), addr): ((&String, Cidr), IpAddr)| ConnectedNetwork {
        interface: interface.clone(),
        network,
        addr,
    };
    found.into_iter().map(network).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_of_machines_are_listed_and_no_others() {
        let link = |(index, name, is_bridge): (u32, &str, bool)| Link {
            index,
            name: name.to_owned(),
            flags: 1,
            mtu: 1500,
            is_bridge,
        };
        let links = [
            (1, "lo", false),
            (2, "eth0", false),
            (3, "docker0", true),
            (4, "cali123", false),
            (5, "tunl0", false),
            (6, "cni0", true),
            (7, "br-0123456789ab", true),
        ]
        .map(link);
        let link = |index: u32| links.iter().find(|link| link.index == index);
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
            at(1, "203.0.113.2", 32),
            at(1, "203.0.113.128", 25),
        ];
        let found: Vec<String> = networks(link, &addresses)
            .iter()
            .map(|found| format!("{} {} {}", found.interface, found.network, found.addr))
            .collect();
        assert_eq!(
            found,
            [
                "br-0123456789ab 172.18.0.0/16 172.18.0.1",
                "docker0 172.17.0.0/16 172.17.0.1",
                "eth0 192.0.2.0/24 192.0.2.13",
                "eth0 203.0.113.1/32 203.0.113.1",
                "eth0 2001:db8::/64 2001:db8::1",
                "lo 203.0.113.2/32 203.0.113.2",
            ]
        );
    }
}
