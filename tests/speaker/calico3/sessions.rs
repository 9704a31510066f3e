//! The sessions that `tortie bgp peers --offline` answers with, and those of the configuration that Calico's
//! templates would make.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use serde_json::{Value, json};
use tortie_store::{Op, Outcome, Store, StoreOptions, Txn};

use super::cluster::cluster;
use super::objects::{Object, Objects};
use super::render::bird;
use super::render::node::{Cluster, NodeValues};
use super::render::peers::{Session, sessions};
use crate::rig::net;

/// Number of compared nodes, sessions and configurations.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Compared {
    nodes: usize,
    sessions: usize,
    kinds: [usize; 3],
    /// Sessions of BIRD's configuration that are by design different.
    without_as: usize,
    twice: usize,
}

/// Writes the objects to a new store, and returns its URL.
fn written(objects: &Objects, dir: &Path) -> String {
    let url = format!("sqlite:{}", dir.join("store.db").display());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let store: Arc<dyn Store> = runtime
        .block_on(tortie_store::open(&StoreOptions { url: url.clone(), ..StoreOptions::default() }))
        .unwrap_or_else(|e| panic!("{e}"));
    let put = |(key, value): (&String, &Value)| Op::Put {
        key: key.clone(),
        value: value.to_string().into_bytes(),
        lease: None,
    };
    let ops: Vec<Op> = objects.0.iter().map(put).collect();
    let outcome = runtime.block_on(store.commit(Txn { ops, ..Txn::default() }));
    assert!(matches!(outcome, Ok(Outcome::Committed(_))), "{outcome:?}");
    url
}

/// Asks for the sessions of a node. Exit code 6: a value of the store cannot be read as a whole.
fn asked(url: &str, node: &NodeValues) -> (Value, Option<String>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tortie"));
    command.args(["--datastore", url, "bgp", "peers", "--offline", "--node", &node.name, "-o", "json"]);
    command.stdin(Stdio::null());
    if node.v4.is_none() {
        command.env("CALICO_ROUTER_ID", "hash");
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(output.status.code(), Some(0 | 6)), "{command:?}: {text}{error}");
    let answer = text.lines().next().map(|_| serde_json::from_str(&text));
    let answer = answer.unwrap_or_else(|| panic!("{error}")).unwrap_or_else(|e| panic!("{e}: {text}"));
    (answer, (output.status.code() == Some(6)).then(|| error.into_owned()))
}

/// Returns the session in the form of the answer.
fn expected(session: &Session, own_as: u32) -> Value {
    json!({
        "scope": session.scope, "address": session.address.to_string(), "port": session.port.unwrap_or(179),
        "as": session.asn, "localAs": session.local_as.filter(|asn| *asn != own_as), "source": session.source,
        "password": session.password, "passive": session.passive, "rrClient": session.client.is_some(),
        "rrClusterId": session.client, "nextHop": session.next_hop, "ttlSecurity": session.ttl_security,
        "restartTime": session.restart_time, "keepaliveTime": session.keepalive_time,
        "numAllowLocalAs": session.allow_local_as, "importFilters": session.import,
        "exportFilters": session.export,
    })
}

/// Compares the nodes of a cluster; returns the differences.
pub(super) fn compare(seed: u64, bird_program: Option<&Path>, compared: &mut Compared) -> Vec<String> {
    let objects = cluster(seed);
    let values = Cluster::of(&objects);
    let dir = tempfile::tempdir().unwrap();
    let url = written(&objects, dir.path());
    let mut differences = Vec::new();
    for node in &values.nodes {
        let place = format!("cluster {seed}, {}", node.name);
        let mut differ = |what: String| differences.push(format!("{place}: {what}"));
        let (answer, partial) = asked(&url, node);
        let own_as = values.as_of(node);
        if node.v4.is_some() || node.v6.is_some() {
            for (member, expected) in [
                ("as", json!(own_as)),
                ("routerId", json!(node.router_id())),
                ("listenPort", json!(values.port_of(node).unwrap_or(179))),
            ] {
                if answer[member] != expected {
                    differ(format!("{member}: {} instead of {expected}", answer[member]));
                }
            }
        }
        let all = sessions(&values, &objects, &node.name);
        // By design: BIRD refuses the whole configuration because of a peer without AS; here only that peer is
        // left out, and reported.
        let (valid, refused): (Vec<&Session>, Vec<&Session>) =
            all.iter().partition(|session| session.asn != 0);
        // By design: BIRD has both a mesh session and a configured one with a node, of which only one can be up;
        // here the configured one replaces the other.
        let replaced = |session: &&Session| {
            session.scope == "mesh"
                && valid.iter().any(|other| other.scope != "mesh" && other.address == session.address)
        };
        let (twice, valid): (Vec<&Session>, Vec<&Session>) = valid.iter().copied().partition(replaced);
        // Peers without AS, those with a gateway of the other family, and communities by an unknown name.
        let without_as =
            |peer: &Object<'_>| !peer.text("peerIP").is_empty() && peer.spec("asNumber").is_null();
        let unknown = |of: &Object<'_>| of.spec("prefixAdvertisements").to_string().contains("unknown");
        let other_family = |peer: &Object<'_>| {
            let gateway = peer.text("reachableBy");
            !gateway.is_empty() && gateway.contains(':') != peer.text("peerIP").contains("2001:")
        };
        let invalid = objects.of("bgppeers").iter().any(without_as)
            || objects.of("bgppeers").iter().any(other_family)
            || objects.of("bgpconfigurations").iter().any(unknown);
        if partial.is_some() != invalid {
            differ(format!("a partial answer: {partial:?} instead of {invalid}"));
        }
        let mut wanted: BTreeMap<(String, u64), Value> = answer["peers"]
            .as_array()
            .unwrap()
            .iter()
            .map(|peer| {
                ((peer["address"].as_str().unwrap().to_owned(), peer["port"].as_u64().unwrap()), peer.clone())
            })
            .collect();
        if wanted.len() != answer["peers"].as_array().unwrap().len() {
            differ(format!("two sessions with one address and port: {}", answer["peers"]));
        }
        for session in valid {
            let expected = expected(session, own_as);
            let key = (session.address.to_string(), u64::from(session.port.unwrap_or(179)));
            let Some(found) = wanted.remove(&key) else {
                differ(format!("{} is missing: {expected}", session.name));
                continue;
            };
            for (member, value) in expected.as_object().unwrap() {
                if found[member] != *value {
                    differ(format!("{}: {member}: {} instead of {value}", session.name, found[member]));
                }
            }
            compared.sessions += 1;
            compared.kinds[["mesh", "global", "node"].iter().position(|s| *s == session.scope).unwrap()] += 1;
        }
        for peer in wanted.values() {
            differ(format!("not in BIRD's configuration: {peer}"));
        }
        compared.nodes += 1;
        compared.without_as += refused.len();
        compared.twice += twice.len();
        if let Some(program) = bird_program {
            let file = dir.path().join("bird.conf");
            let text = bird::configuration(&objects, &node.name);
            std::fs::write(&file, &text).unwrap();
            let output = Command::new(program).args(["-p", "-c"]).arg(&file).output().unwrap();
            if !output.status.success() {
                differ(format!("{}\n{text}", String::from_utf8_lossy(&output.stderr)));
            }
        }
    }
    differences
}

#[test]
fn the_sessions_are_those_of_calicos_configuration_of_bird() {
    compare_all(60);
}

#[test]
#[ignore = "a minute: the same for two hundred clusters"]
fn long_the_sessions_of_two_hundred_clusters_are_those_of_calicos_configuration_of_bird() {
    compare_all(200);
}

fn compare_all(clusters: u64) {
    let Some(bird) = net::tool("bird") else { return };
    let parts = 4;
    let run = |part: u64| {
        let mut compared = Compared::default();
        let seeds = (0..clusters).filter(|seed| seed % parts == part);
        let differences: Vec<String> =
            seeds.flat_map(|seed| compare(seed, Some(&bird), &mut compared)).collect();
        (compared, differences)
    };
    let results: Vec<(Compared, Vec<String>)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..parts).map(|part| scope.spawn(move || run(part))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut all = Compared::default();
    for (compared, _) in &results {
        all.nodes += compared.nodes;
        all.sessions += compared.sessions;
        all.without_as += compared.without_as;
        all.twice += compared.twice;
        for (sum, kind) in all.kinds.iter_mut().zip(compared.kinds) {
            *sum += kind;
        }
    }
    println!("{clusters} clusters: {all:?}");
    let differences: Vec<String> = results.into_iter().flat_map(|(_, differences)| differences).collect();
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
    assert!(all.sessions > 500 && all.kinds.iter().all(|kind| *kind > 50), "{all:?}");
}
