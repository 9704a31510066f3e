//! `tortie migrate check`: can this host be moved, and what has to be mended first. Reads only.

use std::collections::BTreeMap;

use serde::Serialize;
use tortie_config::key::{Key, ROOT, Scope};
use tortie_config::resource::{NodeMesh, Setting};

use super::adopt;
use super::args::{CheckCommand, Common};
use super::daemons::{self, Daemon, StopWith};
use super::journal::{Journal, Phase};
use super::plan::{Inventory, names};
use super::restarts::Restarts;
use crate::cli::context::Context;
use crate::cli::doctor::{self, CheckItem, CheckResult, ports};
use crate::cli::failure::{Exit, Failure};
use crate::cli::output;
use tortie_store::KeyValue;

/// What `tortie migrate check` answers.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    /// `MigrateCheck`.
    kind: &'static str,
    node: String,
    failures: usize,
    warnings: usize,
    not_tried: usize,
    items: Vec<CheckItem>,
}

/// Findings of doctor that are what the move is about.
const EXPECTED: [&str; 4] = ["rival", "port", "port-taken", "felix-rules"];
/// Most names in one line; the rest is counted.
const NAMED: usize = 5;

pub(super) async fn run(context: &Context, command: &CheckCommand) -> Result<(), Failure> {
    let node = context.globals.node_name()?;
    let mut items = Vec::new();
    let phase = state(&command.common, &mut items);
    store(context, &node, &mut items).await;
    let running = daemons::find();
    who_runs(&running, &mut items);
    restarts(&Restarts::look(&command.sockets.bird_socket, &running), &mut items);
    who_listens(&running, &mut items);
    kernel(&mut items);
    felix_own_settings(&running, &mut items);
    let doctor = doctor::examine(context).await;
    items.extend(doctor.items.into_iter().filter(|item| {
        !EXPECTED.contains(&item.code.as_str()) && item.result != CheckResult::Ok && item.code != "store-away"
    }));
    let of = |verdict| items.iter().filter(|item| item.result == verdict).count();
    let report = Report {
        kind: "MigrateCheck",
        node,
        failures: of(CheckResult::Fail),
        warnings: of(CheckResult::Warn),
        not_tried: of(CheckResult::NotTried),
        items,
    };
    output::print(context.globals.output, &report, |out, wide| {
        doctor::render_items(out, &report.items, wide);
        let verdict = match (report.failures, report.warnings) {
            (0, _) if phase == Some(Phase::Adopted) => {
                "This host is Tortie's already: tortie status".to_owned()
            }
            (0, 0) => "This host can be moved: tortie migrate plan".to_owned(),
            (0, n) => format!("This host can be moved; look at {n} warnings first: tortie migrate plan"),
            (n, _) => format!("This host cannot be moved yet: {n} failures."),
        };
        out.push_str(&verdict);
        out.push('\n');
    })?;
    if report.failures == 0 {
        return Ok(());
    }
    Err(Failure::new(Exit::No, "migrate-check", ""))
}

fn say(
    items: &mut Vec<CheckItem>,
    result: CheckResult,
    code: &str,
    text: impl Into<String>,
    fix: Option<String>,
) {
    items.push(CheckItem { code: code.to_owned(), result, text: text.into(), detail: String::new(), fix });
}

/// A move that was begun, and how far it is.
fn state(common: &Common, items: &mut Vec<CheckItem>) -> Option<Phase> {
    match Journal::peek(&common.state_dir) {
        Ok(None) => None,
        Ok(Some(record)) => {
            let text = format!("this host was moved before: {}", record.phase.as_str());
            let (result, fix) = match record.phase {
                Phase::RolledBack => (CheckResult::Ok, None),
                Phase::Adopted => (CheckResult::Ok, None),
                Phase::Adopting => (
                    CheckResult::Warn,
                    Some(
                        "tortie migrate adopt goes on with it, tortie migrate rollback undoes it".to_owned(),
                    ),
                ),
                Phase::RollingBack => (CheckResult::Fail, Some("tortie migrate rollback".to_owned())),
            };
            say(items, result, "state", text, fix);
            Some(record.phase)
        }
        Err(failure) => {
            say(items, CheckResult::NotTried, "state", failure.text, None);
            None
        }
    }
}

/// What the store holds.
async fn store(context: &Context, node: &str, items: &mut Vec<CheckItem>) {
    let read = async {
        let store = crate::cli::store::open(&context.globals, false).await?;
        let snapshot = store.list(&[ROOT.to_owned()]).await?;
        Ok::<_, Failure>((store.describe(), snapshot))
    };
    match read.await {
        Ok((describe, snapshot)) => {
            let text = format!(
                "store {describe} answers, {} keys at revision {}",
                snapshot.entries.len(),
                snapshot.revision
            );
            say(items, CheckResult::Ok, "store", text, None);
            data(&snapshot.entries, node, items);
        }
        Err(failure) => {
            let fix = "name Calico's etcd with --datastore (env TORTIE_DATASTORE), e.g. etcd://10.0.0.1:2379"
                .to_owned();
            say(items, CheckResult::Fail, "store-away", failure.text, Some(fix));
        }
    }
}

/// What of the data model is there, and what of it Tortie does not follow. Pure.
fn data(entries: &[KeyValue], node: &str, items: &mut Vec<CheckItem>) {
    let version3: Vec<&str> =
        entries.iter().filter_map(|e| e.key.strip_prefix("/calico/resources/v3/")).collect();
    if !version3.is_empty() {
        let text = format!(
            "the store holds Calico 3's own resources ({}): Tortie follows the v1 keys",
            few(&version3)
        );
        let fix = "Tortie does not read them: keep Calico on hosts of this cluster, or write the v1 keys (docs/migrate.md)";
        say(items, CheckResult::Fail, "data-model", text, Some(fix.to_owned()));
    } else if !entries.iter().any(|e| e.key.starts_with("/calico/v1/")) {
        let fix = "is it the right store? Calico 1 and 2 wrote etcd's v2 keys, which v3 clients do not see: move them with \
                   `ETCDCTL_API=3 etcdctl migrate` (etcd 3.2 to 3.4), or export and `tortie store import`";
        say(
            items,
            CheckResult::Fail,
            "data-model",
            "the store holds no keys of Calico's v1 data model",
            Some(fix.to_owned()),
        );
    } else {
        say(items, CheckResult::Ok, "data-model", "the store follows Calico's v1 data model", None);
    }
    let known =
        |name: &str| entries.iter().any(|e| e.key.starts_with(&format!("/calico/bgp/v1/host/{name}/")));
    if !known(node) && !entries.is_empty() {
        let fix = "name this host as Calico does with --node (env TORTIE_NODE); Calico took the host name or NODENAME";
        say(
            items,
            CheckResult::Fail,
            "node-unknown",
            format!("the store knows no host {node}"),
            Some(fix.to_owned()),
        );
    }
    dual_stack(entries, node, items);
    let (mut unknown, mut settings) = (Vec::new(), Vec::new());
    for entry in entries {
        if let Some(why) = tortie_config::unsupported(&entry.key) {
            say(
                items,
                CheckResult::Fail,
                "unsupported",
                format!("{}: {why}", entry.key),
                Some("see docs/filters.md".to_owned()),
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
            say(items, CheckResult::Warn, "invalid-value", error.to_string(), Some(fix));
        }
    }
    if !unknown.is_empty() {
        let refs: Vec<&str> = unknown.iter().map(String::as_str).collect();
        let text = format!(
            "{} keys are none of the data model's and do nothing here: {}",
            unknown.len(),
            few(&refs)
        );
        say(
            items,
            CheckResult::Warn,
            "unknown-keys",
            text,
            Some("tortie store ls shows all; they are kept as they are".to_owned()),
        );
    }
    settings.sort_unstable();
    settings.dedup();
    if !settings.is_empty() {
        let text = format!("settings of Felix that have no effect here: {}", settings.join(", "));
        say(
            items,
            CheckResult::Warn,
            "unknown-settings",
            text,
            Some("see docs/migrate.md for what stands in their place".to_owned()),
        );
    }
}

/// Calico's hosts have a session of each family, ours one for both unless they are told otherwise.
fn dual_stack(entries: &[KeyValue], node: &str, items: &mut Vec<CheckItem>) {
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
        "this host and others ({}) have addresses of both families: Calico's have a session of each, and Tortie's one for both",
        few(&others)
    );
    let fix = "add `\"per_family\": true` to /calico/bgp/v1/global/node_mesh (tortie store get, put), until every host is Tortie's";
    say(items, CheckResult::Fail, "dual-stack", text, Some(fix.to_owned()));
}

fn few(names: &[&str]) -> String {
    let shown: Vec<&str> = names.iter().copied().take(NAMED).collect();
    let more = names.len() - shown.len();
    if more == 0 { shown.join(", ") } else { format!("{} and {more} more", shown.join(", ")) }
}

fn who_runs(running: &[Daemon], items: &mut Vec<CheckItem>) {
    if running.is_empty() {
        let text = "no daemon of Calico runs in this network namespace";
        say(items, CheckResult::Ok, "daemons", text, None);
        return;
    }
    let kept: Vec<String> = running
        .iter()
        .map(|daemon| match (&daemon.container, &daemon.unit) {
            (Some(container), _) => format!("{} (pid {}, container {container})", daemon.role, daemon.pid),
            (None, Some(unit)) => format!("{} (pid {}, {unit})", daemon.role, daemon.pid),
            (None, None) => format!("{} (pid {})", daemon.role, daemon.pid),
        })
        .collect();
    let (run, them) = if running.len() == 1 { ("runs", "it") } else { ("run", "them") };
    let text = format!("{} {run}; adopt ends {them} with: {}", kept.join(", "), StopWith::suggested(running));
    say(items, CheckResult::Ok, "daemons", text, None);
}

/// What peers do with the routes of this host when BIRD is ended.
fn restarts(found: &Restarts, items: &mut Vec<CheckItem>) {
    if !found.under_way.is_empty() {
        let text = format!(
            "{}: peers drop the routes of this host when BIRD is ended now",
            found.under_way.join("; ")
        );
        let fix = "adopt waits for it; see `birdc show status` and `birdc show protocols all`";
        say(items, CheckResult::Warn, "restarting", text, Some(fix.to_owned()));
    }
    if !found.forgetful.is_empty() {
        let names: Vec<&str> = found.forgetful.iter().map(String::as_str).collect();
        let text = format!(
            "{} do not know graceful restarts: they drop the routes of this host for the moment in which BIRD is ended and Tortie connects",
            few(&names)
        );
        let fix =
            "configure graceful restart (as a helper) there, or move this host when that does not matter";
        say(items, CheckResult::Warn, "no-graceful-restart", text, Some(fix.to_owned()));
    }
    if let Some(why) = &found.unseen {
        let fix = "name BIRD's socket with --bird-socket (env TORTIE_BIRD_SOCKET)";
        say(
            items,
            CheckResult::NotTried,
            "restarting",
            format!("whether BIRD or a peer restarts: {why}"),
            Some(fix.to_owned()),
        );
    }
}

/// Whoever is neither Calico nor we keeps its port.
fn who_listens(running: &[Daemon], items: &mut Vec<CheckItem>) {
    let owners = ports::owners(&[179, 9099]);
    for (port, what) in [(179, "BGP"), (9099, "health and metrics")] {
        let there = owners.get(&port).map(Vec::as_slice).unwrap_or_default();
        let strangers: Vec<String> = there
            .iter()
            .filter(|owner| running.iter().all(|daemon| daemon.pid != owner.pid) && owner.name != "tortie")
            .map(|owner| format!("{} (pid {})", owner.name, owner.pid))
            .collect();
        let held: Vec<&Daemon> =
            running.iter().filter(|d| there.iter().any(|owner| owner.pid == d.pid)).collect();
        if !strangers.is_empty() {
            let fix = if port == 179 { "stop it, or --bgp-listen" } else { "stop it, or --http" };
            let text = format!(
                "tcp/{port} ({what}) is taken by {}, which is none of Calico's",
                strangers.join(", ")
            );
            say(items, CheckResult::Fail, "port-taken", text, Some(fix.to_owned()));
        } else if let Some(daemon) = held.first() {
            let text = format!(
                "tcp/{port} ({what}) is {}'s, and is ours after it ended",
                names(std::slice::from_ref(*daemon))
            );
            say(items, CheckResult::Ok, "port", text, None);
        } else {
            say(items, CheckResult::Ok, "port", format!("tcp/{port} ({what}) is free or ours"), None);
        }
    }
}

/// Routes, rules and sets that Calico left.
fn kernel(items: &mut Vec<CheckItem>) {
    let there = match adopt::look() {
        Ok(there) => there,
        Err(failure) => {
            let fix = Some("run it as root, with iptables and ipset installed".to_owned());
            return say(items, CheckResult::Fail, "kernel-unread", failure.text, fix);
        }
    };
    say(
        items,
        CheckResult::Ok,
        "kernel-objects",
        format!("the kernel has {}", Inventory::of(&there).in_words()),
        None,
    );
    for saved in &there.rules {
        if let Some(why) = saved.listing().drops_without_felix("cali") {
            let tool = saved.tool();
            let text = format!("{tool}: {why}; only Felix's rules let packets of workloads pass it");
            let fix = format!(
                "{tool} -A FORWARD -i cali+ -j ACCEPT; {tool} -A FORWARD -o cali+ -j ACCEPT (as your firewall keeps rules)"
            );
            say(items, CheckResult::Fail, "forward-drop", text, Some(fix));
        }
    }
    if let Some(unit) =
        there.rules.iter().find(|saved| saved.text.contains("is incompatible, use 'nft' tool"))
    {
        let text = format!("{} cannot show all tables: rules of Felix may be among them", unit.tool());
        say(items, CheckResult::Warn, "rules-hidden", text, Some("nft list ruleset".to_owned()));
    }
}

/// Felix's environment and file win over the store; Tortie reads neither.
fn felix_own_settings(running: &[Daemon], items: &mut Vec<CheckItem>) {
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    for daemon in running.iter().filter(|daemon| daemon.role == "felix") {
        let environment = std::fs::read(format!("/proc/{}/environ", daemon.pid)).unwrap_or_default();
        for pair in environment.split(|b| *b == 0) {
            let pair = String::from_utf8_lossy(pair);
            if let Some((name, value)) = pair.split_once('=').filter(|(name, _)| name.starts_with("FELIX_")) {
                found.insert(name.to_owned(), value.to_owned());
            }
        }
    }
    // What only says where the store is, and what Tortie would not do otherwise.
    let quiet =
        ["ETCD", "DATASTORE", "HOSTNAME", "FELIXHOSTNAME", "LOG", "HEALTH", "PROMETHEUS", "USAGE", "TYPHA"];
    let matter = |name: &str| !quiet.iter().any(|part| name.trim_start_matches("FELIX_").starts_with(part));
    let by_name: Vec<(String, &str)> = found
        .iter()
        .filter(|(name, _)| matter(name))
        .map(|(name, value)| {
            let plain = name.trim_start_matches("FELIX_");
            let known = Setting::NAMES.iter().find(|setting| setting.eq_ignore_ascii_case(plain));
            (known.map_or_else(|| plain.to_owned(), |setting| (*setting).to_owned()), value.as_str())
        })
        .collect();
    if !by_name.is_empty() {
        let pairs: Vec<String> = by_name.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let text = format!(
            "Felix has settings from its environment, which win over the store: {}",
            pairs.join(", ")
        );
        let puts: Vec<String> = by_name
            .iter()
            .filter(|(name, _)| Setting::NAMES.contains(&name.as_str()))
            .map(|(name, value)| format!("tortie store put /calico/v1/host/NODE/config/{name} {value}"))
            .collect();
        let fix = if puts.is_empty() {
            "none of them is Tortie's: see docs/migrate.md".to_owned()
        } else {
            puts.join("; ")
        };
        say(items, CheckResult::Warn, "felix-environment", text, Some(fix));
    }
    let file = "/etc/calico/felix.cfg";
    if std::fs::read_to_string(file)
        .is_ok_and(|text| text.lines().any(|line| line.contains('=') && !line.trim_start().starts_with('#')))
    {
        let fix = "put what matters into the store: /calico/v1/host/NODE/config/NAME".to_owned();
        say(
            items,
            CheckResult::Warn,
            "felix-file",
            format!("{file} has settings, which Tortie does not read"),
            Some(fix),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &str)]) -> Vec<(CheckResult, String, String)> {
        let entries: Vec<KeyValue> = pairs
            .iter()
            .map(|(key, value)| KeyValue {
                key: (*key).to_owned(),
                value: value.as_bytes().to_vec(),
                mod_revision: 1,
                create_revision: 1,
            })
            .collect();
        let mut items = Vec::new();
        data(&entries, "h1", &mut items);
        items.into_iter().map(|item| (item.result, item.code, item.text)).collect()
    }

    #[test]
    fn what_tortie_does_not_follow_is_listed_by_name() {
        let host = ("/calico/bgp/v1/host/h1/ip_addr_v4", "192.0.2.1");
        let good = of(&[host, ("/calico/v1/Ready", "true"), ("/calico/v1/config/InterfacePrefix", "cali")]);
        assert_eq!(
            good,
            [(
                CheckResult::Ok,
                "data-model".to_owned(),
                "the store follows Calico's v1 data model".to_owned()
            )]
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
        has(CheckResult::Fail, "unsupported", "custom_filters/v4/mine");
        has(CheckResult::Warn, "unknown-keys", "/calico/dhcp/v1/subnet/x");
        has(CheckResult::Warn, "unknown-settings", "MetadataAddr");
        assert!(Setting::WITHOUT_EFFECT.iter().all(|name| Setting::NAMES.contains(name)));
        has(CheckResult::Warn, "invalid-value", "10.244.0.0-16");
        assert!(!all.iter().any(|(.., text)| text.contains("Other")), "{all:#?}");
    }

    #[test]
    fn another_data_model_and_another_host_are_no() {
        let three = of(&[("/calico/resources/v3/projectcalico.org/ippools/default", "{}")]);
        assert!(
            three.iter().any(|(v, c, t)| *v == CheckResult::Fail
                && c == "data-model"
                && t.contains("ippools/default"))
        );
        assert!(of(&[]).iter().any(|(v, c, _)| *v == CheckResult::Fail && c == "data-model"));
        let other = of(&[("/calico/bgp/v1/host/h10/ip_addr_v4", "192.0.2.1"), ("/calico/v1/Ready", "true")]);
        assert!(
            other.iter().any(|(v, c, t)| *v == CheckResult::Fail && c == "node-unknown" && t.contains("h1"))
        );
    }
}
