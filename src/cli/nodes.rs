//! `--all-nodes`: shows the status that every host publishes in the store. It works on any host, without an
//! agent.

use std::fmt::Write as _;

use jiff::Timestamp;
use tortie_config::counted;

use super::context::Context;
use super::failure::{Exit, Failure};
use super::output::{self, span, table};
use crate::api::nodes::{self, ClusterNode};
use crate::api::status::{API_VERSION, List, UpCount};

/// Columns to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum View {
    /// Columns of `status`.
    Status,
    /// Columns of `bgp peers`.
    Sessions,
}

/// Prints all hosts. The exit code is 6 if some publish no status, and 1 if one is not ready.
pub(super) async fn run(context: &Context, view: View) -> Result<(), Failure> {
    let snapshot = super::store::open(&context.globals, false).await?.list(&nodes::prefixes()).await?;
    let now = Timestamp::now();
    let list = List {
        api_version: API_VERSION.to_owned(),
        kind: "ClusterNodeList".to_owned(),
        node: context.globals.node_name()?,
        revision: snapshot.revision,
        time: format!("{now:.3}"),
        more: false,
        next: None,
        items: nodes::cluster(&snapshot, now),
    };
    output::print(context.globals.output, &list, |out, wide| match view {
        View::Status => status(out, &list.items, wide),
        View::Sessions => sessions(out, &list.items),
    })?;
    outcome(&list.items)
}

fn outcome(items: &[ClusterNode]) -> Result<(), Failure> {
    let silent: Vec<&str> = items.iter().filter(|n| n.silent).map(|n| n.name.as_str()).collect();
    if !silent.is_empty() {
        let text = format!(
            "silent: {} (no status key: the agent does not run there, or does not reach the store)",
            silent.join(", ")
        );
        return Err(Failure::new(Exit::Partial, "nodes-silent", text));
    }
    let broken = |n: &&ClusterNode| n.status.as_ref().is_some_and(|s| !s.ready);
    let broken: Vec<&str> = items.iter().filter(broken).map(|n| n.name.as_str()).collect();
    if broken.is_empty() {
        return Ok(());
    }
    Err(Failure::new(Exit::No, "not-ready", format!("not ready: {}", broken.join(", "))))
}

fn of(count: UpCount) -> String {
    format!("{}/{}", count.up, count.of)
}

fn dash(text: String) -> String {
    if text.is_empty() { "-".to_owned() } else { text }
}

fn age(node: &ClusterNode) -> String {
    node.age_seconds.map_or_else(|| "-".to_owned(), span)
}

fn status(out: &mut String, items: &[ClusterNode], wide: bool) {
    let mut head = vec!["NODE", "VERDICT", "VERSION", "MESH", "PEERS", "BLOCKS", "ENDPOINTS", "SAID"];
    if wide {
        head.extend(["REVISION", "BOOT"]);
    }
    head.push("PROBLEMS");
    let row = |node: &ClusterNode| {
        let Some(s) = &node.status else {
            let rest = head.len() - 2;
            return [node.name.clone(), "silent".to_owned()]
                .into_iter()
                .chain(std::iter::repeat_n("-".to_owned(), rest))
                .collect();
        };
        let verdict = match (s.verdict.as_str(), s.ready) {
            ("", true) => "ready",
            ("", false) => "running",
            (word, _) => word,
        };
        let mut row = vec![
            node.name.clone(),
            verdict.to_owned(),
            dash(s.version.clone()),
            of(s.mesh),
            of(s.peers),
            s.blocks.to_string(),
            s.endpoints.to_string(),
            age(node),
        ];
        if wide {
            row.extend([s.revision.to_string(), dash(s.boot.clone())]);
        }
        row.push(dash(s.problems.join(",")));
        row
    };
    out.push_str(&table(&head, items.iter().map(row).collect()));
    let own = env!("CARGO_PKG_VERSION");
    let version = |node: &&ClusterNode| {
        node.status.as_ref().is_some_and(|status| crate::agent::is_skewed(own, &status.version))
    };
    let skewed: Vec<&str> = items.iter().filter(version).map(|node| node.name.as_str()).collect();
    if !skewed.is_empty() {
        let _ = writeln!(
            out,
            "\nmore than one minor version away from this program ({own}): {}   [version-skew]",
            skewed.join(", ")
        );
    }
    summary(out, items);
}

fn sessions(out: &mut String, items: &[ClusterNode]) {
    let row = |node: &ClusterNode| {
        let Some(s) = &node.status else {
            return vec![
                node.name.clone(),
                "silent".to_owned(),
                "-".to_owned(),
                "-".to_owned(),
                String::new(),
                String::new(),
            ];
        };
        let more = if s.down_more > 0 { format!(" and {} more", s.down_more) } else { String::new() };
        let disputed = match node.disputed_by.is_empty() {
            true => String::new(),
            false => format!("disputed by {}", node.disputed_by.join(", ")),
        };
        vec![
            node.name.clone(),
            of(s.mesh),
            of(s.peers),
            age(node),
            dash(format!("{}{more}", s.down.join(", "))),
            disputed,
        ]
    };
    let head = ["NODE", "MESH", "PEERS", "SAID", "DOWN", "OTHER SIDE"];
    out.push_str(&table(&head, items.iter().map(row).collect()));
    if items.iter().any(|node| !node.disputed_by.is_empty()) {
        let _ = writeln!(
            out,
            "\ndisputed: that host misses its session with this one, and this one has it, or wants none: tortie why peer on both"
        );
    }
    summary(out, items);
}

fn summary(out: &mut String, items: &[ClusterNode]) {
    let silent = items.iter().filter(|n| n.silent).count();
    let sum = |f: fn(&ClusterNode) -> usize| items.iter().map(f).sum::<usize>();
    let up = sum(|n| n.status.as_ref().map_or(0, |s| s.sessions.up));
    let all = sum(|n| n.status.as_ref().map_or(0, |s| s.sessions.of));
    for (node, form) in items.iter().filter_map(|n| Some((&n.name, n.status.as_ref()?.other_form()?))) {
        let _ = writeln!(out, "\n{node} {form}: -o json has the rest of its status");
    }
    let _ = writeln!(
        out,
        "\n{}, {silent} silent; {up} of {all} sessions up, each counted on both sides",
        counted(items.len(), "node")
    );
}
