//! Tests of BGPConfigurations.

use serde_json::{Value, json};

use super::{spec, view};
use crate::Resource;

const GLOBAL: &str = "bgp/v1/global/";

fn global(members: Value) -> super::View {
    view("n1", &[("bgpconfigurations/default", spec(members))])
}

#[test]
fn members_have_their_v1_keys() {
    for (members, item, expected) in [
        (json!({ "asNumber": 64999 }), "as_num", "64999"),
        (json!({ "asNumber": "1.10" }), "as_num", "65546"),
        (json!({ "listenPort": 1790 }), "listen_port", "1790"),
        (json!({ "logSeverityScreen": "Debug" }), "loglevel", "debug"),
        (json!({ "logSeverityScreen": "Info" }), "loglevel", "info"),
        (json!({ "logSeverityScreen": "Warning" }), "loglevel", "none"),
        (json!({ "nodeToNodeMeshEnabled": false }), "node_mesh", r#"{"enabled":false}"#),
        (json!({ "nodeToNodeMeshEnabled": true }), "node_mesh", r#"{"enabled":true}"#),
    ] {
        let view = global(members.clone());
        assert_eq!(view.keys(GLOBAL), [format!("{GLOBAL}{item}")], "{members}");
        assert_eq!(view.get(&format!("{GLOBAL}{item}")), Some(expected), "{members}");
        assert_eq!(view.problems, []);
    }
    assert_eq!(global(json!({})).keys(""), view("n1", &[]).keys(""));
}

#[test]
fn the_mesh_has_its_password_or_is_off() {
    let mesh = |members: Value| match global(members).resource("bgp/v1/global/node_mesh") {
        Resource::NodeMesh(mesh) => mesh,
        other => panic!("{other:?}"),
    };
    let password = json!({ "secretKeyRef": { "name": "bgp", "key": "mesh" } });
    let with = mesh(json!({ "nodeMeshPassword": password }));
    assert!(with.enabled);
    let file = crate::resource::Password::File("/etc/tortie/secrets/bgp/mesh".into());
    assert_eq!(with.password, Some(file));
    for password in [
        json!({}),
        json!("secret"),
        json!({ "secretKeyRef": { "name": "bgp" } }),
        json!({ "secretKeyRef": { "name": "..", "key": "mesh" } }),
        json!({ "secretKeyRef": { "name": "bgp", "key": "../../shadow" } }),
    ] {
        assert!(!mesh(json!({ "nodeMeshPassword": password })).enabled, "{password}");
    }
}

#[test]
fn prefix_advertisements_have_communities_by_value_or_name() {
    let view = global(json!({
        "communities": [{ "name": "gold", "value": "65000:200" }, { "name": "large", "value": "65000:1:2" }],
        "prefixAdvertisements": [
            { "cidr": "10.0.0.0/16", "communities": ["large", "gold", "65000:100", "unknown"] },
            { "cidr": "fd00::/64", "communities": ["gold"] },
            { "cidr": "nowhere", "communities": ["gold"] },
        ],
    }));
    assert_eq!(
        view.json("bgp/v1/global/prefix_advertisements/ip_v4"),
        json!([{ "cidr": "10.0.0.0/16", "communities": ["65000:100", "65000:1:2", "65000:200"] }])
    );
    assert_eq!(
        view.json("bgp/v1/global/prefix_advertisements/ip_v6"),
        json!([{ "cidr": "fd00::/64", "communities": ["65000:200"] }])
    );
    assert_eq!(view.codes(), [("bgpconfigurations/default", "invalid-value"); 2]);
}

#[test]
fn of_a_host_only_level_port_and_advertisements_count() {
    let members = json!({
        "logSeverityScreen": "Debug", "listenPort": 1790, "asNumber": 64999, "nodeToNodeMeshEnabled": false,
        "prefixAdvertisements": [{ "cidr": "10.0.0.0/16", "communities": ["65000:1"] }],
    });
    let view = view("n1", &[("bgpconfigurations/node.n2", spec(members))]);
    let items = ["listen_port", "loglevel", "prefix_advertisements/ip_v4", "prefix_advertisements/ip_v6"];
    assert_eq!(view.keys("bgp/"), items.map(|item| format!("bgp/v1/host/n2/{item}")));
    assert_eq!(
        view.json("bgp/v1/host/n2/prefix_advertisements/ip_v6"),
        json!([]),
        "they replace both global lists"
    );
    assert_eq!(view.codes(), [("bgpconfigurations/node.n2", "setting-not-in-force"); 2]);
}

#[test]
fn another_name_does_not_count() {
    let view = view("n1", &[("bgpconfigurations/mine", spec(json!({ "asNumber": 64999 })))]);
    assert_eq!(view.keys("bgp/"), Vec::<&str>::new());
    assert_eq!(view.codes(), [("bgpconfigurations/mine", "setting-noted")]);
}

#[test]
fn the_rest_keeps_calico_3s_spelling() {
    let members = json!({
        "bindMode": "NodeIP",
        "serviceClusterIPs": [{ "cidr": "10.96.0.0/12" }],
        "serviceExternalIPs": [{ "cidr": "192.0.2.0/24" }],
        "serviceLoadBalancerIPs": [{ "cidr": "198.51.100.0/24" }],
        "serviceLoadBalancerAggregation": "Disabled",
        "ignoredInterfaces": ["eth9", "docker*"],
        "programClusterRoutes": "Enabled",
        "ipv4NormalRoutePriority": 1024,
        "ipv6NormalRoutePriority": 2048,
        "nodeMeshMaxRestartTime": "2m0s",
    });
    let view = global(members.clone());
    assert_eq!(view.json("tortie/v1/bgpconfiguration"), members);
    assert_eq!(view.problems, []);
    for mode in ["EnabledIPIPOnly", "EnabledNoEncapOnly", "Disabled"] {
        assert_eq!(global(json!({ "programClusterRoutes": mode })).problems, [], "{mode}");
    }
    let bad = global(json!({
        "bindMode": "Somewhere", "programClusterRoutes": "Perhaps", "ipv4NormalRoutePriority": 0,
        "serviceClusterIPs": [{ "cidr": "x" }], "ignoredInterfaces": [7],
    }));
    assert_eq!(bad.get("tortie/v1/bgpconfiguration"), None);
    assert_eq!(bad.codes(), [("bgpconfigurations/default", "invalid-value"); 5]);
}

#[test]
fn a_node_that_is_excluded_from_load_balancers_announces_no_services() {
    let label = json!({ "node.kubernetes.io/exclude-from-external-load-balancers": "true" });
    let objects = [
        ("nodes/n1", super::host("192.0.2.1/24", label)),
        ("bgpconfigurations/default", spec(json!({ "serviceClusterIPs": [{ "cidr": "10.96.0.0/12" }] }))),
    ];
    let key = "tortie/v1/bgpconfiguration";
    let excluded = view("n1", &objects);
    assert_eq!(excluded.json(key)["announcesServices"], false);
    assert_eq!(excluded.origins[key], ["bgpconfigurations/default", "nodes/n1"]);
    assert_eq!(view("n2", &objects).json(key).get("announcesServices"), None);
}
