//! Tests of the conversion: objects of each kind, what is left out, and names that clash.

use serde_json::{Value, json};

use super::*;
use crate::calico3::{Kind, ObjectKey};

fn converted(entries: &[(&str, &str)]) -> Converted {
    let full: Vec<(String, &str)> =
        entries.iter().map(|(key, value)| (format!("/calico/{key}"), *value)).collect();
    convert(full.iter().map(|(key, value)| (key.as_str(), value.as_bytes())))
}

/// Returns the `spec` of the only object of a kind, with its name.
fn only(found: &Converted, kind: Kind) -> (String, Value) {
    let of_kind: Vec<_> = found.objects.values().filter(|object| object.key.kind == kind).collect();
    let [object] = of_kind.as_slice() else { panic!("{kind:?}: {of_kind:?}") };
    let namespace = object.key.namespace.as_deref().map_or_else(String::new, |name| format!("{name}/"));
    (format!("{namespace}{}", object.key.name), Value::Object(object.spec.clone()))
}

fn weights(found: &Converted) -> Vec<(Weight, &str)> {
    found
        .findings
        .iter()
        .map(|finding| (finding.weight, finding.about.trim_start_matches("/calico/")))
        .collect()
}

#[test]
fn a_host_is_a_node_with_the_length_of_its_network() {
    let found = converted(&[
        ("bgp/v1/host/Rack1/ip_addr_v4", "192.0.2.10"),
        ("bgp/v1/host/Rack1/network_v4", "192.0.2.0/24"),
        ("bgp/v1/host/Rack1/ip_addr_v6", "2001:db8::10"),
        ("bgp/v1/host/Rack1/as_num", "64513"),
        ("v1/host/Rack1/config/IpInIpTunnelAddr", "10.65.0.1"),
        ("v1/host/Rack1/metadata", "{}"),
        ("v1/host/Rack1/orchestrator_refs", r#"[{"orchestrator":"k8s","nodeName":"r1"}]"#),
    ]);
    let spec = json!({
        "bgp": {
            "ipv4Address": "192.0.2.10/24", "ipv6Address": "2001:db8::10/128", "asNumber": 64513,
            "ipv4IPIPTunnelAddr": "10.65.0.1",
        },
        "orchRefs": [{"nodeName": "r1", "orchestrator": "k8s"}],
    });
    assert_eq!(only(&found, Kind::Node), ("rack1".to_owned(), spec));
    assert!(found.is_complete());
    assert_eq!(found.names, [Renamed { kind: "Node", from: "Rack1".into(), to: "rack1".into() }]);
    let clash = converted(&[("v1/host/a/metadata", "{}"), ("v1/host/A/metadata", "{}")]);
    assert!(!clash.is_complete(), "{:?}", clash.findings);
}

#[test]
fn values_of_bgp_are_configurations_and_peers() {
    let found = converted(&[
        ("bgp/v1/global/as_num", "64520"),
        ("bgp/v1/global/node_mesh", r#"{"enabled":false}"#),
        ("bgp/v1/global/loglevel", "debug"),
        ("bgp/v1/host/h1/peer_v4/192.0.2.1", r#"{"ip":"192.0.2.1","as_num":"64514"}"#),
    ]);
    let spec = json!({"asNumber": 64520, "nodeToNodeMeshEnabled": false, "logSeverityScreen": "Debug"});
    assert_eq!(only(&found, Kind::BGPConfiguration), ("default".to_owned(), spec));
    let peer = json!({"node": "h1", "peerIP": "192.0.2.1", "asNumber": 64514});
    assert_eq!(only(&found, Kind::BGPPeer), ("h1.192-0-2-1".to_owned(), peer));
    // A session never loses its password.
    let key = "bgp/v1/global/peer_v6/2001:db8::1";
    let value = |more: &str| format!(r#"{{"ip":"2001:db8::1","as_num":"64514",{more}}}"#);
    let secret = |more: &str| {
        let found = converted(&[(key, &value(more))]);
        let (name, spec) = only(&found, Kind::BGPPeer);
        assert_eq!(name, "2001-0db8-0000-0000-0000-0000-0000-0001");
        (spec["password"]["secretKeyRef"].clone(), weights(&found).len())
    };
    let of_file = secret(r#""password_file":"/etc/tortie/secrets/tor/key""#);
    assert_eq!(of_file, (json!({"name": "tor", "key": "key"}), 0));
    let (inline, findings) = secret(r#""password":"hunter2""#);
    assert_eq!((inline["key"].as_str(), findings), (Some("password"), 1));
    let found = converted(&[(key, &value(r#""password":"hunter2""#))]);
    assert!(!format!("{found:?}").contains("hunter2"));
}

#[test]
fn a_pool_has_the_modes_of_calico_3() {
    let found = converted(&[(
        "v1/ipam/v4/pool/10.1.0.0-16",
        r#"{"cidr":"10.1.0.0/16","ipip":"tunl0","ipip_mode":"cross-subnet","masquerade":true}"#,
    )]);
    let spec = json!({
        "cidr": "10.1.0.0/16", "ipipMode": "CrossSubnet", "vxlanMode": "Never", "natOutgoing": true,
        "disabled": false, "blockSize": 26, "nodeSelector": "all()",
    });
    assert_eq!(only(&found, Kind::IPPool), ("10-1-0-0-16".to_owned(), spec));
}

#[test]
fn the_vxlan_of_a_v1_store_is_that_of_calico_3() {
    let found = converted(&[
        ("v1/ipam/v6/pool/fd00::-64", r#"{"cidr":"fd00::/64","vxlan_mode":"cross-subnet"}"#),
        ("v1/host/h1/config/IPv4VXLANTunnelAddr", "10.65.0.1"),
        ("v1/host/h1/config/IPv6VXLANTunnelAddr", "fd00::9"),
        ("v1/host/h1/config/VXLANTunnelMACAddr", "66:00:00:00:00:01"),
        ("v1/host/h1/config/VXLANTunnelMACAddrV6", "66:00:00:00:00:02"),
        // Only a host has a tunnel address.
        ("v1/config/IPv4VXLANTunnelAddr", "10.65.0.1"),
    ]);
    let (_, pool) = only(&found, Kind::IPPool);
    assert_eq!((&pool["ipipMode"], &pool["vxlanMode"]), (&json!("Never"), &json!("CrossSubnet")));
    let node = json!({
        "ipv4VXLANTunnelAddr": "10.65.0.1", "ipv6VXLANTunnelAddr": "fd00::9",
        "vxlanTunnelMACAddr": "66:00:00:00:00:01", "vxlanTunnelMACAddrV6": "66:00:00:00:00:02",
    });
    assert_eq!(only(&found, Kind::Node), ("h1".to_owned(), node));
    assert_eq!(weights(&found), [(Weight::Lost, "v1/config/IPv4VXLANTunnelAddr")]);
}

#[test]
fn a_policy_keeps_its_rules() {
    let value = r#"{"selector":"calico/k8s_ns == 'prod'","order":10,"inbound_rules":[
        {"action":"next-tier","protocol":"icmpv6","icmp_type":128},
        {"action":"allow","protocol":"tcp","src_tag":"web","src_selector":"a == 'b'","!src_tag":"c","!src_selector":"d == 'e'",
         "dst_ports":[80,"8080:8090"],"src_net":"10.0.0.0/8"}],"outbound_rules":[]}"#;
    let found = converted(&[("v1/policy/tier/default/policy/web", value)]);
    let spec = json!({
        "order": 10,
        "selector": "projectcalico.org/namespace == \"prod\"",
        "types": ["Ingress", "Egress"],
        "ingress": [
            {"action": "Pass", "protocol": "ICMPv6", "icmp": {"type": 128}},
            {
                "action": "Allow", "protocol": "TCP",
                "source": {
                    "nets": ["10.0.0.0/8"],
                    "selector": "(a == \"b\") && web == ''",
                    "notSelector": "(d == \"e\") || c == ''",
                },
                "destination": {"ports": [80, "8080:8090"]},
            },
        ],
    });
    assert_eq!(only(&found, Kind::GlobalNetworkPolicy), ("default.web".to_owned(), spec));
    let rest = r#""inbound_rules":[],"outbound_rules":[]"#;
    let pre_dnat = format!(r#"{{"selector":"all()","pre_dnat":true,{rest}}}"#);
    let found = converted(&[
        ("v1/policy/tier/Sec/policy/p.q", &pre_dnat),
        ("v1/policy/tier/Sec/metadata", r#"{"order":5}"#),
        ("v1/policy/tier/default/policy/knp.default.x", &pre_dnat),
    ]);
    let (name, spec) = only(&found, Kind::GlobalNetworkPolicy);
    assert_eq!(name, format!("sec.{}", names::policy("p.q")));
    assert_eq!(
        (&spec["tier"], &spec["types"], &spec["applyOnForward"]),
        (&json!("sec"), &json!(["Ingress"]), &json!(true))
    );
    let tier = json!({"order": 5, "defaultAction": "Deny"});
    assert_eq!(only(&found, Kind::Tier), ("sec".to_owned(), tier));
    assert!(found.is_complete());
}

#[test]
fn tags_of_a_profile_are_labels_with_an_empty_value() {
    let found = converted(&[
        ("v1/policy/profile/Web/rules", r#"{"inbound_rules":[{"action":"allow"}],"outbound_rules":[]}"#),
        ("v1/policy/profile/Web/tags", r#"["web"]"#),
        ("v1/policy/profile/Web/labels", r#"{"role":"front"}"#),
        ("v1/policy/profile/k8s_ns.prod/rules", r#"{"inbound_rules":[],"outbound_rules":[]}"#),
        ("v1/policy/profile/openstack-sg-1/tags", r#"["x"]"#),
    ]);
    let spec = json!({
        "ingress": [{"action": "Allow"}], "egress": [], "labelsToApply": {"role": "front", "web": ""},
    });
    assert_eq!(only(&found, Kind::Profile), (names::profile("Web"), spec));
    assert!(found.is_complete());
    let both =
        [("v1/policy/profile/w/tags", r#"["role"]"#), ("v1/policy/profile/w/labels", r#"{"role":"x"}"#)];
    assert!(!converted(&both).is_complete());
}

#[test]
fn endpoints_have_the_names_that_clients_compute() {
    let value = r#"{"state":"active","name":"cali0","mac":"02:00:00:00:00:01","profile_ids":["k8s_ns.prod"],
        "ipv4_nets":["10.1.0.2/32"],"ipv6_nets":[],"labels":{"calico/k8s_ns":"prod"},"active_instance_id":"0a"}"#;
    let of = |orchestrator: &str, workload: &str| {
        let key = format!("v1/host/rack-1/workload/{orchestrator}/{workload}/endpoint/eth0");
        converted(&[(&key, value)])
    };
    let found = of("k8s", "prod.web-0");
    let spec = json!({
        "node": "rack-1", "orchestrator": "k8s", "endpoint": "eth0", "pod": "web-0", "containerID": "0a",
        "interfaceName": "cali0", "mac": "02:00:00:00:00:01", "ipNetworks": ["10.1.0.2/32"],
        "profiles": ["kns.prod"],
    });
    assert_eq!(only(&found, Kind::WorkloadEndpoint), ("prod/rack--1-k8s-web--0-eth0".to_owned(), spec));
    let labels = &found.objects.values().find(|o| o.key.kind == Kind::WorkloadEndpoint).unwrap().labels;
    let labels: Vec<(&str, &str)> =
        labels.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
    let expected = [("projectcalico.org/namespace", "prod"), ("projectcalico.org/orchestrator", "k8s")];
    assert_eq!(labels, expected);
    let name = |found: &Converted| only(found, Kind::WorkloadEndpoint).0;
    assert_eq!(name(&of("cni", "0a1b")), "default/rack--1-cni-0a1b-eth0");
    assert_eq!(name(&of("libnetwork", "0a1b")), "default/rack--1-libnetwork-libnetwork-eth0");
    assert_eq!(name(&of("kurma", "w")), "default/rack--1-kurma-w-eth0");
    assert!(!of("k8s", "web").is_complete());
    assert!(of("openstack", "w").objects.keys().all(|key| key.kind != Kind::WorkloadEndpoint));
    let inactive = value.replace("active\",\"name", "inactive\",\"name");
    let found = converted(&[("v1/host/h/workload/cni/w/endpoint/e", &inactive)]);
    assert_eq!(weights(&found), [(Weight::Lost, "v1/host/h/workload/cni/w/endpoint/e")]);
    let host = converted(&[(
        "v1/host/h1/endpoint/Eth0",
        r#"{"name":"eth0","profile_ids":["p"],"labels":{"a":"b"}}"#,
    )]);
    let spec = json!({"node": "h1", "interfaceName": "eth0", "profiles": ["p"]});
    assert_eq!(only(&host, Kind::HostEndpoint), (names::host_endpoint("h1", "Eth0"), spec));
}

#[test]
fn what_is_less_strict_in_calico_3_is_noted() {
    let found = converted(&[
        ("v1/host/h1/endpoint/e", r#"{"name":"eth0"}"#),
        ("v1/policy/profile/closed/tags", r#"["t"]"#),
        ("v1/policy/profile/open/rules", r#"{"inbound_rules":[],"outbound_rules":[]}"#),
        ("v1/policy/profile/open/tags", r#"["t"]"#),
        (
            "bgp/v1/global/prefix_advertisements/ip_v4",
            r#"[{"cidr":"203.0.113.0/24","communities":["65000:1"]}]"#,
        ),
    ]);
    let expected = [
        (Weight::Note, "bgp/v1/global/prefix_advertisements/ip_v4"),
        (Weight::Note, "v1/host/h1/endpoint/e"),
        (Weight::Note, "v1/policy/profile/closed/tags"),
    ];
    assert_eq!(weights(&found), expected);
}

#[test]
fn settings_have_the_forms_of_calico_3() {
    let found = converted(&[
        ("v1/config/InterfacePrefix", "cali,tap"),
        ("v1/config/ReportingIntervalSecs", "0.5"),
        ("v1/config/IpInIpMtu", "1400"),
        ("v1/config/LogSeverityScreen", "loud"),
        ("v1/config/DefaultEndpointToHostAction", "RETURN"),
        ("v1/config/FailsafeInboundHostPorts", "none"),
        ("v1/config/FailsafeOutboundHostPorts", "53,udp:53"),
        ("v1/config/IptablesMarkMask", "0xff000000"),
        ("v1/config/IpamLeakGracePeriodSecs", "600"),
        ("v1/config/ClusterGUID", "0a"),
        ("v1/config/Nonsense", "1"),
        ("v1/Ready", "true"),
    ]);
    let spec = json!({
        "interfacePrefix": "cali,tap", "reportingInterval": "500ms", "ipipMTU": 1400,
        "defaultEndpointToHostAction": "Return", "failsafeInboundHostPorts": [],
        "failsafeOutboundHostPorts": [{"protocol": "TCP", "port": 53}, {"protocol": "UDP", "port": 53}],
        "iptablesMarkMask": 4_278_190_080_u32,
    });
    let (name, found_spec) = only(&found, Kind::FelixConfiguration);
    assert_eq!((name.as_str(), found_spec), ("default", spec));
    let felix = &found.objects[&ObjectKey::global(Kind::FelixConfiguration, "default")];
    assert_eq!(felix.annotations["config.projectcalico.org/IpamLeakGracePeriodSecs"], "600");
    let cluster = json!({"clusterGUID": "0a", "datastoreReady": true});
    assert_eq!(only(&found, Kind::ClusterInformation).1, cluster);
    // `loud` is no severity, which the store of v1 refuses, too.
    let expected = [(Weight::Error, "v1/config/LogSeverityScreen"), (Weight::Lost, "v1/config/Nonsense")];
    assert_eq!(weights(&found), expected);
}

#[test]
fn ipam_keeps_its_keys_with_the_new_names_of_hosts() {
    let block = r#"{"cidr":"10.1.0.0/32","affinity":"host:H1","allocations":[null],"unallocated":[0],"attributes":[]}"#;
    let found = converted(&[
        ("ipam/v2/assignment/ipv4/block/10.1.0.0-32", block),
        ("ipam/v2/host/H1/ipv4/block/10.1.0.0-32", r#"{"state":"confirmed"}"#),
        ("ipam/v2/config", r#"{"strict_affinity":true}"#),
        ("ipam/v2/handle/x", r#"{"block":{"10.1.0.0/32":1}}"#),
    ]);
    let keys: Vec<&str> = found.kept.keys().map(|key| key.trim_start_matches("/calico/ipam/v2/")).collect();
    let expected =
        ["assignment/ipv4/block/10.1.0.0-32", "config", "handle/x", "host/h1/ipv4/block/10.1.0.0-32"];
    assert_eq!(keys, expected);
    let value: Value =
        serde_json::from_slice(&found.kept["/calico/ipam/v2/assignment/ipv4/block/10.1.0.0-32"]).unwrap();
    assert_eq!(value["affinity"], "host:h1");
}

#[test]
fn an_object_has_the_envelope_of_calico_3() {
    let found = converted(&[("v1/ipam/v4/pool/10.1.0.0-16", r#"{"cidr":"10.1.0.0/16"}"#)]);
    let object = &found.objects[&ObjectKey::global(Kind::IPPool, "10-1-0-0-16")];
    let value = object.value(Some(("0a", "2026-01-01T00:00:00Z")));
    assert_eq!((&value["kind"], &value["apiVersion"]), (&json!("IPPool"), &json!("projectcalico.org/v3")));
    let metadata = json!({"name": "10-1-0-0-16", "uid": "0a", "creationTimestamp": "2026-01-01T00:00:00Z"});
    assert_eq!(value["metadata"], metadata);
    let read = crate::calico3::Object::parse(object.key.clone(), value.to_string().as_bytes(), 1, 1).unwrap();
    assert_eq!(read.spec, object.spec);
}
