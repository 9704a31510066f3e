//! Hosts of different versions on one etcd, a store changed by a later version, and a backup during
//! concurrent writes.

use std::collections::BTreeMap;
use std::process::Output;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::common::hosts::{Hosts, PATIENCE, Plan, block, block_keys, lab_data, stderr, stdout, within};

const SCHEMA: &str = "/calico/tortie/v1/schema";

/// Adds a member that this version does not know to a value.
fn later(value: &str) -> String {
    let mut value: Value = serde_json::from_str(value).unwrap();
    value["laterField"] = json!({"deep": [1, "two"]});
    value.to_string()
}

fn has_later(value: &str) -> bool {
    let value: Value = serde_json::from_str(value).unwrap();
    value["laterField"] == json!({"deep": [1, "two"]})
}

fn get(hosts: &Hosts, key: &str) -> String {
    let value = hosts.etcdctl(1, &["get", key, "--print-value-only"]);
    assert!(!value.trim().is_empty(), "{key} is not there");
    value
}

/// Runs a command on host 1 that accesses the store directly.
fn on_etcd(hosts: &Hosts, words: &[&str]) -> Output {
    hosts.tortie(1, &[&["--datastore", "etcd://10.99.0.101:2379"], words].concat())
}

fn export(hosts: &Hosts) -> BTreeMap<String, String> {
    serde_json::from_slice(&hosts.store(&["export"]).stdout).unwrap()
}

#[test]
fn versions_share_a_cluster_and_a_store_that_needs_a_later_one_is_left_alone() {
    let mut data = lab_data(2, false);
    let [affinity, assigned] = block_keys("10.244.1.0/26", "host1");
    let handle = "/calico/ipam/v2/handle/k8s.web".to_owned();
    let endpoint = "/calico/v1/host/host1/workload/cni/w1/endpoint/eth0".to_owned();
    data.insert(assigned.clone(), later(&block("10.244.1.0/26", "host1")));
    data.insert(affinity.clone(), r#"{"state":"confirmed","laterField":{"deep":[1,"two"]}}"#.to_owned());
    data.insert(
        endpoint.clone(),
        later(r#"{"state":"active","name":"cali1","profile_ids":[],"ipv4_nets":["10.244.1.9/32"]}"#),
    );
    // Status of an agent of a later version: more members, and one in another form.
    let status = json!({
        "node": "host9", "version": "7.1.0", "schema": 2, "ready": true, "sessions": {"established": 3},
        "endpoints": 12, "zone": {"rack": "r7"},
    });
    data.insert("/calico/tortie/v1/status/host9".to_owned(), status.to_string());
    let Some(hosts) = Hosts::up(Plan { hosts: 2, etcd: 1, data: Some(data), ..Plan::default() }) else {
        return;
    };
    hosts.until_routes(1, &["10.244.1.0/26 blackhole", "10.244.2.0/26"]);

    // The host is named, and its status is shown as far as it can be parsed.
    let status = hosts.until(1, "the skew is told", |status| {
        let problems = status["problems"].as_array().unwrap();
        problems.iter().any(|p| p["code"] == "version-skew" && p["text"].to_string().contains("host9 7.1.0"))
    });
    assert!(status["problems"].to_string().contains("status schema 2"), "{status}");
    let all = on_etcd(&hosts, &["status", "--all-nodes", "-o", "json"]);
    let all: Value = serde_json::from_slice(&all.stdout).unwrap();
    let host9 = all["items"].as_array().unwrap().iter().find(|item| item["name"] == "host9").unwrap();
    assert_eq!(host9["status"]["zone"]["rack"], "r7", "{host9}");
    assert_eq!((&host9["status"]["endpoints"], &host9["status"]["ready"]), (&json!(12), &json!(true)));
    let table = stdout(&on_etcd(&hosts, &["status", "--all-nodes"]));
    assert!(table.contains("7.1.0") && table.contains("host9 writes status schema 2"), "{table}");

    // Values that this version rewrites keep unknown members; values that it only reads are unchanged.
    let output = on_etcd(&hosts, &["ipam", "assign", "--node", "host1", "--handle", "k8s.web"]);
    assert!(output.status.success(), "{output:?}");
    hosts.etcdctl(1, &["put", &handle, &later(&get(&hosts, &handle))]);
    let output = on_etcd(&hosts, &["ipam", "assign", "--node", "host1", "--handle", "k8s.web"]);
    assert!(output.status.success(), "{output:?}");
    for key in [&assigned, &affinity, &handle, &endpoint] {
        assert!(has_later(&get(&hosts, key)), "{key}: {}", get(&hosts, key));
    }
    assert_eq!(stdout(&output).lines().count(), 1);

    // A store that requires a later version: every agent freezes and reports it, and no program reads or
    // writes.
    hosts.etcdctl(1, &["put", SCHEMA, r#"{"schema":2,"since":"7.0.0"}"#]);
    for host in [1, 2] {
        let status = hosts.until(host, "it holds still", |status| status["verdict"] == "frozen");
        assert!(status["problems"].to_string().contains("needs schema 2"), "{status}");
        let next = status["problems"][0]["next"].as_str().unwrap();
        assert!(next.starts_with("tortie status --all-nodes,"), "{next}");
    }
    let [affinity, assigned] = block_keys("10.244.200.0/26", "host2");
    hosts.etcdctl(1, &["put", &assigned, &block("10.244.200.0/26", "host2")]);
    hosts.etcdctl(1, &["put", &affinity, ""]);
    let output = on_etcd(&hosts, &["ipam", "assign", "--node", "host1"]);
    assert!(!output.status.success() && stderr(&output).contains("needs schema 2"), "{output:?}");
    let output = hosts.store(&["put", "/calico/v1/config/LogPrefix", "x"]);
    assert!(output.status.code() == Some(2) && stderr(&output).contains("schema 2"), "{output:?}");
    let output = hosts.tortie(1, &["store", "accept"]);
    assert!(stdout(&output).contains("no freeze can be ended here"), "nobody can accept it: {output:?}");
    assert!(export(&hosts).contains_key(SCHEMA), "reading goes on");
    std::thread::sleep(std::time::Duration::from_millis(500));
    hosts.until_routes(1, &["10.244.1.0/26 blackhole", "10.244.2.0/26"]);
    hosts.rm(SCHEMA);
    hosts.until_routes(1, &["10.244.1.0/26 blackhole", "10.244.2.0/26", "10.244.200.0/26"]);
    hosts.until(2, "it goes on", |status| status["frozen"].is_null());

    an_export_is_of_one_revision(&hosts);
}

/// A backup contains one revision, even if etcd returns it in pages with concurrent writes in between.
fn an_export_is_of_one_revision(hosts: &Hosts) {
    let ends = ["/calico/aaa", "/calico/zzz"];
    let mut data: BTreeMap<String, String> =
        (0..2_500).map(|n| (format!("/calico/filler/{n:04}"), "[]".to_owned())).collect();
    data.extend(ends.map(|key| (key.to_owned(), "0".to_owned())));
    hosts.import(&data);
    let stop = AtomicBool::new(false);
    let seen = std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let n = n.to_string();
                hosts.import(&ends.map(|key| (key.to_owned(), n.clone())).into());
            }
        });
        let mut seen = Vec::new();
        within(PATIENCE, "exports of several moments", || {
            let all = export(hosts);
            let [first, last] = ends.map(|key| all[key].clone());
            assert_eq!(first, last, "half of a transaction");
            assert!(all.len() > 2_502, "{}", all.len());
            seen.push(first);
            seen.dedup();
            if seen.len() >= 5 { Ok(()) } else { Err(format!("{seen:?}")) }
        });
        stop.store(true, Ordering::Relaxed);
        seen
    });
    println!("{} moments", seen.len());
}
