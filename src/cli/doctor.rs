//! `tortie doctor`: runs the host checks, and prints a fix for each failure.
//!
//! It reads the host, the store and the agent into a snapshot, and prints the results of the host checks
//! ([`host_checks`]), which do the checking. It repeats problems of the agent that refer to it (`next: tortie
//! doctor`) with their fixes. It changes nothing on the host.
//!
//! ```text
//!   host_checks::read: kernel, sockets, /proc, /etc --+
//!   store, agent's socket ----------------------------+--> HostSnapshot
//!       --host_checks::run--> CheckResult --> table, JSON; exit 1 with a failure
//! ```

use std::fmt::Write as _;
use std::path::PathBuf;

use serde::Serialize;
use tortie_config::key::{Key, Scope, prefix};
use tortie_config::resource::Pool;
use tortie_config::{Dialect, counted};
use tortie_engine::ipam::{ExcludedPrefix, Exclusions, HostNetwork, IpamError, pool_overlap};
use tortie_engine::model::projected;
use tortie_net::Cidr;
use tortie_store::StoreError;

use super::client::Client;
use super::context::{Context, Globals};
use super::failure::{Exit, Failure};
use super::output;
use crate::agent::CACHE_PATH;
use crate::api::codes;
use crate::api::status::Status;
use crate::host_checks::{
    self, CheckResult, Command, Disk, Host, HostSnapshot, StoreState, Unreadable, Verdict,
};
use crate::plugins::attach::{allocation_problem, rehearse_workload};

/// Default UDP port of the VXLAN tunnel (`VXLANPort`).
const VXLAN_PORT: u16 = 4789;

/// JSON answer of `tortie doctor`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    /// Number of failures.
    pub(super) failures: usize,
    /// Number of warnings.
    pub(super) warnings: usize,
    /// Number of checks that could not be run.
    pub(super) not_tried: usize,
    /// All results, including passed checks.
    pub(super) items: Vec<CheckResult>,
}

pub(super) async fn run(context: &Context) -> Result<(), Failure> {
    let report = examine(context).await;
    output::print(context.globals.output, &report, |out, wide| render(out, &report, wide))?;
    if report.failures == 0 {
        return Ok(());
    }
    let text = format!("{} found on this host", counted(report.failures, "failure"));
    Err(Failure::new(Exit::No, "doctor", text))
}

impl Report {
    fn of(items: Vec<CheckResult>) -> Self {
        let of = |verdict| items.iter().filter(|item| item.verdict() == verdict).count();
        let (failures, warnings) = (of(Verdict::Fail), of(Verdict::Warn));
        Self { failures, warnings, not_tried: of(Verdict::NotTried), items }
    }
}

/// Reads the host and runs the checks of `doctor`.
pub(super) async fn examine(context: &Context) -> Report {
    check(Command::Doctor, &read(context).await)
}

/// Runs the checks of a command.
pub(super) fn check(command: Command, now: &HostSnapshot) -> Report {
    let role = host_checks::role(now);
    Report::of(host_checks::run(&Host { command, now, before: None, role: &role }))
}

/// Reads the host, the store and the agent.
pub(super) async fn read(context: &Context) -> HostSnapshot {
    let globals = &context.globals;
    let agent: Result<Status, Failure> = Client::of(globals).get("/v1/status").await;
    let store = store(globals).await.map_err(unreadable);
    let files = Disk::files(&globals.datastore, PathBuf::from(CACHE_PATH)).into_iter();
    HostSnapshot {
        disks: files.filter_map(|(what, path)| Disk::read(what, &path)).collect(),
        store: Some(store),
        agent: Some(agent.map_err(unreadable)),
        ..host_checks::read(&globals.socket)
    }
}

fn unreadable(failure: Failure) -> Unreadable {
    let damaged = failure.code == codes::STORE_DAMAGED.name;
    Unreadable { denied: failure.exit == Exit::Permission, damaged, text: failure.text }
}

/// Reads the store.
async fn store(globals: &Globals) -> Result<StoreState, Failure> {
    let store = crate::cli::store::open(globals, false).await?;
    let port_key = Key::Setting(Scope::Global, "VXLANPort".to_owned()).to_string();
    let wanted = [
        prefix::POOLS.to_owned(),
        prefix::BGP_HOSTS.to_owned(),
        "/calico/v1/Ready".to_owned(),
        port_key.clone(),
    ];
    let dialect = globals.data_model.dialect(&*store).await?;
    let snapshot = match dialect {
        Dialect::V1 => store.list(&wanted).await?,
        Dialect::V3 => {
            let objects = store.list(&[prefix::CALICO_3.to_owned()]).await?;
            projected(&globals.node_name().unwrap_or_default(), &objects)
        }
    };
    let text = |value: &[u8]| String::from_utf8_lossy(value).trim().to_owned();
    let pools: Vec<_> = snapshot.entries.iter().filter(|e| e.key.contains("/pool/")).collect();
    let hosts: Vec<HostNetwork> =
        snapshot.entries.iter().filter_map(|e| HostNetwork::of_entry(&e.key, &e.value)).collect();
    let prefixes: Vec<Cidr> = snapshot
        .entries
        .iter()
        .filter_map(|e| match Key::parse(&e.key) {
            Ok(Key::Pool(cidr)) => Some(cidr),
            _ => None,
        })
        .collect();
    let uses_vxlan = pools.iter().any(|e| match Key::parse(&e.key) {
        Ok(Key::Pool(cidr)) => Pool::parse(cidr, &e.value).is_ok_and(|pool| pool.vxlan.is_some()),
        _ => false,
    });
    let setting = snapshot.entries.iter().find(|e| e.key == port_key);
    let vxlan_port = setting.and_then(|e| text(&e.value).parse().ok()).unwrap_or(VXLAN_PORT);
    let rehearsed = match globals.node_name() {
        Ok(node) if !pools.is_empty() => {
            // The hosts were listed above.
            let prefixes = hosts.iter().cloned().map(ExcludedPrefix::from).collect();
            let found = rehearse_workload(&store, &node, Exclusions { prefixes, complete: true });
            tokio::time::timeout(std::time::Duration::from_secs(5), found).await.ok()
        }
        _ => None,
    };
    let problem = rehearsed.as_ref().filter(|found| !is_denied(found)).and_then(allocation_problem);
    Ok(StoreState {
        no_workload: problem.map(|problem| (problem.code, problem.text)),
        overlaps: prefixes.iter().filter_map(|pool| Some((*pool, pool_overlap(pool, &hosts)?))).collect(),
        prefixes,
        describe: store.describe(),
        revision: snapshot.revision,
        pools: pools.len(),
        ready: snapshot.entries.iter().find(|e| e.key == "/calico/v1/Ready").map(|e| text(&e.value)),
        calico_3: dialect == Dialect::V3,
        ipip: pools.iter().any(|e| text(&e.value).contains("\"tunl")),
        vxlan: uses_vxlan.then_some(vxlan_port),
    })
}

/// True if the store denied access to a user other than root, whose rights may be less than the agent's.
fn is_denied(found: &Result<(), IpamError>) -> bool {
    let denied = matches!(found, Err(IpamError::Store(StoreError::PermissionDenied(_))));
    denied && !rustix::process::geteuid().is_root()
}

/// Prints one line per result, with the fix below a problem.
pub(super) fn render(out: &mut String, report: &Report, wide: bool) {
    render_items(out, &report.items, wide);
    let _ = write!(out, "{}, {}", counted(report.failures, "failure"), counted(report.warnings, "warning"));
    if report.not_tried > 0 {
        let _ = write!(out, ", {} not tried", report.not_tried);
    }
    out.push_str(".\n");
}

/// Prints the lines of results only.
pub(super) fn render_items(out: &mut String, items: &[CheckResult], wide: bool) {
    for item in items {
        let verdict = item.verdict();
        // A passed check needs no code.
        let code = match verdict {
            Verdict::Ok => String::new(),
            _ => format!("   [{}]", item.code()),
        };
        let _ = writeln!(out, "{:<5} {}{code}", verdict.as_str(), item.text());
        if wide && !item.detail().is_empty() {
            let _ = writeln!(out, "      {}", item.detail());
        }
        if let Some(fix) = item.fix() {
            let _ = writeln!(out, "      fix: {fix}");
        }
    }
}
