//! `tortie doctor`: will it work here, and what has to be mended first.
//!
//! What it does: tries each ability of the kernel in a network namespace of its own (`kernel::probe_kernel`), reads what of
//! the host matters (`host.rs`), and judges both (`check.rs`, pure). What it does not: change anything on the host, or judge
//! what `status` judges while an agent runs: what that sends here (`next: tortie doctor`) is repeated with what mends it, and
//! of the host both ask `agent::check_host`.
//!
//! ```text
//!   kernel, speaker: trials --+
//!   host.rs: /proc, /etc -----+--> Seen --judge.rs--> Findings --> table, JSON; exit 1 with a failure
//!   store, agent's socket ----+
//! ```

mod checks;
mod host_state;
pub(super) mod ports;

use std::fmt::Write as _;

use serde::Serialize;

use super::client::Client;
use super::context::Context;
use super::failure::{Exit, Failure};
use super::output;
use crate::api::status::Status;

pub(super) use checks::{CheckItem, CheckResult};

/// What `tortie doctor` answers.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    /// How many things do not work.
    pub(super) failures: usize,
    /// How many may surprise.
    pub(super) warnings: usize,
    /// How many could not be tried or read.
    pub(super) not_tried: usize,
    /// Each of them, and what is right.
    pub(super) items: Vec<CheckItem>,
}

pub(super) async fn run(context: &Context) -> Result<(), Failure> {
    let report = examine(context).await;
    output::print(context.globals.output, &report, |out, wide| render(out, &report, wide))?;
    if report.failures == 0 {
        return Ok(());
    }
    let text = format!("{} things will not work on this host", report.failures);
    Err(Failure::new(Exit::No, "doctor", text))
}

/// Looks at everything.
pub(super) async fn examine(context: &Context) -> Report {
    let globals = &context.globals;
    let agent: Result<Status, Failure> = Client::new(&globals.socket).get("/v1/status").await;
    let store = host_state::store(globals).await;
    let mut seen = host_state::read(&globals.socket);
    seen.store = Some(store);
    seen.agent = Some(agent.map_err(|failure| (failure.exit, failure.text)));
    seen.kernel_features = tortie_kernel::probe_kernel();
    seen.sockets = crate::speaker::try_sockets();
    let items = checks::check(&seen);
    let of = |verdict| items.iter().filter(|f| f.result == verdict).count();
    Report {
        failures: of(CheckResult::Fail),
        warnings: of(CheckResult::Warn),
        not_tried: of(CheckResult::NotTried),
        items,
    }
}

/// One line a finding; the fix stands below what it mends.
pub(super) fn render(out: &mut String, report: &Report, wide: bool) {
    render_items(out, &report.items, wide);
    let plural = |n: usize, word: &str| format!("{n} {word}{}", if n == 1 { "" } else { "s" });
    let _ = write!(out, "{}, {}", plural(report.failures, "failure"), plural(report.warnings, "warning"));
    if report.not_tried > 0 {
        let _ = write!(out, ", {} not tried", report.not_tried);
    }
    out.push_str(".\n");
}

/// The lines alone.
pub(super) fn render_items(out: &mut String, items: &[CheckItem], wide: bool) {
    for finding in items {
        // What is right needs no name.
        let code = match finding.result {
            CheckResult::Ok => String::new(),
            _ => format!("   [{}]", finding.code),
        };
        let _ = writeln!(out, "{:<5} {}{code}", finding.result.as_str(), finding.text);
        if wide && !finding.detail.is_empty() {
            let _ = writeln!(out, "      {}", finding.detail);
        }
        if let Some(fix) = &finding.fix {
            let _ = writeln!(out, "      fix: {fix}");
        }
    }
}
