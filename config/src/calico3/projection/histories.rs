//! Law of the projection: whatever happened to a store, the entries and problems are those of a fresh start.
//!
//! The histories have objects of every kind in several forms, malformed ones among them, and all dependencies
//! between kinds: peers on filters, ports, labels and workloads, pools on each other, settings on labels of the
//! node, policies that move between tiers.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::calico3::EntryValue;
use crate::dialect::Dialect;

/// Host of the projection.
const HOST: &str = "n1";

/// A key, and the value that it gets; `None` for a deletion.
type Write = (String, Option<Vec<u8>>);

fn object(plural: &str, name: &str, metadata: Value, spec: Value) -> (String, Value) {
    let key = format!("{}projectcalico.org/{plural}/{name}", prefix::CALICO_3);
    (key, json!({"metadata": metadata, "spec": spec}))
}

/// Chooses one of some texts, and one of some specifications.
fn any_of(
    plural: &'static str,
    names: &'static [&'static str],
    specs: Vec<Value>,
) -> impl Strategy<Value = (String, Value)> {
    (prop::sample::select(names), prop::sample::select(specs))
        .prop_map(move |(name, spec)| object(plural, name, json!({}), spec))
}

fn node() -> impl Strategy<Value = (String, Value)> {
    let labels = prop::sample::select(vec![
        json!({}),
        json!({"rack": "a"}),
        json!({"rack": "b", "reflector": ""}),
        json!({"rack": "a", "node.kubernetes.io/exclude-from-external-load-balancers": "true"}),
        json!(5),
    ]);
    let bgp = prop::sample::select(vec![
        json!({"ipv4Address": "10.1.0.N/24"}),
        json!({"ipv4Address": "10.1.0.N/24", "asNumber": 64999, "routeReflectorClusterID": "244.0.0.1"}),
        json!({"ipv4Address": "10.1.0.2/24", "ipv6Address": "fd00::N/64", "asNumber": "x"}),
        json!({"ipv4Address": "bad", "ipv6Address": "fd00::N", "ipv4IPIPTunnelAddr": "10.9.0.N"}),
        json!([]),
        json!(null),
    ]);
    let vxlan = prop::sample::select(vec![json!(null), json!("10.8.0.1"), json!("bad")]);
    (1..4_u8, labels, bgp, vxlan).prop_map(|(n, labels, bgp, vxlan)| {
        let bgp: Value =
            serde_json::from_str(&bgp.to_string().replace('N', &n.to_string())).unwrap_or_default();
        let spec = json!({"bgp": bgp, "ipv4VXLANTunnelAddr": vxlan});
        object("nodes", &format!("n{n}"), json!({"labels": labels}), spec)
    })
}

fn peer() -> impl Strategy<Value = (String, Value)> {
    let local = prop::sample::select(vec![
        json!({}),
        json!({"node": "n1"}),
        json!({"node": "n2"}),
        json!({"nodeSelector": "rack == 'a'"}),
        json!({"nodeSelector": "all("}),
    ]);
    let remote = prop::sample::select(vec![
        json!({"peerIP": "10.1.0.1", "asNumber": 64512}),
        json!({"peerIP": "10.1.0.2", "asNumber": 64512}),
        json!({"peerIP": "10.1.0.2:1790", "asNumber": 64999}),
        json!({"peerIP": "192.0.2.1", "asNumber": 65001, "filters": ["f1"]}),
        json!({"peerIP": "192.0.2.1", "asNumber": 65001, "filters": ["f2", "f1"], "ttlSecurity": 999}),
        json!({"peerSelector": "has(reflector)", "password": {"secretKeyRef": {"name": "s", "key": "k"}}}),
        json!({"peerSelector": "all()", "reversePeering": "Manual"}),
        json!({"peerSelector": 5}),
        json!({"localWorkloadSelector": "peers == 'yes'", "asNumber": 65002}),
        json!({"localWorkloadSelector": "has(role)", "asNumber": 65003, "filters": ["f1"]}),
        json!({"localWorkloadSelector": "a == 'b'", "asNumber": 65004}),
    ]);
    let time = prop::sample::select(vec![json!("1s"), json!("2s"), json!("soon")]);
    ("[abc]", local, remote, time).prop_map(|(name, local, mut spec, time)| {
        if let (Value::Object(members), Value::Object(local)) = (&mut spec, local) {
            members.extend(local);
            members.insert("keepaliveTime".to_owned(), time);
        }
        object("bgppeers", &name, json!({}), spec)
    })
}

fn felix() -> impl Strategy<Value = (String, Value)> {
    let name = prop::sample::select(vec!["default", "node.n1", "node.n2", "sel-a", "sel-b"]);
    let selector =
        prop::sample::select(vec![json!("rack == 'a'"), json!("all()"), json!("all("), json!(""), json!(5)]);
    let members = prop::sample::select(vec![
        json!({"interfacePrefix": "tap", "ipipMTU": 1400}),
        json!({"interfacePrefix": ["x"], "bpfEnabled": true, "nonsense": 1}),
        json!({"nftablesMarkMask": 255, "iptablesMarkMask": 65280}),
        json!({"failsafeInboundHostPorts": [], "vxlanPort": "x"}),
    ]);
    let created = prop::sample::select(vec!["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", ""]);
    let annotation = prop::sample::select(vec![
        json!({}),
        json!({"config.projectcalico.org/InterfacePrefix": "cali,tap"}),
    ]);
    (name, selector, members, created, annotation).prop_map(
        |(name, selector, mut spec, created, annotations)| {
            if let (Value::Object(members), true) = (&mut spec, name.starts_with("sel-")) {
                members.insert("nodeSelector".to_owned(), selector);
            }
            object(
                "felixconfigurations",
                name,
                json!({"creationTimestamp": created, "annotations": annotations}),
                spec,
            )
        },
    )
}

fn workload() -> impl Strategy<Value = (String, Value)> {
    let name =
        prop::sample::select(vec!["ns/n1-k8s-p-eth0", "ns/n1-k8s-q-eth0", "ns/n2-k8s-p-eth0", "ns/n1-k8s-p"]);
    let labels = prop::sample::select(vec![
        json!({"peers": "yes"}),
        json!({"role": "front", "pcns.x": "fake"}),
        json!({"bad label": "x"}),
    ]);
    let spec = prop::sample::select(vec![
        json!({"interfaceName": "cali1", "ipNetworks": ["10.0.0.1/32", "fd00:1::1"], "profiles": ["kns.ns"]}),
        json!({"interfaceName": "cali1", "ipNetworks": ["10.0.0.2"], "serviceAccountName": "sa", "qosControls": {}}),
        json!({"interfaceName": "cali1", "ipNetworks": ["x"]}),
        json!({"ipNetworks": []}),
    ]);
    (name, labels, spec)
        .prop_map(|(name, labels, spec)| object("workloadendpoints", name, json!({"labels": labels}), spec))
}

fn policy() -> impl Strategy<Value = (String, Value)> {
    let kind = prop::sample::select(vec![
        ("globalnetworkpolicies", "g"),
        ("globalnetworkpolicies", "default.g"),
        ("networkpolicies", "ns/g"),
        ("networkpolicies", "ns/default.g"),
        ("networkpolicies", "ns/net.g"),
        ("globalnetworkpolicies", ".g"),
        ("stagednetworkpolicies", "ns/g"),
        ("stagedglobalnetworkpolicies", "g"),
    ]);
    let tier = prop::sample::select(vec![json!(null), json!("net"), json!("default"), json!(5)]);
    let selector = prop::sample::select(vec![json!("has(a)"), json!("has("), json!(null)]);
    let rules = prop::sample::select(vec![
        json!([{"action": "Deny"}]),
        json!([{"action": "Allow", "source": {"nets": ["x"]}}, {"action": "Pass", "destination": {"services": {}}}]),
        json!([{"action": "Maybe"}]),
        json!("none"),
    ]);
    (kind, tier, selector, rules).prop_map(|((plural, name), tier, selector, rules)| {
        object(plural, name, json!({}), json!({"tier": tier, "selector": selector, "ingress": rules}))
    })
}

fn others() -> impl Strategy<Value = (String, Value)> {
    prop_oneof![
        any_of(
            "bgpconfigurations",
            &["default", "node.n1", "node.n2", "other"],
            vec![
                json!({"listenPort": 1790}),
                json!({"asNumber": 64999, "nodeToNodeMeshEnabled": false}),
                json!({"bindMode": "NodeIP", "listenPort": "x", "serviceClusterIPs": [{"cidr": "10.96.0.0/12"}]}),
                json!({"prefixAdvertisements": [{"cidr": "10.0.0.0/16", "communities": ["1:1", "x"]}]}),
            ]
        ),
        any_of(
            "bgpfilters",
            &["f1", "f2"],
            vec![
                json!({"exportV4": [{"action": "Accept"}]}),
                json!({"exportV4": [{"action": "Maybe"}, {"action": "Reject", "cidr": "10.0.0.0/8"}]}),
                json!({"importV4": 5}),
            ]
        ),
        any_of(
            "ippools",
            &["p1", "p2", "p3"],
            vec![
                json!({"cidr": "10.0.0.0/16", "natOutgoing": true}),
                json!({"cidr": "10.0.1.1/16", "ipipMode": "Always"}),
                json!({"cidr": "10.7.0.0/16", "vxlanMode": "Sometimes", "nodeSelector": "all("}),
                json!({"cidr": "bad"}),
            ]
        ),
        any_of("ipreservations", &["r"], vec![json!({"reservedCIDRs": ["10.0.0.1", "x"]}), json!({})]),
        any_of(
            "clusterinformations",
            &["default", "other"],
            vec![
                json!({"datastoreReady": true, "clusterGUID": "0a"}),
                json!({"datastoreReady": "true", "clusterType": 5}),
                json!({"calicoVersion": "v3.32.1"}),
            ]
        ),
        any_of(
            "hostendpoints",
            &["h", "n1-auto-hep"],
            vec![
                json!({"node": "n1", "interfaceName": "eth0"}),
                json!({"node": "n2", "interfaceName": "*", "expectedIPs": ["x"]}),
                json!({"node": "", "interfaceName": "eth0"}),
                json!({"node": "n1", "interfaceName": "e/0"}),
            ]
        ),
        any_of(
            "profiles",
            &["kns.ns", "projectcalico-default-allow"],
            vec![
                json!({"labelsToApply": {"a": "b"}, "ingress": [{"action": "Allow"}]}),
                json!({"labelsToApply": 5}),
                json!({}),
            ]
        ),
        any_of(
            "tiers",
            &["net", "default"],
            vec![json!({"order": 1}), json!({"order": "x"}), json!({"defaultAction": "Perhaps"}),]
        ),
        any_of("networksets", &["ns/s"], vec![json!({"nets": ["10.0.0.0/8", "x"]}), json!({"nets": 5})]),
        any_of("globalnetworksets", &["s"], vec![json!({"nets": ["10.0.0.0/8"]}), json!({})]),
        any_of("livemigrations", &["ns/m"], vec![json!({})]),
        any_of("widgets", &["w"], vec![json!({})]),
    ]
}

/// Keys that are no objects: those of IPAM pass, those of the v1 model are dropped.
fn plain() -> impl Strategy<Value = (String, Value)> {
    let key = prop::sample::select(vec![
        "/calico/ipam/v2/config",
        "/calico/ipam/v2/host/n1/ipv4/block/10.0.0.0-26",
        "/calico/v1/Ready",
        "/calico/bgp/v1/global/as_num",
    ]);
    (key, 0..3_u8).prop_map(|(key, n)| (key.to_owned(), json!({ "strict_affinity": n == 0 })))
}

fn write() -> impl Strategy<Value = Write> {
    let object = prop_oneof![4 => node(), 4 => peer(), 2 => felix(), 3 => workload(), 3 => policy(), 6 => others(), 1 => plain()];
    (object, 0..10_u8).prop_map(|((key, value), kind)| match kind {
        0..7 => (key, Some(value.to_string().into_bytes())),
        7..9 => (key, None),
        // The beginning of the object is all that a broken write left.
        _ => {
            let text = value.to_string();
            (key, Some(text.as_bytes().split_at(text.len() / 2).0.to_vec()))
        }
    })
}

/// A step of a history: a transaction, or a list of the store.
#[derive(Debug, Clone)]
enum Step {
    Transaction(Vec<Write>),
    List,
}

fn history() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        12 => prop::collection::vec(write(), 1..4).prop_map(Step::Transaction),
        1 => Just(Step::List),
    ];
    prop::collection::vec(step, 1..14)
}

/// Content of a store: value, revision of the first and of the last write.
type Stored = BTreeMap<String, (Vec<u8>, u64, u64)>;

fn listed(store: &Stored) -> impl Iterator<Item = RawEntry<'_>> {
    store.iter().map(|(key, (value, created, revision))| RawEntry {
        key,
        value,
        created: *created,
        revision: *revision,
    })
}

/// Entries by key, with value and origin.
type Entries = BTreeMap<String, (EntryValue, Vec<ObjectKey>)>;

fn by_key(entries: impl IntoIterator<Item = Entry>) -> Entries {
    entries.into_iter().map(|entry| (entry.key, (entry.value, entry.origin))).collect()
}

/// A projection that follows a store, and the entries that its changes add up to.
struct Follower {
    projection: Projection,
    entries: Entries,
    revisions: BTreeMap<String, u64>,
}

impl Follower {
    fn put(&mut self, entry: Entry) -> Result<(), TestCaseError> {
        // Who is given a parsed key does not parse its text.
        if let Some(parsed) = &entry.parsed {
            let key = Key::parse(&entry.key).ok();
            prop_assert_eq!(key.as_ref(), Some(parsed));
        }
        let now = (entry.value, entry.origin);
        let known = self.revisions.insert(entry.key.clone(), entry.revision);
        // Who follows by revisions sees each change.
        if self.entries.get(&entry.key).is_some_and(|before| *before != now) {
            prop_assert!(known < Some(entry.revision), "{}: revision {}", entry.key, entry.revision);
        }
        self.entries.insert(entry.key, now);
        Ok(())
    }

    fn apply(&mut self, changes: Vec<RawChange<'_>>, revision: u64) -> Result<(), TestCaseError> {
        let problems: Vec<Problem> = self.projection.problems().into_iter().cloned().collect();
        let counted = self.projection.problem_changes();
        for change in self.projection.apply(changes, revision) {
            match change {
                EntryChange::Put(entry) => self.put(entry)?,
                EntryChange::Delete { key } => {
                    self.entries.remove(&key);
                    self.revisions.remove(&key);
                }
            }
        }
        let differ = problems.iter().collect::<Vec<_>>() != self.projection.problems();
        prop_assert!(!differ || self.projection.problem_changes() > counted, "problems differ unnoticed");
        Ok(())
    }

    fn list(&mut self, store: &Stored) -> Result<(), TestCaseError> {
        let entries = self.projection.replace(listed(store));
        let keys: BTreeSet<String> = entries.iter().map(|entry| entry.key.clone()).collect();
        prop_assert_eq!(keys.len(), entries.len(), "two entries have one key");
        self.entries.retain(|key, _| keys.contains(key));
        self.revisions.retain(|key, _| keys.contains(key));
        entries.into_iter().try_for_each(|entry| self.put(entry))
    }
}

/// Asserts the law for a history.
fn check(history: Vec<Step>) -> Result<(), TestCaseError> {
    let mut store = Stored::new();
    let mut follower =
        Follower { projection: Projection::new(HOST), entries: Entries::new(), revisions: BTreeMap::new() };
    follower.list(&store)?;
    for (revision, step) in (2_u64..).zip(history) {
        let Step::Transaction(mut writes) = step else {
            follower.list(&store)?;
            continue;
        };
        // A transaction writes a key once, and deletes only what exists.
        let mut seen = BTreeSet::new();
        writes
            .retain(|(key, value)| seen.insert(key.clone()) && (value.is_some() || store.contains_key(key)));
        for (key, value) in &writes {
            match value {
                Some(value) => {
                    let created = store.get(key).map_or(revision, |known| known.1);
                    store.insert(key.clone(), (value.clone(), created, revision));
                }
                None => drop(store.remove(key)),
            }
        }
        let changes = writes.iter().map(|(key, value)| match (value, store.get(key)) {
            (Some(value), Some((_, created, _))) => {
                RawChange::Put(RawEntry { key, value, created: *created, revision })
            }
            _ => RawChange::Delete(key),
        });
        follower.apply(changes.collect(), revision)?;
    }
    let mut fresh = Projection::new(HOST);
    let expected = by_key(fresh.replace(listed(&store)));
    prop_assert_eq!(&follower.entries, &expected);
    prop_assert_eq!(follower.projection.problems(), fresh.problems());
    prop_assert_eq!(follower.projection.v1_keys(), fresh.v1_keys());
    for (text, (value, origin)) in &expected {
        let Ok(key) = Key::parse(text) else { return Err(TestCaseError::fail(format!("{text} is no key"))) };
        prop_assert_eq!(&key.to_string(), text);
        let objects = follower.projection.origin(text);
        prop_assert_eq!(&objects, origin, "{}", text);
        let parsed = Resource::parse_in(Dialect::V3, &key, value);
        // A resource is what its octets are parsed to.
        if let Some(resource) = value.resource() {
            prop_assert_eq!(parsed.as_ref().ok(), Some(&**resource));
        }
        // What the v1 model cannot read is named by a problem.
        if parsed.is_err() && !objects.is_empty() {
            let named = |problem: &&Problem| objects.contains(&problem.key);
            prop_assert!(
                fresh.problems().into_iter().any(|p| named(&p)),
                "{text} is unreadable without a problem"
            );
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn any_history_ends_as_a_fresh_start(history in history()) {
        check(history)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100_000, ..ProptestConfig::default() })]

    #[test]
    #[ignore = "minutes: four hundred times the histories of the quick test"]
    fn long_a_hundred_thousand_histories_end_as_a_fresh_start(history in history()) {
        check(history)?;
    }
}
