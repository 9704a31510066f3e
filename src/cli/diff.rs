//! `tortie diff`: how the kernel differs from what is wanted.

use std::fmt::Write as _;

use clap::ValueEnum;

use super::Context;
use super::client::Client;
use super::failure::{Exit, Failure};
use super::output::{self, span};
use crate::serve::policy::Diff;

/// What is compared.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct DiffCommand {
    /// Only this
    #[arg(value_enum)]
    what: Option<What>,
    /// At most this many lines of each
    #[arg(long, value_name = "N", default_value_t = 100)]
    max: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    /// Routes and neighbours
    Routes,
    /// Packet rules
    Rules,
    /// Address sets of packet rules
    Sets,
}

/// Exit 1 when anything differs.
pub(super) async fn run(context: &Context, command: &DiffCommand) -> Result<(), Failure> {
    let client = Client::new(&context.globals.socket);
    let mut diff: Diff = client.get(&format!("/v1/diff?max={}", command.max)).await?;
    if let Some(what) = command.what {
        let name = match what {
            What::Routes => "routes",
            What::Rules => "rules",
            What::Sets => "sets",
        };
        diff.sections.retain(|section| section.what == name);
    }
    output::print(context.globals.output, &diff, |out, _| render(out, &diff))?;
    let differs = diff.sections.iter().any(|section| section.count > 0 || !section.trouble.is_empty());
    if differs { Err(Failure::new(Exit::No, "differs", "")) } else { Ok(()) }
}

fn render(out: &mut String, diff: &Diff) {
    for section in &diff.sections {
        let state = match (section.mode.as_str(), section.count) {
            ("off", _) => "not compared: off".to_owned(),
            (_, 0) => "equal".to_owned(),
            ("observe", count) => format!("{count} differ (observing: nothing is written)"),
            (_, count) => format!("{count} differ, to be repaired"),
        };
        let _ = writeln!(out, "{:<8} {state}", section.what);
        for line in &section.lines {
            let _ = writeln!(out, "  {line}");
        }
        if section.count > section.lines.len() && !section.lines.is_empty() {
            let _ = writeln!(out, "  and {} more", section.count - section.lines.len());
        }
        if !section.trouble.is_empty() {
            let _ = writeln!(out, "  {}", section.trouble);
        }
    }
    if let Some(age) = diff.compared_seconds {
        let _ = writeln!(out, "last full compare of routes {} ago", span(age));
    }
}
