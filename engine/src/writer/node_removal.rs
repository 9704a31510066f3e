//! Removal of a host from a Calico 3 store: what goes, and in which order.
//!
//! The order is that of Calico's own client, so that an interrupted removal never leaves an address without
//! something that names its host. Calico forgets the tunnel addresses of IPv6; they are released here. The
//! Node is deleted last: as long as it exists, the removal can be run again.
//!
//! ```text
//!  addresses of endpoints -> WorkloadEndpoints -> other addresses, blocks -> BGPPeers
//!    -> FelixConfiguration, BGPConfiguration -> HostEndpoints -> status keys -> Node
//! ```

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde_json::Value;
use tortie_config::calico3::{Kind, ObjectKey, Projection, WorkloadEndpointName};
use tortie_config::key::{Key, escape, prefix, unescape};
use tortie_store::{Compare, KeyValue, Op, Revision, Snapshot, Txn};

use crate::model::endpoint_name::name_of_stored;
use crate::model::raw_entry;

/// Kinds of objects that a host may have, in the order of their deletion.
const KINDS: [Kind; 6] = [
    Kind::WorkloadEndpoint,
    Kind::BGPPeer,
    Kind::FelixConfiguration,
    Kind::BGPConfiguration,
    Kind::HostEndpoint,
    Kind::Node,
];

/// A step of the removal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RemovalStep {
    /// The addresses of the host's endpoints are released.
    ReleaseEndpoints,
    /// All other addresses of the host are released, tunnel addresses among them, and its blocks lose their
    /// owner.
    ReleaseHost,
    /// A key is deleted.
    Delete(DoomedKey),
}

/// A key that is deleted if it is still the one that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DoomedKey {
    /// Kind of the object; `None` for other keys.
    pub kind: Option<Kind>,
    /// Name for people: of an endpoint, of an object, or the key.
    pub name: String,
    key: String,
    revision: Revision,
}

impl DoomedKey {
    /// Returns the transaction that deletes the key. It fails if the key changed, or if one of `absent`
    /// exists.
    #[must_use]
    pub fn deletion<'a>(&self, absent: impl IntoIterator<Item = &'a str>) -> Txn {
        let mut compare = vec![Compare::ModRevision(self.key.clone(), self.revision)];
        compare.extend(absent.into_iter().map(|key| Compare::Absent(key.to_owned())));
        Txn { compare, ops: vec![Op::Delete { key: self.key.clone() }] }
    }
}

/// What the store has of a host besides IPAM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRemoval {
    /// Steps in their order.
    pub steps: Vec<RemovalStep>,
    /// Keys that show that an agent lives, each with who writes it and whether it exists.
    pub signs: Vec<SignOfLife>,
    /// Remaining peers at an address of the host.
    pub still_named: Vec<String>,
}

/// A key with a lease that the program of a host renews.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignOfLife {
    /// The program, such as `Felix`.
    pub who: &'static str,
    /// Its key.
    pub key: String,
    /// True if the key exists.
    pub exists: bool,
}

impl NodeRemoval {
    /// Returns the prefixes to list.
    #[must_use]
    pub fn prefixes(host: &str) -> Vec<String> {
        let mut prefixes: Vec<String> = KINDS.into_iter().map(ObjectKey::prefix_of).collect();
        prefixes.extend([
            prefix::FELIX_2.to_owned(),
            prefix::felix_host(host),
            prefix::tortie_host(host),
            tortie_status(host),
        ]);
        prefixes
    }

    /// Computes the removal of a host from a snapshot of [`NodeRemoval::prefixes`].
    #[must_use]
    pub fn of(host: &str, snapshot: &Snapshot) -> Self {
        let mut objects: Vec<(Kind, &KeyValue)> = Vec::new();
        let mut keys = Vec::new();
        for entry in &snapshot.entries {
            match ObjectKey::parse(&entry.key) {
                Some(key) if is_of(host, &key, &entry.value) => objects.push((key.kind, entry)),
                Some(_) => {}
                None if is_key_of(host, &entry.key) => keys.push(entry),
                None => {}
            }
        }
        let (objects, names) = (&objects, &EndpointNames::of(host, snapshot));
        let doomed = move |kind: Kind| {
            let of_kind = objects.iter().filter(move |(of, _)| *of == kind);
            of_kind.map(move |(_, entry)| RemovalStep::Delete(names.doomed(entry)))
        };
        let mut steps = vec![RemovalStep::ReleaseEndpoints];
        steps.extend(doomed(Kind::WorkloadEndpoint));
        steps.push(RemovalStep::ReleaseHost);
        for kind in KINDS.into_iter().filter(|kind| !matches!(kind, Kind::WorkloadEndpoint | Kind::Node)) {
            steps.extend(doomed(kind));
        }
        steps.extend(keys.into_iter().map(|entry| RemovalStep::Delete(names.doomed(entry))));
        steps.extend(doomed(Kind::Node));
        Self { steps, signs: signs(host, snapshot), still_named: still_named(host, snapshot) }
    }

    /// Returns the keys that are deleted.
    pub fn doomed(&self) -> impl Iterator<Item = &DoomedKey> {
        self.steps.iter().filter_map(|step| match step {
            RemovalStep::Delete(key) => Some(key),
            _ => None,
        })
    }
}

/// Names of the host's endpoints for people, by their keys.
struct EndpointNames(BTreeMap<String, String>);

impl EndpointNames {
    fn of(host: &str, snapshot: &Snapshot) -> Self {
        let is_endpoint = |entry: &&KeyValue| {
            ObjectKey::parse(&entry.key)
                .is_some_and(|key| key.kind == Kind::WorkloadEndpoint && is_of(host, &key, &entry.value))
        };
        let raw = snapshot.entries.iter().filter(is_endpoint).map(raw_entry);
        let projected = Projection::new(host).replace(raw);
        let named = projected.into_iter().filter_map(|entry| {
            let Ok(Key::Endpoint(key)) = Key::parse(&entry.key) else { return None };
            Some((entry.raw_keys().into_iter().next()?, name_of_stored(&key, &entry.value)))
        });
        Self(named.collect())
    }

    fn doomed(&self, entry: &KeyValue) -> DoomedKey {
        let object = ObjectKey::parse(&entry.key);
        let title = || object.as_ref().map(ObjectKey::title);
        DoomedKey {
            name: self.0.get(&entry.key).cloned().or_else(title).unwrap_or_else(|| entry.key.clone()),
            kind: object.map(|object| object.kind),
            key: entry.key.clone(),
            revision: entry.mod_revision,
        }
    }
}

/// Returns true if an object goes with the host.
fn is_of(host: &str, key: &ObjectKey, value: &[u8]) -> bool {
    match key.kind {
        Kind::Node => key.name == host,
        Kind::FelixConfiguration | Kind::BGPConfiguration => key.name == format!("node.{host}"),
        Kind::WorkloadEndpoint => match text(value, "/spec/node") {
            Some(node) => node == host,
            // Without the member only the name says where the endpoint is.
            None => WorkloadEndpointName::parse(&key.name).is_some_and(|name| name.node == host),
        },
        Kind::BGPPeer | Kind::HostEndpoint => text(value, "/spec/node").is_some_and(|node| node == host),
        _ => false,
    }
}

/// Returns true for a key of the host that is no object: status of Felix and of the agent, state of plugins.
fn is_key_of(host: &str, key: &str) -> bool {
    region_of(host, key).is_some()
        || key.starts_with(&prefix::felix_host(host))
        || key.starts_with(&prefix::tortie_host(host))
        || key == tortie_status(host)
}

/// Returns the region of a status key of Felix on this host.
fn region_of<'a>(host: &str, key: &'a str) -> Option<&'a str> {
    let (region, rest) = key.strip_prefix(prefix::FELIX_2)?.split_once("/host/")?;
    let (of, _) = rest.split_once('/')?;
    (!region.contains('/') && unescape(of) == host).then_some(region)
}

fn tortie_status(host: &str) -> String {
    Key::TortieStatus { host: host.to_owned() }.to_string()
}

fn signs(host: &str, snapshot: &Snapshot) -> Vec<SignOfLife> {
    let mut regions: Vec<&str> =
        snapshot.entries.iter().filter_map(|entry| region_of(host, &entry.key)).collect();
    regions.push("no-region");
    regions.sort_unstable();
    regions.dedup();
    let felix = |region| format!("{}{region}/host/{}/status", prefix::FELIX_2, escape(host));
    let keys = regions.into_iter().map(|region| ("Felix", felix(region)));
    let own = [("an agent", tortie_status(host))];
    let exists = |key: &str| snapshot.entries.iter().any(|entry| entry.key == key);
    own.into_iter().chain(keys).map(|(who, key)| SignOfLife { who, exists: exists(&key), key }).collect()
}

/// Returns the peers of all or of other hosts at an address of this host.
fn still_named(host: &str, snapshot: &Snapshot) -> Vec<String> {
    let node = ObjectKey::global(Kind::Node, host).to_string();
    let own = snapshot.entries.iter().find(|entry| entry.key == node);
    let member = |name: &str| text(&own?.value, &format!("/spec/bgp/{name}"));
    let addresses: Vec<IpAddr> =
        ["ipv4Address", "ipv6Address"].into_iter().filter_map(|name| address(&member(name)?)).collect();
    let peers = snapshot.entries.iter().filter_map(|entry| {
        let key = ObjectKey::parse(&entry.key).filter(|key| key.kind == Kind::BGPPeer)?;
        let peer = address(&text(&entry.value, "/spec/peerIP")?)?;
        (!is_of(host, &key, &entry.value) && addresses.contains(&peer)).then(|| key.title())
    });
    peers.collect()
}

/// Returns the address of `ADDRESS`, `ADDRESS/LENGTH` or `ADDRESS:PORT`.
fn address(text: &str) -> Option<IpAddr> {
    let of_network = || text.split_once('/').and_then(|(addr, _)| addr.parse().ok());
    let of_socket = || text.parse::<SocketAddr>().ok().map(|socket| socket.ip());
    text.parse().ok().or_else(of_network).or_else(of_socket)
}

fn text(value: &[u8], pointer: &str) -> Option<String> {
    let value: Value = serde_json::from_slice(value).ok()?;
    value.pointer(pointer)?.as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use tortie_store::fixtures::snapshot;

    use super::*;

    const ROOT: &str = "/calico/resources/v3/projectcalico.org";

    fn plan(host: &str, entries: &[(&str, &str)]) -> NodeRemoval {
        let entries: Vec<(String, &str)> = entries
            .iter()
            .map(|(key, value)| {
                let key = if key.starts_with('/') { (*key).to_owned() } else { format!("{ROOT}/{key}") };
                (key, *value)
            })
            .collect();
        let entries: Vec<(&str, &str)> = entries.iter().map(|(key, value)| (key.as_str(), *value)).collect();
        NodeRemoval::of(host, &snapshot(7, &entries))
    }

    fn words(removal: &NodeRemoval) -> Vec<String> {
        let word = |step: &RemovalStep| match step {
            RemovalStep::ReleaseEndpoints => "release endpoints".to_owned(),
            RemovalStep::ReleaseHost => "release host".to_owned(),
            RemovalStep::Delete(doomed) => doomed.name.clone(),
        };
        removal.steps.iter().map(word).collect()
    }

    const ENDPOINT: &str = r#"{"spec":{"orchestrator":"cni","node":"h1","containerID":"c1","endpoint":"eth0","interfaceName":"cali1","ipNetworks":["10.65.0.1/32"]}}"#;

    #[test]
    fn everything_of_the_host_goes_in_the_order_of_calicos_client() {
        let removal = plan(
            "h1",
            &[
                ("nodes/h1", r#"{"spec":{"bgp":{"ipv4Address":"192.0.2.1/24"}}}"#),
                ("nodes/h2", "{}"),
                ("workloadendpoints/default/h1-cni-c1-eth0", ENDPOINT),
                ("workloadendpoints/shop/h1-k8s-web-eth0", "[]"),
                ("workloadendpoints/shop/h2-k8s-web-eth0", r#"{"spec":{"node":"h2"}}"#),
                ("workloadendpoints/shop/h1--2-k8s-web-eth0", "{}"),
                ("hostendpoints/uplink", r#"{"spec":{"node":"h1"}}"#),
                ("hostendpoints/other", r#"{"spec":{"node":"h2"}}"#),
                ("hostendpoints/broken", "["),
                ("bgppeers/own", r#"{"spec":{"node":"h1","peerIP":"192.0.2.9"}}"#),
                ("bgppeers/to-h1", r#"{"spec":{"peerIP":"192.0.2.1:1790"}}"#),
                ("bgppeers/tor", r#"{"spec":{"peerIP":"192.0.2.9"}}"#),
                ("felixconfigurations/default", "{}"),
                ("felixconfigurations/node.h1", "{}"),
                ("bgpconfigurations/node.h1", "{}"),
                ("bgpconfigurations/node.h11", "{}"),
                ("/calico/felix/v1/host/h1/endpoint/uplink", r#"{"status":"up"}"#),
                ("/calico/felix/v2/no-region/host/h1/last_reported_status", "{}"),
                ("/calico/felix/v2/region-a/host/h1/workload/cni/default%2fc1/endpoint/eth0", "{}"),
                ("/calico/felix/v2/no-region/host/h2/last_reported_status", "{}"),
                ("/calico/tortie/v1/host/h1/docker/network/n", "{}"),
            ],
        );
        let expected = [
            "release endpoints",
            "cni/default/c1/eth0",
            "WorkloadEndpoint shop/h1-k8s-web-eth0",
            "release host",
            "BGPPeer own",
            "FelixConfiguration node.h1",
            "BGPConfiguration node.h1",
            "HostEndpoint uplink",
            "/calico/felix/v1/host/h1/endpoint/uplink",
            "/calico/felix/v2/no-region/host/h1/last_reported_status",
            "/calico/felix/v2/region-a/host/h1/workload/cni/default%2fc1/endpoint/eth0",
            "/calico/tortie/v1/host/h1/docker/network/n",
            "Node h1",
        ];
        assert_eq!(words(&removal), expected);
        assert_eq!(removal.still_named, ["BGPPeer to-h1"]);
        assert!(removal.signs.iter().all(|sign| !sign.exists));
    }

    #[test]
    fn a_changed_object_and_a_living_agent_are_conflicts() {
        let removal = plan("h1", &[("nodes/h1", "{}")]);
        let key = format!("{ROOT}/nodes/h1");
        let signs = ["/calico/tortie/v1/status/h1", "/calico/felix/v2/no-region/host/h1/status"];
        assert_eq!(removal.signs.iter().map(|sign| sign.key.as_str()).collect::<Vec<_>>(), signs);
        let node = removal.doomed().next().unwrap();
        let txn = node.deletion(removal.signs.iter().map(|sign| sign.key.as_str()));
        let absent = signs.map(|sign| Compare::Absent(sign.to_owned()));
        assert_eq!(txn.compare, [&[Compare::ModRevision(key.clone(), 7)][..], &absent].concat());
        assert_eq!(txn.ops, [Op::Delete { key }]);
    }

    #[test]
    fn an_agent_lives_in_whichever_region_it_reports() {
        for (key, who) in [
            ("/calico/tortie/v1/status/h1", "an agent"),
            ("/calico/felix/v2/no-region/host/h1/status", "Felix"),
            ("/calico/felix/v2/region-x/host/h1/status", "Felix"),
        ] {
            let removal = plan("h1", &[(key, "{}")]);
            let alive: Vec<_> = removal.signs.iter().filter(|sign| sign.exists).collect();
            assert_eq!(
                alive.iter().map(|sign| (sign.who, sign.key.as_str())).collect::<Vec<_>>(),
                [(who, key)]
            );
        }
        let others = plan("h1", &[("/calico/felix/v2/no-region/host/h2/status", "{}")]);
        assert!(others.doomed().next().is_none() && others.signs.iter().all(|sign| !sign.exists));
    }
}
