//! `tortie purge`: removes what the agent leaves on this host on purpose, and lists removed and remaining
//! objects.
//!
//! The kernel's objects are removed first and need no store. Keys are removed only on request, because other
//! hosts and a reinstallation of this one read them.

use std::fmt::Write as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tortie_config::calico3::{Kind, ObjectKey};
use tortie_config::key::{Key, Scope, prefix};
use tortie_config::{Dialect, counted};

use super::context::Context;
use super::failure::{Exit, Failure};
use super::node_delete::{self, Removed};
use super::{migrate, output};
use crate::agent::Settings;
use crate::plugins::docker;
use tortie_engine::model::projected;
use tortie_kernel::{Marks, Mode, Purge};
use tortie_store::{Snapshot, StoreError, StoreUrl};

/// Prefix of workload interfaces.
const WORKLOADS: &str = "cali";
/// Maximum wait for the store, which is only helpful here.
const STORE: Duration = Duration::from_secs(3);

/// Arguments of `tortie purge`.
#[derive(Debug, Args)]
pub(super) struct PurgeCommand {
    /// Also this host's keys in the store: endpoints, addresses, blocks, BGP, settings, status (as `tortie
    /// node delete`)
    #[arg(long)]
    keys: bool,
    /// The SQLite store with everything in it
    #[arg(long, conflicts_with = "keys")]
    store: bool,
    /// Remove nothing; show what would be removed
    #[arg(long)]
    dry_run: bool,
    /// Even while workloads of this host use the routes and rules, or the store says that its agent runs
    #[arg(long)]
    force: bool,
    /// The agent's settings: its route protocol, cache and folder of Docker's plugins
    #[arg(long, value_name = "FILE", env = "TORTIE_CONFIG")]
    config: Option<PathBuf>,
    /// Where `tortie migrate` keeps what was begun: nothing is taken away in the middle of a move
    #[arg(long, value_name = "DIR", env = "TORTIE_MIGRATE_STATE", default_value = migrate::STATE_DIR)]
    state_dir: PathBuf,
}

impl PurgeCommand {
    /// True if the command removes keys from the store.
    pub(super) fn writes_model(&self) -> bool {
        self.keys && !self.dry_run
    }
}

/// Removed objects, or with a dry run those that would be removed.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    node: String,
    /// True if nothing was removed.
    dry_run: bool,
    /// Number of routes of the main table.
    routes: usize,
    nexthops: usize,
    /// Number of permanent neighbour entries of workloads.
    neighbours: usize,
    /// Tables of nftables, family inet.
    tables: Vec<String>,
    tunnel_address: Option<String>,
    /// VXLAN devices.
    tunnel_devices: Vec<&'static str>,
    files: Vec<PathBuf>,
    /// Removed keys of this host; `None` if that was not requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    keys: Option<Removed>,
    /// Remaining objects, with the way to remove them.
    stays: Vec<String>,
}

pub(super) async fn run(context: &Context, command: &PurgeCommand) -> Result<(), Failure> {
    let node = context.globals.node_name()?;
    let settings = match &command.config {
        Some(path) => Settings::from_file(path).map_err(Failure::usage)?,
        None => Settings::default(),
    };
    if !rustix::process::geteuid().is_root() {
        let text = "routes, rules and files are root's: run it with sudo";
        return Err(Failure::new(Exit::Permission, "denied", text));
    }
    // This check is the first, because an agent in the middle of a migration must not be stopped for this.
    migrate::refuse_while_moving(&command.state_dir)?;
    refuse_while_alive(context)?;
    let sqlite = match context.globals.datastore.parse::<StoreUrl>()? {
        StoreUrl::Sqlite(path) => Some(path),
        StoreUrl::Etcd { .. } if command.store => {
            return Err(Failure::usage("--store removes a SQLite store, and this one is etcd: give --keys"));
        }
        StoreUrl::Etcd { .. } => None,
    };
    let workloads = tortie_kernel::links_named(WORKLOADS).map_err(|error| refused(&error))?;
    if let (Some(first), false) = (workloads.first(), command.force || command.dry_run) {
        let text = format!(
            "this host has {} ({first}, ...), whose routes and rules would be removed: stop the workloads \
             first, or give --force",
            counted(workloads.len(), "workload interface")
        );
        return Err(Failure::new(Exit::Refused, "workloads", text));
    }
    if let Some(path) = sqlite.as_ref().filter(|_| command.store && !command.dry_run) {
        nobody_else_lives(context, &node, path).await?;
    }
    let usual = tortie_kernel::Options::new(Mode::Program).marks;
    let marks = Marks {
        protocol: settings.route_protocol.unwrap_or(usual.protocol),
        metric: settings.route_metric.unwrap_or(usual.metric),
        ..usual
    };
    let tunnel = tunnel_address(context, &node).await;
    let what = Purge { marks, tunnel, dry_run: command.dry_run };
    let gone = tortie_kernel::purge(&what).map_err(|error| refused(&error))?;
    let mut report = Report {
        node: node.clone(),
        dry_run: command.dry_run,
        routes: gone.routes,
        nexthops: gone.nexthops,
        neighbours: gone.neighbours,
        tables: gone.tables,
        tunnel_address: gone.tunnel.map(|addr| addr.to_string()),
        tunnel_devices: gone.devices,
        files: remove(
            &files(context, &settings, sqlite.as_deref().filter(|_| command.store)),
            command.dry_run,
        )?,
        ..Report::default()
    };
    // Keys are removed last: until then they help to repeat a command that failed before.
    if command.keys && !command.dry_run {
        report.keys = match node_delete::remove(context, &node, command.force).await {
            Ok(removed) => Some(removed),
            Err(failure) if failure.code == "not-found" => Some(Removed::default()),
            Err(failure) => return Err(failure),
        };
    }
    report.stays = stays(command, sqlite.as_deref(), &workloads);
    output::print(context.globals.output, &report, |out, _| print_report(out, &report))
}

/// Rejects the command while an agent listens at the socket, even if it hangs.
fn refuse_while_alive(context: &Context) -> Result<(), Failure> {
    let socket = &context.globals.socket;
    if UnixStream::connect(socket).is_err() {
        return Ok(());
    }
    let text = format!(
        "an agent answers at {}, and would write everything again: stop it first (systemctl disable --now tortie)",
        socket.display()
    );
    Err(Failure::new(Exit::Refused, "agent-lives", text))
}

/// Rejects the removal of a SQLite store that other hosts on this machine use. A damaged or missing store has
/// no users; a store that does not answer now may be in use by another process.
async fn nobody_else_lives(context: &Context, node: &str, path: &Path) -> Result<(), Failure> {
    let store = match tortie_store::open(&super::store::store_options(&context.globals, false)).await {
        Err(StoreError::Unusable(_) | StoreError::Damaged(_)) => return Ok(()),
        Err(_) if !path.exists() => return Ok(()),
        opened => opened?,
    };
    let found = match store.list(&[prefix::STATUS.to_owned()]).await {
        Err(StoreError::Damaged(_)) => return Ok(()),
        found => found?.entries,
    };
    let own = Key::TortieStatus { host: node.to_owned() }.to_string();
    match found.into_iter().find(|kv| kv.key != own) {
        None => Ok(()),
        Some(kv) => {
            let text = format!("another agent uses this store ({}): stop that agent first", kv.key);
            Err(Failure::new(Exit::Refused, "agent-lives", text))
        }
    }
}

/// Returns this host's tunnel address, if the store still answers.
async fn tunnel_address(context: &Context, node: &str) -> Option<std::net::Ipv4Addr> {
    let ask = async {
        let store = super::store::open(&context.globals, false).await.ok()?;
        let key = Key::Setting(Scope::Host(node.to_owned()), "IpInIpTunnelAddr".to_owned()).to_string();
        if store.dialect().await.ok()? == Dialect::V1 {
            return store.get(&key).await.ok()?;
        }
        let own = ObjectKey::global(Kind::Node, node).to_string();
        let entries = store.get(&own).await.ok()?.into_iter().collect();
        let projected = projected(node, &Snapshot { entries, ..Snapshot::default() });
        projected.entries.into_iter().find(|entry| entry.key == key)
    };
    let found = tokio::time::timeout(STORE, ask).await.ok()??;
    std::str::from_utf8(&found.value).ok()?.trim().parse().ok()
}

/// Returns the files that the agent writes on this host, existing or not.
fn files(context: &Context, settings: &Settings, store: Option<&Path>) -> Vec<PathBuf> {
    let cache = settings.cache_path();
    let machine = crate::api::machine::kept_at(&cache);
    let mut all = vec![cache, machine, context.globals.socket.clone()];
    let plugins = settings.docker_dir.clone().unwrap_or_else(|| PathBuf::from(docker::PLUGINS));
    all.extend(["tortie.sock", "tortie-ipam.sock"].map(|name| plugins.join(name)));
    if let Some(database) = store {
        // SQLite's files and those next to them; the database is last, so that an interruption leaves a store
        // or none.
        for ending in ["-wal", "-shm"] {
            let mut name = database.as_os_str().to_owned();
            name.push(ending);
            all.push(name.into());
        }
        all.extend(["wake", "turn", "lock"].map(|ending| database.with_extension(ending)));
        all.push(database.to_owned());
    }
    all
}

/// Removes the files, and returns those that existed.
fn remove(files: &[PathBuf], dry_run: bool) -> Result<Vec<PathBuf>, Failure> {
    let mut gone = Vec::new();
    for path in files {
        let done =
            if dry_run { std::fs::symlink_metadata(path).map(|_| ()) } else { std::fs::remove_file(path) };
        match done {
            Ok(()) => gone.push(path.clone()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => {
                let text = format!("{} cannot be removed: {error}; run it again", path.display());
                return Err(Failure::new(Exit::Permission, "denied", text));
            }
        }
    }
    Ok(gone)
}

fn stays(command: &PurgeCommand, sqlite: Option<&Path>, workloads: &[String]) -> Vec<String> {
    let mut stays = Vec::new();
    if !workloads.is_empty() {
        stays.push(format!("{}, which their runtimes own", counted(workloads.len(), "workload interface")));
    }
    match sqlite {
        Some(path) if !command.store => stays.push(format!("the store {} (--store)", path.display())),
        _ if command.store => {}
        _ if command.keys => stays.push("what the store has of other hosts and of all hosts".to_owned()),
        _ => stays.push("this host's keys in the store (--keys)".to_owned()),
    }
    if migrate::has_state(&command.state_dir) {
        stays.push(format!("what a move from Calico kept of it ({})", command.state_dir.display()));
    }
    stays.push("settings in /etc/tortie (apt purge tortie)".to_owned());
    stays.push("CNI plugins and their list (tortie cni install --uninstall)".to_owned());
    stays.push("sysctls such as net.ipv4.ip_forward, until the next boot".to_owned());
    stays
}

fn refused(error: &std::io::Error) -> Failure {
    let exit = match error.kind() {
        std::io::ErrorKind::PermissionDenied => (Exit::Permission, "denied"),
        _ => (Exit::Partial, "kernel"),
    };
    Failure::new(exit.0, exit.1, format!("{error}; what was removed before stays removed: run it again"))
}

fn print_report(out: &mut String, report: &Report) {
    let verb = if report.dry_run { "would be cleared of" } else { "is cleared of" };
    let _ = writeln!(out, "{} {verb}:", report.node);
    let mut line = |what: &str, value: String| {
        let _ = writeln!(out, "  {what:<16} {value}");
    };
    line("routes", report.routes.to_string());
    line("nexthop objects", report.nexthops.to_string());
    line("neighbours", report.neighbours.to_string());
    let dash = |text: String| if text.is_empty() { "-".to_owned() } else { text };
    line(
        "packet rules",
        dash(report.tables.iter().map(|t| format!("table inet {t}")).collect::<Vec<_>>().join(", ")),
    );
    line("tunnel address", dash(report.tunnel_address.clone().unwrap_or_default()));
    if !report.tunnel_devices.is_empty() {
        line("tunnel devices", report.tunnel_devices.join(", "));
    }
    line("files", dash(report.files.iter().map(|f| f.display().to_string()).collect::<Vec<_>>().join(", ")));
    if let Some(removed) = &report.keys {
        out.push('\n');
        node_delete::print_report(out, removed);
    }
    let _ = writeln!(out, "\nleft where it is:");
    for item in &report.stays {
        let _ = writeln!(out, "  {item}");
    }
}
