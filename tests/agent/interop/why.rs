//! `why peer`, `why route`, `diff --hold` and the event stream with a real router: each fault is caused in
//! turn, and the answer must identify it.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::interop::probe::{Monitor, full_kernels, kernel};
use crate::interop::rig::{Backend, Net, put, within};

const LIMIT: Duration = Duration::from_secs(15);
const TOR: &str = "172.30.0.254";
const KEY: &str = "/calico/bgp/v1/global/peer_v4/172.30.0.254";
/// A block of host 2, which host 1 learns.
const LEARNED: &str = "10.244.2.0/26";

/// Returns the answer of a `why` command on host 1 with its exit code.
fn why(net: &Net, words: &[&str]) -> Result<(i32, Value), String> {
    let command = [&["tortie", "-o", "json", "why"], words].concat();
    let output = net.output("host1", &command)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let value = serde_json::from_str(&text)
        .map_err(|e| format!("{e}: {text}{}", String::from_utf8_lossy(&output.stderr)))?;
    Ok((output.status.code().unwrap_or(-1), value))
}

/// Waits for one of these codes, and checks the common parts of the answer.
fn until(net: &Net, words: &[&str], codes: &[&str]) -> Value {
    let (answer, _) = within(LIMIT, Instant::now(), &format!("{words:?} says {codes:?}"), || {
        let (exit, answer) = why(net, words)?;
        let good = answer["good"] == true;
        assert_eq!(exit, i32::from(!good), "{answer:#}");
        assert!(!answer["notLookedAt"].as_array().unwrap().is_empty(), "{answer:#}");
        let code = answer["code"].as_str().unwrap();
        if codes.contains(&code) { Ok(answer.clone()) } else { Err(format!("{answer:#}")) }
    });
    let stops = answer["steps"].as_array().unwrap().iter().any(|step| step["verdict"] == "stop");
    assert!(stops || answer["good"] == true, "nothing stands in the way: {answer:#}");
    answer
}

fn step<'a>(answer: &'a Value, name: &str) -> &'a Value {
    let steps = answer["steps"].as_array().unwrap();
    steps.iter().find(|step| step["name"] == name).unwrap_or_else(|| panic!("no step {name}: {answer:#}"))
}

fn peer(net: &Net, more: &str) {
    net.commit(vec![put(KEY, &format!("{{\"ip\": \"{TOR}\"{more}}}"))]);
}

#[test]
fn faults_are_named_by_the_answer() {
    let Some(net) = Net::file("tor-bird", Backend::Sqlite) else { return };
    within(LIMIT, net.started, "every block in every kernel", || full_kernels(&net));
    until(&net, &["peer", TOR], &["ok"]);
    until(&net, &["peer", "host2"], &["ok"]);
    until(&net, &["route", "0.0.0.0/0"], &["ok"]);
    let own = until(&net, &["route", "10.244.1.0/26", "--to", TOR], &["ok"]);
    assert_eq!(step(&own, "own-block")["verdict"], "ok", "{own:#}");
    assert_eq!(step(&own, "origin")["key"], "/calico/ipam/v2/assignment/ipv4/block/10.244.1.0-26");
    let mesh = until(&net, &["route", LEARNED, "--to", "host3"], &["reflection"]);
    assert!(mesh["fix"].to_string().contains("RFC 4271"), "{mesh:#}");
    until(&net, &["route", "203.0.113.7"], &["ok"]);
    until(&net, &["route", "203.0.113.0/24"], &["not-in-table"]);
    until(&net, &["peer", "172.30.0.99"], &["not-wanted"]);

    // A filter withholds the route: rule, key and revision.
    let rule =
        format!("{{\"export\": [{{\"match\": {{\"prefixes\": [\"{LEARNED}\"]}}, \"then\": \"reject\"}}]}}");
    net.commit(vec![put("/calico/bgp/v1/global/filters/hold", &rule)]);
    peer(&net, ", \"as_num\": \"65000\", \"filters\": [\"hold\"]");
    let held = until(&net, &["route", LEARNED, "--to", TOR], &["filter"]);
    let filter = step(&held, "filter");
    assert!(filter["text"].as_str().unwrap().starts_with("rule 1 of filter hold rejects it"), "{held:#}");
    assert_eq!(filter["key"], "/calico/bgp/v1/global/filters/hold");
    assert!(filter["revision"].as_u64().is_some_and(|revision| revision > 0), "{held:#}");
    assert_eq!(step(&held, "pool")["verdict"], "skipped");

    // A conflicting foreign route, and an unreachable next hop.
    let ip = |words: &[&str]| net.run("host1", &[&["ip", "route"], words].concat()).unwrap();
    ip(&["add", LEARNED, "via", "172.30.0.2", "metric", "100"]);
    let foreign = until(&net, &["route", LEARNED], &["foreign-route"]);
    assert!(foreign["conclusion"].as_str().unwrap().contains("metric 100"), "{foreign:#}");
    ip(&["del", LEARNED, "metric", "100"]);
    until(&net, &["route", LEARNED], &["ok"]);
    ip(&["add", "unreachable", "172.30.0.2/32"]);
    let lost = until(&net, &["route", LEARNED], &["next-hop", "unresolved"]);
    assert!(lost["conclusion"].as_str().unwrap().contains("172.30.0.2"), "{lost:#}");
    ip(&["del", "unreachable", "172.30.0.2/32"]);
    until(&net, &["route", LEARNED], &["ok"]);

    // A route deleted by another process stays deleted while repair is held, and is repaired on request.
    let tortie = |words: &[&str]| net.output("host1", &[&["tortie"], words].concat()).unwrap();
    assert!(tortie(&["diff", "--hold", "10m"]).status.success());
    ip(&["del", LEARNED]);
    let (text, _) = within(LIMIT, Instant::now(), "the difference is shown", || {
        let output = tortie(&["diff", "routes"]);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.code() == Some(1) && text.contains("deleted via netlink port") {
            Ok(text)
        } else {
            Err(text)
        }
    });
    assert!(text.contains(&format!("-  {LEARNED}: missing   since ")), "{text}");
    assert!(text.contains("Repair is held for 9m"), "{text}");
    std::thread::sleep(Duration::from_millis(300));
    assert!(!kernel(&net, "host1").unwrap().contains_key(LEARNED), "it is left for study");
    let status = String::from_utf8_lossy(&tortie(&["status", "-o", "json"]).stdout).into_owned();
    assert!(status.contains("diff-held"), "{status}");
    assert!(tortie(&["diff", "--repair"]).status.success());
    within(LIMIT, Instant::now(), "it is repaired", || {
        let (routes, output) = (kernel(&net, "host1")?, tortie(&["diff"]));
        if routes.contains_key(LEARNED) && output.status.success() {
            return Ok(());
        }
        Err(format!("{routes:?} {output:?}"))
    });

    // A wrong AS number: the rejecting side, and the correction. The event stream reports it at the same
    // time.
    let monitor = Monitor::command(&net, "host1", &["tortie", "-o", "json", "monitor", "bgp", "--peer", TOR]);
    within(LIMIT, Instant::now(), "the monitor is connected", || {
        let sockets = net.run("host1", &["cat", "/proc/net/unix"])?;
        let is_connection = |line: &str| line.ends_with("/run/tortie/tortie.sock") && line.contains(" 03 ");
        if sockets.lines().any(is_connection) { Ok(()) } else { Err(sockets) }
    });
    // Nothing shows that the agent has read the request.
    std::thread::sleep(Duration::from_secs(1));
    peer(&net, ", \"as_num\": \"65001\"");
    let wrong = until(&net, &["peer", TOR], &["bad-peer-as"]);
    assert!(wrong["fix"].to_string().contains(KEY), "{wrong:#}");
    assert_eq!(step(&wrong, "configured by")["key"], KEY);
    until(&net, &["route", "10.244.1.0/26", "--to", TOR], &["session"]);
    within(LIMIT, Instant::now(), "the end is reported", || {
        let lines = monitor.since(net.started);
        let json = lines.iter().filter_map(|line| Some(line.split_once(": ")?.1));
        let events: Vec<Value> =
            json.map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect();
        assert!(events.iter().all(|event| event["peer"] == "Global_172_30_0_254"), "{events:#?}");
        let ended =
            |event: &Value| event["mark"] == "-" && event["text"].to_string().contains("Established -> ");
        if events.iter().any(ended) { Ok(()) } else { Err(format!("{events:#?}")) }
    });
    drop(monitor);

    // The router rejects the session: first by its administrator, then because it no longer listens.
    peer(&net, ", \"as_num\": \"65000\"");
    until(&net, &["peer", TOR], &["ok"]);
    net.run("tor", &["birdc", "disable", "host1"]).unwrap();
    let shut = until(&net, &["peer", TOR], &["peer-shutdown", "connection-rejected", "tcp-closed"]);
    assert!(step(&shut, "last session")["text"].as_str().unwrap().contains("ended 2"), "{shut:#}");
    net.run("tor", &["birdc", "down"]).unwrap();
    let gone = until(&net, &["peer", TOR], &["connection-refused"]);
    assert_eq!(gone["certainty"], "certain");
    assert!(step(&gone, "attempts")["text"].as_str().unwrap().contains("ECONNREFUSED"), "{gone:#}");
    assert!(step(&gone, "path")["text"].as_str().unwrap().contains("neighbour"), "{gone:#}");
    let history = net.run("host1", &["tortie", "history", "peer", TOR]).unwrap();
    assert!(history.contains("-> Established") && history.contains("Established -> "), "{history}");
}

#[test]
#[ignore = "a connect that nobody answers takes its ten seconds"]
fn long_another_password_is_distinguished_from_a_refusal() {
    let Some(net) = Net::file("tor-bird", Backend::Sqlite) else { return };
    within(LIMIT, net.started, "every block in every kernel", || full_kernels(&net));
    peer(&net, ", \"as_num\": \"65000\", \"password\": \"other\"");
    // Depending on the side that connects, the host gets no answer, or receives segments without the key.
    let silent = until(&net, &["peer", TOR], &["connect-timeout", "tcp-key"]);
    assert_eq!(silent["certainty"], "implied");
    assert!(silent["conclusion"].as_str().unwrap().contains("TCP MD5 (RFC 2385)"), "{silent:#}");
}
