//! WorkloadEndpoint, HostEndpoint, Profile, network sets.

use serde_json::{Value, json};

use super::super::{built_in, host_endpoint, network_set, profile, unreadable, workload_key};
use super::{assert_unreadable, entries, key, object, only, problems, spec};
use crate::calico3::objects::Objects;
use crate::calico3::output::Output;
use crate::calico3::{Kind, Object};

const NAME: &str = "ns/n-k8s-pod-eth0";
const KEY: &str = "/calico/v1/host/n/workload/k8s/ns%2fpod/endpoint/eth0";

fn workload() -> Value {
    json!({"node": "n", "orchestrator": "k8s", "pod": "pod", "endpoint": "eth0", "interfaceName": "cali1",
           "ipNetworks": ["10.0.0.2/32"]})
}

fn workload_endpoint(object: Object) -> Output {
    let implied = workload_key(&object.key);
    super::super::workload_endpoint(object, implied)
}

/// Returns the specification with members replaced.
fn with(mut base: Value, members: &Value) -> Value {
    for (name, value) in members.as_object().unwrap() {
        base[name] = value.clone();
    }
    base
}

#[test]
fn every_member_of_a_workload_endpoint() {
    let spec = with(
        workload(),
        &json!({
            "ipNetworks": ["10.0.0.2/32", "10.0.0.3", "2001:db8::2/128", "10.1.2.3/24"],
            "ipNATs": [
                {"internalIP": "10.0.0.2", "externalIP": "1.2.3.4"},
                {"internalIP": "2001:db8::2", "externalIP": "2001:db8::3"}
            ],
            "ipv4Gateway": "10.0.0.1", "ipv6Gateway": "2001:db8::1/64",
            "mac": "EE-EE-EE-ee-ee-0a", "profiles": ["kns.ns", "ksa.ns.default"],
            "ports": [
                {"name": "http", "protocol": "TCP", "port": 80, "hostPort": 8080},
                {"protocol": "TCP", "port": 81, "hostPort": 8081},
                {"name": "p", "protocol": 132, "port": 1}
            ],
            "allowSpoofedSourcePrefixes": ["10.9.0.1/16", "10.8.0.1"],
            "serviceAccountName": "sa", "allowedIps": ["10.0.0.3"], "containerID": "c"
        }),
    );
    let labels = json!({"a": "b", "projectcalico.org/namespace": "ns", "pcns.a": "x", "pcsa.b": "y",
                        "projectcalico.org/serviceaccount": "other"});
    let value = json!({"metadata": {"labels": labels}, "spec": spec});
    let (key, value) = only(&workload_endpoint(object(Kind::WorkloadEndpoint, NAME, &value)));
    assert_eq!(key, KEY);
    assert_eq!(
        value,
        json!({
            "state": "active", "name": "cali1", "mac": "ee:ee:ee:ee:ee:0a",
            "profile_ids": ["kns.ns", "ksa.ns.default"],
            "ipv4_nets": ["10.0.0.2/32", "10.0.0.3/32", "10.1.2.0/24"], "ipv6_nets": ["2001:db8::2/128"],
            "ipv4_nat": [{"int_ip": "10.0.0.2", "ext_ip": "1.2.3.4"}],
            "ipv6_nat": [{"int_ip": "2001:db8::2", "ext_ip": "2001:db8::3"}],
            "ipv4_gateway": "10.0.0.1", "ipv6_gateway": "2001:db8::1",
            "labels": {"a": "b", "projectcalico.org/namespace": "ns", "projectcalico.org/serviceaccount": "sa"},
            "ports": [
                {"name": "http", "protocol": "tcp", "port": 80},
                {"name": "p", "protocol": "sctp", "port": 1}
            ],
            "allow_spoofed_source_ips": ["10.9.0.0/16", "10.8.0.1/32"]
        })
    );
}

#[test]
fn one_bad_member_removes_a_workload_endpoint() {
    for (members, why) in [
        (json!({"ipNetworks": ["10.0.0.2/32", "10.0.0.0/24/32"]}), "`spec.ipNetworks[1]`"),
        (json!({"ipNetworks": [5]}), "`spec.ipNetworks[0]`"),
        (json!({"ipv4Gateway": "x"}), "`spec.ipv4Gateway`"),
        (json!({"ipv6Gateway": "fe80::1%eth0"}), "`spec.ipv6Gateway`"),
        (json!({"mac": "ee:ee:ee:ee:ee"}), "`spec.mac`"),
        (json!({"mac": "e:e:e:e:e:e"}), "`spec.mac`"),
        (json!({"allowSpoofedSourcePrefixes": ["any"]}), "`spec.allowSpoofedSourcePrefixes[0]`"),
        (json!({"interfaceName": ""}), "`spec.interfaceName`"),
        (json!({"interfaceName": "much-too-long-a-name"}), "`spec.interfaceName`"),
        (json!({"profiles": [""]}), "`spec.profiles[0]`"),
        (json!({"ports": [{"name": "http", "protocol": "GRE", "port": 1}]}), "`spec.ports[0].protocol`"),
        (json!({"serviceAccountName": 5}), "`spec.serviceAccountName`"),
    ] {
        let output = workload_endpoint(spec(Kind::WorkloadEndpoint, NAME, &with(workload(), &members)));
        assert_eq!(output.entries, [], "{members}");
        let found = problems(&output);
        assert!(matches!(found.as_slice(), [("invalid-value", text)] if text.starts_with(why)), "{found:?}");
    }
    let unnamed = workload_endpoint(spec(Kind::WorkloadEndpoint, "ns/n-k8s-pod", &workload()));
    assert_eq!((unnamed.entries.len(), unnamed.problems.len()), (0, 1));
    // Without an address the endpoint is not complete yet, which is no problem.
    let incomplete = with(workload(), &json!({"ipNetworks": []}));
    let incomplete = workload_endpoint(spec(Kind::WorkloadEndpoint, NAME, &incomplete));
    assert_eq!((incomplete.entries.len(), incomplete.problems.len()), (0, 0));
}

#[test]
fn what_a_workload_endpoint_can_lack_is_a_problem_only() {
    let members = json!({
        "ipNATs": [{"internalIP": "10.0.0.2", "externalIP": "x"}, {"internalIP": "10.0.0.2", "externalIP": "::1"}],
        "mac": "00:00:5e:00:53:01:00:02", "qosControls": {"ingressBandwidth": 1000}
    });
    let value = json!({"metadata": {"labels": {"a b": "c", "d": "e"}}, "spec": with(workload(), &members)});
    let output = workload_endpoint(object(Kind::WorkloadEndpoint, NAME, &value));
    let found: Vec<_> =
        problems(&output).into_iter().map(|(code, text)| (code, text.get(..16).unwrap())).collect();
    let wanted = [
        ("invalid-value", "`spec.ipNATs[0]`"),
        ("invalid-value", "`spec.ipNATs[1]`"),
        ("invalid-value", "`spec.mac`: foun"),
        ("invalid-value", "label `a b`: no "),
        ("setting-not-in-force", "`spec.qosControl"),
    ];
    assert_eq!(found, wanted);
    let (_, value) = entries(&output).remove(0);
    assert_eq!(value["labels"], json!({"d": "e"}));
    assert_eq!((&value["mac"], value.get("ipv4_nat")), (&Value::Null, None));
}

#[test]
fn host_endpoints() {
    let spec_of = json!({"node": "n", "interfaceName": "eth0", "expectedIPs": ["10.0.0.1", "2001:db8::1"],
                         "profiles": ["p"], "ports": [{"name": "http", "protocol": "UDP", "port": 53}]});
    let value = json!({"metadata": {"labels": {"a": "b", "pcns.x": "y"}}, "spec": spec_of});
    let (key_of, value) = only(&host_endpoint(object(Kind::HostEndpoint, "n-eth0", &value)));
    assert_eq!(key_of, "/calico/v1/host/n/endpoint/n-eth0");
    assert_eq!(
        value,
        json!({"name": "eth0", "expected_ipv4_addrs": ["10.0.0.1"], "expected_ipv6_addrs": ["2001:db8::1"],
               "profile_ids": ["p"], "labels": {"a": "b", "pcns.x": "y"},
               "ports": [{"name": "http", "protocol": "udp", "port": 53}]})
    );
    let all = json!({"node": "n", "interfaceName": "*"});
    assert_eq!(only(&host_endpoint(spec(Kind::HostEndpoint, "all", &all))).1["name"], json!("*"));

    let skipped = json!({"node": "n", "interfaceName": "eth0", "expectedIPs": ["x", "10.0.0.1"]});
    let skipped = host_endpoint(spec(Kind::HostEndpoint, "h", &skipped));
    assert_eq!(entries(&skipped)[0].1["expected_ipv4_addrs"], json!(["10.0.0.1"]));
    assert!(problems(&skipped)[0].1.starts_with("`spec.expectedIPs[0]`"));

    for (spec_of, why) in [
        (json!({"node": "n", "expectedIPs": ["x"]}), "name the interface"),
        (json!({"node": "n"}), "name the interface"),
        (json!({"node": "n", "interfaceName": "much-too-long-a-name"}), "`spec.interfaceName`"),
        (json!({"node": "n", "interfaceName": "eth0", "ports": [{"name": "a"}]}), "`spec.ports[0]"),
        (json!({"node": "n", "interfaceName": "eth0", "profiles": "p"}), "`spec.profiles`"),
    ] {
        let output = host_endpoint(spec(Kind::HostEndpoint, "h", &spec_of));
        assert_unreadable(&output, "/calico/v1/host/n/endpoint/h", why);
    }
    let nowhere = host_endpoint(spec(Kind::HostEndpoint, "h", &json!({"interfaceName": "eth0"})));
    assert_eq!((nowhere.entries.len(), problems(&nowhere).len()), (0, 1));
}

#[test]
fn profiles() {
    let spec_of = json!({"ingress": [{"action": "Allow"}], "egress": [{"action": "Deny"}],
                         "labelsToApply": {"pcns.a": "b", "c": null}});
    let output = profile(spec(Kind::Profile, "kns.a", &spec_of));
    assert_eq!(
        entries(&output),
        [
            (
                "/calico/v1/policy/profile/kns.a/rules".to_owned(),
                json!({"inbound_rules": [{"action": "allow"}], "outbound_rules": [{"action": "deny"}]})
            ),
            ("/calico/v1/policy/profile/kns.a/labels".to_owned(), json!({"pcns.a": "b", "c": ""})),
        ]
    );
    let (key_of, value) = only(&profile(spec(Kind::Profile, "empty", &json!({}))));
    assert_eq!(key_of, "/calico/v1/policy/profile/empty/rules");
    assert_eq!(value, json!({"inbound_rules": [], "outbound_rules": []}));

    let (key_of, value) = only(&built_in(&Objects::default(), "n"));
    assert_eq!(key_of, "/calico/v1/policy/profile/projectcalico-default-allow/rules");
    let allow = json!([{"action": "allow"}]);
    assert_eq!(value, json!({"inbound_rules": allow, "outbound_rules": allow}));
    let written = profile(spec(Kind::Profile, "projectcalico-default-allow", &json!({"ingress": []})));
    assert_eq!((written.entries.len(), problems(&written).len()), (0, 1));

    let broken = profile(spec(Kind::Profile, "p", &json!({"ingress": 5, "labelsToApply": [5]})));
    assert_unreadable(&broken, "/calico/v1/policy/profile/p/rules", "`spec.ingress`");
    assert_unreadable(&broken, "/calico/v1/policy/profile/p/labels", "`spec.labelsToApply`");
}

#[test]
fn network_sets() {
    let value = json!({"metadata": {"labels": {"a": "b", "projectcalico.org/namespace": "other"}},
                       "spec": {"nets": ["10.1.2.3/24", "2001:db8::/32", "1.2.3.4"]}});
    let nets = json!(["10.1.2.0/24", "2001:db8::/32", "1.2.3.4/32"]);
    assert_eq!(
        only(&network_set(object(Kind::NetworkSet, "ns/s", &value))),
        (
            "/calico/tortie/v1/networkset/ns/s".to_owned(),
            json!({"nets": nets, "labels": {"a": "b", "projectcalico.org/namespace": "ns"},
                   "profile_ids": ["kns.ns"]})
        )
    );
    assert_eq!(
        only(&network_set(object(Kind::GlobalNetworkSet, "s", &value))),
        (
            "/calico/tortie/v1/globalnetworkset/s".to_owned(),
            json!({"nets": nets, "labels": {"a": "b", "projectcalico.org/namespace": "other"},
                   "profile_ids": []})
        )
    );
    let skipped = network_set(spec(Kind::GlobalNetworkSet, "s", &json!({"nets": ["x", "10.0.0.0/8", 5]})));
    assert_eq!(entries(&skipped)[0].1["nets"], json!(["10.0.0.0/8"]));
    assert_eq!(problems(&skipped).len(), 2);
}

#[test]
fn a_value_that_is_no_object_stays_unreadable_where_it_would_open_something() {
    for (kind, name, value, wanted) in [
        (Kind::HostEndpoint, "a-auto-hep", "{", Some("/calico/v1/host/a/endpoint/a-auto-hep")),
        (Kind::HostEndpoint, "h", "{\"spec\": {\"node\" : \"b\", ", Some("/calico/v1/host/b/endpoint/h")),
        (Kind::HostEndpoint, "h", "{", None),
        (Kind::Profile, "p", "", Some("/calico/v1/policy/profile/p/rules")),
        (Kind::Profile, "projectcalico-default-allow", "", None),
        (Kind::WorkloadEndpoint, NAME, "", None),
        (Kind::GlobalNetworkSet, "s", "[]", Some("/calico/tortie/v1/globalnetworkset/s")),
        (Kind::NetworkSet, "ns/s", "[]", Some("/calico/tortie/v1/networkset/ns/s")),
        (Kind::Tier, "t", "[]", Some("/calico/tortie/v1/tier/t")),
        (Kind::GlobalNetworkPolicy, "web", "", Some("/calico/v1/policy/tier/default/policy/web")),
        (Kind::GlobalNetworkPolicy, "net.web", "", Some("/calico/v1/policy/tier/net/policy/net.web")),
        (
            Kind::GlobalNetworkPolicy,
            "default.web",
            "",
            Some("/calico/v1/policy/tier/default/policy/default.web"),
        ),
        (
            Kind::NetworkPolicy,
            "ns/knp.default.a",
            "",
            Some("/calico/v1/policy/tier/default/policy/ns%2fknp.default.a"),
        ),
        (
            Kind::NetworkPolicy,
            "ns/a",
            "{\"metadata\": 5, \"spec\": {\"tier\": \"net\"}}",
            Some("/calico/v1/policy/tier/net/policy/ns%2fa"),
        ),
        (Kind::Node, "n", "", None),
    ] {
        let output = unreadable(&key(kind, name), value.as_bytes());
        let found: Vec<String> = output.entries.iter().map(|entry| entry.key.to_string()).collect();
        assert_eq!(found.first().map(String::as_str), wanted, "{kind:?} {name} {value}");
    }
}
