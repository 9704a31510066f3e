//! Tests of Nodes.

use serde_json::json;

use super::{spec, view};

const HOST: &str = "bgp/v1/host/n1/";

#[test]
fn a_node_gives_its_bgp_values_and_tunnel_addresses() {
    let node = spec(json!({
        "bgp": {
            "ipv4Address": "192.0.2.10/24",
            "ipv6Address": "2001:db8::10",
            "asNumber": "1.10",
            "routeReflectorClusterID": "244.0.0.1",
            "ipv4IPIPTunnelAddr": "10.0.0.1",
        },
        "ipv4VXLANTunnelAddr": "10.0.1.1",
        "ipv6VXLANTunnelAddr": "fd00::1",
        "vxlanTunnelMACAddr": "66:aa:bb:cc:dd:01",
        "vxlanTunnelMACAddrV6": "66:aa:bb:cc:dd:02",
    }));
    let view = view("n1", &[("nodes/n1", node)]);
    let get = |item: &str| view.get(&format!("{HOST}{item}"));
    assert_eq!(get("ip_addr_v4"), Some("192.0.2.10"));
    assert_eq!(get("network_v4"), Some("192.0.2.0/24"));
    assert_eq!(get("ip_addr_v6"), Some("2001:db8::10"));
    // An address without length is a network of its own.
    assert_eq!(get("network_v6"), Some("2001:db8::10/128"));
    assert_eq!(get("as_num"), Some("65546"));
    assert_eq!(get("rr_cluster_id"), Some("244.0.0.1"));
    let setting = |name: &str| view.get(&format!("v1/host/n1/config/{name}"));
    assert_eq!(setting("IpInIpTunnelAddr"), Some("10.0.0.1"));
    assert_eq!(setting("IPv4VXLANTunnelAddr"), Some("10.0.1.1"));
    assert_eq!(setting("IPv6VXLANTunnelAddr"), Some("fd00::1"));
    assert_eq!(setting("VXLANTunnelMACAddr"), Some("66:aa:bb:cc:dd:01"));
    assert_eq!(setting("VXLANTunnelMACAddrV6"), Some("66:aa:bb:cc:dd:02"));
    assert_eq!(view.origins[&format!("{HOST}as_num")], ["nodes/n1"]);
    assert_eq!(view.problems, []);
}

#[test]
fn a_node_without_addresses_is_known_all_the_same() {
    for node in [spec(json!({})), spec(json!({ "bgp": { "asNumber": 64513 } }))] {
        let view = view("n1", &[("nodes/n1", node)]);
        for item in ["ip_addr_v4", "ip_addr_v6", "rr_cluster_id"] {
            assert_eq!(view.get(&format!("{HOST}{item}")), Some(""));
        }
        assert_eq!(view.get(&format!("{HOST}network_v4")), None);
    }
}

#[test]
fn members_that_are_not_valid_are_named_and_left_to_the_model() {
    let node = spec(json!({ "bgp": {
        "ipv4Address": "2001:db8::1/64",
        "ipv6Address": "fd00::1/200",
        "asNumber": "many",
        "routeReflectorClusterID": "one",
    } }));
    let view = view("n1", &[("nodes/n1", node)]);
    assert_eq!(view.codes(), [("nodes/n1", "invalid-value"); 4]);
    assert_eq!(view.get(&format!("{HOST}ip_addr_v4")), Some("2001:db8::1/64"));
    assert_eq!(view.get(&format!("{HOST}network_v4")), None);
    assert_eq!(view.get(&format!("{HOST}as_num")), Some("many"));
    assert!(view.problems[0].2.contains("spec.bgp."), "{:?}", view.problems);
}
