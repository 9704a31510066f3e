//! `tortie migrate check`: checks if this host can be migrated, and prints a fix for each obstacle. It
//! changes nothing.
//!
//! It reads Calico's state on this host for the host checks (store, daemons, BIRD's restarts, rules and
//! sets), and prints their results; the checks themselves are in `host_checks`.

use std::collections::BTreeMap;

use serde::Serialize;
use tortie_config::counted;
use tortie_config::key::ROOT;

use super::adopt;
use super::args::CheckCommand;
use super::daemons::{self, StopWith};
use super::journal::Journal;
use super::plan::Inventory;
use crate::cli::context::Context;
use crate::cli::doctor;
use crate::cli::failure::{Exit, Failure};
use crate::cli::output;
use crate::host_checks::{
    CalicoDaemon, CalicoKernel, CheckResult, Command, FELIX_FILE, HostSnapshot, Migration, MigrationPhase,
    Restarts, StoreContent,
};

/// JSON answer of `tortie migrate check`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    /// Always `MigrateCheck`.
    kind: &'static str,
    node: String,
    failures: usize,
    warnings: usize,
    not_tried: usize,
    items: Vec<CheckResult>,
}

pub(super) async fn run(context: &Context, command: &CheckCommand) -> Result<(), Failure> {
    let node = context.globals.node_name()?;
    let migration = read(context, command, node.clone()).await;
    let phase = migration.state.as_ref().and_then(|state| state.as_ref().ok()).copied();
    let now = HostSnapshot { migration, ..doctor::read(context).await };
    let doctor::Report { failures, warnings, not_tried, items } = doctor::check(Command::MigrateCheck, &now);
    let report = Report { kind: "MigrateCheck", node, failures, warnings, not_tried, items };
    output::print(context.globals.output, &report, |out, wide| {
        doctor::render_items(out, &report.items, wide);
        let verdict = match (report.failures, report.warnings) {
            (0, _) if phase == Some(MigrationPhase::Adopted) => {
                "This host is Tortie's already: tortie status".to_owned()
            }
            (0, 0) => "This host can be moved: tortie migrate plan".to_owned(),
            (0, n) => format!(
                "This host can be moved; look at {} first: tortie migrate plan",
                counted(n, "warning")
            ),
            (n, _) => format!("This host cannot be moved yet: {}.", counted(n, "failure")),
        };
        out.push_str(&verdict);
        out.push('\n');
    })?;
    if report.failures == 0 {
        return Ok(());
    }
    Err(Failure::new(Exit::No, "migrate-check", ""))
}

/// Reads Calico's state on this host, and the state of an earlier migration.
async fn read(context: &Context, command: &CheckCommand, node: String) -> Migration {
    let store = store(context).await.map_err(|failure| failure.text);
    let daemons = daemons::find();
    Migration {
        node,
        state: match Journal::peek(&command.common.state_dir) {
            Ok(record) => record.map(|record| Ok(record.phase)),
            Err(failure) => Some(Err(failure.text)),
        },
        store: Some(store),
        suggested_stop: StopWith::suggested(&daemons),
        restarts: Restarts::look(&command.sockets.bird_socket, &daemons),
        kernel: Some(kernel().map_err(|failure| failure.text)),
        felix_environment: felix_environment(&daemons),
        felix_file: felix_file_has_settings(),
        daemons,
    }
}

/// Reads all keys of the store.
async fn store(context: &Context) -> Result<StoreContent, Failure> {
    let store = crate::cli::store::open(&context.globals, false).await?;
    let snapshot = store.list(&[ROOT.to_owned()]).await?;
    Ok(StoreContent { describe: store.describe(), revision: snapshot.revision, entries: snapshot.entries })
}

/// Reads the routes, rules and sets that Calico wrote.
fn kernel() -> Result<CalicoKernel, Failure> {
    let there = adopt::look()?;
    let drops = there.rules.iter().filter_map(|saved| {
        let why = saved.listing().drops_without_felix("cali")?;
        Some((saved.tool(), why))
    });
    let hidden = there.rules.iter().find(|saved| saved.text.contains("is incompatible, use 'nft' tool"));
    Ok(CalicoKernel {
        objects: Inventory::of(&there).in_words(),
        drops: drops.collect(),
        hidden: hidden.map(|saved| saved.tool()),
    })
}

/// Returns Felix's settings from its environment, which override the store; Tortie does not read them.
fn felix_environment(running: &[CalicoDaemon]) -> BTreeMap<String, String> {
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
    found
}

fn felix_file_has_settings() -> bool {
    let text = std::fs::read_to_string(FELIX_FILE).unwrap_or_default();
    text.lines().any(|line| line.contains('=') && !line.trim_start().starts_with('#'))
}
