//! Compares the workloads attached to a host when its agent starts with the endpoints in the store. An agent
//! that starts under another host name, or with the wrong store, would otherwise remove running workloads as
//! unknown endpoints.

use std::net::IpAddr;

use tortie_config::key::{EndpointKey, Key};
use tortie_config::resource::Resource;

use super::guard::Unexplained;
use super::state::Model;

/// A route of the main table for a single address, directly to an interface that is up.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
pub struct AttachedRoute {
    /// Destination address of the route.
    pub addr: IpAddr,
    /// Name of the output interface.
    pub interface: String,
    /// Metric of the route.
    #[serde(default)]
    pub metric: u32,
}

/// Returns the host whose affinities a cache contains, or `None` if it contains none.
#[must_use]
pub fn host_of_affinities<'a>(keys: impl Iterator<Item = &'a str>) -> Option<String> {
    keys.filter_map(|key| key.parse::<Key>().ok()).find_map(|key| match key {
        Key::Affinity { host, .. } => Some(host),
        _ => None,
    })
}

/// Names that the interfaces of workloads begin with on hosts of Calico and of OpenStack, whatever the settings.
const USUAL_PREFIXES: [&str; 2] = ["cali", "tap"];

/// Returns the numbers of IPv4 and IPv6 routes that lead to workloads.
#[must_use]
pub fn workload_routes(model: &Model, attached: &[AttachedRoute]) -> [usize; 2] {
    let prefixes = model.settings().interface_prefix;
    let is_of_workload = |route: &&AttachedRoute| {
        let mut names = prefixes.iter().map(|prefix| prefix.as_str()).chain(USUAL_PREFIXES);
        names.any(|prefix| route.interface.starts_with(prefix))
    };
    let (v4, v6): (Vec<_>, Vec<_>) =
        attached.iter().filter(is_of_workload).partition(|route| route.addr.is_ipv4());
    [v4.len(), v6.len()]
}

/// Returns the attached workloads that the store does not explain. `cached` is the model of the cache on
/// disk, and `cache_of` the host that wrote that cache.
#[must_use]
pub fn unexplained(
    model: &Model,
    cached: Option<&Model>,
    cache_of: Option<&str>,
    attached: &[AttachedRoute],
) -> Option<Unexplained> {
    let node = model.node();
    if model.workloads(node).next().is_some() {
        return None;
    }
    let prefixes = model.settings().interface_prefix;
    let known = |route: &&AttachedRoute| {
        cached.is_some_and(|cached| {
            cached.workloads(node).any(|w| w.value.nets().any(|net| net.addr() == route.addr))
        })
    };
    let strange: Vec<&AttachedRoute> = attached
        .iter()
        .filter(|route| prefixes.iter().any(|prefix| route.interface.starts_with(prefix.as_str())))
        .filter(|route| !known(route))
        .collect();
    let holder = strange.iter().find_map(|route| Some((*route, holder(model, route)?)));
    if let Some((route, former)) = holder {
        let evidence =
            format!("{} on {} is an endpoint of {former} in the store", route.addr, route.interface);
        return Some(Unexplained::Renamed { former: former.to_owned(), evidence });
    }
    let former = cache_of.filter(|former| *former != node && model.host(former).is_some());
    if let Some(former) = former
        && model.affinities(node).next().is_none()
    {
        let evidence = format!("the cache on disk is of {former}, which is a host of the store");
        return Some(Unexplained::Renamed { former: former.to_owned(), evidence });
    }
    let first = strange.first()?;
    let first = format!("{} on {}", first.addr, first.interface);
    Some(Unexplained::Unknown { first, count: strange.len() })
}

/// Returns the host whose workload endpoint has this address on an interface of this name.
fn holder<'a>(model: &'a Model, route: &AttachedRoute) -> Option<&'a str> {
    model.endpoint_resources().find_map(|(key, resource)| match (key, &**resource) {
        (EndpointKey::Workload { host, .. }, Resource::WorkloadEndpoint(endpoint))
            if endpoint.name.as_str() == route.interface
                && endpoint.nets().any(|net| net.addr() == route.addr) =>
        {
            Some(host.as_str())
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use tortie_store::{KeyValue, Snapshot};

    use super::super::scope::WatchPart;
    use super::*;

    #[test]
    fn routes_to_interfaces_of_workloads_are_those_that_a_restart_preserves() {
        let route = |addr: &str, interface: &str| AttachedRoute {
            addr: addr.parse().unwrap(),
            interface: interface.to_owned(),
            metric: 0,
        };
        let prefix = ("/calico/v1/config/InterfacePrefix", "vm");
        let attached = [
            route("10.244.1.1", "cali1"),
            route("10.65.0.5", "tap0b5fa1f0-aa"),
            route("fd00::5", "tap0b5fa1f0-aa"),
            route("10.244.1.2", "vm7"),
            // The gateway of a cloud, and a container of Docker.
            route("172.31.1.1", "eth0"),
            route("172.17.0.2", "docker0"),
        ];
        assert_eq!(workload_routes(&model("h1", &[]), &attached), [2, 1]);
        assert_eq!(workload_routes(&model("h1", &[prefix]), &attached), [3, 1]);
    }

    /// Store entries of host `h1`, whose endpoint `web1` has 10.244.1.1 on cali1.
    fn of_h1() -> Vec<(&'static str, &'static str)> {
        vec![
            ("/calico/v1/host/h1/metadata", "{}"),
            ("/calico/ipam/v2/host/h1/ipv4/block/10.244.1.0-26", "{}"),
            (
                "/calico/v1/host/h1/workload/lab/web1/endpoint/eth1",
                r#"{"state":"active","name":"cali1","mac":null,"profile_ids":[],"ipv4_nets":["10.244.1.1/32"],"ipv6_nets":[]}"#,
            ),
        ]
    }

    fn model(node: &str, entries: &[(&str, &str)]) -> Model {
        let entries = entries.iter().map(|(key, value)| KeyValue {
            key: (*key).to_owned(),
            value: value.as_bytes().to_vec(),
            mod_revision: 1,
            create_revision: 1,
        });
        let mut model = Model::new(node);
        let snapshot = Snapshot {
            revision: 1,
            store_id: "a".to_owned(),
            entries: entries.collect(),
            ..Snapshot::default()
        };
        model.replace(WatchPart::All, &snapshot);
        model
    }

    type Entries<'a> = &'a [(&'a str, &'a str)];

    /// Description, host name, store, cache, attached routes and expected result of one case.
    type Case<'a> = (&'a str, &'a str, Entries<'a>, Option<Entries<'a>>, Vec<AttachedRoute>, Option<String>);

    /// Workloads of this host, of its former name and of no host, in the store and in the cache: the check
    /// passes only if no workload could be removed by mistake.
    #[test]
    fn what_is_attached_belongs_to_this_host_to_its_former_name_or_to_nobody() {
        let to = |addr: &str, interface: &str| {
            vec![AttachedRoute { addr: addr.parse().unwrap(), interface: interface.to_owned(), metric: 0 }]
        };
        let (h1, empty): (&[_], &[_]) = (&of_h1(), &[]);
        let renamed = |of: &str| format!("renamed {of}");
        let cases: &[Case<'_>] = &[
            ("nothing is attached", "h1", h1, None, vec![], None),
            ("its own", "h1", h1, None, to("10.244.1.1", "cali1"), None),
            ("an uplink", "h2", empty, None, to("10.244.1.1", "eth0"), None),
            ("another name", "h2", h1, None, to("10.244.1.1", "cali1"), Some(renamed("h1"))),
            (
                "another interface of that address",
                "h2",
                h1,
                None,
                to("10.244.1.1", "cali2"),
                Some("unknown 1".to_owned()),
            ),
            ("nobody's", "h1", empty, None, to("10.244.1.1", "cali1"), Some("unknown 1".to_owned())),
            ("in the cache as its own", "h1", empty, Some(h1), to("10.244.1.1", "cali1"), None),
            (
                "the cache alone, and the store knows the name",
                "h2",
                h1,
                Some(h1),
                vec![],
                Some(renamed("h1")),
            ),
            ("the cache alone, of a host that is gone", "h2", empty, Some(h1), vec![], None),
            ("the cache of this host", "h1", h1, Some(h1), vec![], None),
        ];
        for (name, node, store, cache, attached, expected) in cases {
            let cached = cache.map(|cache| model(node, cache));
            let cache_of = cache.and_then(|cache| host_of_affinities(cache.iter().map(|(key, _)| *key)));
            let found = unexplained(&model(node, store), cached.as_ref(), cache_of.as_deref(), attached);
            let found = found.map(|found| match found {
                Unexplained::Renamed { former, .. } => renamed(&former),
                Unexplained::Unknown { count, .. } => format!("unknown {count}"),
            });
            assert_eq!(found, *expected, "{name}");
        }
    }
}
