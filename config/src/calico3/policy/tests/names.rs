//! Names of workload endpoints and policies, and the keys that they imply.

use serde_json::json;

use super::super::{WorkloadEndpointName, object_of, policy_name, workload_key};
use super::{key, object};
use crate::calico3::{Kind, ObjectKey};
use crate::key::Key;

fn parts(parts: [&str; 4]) -> WorkloadEndpointName {
    let [node, orchestrator, workload, endpoint] = parts.map(str::to_owned);
    WorkloadEndpointName { node, orchestrator, workload, endpoint }
}

#[test]
fn parts_of_workload_endpoints_are_joined_and_split() {
    for (given, name) in [
        (["node-1", "k8s", "pod-name", "eth0"], Some("node--1-k8s-pod--name-eth0")),
        (["node-1", "cni", "abcdefa0123456", "eth0"], Some("node--1-cni-abcdefa0123456-eth0")),
        (["n", "libnetwork", "libnetwork", "ab"], Some("n-libnetwork-libnetwork-ab")),
        (["a--b", "o-o", "w", "e-1-2"], Some("a----b-o--o-w-e--1--2")),
        (["n", "openstack", "5f-6", "p-q"], Some("n-openstack-5f--6-p--q")),
        (["n", "k8s", "", "eth0"], None),
        (["n", "cni", "-a", "eth0"], None),
        (["n", "foo", "a-", "eth0"], None),
        (["", "foo", "a", "eth0"], None),
    ] {
        let given = parts(given);
        assert_eq!(given.to_name().as_deref(), name, "{given:?}");
        if let Some(name) = name {
            assert_eq!(WorkloadEndpointName::parse(name), Some(given));
        }
    }
    // Three dashes are a literal one and then a separator.
    assert_eq!(WorkloadEndpointName::parse("n-k8s-pod---eth0"), Some(parts(["n", "k8s", "pod-", "eth0"])));
    for bad in ["", "a", "a-b-c", "a-b-c-", "a-b-c-d-e", "node--1-k8s-pod-eth0-extra", "-a-b-c-d", "a--b-c-d"]
    {
        assert_eq!(WorkloadEndpointName::parse(bad), None, "{bad}");
    }
}

#[test]
fn keys_and_objects_imply_each_other() {
    for (object, v1) in [
        (
            key(Kind::WorkloadEndpoint, "ns/node--1-k8s-pod--a-eth0"),
            "/calico/v1/host/node-1/workload/k8s/ns%2fpod-a/endpoint/eth0",
        ),
        (key(Kind::HostEndpoint, "a-auto-hep"), "/calico/v1/host/a/endpoint/a-auto-hep"),
        (key(Kind::Profile, "kns.default"), "/calico/v1/policy/profile/kns.default/rules"),
        (key(Kind::Profile, "kns.default"), "/calico/v1/policy/profile/kns.default/labels"),
        (key(Kind::GlobalNetworkPolicy, "default.a"), "/calico/v1/policy/tier/default/policy/default.a"),
        (key(Kind::NetworkPolicy, "ns/t.a"), "/calico/v1/policy/tier/t/policy/ns%2ft.a"),
        (key(Kind::Tier, "t"), "/calico/tortie/v1/tier/t"),
        (key(Kind::GlobalNetworkSet, "s"), "/calico/tortie/v1/globalnetworkset/s"),
        (key(Kind::NetworkSet, "ns/s"), "/calico/tortie/v1/networkset/ns/s"),
    ] {
        assert_eq!(object_of(&Key::parse(v1).unwrap()), Some(object.clone()), "{v1}");
        let implied = workload_key(&object).map(|key| key.to_string());
        assert_eq!(implied.as_deref(), (object.kind == Kind::WorkloadEndpoint).then_some(v1));
    }
    for v1 in [
        "/calico/v1/host/a/workload/k8s/pod/endpoint/eth0",
        "/calico/v1/host/-a/workload/k8s/ns%2fpod/endpoint/eth0",
        "/calico/v1/ipam/v4/pool/10.0.0.0-16",
        "/calico/ipam/v2/config",
        "nonsense",
    ] {
        assert_eq!(Key::parse(v1).ok().and_then(|key| object_of(&key)), None, "{v1}");
    }
}

#[test]
fn the_name_of_a_workload_endpoint_names_its_host() {
    let of = |kind, name: &str| {
        let key = workload_key(&ObjectKey::namespaced(kind, "ns", name));
        key.as_ref().and_then(Key::host) == Some("node-1")
    };
    assert!(of(Kind::WorkloadEndpoint, "node--1-k8s-pod-eth0"));
    assert!(!of(Kind::WorkloadEndpoint, "node-1-k8s-pod-eth0"));
    assert!(!of(Kind::WorkloadEndpoint, "node--1-k8s-pod"));
    assert!(!of(Kind::WorkloadEndpoint, "node--10-k8s-pod-eth0"));
    assert!(!of(Kind::NetworkSet, "node--1-k8s-pod-eth0"));
}

#[test]
fn policies_have_the_names_that_users_gave() {
    let annotated = json!({"annotations": {"projectcalico.org/metadata": "{\"name\":\"web\"}"}});
    let broken = json!({"annotations": {"projectcalico.org/metadata": "web"}});
    for (name, metadata, tier, user) in [
        ("default.web", json!({}), "", "web"),
        ("default.web", json!({}), "default", "web"),
        ("default.web", json!({}), "other", "default.web"),
        ("web", json!({}), "", "web"),
        ("net.web", json!({}), "net", "net.web"),
        ("knp.default.web", json!({}), "", "knp.default.web"),
        ("default.x", annotated.clone(), "", "web"),
        ("net.x", annotated, "net", "web"),
        ("default.x", broken, "", "x"),
    ] {
        let value = json!({"metadata": metadata, "spec": {"tier": tier}});
        assert_eq!(policy_name(&object(Kind::GlobalNetworkPolicy, name, &value)), user, "{name} {value}");
    }
}

#[test]
fn keys_of_objects_and_of_other_programs_are_known() {
    let objects = "/calico/resources/v3/projectcalico.org";
    for (key, known) in [
        ("/calico/v1/Ready", true),
        ("/calico/ipam/v2/config", true),
        ("/calico/felix/v2/no-region/host/h/status", true),
        ("/calico/compaction/v1/last", true),
        ("/calico/v1/nonsense", false),
        ("calico/v1/Ready", false),
        ("/other", false),
        (&format!("{objects}/nodes/a"), true),
        (&format!("{objects}/networkpolicies/ns/a"), true),
        (&format!("{objects}/networkpolicies/a"), false),
        (&format!("{objects}/nodes/ns/a"), false),
        (&format!("{objects}/widgets/a"), false),
        ("/calico/resources/v2/projectcalico.org/nodes/a", false),
    ] {
        assert_eq!(crate::is_known_key(key), known, "{key}");
    }
}
