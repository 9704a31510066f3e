//! `tortie log level`: sets a temporary log level of the agent.

use std::fmt::Write as _;

use clap::{Args, Subcommand};

use super::client::Client;
use super::context::Context;
use super::failure::Failure;
use super::output;
use crate::api::status::{ActionResult, LogLevelRequest};

/// Subcommands of `tortie log`.
#[derive(Debug, Subcommand)]
pub(super) enum LogCommand {
    /// Change the log level of a subject for a limited time; then the level in the store applies again
    Level(LevelCommand),
}

/// Arguments of `tortie log level`.
#[derive(Debug, Args)]
pub(super) struct LevelCommand {
    /// SUBJECT:LEVEL or bgp.peer=NAME:LEVEL; subjects: all, bgp, bfd, docker, ipam, kernel, store; levels: off, error, warn,
    /// info, debug, trace
    #[arg(value_name = "SUBJECT:LEVEL", required_unless_present = "reset")]
    rule: Option<String>,
    /// Duration of the change: a number with s, m or h
    #[arg(long = "for", value_name = "TIME", default_value = "10m", value_parser = seconds)]
    lasts: u64,
    /// End all temporary levels
    #[arg(long, conflicts_with_all = ["rule", "lasts"])]
    reset: bool,
}

pub(super) async fn run(context: &Context, command: &LogCommand) -> Result<(), Failure> {
    let LogCommand::Level(command) = command;
    let request = LogLevelRequest { rule: command.rule.clone().unwrap_or_default(), seconds: command.lasts };
    let client = Client::of(&context.globals);
    let done: ActionResult = client.post("/v1/log/level", &request).await?;
    output::print(context.globals.output, &done, |out, _| {
        let _ = writeln!(out, "{}", done.text);
    })
}

/// Parses `90s`, `10m` or `2h`; a bare number is seconds.
fn seconds(text: &str) -> Result<u64, String> {
    let split = text.len() - usize::from(text.ends_with(['s', 'm', 'h']));
    let (number, unit) = text.split_at(split);
    let factor = match unit {
        "m" => 60,
        "h" => 3_600,
        _ => 1,
    };
    let wrong = || format!("`{text}` is not a duration: write 90s, 10m or 2h");
    number.parse::<u64>().ok().and_then(|n| n.checked_mul(factor)).filter(|n| *n > 0).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        for (text, wanted) in [("90s", Some(90)), ("10m", Some(600)), ("2h", Some(7_200)), ("5", Some(5))] {
            assert_eq!(seconds(text).ok(), wanted);
        }
        for text in ["", "m", "0s", "-1s", "1d", "99999999999999999999h", "10 m", "1ü"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
