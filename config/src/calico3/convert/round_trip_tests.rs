//! A v1 network, converted and projected, is the same v1 network, but for differences by design.
//!
//! | v1 | after both |
//! | --- | --- |
//! | policy `web` of the tier `default` | policy `default.web` |
//! | host endpoint `e0` of the host `h1` | host endpoint `h1.e0` |
//! | workload `w` of an orchestrator | workload `default/w`, and for `k8s` `<namespace>/<pod>` |
//! | labels of a workload | also those of namespace and orchestrator |
//! | tags of a profile | labels with an empty value |
//! | `bird_ip`, `metadata` | none: the Node has the address |
//! | address of a family that a host has not | an empty value, not a missing one |
//! | peers of all hosts, and of one | peers of this host, whatever their scope |
//! | profile without rules | one with no rule |
//! | settings and log levels of other hosts | not projected |
//! | members of a pool that v1 has not | the defaults of Calico 3 |
//! | unknown members | members that Calico's projection adds |

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::calico3::{Projection, RawEntry};
use crate::key::{BgpItem, ProfilePart, Scope};
use crate::resource::{Extra, NodeMesh, Pool};

/// Host whose projection is compared.
const HOST: &str = "h1";

/// What is compared of a store: values by key, and the peers of the host.
#[derive(Debug, Default, PartialEq)]
struct Network {
    values: BTreeMap<String, String>,
    peers: BTreeSet<(String, String)>,
}

/// Reads a store. `is_v1` says that the differences by design are to be made.
fn network<'a>(entries: impl IntoIterator<Item = (&'a str, &'a [u8])>, is_v1: bool) -> Network {
    let mut network = Network::default();
    let mut labels: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    for (text, value) in entries {
        let key = Key::parse(text).unwrap();
        let Ok(resource) = Resource::parse(&key, value) else { panic!("{text}") };
        let (mut key, mut resource) = (key.canonical().clone(), resource);
        match (&mut key, &mut resource) {
            (Key::Bgp(scope, BgpItem::Peer { .. }), Resource::Peer(peer)) => {
                if *scope == Scope::Global || scope.host() == Some(HOST) {
                    let asn = peer.as_num.number().map(|asn| asn.to_string());
                    network.peers.insert((peer.ip.to_string(), asn.unwrap_or_default()));
                }
                continue;
            }
            (Key::Bgp(..), Resource::Address(None) | Resource::RrClusterId(None)) => continue,
            (Key::Bgp(..), Resource::NodeMesh(mesh)) => {
                *mesh = NodeMesh { enabled: mesh.enabled, ..NodeMesh::default() };
            }
            (Key::Bgp(Scope::Host(host), BgpItem::LogLevel), _) if host != HOST => continue,
            (Key::Bgp(..), _) => {}
            (Key::Setting(scope, _), Resource::Setting(_)) => {
                if scope.host().is_some_and(|host| host != HOST) {
                    continue;
                }
            }
            (Key::Profile { name, part: ProfilePart::Labels | ProfilePart::Tags }, found) => {
                let all = labels.entry(name.clone()).or_default();
                match &*found {
                    Resource::ProfileLabels(labels) => all.extend(labels.clone()),
                    Resource::ProfileTags(tags) => {
                        all.extend(tags.iter().map(|tag| (tag.clone(), String::new())));
                    }
                    _ => {}
                }
                continue;
            }
            (Key::Profile { name, .. }, Resource::ProfileRules(rules)) => {
                // Calico 3 has this profile without an object.
                let is_empty = rules.inbound.is_empty() && rules.outbound.is_empty();
                if name == "projectcalico-default-allow" || is_empty {
                    continue;
                }
                rules.extra = Extra::default();
            }
            (Key::Policy { name, .. }, Resource::Policy(policy)) => {
                policy.extra = Extra::default();
                if is_v1 {
                    *name = format!("default.{name}");
                }
            }
            (Key::Pool(_), Resource::Pool(pool)) => {
                let found = pool.clone();
                *pool = Pool {
                    ipip: found.ipip.clone(),
                    masquerade: found.masquerade,
                    ipam: found.ipam,
                    disabled: found.disabled,
                    block_size: Some(found.block_len()),
                    ..Pool::new(found.cidr)
                };
            }
            (
                Key::Endpoint(EndpointKey::Workload { orchestrator, workload, .. }),
                Resource::WorkloadEndpoint(found),
            ) => {
                found.extra = Extra::default();
                found.active_instance_id = None;
                if is_v1 {
                    let namespace = match orchestrator.as_str() {
                        "k8s" => workload.split_once('.').unwrap().0.to_owned(),
                        _ => "default".to_owned(),
                    };
                    let name = workload.split_once('.').map_or(workload.as_str(), |(_, pod)| pod).to_owned();
                    *workload = format!("{namespace}/{name}");
                    found.labels.insert("projectcalico.org/namespace".to_owned(), namespace);
                    found.labels.insert("projectcalico.org/orchestrator".to_owned(), orchestrator.clone());
                }
            }
            (Key::Endpoint(EndpointKey::Host { host, endpoint }), Resource::HostEndpoint(found)) => {
                found.extra = Extra::default();
                if is_v1 {
                    *endpoint = format!("{host}.{endpoint}");
                }
            }
            (Key::Ready, _) => {}
            _ => continue,
        }
        let value = String::from_utf8(resource.to_value()).unwrap();
        network.values.insert(key.to_string(), value);
    }
    for (name, labels) in labels.into_iter().filter(|(_, labels)| !labels.is_empty()) {
        network.values.insert(format!("labels of {name}"), format!("{labels:?}"));
    }
    network
}

/// One key of a network with its value.
fn entry() -> impl Strategy<Value = (String, String)> {
    let host = || prop::sample::select(vec!["h1", "h2"]);
    let name = || prop::sample::select(vec!["web", "db", "a-b"]);
    let rules = || {
        prop::sample::select(vec![
            "",
            r#"{"action":"allow"}"#,
            r#"{"action":"deny","protocol":"tcp","src_net":"10.0.0.0/8","dst_ports":[80,"90:95"]}"#,
            r#"{"action":"next-tier","src_selector":"role == \"front\"","!dst_selector":"has(x)"}"#,
            r#"{"action":"log"},{"action":"allow","protocol":"icmp","icmp_type":8,"icmp_code":0,"ip_version":4}"#,
            r#"{"action":"allow","protocol":"udp","!dst_ports":[53],"!src_net":"192.0.2.0/24"}"#,
        ])
    };
    let both = |inbound: &str, outbound: &str| {
        format!(r#""inbound_rules":[{inbound}],"outbound_rules":[{outbound}]"#)
    };
    let of_host = host().prop_flat_map(|host| {
        prop::sample::select(vec![
            (format!("bgp/v1/host/{host}/ip_addr_v4"), "192.0.2.1".to_owned()),
            (format!("bgp/v1/host/{host}/as_num"), "64513".to_owned()),
            (format!("bgp/v1/host/{host}/loglevel"), "debug".to_owned()),
            (format!("bgp/v1/host/{host}/peer_v4/192.0.2.9"), r#"{"ip":"192.0.2.9","as_num":"64514"}"#.to_owned()),
            (format!("v1/host/{host}/config/LogPrefix"), "mine".to_owned()),
            (format!("v1/host/{host}/config/ReportingIntervalSecs"), "0.5".to_owned()),
            (
                format!("v1/host/{host}/endpoint/e0"),
                r#"{"name":"eth0","expected_ipv4_addrs":["192.0.2.1"],"profile_ids":["web"],"labels":{"a":"b"}}"#.to_owned(),
            ),
        ])
    });
    let global = prop::sample::select(vec![
        ("bgp/v1/global/as_num", "64520"),
        ("bgp/v1/global/node_mesh", r#"{"enabled":false}"#),
        ("bgp/v1/global/peer_v4/192.0.2.8", r#"{"ip":"192.0.2.8","as_num":"64515"}"#),
        ("bgp/v1/global/peer_v6/2001:db8::8", r#"{"ip":"2001:db8::8","as_num":"64515"}"#),
        ("v1/config/LogPrefix", "all"),
        ("v1/config/InterfacePrefix", "cali,tap"),
        ("v1/config/FailsafeInboundHostPorts", "tcp:22,udp:68"),
        ("v1/config/IptablesMarkMask", "0xff"),
        ("v1/config/DefaultEndpointToHostAction", "RETURN"),
        ("v1/config/ClusterGUID", "0a"),
        ("v1/ipam/v4/pool/10.1.0.0-16", r#"{"cidr":"10.1.0.0/16","ipip":"tunl0","ipip_mode":"cross-subnet","masquerade":true,"ipam":true}"#),
        ("v1/ipam/v4/pool/10.2.0.0-16", r#"{"cidr":"10.2.0.0/16","ipam":false,"disabled":true}"#),
        ("v1/ipam/v6/pool/fd00::-64", r#"{"cidr":"fd00::/64"}"#),
    ])
    .prop_map(|(key, value)| (key.to_owned(), value.to_owned()));
    let policy = (name(), rules(), rules(), prop::option::of(0..100u32)).prop_map(
        move |(name, inbound, outbound, order)| {
            let order = order.map_or_else(String::new, |order| format!(r#""order":{order},"#));
            let value = format!(r#"{{"selector":"role == \"front\"",{order}{}}}"#, both(inbound, outbound));
            (format!("v1/policy/tier/default/policy/{name}"), value)
        },
    );
    let profile = (name(), rules(), rules()).prop_map(move |(name, inbound, outbound)| {
        (format!("v1/policy/profile/{name}/rules"), format!("{{{}}}", both(inbound, outbound)))
    });
    let labels = name()
        .prop_map(|name| (format!("v1/policy/profile/{name}/labels"), r#"{"role":"front"}"#.to_owned()));
    let tags = name().prop_map(|name| (format!("v1/policy/profile/{name}/tags"), r#"["t","u"]"#.to_owned()));
    let workload = (host(), prop::sample::select(vec!["cni/0a", "k8s/prod.web-0", "kurma/w"]), name()).prop_map(
        |(host, workload, profile)| {
            let value = format!(
                r#"{{"state":"active","name":"cali0","mac":"02:00:00:00:00:01","profile_ids":["{profile}"],
                "ipv4_nets":["10.1.0.2/32"],"ipv6_nets":["fd00::2/128"],"ipv4_nat":[{{"int_ip":"10.1.0.2","ext_ip":"192.0.2.99"}}],
                "ipv4_gateway":"169.254.1.1","labels":{{"role":"front"}}}}"#
            );
            (format!("v1/host/{host}/workload/{workload}/endpoint/eth0"), value)
        },
    );
    prop_oneof![3 => of_host, 3 => global, 2 => policy, 1 => profile, 1 => labels, 1 => tags, 2 => workload]
}

proptest! {
    #[test]
    fn a_network_that_is_converted_and_projected_is_the_same(
        list in prop::collection::vec(entry(), 0..25),
    ) {
        let mut store: BTreeMap<String, String> =
            list.into_iter().map(|(key, value)| (format!("/calico/{key}"), value)).collect();
        store.insert("/calico/v1/Ready".to_owned(), "true".to_owned());
        // An AS number alone makes no Node that takes part in BGP.
        for host in ["h1", "h2"] {
            let key = |item: &str| format!("/calico/bgp/v1/host/{host}/{item}");
            if store.contains_key(&key("as_num")) {
                store.entry(key("ip_addr_v4")).or_insert_with(|| "192.0.2.1".to_owned());
            }
            if store.contains_key(&key("ip_addr_v4")) {
                store.insert(key("network_v4"), "192.0.2.0/24".to_owned());
            }
        }
        let raw = |(key, value): (&String, &String)| (key.clone(), value.clone());
        let v1: Vec<(String, String)> = store.iter().map(raw).collect();
        let bytes = || v1.iter().map(|(key, value)| (key.as_str(), value.as_bytes()));
        let converted = convert(bytes());
        prop_assert!(converted.is_complete(), "{:?}", converted.findings);
        let objects: Vec<(String, String)> = converted
            .objects
            .values()
            .map(|object| (object.key.to_string(), object.value(Some(("0a", "2026-01-01T00:00:00Z"))).to_string()))
            .collect();
        let mut projection = Projection::new(HOST);
        let listed = objects.iter().map(|(key, value)| RawEntry { key, value: value.as_bytes(), created: 1, revision: 1 });
        let entries = projection.replace(listed);
        let projected = entries.iter().map(|entry| (entry.key.as_str(), entry.value.as_slice()));
        // What every v1 store does, one of Calico 3 does if a setting says so.
        let is_mapped = v1.iter().any(|(key, value)| key.contains("/workload/") && value.contains("ipv4_nat"));
        let enabled = is_mapped.then_some(("/calico/v1/config/FloatingIPs", b"Enabled".as_slice()));
        prop_assert_eq!(network(bytes().chain(enabled), true), network(projected, false));
    }
}
