//! `tortie policy list|show|trace`: shows policies and profiles, the endpoints that they apply to, and traces
//! packets.

use std::fmt::Write as _;

use clap::Subcommand;
use tortie_config::counted;

use super::client::escape;
use super::context::Context;
use super::failure::Failure;
use super::live;
use super::offline::{self, Source};
use super::output::{self, table};
use super::trace;
use crate::api::policy::{Policy, PolicyDetail, Trace};
use crate::api::status::List;

/// Subcommands of `tortie policy`.
#[derive(Debug, Subcommand)]
pub(super) enum PolicyCommand {
    /// List the policies in order of evaluation, and the profiles, that apply to an endpoint of this host
    List {
        /// Also those that apply to no endpoint of this host
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        source: Source,
    },
    /// Show one policy or profile with its rules
    Show {
        /// NAME, TIER/NAME, `profile NAME` or the full key
        name: String,
        #[command(flatten)]
        source: Source,
    },
    /// Show the verdict on a packet by the rules of every host on its path; exit 1 when it is denied
    Trace {
        #[command(flatten)]
        packet: trace::PacketArgs,
        /// Trace such a packet in this host's kernel, rule by rule, and compare the verdicts; needs root.
        /// Exit 1 also when they differ, 5 when no such packet arrives
        #[arg(long, conflicts_with = "offline")]
        live: bool,
        /// Duration of the trace in seconds, 1 to 60 [default: 10]
        #[arg(long = "for", value_name = "SECONDS", requires = "live", value_parser = clap::value_parser!(u64).range(1..=60))]
        seconds: Option<u64>,
        #[command(flatten)]
        source: Source,
    },
}

impl PolicyCommand {
    /// True if the answer comes from the store alone.
    pub(super) fn is_offline(&self) -> bool {
        let (Self::List { source, .. } | Self::Show { source, .. } | Self::Trace { source, .. }) = self;
        source.offline
    }
}

pub(super) async fn run(context: &Context, command: &PolicyCommand) -> Result<(), Failure> {
    let format = context.globals.output;
    match command {
        PolicyCommand::List { all, source } => {
            let list: List<Policy> = source
                .ask(context, &format!("/v1/policies?all={all}"), |store| {
                    Ok(offline::list("PolicyList", store, |view| view.policies(*all)))
                })
                .await?;
            output::print(format, &list, |out, wide| out.push_str(&rows(&list.items, wide)))
        }
        PolicyCommand::Show { name, source } => {
            let path = format!("/v1/policy?name={}", escape(name));
            let detail: PolicyDetail = source.ask(context, &path, |store| store.view().policy(name)).await?;
            output::print(format, &detail, |out, _| show(out, &detail))
        }
        PolicyCommand::Trace { packet, live: true, seconds, .. } => {
            live::run(context, packet.query(), seconds.unwrap_or(10)).await
        }
        PolicyCommand::Trace { packet, source, .. } => {
            let query = packet.query();
            let path = trace::path("/v1/policy/trace", &query);
            let found: Trace = source.ask(context, &path, |store| store.trace(&query)).await?;
            trace::print(format, &found)
        }
    }
}

fn rows(items: &[Policy], wide: bool) -> String {
    let mut head = vec!["KIND", "TIER", "NAME", "ORDER", "TYPES", "RULES IN/OUT", "ENDPOINTS", "SELECTOR"];
    if wide {
        head.extend(["REV", "KEY"]);
    }
    head.push("PROBLEM");
    let rows = items
        .iter()
        .map(|p| {
            let mut row = vec![
                p.kind.clone(),
                p.tier.clone().unwrap_or_else(|| "-".to_owned()),
                p.name.clone(),
                p.order.map_or_else(|| "-".to_owned(), |order| order.to_string()),
                p.types.join(","),
                format!("{}/{}", p.inbound, p.outbound),
                p.endpoints.to_string(),
                p.selector.clone().unwrap_or_else(|| "-".to_owned()),
            ];
            if wide {
                row.extend([p.revision.to_string(), p.key.clone()]);
            }
            row.push(p.problem.clone());
            row
        })
        .collect();
    table(&head, rows)
}

fn show(out: &mut String, detail: &PolicyDetail) {
    let p = &detail.policy;
    let tier = p.tier.as_deref().map_or_else(String::new, |tier| format!("   tier {tier}"));
    let order = match (&p.tier, p.order) {
        (None, _) => String::new(),
        (Some(_), Some(order)) => format!("   order {order}"),
        (Some(_), None) => "   last of its tier".to_owned(),
    };
    let _ = writeln!(out, "{} {}{tier}{order}   {}", p.kind, p.name, p.types.join(", "));
    let _ = writeln!(out, "  key        {}   rev {}", p.key, p.revision);
    if let Some(selector) = &p.selector {
        let _ = writeln!(out, "  selector   {selector}");
    }
    let labels: Vec<String> = detail.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    for (name, list) in [("labels", &labels), ("tags", &detail.tags)] {
        if !list.is_empty() {
            let _ = writeln!(out, "  {name:<10} {}", list.join(", "));
        }
    }
    let on = match detail.acts_on.as_slice() {
        [] => "no endpoint of this host".to_owned(),
        names => names.join(", "),
    };
    let _ = writeln!(out, "  applies to {on}");
    if !p.problem.is_empty() {
        let _ = writeln!(out, "  problem    {}", p.problem);
    }
    let packets = detail.counted.clone().unwrap_or_default();
    for (direction, rules, counts) in [
        ("inbound", &detail.inbound_rules, packets.inbound),
        ("outbound", &detail.outbound_rules, packets.outbound),
    ] {
        let _ = writeln!(out, "\n  {direction}");
        if rules.is_empty() {
            let _ = writeln!(out, "    no rules");
        }
        for (at, rule) in rules.iter().enumerate() {
            let _ = match counts.get(at) {
                Some(of) => {
                    writeln!(
                        out,
                        "    {at:>2}  {rule}   ({}, {})",
                        counted(of.packets, "packet"),
                        counted(of.bytes, "byte")
                    )
                }
                None => writeln!(out, "    {at:>2}  {rule}"),
            };
        }
    }
}
