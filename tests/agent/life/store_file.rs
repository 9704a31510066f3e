//! Files of an agent on a failing disk: a damaged store, a lost write-ahead log, a full file system.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::common::hosts::{Hosts, PATIENCE, Plan, block, block_keys, stderr, stdout, within};

const STORE: &str = "sqlite:/store/store.db";
const OWN: &[&str] = &["10.244.1.0/26 blackhole"];

fn codes(status: &serde_json::Value) -> Vec<&str> {
    status["problems"].as_array().into_iter().flatten().filter_map(|p| p["code"].as_str()).collect()
}

fn has(code: &'static str) -> impl Fn(&serde_json::Value) -> bool {
    move |status| codes(status).contains(&code)
}

/// Waits until the cache contains a text.
fn cached(hosts: &Hosts, path: &str, text: &str) {
    let cache = hosts.path(1, path);
    within(PATIENCE, "the cache has it", || match std::fs::read_to_string(&cache) {
        Ok(found) if found.contains(text) => Ok(()),
        other => Err(format!("{other:?}")),
    });
}

/// Returns the checksum of the store's file, which must not change.
fn sum(hosts: &Hosts) -> String {
    hosts.run("host1", "sha256sum /store/store.db")
}

/// Follows the documentation about a damaged store literally, while an agent continues to run.
#[test]
fn a_damaged_store_is_left_alone_and_the_agent_goes_on_from_its_cache() {
    let Some(mut hosts) = Hosts::up(Plan { hosts: 1, ..Plan::default() }) else { return };
    let assigned = hosts.tortie(1, &["--datastore", STORE, "ipam", "assign", "--handle", "lab.one"]);
    assert!(assigned.status.success(), "{assigned:?}");
    hosts.until_routes(1, OWN);
    for text in ["lab.one", "host1/metadata"] {
        cached(&hosts, "/var/lib/tortie/cache.json", text);
    }
    let before = stdout(&hosts.store(&["export"]));
    // Overwrites all pages except the first with noise.
    hosts.kill("host1");
    let damage = "cd /store; rm -f store.db-wal store.db-shm; pages=$(($(stat -c %s store.db) / 4096)); for page in $(seq 1 $((pages - 1))); do head -c 4096 /dev/urandom | dd of=store.db bs=4096 seek=$page conv=notrunc 2>/dev/null; done";
    let done = hosts.lab.exec("host1", &["sh", "-ec", damage]).unwrap();
    assert!(done.status.success(), "{done:?}");
    let damaged = sum(&hosts);
    hosts.start("host1");
    let status = hosts.until(1, "reports it", |status| {
        has("store-damaged")(status) && status["store"]["fromCache"] == true
    });
    assert_eq!(status["ready"], false);
    let problem =
        status["problems"].as_array().unwrap().iter().find(|p| p["code"] == "store-damaged").unwrap();
    for word in ["/store/store.db", "store export --cache", "last good state"] {
        assert!(problem["text"].as_str().unwrap().contains(word), "{problem}");
    }
    hosts.until_routes(1, OWN);
    let doctor = stdout(&hosts.tortie(1, &["--datastore", STORE, "doctor"]));
    assert!(doctor.contains("[store-damaged]"), "{doctor}");
    for words in [
        &["store", "put", "/calico/v1/config/LogPrefix", "x"][..],
        &["ipam", "assign", "--handle", "lab.two"],
    ] {
        let refused = hosts.tortie(1, &[&["--datastore", STORE], words].concat());
        assert!(
            refused.status.code() == Some(3) && stderr(&refused).contains("damaged"),
            "{words:?}: {refused:?}"
        );
    }
    assert_eq!(sum(&hosts), damaged, "nobody wrote into it");
    // The documented recovery.
    let exported = hosts.tortie(1, &["store", "export", "--cache"]);
    assert!(exported.status.success() && stderr(&exported).contains("cache.json"), "{exported:?}");
    let read = |text: &str| {
        let mut all: BTreeMap<String, String> = serde_json::from_str(text).unwrap();
        // Keys that belong to running agents, and handles with addresses of absent hosts.
        let passes = ["status", "handle/lab.web2", "handle/lab.web3"];
        all.retain(|key, _| !passes.iter().any(|word| key.contains(word)));
        let meaning = |(key, value): (String, String)| {
            let value = serde_json::from_str(&value).unwrap_or(serde_json::Value::String(value));
            (key, value)
        };
        all.into_iter().map(meaning).collect::<BTreeMap<String, serde_json::Value>>()
    };
    assert_eq!(read(&stdout(&exported)), read(&before), "one host's store is in its cache");
    std::fs::write(hosts.path(1, "/run/store.json"), &exported.stdout).unwrap();
    hosts.run("host1", "mv /store/store.db /store/store.db.damaged");
    hosts.run("host1", "rm -f /store/store.db-wal /store/store.db-shm");
    let imported = hosts.tortie(1, &["--datastore", STORE, "store", "import", "/run/store.json"]);
    assert!(imported.status.success(), "{imported:?}");
    hosts.until(1, "holds still", |status| status["verdict"] == "frozen");
    assert!(hosts.tortie(1, &["store", "accept"]).status.success());
    hosts.until(1, "continues", |status| {
        !has("store-damaged")(status) && status["store"]["connected"] == true
    });
    hosts.until_routes(1, OWN);
    let released = hosts.tortie(1, &["--datastore", STORE, "ipam", "release", "--handle", "lab.one"]);
    assert!(released.status.success(), "the handle of the address is there: {released:?}");
}

/// Damage is found by reading a page, or by maintenance, which verifies the file every minute.
#[test]
fn damage_under_a_running_agent_is_found_and_nobody_writes_from_then_on() {
    let Some(mut hosts) = Hosts::up(Plan { hosts: 1, ..Plan::default() }) else { return };
    hosts.until_routes(1, OWN);
    cached(&hosts, "/var/lib/tortie/cache.json", "10.244.1.0");
    let damage = "cd /store; pages=$(($(stat -c %s store.db) / 4096)); for page in $(seq 1 $((pages - 1))); do \
                  head -c 4096 /dev/urandom | dd of=store.db bs=4096 seek=$page conv=notrunc 2>/dev/null; done";
    // Pages that are also in the log are not read from the file, and pages that are written often soon become
    // intact again.
    let many =
        |n: usize| (format!("/calico/v1/policy/profile/p{n}/tags"), format!("[\"{}\"]", "t".repeat(200)));
    hosts.import(&(0..300).map(many).collect());
    // A starting agent checkpoints the log, and the next write starts it again.
    hosts.kill("host1");
    hosts.start("host1");
    hosts.until_routes(1, OWN);
    std::thread::sleep(Duration::from_secs(15));
    let done = hosts.lab.exec("host1", &["sh", "-ec", damage]).unwrap();
    assert!(done.status.success(), "{done:?}");
    within(Duration::from_secs(150), "the damage is found", || {
        let status = hosts.status(1);
        if has("store-damaged")(&status) { Ok(()) } else { Err(status["problems"].to_string()) }
    });
    let damaged = sum(&hosts);
    hosts.until_routes(1, OWN);
    let refused = hosts.tortie(1, &["--datastore", STORE, "ipam", "assign", "--handle", "lab.two"]);
    assert!(refused.status.code() == Some(3) && stderr(&refused).contains("damaged"), "{refused:?}");
    hosts.kill("host1");
    hosts.start("host1");
    hosts.until(1, "runs from its cache", |status| {
        has("store-damaged")(status) && status["store"]["fromCache"] == true
    });
    hosts.until_routes(1, OWN);
    assert_eq!(sum(&hosts), damaged, "nobody wrote into it");
}

/// Writes since the last checkpoint of the log are lost with it; the cache proves it.
#[test]
fn a_lost_log_of_the_store_is_reported_as_a_store_that_was_put_back() {
    let Some(mut hosts) = Hosts::up(Plan { hosts: 1, ..Plan::default() }) else { return };
    hosts.until_routes(1, OWN);
    let [affinity, assignment] = block_keys("10.244.9.0/26", "host1");
    hosts.import(&[(affinity, String::new()), (assignment, block("10.244.9.0/26", "host1"))].into());
    let both = [OWN, &["10.244.9.0/26 blackhole"]].concat();
    hosts.until_routes(1, &both);
    cached(&hosts, "/var/lib/tortie/cache.json", "10.244.9.0-26");
    hosts.kill("host1");
    hosts.run("host1", "rm -f /store/store.db-wal /store/store.db-shm");
    hosts.start("host1");
    let status = hosts.until(1, "holds still", |status| status["problems"][0]["code"] == "store-rewound");
    assert!(status["problems"][0]["text"].as_str().unwrap().contains("revision"), "{status:#}");
    hosts.until_routes(1, &both);
}

/// Cache and log on file systems of their own, which are filled and emptied again.
#[test]
fn a_full_disk_is_a_problem_for_as_long_as_it_is_full() {
    let plan = Plan {
        hosts: 1,
        later: vec![1],
        flags: [(1, "--cache /full/cache.json".to_owned())].into(),
        ..Plan::default()
    };
    let Some(hosts) = Hosts::up(plan) else { return };
    for command in
        ["mkdir -p /full", "mount -t tmpfs -o size=4m none /full", "mount -t tmpfs -o size=4m none /var/log"]
    {
        hosts.run("host1", command);
    }
    hosts.put("/calico/v1/config/LogFilePath", "/var/log/tortie.log");
    hosts.start_agent(1);
    hosts.until_routes(1, OWN);
    cached(&hosts, "/full/cache.json", "10.244.1.0");
    let fill = "for dir in /full /var/log; do cat /dev/zero > $dir/fill 2>/dev/null; done; true";
    assert!(hosts.lab.exec("host1", &["sh", "-c", fill]).unwrap().status.success());
    // More than the free space of its last page.
    hosts.put("/calico/v1/config/ClusterGUID", &"full".repeat(5_000));
    let status = hosts.until(1, "reports both", |status| {
        codes(status).iter().filter(|code| **code == "disk-full").count() == 2 && has("cache-file")(status)
    });
    let text = status["problems"].to_string();
    assert!(
        text.contains("the cache (/full/cache.json)") && text.contains("the log (/var/log/tortie.log)"),
        "{text}"
    );
    hosts.run("host1", "rm /full/fill /var/log/fill");
    hosts.until(1, "has room again", |status| !has("disk-full")(status) && !has("cache-file")(status));
    cached(&hosts, "/full/cache.json", "fullfull");
}
