//! The agent apart from routing: logs that follow the store, requests on its socket, registration, shutdown.

mod fault_setups;
mod faults;
mod identity;
mod ipam;
mod mask;
mod metrics;
mod mixed_versions;
mod observe_mode;
mod process;
mod rbac;
mod refusals;
mod screens;
mod store_file;
mod unreadable;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::common::concurrency::uninterrupted;
use crate::common::hosts::{Hosts, PATIENCE, Plan, block, block_keys, stderr, stdout, within};
use serde_json::json;
use tortie_topology::Signal;

fn up(plan: Plan) -> Option<Hosts> {
    let hosts = Hosts::up(plan)?;
    within(PATIENCE, "the block of host 2", || {
        if hosts.routes(1).contains("10.244.2.0/26") { Ok(()) } else { Err(hosts.log(1)) }
    });
    Some(hosts)
}

/// Adds a block to host 1 and returns the log line of its agent.
fn event(hosts: &Hosts, n: u32) -> String {
    let cidr = format!("10.244.{n}.0/26");
    let [affinity, assignment] = block_keys(&cidr, "host1");
    hosts.import(&[(affinity, String::new()), (assignment, block(&cidr, "host1"))].into());
    within(PATIENCE, "the block is in force", || {
        if hosts.routes(1).contains(&format!("{cidr} blackhole")) { Ok(()) } else { Err(hosts.log(1)) }
    });
    format!("{cidr}: originated")
}

#[test]
fn logs_follow_the_store() {
    let Some(hosts) = up(Plan { hosts: 2, ..Plan::default() }) else { return };
    let file = hosts.path(1, "/var/log/calico/agent.log");
    let logged = || std::fs::read_to_string(&file).unwrap_or_default();
    let holds = |what: &str, read: &dyn Fn() -> String, text: &str| {
        within(PATIENCE, what, || if read().contains(text) { Ok(()) } else { Err(read()) });
    };
    let screen = || hosts.log(1);
    // No file by default; then one that is created with its folder.
    let line = event(&hosts, 100);
    holds("the screen has it", &screen, &line);
    assert!(!file.exists());
    hosts.put("/calico/v1/config/LogFilePath", "/var/log/calico/agent.log");
    within(PATIENCE, "the file is made", || if file.exists() { Ok(()) } else { Err(hosts.log(1)) });
    let line = event(&hosts, 101);
    holds("the file has it", &logged, &line);
    // The host's setting overrides the global one: `none` disables the file for this host only.
    hosts.put_in_force(1, "/calico/v1/host/host1/config/LogSeverityFile", "none");
    let line = event(&hosts, 102);
    holds("the screen has it", &screen, &line);
    assert!(!logged().contains(&line));
    hosts.put("/calico/v1/host/host1/config/LogSeverityFile", "INFO");
    hosts.put_in_force(1, "/calico/v1/config/LogSeverityScreen", "none");
    let line = event(&hosts, 103);
    holds("the file has it", &logged, &line);
    assert!(!screen().contains(&line));
    // Only warnings and more severe messages.
    hosts.put_in_force(1, "/calico/v1/config/LogSeverityScreen", "WARNING");
    let line = event(&hosts, 104);
    holds("the file has it", &logged, &line);
    hosts.put("/calico/v1/Ready", "false");
    holds("the screen has the freeze", &screen, "frozen: /calico/v1/Ready is `false`");
    assert!(!screen().contains(&line));
    hosts.put("/calico/v1/Ready", "true");
    hosts.put_in_force(1, "/calico/v1/config/LogSeverityScreen", "INFO");
    // A file that cannot be opened is a problem as long as that lasts; standard error is not affected.
    hosts.put("/calico/v1/host/host1/config/LogFilePath", "/etc/nowhere/agent.log");
    let status = hosts.until(1, "the file is a problem", |s| s["problems"].to_string().contains("log-file"));
    assert!(status["problems"].to_string().contains("/etc/nowhere/agent.log"), "{status:#}");
    let line = event(&hosts, 105);
    holds("the screen has it", &screen, &line);
    hosts.rm("/calico/v1/host/host1/config/LogFilePath");
    hosts.until(1, "no problem any more", |s| !s["problems"].to_string().contains("log-file"));
    let line = event(&hosts, 106);
    holds("the file has it", &logged, &line);

    // BGP has a log level of its own; the host's setting overrides the global one.
    let session = |hosts: &Hosts| {
        let before = hosts.sessions(1).into_values().next().unwrap().2;
        let reset = hosts.tortie(1, &["bgp", "reset", "host2"]);
        assert!(reset.status.success(), "{reset:?}");
        hosts.until(1, "the session is back", |s| s["bgp"]["mesh"]["up"] == 1);
        within(PATIENCE, "the session was reset", || {
            let (state, _, flaps) = hosts.sessions(1).into_values().next().unwrap();
            if flaps > before && state == "Established" { Ok(()) } else { Err(format!("{state} {flaps}")) }
        });
    };
    let reported = |log: &str| log.matches("-> Established").count();
    let first = reported(&hosts.log(1));
    assert!(first > 0);
    hosts.put_in_force(1, "/calico/bgp/v1/global/loglevel", "none");
    session(&hosts);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(reported(&hosts.log(1)), first);
    hosts.put_in_force(1, "/calico/bgp/v1/host/host1/loglevel", "debug");
    session(&hosts);
    within(PATIENCE, "the session is in the log", || {
        let log = hosts.log(1);
        if reported(&log) > first && log.contains("-> OpenSent") { Ok(()) } else { Err(log) }
    });
}

#[test]
fn the_socket_says_when_an_endpoint_is_in_force() {
    let Some(hosts) = up(Plan { hosts: 2, ..Plan::default() }) else { return };
    let key = "/calico/v1/host/host1/workload/lab/web1/endpoint/eth1";
    let ask = |revision: u64, wait: u64| {
        let body = json!({ "key": key, "revision": revision, "waitMillis": wait }).to_string();
        let (code, body) = hosts.ask(1, "POST", "/v1/applied", &body).unwrap();
        assert_eq!(code, 200, "{body}");
        serde_json::from_str::<serde_json::Value>(&body).unwrap()
    };
    let put = |value: &str| hosts.put_at_revision(key, value);
    let value = &crate::common::hosts::lab_data(2, false)[key];
    let revision = put(value);
    let answer = ask(revision, 30_000);
    assert_eq!(answer["result"], "applied", "{answer}");
    assert!(answer["revision"].as_u64().unwrap() >= revision);
    let begin = std::time::Instant::now();
    assert_eq!(ask(revision + 1_000, 400)["result"], "timeout");
    assert!(begin.elapsed() >= Duration::from_millis(300));
    let answer = ask(put("{broken"), 30_000);
    assert_eq!(answer["result"], "failed", "{answer}");
    assert!(answer["reason"].as_str().unwrap().contains("JSON"), "{answer}");
    put(value);
    hosts.put("/calico/v1/Ready", "false");
    hosts.until(1, "freezes", |s| s["verdict"] == "frozen");
    let answer = ask(1, 1_000);
    assert_eq!(answer["result"], "frozen", "{answer}");
    assert!(answer["reason"].as_str().unwrap().contains("Ready"));
    // A malformed request is rejected with the name of the field.
    let (code, body) = hosts.ask(1, "POST", "/v1/applied", r#"{"kye":"x"}"#).unwrap();
    assert_eq!(code, 400);
    assert!(body.contains("missing field `key`"), "{body}");
}

#[test]
fn a_change_is_reported_from_the_store_to_the_kernel_and_on_the_routes_of_both_hosts() {
    let Some(hosts) = up(Plan { hosts: 2, ..Plan::default() }) else { return };
    hosts.until_routes(2, &["10.244.2.0/26 blackhole", "10.244.1.0/26"]);
    // The dump at start is a full comparison, and `status` shows its time.
    let status = stdout(&hosts.tortie(1, &["status"]));
    assert!(status.contains("last full compare") && !status.contains("compare never"), "{status}");
    event(&hosts, 101);
    within(PATIENCE, "the other host has it", || {
        if hosts.routes(2).contains("10.244.101.0/26") { Ok(()) } else { Err(hosts.log(2)) }
    });
    let history = |host: usize, subject: &str| -> Vec<serde_json::Value> {
        let list = hosts.get(host, &format!("/v1/history?subject={subject}")).unwrap();
        list["items"].as_array().unwrap().clone()
    };
    // The kernel has a route before the agent has read the acknowledgement.
    let row = |host: usize| {
        let mut row = serde_json::Value::Null;
        within(PATIENCE, "the route is installed", || {
            let output = hosts.tortie(host, &["route", "list", "10.244.101.0/26", "-o", "json"]);
            let list: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            row = list["items"][0].clone();
            if row["state"] == "installed" { Ok(()) } else { Err(format!("{output:?}")) }
        });
        row
    };
    let acknowledged = |host: usize, subject: &str| {
        let mut log = Vec::new();
        within(PATIENCE, "the acknowledgement is recorded", || {
            log = history(host, subject);
            let written =
                |e: &serde_json::Value| e["plane"] == "kernel" && e["text"].to_string().contains("written");
            if log.iter().any(written) { Ok(()) } else { Err(format!("{log:#?}")) }
        });
        log
    };
    let own = row(1);
    let change = own["change"].as_str().unwrap();
    assert_eq!((&own["state"], &own["reason"]), (&json!("installed"), &json!("own-block")), "{own}");
    let log = acknowledged(1, change);
    let of = |plane: &str| {
        log.iter().find(|e| e["plane"] == plane).unwrap_or_else(|| panic!("no {plane}: {log:#?}"))
    };
    let revision = of("store")["revision"].as_u64().unwrap();
    assert!(of("store")["subject"].as_str().unwrap().contains("10.244.101.0-26"), "{log:#?}");
    assert!(of("routing")["text"].as_str().unwrap().starts_with("originated, from /calico/ipam/v2/"));
    let kernel = of("kernel");
    assert_eq!((&kernel["subject"], &kernel["mark"]), (&json!("10.244.101.0/26"), &json!("+")));
    assert!(
        kernel["text"].as_str().unwrap().starts_with("blackhole written, acknowledged after"),
        "{kernel}"
    );
    assert!(kernel["revision"].as_u64().unwrap() >= revision && revision > 0, "{log:#?}");
    // On the other host the route comes from an UPDATE: the change id of its batch is used up to the kernel.
    let learned = row(2);
    let change = learned["change"].as_str().unwrap();
    assert!(change.starts_with("c-") && learned["reason"] == "plain", "{learned}");
    let log = acknowledged(2, change);
    assert!(log.iter().any(|e| e["plane"] == "rib"), "{log:#?}");
    let single = history(2, "10.244.101.0/26");
    assert!(single.iter().any(|e| e["plane"] == "kernel" && e["change"] == change), "{single:#?}");
    let got: serde_json::Value =
        serde_json::from_slice(&hosts.tortie(2, &["route", "get", "10.244.101.9", "-o", "json"]).stdout)
            .unwrap();
    assert_eq!((&got["kernel"]["change"], &got["kernel"]["reason"]), (&json!(change), &learned["reason"]));
    // The withdrawal has a change of its own.
    for key in block_keys("10.244.101.0/26", "host1") {
        hosts.rm(&key);
    }
    within(PATIENCE, "the end is acknowledged", || {
        let log = history(1, "10.244.101.0/26");
        let end = |e: &serde_json::Value| e["text"].to_string().contains("blackhole removed");
        if log.iter().any(|e| end(e) && e["mark"] == "-" && e["change"] != own["change"]) {
            Ok(())
        } else {
            Err(format!("{log:#?}"))
        }
    });
}

#[test]
fn sigterm_leaves_the_routes_here_and_at_the_peers() {
    let Some(mut hosts) = up(Plan { hosts: 2, ..Plan::default() }) else { return };
    hosts.until_routes(2, &["10.244.2.0/26 blackhole", "10.244.1.0/26"]);
    let key = "/calico/tortie/v1/status/host1";
    let known = |hosts: &Hosts| hosts.store(&["get", key]).status.code() == Some(0);
    within(PATIENCE, "the status key is written", || if known(&hosts) { Ok(()) } else { Err(hosts.log(1)) });
    hosts.until_sessions(1);
    let unchanged = hosts.watch_unchanged(&[1, 2]);
    let socket = hosts.holder_path("host1", "/run/tortie/tortie.sock");
    assert!(socket.exists());
    hosts.signal("host1", Signal::TERM);
    hosts.until_ended(1);
    assert!(!socket.exists());
    assert!(!known(&hosts), "others must not think that an agent runs here");
    hosts.until(2, "the session is down", |s| s["bgp"]["mesh"]["up"] == 0);
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!((unchanged.monitor_output(1), unchanged.monitor_output(2)), (String::new(), String::new()));
    hosts.start("host1");
    hosts.until(1, "is back", |s| s["bgp"]["mesh"]["up"] == 1 && s["bgp"]["gracefulRestart"] == "idle");
    hosts.until(2, "has its peer", |s| s["bgp"]["mesh"]["up"] == 1);
    assert_eq!(
        (unchanged.monitor_output(1), unchanged.monitor_output(2)),
        (String::new(), String::new()),
        "nothing that was right is written"
    );
}

#[test]
fn a_host_makes_itself_known_and_observe_writes_nothing() {
    let flags = [(2, "--kernel observe".to_owned())].into();
    let plan = Plan { hosts: 3, data: Some(BTreeMap::new()), later: vec![1, 2, 3], flags, ..Plan::default() };
    let Some(hosts) = Hosts::up(plan) else { return };
    for host in [1, 2, 3] {
        hosts.run(&format!("host{host}"), "ip route add default via 172.30.0.254 dev eth1");
    }
    hosts.start_agent(1);
    let exported = || -> BTreeMap<String, String> {
        let output = hosts.store(&["export"]);
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    };
    let wanted = [
        ("/calico/v1/Ready", "true"),
        ("/calico/v1/host/host1/metadata", "{}"),
        ("/calico/v1/host/host1/bird_ip", "172.30.0.1"),
        ("/calico/bgp/v1/host/host1/ip_addr_v4", "172.30.0.1"),
        ("/calico/bgp/v1/host/host1/network_v4", "172.30.0.0/24"),
        ("/calico/bgp/v1/global/as_num", "64512"),
        ("/calico/bgp/v1/global/node_mesh", r#"{"enabled":true}"#),
    ];
    let mut known = BTreeMap::new();
    within(PATIENCE, "host1 is known", || {
        known = exported();
        let missing: Vec<_> =
            wanted.iter().filter(|(key, value)| known.get(*key).is_none_or(|now| now != value)).collect();
        if known.contains_key("/calico/tortie/v1/status/host1") && missing.is_empty() {
            Ok(())
        } else {
            Err(format!("without {missing:?}: {known:?}\n{}", hosts.log(1)))
        }
    });
    assert!(!known.keys().any(|k| k.contains("/pool/")));
    // In observe mode: not registered, and nothing in the kernel.
    hosts.put("/calico/bgp/v1/host/host2/ip_addr_v4", "172.30.0.2");
    let [affinity, assignment] = block_keys("10.244.2.0/26", "host2");
    hosts.import(&[(affinity, String::new()), (assignment, block("10.244.2.0/26", "host2"))].into());
    hosts.start_agent(2);
    // There are no sessions either: they belong to BIRD, which does not run, and that is reported.
    let status = hosts.until(2, "has compared", |s| s["beside"].is_object());
    assert!(status["beside"]["unseen"].to_string().contains("BIRD"), "{status:#}");
    std::thread::sleep(Duration::from_secs(1));
    let now = exported();
    let of_2: Vec<&String> = now.keys().filter(|k| k.contains("host2")).collect();
    assert_eq!(
        of_2,
        ["/calico/bgp/v1/host/host2/ip_addr_v4", "/calico/ipam/v2/host/host2/ipv4/block/10.244.2.0-26"]
    );
    assert_eq!(hosts.routes(2), BTreeSet::new());
    // The address of a running host.
    let rival = |name: &str| {
        let words = [
            "--datastore",
            "sqlite:/store/store.db",
            "--node",
            name,
            "agent",
            "--ip4",
            "172.30.0.1/24",
            "-o",
            "json",
        ];
        hosts.tortie(3, &words)
    };
    let refused = rival("host3");
    assert_eq!(refused.status.code(), Some(7), "{refused:?}");
    let text = stderr(&refused);
    let error: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(error["error"]["code"], "address-taken", "{text}");
    let text = error["error"]["text"].as_str().unwrap();
    assert!(text.contains("host1") && text.contains("172.30.0.1") && text.contains("--ip4"), "{text}");
    assert!(!exported().keys().any(|k| k.contains("host3")), "nothing written by the one that was refused");
    // A host in observe mode is no peer; after its removal no peer is missing.
    hosts.rm("/calico/bgp/v1/host/host2/ip_addr_v4");
    hosts.until(1, "is ready", |s| s["ready"] == true);
}

/// Parses metric families with their types as strictly as the format requires.
fn families(text: &str) -> BTreeMap<String, (String, usize)> {
    let mut found: BTreeMap<String, (String, usize)> = BTreeMap::new();
    let mut current = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            let twice = found.insert(name.to_owned(), (kind.to_owned(), 0));
            assert!(twice.is_none(), "{name} is there twice");
            current = name.to_owned();
        } else if !line.starts_with('#') {
            let end = line.find(['{', ' ']).unwrap();
            let (name, rest) = line.split_at(end);
            let (kind, count) = found.get_mut(&current).unwrap();
            let name = if kind == "histogram" {
                ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap()
            } else {
                name
            };
            assert_eq!(name, current, "{line}");
            assert_eq!(name.ends_with("_total"), kind == "counter", "{line}");
            let value = rest.rsplit(' ').next().unwrap();
            assert!(value.parse::<f64>().is_ok_and(f64::is_finite), "{line}");
            *count += 1;
        }
    }
    found
}

#[test]
fn health_and_metrics_answer_on_loopback_and_on_the_socket() {
    let Some(mut hosts) = up(Plan { hosts: 2, router: true, ..Plan::default() }) else { return };
    hosts.until(1, "is ready", |s| {
        s["ready"] == true && s["bgp"]["peers"]["up"] == 1 && s["bgp"]["mesh"]["up"] == 1
    });
    hosts.until_routes(1, &["10.244.1.0/26 blackhole", "10.244.2.0/26", "default"]);
    let http = |path: &str, host: &str| {
        let script = format!(
            "exec 3<>/dev/tcp/127.0.0.1/9099; printf 'GET {path} HTTP/1.0\\r\\nHost: {host}\\r\\n\\r\\n' >&3; cat <&3"
        );
        stdout(&hosts.lab.exec("host1", &["bash", "-c", &script]).unwrap())
    };
    for path in ["/livez", "/readyz", "/liveness", "/readiness"] {
        let answer = http(path, "localhost");
        assert!(answer.starts_with("HTTP/1.0 200") && answer.ends_with("\r\n\r\nok\n"), "{path}: {answer}");
    }
    assert!(http("/metrics", "evil.example").starts_with("HTTP/1.0 403"));
    // Writes are accepted on the unix socket only.
    assert!(http("/v1/store/accept", "localhost").starts_with("HTTP/1.0 404"));
    // One host reports the pools, some seconds after its start; the kernel has acknowledged all routes.
    let installed = "tortie_kernel_routes{table=\"main\",proto=\"179\",state=\"installed\"}";
    within(PATIENCE, "the pools and all routes", || {
        let (_, text) = hosts.ask(1, "GET", "/metrics", "")?;
        let count = text.lines().find_map(|line| line.strip_prefix(installed)?.trim().parse::<f64>().ok());
        let all = text.contains("tortie_ipam_pool_addresses{") && count.is_some_and(|count| count > 2.5);
        if all { Ok(()) } else { Err(text) }
    });
    let answer = http("/metrics", "127.0.0.1:9099");
    assert!(answer.to_lowercase().contains("content-type: text/plain; version=0.0.4"), "{answer}");
    let body = answer.split_once("\r\n\r\n").unwrap().1;
    let found = families(body);
    metrics::names_hold(body);
    metrics::is_valid(body);
    let gauges = [
        "tortie_build_info",
        "tortie_ready",
        "tortie_live",
        "tortie_start_time_seconds",
        "tortie_bgp_peer_up",
        "tortie_bgp_peer_fsm_state",
        "tortie_bgp_peer_prefixes",
        "tortie_bgp_peers",
        "tortie_bgp_peers_expected",
        "tortie_rib_routes",
        "tortie_rib_memory_bytes",
        "tortie_rib_attribute_sets",
        "tortie_kernel_routes",
        "tortie_store_connected",
        "tortie_store_revision",
        "tortie_store_watch_lag_seconds",
        "tortie_store_frozen",
        "tortie_store_invalid_objects",
        "tortie_drift_items",
    ];
    let counters = [
        "tortie_bgp_peer_flaps_total",
        "tortie_bgp_peer_connect_failures_total",
        "tortie_bgp_peer_messages_total",
        "tortie_bgp_update_errors_total",
        "tortie_rib_route_changes_total",
        "tortie_rib_import_rejected_total",
        "tortie_kernel_route_ops_total",
        "tortie_kernel_netlink_overruns_total",
        "tortie_kernel_route_external_changes_total",
        "tortie_store_events_total",
        "tortie_store_watch_restarts_total",
        "tortie_drift_repairs_total",
        "tortie_resyncs_total",
    ];
    for (kind, names) in [("gauge", &gauges[..]), ("counter", &counters[..])] {
        for name in names {
            let (found, _) = found.get(*name).unwrap_or_else(|| panic!("no {name}: {body}"));
            assert_eq!(found, kind, "{name}");
        }
    }
    let value = |line: &str| {
        let found = body.lines().find(|l| l.starts_with(line)).unwrap_or_else(|| panic!("no {line}: {body}"));
        found.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    let close = |line: &str, wanted: f64| assert!((value(line) - wanted).abs() < 1e-9, "{line}: {body}");
    close("tortie_ready ", 1.0);
    close("tortie_bgp_peers{type=\"mesh\",state=\"established\"}", 1.0);
    close("tortie_bgp_peers_expected{type=\"global\"}", 1.0);
    close(installed, 3.0);
    // Consecutive pages are the whole list.
    let list = |query: &str| {
        let (code, body) = hosts.ask(1, "GET", &format!("/v1/routes{query}"), "").unwrap();
        assert_eq!(code, 200, "{body}");
        serde_json::from_str::<serde_json::Value>(&body).unwrap()
    };
    let prefixes = |list: &serde_json::Value| -> Vec<String> {
        list["items"].as_array().unwrap().iter().map(|r| r["prefix"].as_str().unwrap().to_owned()).collect()
    };
    let (mut paged, mut page) = (Vec::new(), list("?max=1"));
    loop {
        paged.extend(prefixes(&page));
        let Some(next) = page["next"].as_str().map(str::to_owned) else { break };
        assert_eq!((page["items"].as_array().unwrap().len(), &page["more"]), (1, &true.into()), "{page}");
        page = list(&format!("?max=1&after={next}"));
    }
    paged.sort();
    let mut whole = prefixes(&list(""));
    whole.sort();
    assert_eq!((whole.len(), paged), (3, whole));
    assert_eq!(hosts.ask(1, "GET", "/v1/routes?after=10.0.0.0/8", "").unwrap().0, 400);
    // The label of a peer is the address without port.
    assert!(body.contains("peer=\"172.30.0.254\"") && body.contains("peer_as=\"65000\""), "{body}");
    assert!(!body.contains("172.30.0.254:179"), "{body}");

    // Without peers: alive, not ready, with the reason.
    hosts.kill("switch");
    hosts.kill("host2");
    let reset = hosts.tortie(1, &["bgp", "reset", "--all"]);
    assert!(reset.status.success(), "{reset:?}");
    assert_eq!(
        String::from_utf8_lossy(&reset.stdout),
        "2 sessions are reset; they are set up again by themselves\n"
    );
    within(PATIENCE, "not ready", || {
        let (code, body) = hosts.ask(1, "GET", "/readyz", "")?;
        if code == 503 && body.contains("0 of 2") { Ok(()) } else { Err(format!("{code} {body}")) }
    });
    assert_eq!(hosts.ask(1, "GET", "/livez", "").unwrap().0, 200);
    assert_eq!(hosts.tortie(1, &["status"]).status.code(), Some(1));
}

/// Metrics about decisions and their consequences. All others count queries, time or keepalives.
const DECISIONS: [&str; 7] = [
    "tortie_rib_",
    "tortie_kernel_",
    "tortie_policy_",
    "tortie_drift_",
    "tortie_dataplane_",
    "tortie_bgp_notifications_total",
    "tortie_bgp_update_errors_total",
];

#[test]
fn questions_why_move_no_metric() {
    let Some(hosts) = up(Plan { hosts: 2, ..Plan::default() }) else { return };
    hosts.until_routes(2, &["10.244.2.0/26 blackhole", "10.244.1.0/26"]);
    let metrics = || -> BTreeSet<String> {
        let (code, text) = hosts.ask(1, "GET", "/metrics", "").unwrap();
        assert_eq!(code, 200);
        let of_decisions = |line: &&str| {
            DECISIONS.iter().any(|begin| line.starts_with(begin))
                && !["seconds", "memory"].iter().any(|word| line.contains(word))
        };
        text.lines().filter(of_decisions).map(str::to_owned).collect()
    };
    hosts.until(1, "the start is over", |s| s["ready"] == true && s["bgp"]["gracefulRestart"] == "idle");
    let before = metrics();
    let has = |name: &str| before.iter().any(|line| line.starts_with(name));
    assert!(has("tortie_rib_routes") && has("tortie_kernel_route_ops_total"), "{before:#?}");
    let asked = [
        ("/v1/why/peer?name=host2", "ok"),
        ("/v1/why/route?prefix=10.244.2.0%2F26", "ok"),
        ("/v1/why/route?prefix=10.244.2.1", "ok"),
        ("/v1/why/route?prefix=10.244.1.0%2F26&to=host2", "ok"),
        ("/v1/why/route?prefix=10.244.2.0%2F26&to=host2", "split-horizon"),
        ("/v1/why/route?prefix=203.0.113.0%2F24", "not-in-table"),
        // The endpoint's interface does not exist.
        ("/v1/why/ip?address=10.244.1.1", "endpoint-failed"),
        ("/v1/why/ip?address=203.0.113.1", "no-endpoint"),
    ];
    // Something else may move a metric meanwhile, such as the end of the start; a question would each time.
    within(PATIENCE, "nothing moves", || {
        let (before, begin) = (metrics(), std::time::Instant::now());
        for _ in 0..5 {
            for (path, code) in asked {
                let answer = hosts.get(1, path)?;
                assert_eq!(answer["code"], code, "{path}: {answer:#}");
                assert!(!answer["notLookedAt"].as_array().unwrap().is_empty(), "{path}: {answer:#}");
            }
        }
        println!("{} answers in {} ms", 5 * asked.len(), begin.elapsed().as_millis());
        let after = metrics();
        let moved: Vec<&String> = after.symmetric_difference(&before).collect();
        if moved.is_empty() { Ok(()) } else { Err(format!("{moved:#?}")) }
    });
    for path in ["/v1/why/route?prefix=x", "/v1/why/ip?address=x", "/v1/history?kinds=x"] {
        assert_eq!(hosts.ask(1, "GET", path, "").unwrap().0, 400, "{path}");
    }
    assert_eq!(hosts.ask(1, "GET", "/v1/why/peer?name=nobody", "").unwrap().0, 404);
}

#[test]
fn a_follower_gets_missed_entries_or_a_notice_that_some_are_missing() {
    let Some(hosts) = up(Plan { hosts: 2, ..Plan::default() }) else { return };
    // Returns the events until one has this text, and those of a short time after it.
    let follow = |header: &str, query: &str, text: &str| {
        let socket = format!("/proc/{}/root/run/tortie/tortie.sock", hosts.pid(1));
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(400))).unwrap();
        let request = format!("GET /v1/events{query} HTTP/1.1\r\nHost: localhost\r\n{header}\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let (begin, mut answer, mut octets) = (std::time::Instant::now(), Vec::new(), [0; 4096]);
        loop {
            match uninterrupted(|| stream.read(&mut octets)) {
                Ok(0) => panic!("the stream goes on"),
                Ok(n) => answer.extend_from_slice(&octets[..n]),
                // Nothing more for a while.
                Err(_) => {
                    let so_far = String::from_utf8_lossy(&answer).into_owned();
                    if so_far.contains(text) {
                        return so_far;
                    }
                    assert!(begin.elapsed() < PATIENCE, "no {text}: {so_far}");
                }
            }
        }
    };
    event(&hosts, 101);
    let list = hosts.get(1, "/v1/history?kinds=route&prefix=10.244.101.0%2F26").unwrap();
    let items = list["items"].as_array().unwrap();
    assert!(items.iter().any(|e| e["text"].to_string().contains("originated")), "{list:#}");
    let first = items[0]["seq"].as_u64().unwrap();

    let text = follow(&format!("Last-Event-ID: {}\r\n", first - 1), "", &format!("id: {first}"));
    assert!(text.contains("text/event-stream"), "{text}");
    assert!(!text.contains("event: reset"), "{text}");
    let text = follow("", &format!("?after={}&kinds=store", first - 1), "text/event-stream");
    assert!(!text.contains(&format!("id: {first}\n")), "not of that kind: {text}");
    // Numbers of an earlier run of the agent, and an invalid one.
    for last in ["7", "x"] {
        follow(&format!("Last-Event-ID: {last}\r\n"), "", "event: reset");
    }
    assert_eq!(hosts.ask(1, "GET", "/v1/events?kinds=x", "").unwrap().0, 400);
}
