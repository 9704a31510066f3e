//! `--dry-run` of `store put` and `store rm`: what would change on this host.

use std::fmt::Write as _;

use super::client::Client;
use super::context::Context;
use super::failure::{Exit, Failure};
use super::output;
use crate::agent::OfflinePolicyView;
use crate::api::policy::{ChainChange, DryRun, DryRunRequest};
use tortie_engine::model::watch_scope;

/// Who is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum DryRunKind {
    /// The agent: rules, and the connections of now that would be refused
    Dataplane,
    /// The store alone: rules only
    Store,
}

/// Prints what would change; nothing is written.
pub(super) async fn run(
    context: &Context,
    kind: DryRunKind,
    key: &str,
    value: Option<Vec<u8>>,
) -> Result<(), Failure> {
    let value = value.map(|bytes| {
        String::from_utf8(bytes).map_err(|_| Failure::usage("the value is no text: no dry run of it"))
    });
    let request = DryRunRequest { key: key.to_owned(), value: value.transpose()? };
    let globals = &context.globals;
    let answer: DryRun = match kind {
        DryRunKind::Dataplane => Client::of(globals).post("/v1/policy/dry-run", &request).await?,
        DryRunKind::Store => {
            let node = globals.node_name()?;
            let snapshot = super::store::open(globals, false).await?.list(&watch_scope(&node)).await?;
            let tried = OfflinePolicyView::of(&node, &snapshot).try_write(&request);
            tried.map_err(|error| Failure::new(Exit::Usage, &error.code, error.text))?
        }
    };
    output::print(globals.output, &answer, |out, _| render(out, &answer))
}

fn render(out: &mut String, answer: &DryRun) {
    let what = match (answer.delete, answer.revision) {
        (true, Some(revision)) => format!("would be deleted (rev {revision})"),
        (true, None) => "is not there".to_owned(),
        (false, Some(revision)) => format!("would change (rev {revision})"),
        (false, None) => "would be new".to_owned(),
    };
    let _ = writeln!(out, "{} {what}", answer.key);
    let names = match answer.endpoints.as_slice() {
        [] => String::new(),
        names => format!(": {}", names.join(", ")),
    };
    let _ = writeln!(out, "  endpoints    {} of this host touched{names}", answer.endpoints.len());
    for change in &answer.chains {
        lines(out, &format!("{} ({})", change.name, change.what), change);
    }
    for change in &answer.orders {
        lines(out, &format!("the way of {}", change.name), change);
    }
    for set in &answer.sets {
        let _ = writeln!(
            out,
            "  set          {} ({}): +{} -{} members",
            set.selector, set.what, set.added, set.removed
        );
        for (mark, list, count) in [('+', &set.add, set.added), ('-', &set.remove, set.removed)] {
            let more = if count > list.len() { " ..." } else { "" };
            if !list.is_empty() {
                let _ = writeln!(out, "                 {mark} {}{more}", list.join(", "));
            }
        }
    }
    if answer.frame {
        let _ = writeln!(out, "  frame        settings, pools or hosts that rules depend on");
    }
    if answer.endpoints.is_empty() && answer.chains.is_empty() && answer.sets.is_empty() && !answer.frame {
        let _ = writeln!(out, "  rules        the same as now");
    }
    if let Some(connections) = &answer.connections {
        let _ = writeln!(
            out,
            "  connections  {} of {} tracked are allowed and would be refused if they began then",
            connections.refused, connections.tracked
        );
        for line in &connections.first {
            let _ = writeln!(out, "                 {line}");
        }
    }
    for what in &answer.not_looked_at {
        let _ = writeln!(out, "  not looked at: {what}");
    }
    let _ = writeln!(out, "Nothing was written.");
}

fn lines(out: &mut String, title: &str, change: &ChainChange) {
    let _ = writeln!(out, "  rules        {title}");
    for line in &change.lines {
        let _ = writeln!(out, "                 {line}");
    }
}
