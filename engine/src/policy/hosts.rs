//! Assigns host endpoints to the interfaces of this host (data model, "Host endpoints").

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use tortie_config::Dialect;
use tortie_config::key::EndpointKey;

use super::Globals;
use super::types::{EndpointPolicy, HostPolicy, Ruleset};

/// Host endpoint of each interface that has one. Rules do not apply to other interfaces, except for those of
/// [`ALL_INTERFACES`] in a Calico 3 store.
pub type HostInterfaces = BTreeMap<Box<str>, EndpointKey>;

/// Name that stands for all interfaces without a host endpoint of their own, in a Calico 3 store.
pub const ALL_INTERFACES: &str = "*";

/// Returns the host endpoint that applies to an interface for packets that the host forwards. In a Calico 3
/// store that of all interfaces applies to workload interfaces too.
pub(super) fn forward_endpoint<'a>(
    hosts: &'a HostInterfaces,
    ruleset: &Ruleset,
    globals: &Globals,
    interface: &str,
) -> Option<&'a EndpointKey> {
    let has_policy = |key: &&EndpointKey| ruleset.endpoints.contains_key(*key);
    let own = hosts.get(interface).filter(|_| !globals.is_workload(interface)).filter(has_policy);
    own.or_else(|| all_interfaces(hosts, globals))
}

/// Returns the host endpoint of [`ALL_INTERFACES`]. A v1 store has none.
pub(super) fn all_interfaces<'a>(hosts: &'a HostInterfaces, globals: &Globals) -> Option<&'a EndpointKey> {
    hosts.get(ALL_INTERFACES).filter(|_| globals.dialect == Dialect::V3)
}

/// Returns the host endpoint that applies to an interface for packets from and to the host itself. Workload
/// interfaces have none.
pub(super) fn endpoint_of<'a>(
    hosts: &'a HostInterfaces,
    ruleset: &Ruleset,
    globals: &Globals,
    interface: &str,
) -> Option<&'a EndpointKey> {
    forward_endpoint(hosts, ruleset, globals, interface).filter(|_| !globals.is_workload(interface))
}

/// Assigns a host endpoint to each interface, given the interfaces with their addresses. If several endpoints
/// match, by name or by address, the one with the smallest id (as text) is used. An endpoint with an
/// interface name never matches by address, and is assigned to the name even before the interface exists.
/// Workload interfaces have no host endpoint.
#[must_use]
pub fn host_interfaces<'a, A>(
    ruleset: &Ruleset,
    globals: &Globals,
    interfaces: impl IntoIterator<Item = (&'a str, A)>,
) -> HostInterfaces
where
    A: IntoIterator<Item = IpAddr>,
{
    let mut by_addr: BTreeMap<IpAddr, BTreeSet<&str>> = BTreeMap::new();
    for (name, addrs) in interfaces {
        if !globals.is_workload(name) {
            for addr in addrs {
                by_addr.entry(addr).or_default().insert(name);
            }
        }
    }
    let mut found = HostInterfaces::new();
    // Keys are sorted by id, so the first match has the smallest one.
    for (key, host) in host_endpoints(ruleset) {
        let named = host.interface.iter().map(|name| name.as_str());
        let addrs = if host.interface.is_none() { host.addrs.as_slice() } else { &[] };
        let at = addrs.iter().filter_map(|addr| by_addr.get(addr)).flatten().copied();
        for name in named.chain(at).filter(|name| !globals.is_workload(name)) {
            found.entry(name.into()).or_insert_with(|| key.clone());
        }
    }
    found
}

/// Returns the host endpoints of a ruleset, by id. The cost does not depend on the number of workloads.
pub fn host_endpoints(ruleset: &Ruleset) -> impl Iterator<Item = (&EndpointKey, &HostPolicy)> {
    let first = EndpointKey::Host { host: String::new(), endpoint: String::new() };
    ruleset.endpoints.range(first..).filter_map(|(key, endpoint)| match &**endpoint {
        EndpointPolicy::Host(host) => Some((key, host)),
        EndpointPolicy::Workload(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::tests::{globals, ruleset};

    const ETH0: &[&str] = &["192.0.2.1", "2001:db8::1"];
    const ETH1: &[&str] = &["198.51.100.1"];

    /// Returns (interface, endpoint id) pairs for host endpoints with these ids and values.
    fn found(endpoints: &[(&str, &str)]) -> Vec<(String, String)> {
        let keys: Vec<String> =
            endpoints.iter().map(|(id, _)| format!("/calico/v1/host/h1/endpoint/{id}")).collect();
        let entries: Vec<(&str, &str)> =
            keys.iter().zip(endpoints).map(|(key, (_, v))| (key.as_str(), *v)).collect();
        let (globals, ruleset) = (globals(&entries), ruleset(&entries));
        let interfaces =
            [("cali1", &["192.0.2.1", "203.0.113.9"][..]), ("eth0", ETH0), ("eth1", ETH1), ("eth2", &[])];
        let interfaces =
            interfaces.map(|(name, addrs)| (name, addrs.iter().map(|addr| addr.parse().unwrap())));
        let all = host_interfaces(&ruleset, &globals, interfaces);
        let id = |key: &EndpointKey| match key {
            EndpointKey::Host { endpoint, .. } => endpoint.clone(),
            other => panic!("{other:?}"),
        };
        all.iter().map(|(name, key)| (name.to_string(), id(key))).collect()
    }

    fn is(found: Vec<(String, String)>, expected: &[(&str, &str)]) {
        let expected: Vec<(String, String)> =
            expected.iter().map(|(name, id)| ((*name).to_owned(), (*id).to_owned())).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn an_endpoint_without_a_name_governs_every_interface_with_one_of_its_addresses() {
        let value =
            r#"{"expected_ipv4_addrs":["10.9.9.9","198.51.100.1"],"expected_ipv6_addrs":["2001:db8::1"]}"#;
        is(found(&[("a", value)]), &[("eth0", "a"), ("eth1", "a")]);
        is(found(&[("a", r#"{"expected_ipv4_addrs":["10.9.9.9"]}"#)]), &[]);
    }

    #[test]
    fn a_name_is_never_looked_for_by_address() {
        let named = r#"{"name":"eth2","expected_ipv4_addrs":["192.0.2.1"]}"#;
        is(found(&[("a", named)]), &[("eth2", "a")]);
        // The endpoint applies from the first packet of the new interface on.
        is(found(&[("a", r#"{"name":"eth7"}"#)]), &[("eth7", "a")]);
    }

    #[test]
    fn of_several_the_smallest_id_counts() {
        let (named, by_addr) = (r#"{"name":"eth0"}"#, r#"{"expected_ipv4_addrs":["192.0.2.1"]}"#);
        is(found(&[("b", named), ("a", by_addr)]), &[("eth0", "a")]);
        is(found(&[("b", by_addr), ("a", named)]), &[("eth0", "a")]);
        // Ids are compared as text, not as numbers.
        is(found(&[("9", named), ("10", by_addr)]), &[("eth0", "10")]);
    }

    #[test]
    fn workload_interfaces_have_no_host_endpoint() {
        is(found(&[("a", r#"{"expected_ipv4_addrs":["203.0.113.9"]}"#), ("b", r#"{"name":"cali1"}"#)]), &[]);
    }
}
