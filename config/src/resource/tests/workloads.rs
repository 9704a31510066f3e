//! Endpoints, hosts, `Ready` and status reports.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::{inside, read, refused, rewritten};
use crate::resource::*;

const WORKLOAD: &str = "/calico/v1/host/h1/workload/k8s/default.web/endpoint/eth0";
const HOST: &str = "/calico/v1/host/h1/endpoint/eth0";

#[test]
fn the_specification_s_workload_endpoint() {
    let value = r#"{
        "state": "active", "name": "tap80", "mac": "EE:EE:EE:EE:EE:EE", "profile_ids": ["p1", "p2"],
        "ipv4_nat": [{"int_ip": "198.51.100.17", "ext_ip": "192.168.0.1"}],
        "ipv4_nets": ["198.51.100.17/32"],
        "ipv6_nat": [{"int_ip": "2001:db8::19", "ext_ip": "2001::2"}],
        "ipv6_nets": ["2001:db8::19/128"],
        "ipv4_gateway": "169.254.1.1", "ipv6_gateway": "fe80::1",
        "labels": {"role": "web", "empty": ""}, "active_instance_id": "ba11", "later": [1]
    }"#;
    let endpoint = *inside!(WorkloadEndpoint, read(WORKLOAD, value));
    assert!(endpoint.active);
    assert_eq!(endpoint.name.as_str(), "tap80");
    assert_eq!(endpoint.mac.unwrap().to_string(), "ee:ee:ee:ee:ee:ee");
    assert_eq!(endpoint.profile_ids, ["p1", "p2"]);
    let nets: Vec<String> = endpoint.nets().map(ToString::to_string).collect();
    assert_eq!(nets, ["198.51.100.17/32", "2001:db8::19/128"]);
    assert_eq!(endpoint.nats().count(), 2);
    assert_eq!(endpoint.labels["role"], "web");
    assert_eq!(endpoint.active_instance_id.as_deref(), Some("ba11"));
    let mut expected: Value = serde_json::from_str(value).unwrap();
    expected["mac"] = json!("ee:ee:ee:ee:ee:ee");
    assert_eq!(rewritten(WORKLOAD, value), expected);
}

#[test]
fn what_older_writers_left_out_or_wrote_otherwise() {
    let read = |value: &str| *inside!(WorkloadEndpoint, read(WORKLOAD, value));
    assert_eq!(read(r#"{"name": "cali1", "profile_id": "p"}"#).profile_ids, ["p"]);
    assert_eq!(read(r#"{"name": "cali1", "profile_id": "p", "profile_ids": ["q"]}"#).profile_ids, ["q"]);
    assert!(read(r#"{"name": "cali1", "profile_id": "p", "profile_ids": []}"#).profile_ids.is_empty());
    let bare = read(r#"{"name": "cali1", "mac": null, "ipv4_nets": null, "labels": null}"#);
    assert!(bare.mac.is_none() && bare.ipv4_nets.is_empty() && bare.labels.is_empty());
    assert!(!bare.active, "without a state: no traffic");
    assert!(!read(r#"{"name": "cali1", "state": "starting"}"#).active);
    assert_eq!(read(r#"{"name": "c", "mac": "1:2:3:a:b:c"}"#).mac, Some(MacAddr([1, 2, 3, 10, 11, 12])));
    assert_eq!(
        read(r#"{"name": "c", "ipv4_nets": ["10.0.0.0/29"]}"#).ipv4_nets.len(),
        1,
        "wider nets are routed"
    );
    let wide = read(r#"{"name": "c", "ipv6_nets": ["2001:db8:1::/64"]}"#).ipv6_nets;
    assert_eq!(wide.iter().map(ToString::to_string).collect::<Vec<_>>(), ["2001:db8:1::/64"]);
}

#[test]
fn a_mapping_from_a_foreign_address_is_left_out_alone_and_not_lost() {
    let value = r#"{
        "state": "active", "name": "cali1", "ipv4_nets": ["10.0.0.1/32"], "ipv6_nets": ["2001:db8:1::/64"],
        "ipv4_nat": [{"int_ip": "10.0.0.2", "ext_ip": "192.0.2.2"}, {"int_ip": "10.0.0.1", "ext_ip": "192.0.2.1"}],
        "ipv6_nat": [{"int_ip": "2001:db8:1::7", "ext_ip": "2001:db8::7"}, {"int_ip": "2001:db8::9", "ext_ip": "2001:db8::8"}]
    }"#;
    let endpoint = *inside!(WorkloadEndpoint, read(WORKLOAD, value));
    let text = |(inside, outside): (IpAddr, IpAddr)| format!("{outside}->{inside}");
    let (nats, stray): (Vec<_>, Vec<_>) =
        (endpoint.nats().map(text).collect(), endpoint.stray_nats().map(text).collect());
    assert_eq!(nats, ["192.0.2.1->10.0.0.1", "2001:db8::7->2001:db8:1::7"]);
    assert_eq!(stray, ["192.0.2.2->10.0.0.2", "2001:db8::8->2001:db8::9"]);
    let kept = rewritten(WORKLOAD, value);
    assert_eq!(kept["ipv4_nat"].as_array().unwrap().len() + kept["ipv6_nat"].as_array().unwrap().len(), 4);
}

#[test]
fn broken_endpoints_name_field_and_text() {
    for (value, says) in [
        ("{}", "`name`: found nothing"),
        (r#"{"name": "a/b"}"#, "`name`: found `a/b`"),
        (r#"{"name": "sixteen-bytes-ab"}"#, "1 to 15 bytes"),
        (r#"{"name": "c", "mac": "ee:ee"}"#, "`mac`: found `ee:ee`"),
        (r#"{"name": "c", "ipv4_nets": ["10.0.0.300/32"]}"#, "`ipv4_nets[0]`: found `10.0.0.300/32`"),
        (r#"{"name": "c", "ipv4_nets": ["10.0.0.3/24"]}"#, "without host bits"),
        (r#"{"name": "c", "ipv4_nets": ["fd00::1/128"]}"#, "`ipv4_nets[0]`"),
        (
            r#"{"name": "c", "ipv4_nets": "10.0.0.1/32"}"#,
            "`ipv4_nets`: found `\"10.0.0.1/32\"`; write a JSON list",
        ),
        (
            r#"{"name": "c", "ipv4_nets": ["10.0.0.1/32"], "ipv4_nat": [{"int_ip": "10.0.0.x", "ext_ip": "1.2.3.4"}]}"#,
            "`ipv4_nat[0].int_ip`: found `10.0.0.x`; write an address of the list's family",
        ),
        (r#"{"name": "c", "labels": {"a": 1}}"#, "`labels.a`: found `1`"),
        (r#"{"name": "c", "labels": {"a b": "x"}}"#, "`labels`: found `a b`"),
        (r#"{"name": "c", "profile_ids": ["p", 5]}"#, "`profile_ids[1]`: found `5`"),
    ] {
        let text = refused(WORKLOAD, value);
        assert!(text.contains(says), "{value}: {text}");
    }
}

#[test]
fn host_endpoints_have_a_name_or_addresses() {
    let value = r#"{"expected_ipv4_addrs": ["10.0.0.1"], "expected_ipv6_addrs": ["2201:db8::19"],
                    "profile_ids": ["p"], "labels": {"role": "edge"}}"#;
    let endpoint = *inside!(HostEndpoint, read(HOST, value));
    assert_eq!(endpoint.name, None);
    assert_eq!(endpoint.addrs().count(), 2);
    assert_eq!(rewritten(HOST, value), serde_json::from_str::<Value>(value).unwrap());
    assert!(inside!(HostEndpoint, read(HOST, r#"{"name": "eth0"}"#)).name.is_some());
    assert!(refused(HOST, "{}").contains("name the interface"));
    assert!(refused(HOST, r#"{"name": ""}"#).contains("name the interface"));
    assert!(
        refused(HOST, r#"{"expected_ipv4_addrs": ["x"]}"#).contains("`expected_ipv4_addrs[0]`: found `x`")
    );
}

#[test]
fn only_the_word_true_is_ready() {
    for (value, ready) in [("true", true), ("false", false), ("True", false), ("true\n", false), ("", false)]
    {
        assert_eq!(inside!(Ready, read("/calico/v1/Ready", value)), ready, "{value:?}");
    }
}

#[test]
fn hosts_and_their_other_names() {
    assert!(inside!(HostMetadata, read("/calico/v1/host/h1/metadata", "{}")).is_empty());
    assert_eq!(rewritten("/calico/v1/host/h1/metadata", r#"{"x": 1}"#), json!({"x": 1}));
    let key = "/calico/v1/host/h1/orchestrator_refs";
    let refs = inside!(OrchestratorRefs, read(key, r#"[{"orchestrator": "k8s", "nodeName": "n1"}]"#));
    assert_eq!((refs[0].orchestrator.as_str(), refs[0].node_name.as_str()), ("k8s", "n1"));
}

#[test]
fn reports() {
    let key = "/calico/felix/v1/host/h1/status";
    let value = r#"{"time": "2016-03-01T12:00:00Z", "uptime": 12.5, "first_update": true}"#;
    let status = inside!(AgentStatus, read(key, value));
    assert_eq!(status.uptime.as_millis(), 12_500);
    assert_eq!(rewritten(key, value), serde_json::from_str::<Value>(value).unwrap());
    assert!(refused(key, r#"{"uptime": -1}"#).contains("`uptime`"));
    let key = "/calico/felix/v1/host/h1/endpoint/eth0";
    assert_eq!(inside!(EndpointStatus, read(key, r#"{"status": "error"}"#)).state, EndpointState::Error);
    assert!(refused(key, r#"{"status": "fine"}"#).contains("found `fine`"));
    assert!(
        EndpointState::Error > EndpointState::Down && EndpointState::Down > EndpointState::Up,
        "worst wins"
    );
}

#[test]
fn keys_that_are_not_read_keep_their_bytes() {
    for key in ["/calico/v1/host/h1/config/marker", "/calico/dhcp/v1/subnet/1"] {
        assert_eq!(read(key, "created\u{0}").to_value(), "created\u{0}".as_bytes());
    }
}
