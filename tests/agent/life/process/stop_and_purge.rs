//! State that remains of an agent after each kind of end: stop, crash, restart, purge. The shutdown of a host
//! is tested in `host_shutdown.rs`.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tortie_topology::Signal;

use crate::common::hosts::{Hosts, PATIENCE, Plan, lab_data, stderr, stdout, within};

const BLOCK: &str = "10.244.1.0/26";
const STATUS: &str = "/calico/tortie/v1/status/host1";

/// Returns the kernel state of host 1 from all programs, without counters.
fn kernel(hosts: &Hosts) -> [String; 4] {
    ["ip route show", "ip nexthop show", "ip neigh show nud permanent", "nft -s list ruleset"]
        .map(|command| hosts.run("host1", command))
}

fn keys(hosts: &Hosts) -> BTreeMap<String, String> {
    serde_json::from_slice(&hosts.store(&["export"]).stdout).unwrap()
}

fn purge(hosts: &Hosts, words: &[&str]) -> (Option<i32>, Value, String) {
    let output =
        hosts.tortie(1, &[&["--datastore", "sqlite:/store/store.db", "purge", "-o", "json"], words].concat());
    if !output.stdout.is_empty() {
        crate::common::schema::Published::read().check_output("purge", &output.stdout).unwrap();
    }
    (output.status.code(), serde_json::from_slice(&output.stdout).unwrap_or_default(), stderr(&output))
}

/// Waits until host 1 has written its status key.
fn wait_for_status_key(hosts: &Hosts) {
    within(PATIENCE, "the status key", || {
        if keys(hosts).contains_key(STATUS) { Ok(()) } else { Err(hosts.log(1)) }
    });
}

/// True if host 2 has a route to the block of host 1, marked or not.
fn at_host2(hosts: &Hosts) -> bool {
    hosts.routes(2).contains(BLOCK)
}

#[test]
fn what_stays_and_what_goes_at_each_end() {
    let mut data = lab_data(2, false);
    let endpoint = "/calico/v1/host/host1/workload/cni/w1/endpoint/eth0".to_owned();
    let value = json!({"state": "active", "name": "cali1", "profile_ids": ["open"], "ipv4_nets": ["10.244.1.9/32"],
        "mac": "ee:ee:ee:ee:ee:01"});
    data.insert(endpoint.clone(), value.to_string());
    data.insert(
        "/calico/v1/policy/profile/open/rules".to_owned(),
        r#"{"inbound_rules":[{"action":"allow"}],"outbound_rules":[{"action":"allow"}]}"#.to_owned(),
    );
    let plan = Plan { hosts: 2, data: Some(data), later: vec![1, 2], ..Plan::default() };
    let Some(mut hosts) = Hosts::up(plan) else { return };
    let script = "ip link add cali1 type veth peer name w1; ip link set cali1 up; ip link set w1 up; \
                  ip route add 203.0.113.0/24 dev eth1 proto static metric 1790; nft add table inet other";
    let made = hosts.lab.exec("host1", &["sh", "-ec", script]).unwrap();
    assert!(made.status.success(), "{made:?}");
    let before = kernel(&hosts);
    (1..=2).for_each(|host| hosts.start_agent(host));
    hosts.until_sessions(1);
    within(PATIENCE, "routes and rules", || {
        let [routes, nexthops, neighbours, rules] = kernel(&hosts);
        let there = ["10.244.2.0/26", BLOCK, "10.244.1.9"].iter().all(|word| routes.contains(word));
        let there =
            there && rules.contains("table inet tortie") && rules.contains("cali1") && !nexthops.is_empty();
        let there = there && neighbours.contains("10.244.1.9");
        if there && at_host2(&hosts) { Ok(()) } else { Err(format!("{routes}{nexthops}{rules}")) }
    });
    wait_for_status_key(&hosts);
    let is_settled = |s: &Value| {
        s["ready"] == true && s["policy"]["inSync"] == true && s["bgp"]["gracefulRestart"] == "idle"
    };
    hosts.until(1, "settled", is_settled);
    let running = kernel(&hosts);

    // Stopped: forwarding and enforcement continue on this host and at neighbours; only the status key is
    // deleted.
    hosts.signal("host1", Signal::TERM);
    hosts.until_ended(1);
    assert_eq!(kernel(&hosts), running, "stop");
    assert!(at_host2(&hosts) && !keys(&hosts).contains_key(STATUS));
    assert!(keys(&hosts).contains_key("/calico/bgp/v1/host/host1/ip_addr_v4"));

    // Started: the same kernel objects, not new ones.
    hosts.start("host1");
    hosts.start_agent(1);
    hosts.until_sessions(1);
    hosts.until(1, "settled again", is_settled);
    assert_eq!(kernel(&hosts), running, "restart");

    // A running agent is not purged, and a crash removes nothing either.
    let (code, _, said) = purge(&hosts, &[]);
    assert!(code == Some(7) && said.contains("agent-lives") && said.contains("systemctl"), "{code:?} {said}");
    wait_for_status_key(&hosts);
    hosts.kill("host1");
    assert_eq!(kernel(&hosts), running, "kill -9");
    assert!(at_host2(&hosts));

    // A purge requires confirmation: because of workloads, then with the list of its actions.
    let (code, _, said) = purge(&hosts, &[]);
    assert!(code == Some(7) && said.contains("workloads") && said.contains("cali1"), "{code:?} {said}");
    let (code, would, said) = purge(&hosts, &["--dry-run", "--keys"]);
    assert!(code == Some(0) && would["dryRun"] == true, "{would} {said}");
    assert_eq!(kernel(&hosts), running, "purge --dry-run");
    let own = running[0].lines().filter(|line| line.contains("proto 179")).count();
    assert_eq!((&would["routes"], &would["tables"]), (&json!(own), &json!(["tortie"])));
    assert_eq!(would["nexthops"], json!(running[1].lines().count()));
    assert_eq!(would["neighbours"], json!(1));
    assert!(would["stays"].to_string().contains("--store"), "{would}");

    // Purging the kernel needs no store.
    let (code, gone, said) = purge(&hosts, &["--force"]);
    assert_eq!(code, Some(0), "{said}");
    for what in ["routes", "nexthops", "neighbours", "tables", "files"] {
        assert_eq!(gone[what], would[what], "{gone}");
    }
    let files = gone["files"].to_string();
    assert!(files.contains("cache.json"), "{files}");
    // Routes, tables and links of other programs are unchanged, and so is the store.
    assert_eq!(kernel(&hosts), before, "purge");
    assert!(keys(&hosts).contains_key(&endpoint));

    // With keys: those of this host only; the status key of a crashed agent remains for a while. A second
    // purge does nothing.
    let (code, gone, said) = purge(&hosts, &["--force", "--keys"]);
    assert!(code == Some(0) && gone["routes"] == 0 && gone["files"] == json!([]), "{gone} {said}");
    assert_eq!(gone["keys"]["blocks"], json!([BLOCK]), "{gone}");
    let left = keys(&hosts);
    let host1: Vec<&String> = left.keys().filter(|key| key.contains("/host1")).collect();
    assert!(host1.is_empty(), "{host1:?}");
    assert!(left.contains_key("/calico/bgp/v1/host/host2/ip_addr_v4"), "{left:?}");
    let text =
        stdout(&hosts.tortie(1, &["--datastore", "sqlite:/store/store.db", "purge", "--force", "--keys"]));
    assert!(text.contains("is cleared of") && text.contains("left where it is"), "{text}");
    assert_eq!(kernel(&hosts), before);

    // The whole store: rejected while another agent uses it, and for a file that is no store.
    within(PATIENCE, "host2 says that it runs", || {
        let keys = keys(&hosts);
        if keys.contains_key("/calico/tortie/v1/status/host2") { Ok(()) } else { Err(format!("{keys:?}")) }
    });
    let (code, _, said) = purge(&hosts, &["--store", "--force"]);
    assert!(code == Some(7) && said.contains("status/host2"), "{code:?} {said}");
    let output = hosts.tortie(1, &["--datastore", "etcd://127.0.0.1:2379", "purge", "--store"]);
    assert!(output.status.code() == Some(2) && stderr(&output).contains("--keys"), "{output:?}");
    hosts.signal("host2", Signal::TERM);
    hosts.until_ended(2);
    let (code, gone, said) = purge(&hosts, &["--store", "--force"]);
    assert!(code == Some(0) && gone["files"].to_string().contains("store.db"), "{gone} {said}");
    let left = hosts.run("host1", "ls /store");
    assert!(!left.contains("store."), "{left}");
}
