//! `tortie endpoint list|show`: lists endpoints, and the policies and profiles that their packets pass.

use std::fmt::Write as _;

use clap::Subcommand;

use super::client::escape;
use super::context::Context;
use super::failure::Failure;
use super::offline::{self, Source};
use super::output::{self, table};
use crate::api::policy::{ChainRules, Endpoint, EndpointDetail, Stage};
use crate::api::status::List;

/// Subcommands of `tortie endpoint`.
#[derive(Debug, Subcommand)]
pub(super) enum EndpointCommand {
    /// Workload and host endpoints of this host
    List {
        /// Endpoints of all hosts
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        source: Source,
    },
    /// Show one endpoint with all rules that its packets pass
    Show {
        /// ORCHESTRATOR/WORKLOAD/ENDPOINT, the name of the container or pod, an id, the interface, an address or the full key
        name: String,
        #[command(flatten)]
        source: Source,
    },
}

impl EndpointCommand {
    /// True if the answer comes from the store alone.
    pub(super) fn is_offline(&self) -> bool {
        let (Self::List { source, .. } | Self::Show { source, .. }) = self;
        source.offline
    }
}

pub(super) async fn run(context: &Context, command: &EndpointCommand) -> Result<(), Failure> {
    let format = context.globals.output;
    match command {
        EndpointCommand::List { all, source } => {
            let list: List<Endpoint> = source
                .ask(context, &format!("/v1/endpoints?all={all}"), |store| {
                    Ok(offline::list("EndpointList", store, |view| view.endpoints(*all)))
                })
                .await?;
            output::print(format, &list, |out, wide| out.push_str(&rows(&list.items, *all, wide)))
        }
        EndpointCommand::Show { name, source } => {
            let path = format!("/v1/endpoint?name={}", escape(name));
            let detail: EndpointDetail =
                source.ask(context, &path, |store| store.view().endpoint(name)).await?;
            output::print(format, &detail, |out, _| show(out, &detail))
        }
    }
}

fn rows(items: &[Endpoint], all: bool, wide: bool) -> String {
    let mut head = vec!["NAME", "KIND", "INTERFACE", "STATE", "ADDRESSES", "POLICIES", "PROFILES"];
    if all {
        head.insert(0, "HOST");
    }
    head.extend(wide.then_some(["MAC", "LABELS", "KEY"]).into_iter().flatten());
    head.push("REASON");
    let rows = items
        .iter()
        .map(|e| {
            let mut row = vec![
                e.name.clone(),
                e.kind.clone(),
                dash(e.interface.as_deref()),
                e.state.clone(),
                dash(Some(&e.addresses.join(","))),
                e.policies.map_or_else(|| "-".to_owned(), |count| count.to_string()),
                dash(Some(&e.profiles.join(","))),
            ];
            if all {
                row.insert(0, e.host.clone());
            }
            if wide {
                row.extend([dash(e.mac.as_deref()), dash(Some(&labels(e))), e.key.clone()]);
            }
            row.push(e.reason.clone());
            row
        })
        .collect();
    table(&head, rows)
}

fn dash(text: Option<&str>) -> String {
    text.filter(|text| !text.is_empty()).unwrap_or("-").to_owned()
}

fn labels(endpoint: &Endpoint) -> String {
    let labels: Vec<String> = endpoint.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    labels.join(",")
}

fn show(out: &mut String, detail: &EndpointDetail) {
    let e = &detail.endpoint;
    let interface = e.interface.as_deref().map_or_else(String::new, |name| format!("   interface {name}"));
    let reason = if e.reason.is_empty() { String::new() } else { format!(": {}", e.reason) };
    let _ = writeln!(out, "{}   {} endpoint on {}{interface}   {}{reason}", e.name, e.kind, e.host, e.state);
    let lines = [
        ("key", format!("{}   rev {}", e.key, e.revision)),
        ("addresses", e.addresses.join(", ")),
        ("mac", e.mac.clone().unwrap_or_default()),
        ("labels", labels(e)),
        ("profiles", e.profiles.join(", ")),
        ("ports", detail.ports.join(", ")),
    ];
    for (name, text) in lines.iter().filter(|(_, text)| !text.is_empty()) {
        let _ = writeln!(out, "  {name:<10} {text}");
    }
    let effective = detail.effective_labels.iter().map(|label| {
        let value = if label.value.is_empty() { String::new() } else { format!("={}", label.value) };
        format!("{}{value} ({})", label.name, label.from)
    });
    let effective: Vec<String> = effective.collect();
    if !effective.is_empty() {
        let _ = writeln!(out, "  {:<10} {}", "effective", effective.join(", "));
    }
    for (inside, outside) in &detail.nats {
        let _ = writeln!(out, "  {:<10} {outside} <-> {inside}", "nat");
    }
    for policy in &detail.unreadable_policies {
        let _ = writeln!(out, "  {:<10} {policy} cannot be parsed, might select it, and has no effect", "!");
    }
    if e.policies.is_none() {
        let _ = writeln!(out, "  Host {} programs its rules: run this command there.", e.host);
    }
    for direction in ["inbound", "outbound"] {
        let stages: Vec<&Stage> = detail.stages.iter().filter(|s| s.direction == direction).collect();
        if stages.is_empty() {
            continue;
        }
        let _ = writeln!(out, "\n  {direction}");
        for stage in stages {
            let _ = match &stage.tier {
                Some(tier) if stage.kind == "forward" => writeln!(out, "    forwarded packets: tier {tier}"),
                Some(tier) => writeln!(out, "    tier {tier}"),
                None => writeln!(out, "    {}", stage.kind),
            };
            stage.chains.iter().for_each(|chain| rules(out, chain));
            let end = match (stage.kind.as_str(), stage.end.as_str()) {
                ("tier" | "forward", "pass") => "end of tier: pass",
                ("tier" | "forward", _) => "end of tier: deny",
                ("profiles", _) => "no profile decides: deny",
                (_, end) => end,
            };
            let _ = writeln!(out, "      {end}");
        }
    }
}

/// Prints a chain with its rules for `endpoint show`.
fn rules(out: &mut String, chain: &ChainRules) {
    let _ = writeln!(out, "      {}", chain.name);
    if let Some(why) = &chain.closed {
        let _ = writeln!(out, "        {why}");
        return;
    }
    if chain.rules.is_empty() {
        let _ = writeln!(out, "        no rules");
    }
    for (at, rule) in chain.rules.iter().enumerate() {
        let _ = writeln!(out, "        {at:>2}  {rule}");
    }
}
