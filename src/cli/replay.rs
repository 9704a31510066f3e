//! `tortie replay FILE`: runs the inputs of an agent's journal through this program, also those of another
//! host's bug report.

use std::fmt::Write as _;
use std::io::Read as _;
use std::path::PathBuf;

use clap::Args;
use jiff::Timestamp;
use tortie_config::counted;
use tortie_net::Cidr;

use super::context::Context;
use super::failure::{Exit, Failure};
use super::output;
use crate::agent::{Question, ReplayError, ReplayOptions, replay};
use crate::api::replay::Replay;

/// Maximum number of lines of a list on the screen; `-o json` has all.
const SHOWN: usize = 12;
/// Maximum number of columns of a line on the screen.
const COLUMNS: usize = 78;

/// Arguments of `tortie replay`.
#[derive(Debug, Args)]
pub(super) struct ReplayCommand {
    /// The archive of `tortie diags`, or the journal in it; - for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Replay up to this time (RFC 3339, such as 2026-11-25T10:00:00Z) and show the state then
    #[arg(long, value_name = "TIME", value_parser = time)]
    at: Option<Timestamp>,
    /// Explain a part of that state: route PREFIX, peer NAME or ip ADDRESS
    #[arg(long, value_names = ["WHAT", "NAME"], num_args = 2)]
    why: Vec<String>,
    /// With --why route: whether it is announced to this peer
    #[arg(long, value_name = "PEER", requires = "why")]
    to: Option<String>,
}

fn time(text: &str) -> Result<Timestamp, String> {
    text.parse().map_err(|_| "write a time as 2026-11-25T10:00:00Z".to_owned())
}

impl ReplayCommand {
    fn question(&self) -> Result<Option<Question>, Failure> {
        let [what, name] = self.why.as_slice() else { return Ok(None) };
        let question = match what.as_str() {
            "route" => {
                let prefix: Cidr =
                    name.parse().map_err(|error| Failure::usage(format!("{name}: {error}")))?;
                Question::Route(prefix, self.to.clone())
            }
            "peer" => Question::Peer(name.clone()),
            "ip" => {
                Question::Address(name.parse().map_err(|error| Failure::usage(format!("{name}: {error}")))?)
            }
            _ => return Err(Failure::usage(format!("--why {what}: write route, peer or ip"))),
        };
        if self.to.is_some() && !matches!(question, Question::Route(..)) {
            return Err(Failure::usage("--to goes with --why route".to_owned()));
        }
        Ok(Some(question))
    }
}

pub(super) fn run(context: &Context, command: &ReplayCommand) -> Result<(), Failure> {
    let options = ReplayOptions { until: command.at, why: command.question()? };
    let octets = read(&command.file)?;
    let report = replay(octets, &options).map_err(|error| {
        let text = format!("{}: {error}", command.file.display());
        match error {
            ReplayError::Question(_) => Failure::new(Exit::No, "not-found", text),
            ReplayError::Journal(_) | ReplayError::TooEarly(_) => Failure::usage(text),
        }
    })?;
    output::print(context.globals.output, &report, |out, _| render(out, &report))?;
    if report.different == 0 { Ok(()) } else { Err(Failure::new(Exit::No, "different", "")) }
}

fn read(file: &PathBuf) -> Result<Vec<u8>, Failure> {
    let mut octets = Vec::new();
    let read = if file.as_os_str() == "-" {
        std::io::stdin().read_to_end(&mut octets).map(|_| octets)
    } else {
        std::fs::read(file)
    };
    read.map_err(|error| Failure::usage(format!("{}: {error}", file.display())))
}

fn render(out: &mut String, report: &Replay) {
    let begin = if report.from_checkpoint { "a checkpoint" } else { "the start of the agent" };
    let _ = writeln!(
        out,
        "journal of {}, recorded by tortie {}, run by {}\n{} from {begin}, {} to {}",
        report.node,
        report.recorded_by,
        report.run_by,
        counted(report.inputs, "input"),
        report.from,
        report.to
    );
    if report.lost > 0 {
        let _ = writeln!(out, "the recorder lost {}", counted(report.lost, "earlier input"));
    }
    let of = report.inputs;
    let verdict = match (report.different, report.worded_differently) {
        (0, 0) => format!("this version decides the same on all {of} inputs"),
        (0, words) => {
            format!("this version decides the same on all {of} inputs, and words {words} otherwise")
        }
        (different, _) => format!("this version decides OTHERWISE on {different} of {of} inputs"),
    };
    let _ = writeln!(out, "{verdict}");
    for difference in &report.differences {
        let _ = writeln!(
            out,
            "\ninput {} at {}\n  {}",
            difference.input,
            difference.time,
            cut(&difference.subject, COLUMNS - 2)
        );
        list(out, "recorded", &difference.recorded);
        list(out, "now", &difference.now);
    }
    if let Some(why) = &report.why {
        let _ = write!(out, "\n{why}");
        return;
    }
    let _ = writeln!(out, "\nState at {}", report.to);
    list(out, "intents", &report.intents);
    list(out, "decisions on the last input", &report.decisions);
    if report.problems.is_empty() {
        let _ = writeln!(out, "the core reports no problem");
    } else {
        let lines: Vec<String> = report
            .problems
            .iter()
            .map(|problem| format!("{}  {}: {}", problem.code, problem.subject, problem.text))
            .collect();
        list(out, "problems", &lines);
    }
}

fn list(out: &mut String, name: &str, lines: &[String]) {
    if lines.is_empty() {
        return;
    }
    let _ = writeln!(out, "  {name}:");
    for line in lines.iter().take(SHOWN) {
        let _ = writeln!(out, "    {}", cut(line, COLUMNS - 4));
    }
    if let Some(more) = lines.len().checked_sub(SHOWN).filter(|more| *more > 0) {
        let _ = writeln!(out, "    and {more} more (-o json)");
    }
}

/// Truncates a text to `columns`, with control characters escaped, because the text may be of external
/// origin.
fn cut(text: &str, columns: usize) -> String {
    let safe: String = text
        .chars()
        .flat_map(|c| if c.is_control() { c.escape_default().collect::<Vec<_>>() } else { vec![c] })
        .collect();
    if safe.chars().count() <= columns {
        return safe;
    }
    safe.chars().take(columns.saturating_sub(3)).chain("...".chars()).collect()
}
