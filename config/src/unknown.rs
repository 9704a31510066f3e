//! Reports keys, settings and members that no reader uses and that may be misspelt. Readers ignore them,
//! because other programs may write them.

use serde_json::Value;

use crate::calico3::{ObjectKey, is_felix_setting};
use crate::key::{DockerItem, EndpointKey, Key};
use crate::nearest::{distance, nearest};
use crate::resource::{Resource, Setting, UnreadMember, recorded};

/// All paths of the data model; `*` stands for a name, address or prefix. A test compares them with the keys
/// that are parsed.
const PATHS: &[&str] = &[
    "v1/Ready",
    "v1/config/*",
    "v1/config/bgp_peer_v4/*",
    "v1/config/bgp_peer_v6/*",
    "v1/host/*/config/*",
    "v1/host/*/bird_ip",
    "v1/host/*/metadata",
    "v1/host/*/orchestrator_refs",
    "v1/host/*/bgp_peer_v4/*",
    "v1/host/*/bgp_peer_v6/*",
    "v1/host/*/workload/*/*/endpoint/*",
    "v1/host/*/endpoint/*",
    "v1/policy/profile/*/rules",
    "v1/policy/profile/*/tags",
    "v1/policy/profile/*/labels",
    "v1/policy/tier/*/policy/*",
    "v1/policy/tier/*/metadata",
    "v1/ipam/v4/pool/*",
    "v1/ipam/v6/pool/*",
    "ipam/v2/config",
    "ipam/v2/assignment/ipv4/block/*",
    "ipam/v2/assignment/ipv6/block/*",
    "ipam/v2/assignment/handle/*",
    "ipam/v2/handle/*",
    "ipam/v2/host/*/ipv4/block/*",
    "ipam/v2/host/*/ipv6/block/*",
    "bgp/v1/global/as_num",
    "bgp/v1/global/node_mesh",
    "bgp/v1/global/loglevel",
    "bgp/v1/global/listen_port",
    "bgp/v1/global/prefix_advertisements/ip_v4",
    "bgp/v1/global/prefix_advertisements/ip_v6",
    "bgp/v1/global/bmp_stations",
    "bgp/v1/global/multipath",
    "bgp/v1/global/peer_v4/*",
    "bgp/v1/global/peer_v6/*",
    "bgp/v1/global/peer_interface/*",
    "bgp/v1/global/peer_range/*",
    "bgp/v1/global/custom_filters/v4/*",
    "bgp/v1/global/custom_filters/v6/*",
    "bgp/v1/global/filters/*",
    "bgp/v1/host/*/as_num",
    "bgp/v1/host/*/ip_addr_v4",
    "bgp/v1/host/*/ip_addr_v6",
    "bgp/v1/host/*/network_v4",
    "bgp/v1/host/*/network_v6",
    "bgp/v1/host/*/rr_cluster_id",
    "bgp/v1/host/*/loglevel",
    "bgp/v1/host/*/listen_port",
    "bgp/v1/host/*/prefix_advertisements/ip_v4",
    "bgp/v1/host/*/prefix_advertisements/ip_v6",
    "bgp/v1/host/*/bmp_stations",
    "bgp/v1/host/*/multipath",
    "bgp/v1/host/*/peer_v4/*",
    "bgp/v1/host/*/peer_v6/*",
    "bgp/v1/host/*/peer_interface/*",
    "bgp/v1/host/*/peer_range/*",
    "bgp/v1/host/*/filters/*",
    "felix/v1/host/*/status",
    "felix/v1/host/*/last_reported_status",
    "felix/v1/host/*/workload/*/*/endpoint/*",
    "felix/v1/host/*/endpoint/*",
    "felix/v2/*/host/*/status",
    "felix/v2/*/host/*/last_reported_status",
    "felix/v2/*/host/*/workload/*/*/endpoint/*",
    "tortie/v1/schema",
    "tortie/v1/status/*",
];

/// Prefixes below the root that belong to other programs.
const FOREIGN_TREES: [&str; 5] =
    [OBJECTS, "/calico/dhcp/", "/calico/openstack/", "/calico/felix/v2/", "/calico/tortie/v1/host/"];

/// Prefix of all versions of objects.
const OBJECTS: &str = "/calico/resources/";

/// Prefix of the keys by which OpenStack's driver compacts etcd.
const COMPACTION: &str = "/calico/compaction/v1/";

/// Settings of Calico's agents that Tortie does not have, which are not reported as misspelt.
const FOREIGN_SETTINGS: &[&str] = &[
    "BPFEnabled",
    "CalicoVersion",
    "ClusterGUID",
    "ClusterType",
    "DatastoreType",
    "DataplaneDriver",
    "DebugDisableLogDropping",
    "DebugMemoryProfilePath",
    "DebugSimulateCalcGraphHangAfter",
    "DebugSimulateDataplaneHangAfter",
    "EtcdAddr",
    "EtcdCaFile",
    "EtcdCertFile",
    "EtcdEndpoints",
    "EtcdKeyFile",
    "EtcdScheme",
    "FelixHostname",
    "HealthEnabled",
    "HostInterfacePollInterval",
    "InterfaceExclude",
    "IptablesBackend",
    "IptablesGenerator",
    "IptablesLockFilePath",
    "IptablesLockProbeIntervalMillis",
    "IptablesLockTimeoutSecs",
    "IptablesMangleAllowAction",
    "IptablesPostWriteCheckIntervalSecs",
    "LogFacility",
    "NATPortRange",
    "PeriodicResyncInterval",
    "PrometheusGoMetricsEnabled",
    "PrometheusMetricsEnabled",
    "PrometheusProcessMetricsEnabled",
    "StartupCleanupDelay",
    "TyphaAddr",
    "TyphaK8sNamespace",
    "TyphaK8sServiceName",
    "TyphaReadTimeout",
    "TyphaWriteTimeout",
    "UsageReportingEnabled",
    "UsageReportingInitialDelaySecs",
    "UsageReportingIntervalSecs",
    "UseInternalDataplaneDriver",
];

/// Returns members that Calico writes and Tortie does not use. `None` if any member is allowed in such a
/// value.
fn foreign_members(key: &Key) -> Option<&'static [&'static str]> {
    Some(match key {
        Key::Endpoint(EndpointKey::Workload { .. }) => &[
            "active_instance_id",
            "allow_spoofed_source_prefixes",
            "annotations",
            "generate_name",
            "ports",
            "qos_controls",
        ],
        Key::Endpoint(EndpointKey::Host { .. }) => &["annotations", "ports"],
        Key::Policy { .. } => {
            &["annotations", "apply_on_forward", "namespace", "performance_hints", "staged_action"]
        }
        Key::Pool(_) => &["allowed_uses", "assignment_mode", "node_selector", "vxlan_mode"],
        Key::Block(_) => &["affinityClaimTime", "hostAffinity", "strictAffinity", "strict_affinity"],
        Key::Handle(_) => &["id"],
        Key::Affinity { .. } => &["confirmed", "type"],
        Key::Bgp(..) => &["calico_node", "local_bgp_peer", "reachable_by"],
        Key::HostMetadata { .. }
        | Key::OrchestratorRefs { .. }
        | Key::Felix { .. }
        | Key::TortieStatus { .. }
        | Key::Docker { .. }
        | Key::Schema => return None,
        _ => &[],
    })
}

/// Returns true if a key of a store is one that Tortie, or another program on Calico's data, reads. A key below
/// `/calico/resources/` must be that of an object of a known kind, with a namespace exactly if the kind has one.
#[must_use]
pub fn is_known_key(key_text: &str) -> bool {
    if key_text.starts_with(OBJECTS) {
        return ObjectKey::parse(key_text).is_some();
    }
    match Key::parse(key_text) {
        Ok(Key::Unknown(_)) => {
            FOREIGN_TREES.iter().chain(&[COMPACTION]).any(|tree| key_text.starts_with(tree))
        }
        Ok(_) => true,
        Err(_) => false,
    }
}

/// Returns the parts of a key and its value that no reader uses: a key outside of the data model, an unknown
/// setting, an unknown member. Each is described with the most similar known name. The value must be valid.
#[must_use]
pub fn unknown(key_text: &str, value: &[u8]) -> Vec<String> {
    let Ok(key) = Key::parse(key_text) else { return Vec::new() };
    let key = key.canonical();
    match key {
        Key::Unknown(_) if FOREIGN_TREES.iter().any(|tree| key_text.starts_with(tree)) => Vec::new(),
        Key::Unknown(_) => {
            let hint =
                nearest_path(key_text).map_or_else(String::new, |path| format!("; the nearest is `{path}`"));
            vec![format!("key `{key_text}`: no path of the data model{hint}")]
        }
        Key::Setting(_, name) if !is_setting(name) => {
            let all = Setting::NAMES.iter().chain(FOREIGN_SETTINGS).copied();
            let hint =
                nearest(name, all).map_or_else(String::new, |name| format!("; the nearest is `{name}`"));
            vec![format!("key `{key_text}`: there is no setting `{name}`{hint}")]
        }
        Key::Docker { item: DockerItem::Space { .. }, .. } => Vec::new(),
        _ => match foreign_members(key) {
            Some(foreign) => members(key_text, key, value, foreign),
            None => Vec::new(),
        },
    }
}

/// Returns the names in a parsed value that no reader uses: members of the top-level object, or the setting
/// itself.
#[must_use]
pub fn unread(key: &Key, resource: &Resource) -> Vec<String> {
    match (key, resource) {
        (Key::Setting(_, name), _) if !is_setting(name) => vec![name.clone()],
        _ => {
            let foreign = foreign_members(key).unwrap_or(&[]);
            let names = resource.extra().into_iter().flat_map(|extra| extra.0.keys());
            names.filter(|name| !foreign.contains(&name.as_str())).cloned().collect()
        }
    }
}

fn is_setting(name: &str) -> bool {
    Setting::NAMES.contains(&name) || FOREIGN_SETTINGS.contains(&name) || is_felix_setting(name)
}

fn members(key_text: &str, key: &Key, value: &[u8], foreign: &[&str]) -> Vec<String> {
    let (read, unread) = recorded(|| Resource::parse(key, value).is_ok());
    if !read {
        // The parser stopped at an error, so not all of its names are known.
        return Vec::new();
    }
    let unread: Vec<UnreadMember> =
        unread.into_iter().filter(|member| !foreign.contains(&member.name.as_str())).collect();
    if unread.is_empty() {
        return Vec::new();
    }
    let json: Value = serde_json::from_slice(value).unwrap_or_default();
    let sentence = |member: &UnreadMember| {
        let place = place_of(&json, &member.siblings).unwrap_or_default();
        let place = if place.is_empty() { member.name.clone() } else { format!("{place}.{}", member.name) };
        let known = member.known.iter().map(String::as_str).chain(foreign.iter().copied());
        let hint = nearest(&member.name, known)
            .map_or_else(String::new, |name| format!("; the nearest is `{name}`"));
        format!("value of `{key_text}`: `{place}` is no member of such an object{hint}")
    };
    let mut all: Vec<String> = unread.iter().map(sentence).collect();
    all.dedup();
    all
}

/// Returns the path of the object that has these members.
fn place_of(value: &Value, members: &[String]) -> Option<String> {
    match value {
        Value::Object(map) if members.iter().all(|name| map.contains_key(name)) => Some(String::new()),
        Value::Object(map) => map.iter().find_map(|(name, value)| {
            let below = place_of(value, members)?;
            Some(match below.as_str() {
                "" => name.clone(),
                _ if below.starts_with('[') => format!("{name}{below}"),
                _ => format!("{name}.{below}"),
            })
        }),
        Value::Array(list) => list.iter().enumerate().find_map(|(at, value)| {
            let below = place_of(value, members)?;
            Some(if below.is_empty() || below.starts_with('[') {
                format!("[{at}]{below}")
            } else {
                format!("[{at}].{below}")
            })
        }),
        _ => None,
    }
}

/// Returns the most similar path of the data model, with the names of this key.
fn nearest_path(text: &str) -> Option<String> {
    let parts: Vec<&str> = text.strip_prefix(crate::key::ROOT)?.split('/').collect();
    let fit = |path: &&str| {
        let words: Vec<&str> = path.split('/').collect();
        if words.len() != parts.len() {
            return None;
        }
        let mut total = 0;
        for (word, part) in words.iter().zip(&parts).filter(|(word, _)| **word != "*") {
            let edits = distance(word, part);
            // A word with more than half of its characters changed is a different word, not a misspelling.
            if edits * 2 > word.len().max(2) {
                return None;
            }
            total += edits;
        }
        let filled = words.iter().zip(&parts).map(|(word, part)| if *word == "*" { part } else { word });
        Some((total, filled.copied().collect::<Vec<_>>().join("/")))
    };
    let (_, path) = PATHS.iter().filter_map(fit).min_by_key(|(edits, _)| *edits)?;
    Some(format!("{}{path}", crate::key::ROOT))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A minimal valid value for each kind of key whose parser reads JSON members.
    const KINDS: &[(&str, &str)] = &[
        ("v1/host/h/workload/cni/w/endpoint/e", r#"{"state":"active","name":"cali1","ipv4_nat":[]}"#),
        ("v1/host/h/endpoint/e", r#"{"name":"eth0"}"#),
        ("v1/policy/profile/p/rules", r#"{"inbound_rules":[],"outbound_rules":[]}"#),
        ("v1/policy/tier/t/metadata", r#"{"order":1}"#),
        ("v1/policy/tier/t/policy/p", r#"{"selector":"all()","inbound_rules":[],"outbound_rules":[]}"#),
        ("v1/ipam/v4/pool/10.0.0.0-16", r#"{"cidr":"10.0.0.0/16"}"#),
        ("v1/ipam/v6/pool/fd00::-64", r#"{"cidr":"fd00::/64"}"#),
        ("ipam/v2/config", r#"{"strict_affinity":true}"#),
        (
            "ipam/v2/assignment/ipv4/block/10.0.0.0-32",
            r#"{"cidr":"10.0.0.0/32","affinity":"host:h","allocations":[null],"unallocated":[0],"attributes":[]}"#,
        ),
        ("ipam/v2/handle/x", r#"{"block":{"10.0.0.0/26":1}}"#),
        ("ipam/v2/host/h/ipv4/block/10.0.0.0-26", r#"{"state":"confirmed"}"#),
        ("bgp/v1/global/node_mesh", r#"{"enabled":true}"#),
        ("bgp/v1/global/multipath", r#"{"max":4}"#),
        ("bgp/v1/global/peer_v4/192.0.2.1", r#"{"ip":"192.0.2.1","as_num":"64512"}"#),
        ("bgp/v1/global/peer_interface/eth1", r#"{"as_num":"64512"}"#),
        ("bgp/v1/global/peer_range/192.0.2.0-24", r#"{"as_num":"64512"}"#),
        ("bgp/v1/global/filters/f", r#"{"import":[],"export":[]}"#),
        ("bgp/v1/host/h/prefix_advertisements/ip_v4", r#"[{"cidr":"10.0.0.0/8"}]"#),
        ("bgp/v1/global/bmp_stations", r#"[{"address":"192.0.2.9:11019"}]"#),
    ];

    fn full(key: &str) -> String {
        format!("/calico/{key}")
    }

    /// Returns the names that the parser of a kind of key reads. An unknown member that the test adds makes
    /// the parser report them.
    fn names_of(key: &str, value: &str) -> Vec<String> {
        let mut json: Value = serde_json::from_str(value).unwrap();
        let object = match &mut json {
            Value::Array(list) => list.first_mut().unwrap(),
            object => object,
        };
        object.as_object_mut().unwrap().insert("no_such_member".to_owned(), 1.into());
        let key = Key::parse(&full(key)).unwrap();
        let (read, unread) = recorded(|| Resource::parse(&key, json.to_string().as_bytes()).is_ok());
        assert!(read, "{json}");
        let mut names = unread.into_iter().find(|member| member.name == "no_such_member").unwrap().known;
        names.sort();
        names.dedup();
        names
    }

    /// Replaces every letter of every member name once: the misspelling is reported with the intended name.
    #[test]
    fn every_misspelt_member_of_every_kind_is_named_with_the_one_that_was_meant() {
        let (mut kinds, mut tried) = (0, 0);
        for (key, value) in KINDS {
            assert_eq!(unknown(&full(key), value.as_bytes()), Vec::<String>::new());
            let names = names_of(key, value);
            assert!(!names.is_empty(), "{key}");
            kinds += 1;
            for name in &names {
                for at in 0..name.len() {
                    let mut wrong = name.clone();
                    wrong.replace_range(at..=at, if &name[at..=at] == "q" { "x" } else { "q" });
                    if names.contains(&wrong) {
                        continue;
                    }
                    let mut json: Value = serde_json::from_str(value).unwrap();
                    let object = match &mut json {
                        Value::Array(list) => list.first_mut().unwrap(),
                        object => object,
                    };
                    object.as_object_mut().unwrap().insert(wrong.clone(), Value::Null);
                    let found = unknown(&full(key), json.to_string().as_bytes());
                    let [text] = found.as_slice() else { panic!("{key} {wrong}: {found:?}") };
                    assert!(text.contains(&wrong), "{text}");
                    // Names of at most two characters may have no suggestion.
                    let meant = text.contains(&format!("the nearest is `{name}`"));
                    let other =
                        names.iter().any(|n| n != name && distance(n, &wrong) <= distance(name, &wrong));
                    assert!(meant || other || name.len() < 3, "{text}: {name} was meant");
                    tried += 1;
                }
            }
        }
        println!("{tried} misspellings of the members of {kinds} kinds");
    }

    #[test]
    fn members_of_objects_inside_are_named_by_their_place() {
        let key = full("bgp/v1/global/filters/f");
        let text = unknown(&full("ipam/v2/assignment/ipv4/block/10.0.0.0-32"), br#"{"cidr":"10.0.0.0/32","affinity":"host:h","allocations":[0],"unallocated":[],"attributes":[{"handel_id":"x"}]}"#).join("\n");
        assert!(text.contains("`attributes[0].handel_id`") && text.contains("`handle_id`"), "{text}");
        assert_eq!(unknown(&key, br#"{"import":[]}"#), Vec::<String>::new());
    }

    #[test]
    fn keys_and_settings_that_do_not_exist_are_named_with_the_nearest() {
        for (key, meant) in [
            ("v1/polcy/tier/default/policy/p", "/calico/v1/policy/tier/default/policy/p"),
            ("v1/policy/tier/default/polici/p", "/calico/v1/policy/tier/default/policy/p"),
            ("v1/ipam/v4/pol/10.0.0.0-16", "/calico/v1/ipam/v4/pool/10.0.0.0-16"),
            ("bgp/v1/global/peerv4/192.0.2.1", "/calico/bgp/v1/global/peer_v4/192.0.2.1"),
            ("bgp/v1/host/h/as_number", "/calico/bgp/v1/host/h/as_num"),
            ("bgp/v1/host/h/ip_adr_v4", "/calico/bgp/v1/host/h/ip_addr_v4"),
            ("v1/ready", "/calico/v1/Ready"),
            ("v1/config/InterfacePrefx", "InterfacePrefix"),
            ("v1/config/interfaceprefix", "InterfacePrefix"),
            ("v1/host/h/config/IpInIpTunelAddr", "IpInIpTunnelAddr"),
        ] {
            let found = unknown(&full(key), b"x");
            let [text] = found.as_slice() else { panic!("{key}: {found:?}") };
            assert!(text.contains(&format!("`{meant}`")), "{text}");
        }
        for key in [
            "/calico/resources/v3/projectcalico.org/x",
            "/calico/dhcp/v1/subnet/1",
            "/calico/v1/config/ClusterGUID",
        ] {
            assert_eq!(unknown(key, b"x"), Vec::<String>::new(), "{key}");
        }
        assert_eq!(unknown("/calico/nothing/like/it", b"x").len(), 1);
    }

    #[test]
    fn every_path_that_is_read_is_listed() {
        for text in crate::key::tests::CANONICAL
            .iter()
            .filter(|text| !text.contains("/docker/") && !text.contains("marker"))
        {
            let path = text.strip_prefix("/calico/").unwrap();
            let fits = |listed: &&str| {
                let (words, parts): (Vec<_>, Vec<_>) =
                    (listed.split('/').collect(), path.split('/').collect());
                words.len() == parts.len()
                    && words.iter().zip(&parts).all(|(word, part)| *word == "*" || word == part)
            };
            assert!(PATHS.iter().any(fits), "{text}");
        }
        for path in PATHS {
            let sample = |word: &str| match word {
                "*" => "x".to_owned(),
                word => word.to_owned(),
            };
            let text = format!("/calico/{}", path.split('/').map(sample).collect::<Vec<_>>().join("/"));
            assert!(!matches!(Key::parse(&text), Ok(Key::Unknown(_))), "{text}");
        }
    }
}
