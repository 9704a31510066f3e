//! Tests of the transactions for endpoints and profiles, in both dialects.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use tortie_config::Dialect;
use tortie_config::calico3::write::Birth;
use tortie_config::key::EndpointKey;
use tortie_config::resource::Labels;
use tortie_store::{Compare, KeyValue, Op, Txn};

use super::*;

const OBJECTS: &str = "/calico/resources/v3/projectcalico.org";
const BOTH: [Dialect; 2] = [Dialect::V1, Dialect::V3];

/// A store in memory.
#[derive(Debug, Clone, Default)]
struct Stored {
    entries: BTreeMap<String, KeyValue>,
    revision: u64,
}

impl Stored {
    fn get(&self, key: &str) -> Option<&KeyValue> {
        self.entries.get(key)
    }

    fn json(&self, key: &str) -> Value {
        let found = self.get(key).unwrap_or_else(|| panic!("no {key} in {:?}", self.entries.keys()));
        serde_json::from_slice(&found.value).unwrap()
    }

    fn put(&mut self, key: &str, value: &str) {
        let put = Op::Put { key: key.to_owned(), value: value.into(), lease: None };
        self.commit(Txn { ops: vec![put], ..Txn::default() });
    }

    fn commit(&mut self, txn: Txn) {
        for compare in &txn.compare {
            let holds = match compare {
                Compare::Absent(key) => self.get(key).is_none(),
                Compare::ModRevision(key, at) => self.get(key).is_some_and(|kv| kv.mod_revision == *at),
                other => panic!("{other:?}"),
            };
            assert!(holds, "{compare:?}");
        }
        self.revision += 1;
        for op in txn.ops {
            match op {
                Op::Put { key, value, .. } => {
                    let created = self.get(&key).map_or(self.revision, |old| old.create_revision);
                    let kv = KeyValue {
                        key: key.clone(),
                        value,
                        mod_revision: self.revision,
                        create_revision: created,
                    };
                    self.entries.insert(key, kv);
                }
                Op::Delete { key } => drop(self.entries.remove(&key)),
                Op::DeletePrefix { prefix } => panic!("{prefix}"),
            }
        }
    }

    /// Writes an endpoint as a plugin does; returns true if something was written.
    fn write(&mut self, writer: Writer, spec: &EndpointSpec<'_>) -> Result<bool, EndpointError> {
        let reads = writer.endpoint_reads(spec)?;
        let stored: Vec<Option<KeyValue>> = reads.iter().map(|key| self.get(key).cloned()).collect();
        let txn = writer.endpoint(spec, &stored, &mut birth_of_one)?;
        let is_written = txn.is_some();
        txn.into_iter().for_each(|txn| self.commit(txn));
        Ok(is_written)
    }
}

fn birth_of_one() -> Birth {
    birth(1, "2026-01-02T03:04:05Z".parse().unwrap())
}

fn workload(orchestrator: &str, workload: &str, endpoint: &str) -> EndpointKey {
    EndpointKey::Workload {
        host: "rack-1".to_owned(),
        orchestrator: orchestrator.to_owned(),
        workload: workload.to_owned(),
        endpoint: endpoint.to_owned(),
    }
}

/// Calls a function with an endpoint that has both families.
fn with_spec<T>(
    key: &EndpointKey,
    profile: &ProfileChoice,
    instance: Option<&str>,
    labels: &[(&str, &str)],
    call: impl FnOnce(&EndpointSpec<'_>) -> T,
) -> T {
    let labels: Labels = labels.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    call(&EndpointSpec {
        key,
        host_ifname: &"cali1".parse().unwrap(),
        mac: Some("ee:ee:ee:ee:ee:ee".parse().unwrap()),
        addrs: &["10.65.0.2".parse().unwrap(), "fd00::2".parse().unwrap()],
        gateways: &["169.254.1.1".parse().unwrap()],
        profile,
        more_profiles: &[],
        labels: &labels,
        instance,
    })
}

/// Profiles of the first, second and further endpoints of a network.
fn arrivals() -> Vec<(&'static str, ProfileChoice)> {
    let network = || "net".to_owned();
    vec![
        ("pod", ProfileChoice::CreateOpen(network())),
        ("container", ProfileChoice::Create(network())),
        ("policy", ProfileChoice::Use("k8s_ns.prod".to_owned())),
        ("pod-2", ProfileChoice::CreateOpen(network())),
    ]
}

/// Returns all permutations of a list.
fn orders<T: Clone>(of: &[T]) -> Vec<Vec<T>> {
    if of.is_empty() {
        return vec![Vec::new()];
    }
    let first = |at: usize| {
        let mut rest = of.to_vec();
        let first = rest.remove(at);
        orders(&rest).into_iter().map(move |mut order| {
            order.insert(0, first.clone());
            order
        })
    };
    (0..of.len()).flat_map(first).collect()
}

#[test]
fn the_profiles_of_a_network_do_not_depend_on_who_came_first() {
    for dialect in BOTH {
        let writer = Writer::of(dialect);
        let mut ends: BTreeSet<BTreeMap<String, Vec<u8>>> = BTreeSet::new();
        for order in orders(&arrivals()) {
            let mut stored = Stored::default();
            for (name, profile) in order {
                let key = workload("cni", name, "eth0");
                with_spec(&key, &profile, None, &[], |spec| stored.write(writer, spec)).unwrap();
            }
            ends.insert(stored.entries.into_values().map(|kv| (kv.key, kv.value)).collect());
        }
        assert_eq!(ends.len(), 1, "{dialect:?}");
        let end = ends.pop_first().unwrap();
        let value = |key: &str| -> Value { serde_json::from_slice(&end[key]).unwrap() };
        match dialect {
            Dialect::V1 => {
                let rules = |name: &str| value(&format!("/calico/v1/policy/profile/{name}/rules"));
                assert_eq!(rules("net")["inbound_rules"], json!([{"action": "allow", "src_tag": "net"}]));
                assert_eq!(rules("_pods.net")["inbound_rules"], json!([{"action": "allow"}]));
                let profiles = |workload: &str| {
                    value(&format!("/calico/v1/host/rack-1/workload/cni/{workload}/endpoint/eth0"))["profile_ids"]
                        .clone()
                };
                assert_eq!(profiles("pod"), json!(["net", "_pods.net"]));
                assert_eq!(profiles("container"), json!(["net"]));
            }
            Dialect::V3 => {
                // As Calico's plugin creates it (facts of its source): egress allowed, ingress from the network.
                let spec = value(&format!("{OBJECTS}/profiles/net"))["spec"].clone();
                assert_eq!(spec["egress"], json!([{"action": "Allow", "source": {}, "destination": {}}]));
                assert_eq!(spec["ingress"][0]["source"], json!({"selector": "has(net)"}));
                assert_eq!(spec["labelsToApply"], json!({"net": ""}));
                // The first octets of the SHA-1 of `_pods.net`.
                let open = "pods.net-9deb22bc";
                let profiles = |workload: &str| {
                    let name = format!("rack--1-cni-{workload}-eth0");
                    value(&format!("{OBJECTS}/workloadendpoints/default/{name}"))["spec"]["profiles"].clone()
                };
                assert_eq!(profiles("pod"), json!(["net", open]));
                assert_eq!(profiles("container"), json!(["net"]));
                assert_eq!(profiles("policy"), json!(["kns.prod"]));
                let spec = value(&format!("{OBJECTS}/profiles/{open}"))["spec"].clone();
                assert_eq!(spec["ingress"], json!([{"action": "Allow", "source": {}, "destination": {}}]));
                assert_eq!(spec.get("labelsToApply"), None);
                assert_eq!(end.len(), 6);
            }
        }
    }
}

/// Names and members by orchestrator, as Calico's clients compute and demand them.
#[test]
fn an_endpoint_has_calicos_name_and_members() {
    let id = "0123456789abcdef";
    let cases = [
        (
            workload("k8s", "prod.web-0", "eth0"),
            "prod/rack--1-k8s-web--0-eth0",
            json!({"orchestrator": "k8s", "node": "rack-1", "pod": "web-0", "containerID": id, "endpoint": "eth0"}),
            "prod/web-0",
        ),
        (
            workload("k8s", "prod.web.0", "net1"),
            "prod/rack--1-k8s-web.0-net1",
            json!({"orchestrator": "k8s", "node": "rack-1", "pod": "web.0", "containerID": id, "endpoint": "net1"}),
            "prod/web.0",
        ),
        (
            workload("cni", id, "eth0"),
            "default/rack--1-cni-0123456789abcdef-eth0",
            json!({"orchestrator": "cni", "node": "rack-1", "containerID": id, "endpoint": "eth0"}),
            "default/0123456789abcdef",
        ),
        (
            workload("libnetwork", "libnetwork", "5eed"),
            "default/rack--1-libnetwork-libnetwork-5eed",
            json!({
                "orchestrator": "libnetwork", "node": "rack-1", "workload": "libnetwork", "containerID": id,
                "endpoint": "5eed",
            }),
            "default/libnetwork",
        ),
        (
            workload("kurma", "146d7cef-fbf6", "eth0"),
            "default/rack--1-kurma-146d7cef--fbf6-eth0",
            json!({
                "orchestrator": "kurma", "node": "rack-1", "workload": "146d7cef-fbf6", "containerID": id,
                "endpoint": "eth0",
            }),
            "default/146d7cef-fbf6",
        ),
    ];
    let writer = Writer::of(Dialect::V3);
    for (key, path, members, of_model) in cases {
        let mut stored = Stored::default();
        let labels = [("app", "web"), ("calico/k8s_ns", "prod")];
        let profile = ProfileChoice::None;
        with_spec(&key, &profile, Some(id), &labels, |spec| stored.write(writer, spec)).unwrap();
        let object = format!("{OBJECTS}/workloadendpoints/{path}");
        let mut wanted = members;
        wanted["interfaceName"] = json!("cali1");
        wanted["mac"] = json!("ee:ee:ee:ee:ee:ee");
        wanted["ipNetworks"] = json!(["10.65.0.2/32", "fd00::2/128"]);
        wanted["profiles"] = json!([]);
        let value = stored.json(&object);
        assert_eq!(value["spec"], wanted);
        let (namespace, name) = path.split_once('/').unwrap();
        assert_eq!(
            (&value["metadata"]["namespace"], &value["metadata"]["name"]),
            (&json!(namespace), &json!(name))
        );
        let orchestrator = wanted["orchestrator"].clone();
        assert_eq!(
            value["metadata"]["labels"],
            json!({
                "app": "web", "projectcalico.org/namespace": namespace,
                "projectcalico.org/orchestrator": orchestrator,
            })
        );
        // Read back, it is the endpoint that was written, with its owner.
        let read = writer.read_endpoint(stored.get(&object).unwrap()).unwrap();
        assert_eq!((&read.key, read.instance.as_deref()), (&key, Some(id)));
        assert_eq!(read.title, format!("WorkloadEndpoint {path}"));
        let endpoint = read.endpoint.unwrap();
        assert_eq!(
            endpoint.nets().map(ToString::to_string).collect::<Vec<_>>(),
            ["10.65.0.2/32", "fd00::2/128"]
        );
        let EndpointKey::Workload { workload, .. } = writer.model_key(&key) else { panic!() };
        assert_eq!(workload, of_model);
    }
}

#[test]
fn a_repeated_write_keeps_what_others_added_and_writes_only_changes() {
    let key = workload("k8s", "prod.web", "eth0");
    for dialect in BOTH {
        let writer = Writer::of(dialect);
        let mut stored = Stored::default();
        let profile = ProfileChoice::Create("net".to_owned());
        let write = |stored: &mut Stored, instance: &str| {
            with_spec(&key, &profile, Some(instance), &[], |spec| stored.write(writer, spec)).unwrap()
        };
        assert!(write(&mut stored, "c1"));
        let at = writer.endpoint_key(&key).unwrap();
        let mut value = stored.json(&at);
        match dialect {
            Dialect::V1 => value["future"] = json!({"a": 1}),
            Dialect::V3 => {
                value["spec"]["future"] = json!({"a": 1});
                value["spec"]["ports"] = json!([{"name": "web", "protocol": "TCP", "port": 80}]);
                value["metadata"]["annotations"] = json!({"x": "y"});
                value["status"] = json!({"z": 1});
            }
        }
        stored.put(&at, &value.to_string());
        // The sandbox of the pod was started again.
        assert!(write(&mut stored, "c2"));
        match dialect {
            Dialect::V1 => value["active_instance_id"] = json!("c2"),
            Dialect::V3 => value["spec"]["containerID"] = json!("c2"),
        }
        assert_eq!(stored.json(&at), value);
        assert_eq!(write(&mut stored, "c2"), dialect == Dialect::V1);
        assert_eq!(stored.json(&at), value);
        let stored = stored.get(&at).unwrap();
        let none = writer.endpoint_profiles(&key, stored, &["net".to_owned()], &birth_of_one()).unwrap();
        assert_eq!(none, None);
        let both = ["net".to_owned(), "other".to_owned()];
        let txn = writer.endpoint_profiles(&key, stored, &both, &birth_of_one()).unwrap().unwrap();
        let [Op::Put { value: written, .. }] = &txn.ops[..] else { panic!("{txn:?}") };
        match dialect {
            Dialect::V1 => value["profile_ids"] = json!(both),
            Dialect::V3 => value["spec"]["profiles"] = json!(both),
        }
        assert_eq!(serde_json::from_slice::<Value>(written).unwrap(), value);
    }
}

#[test]
fn only_the_owner_removes_an_endpoint_that_can_be_parsed() {
    let key = workload("cni", "c1", "eth0");
    for dialect in BOTH {
        let writer = Writer::of(dialect);
        let mut stored = Stored::default();
        let profile = ProfileChoice::None;
        with_spec(&key, &profile, Some("c1"), &[], |spec| stored.write(writer, spec)).unwrap();
        let at = writer.endpoint_key(&key).unwrap();
        let kept = writer.remove_endpoint(stored.get(&at).unwrap(), Some("c0"));
        assert_eq!(kept, Removal::Kept("c1".to_owned()));
        for instance in [Some("c1"), None] {
            let mut left = stored.clone();
            let Removal::Remove(txn) = writer.remove_endpoint(stored.get(&at).unwrap(), instance) else {
                panic!()
            };
            left.commit(txn);
            assert_eq!(left.get(&at), None);
        }
        stored.put(&at, "{");
        let removed = writer.remove_endpoint(stored.get(&at).unwrap(), Some("c0"));
        assert!(matches!(removed, Removal::Remove(_)));
    }
}

#[test]
fn an_object_without_addresses_still_has_an_owner() {
    let writer = Writer::of(Dialect::V3);
    let key = workload("cni", "c1", "eth0");
    let mut stored = Stored::default();
    let at = writer.endpoint_key(&key).unwrap();
    stored.put(&at, &json!({"spec": {"containerID": "c1", "interfaceName": "cali1"}}).to_string());
    let read = writer.read_endpoint(stored.get(&at).unwrap()).unwrap();
    assert!(read.endpoint.is_err());
    assert_eq!(owned_by_other(&read, Some("c2")), Some("c1"));
    assert_eq!(owned_by_other(&read, Some("c1")), None);
    assert_eq!(owned_by_other(&read, None), None);
}

#[test]
fn names_without_a_form_in_calico_3_are_refused_by_name() {
    let writer = Writer::of(Dialect::V3);
    let refused = |key: EndpointKey, profile: ProfileChoice, labels: &[(&str, &str)]| {
        let mut stored = Stored::default();
        let error = with_spec(&key, &profile, None, labels, |spec| stored.write(writer, spec)).unwrap_err();
        assert_eq!(stored.entries.len(), 0);
        error.to_string()
    };
    let none = || ProfileChoice::None;
    let plain = || workload("cni", "c1", "eth0");
    for (key, part) in [
        (workload("cni", "My_App", "eth0"), "My_App"),
        (workload("cni", "c1-", "eth0"), "c1-"),
        (workload("cni", "", "eth0"), "rack-1"),
        (workload("cni", "c1", "Net1"), "Net1"),
        (workload("k8s", "nameless", "eth0"), "<namespace>.<pod>"),
        (workload("k8s", "A.web", "eth0"), "metadata.namespace"),
    ] {
        let text = refused(key, none(), &[]);
        assert!(text.contains(part) && text.contains("write"), "{text}");
    }
    for label in [("a b", "x"), ("x", "a b"), ("/x", "y"), ("x/", "y"), ("A_/x", "y"), ("x", &"y".repeat(64))]
    {
        let text = refused(plain(), none(), &[label]);
        assert!(text.contains("metadata.labels"), "{text}");
    }
    let text = refused(plain(), ProfileChoice::Create("n".repeat(254)), &[]);
    assert!(text.contains("the network's name"), "{text}");
}

/// Names by the rule of Calico's upgrade, with the first octets of the SHA-1 of the old name.
#[test]
fn profiles_of_networks_have_dns_names_in_calico_3() {
    let v3 = Writer::of(Dialect::V3);
    assert_eq!(v3.profile_name("net.1-a"), "net.1-a");
    assert_eq!(v3.profile_name("k8s_ns.prod"), "kns.prod");
    assert_eq!(v3.profile_name("A"), "a-6dcd4ce2");
    assert!(v3.profile_name("shop_default").starts_with("shop-default-"));
    assert_eq!(Writer::of(Dialect::V1).profile_name("A"), "A");
}

#[test]
fn a_store_is_ready_as_its_dialect_says() {
    let (v1, v3) = (Writer::of(Dialect::V1), Writer::of(Dialect::V3));
    assert_eq!(v1.ready_key(), "/calico/v1/Ready");
    assert_eq!(v3.ready_key(), format!("{OBJECTS}/clusterinformations/default"));
    let value = |spec: &str| format!(r#"{{"metadata":{{"name":"default"}},"spec":{spec}}}"#);
    for (writer, stored, ready) in [
        (v1, None, true),
        (v1, Some("true".to_owned()), true),
        (v1, Some("false".to_owned()), false),
        (v3, None, false),
        (v3, Some(value(r#"{"datastoreReady":true}"#)), true),
        (v3, Some(value(r#"{"datastoreReady":false}"#)), false),
        (v3, Some(value("{}")), false),
        (v3, Some("true".to_owned()), false),
    ] {
        assert_eq!(writer.check_ready(stored.as_deref().map(str::as_bytes)).is_ok(), ready, "{stored:?}");
    }
}

/// Go's default form of a time: no trailing zeros in the fraction.
#[test]
fn times_of_addresses_have_the_form_of_the_dialect() {
    let time = |dialect, text: &str| Writer::of(dialect).attribute_time(text.parse().unwrap());
    assert_eq!(time(Dialect::V1, "2026-01-02T03:04:05Z"), "2026-01-02T03:04:05Z");
    assert_eq!(time(Dialect::V3, "2026-01-02T03:04:05Z"), "2026-01-02 03:04:05 +0000 UTC");
    assert_eq!(time(Dialect::V3, "2026-01-02T03:04:05.6780Z"), "2026-01-02 03:04:05.678 +0000 UTC");
}

#[test]
fn a_new_object_has_a_uuid_of_version_4_and_a_time_in_seconds() {
    let of = |random| birth(random, "2026-01-02T03:04:05.4Z".parse().unwrap());
    assert_eq!(of(0).uid, "00000000-0000-4000-8000-000000000000");
    assert_eq!(of(u128::MAX).uid, "ffffffff-ffff-4fff-bfff-ffffffffffff");
    assert_eq!(of(0).time, "2026-01-02T03:04:05Z");
}
