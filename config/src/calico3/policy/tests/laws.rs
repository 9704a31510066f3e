//! Laws of the projection: no value causes a panic, and an endpoint that is read in one pass is the same as one
//! that is read member by member.

use proptest::prelude::*;
use serde_json::json;

use super::super::{plain_endpoint, workload_endpoint, workload_key};
use super::{key, object};
use crate::Resource;
use crate::calico3::{Kind, Object, Projection, RawEntry};
use crate::resource::WorkloadEndpoint;

const ENDPOINT: &str = "ns/n-k8s-p-eth0";

/// Reads an endpoint member by member; `None` if it has none, or a problem.
fn by_member(object: Object) -> Option<WorkloadEndpoint> {
    let implied = workload_key(&object.key);
    let output = workload_endpoint(object, implied);
    let entry = output.entries.into_iter().next().filter(|_| output.problems.is_empty())?;
    match &**entry.value.resource()? {
        Resource::WorkloadEndpoint(endpoint) => Some((**endpoint).clone()),
        _ => None,
    }
}

/// A member of an endpoint with values of its form, of another form, and of none.
fn member() -> impl Strategy<Value = (&'static str, &'static str)> {
    prop::sample::select(vec![
        ("interfaceName", r#""cali2""#),
        ("interfaceName", r#""cali\u0033""#),
        ("interfaceName", r#""""#),
        ("interfaceName", "5"),
        ("mac", r#""EE-ee-ee-ee-ee-0a""#),
        ("mac", r#""00:00:5e:00:53:01:00:02""#),
        ("mac", r#""""#),
        ("mac", "null"),
        ("ipNetworks", r#"["10.0.0.3", "fd00::1/128"]"#),
        ("ipNetworks", r#"["10.0.0.3/24", "x"]"#),
        ("ipNetworks", "[]"),
        ("ipNetworks", "[null]"),
        ("profiles", r#"["a", "b"]"#),
        ("profiles", r#"[""]"#),
        ("profiles", "{}"),
        ("serviceAccountName", r#""sa""#),
        ("serviceAccountName", r#""""#),
        ("serviceAccountName", "[]"),
        ("ports", r#"[{"name": "http", "protocol": "TCP", "port": 80}, {"port": 81}]"#),
        ("ports", r#"[{"name": "http", "protocol": "GRE", "port": 80}]"#),
        ("ports", "5"),
        ("ipNATs", r#"[{"internalIP": "10.0.0.2", "externalIP": "1.2.3.4"}]"#),
        ("ipv4Gateway", r#""10.0.0.1""#),
        ("ipv6Gateway", r#""x""#),
        ("allowSpoofedSourcePrefixes", r#"["10.9.0.0/16"]"#),
        ("qosControls", "{}"),
        ("node", "5"),
        ("containerID", r#""c""#),
        ("other", "1"),
    ])
}

/// Members of metadata.
fn metadata() -> impl Strategy<Value = (&'static str, &'static str)> {
    prop::sample::select(vec![
        ("labels", r#"{"a": "b", "pcns.c": "d", "projectcalico.org/serviceaccount": "e"}"#),
        ("labels", r#"{"a b": "c"}"#),
        ("labels", r#"{"a": null}"#),
        ("labels", r#"{"a": 5}"#),
        ("labels", "null"),
        ("annotations", r#"{"a": "b"}"#),
        ("annotations", r#"{"a": 5}"#),
        ("creationTimestamp", "5"),
        ("creationTimestamp", "null"),
        ("deletionTimestamp", r#""2026-01-01T00:00:00Z""#),
        ("uid", "5"),
    ])
}

/// Formats members as they are, also several with one name.
fn json(members: &[(&str, &str)]) -> String {
    let members: Vec<String> = members.iter().map(|(name, value)| format!("\"{name}\": {value}")).collect();
    format!("{{{}}}", members.join(", "))
}

/// Objects of all kinds of this folder.
fn objects() -> [String; 9] {
    [
        (Kind::WorkloadEndpoint, "ns/n-k8s-p-eth0"),
        (Kind::HostEndpoint, "h"),
        (Kind::Profile, "p"),
        (Kind::GlobalNetworkPolicy, "g"),
        (Kind::NetworkPolicy, "ns/g"),
        (Kind::StagedNetworkPolicy, "ns/g"),
        (Kind::NetworkSet, "ns/s"),
        (Kind::GlobalNetworkSet, "s"),
        (Kind::Tier, "net"),
    ]
    .map(|(kind, name)| key(kind, name).to_string())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn an_endpoint_read_in_one_pass_is_the_one_read_by_member(
        spec in prop::collection::vec(member(), 0..5),
        metadata in prop::collection::vec(metadata(), 0..3),
        parts in prop::sample::select(vec!["ms", "s", "sm", "ss", "mms", "m", "n", "l", "t"]),
    ) {
        let usual = [("interfaceName", r#""cali1""#), ("ipNetworks", r#"["10.0.0.2/32"]"#)];
        let spec: Vec<(&str, &str)> = usual.into_iter().chain(spec).collect();
        let (spec, metadata) = (json(&spec), json(&metadata));
        let (usual, label) = (json(&usual), json(&[("labels", r#"{"x": "y"}"#)]));
        let of_part = |part| match part {
            'm' => ("metadata", metadata.as_str()),
            's' => ("spec", spec.as_str()),
            'n' => ("spec", "null"),
            'l' => ("spec", "[\"cali1\"]"),
            _ => ("status", "{}"),
        };
        let mut members: Vec<(&str, &str)> = vec![("metadata", &label), ("spec", &usual)];
        members.extend(parts.chars().map(of_part));
        let value = json(&members);
        if let Some(endpoint) = plain_endpoint(value.as_bytes()) {
            let object = Object::parse(key(Kind::WorkloadEndpoint, ENDPOINT), value.as_bytes(), 1, 1);
            prop_assert_eq!(object.ok().and_then(by_member), Some(endpoint), "{}", value);
        }
    }
}

/// What clients of Calico write for a pod is read in one pass.
#[test]
fn usual_endpoints_have_the_plain_form() {
    let value = json!({
        "kind": "WorkloadEndpoint", "apiVersion": "projectcalico.org/v3",
        "metadata": {
            "name": "n-k8s-p-eth0", "namespace": "ns", "uid": "1", "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"role": "web", "projectcalico.org/namespace": "ns"}, "annotations": {"a": "b"}
        },
        "spec": {
            "orchestrator": "k8s", "node": "n", "containerID": "c", "pod": "p", "endpoint": "eth0",
            "interfaceName": "cali1", "mac": "ee:ee:ee:ee:ee:ee", "ipNetworks": ["10.0.0.2/32", "fd00::2/128"],
            "profiles": ["kns.ns", "ksa.ns.default"], "serviceAccountName": "default",
            "ports": [{"name": "http", "protocol": "TCP", "port": 80, "hostPort": 0, "hostIP": ""}]
        }
    });
    let endpoint = plain_endpoint(value.to_string().as_bytes());
    assert!(endpoint.is_some());
    assert_eq!(by_member(object(Kind::WorkloadEndpoint, ENDPOINT, &value)), endpoint);
    assert_eq!(
        plain_endpoint(b"{\"spec\":{\"interfaceName\":\"cali1\",\"ipNetworks\":[\"10.0.0.2\"]}} x"),
        None
    );
}

proptest! {
    #[test]
    fn no_specification_causes_a_panic(
        kind in 0..9usize,
        member in prop::sample::select(vec!["ingress", "selector", "nets", "ipNetworks", "ports", "tier", "order", "labelsToApply", "node", "types"]),
        value in prop::sample::select(vec![
            json!(null), json!(5), json!("x"), json!([]), json!({}), json!([null]), json!([{}]), json!([[]]),
            json!([{"action": "Deny", "source": {"ports": [{}], "nets": [5]}, "protocol": {}, "icmp": []}]),
        ]),
    ) {
        let key = &objects()[kind];
        let value = json!({"spec": {member: value}}).to_string();
        let mut projection = Projection::new("n");
        projection.replace([RawEntry { key, value: value.as_bytes(), created: 1, revision: 1 }]);
    }
}
