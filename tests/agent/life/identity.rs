//! Agents that start with a wrong store, a wrong name or in another agent's network namespace, and what they
//! leave unchanged.

use std::collections::BTreeMap;

use crate::common::hosts::{Hosts, PATIENCE, Plan, block, block_keys, stderr, stdout, within};

const TORTIE: &str = env!("CARGO_BIN_EXE_tortie");
const STORE: &str = "sqlite:/store/store.db";

/// Creates the interface of a workload on host 1.
fn plug_in(hosts: &Hosts) {
    for command in ["link add cali1 type veth peer name web", "link set web up", "link set cali1 up"] {
        hosts.run("host1", &format!("ip {command}"));
    }
}

fn attached(hosts: &Hosts) -> String {
    hosts.run("host1", "ip route show 10.244.1.1")
}

/// Returns the first problem of a host's status.
fn first_problem(status: &serde_json::Value) -> String {
    status["problems"][0]["code"].as_str().unwrap_or_default().to_owned()
}

/// Calls the CNI plugin on host 1 under this node name.
fn cni(hosts: &Hosts, command: &str, node: &str) -> (bool, String) {
    let script = format!(
        r#"ip netns add web 2>/dev/null; ln -sf {TORTIE} /run/tortie-cni; printf '{{"cniVersion":"1.1.0","name":"lab","type":"tortie-cni","datastore":"{STORE}","node":"{node}"}}' |
           CNI_COMMAND={command} CNI_CONTAINERID=web CNI_NETNS=/run/netns/web CNI_IFNAME=eth0 CNI_PATH=/run /run/tortie-cni"#
    );
    let output = hosts.lab.exec("host1", &["sh", "-c", &script]).unwrap();
    (output.status.success(), stdout(&output))
}

fn export(hosts: &Hosts) -> BTreeMap<String, String> {
    serde_json::from_str(&stdout(&hosts.store(&["export"]))).unwrap()
}

/// Objects of Calico 3 in a v1 store would replace all that the agent knows.
#[test]
fn a_store_that_becomes_calico_3s_is_followed_when_accepted() {
    const NODE: &str = "/calico/resources/v3/projectcalico.org/nodes/host1";
    const CLUSTER: &str = "/calico/resources/v3/projectcalico.org/clusterinformations/default";
    let Some(hosts) = Hosts::up(Plan { hosts: 1, ..Plan::default() }) else { return };
    hosts.until_routes(1, &["10.244.1.0/26 blackhole"]);
    hosts.until(1, "ready", |status| status["ready"] == true);
    let frozen = |status: &serde_json::Value| first_problem(status) == "calico-3";
    hosts.put(NODE, r#"{"kind":"Node"}"#);
    let status = hosts.until(1, "is frozen", frozen);
    assert_eq!(status["verdict"], "frozen", "{status:#}");
    within(PATIENCE, "the log says it", || match hosts.log(1) {
        log if log.contains("Calico 3") => Ok(()),
        log => Err(log),
    });
    let doctor = stdout(&hosts.tortie(1, &["--datastore", STORE, "doctor"]));
    assert!(doctor.starts_with("FAIL  objects of Calico 3 appeared"), "{doctor}");
    hosts.until_routes(1, &["10.244.1.0/26 blackhole"]);
    // Without them it is as before.
    hosts.rm(NODE);
    hosts.until(1, "continues", |status| status["verdict"] != "frozen");
    hosts.put(CLUSTER, r#"{"spec":{"datastoreReady":true}}"#);
    hosts.until(1, "is frozen again", frozen);
    assert!(hosts.tortie(1, &["store", "accept"]).status.success());
    hosts.until(1, "follows the objects", |status| {
        status["store"]["frozen"].is_null() && first_problem(status) == "mixed-models"
    });
}

/// Two agents in one namespace, or two machines with one name, would revert each other's changes.
#[test]
fn one_agent_programs_a_namespace_and_one_machine_has_a_name() {
    // Without a common /etc these hosts count as different machines.
    let plan = Plan { hosts: 2, later: vec![2], tmpfs: &["/etc"], ..Plan::default() };
    let Some(mut hosts) = Hosts::up(plan) else { return };
    hosts.until_routes(1, &["10.244.1.0/26 blackhole"]);
    let second = hosts.tortie(
        1,
        &["--datastore", STORE, "--socket", "/run/b.sock", "agent", "--http", "none", "--cache", "/run/b"],
    );
    assert_eq!(second.status.code(), Some(7), "{second:?}");
    assert!(stderr(&second).contains("the agent of host1 (process"), "{second:?}");
    // The status key names its machine.
    let key = "/calico/tortie/v1/status/host1";
    within(PATIENCE, "the status key", || match stdout(&hosts.store(&["get", key])) {
        value if value.contains("machine") => Ok(()),
        value => Err(value),
    });
    let other = ["--datastore", STORE, "--node", "host1", "agent", "--http", "none", "--cache", "/run/cache"];
    let other = hosts.tortie(2, &other);
    assert_eq!(other.status.code(), Some(7), "{other:?}");
    assert!(stderr(&other).contains("runs as host1 already, and this is machine"), "{other:?}");
    hosts.until_routes(1, &["10.244.1.0/26 blackhole"]);
    // The same machine gets its own name again at once.
    hosts.kill("host1");
    hosts.start("host1");
    hosts.until(1, "is there again", |status| {
        status["verdict"] != "starting" && status["store"]["frozen"].is_null()
    });
}

/// A host that returns under another name, and a container that is added under one.
#[test]
fn another_name_takes_nothing_away_and_leaves_nothing() {
    let [affinity, assignment] = block_keys("10.244.1.0/26", "host1");
    let endpoint = r#"{"state":"active","name":"cali1","mac":null,"profile_ids":[],"ipv4_nets":["10.244.1.1/32"],"ipv6_nets":[]}"#;
    let data = BTreeMap::from([
        ("/calico/v1/Ready".to_owned(), "true".to_owned()),
        ("/calico/v1/ipam/v4/pool/10.244.0.0-16".to_owned(), r#"{"cidr":"10.244.0.0/16"}"#.to_owned()),
        (affinity, String::new()),
        (assignment, block("10.244.1.0/26", "host1")),
        ("/calico/v1/host/host1/workload/lab/web/endpoint/eth1".to_owned(), endpoint.to_owned()),
    ]);
    let plan = Plan { hosts: 1, later: vec![1], data: Some(data), ..Plan::default() };
    let Some(mut hosts) = Hosts::up(plan) else { return };
    plug_in(&hosts);
    hosts.start_agent(1);
    within(PATIENCE, "the workload's route is ours", || match attached(&hosts) {
        route if route.contains("proto 179") => Ok(()),
        route => Err(route),
    });
    let before: Vec<String> = export(&hosts).into_keys().collect();
    let (done, said) = cni(&hosts, "ADD", "host1.example.com");
    assert!(!done && said.contains("host1.example.com") && said.contains("runs as host1"), "{said}");
    assert_eq!(export(&hosts).into_keys().collect::<Vec<_>>(), before, "a failed ADD leaves nothing");
    hosts.kill("host1");
    let script = format!(
        "{TORTIE} --datastore {STORE} --node renamed --socket /run/r.sock agent --http none --cache /run/r >/run/r.log 2>&1 & agent=$!
         for i in $(seq 120); do
           {TORTIE} --node renamed --socket /run/r.sock status -o json > /run/r.json; grep -q host-renamed /run/r.json && break; sleep 0.5
         done; cat /run/r.json; kill $agent; wait"
    );
    let output = hosts.lab.exec("host1", &["sh", "-c", &script]).unwrap();
    let status: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(first_problem(&status), "host-renamed", "{status:#}");
    let problem = &status["problems"][0];
    assert!(problem["text"].as_str().unwrap().contains("host1"), "{problem}");
    assert!(problem["next"].as_str().unwrap().contains("--node host1"), "{problem}");
    assert_eq!(status["ready"], false);
    assert!(attached(&hosts).contains("proto 179"), "the running workload keeps its route");
    hosts.start("host1");
    hosts.until(1, "is itself again", |status| {
        status["store"]["frozen"].is_null() && status["verdict"] != "starting"
    });
    assert!(attached(&hosts).contains("proto 179"));
}

/// An older copy of the store is not followed, neither by a running agent nor at its start, whatever share of
/// it is lost.
#[test]
fn a_store_that_was_put_back_is_followed_only_when_accepted() {
    let Some(mut hosts) = Hosts::up(Plan { hosts: 1, ..Plan::default() }) else { return };
    hosts.until_routes(1, &["10.244.1.0/26 blackhole"]);
    let copy = |from: &str, to: &str| {
        let script = format!(
            "for file in db db-wal db-shm; do rm -f {to}.$file; cp {from}.$file {to}.$file 2>/dev/null; done; true"
        );
        assert!(hosts.lab.exec("host1", &["sh", "-c", &script]).unwrap().status.success());
    };
    copy("/store/store", "/store/copy");
    let [affinity, assignment] = block_keys("10.244.9.0/26", "host1");
    hosts.import(&[(affinity, String::new()), (assignment, block("10.244.9.0/26", "host1"))].into());
    hosts.until_routes(1, &["10.244.1.0/26 blackhole", "10.244.9.0/26 blackhole"]);
    let cache = hosts.path(1, "/var/lib/tortie/cache.json");
    within(PATIENCE, "the cache has it", || match std::fs::read_to_string(&cache) {
        Ok(text) if text.contains("10.244.9.0-26") => Ok(()),
        other => Err(format!("{other:?}")),
    });
    let rewound = |status: &serde_json::Value| first_problem(status) == "store-rewound";
    copy("/store/copy", "/store/store");
    hosts.until(1, "is frozen", rewound);
    hosts.until_routes(1, &["10.244.1.0/26 blackhole", "10.244.9.0/26 blackhole"]);
    let (done, said) = cni(&hosts, "ADD", "host1");
    assert!(!done && said.contains("try again later"), "{said}");
    hosts.kill("host1");
    hosts.start("host1");
    hosts.until(1, "holds still at its start", rewound);
    hosts.until_routes(1, &["10.244.1.0/26 blackhole", "10.244.9.0/26 blackhole"]);
    assert!(hosts.tortie(1, &["store", "accept"]).status.success());
    hosts.until_routes(1, &["10.244.1.0/26 blackhole"]);
}
