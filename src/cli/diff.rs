//! `tortie diff`: shows the differences between the kernel and the intent.

use std::fmt::Write as _;

use clap::ValueEnum;

use super::client::Client;
use super::context::Context;
use super::failure::{Exit, Failure};
use super::output::{self, span};
use crate::api::policy::{Diff, DiffRequest};
use crate::api::status::ActionResult;
use crate::cli::explain::seconds;

/// Arguments of `tortie diff`.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct DiffCommand {
    /// Compare only this
    #[arg(value_enum)]
    what: Option<What>,
    /// At most this many lines for each of them
    #[arg(long, value_name = "N", default_value_t = 100)]
    max: usize,
    /// Compare everything and repair the differences now; ends a drift hold
    #[arg(long, conflicts_with = "hold")]
    repair: bool,
    /// Repair nothing that other processes change during this time, for inspection: 30s, 10m, at most 1h
    #[arg(long, value_name = "SPAN", value_parser = seconds)]
    hold: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    /// Routes and neighbours
    Routes,
    /// Packet rules
    Rules,
    /// Address sets of packet rules
    Sets,
    /// BGP sessions of BIRD, while the agent observes
    Sessions,
}

/// Executes the command. The exit code is 1 if anything differs, and 6 if nothing differs but some objects
/// could not be compared.
pub(super) async fn run(context: &Context, command: &DiffCommand) -> Result<(), Failure> {
    let client = Client::of(&context.globals);
    if command.repair || command.hold.is_some() {
        let request = DiffRequest { hold_seconds: command.hold };
        let done: ActionResult = client.post("/v1/diff", &request).await?;
        return output::print(context.globals.output, &done, |out, _| {
            let _ = writeln!(out, "{}", done.text);
        });
    }
    let mut diff: Diff = client.get(&format!("/v1/diff?max={}", command.max)).await?;
    if let Some(what) = command.what {
        let name = match what {
            What::Routes => "routes",
            What::Rules => "rules",
            What::Sets => "sets",
            What::Sessions => "sessions",
        };
        diff.sections.retain(|section| section.what == name);
    }
    output::print(context.globals.output, &diff, |out, _| render(out, &diff))?;
    let differs = diff.sections.iter().any(|section| section.count > 0 || !section.problem.is_empty());
    let unknown: usize = diff.sections.iter().filter_map(|section| section.not_judged).sum();
    match (differs, unknown) {
        (true, _) => Err(Failure::new(Exit::No, "differs", "")),
        (_, 0) => Ok(()),
        _ => Err(Failure::new(Exit::Partial, "not-judged", "")),
    }
}

fn render(out: &mut String, diff: &Diff) {
    for section in &diff.sections {
        let judged = |count| {
            let unknown = section.not_judged.unwrap_or_default();
            let unknown = if unknown > 0 { format!(", {unknown} not judged") } else { String::new() };
            let differ = if count == 0 { "none differs".to_owned() } else { format!("{count} differ") };
            let equal = section.equal.unwrap_or_default();
            format!("{differ}, {equal} equal{unknown} (observing: nothing is written)")
        };
        let state = match (section.mode.as_str(), section.count) {
            (_, count) if section.equal.is_some() => judged(count),
            ("off", _) => "not compared: off".to_owned(),
            (_, 0) => "equal".to_owned(),
            ("observe", count) => format!("{count} differ (observing: nothing is written)"),
            (_, count) if diff.held_seconds.is_some() => format!("{count} differ, repair held   [drift]"),
            (_, count) => format!("{count} differ, to be repaired   [drift]"),
        };
        let _ = writeln!(out, "{:<8} {state}", section.what);
        for line in &section.lines {
            let since = line.since_seconds.map_or_else(String::new, |s| format!("   since {}", span(s)));
            let hint = line.hint.as_ref().map_or_else(String::new, |hint| format!("   ({hint})"));
            let _ = writeln!(out, "  {}  {}{since}{hint}", line.mark, line.text);
        }
        if section.count > section.lines.len() && !section.lines.is_empty() {
            let _ = writeln!(out, "  and {} more", section.count - section.lines.len());
        }
        if !section.problem.is_empty() {
            let _ = writeln!(out, "  {}", section.problem);
        }
    }
    if diff.sections.iter().flat_map(|section| &section.lines).any(|line| line.hint.is_some()) {
        let _ = writeln!(out, "The netlink port is only a hint: it often is the process id of the sender.");
    }
    for unseen in &diff.unseen {
        let _ = writeln!(out, "not looked at: {unseen}");
    }
    if let Some(lately) = &diff.lately {
        let _ = writeln!(out, "recent   {}   [{}]", lately.text, lately.code);
    }
    if let Some(left) = diff.held_seconds {
        let _ = writeln!(out, "Repair is held for {} more; tortie diff --repair does it now.", span(left));
    }
    if let Some(age) = diff.compared_seconds {
        let what = if diff.sections.iter().any(|s| s.equal.is_some()) { "" } else { " of routes" };
        let _ = writeln!(out, "last full compare{what} {} ago", span(age));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::codes::Severity;
    use crate::api::policy::{DiffLine, DiffSection};
    use crate::api::problem::{Problem, Subject};

    fn section(what: &str, lines: Vec<DiffLine>) -> DiffSection {
        DiffSection {
            what: what.to_owned(),
            mode: "program".to_owned(),
            count: lines.len(),
            lines,
            problem: String::new(),
            equal: None,
            not_judged: None,
        }
    }

    #[test]
    fn a_difference_says_since_when_and_who_did_it_as_far_as_is_known() {
        let line = |mark: &str, text: &str, since, hint: Option<&str>| DiffLine {
            mark: mark.to_owned(),
            text: text.to_owned(),
            since_seconds: since,
            hint: hint.map(str::to_owned),
            held: true,
        };
        let hint = "deleted via netlink port 4471: the process has ended";
        let diff = Diff {
            sections: vec![
                section("routes", vec![line("-", "10.244.5.0/26: missing", Some(12), Some(hint))]),
                section("sets", Vec::new()),
                section("rules", vec![line("~", "chain forward is changed", None, None)]),
            ],
            compared_seconds: Some(38),
            held_seconds: Some(540),
            unseen: Vec::new(),
            lately: Some(Problem {
                code: "foreign-changes".to_owned(),
                subject: "kernel".to_owned(),
                text: "1 changed by another process 12s ago and repaired, first: a route".to_owned(),
                next: "tortie diff".to_owned(),
                about: Subject::Host,
                severity: Severity::Note,
            }),
        };
        let mut out = String::new();
        render(&mut out, &diff);
        let expected = "routes   1 differ, repair held   [drift]
  -  10.244.5.0/26: missing   since 12s   \
                        (deleted via netlink port 4471: the process has ended)
sets     equal
rules    1 \
                        differ, repair held   [drift]
  ~  chain forward is changed
The netlink port is \
                        only a hint: it often is the process id of the sender.
recent   1 changed by \
                        another process 12s ago and repaired, first: a route   [foreign-changes]
Repair is \
                        held for 9m00s more; tortie diff --repair does it now.
last full compare of routes \
                        38s ago
";
        assert_eq!(out, expected);
    }
}
