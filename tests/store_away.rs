//! The store goes away, comes back, loses its history or all it has: what forwards packets stays as it is, and what was
//! changed meanwhile is in force afterwards.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test ends where something is not as it must be"
)]

#[path = "common/hosts.rs"]
mod hosts;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use hosts::{Hosts, PATIENCE, Plan, block, block_keys, lab_data, stderr, stdout, within};

/// The usual end of two hosts with one block each.
const ROUTES_1: &[&str] = &["10.244.1.0/26 blackhole", "10.244.2.0/26"];
const ROUTES_2: &[&str] = &["10.244.2.0/26 blackhole", "10.244.1.0/26"];

fn two_hosts(etcd: usize) -> Option<Hosts> {
    let hosts = Hosts::up(Plan { hosts: 2, etcd, ..Plan::default() })?;
    hosts.until_routes(1, ROUTES_1);
    hosts.until_routes(2, ROUTES_2);
    hosts.until_sessions(1);
    Some(hosts)
}

fn is_away(status: &serde_json::Value) -> bool {
    status["store"]["away"].is_string() && status["store"]["connected"] == false
}

fn answers(status: &serde_json::Value) -> bool {
    status["store"]["away"].is_null() && status["store"]["connected"] == true
}

fn with_block(cidr: &str, host: &str) -> BTreeMap<String, String> {
    let [affinity, assignment] = block_keys(cidr, host);
    [(affinity, String::new()), (assignment, block(cidr, host))].into()
}

fn snapshots(hosts: &Hosts, host: usize) -> u64 {
    let (code, text) = hosts.ask(host, "GET", "/metrics", "").unwrap();
    assert_eq!(code, 200);
    let line = text.lines().find(|l| l.starts_with("tortie_store_snapshots_total")).unwrap();
    line.split(' ').nth(1).unwrap().parse::<f64>().unwrap() as u64
}

/// etcd is killed for a while, changed and compacted out of sight of the agents, and comes back.
fn stopped_for(time: Duration) {
    let Some(mut hosts) = two_hosts(1) else { return };
    let mut still = hosts.still(&[1, 2]);
    let begin = Instant::now();
    hosts.kill("etcd1");
    for host in [1, 2] {
        hosts.until(host, "says that the store is away", is_away);
    }
    std::thread::sleep(time.saturating_sub(begin.elapsed()));
    still.check(&hosts, "store away");
    // Alive, and honest about it.
    assert_eq!(hosts.ask(1, "GET", "/livez", "").unwrap().0, 200);
    let status = hosts.status(1);
    let problems = status["problems"].as_array().unwrap();
    assert!(problems.iter().any(|p| p["code"] == "store-away"), "{status:#}");
    assert!(stdout(&hosts.tortie(1, &["status"])).contains("AWAY"));

    // Changes that no agent can see, first with and then without their history.
    let mut wanted = vec![ROUTES_1.to_vec(), ROUTES_2.to_vec()];
    for (round, (mine, theirs)) in
        [("10.244.1.64/26", "10.244.2.64/26"), ("10.244.1.128/26", "10.244.2.128/26")].into_iter().enumerate()
    {
        hosts.cable(1, false);
        if round == 1 {
            hosts.kill("etcd1");
        }
        hosts.start("etcd1");
        hosts.etcd_answers();
        hosts.import(&with_block(mine, "host1"));
        hosts.import(&with_block(theirs, "host2"));
        if round == 1 {
            for key in block_keys("10.244.2.64/26", "host2") {
                hosts.rm(&key);
            }
            let revision = hosts.etcdctl(1, &["get", "x", "-w", "fields"]);
            let revision =
                revision.lines().find_map(|l| l.strip_prefix("\"Revision\" : ")).unwrap().to_owned();
            hosts.etcdctl(1, &["compact", &revision, "--physical=true"]);
        }
        still.check(&hosts, "store changes out of sight");
        let before = snapshots(&hosts, 1);
        hosts.cable(1, true);
        for host in [1, 2] {
            hosts.until(host, "the store is back", answers);
        }
        wanted[0].push(theirs);
        wanted[1].push(mine);
        let (black_1, black_2) = (format!("{mine} blackhole"), format!("{theirs} blackhole"));
        wanted[0].push(Box::leak(black_1.into_boxed_str()));
        wanted[1].push(Box::leak(black_2.into_boxed_str()));
        if round == 1 {
            wanted.iter_mut().for_each(|list| list.retain(|w| !w.starts_with("10.244.2.64/26")));
        }
        hosts.until_routes(1, &wanted[0]);
        hosts.until_routes(2, &wanted[1]);
        let relists = snapshots(&hosts, 1) - before;
        assert_eq!(relists > 0, round == 1, "lists again only when the history is gone: {relists}");
        still.check_sessions(&hosts, "store back");
        let said = still.said(1);
        assert!(!said.contains("10.244.2.0/26"), "a route that nobody changed was touched:\n{said}");
        still = hosts.still(&[1, 2]);
    }
}

#[test]
fn stopped_and_compacted() {
    stopped_for(Duration::from_secs(10));
}

#[test]
#[ignore = "long: the store is away for a minute and more"]
fn long_stopped_and_compacted() {
    stopped_for(Duration::from_secs(75));
}

/// Host 1 knows only the member that is killed; BGP carries what host 2 reads from the others.
#[test]
fn one_member_of_three() {
    let members = [(1, vec![1]), (2, vec![2, 3])].into();
    let Some(mut hosts) = Hosts::up(Plan { hosts: 2, etcd: 3, members, ..Plan::default() }) else { return };
    hosts.until_routes(1, ROUTES_1);
    hosts.until_routes(2, ROUTES_2);
    let mut still = hosts.still(&[1, 2]);
    hosts.kill("etcd1");
    hosts.until(1, "says that the store is away", is_away);
    within(PATIENCE, "the others have a leader", || hosts.try_etcdctl(2, &["endpoint", "health"]).map(drop));
    hosts.until(2, "follows the others", answers);
    still.check(&hosts, "a member is away");
    hosts.import_at(2, &with_block("10.244.1.64/26", "host1"));
    hosts.import_at(2, &with_block("10.244.2.64/26", "host2"));
    hosts.until_routes(2, &[ROUTES_2, &["10.244.2.64/26 blackhole"]].concat());
    hosts.until_routes(1, &[ROUTES_1, &["10.244.2.64/26"]].concat());
    assert!(is_away(&hosts.status(1)));
    hosts.start("etcd1");
    hosts.until_routes(1, &[ROUTES_1, &["10.244.2.64/26", "10.244.1.64/26 blackhole"]].concat());
    hosts.until_routes(2, &[ROUTES_2, &["10.244.2.64/26 blackhole", "10.244.1.64/26"]].concat());
    still.check_sessions(&hosts, "the member is back");
}

/// Waits until a host's cache has this text in it.
fn until_cached(hosts: &Hosts, host: usize, text: &str) {
    let path = hosts.path(host, "/var/lib/tortie/cache.json");
    within(PATIENCE, "the cache is written", || match std::fs::read(&path) {
        Ok(bytes) if String::from_utf8_lossy(&bytes).contains(text) => Ok(()),
        Ok(bytes) => Err(String::from_utf8_lossy(&bytes).into_owned()),
        Err(e) => Err(e.to_string()),
    });
}

/// The lines of `ip monitor` that take something away.
fn deletions(said: &str) -> Vec<&str> {
    said.lines().filter(|l| l.contains("Deleted")).collect()
}

#[test]
fn a_start_without_the_store_runs_from_the_cache() {
    let Some(mut hosts) = two_hosts(1) else { return };
    until_cached(&hosts, 1, "10.244.1.0-26");
    let still = hosts.still(&[1, 2]);
    hosts.kill("etcd1");
    hosts.kill("host1");
    hosts.start("host1");
    let status = hosts.until(1, "runs from its cache, and says so", |s| {
        s["store"]["fromCache"] == true && s["bgp"]["mesh"]["up"] == 1
    });
    assert_eq!(status["store"]["connected"], false);
    assert!(!status["problems"].as_array().unwrap().is_empty(), "{status:#}");
    assert!(stdout(&hosts.tortie(1, &["status"])).contains("running from the cache"));
    hosts.until(1, "the restart is over", |s| s["bgp"]["gracefulRestart"] == "idle");
    hosts.until_routes(1, ROUTES_1);
    assert_eq!(deletions(&still.said(1)), Vec::<&str>::new());
    // The peer kept everything.
    assert_eq!(still.said(2), "");
    hosts.start("etcd1");
    hosts.until(1, "follows the store again", |s| s["store"]["fromCache"] == false && answers(s));
    hosts.import(&with_block("10.244.1.64/26", "host1"));
    hosts.until_routes(2, &[ROUTES_2, &["10.244.1.64/26"]].concat());
    assert_eq!(deletions(&still.said(1)), Vec::<&str>::new());
}

fn is_frozen(status: &serde_json::Value) -> bool {
    status["store"]["frozen"].is_string() && status["verdict"] == "frozen"
}

fn not_frozen(status: &serde_json::Value) -> bool {
    status["store"]["frozen"].is_null()
}

#[test]
fn a_wiped_store_flushes_nothing_and_the_keys_return() {
    let Some(mut hosts) = two_hosts(1) else { return };
    until_cached(&hosts, 1, "10.244.1.0-26");
    // The next write of the cache would be at once.
    std::thread::sleep(Duration::from_secs(21));
    let mut still = hosts.still(&[1, 2]);
    hosts.etcdctl(1, &["del", "--prefix", "/calico/"]);
    for host in [1, 2] {
        let status = hosts.until(host, "freezes", is_frozen);
        let problems = status["problems"].as_array().unwrap();
        let frozen = problems.iter().find(|p| p["code"] == "frozen").unwrap();
        assert!(frozen["next"].as_str().unwrap().contains("tortie store accept"), "{frozen}");
    }
    std::thread::sleep(Duration::from_secs(2));
    still.check(&hosts, "wiped");
    let applied = r#"{"key":"/calico/v1/Ready","revision":1,"waitMillis":1000}"#;
    let (_, applied) = hosts.ask(1, "POST", "/v1/applied", applied).unwrap();
    assert!(applied.contains(r#""result":"frozen""#), "{applied}");
    // What the store has now is not what an agent starts from.
    until_cached(&hosts, 1, "10.244.1.0-26");
    hosts.kill("host1");
    hosts.start("host1");
    hosts.until(1, "is frozen again", |s| is_frozen(s) && s["bgp"]["mesh"]["up"] == 1);
    hosts.until(1, "the restart is over", |s| s["bgp"]["gracefulRestart"] == "idle");
    assert_eq!(hosts.status(1)["store"]["fromCache"], true);
    hosts.until_routes(1, ROUTES_1);
    assert_eq!(deletions(&still.said(1)), Vec::<&str>::new());
    assert_eq!(still.said(2), "");
    assert_eq!(stdout(&hosts.store(&["ls", "/calico/bgp"])), "", "a frozen agent makes nothing known");
    // The keys return, with a change.
    let mut data = lab_data(2, false);
    data.extend(with_block("10.244.2.64/26", "host2"));
    hosts.import(&data);
    for host in [1, 2] {
        hosts.until(host, "goes on", not_frozen);
    }
    hosts.until_routes(1, &[ROUTES_1, &["10.244.2.64/26"]].concat());
    hosts.until_routes(2, &[ROUTES_2, &["10.244.2.64/26 blackhole"]].concat());
    assert_eq!(deletions(&still.said(1)), Vec::<&str>::new());
}

#[test]
fn an_empty_etcd_in_its_place_is_obeyed_only_when_accepted() {
    let Some(mut hosts) = two_hosts(1) else { return };
    until_cached(&hosts, 1, "10.244.1.0-26");
    let mut still = hosts.still(&[1, 2]);
    hosts.kill("etcd1");
    hosts.run("etcd1", "rm -rf /var/tmp/etcd");
    hosts.start("etcd1");
    hosts.etcd_answers();
    for host in [1, 2] {
        hosts.until(host, "freezes", is_frozen);
    }
    still.check(&hosts, "another history");
    hosts.kill("host1");
    hosts.start("host1");
    hosts.until(1, "is frozen again", |s| is_frozen(s) && s["bgp"]["mesh"]["up"] == 1);
    hosts.until_routes(1, ROUTES_1);
    assert_eq!(deletions(&still.said(1)), Vec::<&str>::new());
    assert_eq!(stdout(&hosts.store(&["ls", "/calico/bgp"])), "", "a frozen agent makes nothing known");

    let accepted = hosts.tortie(2, &["store", "accept"]);
    assert!(accepted.status.success(), "{accepted:?}");
    hosts.until(2, "goes on", not_frozen);
    // Nothing of the network is left for it, and it makes itself known as at a first start.
    hosts.until_routes(2, &[]);
    within(PATIENCE, "host2 is known", || match stdout(&hosts.store(&["ls", "/calico/v1/host/host2/"])) {
        keys if keys.contains("metadata") => Ok(()),
        keys => Err(keys),
    });
    // Host 1 was not asked.
    assert!(is_frozen(&hosts.status(1)));
    assert!(hosts.routes(1).contains("10.244.1.0/26 blackhole"));
    // Nothing to accept.
    let again = hosts.tortie(2, &["store", "accept"]);
    assert!(stdout(&again).contains("nothing was frozen"), "{again:?}");
}

#[test]
fn ready_is_obeyed() {
    let Some(hosts) = two_hosts(0) else { return };
    let mut still = hosts.still(&[1, 2]);
    hosts.put("/calico/v1/Ready", "false");
    hosts.until(1, "freezes", is_frozen);
    hosts.until(2, "freezes", is_frozen);
    hosts.import(&with_block("10.244.2.64/26", "host2"));
    for key in block_keys("10.244.1.0/26", "host1") {
        hosts.rm(&key);
    }
    std::thread::sleep(Duration::from_secs(1));
    still.check(&hosts, "not ready");
    // Accepting does not make it ready.
    let accepted = hosts.tortie(1, &["store", "accept"]);
    assert!(stdout(&accepted).contains("Ready"), "{}{}", stdout(&accepted), stderr(&accepted));
    assert!(is_frozen(&hosts.status(1)));
    hosts.put("/calico/v1/Ready", "true");
    // Without its block the address of host 1's workload is one outside of own blocks, announced for itself.
    hosts.until_routes(1, &["10.244.2.0/26", "10.244.2.64/26"]);
    hosts.until_routes(2, &["10.244.2.0/26 blackhole", "10.244.2.64/26 blackhole", "10.244.1.1"]);
    still.check_sessions(&hosts, "ready again");
    // Gone is not false, but it is not true either.
    let mut still = hosts.still(&[1, 2]);
    hosts.rm("/calico/v1/Ready");
    hosts.until(1, "freezes", is_frozen);
    still.check(&hosts, "Ready is gone");
    let accepted = hosts.tortie(1, &["store", "accept"]);
    assert!(accepted.status.success(), "{accepted:?}");
    hosts.until(1, "goes on", not_frozen);
    still.check(&hosts, "accepted");
}

/// The file of a SQLite store is replaced by an empty one.
#[test]
fn a_lost_sqlite_file_flushes_nothing() {
    let Some(hosts) = two_hosts(0) else { return };
    until_cached(&hosts, 1, "10.244.1.0-26");
    let mut still = hosts.still(&[1, 2]);
    let kept = stdout(&hosts.store(&["export"]));
    hosts.run("host1", "rm -f /store/store.db /store/store.db-wal /store/store.db-shm");
    std::thread::sleep(Duration::from_secs(3));
    still.check(&hosts, "file gone");
    hosts.put("/calico/v1/Ready", "true");
    hosts.until(1, "freezes", is_frozen);
    hosts.until(2, "freezes", is_frozen);
    still.check(&hosts, "another file");
    let kept: BTreeMap<String, String> = serde_json::from_str(&kept).unwrap();
    hosts.import(&kept);
    let accepted = hosts.tortie(1, &["store", "accept"]);
    assert!(accepted.status.success(), "{accepted:?}");
    hosts.until(1, "goes on", not_frozen);
    still.check(&hosts, "the same data in another file");
}
