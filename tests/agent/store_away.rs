//! The store is unreachable, returns, loses its history or all its data: forwarding is unchanged, and changes
//! made in the meantime are applied afterwards.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::common::hosts::{Hosts, PATIENCE, Plan, block, block_keys, lab_data, stderr, stdout, within};

/// Expected routes of two hosts with one block each.
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

fn is_connected(status: &serde_json::Value) -> bool {
    status["store"]["away"].is_null() && status["store"]["connected"] == true
}

fn with_block(cidr: &str, host: &str) -> BTreeMap<String, String> {
    let [affinity, assignment] = block_keys(cidr, host);
    [(affinity, String::new()), (assignment, block(cidr, host))].into()
}

fn snapshots(hosts: &Hosts, host: usize) -> String {
    let (code, text) = hosts.ask(host, "GET", "/metrics", "").unwrap();
    assert_eq!(code, 200);
    let line = text.lines().find(|l| l.starts_with("tortie_store_snapshots_total")).unwrap();
    line.to_owned()
}

/// etcd is killed for a while, changed and compacted without the agents, and returns.
fn stopped_for(time: Duration) {
    let Some(mut hosts) = two_hosts(1) else { return };
    let mut unchanged = hosts.watch_unchanged(&[1, 2]);
    let begin = Instant::now();
    hosts.kill("etcd1");
    for host in [1, 2] {
        hosts.until(host, "says that the store is away", is_away);
    }
    std::thread::sleep(time.saturating_sub(begin.elapsed()));
    unchanged.assert_unchanged(&hosts, "store away");
    // Alive, and the problem is reported.
    assert_eq!(hosts.ask(1, "GET", "/livez", "").unwrap().0, 200);
    let status = hosts.status(1);
    let problems = status["problems"].as_array().unwrap();
    assert!(problems.iter().any(|p| p["code"] == "store-away"), "{status:#}");
    assert!(stdout(&hosts.tortie(1, &["status"])).contains("AWAY"));

    // Changes that the agents cannot see, first with and then without their history.
    let mut wanted = [ROUTES_1.to_vec(), ROUTES_2.to_vec()];
    for (round, (mine, theirs)) in
        [("10.244.1.64/26", "10.244.2.64/26"), ("10.244.1.128/26", "10.244.2.128/26")].into_iter().enumerate()
    {
        hosts.cable(1, false);
        if round == 1 {
            hosts.kill("etcd1");
        }
        hosts.start_etcd();
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
        unchanged.assert_unchanged(&hosts, "store changes out of sight");
        let before = snapshots(&hosts, 1);
        hosts.cable(1, true);
        for host in [1, 2] {
            hosts.until(host, "the store answers again", is_connected);
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
        let after = snapshots(&hosts, 1);
        assert_eq!(after != before, round == 1, "lists again only when the history is gone: {after}");
        unchanged.assert_sessions_unchanged(&hosts, "store back");
        let said = unchanged.monitor_output(1);
        assert!(!said.contains("10.244.2.0/26"), "a route that nobody changed was touched:\n{said}");
        unchanged = hosts.watch_unchanged(&[1, 2]);
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

/// Host 1 knows only the member that is killed; BGP carries the routes that host 2 reads from the other
/// members.
#[test]
fn one_member_of_three() {
    let members = [(1, vec![1]), (2, vec![2, 3])].into();
    let Some(mut hosts) = Hosts::up(Plan { hosts: 2, etcd: 3, members, ..Plan::default() }) else { return };
    hosts.until_routes(1, ROUTES_1);
    hosts.until_routes(2, ROUTES_2);
    let mut unchanged = hosts.watch_unchanged(&[1, 2]);
    hosts.kill("etcd1");
    hosts.until(1, "says that the store is away", is_away);
    within(PATIENCE, "the others have a leader", || hosts.try_etcdctl(2, &["endpoint", "health"]).map(drop));
    hosts.until(2, "follows the others", is_connected);
    unchanged.assert_unchanged(&hosts, "a member is away");
    hosts.import_at(2, &with_block("10.244.1.64/26", "host1"));
    hosts.import_at(2, &with_block("10.244.2.64/26", "host2"));
    hosts.until_routes(2, &[ROUTES_2, &["10.244.2.64/26 blackhole"]].concat());
    hosts.until_routes(1, &[ROUTES_1, &["10.244.2.64/26"]].concat());
    assert!(is_away(&hosts.status(1)));
    hosts.start("etcd1");
    hosts.until_routes(1, &[ROUTES_1, &["10.244.2.64/26", "10.244.1.64/26 blackhole"]].concat());
    hosts.until_routes(2, &[ROUTES_2, &["10.244.2.64/26 blackhole", "10.244.1.64/26"]].concat());
    unchanged.assert_sessions_unchanged(&hosts, "the member is back");
}

/// Waits until a host's cache contains this text.
fn until_cached(hosts: &Hosts, host: usize, text: &str) {
    let path = hosts.path(host, "/var/lib/tortie/cache.json");
    within(PATIENCE, "the cache is written", || match std::fs::read(&path) {
        Ok(bytes) if String::from_utf8_lossy(&bytes).contains(text) => Ok(()),
        Ok(bytes) => Err(String::from_utf8_lossy(&bytes).into_owned()),
        Err(e) => Err(e.to_string()),
    });
}

/// Returns the lines of `ip monitor` that report deletions.
fn deletions(said: &str) -> Vec<&str> {
    said.lines().filter(|l| l.contains("Deleted")).collect()
}

#[test]
fn a_start_without_the_store_runs_from_the_cache() {
    let Some(mut hosts) = two_hosts(1) else { return };
    until_cached(&hosts, 1, "10.244.1.0-26");
    let unchanged = hosts.watch_unchanged(&[1, 2]);
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
    assert_eq!(deletions(&unchanged.monitor_output(1)), Vec::<&str>::new());
    // The peer kept all routes.
    assert_eq!(unchanged.monitor_output(2), "");
    hosts.start("etcd1");
    hosts.until(1, "follows the store again", |s| s["store"]["fromCache"] == false && is_connected(s));
    hosts.import(&with_block("10.244.1.64/26", "host1"));
    hosts.until_routes(2, &[ROUTES_2, &["10.244.1.64/26"]].concat());
    assert_eq!(deletions(&unchanged.monitor_output(1)), Vec::<&str>::new());
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
    // The next write of the cache would be immediate.
    std::thread::sleep(Duration::from_secs(11));
    let mut unchanged = hosts.watch_unchanged(&[1, 2]);
    hosts.etcdctl(1, &["del", "--prefix", "/calico/"]);
    for host in [1, 2] {
        let status = hosts.until(host, "freezes", is_frozen);
        let problems = status["problems"].as_array().unwrap();
        let frozen = problems.iter().find(|p| p["code"] == "frozen").unwrap();
        assert!(frozen["next"].as_str().unwrap().contains("tortie store accept"), "{frozen}");
    }
    std::thread::sleep(Duration::from_secs(2));
    unchanged.assert_unchanged(&hosts, "wiped");
    let applied = r#"{"key":"/calico/v1/Ready","revision":1,"waitMillis":1000}"#;
    let (_, applied) = hosts.ask(1, "POST", "/v1/applied", applied).unwrap();
    assert!(applied.contains(r#""result":"frozen""#), "{applied}");
    // An agent does not start from the store's present content.
    until_cached(&hosts, 1, "10.244.1.0-26");
    hosts.kill("host1");
    hosts.start("host1");
    hosts.until(1, "is frozen again", |s| is_frozen(s) && s["bgp"]["mesh"]["up"] == 1);
    hosts.until(1, "the restart is over", |s| s["bgp"]["gracefulRestart"] == "idle");
    assert_eq!(hosts.status(1)["store"]["fromCache"], true);
    hosts.until_routes(1, ROUTES_1);
    assert_eq!(deletions(&unchanged.monitor_output(1)), Vec::<&str>::new());
    assert_eq!(unchanged.monitor_output(2), "");
    assert_eq!(stdout(&hosts.store(&["ls", "/calico/bgp"])), "", "a frozen agent makes nothing known");
    // The keys return, with a change.
    let mut data = lab_data(2, false);
    data.extend(with_block("10.244.2.64/26", "host2"));
    hosts.import(&data);
    for host in [1, 2] {
        hosts.until(host, "continues", not_frozen);
    }
    hosts.until_routes(1, &[ROUTES_1, &["10.244.2.64/26"]].concat());
    hosts.until_routes(2, &[ROUTES_2, &["10.244.2.64/26 blackhole"]].concat());
    assert_eq!(deletions(&unchanged.monitor_output(1)), Vec::<&str>::new());
}

#[test]
fn an_empty_etcd_in_its_place_is_obeyed_only_when_accepted() {
    let Some(mut hosts) = two_hosts(1) else { return };
    until_cached(&hosts, 1, "10.244.1.0-26");
    let mut unchanged = hosts.watch_unchanged(&[1, 2]);
    hosts.kill("etcd1");
    hosts.run("etcd1", "rm -rf /var/tmp/etcd");
    hosts.start_etcd();
    for host in [1, 2] {
        hosts.until(host, "freezes", is_frozen);
    }
    unchanged.assert_unchanged(&hosts, "another history");
    hosts.kill("host1");
    hosts.start("host1");
    hosts.until(1, "is frozen again", |s| is_frozen(s) && s["bgp"]["mesh"]["up"] == 1);
    hosts.until_routes(1, ROUTES_1);
    assert_eq!(deletions(&unchanged.monitor_output(1)), Vec::<&str>::new());
    assert_eq!(stdout(&hosts.store(&["ls", "/calico/bgp"])), "", "a frozen agent makes nothing known");

    let accepted = hosts.tortie(2, &["store", "accept"]);
    assert!(accepted.status.success(), "{accepted:?}");
    hosts.until(2, "continues", not_frozen);
    // Its network has no keys any more, and it registers as at a first start.
    hosts.until_routes(2, &[]);
    within(PATIENCE, "host2 is known", || match stdout(&hosts.store(&["ls", "/calico/v1/host/host2/"])) {
        keys if keys.contains("metadata") => Ok(()),
        keys => Err(keys),
    });
    // Nothing was accepted on host 1.
    assert!(is_frozen(&hosts.status(1)));
    assert!(hosts.routes(1).contains("10.244.1.0/26 blackhole"));
    // There is nothing to accept.
    let again = hosts.tortie(2, &["store", "accept"]);
    assert!(stdout(&again).contains("no freeze can be ended here"), "{again:?}");
}

#[test]
fn ready_is_obeyed() {
    let Some(hosts) = two_hosts(0) else { return };
    let mut unchanged = hosts.watch_unchanged(&[1, 2]);
    hosts.put("/calico/v1/Ready", "false");
    hosts.until(1, "freezes", is_frozen);
    hosts.until(2, "freezes", is_frozen);
    hosts.import(&with_block("10.244.2.64/26", "host2"));
    for key in block_keys("10.244.1.0/26", "host1") {
        hosts.rm(&key);
    }
    std::thread::sleep(Duration::from_secs(1));
    unchanged.assert_unchanged(&hosts, "not ready");
    // Accepting does not set Ready.
    let accepted = hosts.tortie(1, &["store", "accept"]);
    assert!(stdout(&accepted).contains("Ready"), "{}{}", stdout(&accepted), stderr(&accepted));
    assert!(is_frozen(&hosts.status(1)));
    hosts.put("/calico/v1/Ready", "true");
    // Without its block, the address of host 1's workload is outside of own blocks and announced by itself.
    hosts.until_routes(1, &["10.244.2.0/26", "10.244.2.64/26"]);
    hosts.until_routes(2, &["10.244.2.0/26 blackhole", "10.244.2.64/26 blackhole", "10.244.1.1"]);
    unchanged.assert_sessions_unchanged(&hosts, "ready again");
    // An absent key is not false, but not true either.
    let mut unchanged = hosts.watch_unchanged(&[1, 2]);
    hosts.rm("/calico/v1/Ready");
    hosts.until(1, "freezes", is_frozen);
    unchanged.assert_unchanged(&hosts, "Ready is gone");
    let accepted = hosts.tortie(1, &["store", "accept"]);
    assert!(accepted.status.success(), "{accepted:?}");
    hosts.until(1, "continues", not_frozen);
    unchanged.assert_unchanged(&hosts, "accepted");
}

/// The file of a SQLite store is replaced by an empty one.
#[test]
fn a_lost_sqlite_file_flushes_nothing() {
    let Some(hosts) = two_hosts(0) else { return };
    until_cached(&hosts, 1, "10.244.1.0-26");
    let mut unchanged = hosts.watch_unchanged(&[1, 2]);
    let kept = stdout(&hosts.store(&["export"]));
    hosts.run("host1", "rm -f /store/store.db /store/store.db-wal /store/store.db-shm");
    std::thread::sleep(Duration::from_secs(3));
    unchanged.assert_unchanged(&hosts, "file gone");
    hosts.put("/calico/v1/Ready", "true");
    hosts.until(1, "freezes", is_frozen);
    hosts.until(2, "freezes", is_frozen);
    unchanged.assert_unchanged(&hosts, "another file");
    let kept: BTreeMap<String, String> = serde_json::from_str(&kept).unwrap();
    hosts.import(&kept);
    let accepted = hosts.tortie(1, &["store", "accept"]);
    assert!(accepted.status.success(), "{accepted:?}");
    hosts.until(1, "continues", not_frozen);
    unchanged.assert_unchanged(&hosts, "the same data in another file");
}

/// Returns one key of every kind that an agent reads, in addition to those of the lab files.
fn every_kind() -> BTreeMap<String, String> {
    let mut data = lab_data(3, true);
    let more = [
        ("v1/config/InterfacePrefix", "cali"),
        ("v1/config/LogSeverityScreen", "INFO"),
        ("v1/config/IpInIpMtu", "1440"),
        ("v1/host/host1/config/LogSeverityFile", "none"),
        ("v1/host/host1/config/DefaultEndpointToHostAction", "RETURN"),
        (
            "v1/host/host1/endpoint/eth1",
            r#"{"name":"eth1","expected_ipv4_addrs":["172.30.0.1"],"profile_ids":["lab"],"labels":{}}"#,
        ),
        ("v1/policy/profile/lab/labels", r#"{"zone":"a"}"#),
        ("v1/policy/tier/default/metadata", r#"{"order":100}"#),
        (
            "v1/policy/tier/default/policy/p1",
            r#"{"selector":"all()","order":10,"inbound_rules":[{"action":"allow"}],"outbound_rules":[{"action":"allow"}]}"#,
        ),
        ("v1/ipam/v6/pool/fd00:10:244::-48", r#"{"cidr":"fd00:10:244::/48"}"#),
        ("ipam/v2/config", r#"{"strict_affinity":false,"auto_allocate_blocks":true}"#),
        ("bgp/v1/global/loglevel", "info"),
        ("bgp/v1/global/listen_port", "179"),
        ("bgp/v1/host/host1/as_num", "64512"),
        ("bgp/v1/host/host1/peer_v4/172.30.0.99", r#"{"ip":"172.30.0.99","as_num":"65099"}"#),
        ("bgp/v1/host/host3/as_num", "64512"),
        ("bgp/v1/host/host1/ip_addr_v6", ""),
    ];
    data.extend(more.map(|(k, v)| (format!("/calico/{k}"), v.to_owned())));
    data
}

const WITH_ROUTER: &[&str] = &["10.244.1.0/26 blackhole", "10.244.2.0/26", "10.244.3.0/26", "default"];

fn with_every_kind() -> Option<(Hosts, BTreeMap<String, String>)> {
    let data = every_kind();
    let plan = Plan { hosts: 3, router: true, data: Some(data.clone()), ..Plan::default() };
    let hosts = Hosts::up(plan)?;
    for host in [1, 2, 3] {
        // The peer at .99 of host 1 does not exist.
        hosts.until(host, "sessions up", |s| s["bgp"]["mesh"]["up"] == 2 && s["bgp"]["peers"]["up"] == 1);
    }
    hosts.until_routes(1, WITH_ROUTER);
    Some((hosts, data))
}

/// Returns a value that cannot be parsed for this key, if there is one.
fn unreadable(key: &str) -> Option<&'static str> {
    let parsed = tortie_config::Key::parse(key).unwrap();
    let fails = |v: &&str| tortie_config::Resource::parse(&parsed, v.as_bytes()).is_err();
    let garbage = ["{not what it should be", "\u{1}\u{fffd}"].into_iter().find(fails);
    garbage.or((key == "/calico/v1/Ready").then_some("{not what it should be"))
}

fn names(list: &serde_json::Value, field: &str, key: &str) -> bool {
    list.as_array().unwrap().iter().any(|o| o[field] == key)
}

#[test]
fn a_broken_value_in_any_one_key_moves_nothing_and_is_named() {
    let Some((hosts, data)) = with_every_kind() else { return };
    let mut unchanged = hosts.watch_unchanged(&[1, 2, 3]);
    let (mut named, mut elsewhere, mut any_text) = (Vec::new(), Vec::new(), Vec::new());
    for (key, value) in &data {
        let Some(garbage) = unreadable(key) else {
            any_text.push(key.as_str());
            continue;
        };
        hosts.put(key, garbage);
        let frozen = key == "/calico/v1/Ready";
        // Keys that only another host or an allocator reads are not watched here.
        let watched = !key.contains("/ipam/v2/handle/")
            && !["host2", "host3"].iter().any(|h| key.contains(&format!("/ipam/v2/host/{h}/")))
            && !["10.244.2.0-26", "10.244.3.0-26"].iter().any(|b| key.ends_with(&format!("/block/{b}")));
        if frozen {
            let status = hosts.until(1, "freezes", |s| {
                is_frozen(s) && s["store"]["frozen"].as_str().unwrap().contains(key)
            });
            // This cannot be accepted; the next step is another one.
            let next = status["problems"][0]["next"].as_str().unwrap();
            assert!(next.starts_with("tortie store put /calico/v1/Ready true,"), "{next}");
        } else if watched {
            let status =
                hosts.until(1, &format!("names {key}"), |s| names(&s["store"]["invalid"], "key", key));
            assert!(names(&status["problems"], "subject", key), "{status:#}");
            assert_eq!(status["store"]["invalid"].as_array().unwrap().len(), 1, "{status:#}");
        } else {
            let found = hosts.store(&["validate"]);
            assert_eq!(found.status.code(), Some(1));
            assert!(stdout(&found).contains(key.as_str()), "{found:?}");
        }
        unchanged.assert_unchanged(&hosts, key);
        hosts.put(key, value);
        hosts.until(1, &format!("{key} is right again"), |s| {
            s["store"]["invalid"] == serde_json::json!([]) && not_frozen(s)
        });
        if watched { named.push(key) } else { elsewhere.push(key) }
    }
    unchanged.assert_unchanged(&hosts, "all values are right again");
    println!(
        "named in status: {}; found by validate: {elsewhere:?}; any text is right: {any_text:?}",
        named.len()
    );
    assert!(named.len() > 30, "{named:?}");
    // Affinities are the keys whose values have no meaning other than `pendingDeletion` and similar words.
    assert!(any_text.len() < 12, "{any_text:?}");
}

/// Without a last good value, only that object is missing.
#[test]
fn a_start_with_a_broken_value_misses_only_that_object() {
    let Some((mut hosts, data)) = with_every_kind() else { return };
    let cases: [(&str, &[&str], u64, u64); 4] = [
        // Another host's address: no session with it, and no route of it.
        (
            "/calico/bgp/v1/host/host3/ip_addr_v4",
            &["10.244.1.0/26 blackhole", "10.244.2.0/26", "default"],
            1,
            1,
        ),
        // The router.
        (
            "/calico/bgp/v1/global/peer_v4/172.30.0.254",
            &["10.244.1.0/26 blackhole", "10.244.2.0/26", "10.244.3.0/26"],
            2,
            0,
        ),
        // The own block: its workload's address is announced by itself.
        (
            "/calico/ipam/v2/assignment/ipv4/block/10.244.1.0-26",
            &["10.244.2.0/26", "10.244.3.0/26", "default"],
            2,
            1,
        ),
        // A policy: no effect on routing. The host endpoint of the uplink has a profile that allows
        // everything.
        ("/calico/v1/policy/tier/default/policy/p1", WITH_ROUTER, 2, 1),
    ];
    for (key, routes, mesh, peers) in cases {
        hosts.put(key, unreadable(key).unwrap());
        hosts.signal("host1", tortie_topology::Signal::TERM);
        within(PATIENCE, "the agent ends", || {
            hosts.lab.pid("host1").map_or(Ok(()), |_| Err("it runs".into()))
        });
        std::fs::remove_file(hosts.holder_path("host1", "/var/lib/tortie/cache.json")).unwrap();
        hosts.start("host1");
        let status = hosts.until(1, &format!("runs without {key}"), |s| {
            s["bgp"]["mesh"]["up"] == mesh
                && s["bgp"]["peers"]["up"] == peers
                && names(&s["store"]["invalid"], "key", key)
        });
        assert_eq!(status["store"]["invalid"].as_array().unwrap().len(), 1, "{status:#}");
        hosts.until_routes(1, routes);
        hosts.put(key, &data[key]);
        hosts.until(1, &format!("runs with {key}"), |s| {
            s["bgp"]["mesh"]["up"] == 2 && s["bgp"]["peers"]["up"] == 1
        });
        hosts.until_routes(1, WITH_ROUTER);
    }
}
