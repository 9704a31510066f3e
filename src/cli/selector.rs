//! `tortie selector eval`: does a selector match these labels?

use std::collections::BTreeMap;
use std::fmt::Write as _;

use clap::Subcommand;
use tortie_config::Selector;

use super::context::Context;
use super::failure::{Exit, Failure};
use super::output;

/// The selector family of commands.
#[derive(Debug, Subcommand)]
pub(super) enum SelectorCommand {
    /// Exit 0 when the expression matches the labels, 1 when not, 2 when it is invalid
    Eval {
        /// Labels as a JSON object of texts
        #[arg(long, value_name = "JSON", default_value = "{}")]
        labels: String,
        /// The selector expression
        #[arg(value_name = "EXPR", allow_hyphen_values = true)]
        expression: String,
    },
}

pub(super) fn run(context: &Context, command: &SelectorCommand) -> Result<(), Failure> {
    let SelectorCommand::Eval { labels, expression } = command;
    let labels: BTreeMap<String, String> = serde_json::from_str(labels).map_err(|e| {
        Failure::usage(format!("--labels: {e}. Write a JSON object of texts such as {{\"role\":\"db\"}}"))
    })?;
    let selector: Selector = expression.parse().map_err(|error: tortie_config::SelectorError| {
        let mark = format!("{}^", " ".repeat(error.column.saturating_sub(1)));
        Failure::usage(format!("{error}\n  {expression}\n  {mark}"))
    })?;
    let matches = selector.matches_with(|name| labels.get(name).map(String::as_str));
    let json = serde_json::json!({ "matches": matches, "selector": selector.to_string() });
    output::print(context.globals.output, &json, |out, _| {
        let _ = writeln!(out, "{}  {selector}", if matches { "match" } else { "no match" });
    })?;
    if matches {
        Ok(())
    } else {
        Err(Failure { exit: Exit::No, code: "no-match".to_owned(), text: String::new() })
    }
}
