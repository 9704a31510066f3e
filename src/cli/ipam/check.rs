//! `tortie ipam check`, and the repair of its findings.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use serde_json::Value;

use super::open::{failed, open};
use crate::agent;
use crate::api::status::API_VERSION;
use crate::cli::context::Context;
use crate::cli::failure::{Exit, Failure};
use crate::cli::output::{self, table};
use tortie_config::counted;
use tortie_engine::ipam::Keyspace;
use tortie_engine::ipam::check::{Evidence, Finding, IpamState, Kind, Repair, RepairOutcome, findings};
use tortie_kernel::Namespaces;
use tortie_store::Store;

/// Maximum time that a plugin may take between its writes to store and kernel.
const RECHECK_DELAY: Duration = Duration::from_secs(1);

/// Arguments of `tortie ipam check`.
#[derive(Debug, Args)]
pub(in crate::cli) struct CheckArgs {
    /// Check the store alone, without the kernel of this host
    #[arg(long)]
    store_only: bool,
}

/// JSON answer of a check, which `release --from-check` reads.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    api_version: String,
    kind: String,
    /// Host whose kernel was read; `None` if no kernel was read.
    node: Option<String>,
    revision: u64,
    time: String,
    blocks: usize,
    addresses: usize,
    handles: usize,
    endpoints: usize,
    /// Sources that could not be read.
    blind: Vec<String>,
    findings: Vec<Finding>,
}

/// Checks the store, and again if there were findings: those of containers that were started or removed
/// meanwhile are dropped.
async fn look(context: &Context, store: &dyn Store, kernel: bool) -> Result<Report, Failure> {
    let first = check_once(context, store, kernel).await?;
    if first.findings.is_empty() || !kernel {
        return Ok(first);
    }
    tokio::time::sleep(RECHECK_DELAY).await;
    let mut second = check_once(context, store, kernel).await?;
    let first: BTreeSet<(Kind, String)> = first.findings.into_iter().map(|f| (f.kind, f.subject)).collect();
    second.findings.retain(|f| first.contains(&(f.kind, f.subject.clone())));
    Ok(second)
}

async fn check_once(context: &Context, store: &dyn Store, kernel: bool) -> Result<Report, Failure> {
    let evidence = if kernel {
        let node = context.globals.node_name()?;
        agent::evidence(&node, &Namespaces::Direct)
    } else {
        Evidence::default()
    };
    let ipam_state = IpamState::load(store, &Keyspace::of(store.dialect().await?)).await?;
    let used = |block: &tortie_config::resource::Block| block.size() - block.free().len();
    let found = findings(&ipam_state, &evidence);
    Ok(Report {
        api_version: API_VERSION.to_owned(),
        kind: "IpamCheck".to_owned(),
        revision: ipam_state.revision,
        time: format!("{:.3}", jiff::Timestamp::now()),
        blocks: ipam_state.blocks.len(),
        addresses: ipam_state.blocks.values().map(|block| used(&block.value)).sum(),
        handles: ipam_state.handles.len(),
        endpoints: ipam_state.endpoints.len(),
        findings: found,
        node: evidence.host,
        blind: evidence.blind,
    })
}

pub(super) async fn run(context: &Context, args: &CheckArgs) -> Result<(), Failure> {
    let (store, _) = open(context).await?;
    let report = look(context, &*store, !args.store_only).await?;
    output::print(context.globals.output, &report, |out, wide| print_report(out, &report, wide))?;
    // The findings are printed as the answer; only the exit code reports them as a failure.
    if !report.findings.is_empty() {
        return Err(Failure::new(Exit::No, "findings", ""));
    }
    if !report.blind.is_empty() {
        return Err(Failure::new(
            Exit::Partial,
            "blind",
            "no problem was found, but not everything could be checked; --store-only leaves the kernel out",
        ));
    }
    Ok(())
}

fn print_report(out: &mut String, report: &Report, wide: bool) {
    let kernel = report.node.as_ref().map_or_else(String::new, |node| format!(", and the kernel of {node}"));
    let _ = writeln!(
        out,
        "checked {}, {}, {}, {} at store revision {}{kernel}",
        counted(report.blocks, "block"),
        counted(report.addresses, "address"),
        counted(report.handles, "handle"),
        counted(report.endpoints, "endpoint"),
        report.revision
    );
    for text in &report.blind {
        let _ = writeln!(out, "not looked at: {text}");
    }
    if report.findings.is_empty() {
        let _ = writeln!(out, "no problem found");
        return;
    }
    let rows = report.findings.iter().map(|f| {
        let mut row = vec![
            f.kind.as_str().to_owned(),
            f.subject.clone(),
            f.evidence.clone(),
            f.fix.as_ref().map_or("by hand", fix).to_owned(),
        ];
        row.extend(wide.then(|| f.fix.as_ref().and_then(handle).unwrap_or("-").to_owned()));
        row
    });
    let mut head = vec!["KIND", "SUBJECT", "EVIDENCE", "FIX"];
    head.extend(wide.then_some("HANDLE"));
    let _ = write!(out, "\n{}", table(&head, rows.collect()));
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for finding in &report.findings {
        *kinds.entry(finding.kind.as_str()).or_default() += 1;
    }
    let kinds: Vec<String> = kinds.iter().map(|(kind, n)| format!("{n} {kind}")).collect();
    let fixable = report.findings.iter().any(|finding| finding.fix.is_some());
    let next = if fixable {
        "tortie ipam release --from-check repairs what is still the same"
    } else {
        "nothing of this can be repaired automatically: an operator has to decide"
    };
    let _ = writeln!(out, "{}. {next}", kinds.join(", "));
}

/// Describes a repair in one to three words.
fn fix(fix: &Repair) -> &'static str {
    match fix {
        Repair::Release { .. } => "release",
        Repair::Handle { .. } => "correct the handle",
        Repair::Affinity { .. } => "correct the affinity",
        Repair::ClearOwner { .. } => "release the block",
    }
}

fn handle(fix: &Repair) -> Option<&str> {
    match fix {
        Repair::Release { handle, .. } => handle.as_deref(),
        Repair::Handle { handle, .. } => Some(handle),
        _ => None,
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Outcome {
    #[serde(flatten)]
    finding: Finding,
    /// Result of the repair: `done`, `changed`, `by-hand` or `failed`.
    result: &'static str,
    error: Option<String>,
}

/// Executes `release --from-check [FILE|-]`.
pub(super) async fn repair(context: &Context, file: Option<&Path>) -> Result<(), Failure> {
    let (store, ipam) = open(context).await?;
    let found = match file {
        Some(file) => read(file)?,
        None => look(context, &*store, true).await?.findings,
    };
    let repaired = ipam.release_from_check(&found).await.map_err(failed)?;
    let outcomes: Vec<Outcome> = found
        .into_iter()
        .zip(repaired)
        .map(|(finding, repaired)| {
            let (result, error) = match repaired {
                RepairOutcome::Done => ("done", None),
                RepairOutcome::Changed => ("changed", None),
                RepairOutcome::NeedsPerson => ("by-hand", None),
                RepairOutcome::Failed(why) => ("failed", Some(why)),
            };
            Outcome { finding, result, error }
        })
        .collect();
    output::print(context.globals.output, &outcomes, |out, _| {
        if outcomes.is_empty() {
            out.push_str("no problems were found, and nothing was changed\n");
            return;
        }
        let rows = outcomes.iter().map(|o| {
            let result = match (o.result, &o.error) {
                ("changed", _) => "changed since: skipped".to_owned(),
                ("by-hand", _) => "by hand".to_owned(),
                ("failed", Some(why)) => format!("failed: {why}"),
                (word, _) => word.to_owned(),
            };
            let action = o.finding.fix.as_ref().map_or("-", fix).to_owned();
            vec![o.finding.kind.as_str().to_owned(), o.finding.subject.clone(), action, result]
        });
        out.push_str(&table(&["KIND", "SUBJECT", "ACTION", "RESULT"], rows.collect()));
    })?;
    let count = |result: &str| outcomes.iter().filter(|o| o.result == result).count();
    match (count("failed"), count("changed") + count("by-hand")) {
        (0, 0) => Ok(()),
        (0, left) => {
            Err(Failure::new(Exit::No, "left", format!("{left} left as they are: tortie ipam check")))
        }
        (failed, _) => Err(Failure::new(Exit::Partial, "failed", format!("{failed} could not be repaired"))),
    }
}

/// Reads the findings of a report.
fn read(file: &Path) -> Result<Vec<Finding>, Failure> {
    let bytes = crate::cli::store::read(file)?;
    let name = if file == Path::new("-") { "standard input".to_owned() } else { file.display().to_string() };
    let wrong = |why: String| {
        Failure::usage(format!("{name}: {why}; give the output of `tortie ipam check -o json`"))
    };
    let mut report: Value = serde_json::from_slice(&bytes).map_err(|error| wrong(error.to_string()))?;
    let found = report
        .get_mut("findings")
        .map(Value::take)
        .ok_or_else(|| wrong("the member `findings` is missing".to_owned()))?;
    serde_json::from_value(found).map_err(|error| wrong(format!("findings: {error}")))
}
