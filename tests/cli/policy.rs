//! `endpoint` and `policy`: the same answers from a store alone and from an agent.

use crate::agent::Agent;
use crate::common::command::{Store, stderr, stdout, tortie};

const WEB: &str = "/calico/v1/host/h1/workload/cni/web/endpoint/eth0";
const ETH0: &str = "/calico/v1/host/h1/endpoint/uplink";

pub(crate) const CLUSTER: &[(&str, &str)] = &[
    ("/calico/v1/Ready", "true"),
    ("/calico/bgp/v1/host/h1/ip_addr_v4", "127.0.0.1"),
    ("/calico/bgp/v1/host/h2/ip_addr_v4", "127.0.0.2"),
    (
        WEB,
        r#"{"state":"active","name":"cali1","mac":"02:00:00:00:00:01","profile_ids":["open"],
            "ipv4_nets":["10.65.0.1/32"],"ipv6_nets":["2001:db8::1/128"],"labels":{"role":"web"}}"#,
    ),
    (
        "/calico/v1/host/h1/workload/cni/db/endpoint/eth0",
        r#"{"state":"inactive","name":"cali2","mac":null,"profile_ids":["open","gone"],"ipv4_nets":["10.65.0.2/32"],
            "ipv6_nets":[],"labels":{"role":"db"}}"#,
    ),
    (
        "/calico/v1/host/h2/workload/cni/client/endpoint/eth0",
        r#"{"state":"active","name":"cali1","mac":null,"profile_ids":["open"],"ipv4_nets":["10.65.1.1/32"],
            "ipv6_nets":[],"labels":{"role":"client"}}"#,
    ),
    (ETH0, r#"{"name":"eth0","expected_ipv4_addrs":["127.0.0.1"],"profile_ids":[],"labels":{"edge":"yes"}}"#),
    (
        "/calico/v1/policy/profile/open/rules",
        r#"{"inbound_rules":[{"action":"allow"}],"outbound_rules":[{"action":"allow"}]}"#,
    ),
    ("/calico/v1/policy/profile/open/tags", r#"["open"]"#),
    ("/calico/v1/policy/profile/unused/rules", r#"{"inbound_rules":[],"outbound_rules":[]}"#),
    (
        "/calico/v1/policy/tier/default/policy/web-in",
        r#"{"selector":"role == 'web'","order":10,"types":["ingress"],"outbound_rules":[],"inbound_rules":[
            {"action":"allow","protocol":"tcp","src_selector":"role == 'client'","dst_ports":[80,"8000:8080"]},
            {"action":"allow","protocol":"icmp"}]}"#,
    ),
    (
        "/calico/v1/policy/tier/default/policy/far-only",
        r#"{"selector":"role == 'client'","inbound_rules":[],"outbound_rules":[]}"#,
    ),
    (
        "/calico/v1/policy/tier/edge/policy/web-in",
        r#"{"selector":"edge == 'yes'","untracked":true,"inbound_rules":[{"action":"deny","protocol":"tcp","dst_ports":[8443]}],
            "outbound_rules":[]}"#,
    ),
];

/// Exit code, stdout and stderr of a command.
type CommandOutput = (Option<i32>, String, String);

fn answers(ask: impl Fn(&[&str]) -> CommandOutput) {
    let ask = &ask;
    let text = |words: &[&str]| {
        let (code, out, err) = ask(words);
        assert_eq!(code, Some(0), "{words:?}: {err}");
        out
    };
    let json = |words: &[&str]| -> serde_json::Value {
        serde_json::from_str(&text(&[words, &["-o", "json"]].concat())).unwrap()
    };
    let lines = |out: String| -> Vec<String> {
        out.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    };
    let list = lines(text(&["endpoint", "list"]));
    assert_eq!(
        list,
        [
            "NAME KIND INTERFACE STATE ADDRESSES POLICIES PROFILES REASON",
            "cni/db/eth0 workload cali2 inactive 10.65.0.2 0 open,gone",
            "cni/web/eth0 workload cali1 active 10.65.0.1,2001:db8::1 1 open",
            "uplink host eth0 active 127.0.0.1 1 -",
        ]
    );
    assert_eq!(lines(text(&["endpoint", "list", "--all"])).len(), 5);
    let wide = text(&["endpoint", "list", "-o", "wide"]);
    assert!(wide.contains("02:00:00:00:00:01") && wide.contains(WEB) && wide.contains("role=web"), "{wide}");
    let all = json(&["endpoint", "list", "--all"]);
    assert_eq!((all["kind"].as_str(), all["node"].as_str()), (Some("EndpointList"), Some("h1")));
    let far = all["items"].as_array().unwrap().iter().find(|e| e["host"] == "h2").unwrap();
    assert!(far["policies"].is_null(), "{far}");

    // Each of its names.
    for name in [WEB, "cni/web/eth0", "web", "cali1", "10.65.0.1", "2001:db8::1"] {
        assert_eq!(json(&["endpoint", "show", name])["key"], WEB, "{name}");
    }
    let shown = text(&["endpoint", "show", "web"]);
    for line in [
        "cni/web/eth0   workload endpoint on h1   interface cali1   active",
        "    tier default\n      policy web-in\n         0  allow tcp from (role == \"client\") to port 80,8000:8080\n         1  allow icmp\n      end of tier: deny\n    profiles\n      profile open\n         0  allow\n      no profile decides: deny",
    ] {
        assert!(shown.contains(line), "{line}\n---\n{shown}");
    }
    let shown = text(&["endpoint", "show", "db"]);
    assert!(shown.contains("profile gone\n        there is no such profile"), "{shown}");
    let shown = text(&["endpoint", "show", "uplink"]);
    assert!(
        shown.contains(
            "untracked\n      policy edge/web-in\n         0  deny tcp to port 8443\n      continues"
        ),
        "{shown}"
    );
    assert!(text(&["endpoint", "show", "10.65.1.1"]).contains("Host h2 programs its rules"));
    let (code, _, err) = ask(&["endpoint", "show", "nobody"]);
    assert!(code == Some(1) && err.contains("nobody") && err.contains("endpoint list --all"), "{err}");
    // Two endpoints of this host have the same id.
    let (code, _, err) = ask(&["endpoint", "show", "eth0"]);
    assert!(code == Some(2) && err.contains(WEB) && err.contains("name one of them"), "{code:?} {err}");

    let list = lines(text(&["policy", "list"]));
    assert_eq!(
        list,
        [
            "KIND TIER NAME ORDER TYPES RULES IN/OUT ENDPOINTS SELECTOR PROBLEM",
            "policy default web-in 10 ingress 2/0 1 role == \"web\"",
            "policy edge web-in - ingress,egress,untracked 1/0 1 edge == \"yes\"",
            "profile - gone - ingress,egress 0/0 1 - it has no rules: everything that no policy decides is \
             denied",
            "profile - open - ingress,egress 1/1 2 -",
        ]
    );
    let all = text(&["policy", "list", "--all"]);
    assert!(all.contains("far-only") && all.contains("unused"), "{all}");
    let shown = text(&["policy", "show", "default/web-in"]);
    for line in [
        "policy web-in   tier default   order 10   ingress",
        "applies to cni/web/eth0",
        "     0  allow tcp from (role == \"client\") to port 80,8000:8080",
        "  outbound\n    no rules",
    ] {
        assert!(shown.contains(line), "{line}\n---\n{shown}");
    }
    assert_eq!(json(&["policy", "show", "profile open"])["tags"][0], "open");
    assert!(text(&["policy", "show", "far-only"]).contains("applies to no endpoint of this host"));
    let (code, _, err) = ask(&["policy", "show", "web-in"]);
    assert!(code == Some(2) && err.contains("policy edge/web-in"), "{code:?} {err}");
    traces(ask);
    let (code, _, err) = ask(&["policy", "show", "nothing"]);
    assert!(code == Some(1) && err.contains("policy list --all"), "{code:?} {err}");
}

fn traces(ask: impl Fn(&[&str]) -> CommandOutput) {
    let trace = |words: &str| {
        let words: Vec<&str> = ["policy", "trace"].into_iter().chain(words.split(' ')).collect();
        ask(&words)
    };
    let verdict = |words: &str, code: i32, said: &[&str]| {
        let (got, out, err) = trace(words);
        assert_eq!(got, Some(code), "{words}: {out}{err}");
        for text in said {
            assert!(out.contains(text) || err.contains(text), "{words}: {text}\n---\n{out}{err}");
        }
    };
    // From another host: the rules of both hosts, and the rule that decides.
    verdict(
        "--from client --to web --proto tcp --dport 80",
        1,
        &[
            "DENY   cni/client/eth0 (10.65.1.1, on h2) -> cni/web/eth0 (10.65.0.1, on h1)   tcp/80",
            "by end of tier default (from-workload cni/client/eth0) on h2",
            "there (h2)",
            "here (h1)",
            "policy far-only          no rule matches",
            "<- DENY",
        ],
    );
    // Packets from outside meet the rules of this host only.
    verdict(
        "--from 192.0.2.7 --to 10.65.0.1 --proto tcp --dport 80",
        1,
        &[
            "by end of tier default (to-workload cni/web/eth0) on h1",
            "tier default",
            "policy web-in            no rule matches",
        ],
    );
    verdict(
        "--from 127.0.0.2 --to web --proto icmp",
        0,
        &[
            "ALLOW   127.0.0.2 (host h2) -> cni/web/eth0",
            "policy web-in            rule 1  allow icmp   <- ALLOW",
        ],
    );
    verdict(
        "--from web --to 192.0.2.9 --proto udp --dport 53",
        0,
        &["by profile open, rule 0 (from-workload cni/web/eth0) on h1"],
    );
    verdict(
        "--from web --to client --proto udp --dport 53",
        1,
        &["by end of tier default (to-workload cni/client/eth0) on h2"],
    );
    verdict("--from db --to web --proto icmp", 1, &["the endpoint is not active"]);
    // The untracked policy of the host endpoint with the host's address.
    verdict(
        "--from 192.0.2.7 --to 127.0.0.1 --proto tcp --dport 8443",
        1,
        &["untracked      uplink", "policy edge/web-in       rule 0  deny tcp to port 8443   <- DENY"],
    );
    // Failsafe ports.
    verdict("--from 192.0.2.7 --to 127.0.0.1 --proto tcp --dport 22", 0, &["failsafe"]);
    verdict("--from web --to db --proto tcp", 2, &["--dport N"]);
    verdict("--from web --to db --proto icmp --dport 7", 2, &["has no ports"]);
    verdict("--from web --to db --proto icmpv6", 2, &["icmpv6 is IPv6"]);
    verdict("--from nobody --to db --proto icmp", 1, &["nobody"]);
    verdict("--from 192.0.2.1 --to 192.0.2.2 --proto icmp", 2, &["neither 192.0.2.1 nor 192.0.2.2"]);
    verdict("--from web --to db --proto icmp --icmp 300", 2, &["TYPE/CODE"]);
    let (code, out, _) = trace("--from client --to web --proto tcp --dport 80 -o json");
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(code, Some(1));
    assert_eq!((json["verdict"].as_str(), json["hosts"][0]["host"].as_str()), (Some("deny"), Some("h2")));
    assert!(json["notLookedAt"].as_array().is_some_and(|list| !list.is_empty()));
}

#[test]
fn the_store_alone_answers() {
    let store = Store::with(CLUSTER);
    answers(|words| {
        let base = ["--datastore", &store.url, "--node", "h1", "--socket", "/nowhere/tortie.sock"];
        let output = tortie(&[&base, words, &["--offline"]].concat());
        (output.status.code(), stdout(&output), stderr(&output))
    });
}

#[test]
fn an_agent_answers_the_same() {
    let agent = Agent::start(CLUSTER);
    // Without a kernel, the agent knows no more than the store.
    let words = ["why", "packet", "--from", "127.0.0.2", "--to", "web", "--proto", "icmp"];
    let output = agent.run(&words);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(stdout(&output).contains("policy web-in            rule 1  allow icmp   <- ALLOW"), "{output:?}");
    answers(|words| {
        let output = agent.run(words);
        (output.status.code(), stdout(&output), stderr(&output))
    });
}

const NARROW: &str = r#"{"selector":"role == 'web'","order":10,"types":["ingress"],"outbound_rules":[],"inbound_rules":[
    {"action":"allow","protocol":"icmp"}]}"#;

#[test]
fn a_dry_run_says_what_would_change_and_writes_nothing() {
    let agent = Agent::start(CLUSTER);
    let key = "/calico/v1/policy/tier/default/policy/web-in";
    let before = agent.store.export();
    let alone =
        |words: &[&str]| tortie(&[&["--datastore", &agent.store.url, "--node", "h1"], words].concat());
    let asked = agent.run(&["store", "put", key, NARROW, "--dry-run", "dataplane"]);
    let store = alone(&["store", "put", key, NARROW, "--dry-run", "store"]);
    for (output, why) in [(&asked, "--kernel off"), (&store, "--dry-run=dataplane")] {
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        let text = stdout(output);
        for line in [
            "would change (rev ",
            "1 endpoint of this host affected: cni/web/eth0",
            "policy web-in inbound (changed)",
            "                 - allow tcp from (role == \"client\") to port 80,8000:8080\n                   allow icmp",
            "(gone): +0 -1 members",
            why,
            "Nothing was written.",
        ] {
            assert!(text.contains(line), "{line}\n---\n{text}");
        }
    }
    let output = alone(&["store", "rm", key, "--dry-run", "store", "-o", "json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((json["delete"].as_bool(), json["endpoints"][0].as_str()), (Some(true), Some("cni/web/eth0")));
    let output = alone(&["store", "put", key, "{\"selector\":\"a ==\"}", "--dry-run", "store"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert_eq!(agent.store.export(), before);
}

#[test]
fn a_profile_that_cannot_be_read_denies_and_is_named() {
    let mut entries = CLUSTER.to_vec();
    entries.retain(|(key, _)| !key.ends_with("profile/open/rules"));
    entries.push(("/calico/v1/policy/profile/open/rules", r#"{"inbound_rules":[{"action":"perhaps"}]}"#));
    let agent = Agent::start(&entries);
    let status: serde_json::Value =
        serde_json::from_slice(&agent.run(&["status", "-o", "json"]).stdout).unwrap();
    let problems = status["problems"].as_array().unwrap();
    let problem = problems.iter().find(|p| p["code"] == "invalid-value").unwrap();
    assert!(
        problem["text"].as_str().unwrap().contains("it denies everything that no policy before it decides"),
        "{problem}"
    );
    assert!(stdout(&agent.run(&["endpoint", "show", "web"])).contains("its value cannot be parsed"));
    let output = agent.run(&["policy", "trace", "--from", "web", "--to", "192.0.2.9", "--proto", "icmp"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(
        stdout(&output).contains("its value cannot be parsed: everything is denied   <- DENY"),
        "{output:?}"
    );
}

#[test]
fn a_kernel_that_is_left_alone_is_not_compared() {
    let agent = Agent::start(CLUSTER);
    let output = agent.run(&["diff"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = stdout(&output);
    assert_eq!(text.matches("not compared: off").count(), 3, "{text}");
    assert!(stdout(&agent.run(&["diff", "rules"])).starts_with("rules "));
}
