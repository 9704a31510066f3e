//! Whole agents on a Calico 3 store: each registers its Node, gets its tunnel addresses from the pools, forms the
//! mesh and announces its blocks; an operator's members survive, a restart writes nothing, and a locked store
//! freezes all that write.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::common::hosts::{Hosts, PATIENCE, Plan, block, block_keys, stderr, stdout, within};

const OBJECTS: &str = "/calico/resources/v3/projectcalico.org";
const CLUSTER: &str = "/calico/resources/v3/projectcalico.org/clusterinformations/default";

fn object(plural: &str, name: &str, spec: &Value) -> (String, String) {
    let value = json!({
        "kind": "Any", "apiVersion": "projectcalico.org/v3",
        "metadata": {"name": name, "uid": "0b5e8a6e-0000-4000-8000-000000000000", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": spec,
    });
    (format!("{OBJECTS}/{plural}/{name}"), value.to_string())
}

/// A Node as an operator made it, with members that no version of Tortie knows.
const NODE_1: &str = r#"{"kind":"Node","apiVersion":"projectcalico.org/v3","future":{"x":1.10},"metadata":{"name":"host1","uid":"u1","creationTimestamp":"2026-01-01T00:00:00Z","labels":{"rack":"1"},"odd":[1, 2]},"spec":{"bgp":{"ipv4Address":"172.30.0.1/24","odd":1.50},"orchRefs":[{"nodeName":"k1","orchestrator":"k8s"}],"odd":{"a":null}}}"#;

/// Texts of the members that must stay as they are.
const KEPT: &[&str] = &[
    r#""future":{"x":1.10}"#,
    r#""odd":[1, 2]"#,
    r#""odd":1.50"#,
    r#""orchRefs":[{"nodeName":"k1","orchestrator":"k8s"}]"#,
    r#""odd":{"a":null}"#,
    r#""labels":{"rack":"1"}"#,
];

fn data() -> BTreeMap<String, String> {
    let mut data = BTreeMap::from([
        object(
            "clusterinformations",
            "default",
            &json!({"clusterType": "openstack", "datastoreReady": true}),
        ),
        object("ippools", "plain", &json!({"cidr": "10.244.0.0/16", "ipipMode": "Never"})),
        object("ippools", "vxlan", &json!({"cidr": "10.245.0.0/24", "blockSize": 28, "vxlanMode": "Always"})),
        object("ippools", "ipip", &json!({"cidr": "10.246.0.0/24", "blockSize": 28, "ipipMode": "Always"})),
        // Neither its selector nor the uses of the second fit a tunnel of these hosts.
        object(
            "ippools",
            "a-rack",
            &json!({"cidr": "10.0.1.0/24", "vxlanMode": "Always", "nodeSelector": "rack == '9'"}),
        ),
        object(
            "ippools",
            "a-use",
            &json!({"cidr": "10.0.2.0/24", "vxlanMode": "Always", "allowedUses": ["Workload"]}),
        ),
        object(
            "felixconfigurations",
            "default",
            &json!({"reportingInterval": "1s", "reportingTTL": "5s", "endpointReportingEnabled": true}),
        ),
        (format!("{OBJECTS}/nodes/host1"), NODE_1.to_owned()),
    ]);
    for host in [1, 2] {
        let (cidr, name) = (format!("10.244.{host}.0/26"), format!("host{host}"));
        let [affinity, assignment] = block_keys(&cidr, &name);
        data.insert(affinity, r#"{"state":"confirmed"}"#.to_owned());
        data.insert(assignment, block(&cidr, &name));
    }
    data
}

fn try_get(hosts: &Hosts, key: &str) -> Option<String> {
    let output = hosts.store(&["get", key]);
    output.status.success().then(|| stdout(&output))
}

fn get(hosts: &Hosts, key: &str) -> String {
    try_get(hosts, key).unwrap_or_else(|| panic!("{key} does not exist"))
}

fn node(hosts: &Hosts, host: usize) -> Value {
    try_get(hosts, &format!("{OBJECTS}/nodes/host{host}"))
        .and_then(|text| serde_json::from_str(&text).ok())
        .unwrap_or_default()
}

/// Returns all that only registration, IPAM and an operator write.
fn settled(hosts: &Hosts) -> BTreeMap<String, Value> {
    let output = hosts.store(&["export"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let mut all: BTreeMap<String, Value> = serde_json::from_str(&stdout(&output)).unwrap();
    all.retain(|key, _| key.starts_with("/calico/resources/") || key.starts_with("/calico/ipam/"));
    all
}

fn two_hosts(etcd: usize) -> Option<Hosts> {
    let flags = [(2, "--ip4 172.30.0.2/24".to_owned())].into();
    Hosts::up(Plan { hosts: 2, etcd, flags, data: Some(data()), ..Plan::default() })
}

/// Returns an error until a host has both tunnel addresses, each from the pool that fits.
fn has_tunnel_addresses(hosts: &Hosts, host: usize) -> Result<(), String> {
    let node = node(hosts, host);
    let starts = |member: &Value, start: &str| member.as_str().is_some_and(|addr| addr.starts_with(start));
    let right = starts(&node["spec"]["ipv4VXLANTunnelAddr"], "10.245.0.")
        && starts(&node["spec"]["bgp"]["ipv4IPIPTunnelAddr"], "10.246.0.");
    if right { Ok(()) } else { Err(format!("{node:#}\n{}", hosts.log(host))) }
}

fn whole_life(etcd: usize) {
    let Some(mut hosts) = two_hosts(etcd) else { return };
    // The mesh, and the blocks of both.
    hosts.until_sessions(1);
    for (host, other) in [(1, 2), (2, 1)] {
        within(PATIENCE, "own and learned blocks are programmed", || {
            let routes = hosts.routes(host);
            let wanted = [format!("10.244.{host}.0/26 blackhole"), format!("10.244.{other}.0/26")];
            if wanted.iter().all(|route| routes.contains(route)) {
                Ok(())
            } else {
                Err(format!("{routes:?}"))
            }
        });
    }
    // Registration: one Node each, nothing of others.
    let second = node(&hosts, 2);
    assert_eq!(second["spec"]["bgp"]["ipv4Address"], "172.30.0.2/24", "{second:#}");
    assert_eq!(second["metadata"]["name"], "host2");
    assert!(second["metadata"]["uid"].is_string() && second["metadata"]["creationTimestamp"].is_string());
    for host in [1, 2] {
        within(PATIENCE, "tunnel addresses", || has_tunnel_addresses(&hosts, host));
        for kind in ["vxlan", "ipip"] {
            let handle = get(&hosts, &format!("/calico/ipam/v2/handle/{kind}-tunnel-addr-host{host}"));
            assert!(handle.contains("\"block\""), "{handle}");
        }
    }
    let first = get(&hosts, &format!("{OBJECTS}/nodes/host1"));
    for kept in KEPT {
        assert!(first.contains(kept), "{kept} in {first}");
    }
    let vxlan = node(&hosts, 1)["spec"]["ipv4VXLANTunnelAddr"].as_str().unwrap().to_owned();
    let shown = stdout(&hosts.store(&["ls", "/calico/ipam/v2/assignment/"]));
    assert!(shown.contains("10.245.0."), "{vxlan}: {shown}");
    let before = settled(&hosts);
    let objects = before.keys().filter(|key| key.starts_with(OBJECTS)).count();
    assert_eq!(
        objects,
        data().keys().filter(|key| key.starts_with(OBJECTS)).count() + 1,
        "{:?}",
        before.keys()
    );
    assert!(get(&hosts, CLUSTER).contains(r#""clusterType":"openstack""#), "it is not changed");
    let all = stdout(&hosts.store(&["ls", "/calico/"]));
    for foreign in ["/calico/v1/", "/calico/bgp/", "/calico/felix/v1/"] {
        assert!(!all.contains(foreign), "{all}");
    }

    // Status with a time to live, below the region.
    let status = |host: usize, name: &str| format!("/calico/felix/v2/no-region/host/host{host}/{name}");
    for host in [1, 2] {
        within(PATIENCE, "status", || {
            let text = try_get(&hosts, &status(host, "status")).ok_or_else(|| hosts.log(host))?;
            let value: Value = serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))?;
            if value["first_update"].is_boolean() && value["uptime"].is_number() { Ok(()) } else { Err(text) }
        });
    }
    hosts.kill("host2");
    within(PATIENCE, "the status ends with its agent", || match try_get(&hosts, &status(2, "status")) {
        None => Ok(()),
        Some(text) => Err(text),
    });
    assert!(try_get(&hosts, &status(2, "last_reported_status")).is_some());

    // A restart finds all as it is.
    hosts.kill("host1");
    for host in ["host1", "host2"] {
        hosts.start(host);
    }
    for host in [1, 2] {
        hosts.until(host, "ready again", |status| status["ready"] == true);
    }
    hosts.until_sessions(1);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(settled(&hosts), before, "{}\n{}", hosts.log(1), hosts.log(2));

    // A locked store freezes all that write.
    let cluster: Value = serde_json::from_str(&get(&hosts, CLUSTER)).unwrap();
    let set_ready = |ready: bool| {
        let mut cluster = cluster.clone();
        cluster["spec"]["datastoreReady"] = json!(ready);
        hosts.put(CLUSTER, &cluster.to_string());
    };
    set_ready(false);
    for host in [1, 2] {
        let status = hosts.until(host, "frozen", |status| status["verdict"] == "frozen");
        assert_eq!(status["problems"][0]["code"], "frozen", "{status:#}");
        assert!(status["problems"][0]["text"].as_str().unwrap().contains("ClusterInformation"), "{status:#}");
    }
    let routes = hosts.routes(1);
    hosts.rm(&format!("{OBJECTS}/ippools/vxlan"));
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(node(&hosts, 1)["spec"]["ipv4VXLANTunnelAddr"], json!(vxlan));
    assert_eq!(hosts.routes(1), routes);
    // Then the pool is gone, and the addresses with it.
    set_ready(true);
    for host in [1, 2] {
        hosts.until(host, "follows the store", |status| status["store"]["frozen"].is_null());
        within(PATIENCE, "the address is released", || {
            let node = node(&hosts, host);
            let handle = try_get(&hosts, &format!("/calico/ipam/v2/handle/vxlan-tunnel-addr-host{host}"));
            let is_gone = node["spec"]["ipv4VXLANTunnelAddr"].is_null() && handle.is_none();
            if is_gone { Ok(()) } else { Err(format!("{node:#}\n{handle:?}\n{}", hosts.log(host))) }
        });
    }
    let first = get(&hosts, &format!("{OBJECTS}/nodes/host1"));
    for kept in KEPT {
        assert!(first.contains(kept), "{kept} in {first}");
    }
}

#[test]
fn two_agents_live_on_a_calico_3_store_in_sqlite() {
    whole_life(0);
}

#[test]
fn two_agents_live_on_a_calico_3_store_in_etcd() {
    whole_life(1);
}

/// The first agent of a new cluster says that the store is ready; nothing else is created.
#[test]
fn the_first_agent_creates_the_cluster() {
    let flags = [(1, "--ip4 172.30.0.1/24".to_owned())].into();
    let data = BTreeMap::from([object("ippools", "plain", &json!({"cidr": "10.244.0.0/16"}))]);
    let plan = Plan { hosts: 1, flags, data: Some(data), ..Plan::default() };
    let Some(hosts) = Hosts::up(plan) else { return };
    hosts.until(1, "ready", |status| status["ready"] == true);
    let wanted = ["clusterinformations/default", "ippools/plain", "nodes/host1"];
    within(PATIENCE, "the objects of a first agent", || {
        let objects: Vec<String> = settled(&hosts).into_keys().collect();
        let right = objects == wanted.map(|name| format!("{OBJECTS}/{name}"));
        if right { Ok(()) } else { Err(format!("{objects:?}\n{}", hosts.log(1))) }
    });
    let cluster: Value = serde_json::from_str(&get(&hosts, CLUSTER)).unwrap();
    assert_eq!(cluster["spec"]["datastoreReady"], true);
    assert_eq!(cluster["spec"]["clusterType"], "tortie");
    assert_eq!(cluster["spec"]["clusterGUID"].as_str().map(str::len), Some(32));
    // The MTU of workloads is that of the link, and with a tunnel what it leaves.
    let mtu_is = |wanted: &str| {
        within(PATIENCE, "the MTU of workloads", || {
            let found = std::fs::read_to_string(hosts.path(1, "/var/lib/calico/mtu"));
            if found.as_deref().ok() == Some(wanted) { Ok(()) } else { Err(format!("{found:?}")) }
        });
    };
    mtu_is("1500");
    let (key, pool) = object("ippools", "tunnel", &json!({"cidr": "10.245.0.0/16", "vxlanMode": "Always"}));
    hosts.put(&key, &pool);
    mtu_is("1450");
}

/// Nothing of a Node that cannot be parsed is lost: it is named, and the agent goes on without it.
#[test]
fn a_broken_node_is_named_and_not_written() {
    let mut data = data();
    let key = format!("{OBJECTS}/nodes/host1");
    data.insert(key.clone(), "{broken".to_owned());
    let plan = Plan { hosts: 1, data: Some(data), ..Plan::default() };
    let Some(hosts) = Hosts::up(plan) else { return };
    let named = |status: &Value| {
        let problems = status["problems"].as_array().into_iter().flatten();
        problems
            .clone()
            .any(|problem| problem["code"] == "invalid-value" && problem["subject"] == "Node host1")
    };
    hosts.until(1, "names it", named);
    within(PATIENCE, "the log says it", || match hosts.log(1) {
        log if log.contains("cannot be registered") && log.contains(&key) => Ok(()),
        log => Err(log),
    });
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(get(&hosts, &key).trim(), "{broken");
}
