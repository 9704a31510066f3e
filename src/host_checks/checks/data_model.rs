//! Checks of the store's data model: parts that the agent does not support, and keys that it cannot read.

use tortie_config::key::{Key, Scope};
use tortie_config::resource::{NodeMesh, Setting};
use tortie_config::{Dialect, counted};
use tortie_store::KeyValue;

use crate::api::codes;
use crate::host_checks::host::Host;
use crate::host_checks::result::Results;
use crate::host_checks::snapshot::StoreContent;

/// Maximum number of names per line; the others are counted.
const NAMED: usize = 5;

fn store<'a>(host: &Host<'a>) -> Option<&'a StoreContent> {
    host.now.migration.store.as_ref()?.as_ref().ok()
}

fn entries<'a>(host: &Host<'a>) -> Option<&'a [KeyValue]> {
    Some(&store(host)?.entries)
}

pub(in crate::host_checks) fn data_model(host: &Host<'_>, results: &mut Results) {
    let Some(store) = store(host) else { return };
    let entries = store.entries.as_slice();
    if store.dialect == Dialect::V3 {
        let of_v1 = store.problems.iter().find(|problem| problem.code == codes::MIXED_MODELS.name);
        match of_v1 {
            None => results.ok(&codes::CHECK_DATA_MODEL, "the store holds Calico 3's objects"),
            Some(problem) => {
                let fix = "delete them if they are leftovers: tortie store ls shows them";
                results.warn(&codes::CHECK_DATA_MODEL, problem.text.clone(), fix);
            }
        }
    } else if !entries.iter().any(|e| e.key.starts_with("/calico/v1/")) {
        let fix = "check that it is the right store. Calico 1 and 2 wrote etcd's v2 keys, which v3 clients \
                   do not see: move them with `ETCDCTL_API=3 etcdctl migrate` (etcd 3.2 to 3.4), or export \
                   them and run `tortie store import`";
        results.fail(&codes::CHECK_DATA_MODEL, "the store holds no keys of Calico's v1 data model", fix);
    } else {
        results.ok(&codes::CHECK_DATA_MODEL, "the store follows Calico's v1 data model");
    }
}

pub(in crate::host_checks) fn node_name(host: &Host<'_>, results: &mut Results) {
    let Some(entries) = entries(host) else { return };
    let node = host.now.migration.node.as_str();
    let known =
        |name: &str| entries.iter().any(|e| e.key.starts_with(&format!("/calico/bgp/v1/host/{name}/")));
    let is_here = known(node);
    let alike = entries.iter().find_map(|e| {
        let name = e.key.strip_prefix("/calico/bgp/v1/host/")?.split('/').next()?;
        (name != node && name.eq_ignore_ascii_case(node)).then(|| name.to_owned())
    });
    if let Some(other) = alike {
        let text = format!(
            "the store has the host {other}, which differs from {node} only in case: Calico takes them for two hosts"
        );
        let fix = format!(
            "give --node {other} (env TORTIE_NODE) if Calico runs here under that name, or delete the one that is no host"
        );
        if is_here {
            results.warn(&codes::CHECK_NODE_UNKNOWN, text, fix);
        } else {
            results.fail(&codes::CHECK_NODE_UNKNOWN, text, fix);
        }
        return;
    }
    if !is_here && !entries.is_empty() {
        let fix = "name this host as Calico does with --node (env TORTIE_NODE); Calico took the host name or NODENAME";
        results.fail(&codes::CHECK_NODE_UNKNOWN, format!("the store has no host {node}"), fix);
    }
}

/// Calico's hosts use one session per address family, Tortie one session for both unless configured
/// otherwise.
pub(in crate::host_checks) fn dual_stack(host: &Host<'_>, results: &mut Results) {
    let Some(entries) = entries(host) else { return };
    let node = host.now.migration.node.as_str();
    let value = |key: &str| entries.iter().find(|e| e.key == key).map(|e| e.value.as_slice());
    let has = |host: &str, field: &str| {
        value(&format!("/calico/bgp/v1/host/{host}/{field}")).is_some_and(|value| !value.is_empty())
    };
    let both = |host: &str| has(host, "ip_addr_v4") && has(host, "ip_addr_v6");
    let mesh = value("/calico/bgp/v1/global/node_mesh").map(NodeMesh::parse).and_then(Result::ok);
    let mesh = mesh.unwrap_or_default();
    let hosts = entries.iter().filter_map(|e| {
        e.key.strip_prefix("/calico/bgp/v1/host/")?.strip_suffix("/ip_addr_v6").filter(|host| *host != node)
    });
    let others: Vec<&str> = hosts.filter(|host| both(host)).collect();
    if !both(node) || others.is_empty() || !mesh.enabled || mesh.per_family {
        return;
    }
    let text = format!(
        "this host and others ({}) have addresses of both families: Calico runs one session per family, and \
         Tortie one for both",
        few(&others)
    );
    // Of a Calico 3 store, Tortie has a session per family, too.
    if store(host).is_some_and(|store| store.dialect == Dialect::V3) {
        return;
    }
    let fix = "add `\"per_family\": true` to /calico/bgp/v1/global/node_mesh (tortie store get, put), until \
               every host runs Tortie";
    results.fail(&codes::CHECK_DUAL_STACK, text, fix);
}

pub(in crate::host_checks) fn keys(host: &Host<'_>, results: &mut Results) {
    let Some(entries) = entries(host) else { return };
    if store(host).is_some_and(|store| store.dialect == Dialect::V3) {
        return objects(host, results);
    }
    let node = host.now.migration.node.as_str();
    let (mut unknown, mut settings) = (Vec::new(), Vec::new());
    for entry in entries {
        if let Some(why) = tortie_config::unsupported(&entry.key) {
            results.fail(
                &codes::CHECK_UNSUPPORTED,
                format!("{}: {why}", entry.key),
                "see docs/reference/filters.md",
            );
            continue;
        }
        match Key::parse(&entry.key) {
            Ok(Key::Unknown(key)) if !key.starts_with("/calico/resources/") => unknown.push(key),
            Ok(Key::Setting(scope, name)) => {
                let here = matches!(&scope, Scope::Global) || scope.host() == Some(node);
                let known = Setting::NAMES.contains(&name.as_str());
                if here && (!known || Setting::WITHOUT_EFFECT.contains(&name.as_str())) {
                    settings.push(name);
                }
            }
            _ => {}
        }
        if let Err(error) = tortie_config::check(&entry.key, &entry.value) {
            let fix = format!("tortie store put {} VALUE, or remove it", entry.key);
            results.warn(&codes::INVALID_VALUE, error.to_string(), fix);
        }
    }
    if !unknown.is_empty() {
        let refs: Vec<&str> = unknown.iter().map(String::as_str).collect();
        let text = format!(
            "{} not in the data model and without effect here: {}",
            counted(unknown.len(), "key"),
            few(&refs)
        );
        results.warn(
            &codes::CHECK_UNKNOWN_KEYS,
            text,
            "tortie store ls lists them; they are left as they are",
        );
    }
    settings.sort_unstable();
    settings.dedup();
    if !settings.is_empty() {
        let text = format!("settings of Felix that have no effect here: {}", settings.join(", "));
        results.warn(
            &codes::CHECK_UNKNOWN_SETTINGS,
            text,
            "see docs/how-to/migrate.md for their replacements",
        );
    }
}

/// Reports objects of a Calico 3 store that have no effect as they are.
fn objects(host: &Host<'_>, results: &mut Results) {
    for problem in store(host).into_iter().flat_map(|store| &store.problems) {
        let text = format!("{}: {}", problem.object, problem.text);
        let fix = "see docs/reference/problems.md; tortie store project lists all of them";
        match problem.code {
            code if code == codes::MIXED_MODELS.name => {}
            code if code == codes::UNSUPPORTED_SETTING.name => {
                results.fail(&codes::CHECK_UNSUPPORTED, text, fix);
            }
            code if code == codes::SETTING_NOTED.name => {
                results.warn(&codes::CHECK_UNKNOWN_SETTINGS, text, fix);
            }
            _ => results.warn(&codes::INVALID_VALUE, text, fix),
        }
    }
}

pub(super) fn few(names: &[&str]) -> String {
    let shown: Vec<&str> = names.iter().copied().take(NAMED).collect();
    let more = names.len() - shown.len();
    if more == 0 { shown.join(", ") } else { format!("{} and {more} more", shown.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host_checks::host::Command;
    use crate::host_checks::result::{CheckResult, Verdict};
    use crate::host_checks::snapshot::{HostSnapshot, Migration, ObjectProblem, Role};

    fn of(pairs: &[(&str, &str)]) -> Vec<(Verdict, String, String)> {
        of_store(Dialect::V1, pairs, Vec::new())
    }

    fn of_store(
        dialect: Dialect,
        pairs: &[(&str, &str)],
        problems: Vec<ObjectProblem>,
    ) -> Vec<(Verdict, String, String)> {
        let entries: Vec<KeyValue> = pairs
            .iter()
            .map(|(key, value)| KeyValue {
                key: (*key).to_owned(),
                value: value.as_bytes().to_vec(),
                mod_revision: 1,
                create_revision: 1,
            })
            .collect();
        let store = StoreContent { entries, dialect, problems, ..StoreContent::default() };
        let migration = Migration { node: "h1".to_owned(), store: Some(Ok(store)), ..Migration::default() };
        let now = HostSnapshot { migration, ..HostSnapshot::default() };
        let role = Role::default();
        let host = Host { command: Command::MigrateCheck, now: &now, before: None, role: &role };
        let mut results = Results::default();
        for check in [data_model, node_name, dual_stack, keys] {
            check(&host, &mut results);
        }
        let one = |item: CheckResult| (item.verdict(), item.code().to_owned(), item.text());
        results.into_inner().into_iter().map(one).collect()
    }

    #[test]
    fn what_tortie_does_not_follow_is_listed_by_name() {
        let host = ("/calico/bgp/v1/host/h1/ip_addr_v4", "192.0.2.1");
        let good = of(&[host, ("/calico/v1/Ready", "true"), ("/calico/v1/config/InterfacePrefix", "cali")]);
        assert_eq!(
            good,
            [(Verdict::Ok, "data-model".to_owned(), "the store follows Calico's v1 data model".to_owned())]
        );
        let all = of(&[
            host,
            ("/calico/v1/Ready", "true"),
            ("/calico/bgp/v1/global/custom_filters/v4/mine", "if net ~ 10.0.0.0/8 then reject;"),
            ("/calico/dhcp/v1/subnet/x", "{}"),
            ("/calico/v1/config/MetadataAddr", "127.0.0.1"),
            ("/calico/v1/host/h2/config/Other", "1"),
            ("/calico/v1/ipam/v4/pool/10.244.0.0-16", "{broken"),
        ]);
        let has = |verdict, code: &str, part: &str| {
            assert!(
                all.iter().any(|(v, c, t)| (*v, c.as_str()) == (verdict, code) && t.contains(part)),
                "{code}: {all:#?}"
            );
        };
        has(Verdict::Fail, "unsupported", "custom_filters/v4/mine");
        has(Verdict::Warn, "unknown-keys", "/calico/dhcp/v1/subnet/x");
        has(Verdict::Warn, "unknown-settings", "MetadataAddr");
        assert!(Setting::WITHOUT_EFFECT.iter().all(|name| Setting::NAMES.contains(name)));
        has(Verdict::Warn, "invalid-value", "10.244.0.0-16");
        assert!(!all.iter().any(|(.., text)| text.contains("Other")), "{all:#?}");
    }

    #[test]
    fn another_data_model_and_another_host_are_no() {
        assert!(of(&[]).iter().any(|(v, c, _)| *v == Verdict::Fail && c == "data-model"));
        let other = of(&[("/calico/bgp/v1/host/h10/ip_addr_v4", "192.0.2.1"), ("/calico/v1/Ready", "true")]);
        assert!(other.iter().any(|(v, c, t)| *v == Verdict::Fail && c == "node-unknown" && t.contains("h1")));
    }

    #[test]
    fn a_store_of_calico_3_is_judged_by_its_objects() {
        let host = ("/calico/bgp/v1/host/h1/ip_addr_v4", "192.0.2.1");
        let good = of_store(Dialect::V3, &[host], Vec::new());
        let fine = "the store holds Calico 3's objects".to_owned();
        assert_eq!(good, [(Verdict::Ok, "data-model".to_owned(), fine)]);
        let problem = |code, text: &str| ObjectProblem {
            object: "FelixConfiguration default".to_owned(),
            code,
            text: text.to_owned(),
        };
        let problems = vec![
            problem("unsupported-setting", "`spec.bpfEnabled`"),
            problem("setting-noted", "`spec.deviceRouteProtocol`"),
            problem("invalid-value", "`spec.vxlanPort`"),
            problem("mixed-models", "1 key of Calico's v1 data model"),
        ];
        let found = of_store(Dialect::V3, &[host], problems);
        let codes: Vec<(Verdict, &str)> = found.iter().map(|(v, c, _)| (*v, c.as_str())).collect();
        assert_eq!(
            codes,
            [
                (Verdict::Warn, "data-model"),
                (Verdict::Fail, "unsupported"),
                (Verdict::Warn, "unknown-settings"),
                (Verdict::Warn, "invalid-value"),
            ]
        );
    }

    #[test]
    fn a_name_in_another_case_is_another_host() {
        let ready = ("/calico/v1/Ready", "true");
        let other = of(&[ready, ("/calico/bgp/v1/host/H1/ip_addr_v4", "192.0.2.1")]);
        assert!(
            other.iter().any(|(v, c, t)| *v == Verdict::Fail && c == "node-unknown" && t.contains("host H1")),
            "{other:?}"
        );
        let both = of(&[
            ready,
            ("/calico/bgp/v1/host/H1/ip_addr_v4", "192.0.2.1"),
            ("/calico/bgp/v1/host/h1/ip_addr_v4", "192.0.2.1"),
        ]);
        assert!(both.iter().any(|(v, c, _)| *v == Verdict::Warn && c == "node-unknown"), "{both:?}");
    }
}
