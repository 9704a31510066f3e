//! Common names of containers identify the endpoint in every command that takes one, and are printed.

use std::collections::BTreeSet;

use clap::CommandFactory as _;
use clap::builder::ValueParser;
use serde_json::{Value, json};

use crate::cni::rig::{Container, Host, addr};

/// Every argument that is an endpoint: command, argument, and the words of a run with `{}` for its name.
/// `{other}` is an address of another endpoint.
const TAKES: &[(&str, &str, &str)] = &[
    ("endpoint show", "name", "endpoint show {}"),
    ("endpoint show", "name", "endpoint show {} --offline"),
    ("history endpoint", "name", "history endpoint {}"),
    ("policy trace", "from", "policy trace --from {} --to {other} --proto icmp"),
    ("policy trace", "from", "policy trace --from {} --to {other} --proto tcp --dport 80 --offline"),
    ("policy trace", "to", "policy trace --from {other} --to {} --proto icmp"),
    ("policy trace", "to", "policy trace --from {other} --to {} --proto tcp --dport 80 --offline"),
    ("why packet", "from", "why packet --from {} --to {other} --proto icmp"),
    ("why packet", "to", "why packet --from {other} --to {} --proto udp --dport 53"),
];

/// Arguments with other texts, by command.
const OTHERS: &[(&str, &[&str])] = &[
    ("__complete", &["words"]),
    ("agent", &["docker_labels", "http_host"]),
    ("bgp drain", &["peers"]),
    ("bgp mrt updates", &["peer"]),
    ("bgp peer", &["name"]),
    ("bgp reset", &["name", "text"]),
    ("bgp routes", &["from", "prefix", "to", "within"]),
    ("cni conflist", &["log", "name"]),
    ("cni install", &["file", "log", "name"]),
    ("cni status", &["log", "name"]),
    ("demo sh", &["node"]),
    ("history change", &["id"]),
    ("history peer", &["name"]),
    ("history route", &["prefix"]),
    ("ipam assign", &["handle"]),
    ("ipam blocks", &["owner"]),
    ("ipam release", &["handle"]),
    ("kurma add", &["interface", "netns", "uuid"]),
    ("kurma del", &["interface", "netns", "uuid"]),
    ("lab exec", &["command", "node"]),
    ("log level", &["rule"]),
    ("migrate adopt", &["agent_with", "stop_with", "unit"]),
    ("migrate data", &["to"]),
    ("migrate plan", &["agent_with", "stop_with", "unit"]),
    ("migrate rollback", &["start_with"]),
    ("monitor", &["peer", "prefix"]),
    ("node delete", &["name"]),
    ("node settings", &["name"]),
    ("node show", &["name"]),
    ("policy show", &["name"]),
    ("policy trace", &["icmp", "proto"]),
    ("replay", &["to", "why"]),
    ("route list", &["prefix", "within"]),
    ("schema", &["of"]),
    ("selector eval", &["expression", "labels"]),
    ("selector match", &["expression"]),
    ("store get", &["key"]),
    ("store key", &["key"]),
    ("store ls", &["prefix"]),
    ("store name workload-endpoint", &["container_id", "endpoint", "orchestrator", "pod", "workload"]),
    ("store put", &["key", "value"]),
    ("store rm", &["key"]),
    ("store watch", &["prefix"]),
    ("why packet", &["icmp", "proto"]),
    ("why peer", &["name"]),
    ("why route", &["from", "prefix", "route", "to"]),
];

/// Commands that print endpoints without taking one: their words, and true if they name each endpoint.
const PRINTS: &[(&str, bool)] = &[
    ("endpoint list", true),
    ("endpoint list --all --offline", true),
    ("selector match all()", true),
    ("node show h1", true),
    ("ipam show {block}", true),
    ("ipam show {addr}", false),
    ("why ip {addr}", false),
    ("ipam check --store-only", false),
    ("policy show net", false),
    ("policy list --all", false),
    ("status", false),
    ("status -o wide", false),
    ("history", false),
    ("ipam release --ip {addr}", false),
    ("store put /calico/v1/policy/profile/net/tags [] --dry-run=dataplane", false),
];

/// Names of an endpoint, and its printed form.
struct Called {
    names: Vec<String>,
    shown: &'static str,
    addr: String,
    /// Ids that are never printed in full.
    ids: Vec<String>,
}

/// Collects arguments with free text of every command.
fn texts(command: &clap::Command, path: &str, out: &mut BTreeSet<(String, String)>) {
    let text = ValueParser::string().type_id();
    for arg in command.get_arguments().filter(|arg| !arg.is_global_set() && arg.get_action().takes_values()) {
        if arg.get_value_parser().type_id() == text && arg.get_possible_values().is_empty() {
            out.insert((path.to_owned(), arg.get_id().to_string()));
        }
    }
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        texts(sub, format!("{path} {}", sub.get_name()).trim(), out);
    }
}

#[test]
fn every_argument_that_may_be_an_endpoint_is_in_the_table() {
    let mut root = tortie::cli::Cli::command();
    root.build();
    let mut all = BTreeSet::new();
    texts(&root, "", &mut all);
    let takes = TAKES.iter().map(|(command, arg, _)| ((*command).to_owned(), (*arg).to_owned()));
    let others = OTHERS
        .iter()
        .flat_map(|(command, args)| args.iter().map(|arg| ((*command).to_owned(), (*arg).to_owned())));
    let takes: BTreeSet<_> = takes.collect();
    let listed: BTreeSet<_> = takes.iter().cloned().chain(others).collect();
    let unlisted: Vec<_> = all.difference(&listed).collect();
    assert!(unlisted.is_empty(), "is it the name of an endpoint? Put it into TAKES or OTHERS: {unlisted:#?}");
    let gone: Vec<_> = listed.difference(&all).collect();
    assert!(gone.is_empty(), "no such argument: {gone:?}");
}

/// Creates a podman container, a pod, and a Docker container with a name from its driver.
fn containers(host: &Host) -> (Vec<Container>, Vec<Called>) {
    let config = host.config(json!({}));
    let mut made = Vec::new();
    let mut called = Vec::new();
    let add = |args: &str| {
        let container = Container::new();
        let result = host.command("tortie-cni", "ADD", &container, &config, args).done();
        let interface = result["interfaces"][0]["name"].as_str().unwrap().to_owned();
        (container, addr(&result), interface)
    };
    // Arguments of podman and of a kubelet.
    let (podman, v4, interface) = add("IgnoreUnknown=1;K8S_POD_NAME=db");
    let id = podman.id();
    called.push(Called {
        names: vec![
            "db".to_owned(),
            id[..12].to_owned(),
            id[..20].to_owned(),
            id.clone(),
            "cni/db/eth0".to_owned(),
            format!("cni/{}/eth0", &id[..12]),
            format!("cni/{id}/eth0"),
            format!("/calico/v1/host/h1/workload/cni/{id}/endpoint/eth0"),
            interface,
            v4.clone(),
        ],
        shown: "cni/db/eth0",
        addr: v4,
        ids: vec![id],
    });
    made.push(podman);
    let (pod, v4, interface) =
        add("IgnoreUnknown=1;K8S_POD_NAMESPACE=prod;K8S_POD_NAME=web-0;K8S_POD_INFRA_CONTAINER_ID=7");
    let id = pod.id();
    called.push(Called {
        names: vec![
            "web-0".to_owned(),
            "prod/web-0".to_owned(),
            "prod.web-0".to_owned(),
            "k8s/prod.web-0/eth0".to_owned(),
            id[..12].to_owned(),
            interface,
            v4.clone(),
        ],
        shown: "k8s/prod.web-0/eth0",
        addr: v4,
        ids: vec![id],
    });
    made.push(pod);
    let (endpoint, container) = ("5e".repeat(32), "c0ffee12".repeat(8));
    let value = json!({
        "state": "active", "name": "cali5e5e5e5e5e5", "profile_ids": ["net"], "ipv4_nets": ["10.65.77.7/32"],
        "active_instance_id": container, "labels": {"tortie/name": "shop", "docker.network": "front"},
    });
    let key = format!("/calico/v1/host/h1/workload/libnetwork/libnetwork/endpoint/{endpoint}");
    host.put(&key, &value.to_string());
    called.push(Called {
        names: vec![
            "shop".to_owned(),
            "libnetwork/shop/front".to_owned(),
            container[..12].to_owned(),
            endpoint[..12].to_owned(),
            endpoint.clone(),
            key,
            "cali5e5e5e5e5e5".to_owned(),
            "10.65.77.7".to_owned(),
        ],
        shown: "libnetwork/shop/front",
        addr: "10.65.77.7".to_owned(),
        ids: vec![endpoint, container],
    });
    (made, called)
}

/// Returns the output of a run on both streams, which must contain no full id.
fn printed(host: &Host, words: &[&str], called: &[Called], wrong: &mut Vec<String>) -> String {
    let output = host.run(words);
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let line = words.join(" ");
    if !matches!(output.status.code(), Some(0 | 1 | 7)) {
        wrong.push(format!("{line}: {output:?}"));
    }
    let typed = |id: &String| line.contains(id.as_str());
    for id in called.iter().flat_map(|one| &one.ids).filter(|id| text.contains(id.as_str()) && !typed(id)) {
        if !line.contains("-o wide") {
            wrong.push(format!("{line}: {id} in full length:\n{text}"));
        }
    }
    text
}

#[test]
fn names_that_people_use_find_the_endpoint_in_every_command_and_are_printed() {
    Host::with_agent(|host| {
        let (_containers, called) = containers(host);
        let begun = std::time::Instant::now();
        while !String::from_utf8_lossy(&host.run(&["endpoint", "list"]).stdout).contains("shop") {
            assert!(begun.elapsed() < crate::common::hosts::PATIENCE, "the agent follows the store");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        let (mut wrong, mut runs) = (Vec::new(), 0);
        for (at, one) in called.iter().enumerate() {
            let other = &called[(at + 1) % called.len()].addr;
            for name in &one.names {
                for (_, _, line) in TAKES {
                    let words: Vec<&str> = line
                        .split(' ')
                        .map(|word| match word {
                            "{}" => name,
                            "{other}" => other,
                            word => word,
                        })
                        .collect();
                    let text = printed(host, &words, &called, &mut wrong);
                    // Recorder entries refer to keys.
                    let part =
                        if line.starts_with("history") { "/calico/v1/host/h1/workload/" } else { one.shown };
                    if !text.contains(part) {
                        wrong.push(format!("{}: no {part}:\n{text}", words.join(" ")));
                    }
                    runs += 1;
                }
            }
            let wide = printed(host, &["endpoint", "show", one.shown, "-o", "wide"], &called, &mut wrong);
            let key = one.names.iter().find(|name| name.starts_with("/calico/"));
            if key.is_some_and(|key| !wide.contains(key.as_str())) {
                wrong.push(format!("endpoint show {} -o wide has no key:\n{wide}", one.shown));
            }
        }
        for (line, names_all) in PRINTS {
            let one = &called[0];
            let block = {
                let output = host.run(&["ipam", "show", &one.addr, "-o", "json"]);
                let value: Value = serde_json::from_slice(&output.stdout).unwrap();
                value["block"].as_str().unwrap().to_owned()
            };
            let words: Vec<&str> = line
                .split(' ')
                .map(|word| match word {
                    "{addr}" => one.addr.as_str(),
                    "{block}" => block.as_str(),
                    word => word,
                })
                .collect();
            let text = printed(host, &words, &called, &mut wrong);
            let in_block = |of: &&Called| !line.contains("{block}") || of.addr != "10.65.77.7";
            for of in called.iter().filter(|_| *names_all).filter(in_block) {
                if !text.contains(of.shown) {
                    wrong.push(format!("{line}: no {}:\n{text}", of.shown));
                }
            }
            runs += 1;
        }
        assert!(wrong.is_empty(), "{} of {runs}:\n{}", wrong.len(), wrong.join("\n"));
        println!(
            "{runs} runs of {} commands found the endpoint, and none printed an id in full length",
            TAKES.len()
        );
    });
}
