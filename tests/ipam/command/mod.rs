//! `tortie ipam` and `tortie node` for people and scripts: directly on a store without an agent, and with
//! this host's kernel and network namespaces.

mod address_use;
mod calico3;
mod check;
mod nodes;
mod pools;

use std::collections::BTreeSet;
use std::process::Output;

use crate::common::command::{Store, stdout};
use serde_json::Value;

/// Creates a ready store with these pools.
fn store(pools: &[&str]) -> Store {
    let store = Store::with(&[("/calico/v1/Ready", "true")]);
    for pool in pools {
        done(&store.run(&["ipam", "pool", "create", pool]));
    }
    store
}

/// Returns the output of a successful command.
fn done(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    stdout(output)
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// Allocates, and returns the addresses without prefix length.
fn assign(store: &Store, words: &[&str]) -> Vec<String> {
    let text = done(&store.run(&[&["ipam", "assign"], words].concat()));
    let lines = text.lines().map(|line| {
        let (addr, len) = line.split_once('/').expect("one CIDR a line");
        assert_eq!(len, if addr.contains(':') { "128" } else { "32" }, "{line}");
        addr.to_owned()
    });
    let all: Vec<String> = lines.collect();
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len(), "twice: {text}");
    all
}

/// Checks that a command fails with this exit code and names these words on stderr.
fn fails(store: &Store, words: &[&str], code: i32, named: &[&str]) -> Output {
    let output = store.run(words);
    assert_eq!(output.status.code(), Some(code), "{words:?}: {output:?}");
    let said = crate::common::command::stderr(&output);
    for word in named {
        assert!(said.contains(word), "{words:?} does not say {word:?}: {said}");
    }
    output
}

/// Returns key and value of a workload endpoint with one address.
fn endpoint(host: &str, workload: &str, addr: &str) -> (String, String) {
    let (family, other, len) =
        if addr.contains(':') { ("ipv6_nets", "ipv4_nets", 128) } else { ("ipv4_nets", "ipv6_nets", 32) };
    let value = serde_json::json!({
        "state": "active", "name": format!("cali{workload}"), "mac": null, "profile_ids": [],
        family: [format!("{addr}/{len}")], other: [],
    });
    (format!("/calico/v1/host/{host}/workload/cni/{workload}/endpoint/eth0"), value.to_string())
}

fn put(store: &Store, (key, value): &(String, String)) {
    done(&store.run(&["store", "put", key, value]));
}
