//! Prints the verdict on a packet for `policy trace` and `why packet`.

use std::fmt::Write as _;

use super::client::escape;
use super::failure::{Exit, Failure};
use super::output::{self, Format};
use crate::api::policy::{Trace, TraceEnd, TraceHost, TraceQuery, TraceStep};

/// Description of a packet to trace.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct PacketArgs {
    /// Source: an endpoint by any of its names, or an address
    #[arg(long, value_name = "NAME|ADDRESS")]
    from: String,
    /// Destination: an endpoint by any of its names, or an address
    #[arg(long, value_name = "NAME|ADDRESS")]
    to: String,
    /// tcp, udp, icmp, icmpv6, sctp, udplite or a number
    #[arg(long, value_name = "PROTOCOL")]
    proto: String,
    /// Destination port
    #[arg(long, value_name = "PORT")]
    dport: Option<u16>,
    /// Source port [default: 49152]
    #[arg(long, value_name = "PORT", requires = "dport")]
    sport: Option<u16>,
    /// ICMP type, and code [default: an echo request]
    #[arg(long, value_name = "TYPE[/CODE]")]
    icmp: Option<String>,
    /// A later packet of a tracked connection, not the first of a new one
    #[arg(long)]
    established: bool,
}

impl PacketArgs {
    pub(super) fn query(&self) -> TraceQuery {
        TraceQuery {
            from: self.from.clone(),
            to: self.to.clone(),
            proto: self.proto.clone(),
            dport: self.dport,
            sport: self.sport,
            icmp: self.icmp.clone(),
            established: self.established,
        }
    }
}

/// Returns the API path of a query.
pub(super) fn path(page: &str, query: &TraceQuery) -> String {
    let mut out = format!(
        "{page}?from={}&to={}&proto={}",
        escape(&query.from),
        escape(&query.to),
        escape(&query.proto)
    );
    for (name, port) in [("dport", query.dport), ("sport", query.sport)] {
        if let Some(port) = port {
            let _ = write!(out, "&{name}={port}");
        }
    }
    if let Some(icmp) = &query.icmp {
        let _ = write!(out, "&icmp={}", escape(icmp));
    }
    if query.established {
        out.push_str("&established=true");
    }
    out
}

/// Prints the trace. The exit code is 1 for a denied packet, and 6 if an invalid value may affect the
/// verdict.
pub(super) fn print(format: Format, trace: &Trace) -> Result<(), Failure> {
    output::print(format, trace, |out, _| render(out, trace))?;
    match trace.unreadable.as_slice() {
        _ if trace.verdict == "deny" => Err(Failure::new(Exit::No, "denied", "")),
        [] => Ok(()),
        [key, ..] => Err(Failure::new(
            Exit::Partial,
            "unreadable",
            format!("{key} cannot be parsed and may decide about this packet: see `tortie store validate`"),
        )),
    }
}

fn render(out: &mut String, trace: &Trace) {
    let _ = writeln!(
        out,
        "{}{}   {} -> {}   {}, {} connection\n  by {}",
        trace.verdict.to_uppercase(),
        if trace.unreadable.is_empty() { "" } else { " (partial: some values cannot be read)" },
        end(&trace.from),
        end(&trace.to),
        trace.what,
        if trace.established { "known" } else { "new" },
        trace.by
    );
    for host in &trace.hosts {
        way(out, host);
    }
    if !trace.closest_changes.is_empty() {
        let _ = writeln!(
            out,
            "\nClosest change (tried on a copy of the rules; a label may affect other rules, too):"
        );
        for change in &trace.closest_changes {
            let _ = writeln!(out, "  {change}");
        }
    }
    let _ = writeln!(out, "\nNot looked at:");
    for what in &trace.not_looked_at {
        let _ = writeln!(out, "  {what}");
    }
}

pub(super) fn end(end: &TraceEnd) -> String {
    match (&end.endpoint, &end.host) {
        (Some(name), Some(host)) => format!("{name} ({}, on {host})", end.address),
        (None, Some(host)) => format!("{} (host {host})", end.address),
        _ => end.address.clone(),
    }
}

fn way(out: &mut String, host: &TraceHost) {
    let _ = writeln!(
        out,
        "\n  {} ({}){}",
        if host.here { "here" } else { "there" },
        host.host,
        if host.outer { ", the packet that tunnels it" } else { "" }
    );
    for step in &host.steps {
        let endpoint = step.endpoint.as_deref().unwrap_or_default();
        let mark = match &step.verdict {
            Some(verdict) if step.decisive => format!("   <- {}", verdict.to_uppercase()),
            _ => String::new(),
        };
        if step.rules.is_empty() {
            let line = format!("    {:<14} {:<24} {}{mark}", step.stage, endpoint, step.text);
            let _ = writeln!(out, "{}", line.trim_end());
        } else {
            let _ = writeln!(out, "    {:<14} {endpoint}", step.stage);
            rules(out, step, &mark);
        }
    }
}

fn rules(out: &mut String, step: &TraceStep, mark: &str) {
    let mut tier = None;
    for (at, rule) in step.rules.iter().enumerate() {
        if rule.tier != tier {
            if let Some(name) = &rule.tier {
                let _ = writeln!(out, "      tier {name}");
            }
            tier.clone_from(&rule.tier);
        }
        let number = rule.rule.map_or_else(String::new, |number| format!("rule {number}  "));
        let last = if at + 1 == step.rules.len() { mark } else { "" };
        let line = format!("        {:<24} {number}{}{last}", rule.chain, rule.text);
        let _ = writeln!(out, "{}", line.trim_end());
    }
}
