//! Node registration: at start the agent registers its own host in the store, as Calico's node start-up does.
//! Pure functions: stored values and settings result in one transaction.

use std::net::IpAddr;

use tortie_config::key::{BgpItem, IpFamily, Key, Scope};
use tortie_net::Cidr;

use crate::agent::config::{AddressChoice, Settings};
use tortie_store::{Compare, Op, Store, Txn};

/// An address of this host with the prefix length of its network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::agent) struct NodeAddress {
    /// Address of the host.
    pub(in crate::agent) addr: IpAddr,
    /// Prefix length of the network.
    pub(in crate::agent) len: u8,
}

/// Addresses detected on the host, for the setting `auto`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::agent) struct Detected {
    /// Address of the interface that has the IPv4 default route.
    pub(in crate::agent) v4: Option<NodeAddress>,
    /// Address of the interface that has the IPv6 default route.
    pub(in crate::agent) v6: Option<NodeAddress>,
}

/// Returns an error text if one of these hosts, which have the same address, has a running agent, as shown by
/// its leased status key.
pub(in crate::agent) async fn running_conflict(
    store: &dyn Store,
    address_conflicts: &[(IpAddr, String)],
) -> Option<String> {
    for (addr, host) in address_conflicts {
        let key = Key::TortieStatus { host: host.clone() }.to_string();
        if matches!(store.get(&key).await, Ok(Some(_))) {
            return Some(format!(
                "the running host {host} also has the address {addr}: give this host another one with --ip4 \
                 or --ip6, or stop the other agent"
            ));
        }
    }
    None
}

/// Returns the keys that [`plan`] reads, as prefixes.
pub(in crate::agent) fn prefixes(node: &str) -> Vec<String> {
    let host = Scope::Host(node.to_owned());
    let keys = [
        Key::HostMetadata { host: node.to_owned() },
        Key::BirdIp { host: node.to_owned() },
        Key::Setting(host.clone(), "DefaultEndpointToHostAction".to_owned()),
        Key::Ready,
        Key::Bgp(Scope::Global, BgpItem::AsNum),
        Key::Bgp(Scope::Global, BgpItem::NodeMesh),
        Key::Bgp(host.clone(), BgpItem::AsNum),
        Key::Bgp(host.clone(), BgpItem::Address(IpFamily::V4)),
        Key::Bgp(host.clone(), BgpItem::Address(IpFamily::V6)),
        Key::Bgp(host.clone(), BgpItem::Network(IpFamily::V4)),
        Key::Bgp(host, BgpItem::Network(IpFamily::V6)),
    ];
    keys.iter().map(ToString::to_string).collect()
}

/// Returns the transaction that registers `node`, or `None` if the store is complete.
///
/// An address flag has priority, then the stored value. Without both, `auto` (the default for IPv4) uses the
/// detected address. Global defaults are written only where absent. No pool is created.
pub(in crate::agent) fn plan(
    node: &str,
    settings: &Settings,
    detected: Detected,
    stored: &dyn Fn(&Key) -> Option<Vec<u8>>,
) -> Option<Txn> {
    let mut txn = Txn::default();
    let absent = |key: Key, value: &str, txn: &mut Txn| {
        if stored(&key).is_none() {
            txn.compare.push(Compare::Absent(key.to_string()));
            txn.ops.push(put(&key, value));
        }
    };
    let host = || Scope::Host(node.to_owned());
    absent(Key::HostMetadata { host: node.to_owned() }, "{}", &mut txn);
    absent(Key::Setting(host(), "DefaultEndpointToHostAction".to_owned()), "RETURN", &mut txn);
    absent(Key::Ready, "true", &mut txn);
    absent(Key::Bgp(Scope::Global, BgpItem::AsNum), "64512", &mut txn);
    absent(Key::Bgp(Scope::Global, BgpItem::NodeMesh), r#"{"enabled":true}"#, &mut txn);
    let mut own = |key: Key, value: Option<String>| match (stored(&key), value) {
        (Some(old), Some(value)) if old != value.as_bytes() => {
            txn.compare.push(Compare::Value(key.to_string(), old));
            txn.ops.push(put(&key, &value));
        }
        (None, Some(value)) => {
            txn.compare.push(Compare::Absent(key.to_string()));
            txn.ops.push(put(&key, &value));
        }
        (Some(_), None) => txn.ops.push(Op::Delete { key: key.to_string() }),
        _ => {}
    };
    for (family, choice, found) in
        [(IpFamily::V4, settings.ip4, detected.v4), (IpFamily::V6, settings.ip6, detected.v6)]
    {
        let address = Key::Bgp(host(), BgpItem::Address(family));
        let network = Key::Bgp(host(), BgpItem::Network(family));
        let is_stored = stored(&address).is_some_and(|v| !v.trim_ascii().is_empty());
        let wanted = match choice {
            Some(AddressChoice::Given(addr, len)) => Some(NodeAddress { addr, len }),
            Some(AddressChoice::Auto) => found,
            None if is_stored || family == IpFamily::V6 => continue,
            None => found,
            Some(AddressChoice::Nothing) => {
                own(address, Some(String::new()));
                own(network, None);
                continue;
            }
        };
        let Some(wanted) = wanted else { continue };
        own(address, Some(wanted.addr.to_string()));
        if let Ok(net) = Cidr::new(wanted.addr, wanted.len) {
            own(network, Some(net.to_string()));
        }
        if family == IpFamily::V4 {
            own(Key::BirdIp { host: node.to_owned() }, Some(wanted.addr.to_string()));
        }
    }
    // A stored address that lacks its network or bird_ip is completed only if the host has that address.
    if let Some(found) = detected.v4 {
        let stored_address = stored(&Key::Bgp(host(), BgpItem::Address(IpFamily::V4)));
        if settings.ip4.is_none() && stored_address.as_deref() == Some(found.addr.to_string().as_bytes()) {
            let network = Key::Bgp(host(), BgpItem::Network(IpFamily::V4));
            if stored(&network).is_none()
                && let Ok(net) = Cidr::new(found.addr, found.len)
            {
                own(network, Some(net.to_string()));
            }
            let bird_ip = Key::BirdIp { host: node.to_owned() };
            if stored(&bird_ip).is_none() {
                own(bird_ip, Some(found.addr.to_string()));
            }
        }
    }
    if let Some(asn) = settings.asn {
        own(Key::Bgp(host(), BgpItem::AsNum), Some(asn.to_string()));
    }
    (!txn.ops.is_empty()).then_some(txn)
}

fn put(key: &Key, value: &str) -> Op {
    Op::Put { key: key.to_string(), value: value.as_bytes().to_vec(), lease: None }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn found() -> Detected {
        Detected { v4: Some(NodeAddress { addr: "192.0.2.13".parse().unwrap(), len: 24 }), v6: None }
    }

    fn run(
        store: &[(&str, &str)],
        settings: &Settings,
        detected: Detected,
    ) -> BTreeMap<String, Option<String>> {
        let map: BTreeMap<String, Vec<u8>> =
            store.iter().map(|(k, v)| ((*k).to_owned(), v.as_bytes().to_vec())).collect();
        let txn = plan("h1", settings, detected, &|key| map.get(&key.to_string()).cloned());
        let ops = txn.map(|t| t.ops).unwrap_or_default();
        ops.into_iter()
            .filter_map(|op| match op {
                Op::Put { key, value, .. } => Some((key, Some(String::from_utf8(value).unwrap()))),
                Op::Delete { key } => Some((key, None)),
                Op::DeletePrefix { .. } => None,
            })
            .collect()
    }

    #[test]
    fn an_empty_store_gets_the_host_and_the_defaults() {
        let written = run(&[], &Settings::default(), found());
        let get = |k: &str| written.get(k).cloned().flatten();
        assert_eq!(get("/calico/bgp/v1/host/h1/ip_addr_v4").as_deref(), Some("192.0.2.13"));
        assert_eq!(get("/calico/bgp/v1/host/h1/network_v4").as_deref(), Some("192.0.2.0/24"));
        assert_eq!(get("/calico/v1/host/h1/bird_ip").as_deref(), Some("192.0.2.13"));
        assert_eq!(get("/calico/v1/host/h1/metadata").as_deref(), Some("{}"));
        assert_eq!(get("/calico/v1/host/h1/config/DefaultEndpointToHostAction").as_deref(), Some("RETURN"));
        assert_eq!(get("/calico/bgp/v1/global/as_num").as_deref(), Some("64512"));
        assert_eq!(get("/calico/v1/Ready").as_deref(), Some("true"));
        assert!(!written.contains_key("/calico/bgp/v1/host/h1/ip_addr_v6"));
        assert!(!written.keys().any(|k| k.contains("pool")));
    }

    #[test]
    fn what_stands_stays_and_a_flag_wins() {
        let full = [
            ("/calico/v1/Ready", "false"),
            ("/calico/v1/host/h1/metadata", "{\"x\":1}"),
            ("/calico/v1/host/h1/config/DefaultEndpointToHostAction", "DROP"),
            ("/calico/bgp/v1/global/as_num", "65000"),
            ("/calico/bgp/v1/global/node_mesh", "{\"enabled\":false}"),
            ("/calico/bgp/v1/host/h1/ip_addr_v4", "198.51.100.1"),
            ("/calico/bgp/v1/host/h1/network_v4", "198.51.100.0/24"),
        ];
        assert!(run(&full, &Settings::default(), found()).is_empty());
        let flag = Settings {
            ip4: Some("203.0.113.5/25".parse().unwrap()),
            asn: Some(65_001),
            ..Settings::default()
        };
        let written = run(&full, &flag, found());
        let get = |k: &str| written.get(k).cloned().flatten();
        assert_eq!(get("/calico/bgp/v1/host/h1/ip_addr_v4").as_deref(), Some("203.0.113.5"));
        assert_eq!(get("/calico/bgp/v1/host/h1/network_v4").as_deref(), Some("203.0.113.0/25"));
        assert_eq!(get("/calico/bgp/v1/host/h1/as_num").as_deref(), Some("65001"));
        assert_eq!(written.len(), 4);
    }

    #[test]
    fn none_leaves_the_family() {
        let none = Settings { ip4: Some(AddressChoice::Nothing), ..Settings::default() };
        let store = [
            ("/calico/bgp/v1/host/h1/ip_addr_v4", "192.0.2.13"),
            ("/calico/bgp/v1/host/h1/network_v4", "192.0.2.0/24"),
        ];
        let written = run(&store, &none, found());
        assert_eq!(written["/calico/bgp/v1/host/h1/ip_addr_v4"].as_deref(), Some(""));
        assert_eq!(written["/calico/bgp/v1/host/h1/network_v4"], None);
    }
}
