//! What `-o json` answers is what the published schema says: no field that it does not name, none missing.

use serde_json::Value;

use crate::agent::Agent;
use crate::rig::{stdout, tortie};

/// The part of JSON Schema that ours uses.
fn check(schema: &Value, value: &Value, root: &Value, place: &str) -> Result<(), String> {
    if let Some(path) = schema["$ref"].as_str() {
        let name = path.strip_prefix("#/$defs/").unwrap();
        let found = &root["$defs"][name];
        assert!(found.is_object(), "{path} is not there");
        return check(found, value, root, place);
    }
    if let Some(choices) = schema["anyOf"].as_array() {
        let tried: Vec<String> = choices.iter().filter_map(|s| check(s, value, root, place).err()).collect();
        return if tried.len() < choices.len() { Ok(()) } else { Err(tried.join("; ")) };
    }
    if let Some(only) = schema.get("const") {
        return if only == value { Ok(()) } else { Err(format!("{place}: {value} instead of {only}")) };
    }
    if let Some(all) = schema["enum"].as_array() {
        return if all.contains(value) {
            Ok(())
        } else {
            Err(format!("{place}: {value} is none of {all:?}"))
        };
    }
    let right = match schema["type"].as_str() {
        None => true,
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("number") => value.is_number(),
        Some("null") => value.is_null(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        Some(other) => panic!("type {other} is not used here"),
    };
    if !right {
        return Err(format!("{place}: {value} is no {}", schema["type"]));
    }
    for (at, item) in value.as_array().into_iter().flatten().enumerate() {
        check(&schema["items"], item, root, &format!("{place}[{at}]"))?;
    }
    let Some(fields) = value.as_object().filter(|_| schema["type"].is_string()) else { return Ok(()) };
    for name in schema["required"].as_array().into_iter().flatten() {
        if !fields.contains_key(name.as_str().unwrap()) {
            return Err(format!("{place} has no {name}"));
        }
    }
    for (name, field) in fields {
        let place = format!("{place}.{name}");
        match (schema["properties"].get(name), schema.get("additionalProperties")) {
            (Some(schema), _) => check(schema, field, root, &place)?,
            (None, Some(Value::Bool(false))) => return Err(format!("{place} is not in the schema")),
            (None, Some(schema)) => check(schema, field, root, &place)?,
            (None, None) => {}
        }
    }
    Ok(())
}

#[test]
fn answers_are_as_the_schema_says() {
    let agent = Agent::start(&[
        ("/calico/v1/Ready", "true"),
        ("/calico/v1/ipam/v4/pool/10.244.0.0-16", r#"{"cidr":"10.244.0.0/16"}"#),
        ("/calico/bgp/v1/global/peer_v4/127.0.0.2", r#"{"ip":"127.0.0.2","as_num":"65000","port":1}"#),
        ("/calico/bgp/v1/global/peer_range/127.1.0.0-16", r#"{"as_num":"65001"}"#),
        (
            "/calico/v1/host/h1/workload/cni/w1/endpoint/eth0",
            r#"{"state":"active","name":"cali1","profile_ids":["p"],"ipv4_nets":["10.244.0.1/32"]}"#,
        ),
        (
            "/calico/v1/policy/tier/default/policy/web",
            r#"{"selector":"all()","order":10,"inbound_rules":[{"action":"allow","protocol":"tcp"}],"outbound_rules":[]}"#,
        ),
        ("/calico/v1/ipam/v4/pool/10.9.0.0-16", "{"),
    ]);
    for (kind, words) in [
        ("Status", &["status"][..]),
        ("BGPPeerList", &["bgp", "peers"]),
        ("Peer", &["bgp", "peer", "127.0.0.2"]),
        ("BGPRangeList", &["bgp", "ranges"]),
        ("BGPRouteList", &["bgp", "routes"]),
        ("KernelRouteList", &["route", "list"]),
        ("EndpointList", &["endpoint", "list"]),
        ("EndpointDetail", &["endpoint", "show", "cni/w1/eth0"]),
        ("PolicyList", &["policy", "list", "--all"]),
        ("PolicyDetail", &["policy", "show", "web"]),
        ("Trace", &["policy", "trace", "--from", "10.244.0.1", "--to", "192.0.2.7", "--proto", "icmp"]),
        ("Why", &["why", "peer", "127.0.0.2"]),
        ("Why", &["why", "route", "10.244.0.0/26"]),
        ("Diff", &["diff"]),
        ("MigrateCheck", &["--datastore", &agent.store.url, "migrate", "check", "--state-dir", "/nowhere"]),
        ("ClusterNodeList", &["--datastore", &agent.store.url, "status", "--all-nodes"]),
        ("ClusterNodeList", &["--datastore", &agent.store.url, "bgp", "peers", "--all-nodes"]),
    ] {
        let output = agent.run(&[words, &["-o", "json"]].concat());
        let value: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{words:?}: {e}: {output:?}"));
        let schema = tortie(&["schema", kind]);
        assert!(schema.status.success(), "{schema:?}");
        let schema: Value = serde_json::from_str(&stdout(&schema)).unwrap();
        check(&schema, &value, &schema, kind).unwrap_or_else(|e| panic!("{words:?}: {e}\n{value:#}"));
    }
    let failed = agent.run(&["bgp", "peer", "nobody", "-o", "json"]);
    let error: Value = serde_json::from_slice(&failed.stderr).unwrap();
    let schema: Value = serde_json::from_str(&stdout(&tortie(&["schema", "Error"]))).unwrap();
    check(&schema, &error, &schema, "Error").unwrap();
    assert_eq!(tortie(&["schema", "Nonsense"]).status.code(), Some(1));
}
