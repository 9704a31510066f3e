//! `tortie selector eval|match`: evaluates a selector against labels, or lists the endpoints that it matches.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use clap::{Subcommand, ValueEnum};
use tortie_config::Selector;

use super::client::escape;
use super::context::{Context, runtime};
use super::failure::{Exit, Failure};
use super::offline::Source;
use super::output::{self, table};
use crate::api::policy::SelectorMatch;

/// Grammar of a selector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Grammar {
    /// Calico 3's, which includes v1's
    V3,
    /// That of Calico's v1 data model
    V1,
}

/// Subcommands of `tortie selector`.
#[derive(Debug, Subcommand)]
pub(super) enum SelectorCommand {
    /// Exit 0 when the expression matches the labels, 1 when not, 2 when it is invalid
    Eval {
        /// Grammar of the expression: that of Calico 3, or that in which a v1 store's policies are read
        #[arg(long, value_enum, default_value = "v3")]
        grammar: Grammar,
        /// Labels as a JSON object of strings
        #[arg(long, value_name = "JSON", default_value = "{}")]
        labels: String,
        /// The selector expression
        #[arg(value_name = "EXPR", allow_hyphen_values = true)]
        expression: String,
    },
    /// List the endpoints of all hosts that the expression selects, and the members of its address set on
    /// this host; exit 1 when there are none
    Match {
        /// The selector expression; `has(TAG)` for a tag
        #[arg(value_name = "EXPR", allow_hyphen_values = true)]
        expression: String,
        #[command(flatten)]
        source: Source,
    },
}

pub(super) fn run(context: &Context, command: &SelectorCommand) -> Result<(), Failure> {
    let (grammar, labels, expression) = match command {
        SelectorCommand::Eval { grammar, labels, expression } => (*grammar, labels, expression),
        SelectorCommand::Match { expression, source } => {
            return runtime()?.block_on(selected(context, expression, *source));
        }
    };
    let labels: BTreeMap<String, String> = serde_json::from_str(labels).map_err(|e| {
        Failure::usage(format!("--labels: {e}. Write a JSON object of strings such as {{\"role\":\"db\"}}"))
    })?;
    let parsed = match grammar {
        Grammar::V3 => expression.parse(),
        Grammar::V1 => Selector::parse_v1(expression),
    };
    let selector: Selector = parsed.map_err(|error: tortie_config::SelectorError| {
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

async fn selected(context: &Context, expression: &str, source: Source) -> Result<(), Failure> {
    let path = format!("/v1/selector?name={}", escape(expression));
    let found: SelectorMatch = source.ask(context, &path, |store| store.view().selected(expression)).await?;
    output::print(context.globals.output, &found, |out, _| {
        let _ = writeln!(out, "{}\n", found.selector);
        let rows = found.endpoints.iter().map(|endpoint| {
            vec![
                endpoint.host.clone(),
                endpoint.name.clone(),
                endpoint.state.clone(),
                endpoint.addresses.join(","),
            ]
        });
        out.push_str(&table(&["HOST", "NAME", "STATE", "ADDRESSES"], rows.collect()));
        let _ = match &found.set {
            Some(set) => writeln!(out, "\nset on this host: {} ({})", set.join(", "), set.len()),
            None => writeln!(out, "\nNo rule of this host uses the set of this selector."),
        };
    })?;
    if found.endpoints.is_empty() { Err(Failure::new(Exit::No, "no-match", "")) } else { Ok(()) }
}
