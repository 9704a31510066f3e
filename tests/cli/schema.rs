//! JSON output conforms to the published schema: no unknown field, none missing.

use serde_json::Value;

use crate::agent::Agent;
use crate::common::command::{stdout, tortie};
use crate::common::schema::check;

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
