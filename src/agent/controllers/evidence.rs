//! Addresses in use according to this host's kernel, as evidence for `ipam check` and garbage collection.

use std::collections::BTreeMap;
use std::net::IpAddr;

use tortie_engine::ipam::check::{AddressInUse, Evidence};
use tortie_kernel::{AddressUses, Namespaces, UsePlace};

/// Reads the interfaces, routes, neighbours and network namespaces of this host; blocks meanwhile. The
/// evidence lists the parts that could not be read.
#[must_use]
pub fn evidence(host: &str, namespaces: &Namespaces) -> Evidence {
    let host = Some(host.to_owned());
    match namespaces.address_uses() {
        Ok(uses) => Evidence { host, ..evidence_of(uses) },
        Err(error) => Evidence {
            host,
            blind: vec![format!("the kernel of this host cannot be read: {error}")],
            ..Evidence::default()
        },
    }
}

/// Converts the address uses. An address on interfaces counts once per interface. Without an interface, as
/// behind a tap device, its routes and neighbours together count as one use.
fn evidence_of(uses: AddressUses) -> Evidence {
    let mut on_interfaces: Vec<AddressInUse> = Vec::new();
    let mut behind: BTreeMap<IpAddr, Vec<String>> = BTreeMap::new();
    for used in &uses.found {
        let (addr, place) = (used.addr, used.place.to_string());
        match &used.place {
            UsePlace::Host { .. } | UsePlace::Workload { .. } => {
                on_interfaces.push(AddressInUse { addr, place })
            }
            UsePlace::Route { .. } | UsePlace::Neighbour { .. } => {
                behind.entry(addr).or_default().push(place)
            }
        }
    }
    behind.retain(|addr, _| on_interfaces.binary_search_by(|used| used.addr.cmp(addr)).is_err());
    let behind = behind.into_iter().map(|(addr, places)| AddressInUse { addr, place: places.join("; ") });
    let mut all: Vec<AddressInUse> = on_interfaces.into_iter().chain(behind).collect();
    all.sort_unstable();
    // Callers make two passes, so an address that a plugin was about to configure is found by the second one.
    let interfaces = Some(uses.interfaces);
    Evidence { host: None, seen: all, interfaces, blind: uses.unreadable, since: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tortie_kernel::AddressUse;

    #[test]
    fn each_interface_counts_and_routes_only_where_there_is_none() {
        let at = |addr: &str, place: UsePlace| AddressUse { addr: addr.parse().unwrap(), place };
        let inside =
            |space: &str| UsePlace::Workload { interface: "eth0".to_owned(), namespace: space.to_owned() };
        let route = || UsePlace::Route { interface: "cali1".to_owned() };
        let near = || UsePlace::Neighbour { interface: "cali1".to_owned(), mac: [2, 0, 0, 0, 0, 1] };
        let mut found = vec![
            at("10.0.0.1", inside("/run/netns/a")),
            at("10.0.0.1", route()),
            at("10.0.0.2", route()),
            at("10.0.0.2", near()),
            at("10.0.0.3", inside("/run/netns/a")),
            at("10.0.0.3", inside("/run/netns/b")),
        ];
        found.sort_unstable();
        let evidence = evidence_of(AddressUses { found, namespaces: 3, ..AddressUses::default() });
        let places: Vec<(String, &str)> =
            evidence.seen.iter().map(|s| (s.addr.to_string(), &*s.place)).collect();
        assert_eq!(
            places.iter().map(|(addr, place)| (&**addr, *place)).collect::<Vec<_>>(),
            [
                ("10.0.0.1", "on eth0 in /run/netns/a"),
                ("10.0.0.2", "a route leads to cali1; neighbour 02:00:00:00:00:01 on cali1"),
                ("10.0.0.3", "on eth0 in /run/netns/a"),
                ("10.0.0.3", "on eth0 in /run/netns/b"),
            ]
        );
    }
}
