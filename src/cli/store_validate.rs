//! `tortie store validate`: values and objects that cannot be used as they are.
//!
//! Keys of the v1 model, and those that both models have, are checked one by one. Objects of Calico 3 are
//! projected as an agent does, because some are wrong only together. What concerns one host only is projected
//! for that host.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde::Serialize;
use tortie_config::calico3::{Kind, ObjectKey};
use tortie_config::key::{ROOT, prefix};
use tortie_config::{Dialect, counted};
use tortie_engine::model::{Model, WatchPart};
use tortie_store::{KeyValue, Snapshot, Store};

use super::context::Context;
use super::failure::{Exit, Failure};
use super::output;
use super::store_project::{ObjectProblem, problems, title};
use crate::api::{codes, escape};

/// Code of values that work otherwise than they say; they are no fault of the store.
const NOTED: &str = "setting-noted";

/// A value that cannot be used as it is.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
struct Finding {
    key: String,
    /// Name for people: the object, or the key.
    name: String,
    code: &'static str,
    error: String,
}

pub(super) async fn run(context: &Context, store: &dyn Store) -> Result<(), Failure> {
    let globals = &context.globals;
    let dialect = globals.data_model.dialect(store).await?;
    let snapshot = store.list(&[ROOT.to_owned()]).await?;
    let findings = match dialect {
        Dialect::V1 => values(&snapshot),
        Dialect::V3 => all(&globals.node_name()?, &snapshot),
    };
    let count = snapshot.entries.len();
    output::print(globals.output, &findings, |out, _| {
        for finding in &findings {
            let (name, error) = (escape::line(&finding.name), escape::line(&finding.error));
            let _ = writeln!(out, "{name}\n    {error}   [{}]", finding.code);
        }
        let _ = writeln!(
            out,
            "{} checked at revision {}: {} cannot be used",
            counted(count, "key"),
            snapshot.revision,
            findings.len()
        );
    })?;
    if findings.is_empty() {
        return Ok(());
    }
    Err(Failure::new(
        Exit::No,
        "invalid-values",
        "some values cannot be used: fix them with `tortie store put`",
    ))
}

/// Checks the values of the v1 model, and of the keys that both models have.
fn values(snapshot: &Snapshot) -> Vec<Finding> {
    snapshot.entries.iter().filter_map(value).collect()
}

fn value(entry: &KeyValue) -> Option<Finding> {
    let error = tortie_config::check(&entry.key, &entry.value).err().map(|error| error.to_string());
    let unsupported = || tortie_config::unsupported(&entry.key);
    let unknown = || tortie_config::unknown(&entry.key, &entry.value).into_iter().next();
    let error = error.or_else(unsupported).or_else(unknown)?;
    Some(Finding { key: entry.key.clone(), name: entry.key.clone(), code: codes::INVALID_VALUE.name, error })
}

/// Checks a Calico 3 store, as an agent of `node` and of each host with objects of its own reads it.
fn all(node: &str, snapshot: &Snapshot) -> Vec<Finding> {
    let mut found: BTreeSet<ObjectProblem> = of_host(node, snapshot).into_iter().collect();
    for host in hosts(snapshot).iter().filter(|host| *host != node) {
        found.extend(of_host(host, &part_of(host, snapshot)));
    }
    found.retain(|problem| problem.code != NOTED);
    let objects = found.into_iter().map(|ObjectProblem { key, code, text }| Finding {
        name: title(&key),
        key,
        code,
        error: text,
    });
    let mut findings: Vec<Finding> = objects.collect();
    for entry in &snapshot.entries {
        if findings.iter().all(|finding| finding.key != entry.key) {
            findings.extend(value(entry).or_else(|| misplaced(&entry.key)));
        }
    }
    findings.sort();
    findings
}

fn of_host(node: &str, snapshot: &Snapshot) -> Vec<ObjectProblem> {
    let mut model = Model::new(node);
    model.set_dialect(Dialect::V3);
    model.replace(WatchPart::All, snapshot);
    problems(&model, snapshot)
}

/// Reports a key that looks like an object's, and that all readers skip.
fn misplaced(key: &str) -> Option<Finding> {
    if ObjectKey::parse(key).is_some() {
        return None;
    }
    let kind = Kind::ALL.iter().find(|kind| key.starts_with(&ObjectKey::prefix_of(**kind)))?;
    let form = if kind.is_namespaced() { "NAMESPACE/NAME" } else { "NAME" };
    let error = format!("no program reads this key: write it as {}{form}", ObjectKey::prefix_of(*kind));
    Some(Finding { key: key.to_owned(), name: key.to_owned(), code: codes::INVALID_VALUE.name, error })
}

/// Returns the hosts with settings or peers of their own.
fn hosts(snapshot: &Snapshot) -> BTreeSet<String> {
    snapshot
        .entries
        .iter()
        .filter_map(|entry| host_of(&ObjectKey::parse(&entry.key)?, &entry.value))
        .collect()
}

/// Returns the host that an object of settings or a peer is about.
fn host_of(key: &ObjectKey, value: &[u8]) -> Option<String> {
    match key.kind {
        Kind::FelixConfiguration | Kind::BGPConfiguration => {
            key.name.strip_prefix("node.").map(ToOwned::to_owned)
        }
        Kind::BGPPeer => {
            let value: serde_json::Value = serde_json::from_slice(value).ok()?;
            value.pointer("/spec/node")?.as_str().map(ToOwned::to_owned)
        }
        _ => None,
    }
}

/// Returns what concerns a host: its Node, settings, peers, and the filters of peers.
fn part_of(host: &str, snapshot: &Snapshot) -> Snapshot {
    let node = ObjectKey::global(Kind::Node, host);
    let concerns = |entry: &&KeyValue| {
        entry.key.starts_with(prefix::CALICO_3)
            && ObjectKey::parse(&entry.key).is_some_and(|key| {
                key == node
                    || key.kind == Kind::BGPFilter
                    || host_of(&key, &entry.value).is_some_and(|of| of == host)
            })
    };
    let entries = snapshot.entries.iter().filter(concerns).cloned().collect();
    Snapshot { entries, revision: snapshot.revision, ..Snapshot::default() }
}

#[cfg(test)]
mod tests {
    use tortie_store::fixtures::snapshot;

    use super::*;

    const ROOT: &str = "/calico/resources/v3/projectcalico.org";

    fn found(entries: &[(&str, &str)]) -> Vec<(String, String)> {
        let entries: Vec<(String, &str)> = entries
            .iter()
            .map(|(key, value)| {
                (if key.starts_with('/') { (*key).to_owned() } else { format!("{ROOT}/{key}") }, *value)
            })
            .collect();
        let entries: Vec<(&str, &str)> = entries.iter().map(|(key, value)| (key.as_str(), *value)).collect();
        let findings = all("h1", &snapshot(3, &entries));
        findings.into_iter().map(|finding| (finding.name, finding.error)).collect()
    }

    #[test]
    fn invalid_objects_are_named_with_their_member() {
        for (key, value, name, says) in [
            ("bgppeers/tor", "[]", "BGPPeer tor", "no JSON object"),
            ("ippools/p", r#"{"spec":{"cidr":"10.0.0.0/99"}}"#, "IPPool p", "spec.cidr"),
            ("nodes/h7", r#"{"spec":{"bgp":{"ipv4Address":"x"}}}"#, "Node h7", "ipv4Address"),
            (
                "felixconfigurations/node.h2",
                r#"{"spec":{"vxlanPort":"x"}}"#,
                "FelixConfiguration node.h2",
                "vxlanPort",
            ),
            ("profiles/a/b", "{}", "/calico/resources/v3/projectcalico.org/profiles/a/b", "profiles/NAME"),
            ("/calico/ipam/v2/config", "[", "/calico/ipam/v2/config", "JSON"),
        ] {
            let found = found(&[(key, value)]);
            let [(named, error)] = found.as_slice() else { panic!("{key}: {found:?}") };
            assert_eq!(named, name);
            assert!(error.contains(says), "{key}: {error}");
        }
    }

    #[test]
    fn a_store_of_valid_objects_and_foreign_keys_has_no_findings() {
        let valid = [
            ("nodes/h1", r#"{"spec":{"bgp":{"ipv4Address":"192.0.2.1/24"}}}"#),
            ("ippools/p", r#"{"spec":{"cidr":"10.65.0.0/16"},"later":1}"#),
            ("laterkinds/x", "{}"),
            ("felixconfigurations/default", r#"{"spec":{"logSeveritySys":"Info","bpfLogLevel":"Info"}}"#),
            ("/calico/dhcp/v2/no-region/subnet/s", "{}"),
            ("/calico/felix/v2/no-region/host/h1/status", "{}"),
        ];
        assert_eq!(found(&valid), []);
    }
}
