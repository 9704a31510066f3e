//! `tortie migrate check`: checks if this host can be migrated, and prints a fix for each obstacle. It
//! changes nothing.
//!
//! It reads Calico's state on this host for the host checks (store, daemons, BIRD's restarts, rules and
//! sets), and prints their results; the checks themselves are in `host_checks`.

use std::collections::BTreeMap;

use serde::Serialize;
use tortie_config::calico3::Projection;
use tortie_config::key::ROOT;
use tortie_config::{Dialect, counted};
use tortie_engine::model::{Model, WatchPart, raw_entry};
use tortie_engine::routing::NodeOptions;
use tortie_kernel::NetworkSnapshot;
use tortie_kernel::maintenance::handover::{BIRD, FELIX};
use tortie_store::{KeyValue, Snapshot};

use super::adopt::{self, data_planes};
use super::args::CheckCommand;
use super::daemons::{self, StopWith};
use super::journal::Journal;
use super::plan::Inventory;
use crate::api::codes;
use crate::cli::context::Context;
use crate::cli::doctor;
use crate::cli::failure::{Exit, Failure};
use crate::cli::output;
use crate::foreign::HostIntent;
use crate::host_checks::{
    CalicoDaemon, CalicoKernel, CheckResult, Command, FELIX_FILE, HostSnapshot, Migration, MigrationPhase,
    ObjectProblem, Restarts, StoreContent,
};

/// Variables of calico-node that configure BGP, addresses and the name of its host.
const NODE_VARIABLES: [&str; 8] = [
    "NODENAME",
    "CALICO_NETWORKING_BACKEND",
    "AS",
    "IP",
    "IP6",
    "IP_AUTODETECTION_METHOD",
    "IP6_AUTODETECTION_METHOD",
    "CALICO_ROUTER_ID",
];

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
    let read = store(context, &node).await.map_err(|failure| failure.text);
    let (store, intent) = match read {
        Ok((content, intent)) => (Ok(content), Some(intent)),
        Err(text) => (Err(text), None),
    };
    let daemons = daemons::find();
    let protocol = command.common.route_protocol;
    Migration {
        state: match Journal::peek(&command.common.state_dir) {
            Ok(record) => record.map(|record| Ok(record.phase)),
            Err(failure) => Some(Err(failure.text)),
        },
        store: Some(store),
        suggested_stop: StopWith::suggested(&daemons),
        restarts: Restarts::look(&command.sockets.bird_socket, &daemons),
        kernel: Some(kernel(protocol, intent.as_ref()).map_err(|failure| failure.text)),
        felix_environment: environment(&daemons, |daemon, name| {
            daemon == "felix" && name.starts_with("FELIX_")
        }),
        node_environment: environment(&daemons, |_, name| NODE_VARIABLES.contains(&name)),
        felix_file: felix_file_has_settings(),
        daemons,
        node,
    }
}

/// Reads all keys of the store, and computes the intent for this host.
async fn store(context: &Context, node: &str) -> Result<(StoreContent, HostIntent), Failure> {
    let store = crate::cli::store::open(&context.globals, false).await?;
    let snapshot = store.list(&[ROOT.to_owned()]).await?;
    let dialect = context.globals.data_model.dialect(&*store).await?;
    let intent = HostIntent::offline(node, dialect, &snapshot, &NodeOptions::default());
    Ok((StoreContent { describe: store.describe(), ..content(node, dialect, snapshot) }, intent))
}

/// Returns what the checks look at: the keys of the v1 model, for a store of Calico 3 as its objects imply them.
fn content(node: &str, dialect: Dialect, snapshot: Snapshot) -> StoreContent {
    let (revision, keys) = (snapshot.revision, snapshot.entries.len());
    let of_v1 = StoreContent { revision, keys, dialect, ..StoreContent::default() };
    if dialect == Dialect::V1 {
        return StoreContent { entries: snapshot.entries, ..of_v1 };
    }
    let raw = snapshot.entries.iter().map(raw_entry);
    let implied = Projection::new(node).replace(raw).into_iter().map(|entry| KeyValue {
        key: entry.key,
        value: entry.value.into_octets(),
        mod_revision: revision,
        create_revision: revision,
    });
    let mut model = Model::new(node);
    model.set_dialect(dialect);
    model.replace(WatchPart::All, &snapshot);
    let mut problems: Vec<ObjectProblem> = model
        .object_problems()
        .into_iter()
        .map(|problem| ObjectProblem {
            object: problem.key.title(),
            code: problem.code,
            text: problem.text.clone(),
        })
        .collect();
    if model.dropped_v1_keys() > 0 {
        problems.push(ObjectProblem {
            object: "the store".to_owned(),
            code: codes::MIXED_MODELS.name,
            text: format!(
                "the store holds {} of Calico's v1 data model next to Calico 3's objects: the objects are used",
                counted(model.dropped_v1_keys(), "key")
            ),
        });
    }
    StoreContent { entries: implied.collect(), problems, ..of_v1 }
}

/// Reads the routes, rules, sets and devices that Calico wrote.
fn kernel(protocol: u8, intent: Option<&HostIntent>) -> Result<CalicoKernel, Failure> {
    let there = adopt::look(protocol)?;
    let misfits = match intent {
        None => Vec::new(),
        Some(intent) => {
            let look = NetworkSnapshot::read(&[BIRD, FELIX, protocol]).map_err(|error| {
                Failure::new(Exit::Partial, "kernel", format!("the kernel cannot be read: {error}"))
            })?;
            let found = look.vxlan_differences(&intent.intent.vxlan);
            found.into_iter().filter(|found| !found.fits).flat_map(|found| found.texts).collect()
        }
    };
    let drops = there.rules.iter().filter_map(|saved| {
        let why = saved.listing().drops_without_felix("cali")?;
        Some((saved.tool(), why))
    });
    let hidden = there.rules.iter().find(|saved| saved.text.contains("is incompatible, use 'nft' tool"));
    Ok(CalicoKernel {
        objects: Inventory::of(&there).in_words(),
        drops: drops.collect(),
        hidden: hidden.map(|saved| saved.tool()),
        others: data_planes::others(),
        misfits,
    })
}

/// Returns variables of the daemons' environments; Tortie does not read them.
fn environment(running: &[CalicoDaemon], is_wanted: impl Fn(&str, &str) -> bool) -> BTreeMap<String, String> {
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    for daemon in running {
        let environment = std::fs::read(format!("/proc/{}/environ", daemon.pid)).unwrap_or_default();
        for pair in environment.split(|b| *b == 0) {
            let pair = String::from_utf8_lossy(pair);
            if let Some((name, value)) =
                pair.split_once('=').filter(|(name, _)| is_wanted(&daemon.role, name))
            {
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
