//! Tests of the table of members, of their text forms, and of the layers.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::member::{Answer, Type, is_in_force};
use super::*;
use crate::calico3::{EntryChange, EntryValue, Projection, RawChange, RawEntry};
use crate::resource::Setting;

const ROOT: &str = "/calico/resources/v3/projectcalico.org";

/// The objects of a store: raw key and value.
type Store = BTreeMap<String, String>;

fn key(kind: Kind, name: &str) -> String {
    ObjectKey::global(kind, name).to_string()
}

fn felix(name: &str, spec: Value) -> (String, String) {
    felix_of(name, "2026-01-01T00:00:00Z", json!({}), spec)
}

fn felix_of(name: &str, created: &str, annotations: Value, spec: Value) -> (String, String) {
    let metadata = json!({"name": name, "creationTimestamp": created, "annotations": annotations});
    (key(Kind::FelixConfiguration, name), json!({"metadata": metadata, "spec": spec}).to_string())
}

fn node(name: &str, labels: Value) -> (String, String) {
    (key(Kind::Node, name), json!({"metadata": {"name": name, "labels": labels}, "spec": {}}).to_string())
}

fn raw<'a>((key, value): (&'a String, &'a String)) -> RawEntry<'a> {
    RawEntry { key, value: value.as_bytes(), created: 1, revision: 1 }
}

/// Projects a store for host `h1`.
fn projected(objects: impl IntoIterator<Item = (String, String)>) -> (Projection, BTreeMap<String, String>) {
    let store: Store = objects.into_iter().collect();
    let mut projection = Projection::new("h1");
    let entries = projection.replace(store.iter().map(raw));
    let text =
        |entry: crate::calico3::Entry| (entry.key, String::from_utf8(entry.value.into_octets()).unwrap());
    let entries = entries.into_iter().map(text).filter(|(key, _)| key.contains("/config/")).collect();
    (projection, entries)
}

/// Returns the settings of a store by the part of the key behind `/calico/v1/`.
fn settings_of(objects: impl IntoIterator<Item = (String, String)>) -> BTreeMap<String, String> {
    let (_, entries) = projected(objects);
    entries.into_iter().map(|(key, text)| (key.replace("/calico/v1/", ""), text)).collect()
}

fn problems_of(objects: impl IntoIterator<Item = (String, String)>) -> Vec<(String, &'static str, String)> {
    let (projection, _) = projected(objects);
    let problem =
        |problem: &&crate::calico3::Problem| (problem.key.name.clone(), problem.code, problem.text.clone());
    let problems = projection.problems().into_iter().filter(|problem| problem.key.kind != Kind::Node);
    problems.map(|found| problem(&found)).collect()
}

fn codes<'a>(problems: &'a [(String, &'static str, String)]) -> Vec<(&'a str, &'static str)> {
    problems.iter().map(|(name, code, _)| (name.as_str(), *code)).collect()
}

/// Facts 2.13: 188 members with the selector, and those that old stores have.
#[test]
fn the_table_has_every_member_once() {
    let removed = ["ignoreLooseRPF", "iptablesLockFilePath", "iptablesLockTimeout", "sockmapEnabled"];
    let removed = [removed.as_slice(), &["bpfKubeProxyEndpointSlicesEnabled"]].concat();
    let names: Vec<&str> = members::all().map(|member| member.name).collect();
    assert_eq!(names.len(), 187 + removed.len());
    assert!(removed.iter().all(|name| names.contains(name)));
    let mut names: Vec<String> = members::all().map(|member| member.name.to_lowercase()).collect();
    let mut v1: Vec<String> = members::all().map(|member| member.v1.to_lowercase()).collect();
    for all in [&mut names, &mut v1] {
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count);
    }
}

/// Facts 2.13: the v1 name is the member's name, case-blind, but for these.
#[test]
fn v1_names_are_those_of_members_but_for_a_list() {
    let other = [
        ("ipipEnabled", "IpInIpEnabled"),
        ("ipipMTU", "IpInIpMtu"),
        ("iptablesPostWriteCheckInterval", "IptablesPostWriteCheckIntervalSecs"),
        ("netlinkTimeout", "NetlinkTimeoutSecs"),
        ("reportingInterval", "ReportingIntervalSecs"),
        ("reportingTTL", "ReportingTTLSecs"),
        ("endpointReportingDelay", "EndpointReportingDelaySecs"),
        ("usageReportingInitialDelay", "UsageReportingInitialDelaySecs"),
        ("usageReportingInterval", "UsageReportingIntervalSecs"),
        ("iptablesLockProbeInterval", "IptablesLockProbeIntervalMillis"),
        ("iptablesLockTimeout", "IptablesLockTimeoutSecs"),
        ("externalNodesList", "ExternalNodesCIDRList"),
        ("bpfConntrackMode", "BPFConntrackCleanupMode"),
        ("wireguardKeepAlive", "WireguardPersistentKeepAlive"),
    ];
    for member in members::all() {
        let expected = other.iter().find(|(name, _)| *name == member.name);
        match expected {
            Some((_, v1)) => assert_eq!(member.v1, *v1),
            None => assert!(member.v1.eq_ignore_ascii_case(member.name), "{} {}", member.name, member.v1),
        }
        assert_eq!(members::named(member.name).map(|found| found.v1), Some(member.v1));
        assert_eq!(members::with_v1_name(member.v1).map(|found| found.name), Some(member.name));
        // The names of the model's settings are spelled as Calico's.
        if let Some(known) = member::setting(member.v1) {
            assert_eq!(known, member.v1);
        }
    }
    let elsewhere = ["IpInIpTunnelAddr", "IpamLeakGracePeriodSecs", "ClusterGUID"];
    for name in Setting::NAMES.iter().filter(|name| !elsewhere.contains(name)) {
        let tunnel = name.ends_with("TunnelAddr") || name.contains("TunnelMACAddr");
        assert!(tunnel || members::with_v1_name(name).is_some(), "{name}");
    }
}

#[test]
fn every_default_is_a_valid_text_of_its_type() {
    for member in members::all() {
        let text = member.default_text();
        if !text.is_empty() {
            // The ports of etcd 3 and so on are valid texts, too.
            assert_eq!(
                value::check(member, text).map_err(|error| error.to_string()),
                Ok(()),
                "{}",
                member.name
            );
            assert!(member.is_default(text), "{}", member.name);
        }
    }
}

#[test]
fn values_have_the_text_forms_of_v1() {
    for (name, json, text) in [
        ("ipv6Support", json!(false), Some("false")),
        ("ipipMTU", json!(1400), Some("1400")),
        ("reportingInterval", json!("0s"), Some("0")),
        ("reportingInterval", json!("1m30s"), Some("90")),
        ("endpointReportingDelay", json!("500ms"), Some("0.5")),
        ("iptablesLockProbeInterval", json!("50ms"), Some("50")),
        ("iptablesLockProbeInterval", json!("1s"), Some("1000")),
        ("iptablesLockProbeInterval", json!("1500us"), Some("1.5")),
        ("interfacePrefix", json!("cali,tap"), Some("cali,tap")),
        ("interfacePrefix", json!(""), None),
        ("interfacePrefix", json!(null), None),
        ("externalNodesList", json!(["192.0.2.0/24", "2001:db8::/32"]), Some("192.0.2.0/24,2001:db8::/32")),
        ("externalNodesList", json!([]), None),
        ("failsafeInboundHostPorts", json!([]), Some("none")),
        ("failsafeInboundHostPorts", json!(null), None),
        (
            "failsafeInboundHostPorts",
            json!([{"protocol": "TCP", "port": 22}, {"port": 23}]),
            Some("tcp:22,tcp:23"),
        ),
        (
            "failsafeOutboundHostPorts",
            json!([{"protocol": "udp", "port": 53, "net": "192.0.2.0/24"}, {"protocol": "tcp", "port": 22, "net": "2001:db8::/32"}]),
            Some("udp:192.0.2.0/24:53,tcp:[2001:db8::/32]:22"),
        ),
        ("routeTableRange", json!({"min": 1, "max": 250}), Some("1-250")),
        (
            "routeTableRanges",
            json!([{"min": 1, "max": 250}, {"min": 255, "max": 300}]),
            Some("1-250,255-300"),
        ),
        ("natPortRange", json!("1000:2000"), Some("1000:2000")),
        ("natPortRange", json!(99), Some("99")),
        ("kubeNodePortRanges", json!(["30000:32767", 99]), Some("30000:32767,99")),
        ("iptablesMarkMask", json!(4_278_190_080_u32), Some("4278190080")),
        ("healthTimeoutOverrides", json!([{"name": "x", "timeout": "90s"}]), Some("x=90s")),
        ("bpfLogFilters", json!({"all": "host"}), Some("all=host")),
        ("defaultEndpointToHostAction", json!("Return"), Some("Return")),
    ] {
        let member = members::named(name).unwrap();
        let found = value::text(member, &json).map_err(|error| error.to_string());
        assert_eq!(found, Ok(text.map(str::to_owned)), "{name} {json}");
    }
    for (name, json) in [
        ("ipv6Support", json!("false")),
        ("ipipMTU", json!("1400")),
        ("ipipMTU", json!(1.5)),
        ("ipipMTU", json!(67)),
        ("reportingInterval", json!(30)),
        ("reportingInterval", json!("30")),
        ("reportingInterval", json!("-3s")),
        ("interfacePrefix", json!(["cali"])),
        ("interfacePrefix", json!("a/b")),
        ("failsafeInboundHostPorts", json!("tcp:22")),
        ("failsafeInboundHostPorts", json!([{"protocol": "icmp", "port": 22}])),
        ("failsafeInboundHostPorts", json!([{"protocol": "tcp", "port": 0}])),
        ("failsafeInboundHostPorts", json!([{"protocol": "tcp", "port": 22, "net": "x"}])),
        ("natPortRange", json!("2000:1000")),
        ("workloadSourceSpoofing", json!("All")),
        ("natOutgoingAddress", json!("::1")),
        ("externalNodesList", json!(["x"])),
        ("iptablesMarkMask", json!(1)),
    ] {
        let member = members::named(name).unwrap();
        let error = value::text(member, &json).unwrap_err().to_string();
        assert!(error.contains(&format!("spec.{name}")) && error.contains("write "), "{error}");
    }
}

#[test]
fn the_host_is_over_the_selected_over_the_default() {
    let spec = |prefix: &str| json!({"logPrefix": prefix});
    let selecting =
        |prefix: &str| json!({"logPrefix": prefix, "ipv6Support": false, "nodeSelector": "rack == 'r1'"});
    let default = felix("default", json!({"logPrefix": "all", "ipv6Support": true, "ipipMTU": 1400}));
    let labelled = node("h1", json!({"rack": "r1"}));
    let selected = felix("rack", selecting("rack"));
    let own = felix("node.h1", spec("own"));
    let other = felix("node.h2", spec("other"));
    let global = [("config/IpInIpMtu", "1400"), ("config/Ipv6Support", "true"), ("config/LogPrefix", "all")];
    let with = |host: &[(&str, &str)]| {
        let host = host.iter().map(|(name, text)| (format!("host/h1/config/{name}"), (*text).to_owned()));
        let global = global.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned()));
        global.chain(host).collect::<BTreeMap<_, _>>()
    };
    assert_eq!(settings_of([default.clone(), other.clone()]), with(&[]));
    assert_eq!(settings_of([default.clone(), own.clone()]), with(&[("LogPrefix", "own")]));
    // Without its Node, no selector matches a host.
    assert_eq!(settings_of([default.clone(), selected.clone()]), with(&[]));
    let all = [default, other, own, selected, labelled];
    assert_eq!(settings_of(all.clone()), with(&[("LogPrefix", "own"), ("Ipv6Support", "false")]));
    let (projection, _) = projected(all);
    let origin = |name: &str| {
        let origin = projection.origin(&format!("/calico/v1/{name}"));
        origin.iter().map(|key| format!("{} {}", key.kind.as_str(), key.name)).collect::<Vec<_>>()
    };
    assert_eq!(origin("host/h1/config/LogPrefix"), ["FelixConfiguration node.h1"]);
    assert_eq!(origin("host/h1/config/Ipv6Support"), ["FelixConfiguration rack", "Node h1"]);
    assert_eq!(origin("config/LogPrefix"), ["FelixConfiguration default"]);
}

/// Facts 2.13: of several that match only the oldest counts, then the one with the lowest name; an empty or
/// bad selector matches nothing.
#[test]
fn exactly_one_selected_object_counts() {
    let object = |name: &str, created: &str, selector: Value, spec: &str| {
        let spec = json!({"logPrefix": spec, "nodeSelector": selector});
        felix_of(name, created, json!({}), spec)
    };
    let (old, new) = ("2025-01-01T00:00:00Z", "2026-01-01T00:00:00Z");
    let all = [
        node("h1", json!({"rack": "r1"})),
        object("a", new, json!("all()"), "a"),
        object("c", old, json!("has(rack)"), "c"),
        object("b", old, json!("rack == 'r1'"), "b"),
        object("d", "2024-01-01T00:00:00Z", json!(""), "d"),
        object("e", "2024-01-01T00:00:00Z", json!("rack =="), "e"),
        object("f", "2024-01-01T00:00:00Z", json!(null), "f"),
        object("g", "2024-01-01T00:00:00Z", json!("rack == 'r2'"), "g"),
    ];
    let found = settings_of(all.clone());
    assert_eq!(found, BTreeMap::from([("host/h1/config/LogPrefix".to_owned(), "b".to_owned())]));
    let problems = problems_of(all);
    assert_eq!(
        codes(&problems),
        [
            ("a", "setting-noted"),
            ("c", "setting-noted"),
            ("d", "setting-noted"),
            ("e", "invalid-value"),
            ("f", "setting-noted"),
        ]
    );
}

#[test]
fn annotations_win_over_members_in_any_case() {
    let annotation = |name: &str, text: &str| json!({format!("config.projectcalico.org/{name}"): text});
    let object = |annotations: Value, spec: Value| felix_of("default", "", annotations, spec);
    let found = |annotations: Value, spec: Value| settings_of([object(annotations, spec)]);
    let one = |name: &str, text: &str| BTreeMap::from([(format!("config/{name}"), text.to_owned())]);
    assert_eq!(found(annotation("LogPrefix", "a"), json!({"logPrefix": "b"})), one("LogPrefix", "a"));
    assert_eq!(found(annotation("ipinipmtu", "1400"), json!({"ipipMTU": 1300})), one("IpInIpMtu", "1400"));
    // Not set, and not in the member either.
    assert_eq!(found(annotation("LogPrefix", ""), json!({"logPrefix": "b"})), BTreeMap::new());
    // A setting that no member has.
    assert_eq!(
        found(annotation("IpamLeakGracePeriodSecs", "600"), json!({})),
        one("IpamLeakGracePeriodSecs", "600")
    );
    assert_eq!(found(annotation("ReportingIntervalSecs", "soon"), json!({})), BTreeMap::new());
    for (name, text, code) in [
        ("ReportingIntervalSecs", "soon", "invalid-value"),
        ("IpInIpTunnelAddr", "10.0.0.1", "setting-noted"),
        ("EtcdEndpoints", "http://192.0.2.1:2379", "setting-noted"),
        ("Nonsense", "1", "setting-noted"),
    ] {
        let problems = problems_of([object(annotation(name, text), json!({}))]);
        assert_eq!(codes(&problems), [("default", code)], "{name} {problems:?}");
        assert_eq!(found(annotation(name, text), json!({})), BTreeMap::new());
    }
}

/// Facts 1.6: a bad value is as the default. That of the host must not leave the value for all in force.
#[test]
fn a_bad_value_is_as_the_default() {
    let good = felix("default", json!({"ipipMTU": 1400, "logPrefix": "all"}));
    let bad = felix("node.h1", json!({"ipipMTU": "big"}));
    let found = settings_of([good.clone(), bad.clone()]);
    assert_eq!(found["host/h1/config/IpInIpMtu"], "0");
    assert_eq!(codes(&problems_of([good, bad.clone()])), [("node.h1", "invalid-value")]);
    assert_eq!(settings_of([bad]), BTreeMap::new());
    let bad = felix("default", json!({"ipipMTU": "big"}));
    let own = felix("node.h1", json!({"ipipMTU": 1300}));
    assert_eq!(settings_of([bad, own])["host/h1/config/IpInIpMtu"], "1300");
}

#[test]
fn nothing_that_has_no_effect_passes_silently() {
    for member in members::all() {
        let (json, text): (Value, &str) = match member.kind {
            Type::Bool => {
                let text = if member.default == "true" { "false" } else { "true" };
                (json!(text == "true"), text)
            }
            Type::Words(words) => {
                let Some(word) = words.iter().find(|word| !member.is_default(word)) else { continue };
                (json!(word), *word)
            }
            Type::Int(min, _) if !member.is_default(&(min + 1).to_string()) => continue_int(min),
            _ => continue,
        };
        let problems = problems_of([felix("default", json!({member.name: json}))]);
        let expected = match member.answer {
            Answer::Honored if is_in_force(member.v1) => None,
            Answer::Honored => Some("setting-not-in-force"),
            Answer::Refused(_) => Some("unsupported-setting"),
            Answer::Noted(_) => Some("setting-noted"),
            Answer::Ignored => None,
        };
        let found: Vec<&str> = problems.iter().map(|(_, code, _)| *code).collect();
        // An MTU of one octet is not valid where the agent has the setting.
        if found != ["invalid-value"] {
            assert_eq!(found, Vec::from_iter(expected), "{} {text} {problems:?}", member.name);
        }
        if member.default.is_empty() || text == member.default {
            continue;
        }
        let default = problems_of([felix("default", json!({member.name: default_json(member)}))]);
        assert!(default.is_empty(), "{} {default:?}", member.name);
    }
}

fn continue_int(min: i64) -> (Value, &'static str) {
    (json!(min + 1), "a number")
}

fn default_json(member: &member::Member) -> Value {
    match member.kind {
        Type::Bool => json!(member.default == "true"),
        Type::Words(words) => json!(words.iter().find(|word| member.is_default(word))),
        _ => member.default.parse::<i64>().map_or(Value::Null, |number| json!(number)),
    }
}

#[test]
fn an_unknown_member_is_noted_once_and_keeps_the_rest() {
    let default = felix("default", json!({"newThing": 1, "logPrefix": "all"}));
    let own = felix("node.h1", json!({"newThing": 2}));
    assert_eq!(settings_of([default.clone(), own.clone()]).len(), 1);
    let problems = problems_of([default, own]);
    assert_eq!(codes(&problems), [("node.h1", "setting-noted")]);
    assert!(problems[0].2.contains("spec.newThing"), "{problems:?}");
}

#[test]
fn the_mark_of_nftables_replaces_that_of_iptables() {
    let mark = |nft: Option<u32>, iptables: Option<u32>| {
        let mut spec = json!({});
        for (name, mask) in [("nftablesMarkMask", nft), ("iptablesMarkMask", iptables)] {
            if let Some(mask) = mask {
                spec[name] = json!(mask);
            }
        }
        spec
    };
    let of = |default: Value, own: Value| {
        let found = settings_of([felix("default", default), felix("node.h1", own)]);
        let own = found.get("host/h1/config/IptablesMarkMask");
        own.or_else(|| found.get("config/IptablesMarkMask")).cloned().unwrap_or_default()
    };
    assert_eq!(of(mark(None, Some(0xff)), mark(None, None)), "255");
    assert_eq!(of(mark(Some(0xf00), None), mark(None, Some(0xff))), "3840");
    assert_eq!(of(mark(Some(0xf00), None), mark(Some(0xf0), Some(0xff))), "240");
    assert!(problems_of([felix("default", mark(Some(0xf00), None))]).is_empty());
}

#[test]
fn the_cluster_information_gives_readiness_and_settings() {
    let cluster = |spec: Value| {
        let value = json!({"metadata": {"name": "default"}, "spec": spec}).to_string();
        (key(Kind::ClusterInformation, "default"), value)
    };
    let ready = |objects: Vec<(String, String)>| {
        let store: Store = objects.into_iter().collect();
        let entries = Projection::new("h1").replace(store.iter().map(raw));
        let entry = entries.into_iter().find(|entry| entry.key == "/calico/v1/Ready").unwrap();
        let origin = entry.raw_keys();
        (String::from_utf8(entry.value.into_octets()).unwrap(), origin)
    };
    let origin = vec![format!("{ROOT}/clusterinformations/default")];
    for (objects, expected) in [
        (vec![], "false"),
        (vec![cluster(json!({}))], "false"),
        (vec![cluster(json!({"datastoreReady": false}))], "false"),
        (vec![cluster(json!({"datastoreReady": "true"}))], "false"),
        (vec![cluster(json!({"datastoreReady": true}))], "true"),
        (vec![(key(Kind::ClusterInformation, "default"), "{".to_owned())], "false"),
    ] {
        assert_eq!(ready(objects), (expected.to_owned(), origin.clone()));
    }
    let spec =
        json!({"clusterGUID": "0a", "clusterType": "openstack", "calicoVersion": "v3.30.0", "variant": "x"});
    let expected = [("CalicoVersion", "v3.30.0"), ("ClusterGUID", "0a"), ("ClusterType", "openstack")];
    let expected = expected.map(|(name, text)| (format!("config/{name}"), text.to_owned()));
    assert_eq!(settings_of([cluster(spec)]), BTreeMap::from(expected));
    assert!(problems_of([cluster(json!({"clusterGUID": "0a", "datastoreReady": true}))]).is_empty());
    assert_eq!(codes(&problems_of([cluster(json!({"clusterGUID": 7}))])), [("default", "invalid-value")]);
}

/// A write or a deletion of one object.
fn change() -> impl Strategy<Value = (String, Option<String>)> {
    let spec = prop_oneof![
        Just(json!({})),
        Just(json!({"logPrefix": "a", "nodeSelector": "rack == 'r1'"})),
        Just(json!({"logPrefix": "b", "ipipMTU": 1400, "nodeSelector": "all()", "vxlanVNI": 7})),
        Just(json!({"ipipMTU": "big", "nodeSelector": "rack =="})),
        Just(json!({"iptablesMarkMask": 255, "newThing": 1, "nodeSelector": "has(rack)"})),
        Just(
            json!({"nftablesMarkMask": 240, "failsafeInboundHostPorts": [], "nodeSelector": "rack != 'r1'"})
        ),
    ];
    let created = prop_oneof![Just("2025-01-01T00:00:00Z"), Just("2026-01-01T00:00:00Z")];
    let annotations =
        prop_oneof![Just(json!({})), Just(json!({"config.projectcalico.org/LogPrefix": "note"}))];
    let names = prop::sample::select(vec!["default", "node.h1", "node.h2", "a", "b"]);
    let felix = (names, created, annotations, spec)
        .prop_map(|(name, created, annotations, spec)| felix_of(name, created, annotations, spec));
    let node = prop_oneof![Just("r1"), Just("r2")].prop_map(|rack| node("h1", json!({"rack": rack})));
    let cluster = any::<bool>().prop_map(|ready| {
        let value = json!({"spec": {"datastoreReady": ready, "clusterGUID": "0a"}}).to_string();
        (key(Kind::ClusterInformation, "default"), value)
    });
    let broken = Just((key(Kind::FelixConfiguration, "node.h1"), "{".to_owned()));
    let put = prop_oneof![4 => felix, 2 => node, 1 => cluster, 1 => broken];
    (put, prop::bool::weighted(0.8)).prop_map(|((key, value), put)| (key, put.then_some(value)))
}

proptest! {
    /// Any order of writes ends as a list of the store gives it.
    #[test]
    fn incremental_is_as_from_scratch(changes in prop::collection::vec(change(), 1..30)) {
        let mut projection = Projection::new("h1");
        let mut entries: BTreeMap<String, (EntryValue, Vec<ObjectKey>)> = BTreeMap::new();
        for entry in projection.replace([]) {
            entries.insert(entry.key, (entry.value, entry.origin));
        }
        let mut store = Store::new();
        for (revision, (key, value)) in (2..).zip(&changes) {
            let change = match value {
                Some(value) => {
                    store.insert(key.clone(), value.clone());
                    RawChange::Put(RawEntry { key, value: value.as_bytes(), created: revision, revision })
                }
                None => {
                    store.remove(key);
                    RawChange::Delete(key)
                }
            };
            for change in projection.apply([change], revision) {
                match change {
                    EntryChange::Put(entry) => drop(entries.insert(entry.key, (entry.value, entry.origin))),
                    EntryChange::Delete { key } => drop(entries.remove(&key)),
                }
            }
        }
        let mut fresh = Projection::new("h1");
        let listed: BTreeMap<_, _> =
            fresh.replace(store.iter().map(raw)).into_iter().map(|e| (e.key, (e.value, e.origin))).collect();
        prop_assert_eq!(entries, listed);
        prop_assert_eq!(projection.problems(), fresh.problems());
    }
}
