//! `tortie status`: shows the state of the agent and the host on one screen, with one verdict.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use tortie_config::counted;

use super::context::Context;
use super::failure::{Exit, Failure};
use super::output::{self, span};
use super::{client::Client, nodes};
use crate::api::observe::ObserveStatus;
use crate::api::policy::PolicyStatus;
use crate::api::status::Status;

/// Arguments of `tortie status`.
#[derive(Debug, clap::Args)]
pub(super) struct StatusCommand {
    /// Every host, from the status keys in the store; exit 6 when hosts have none
    #[arg(long)]
    pub(super) all_nodes: bool,
}

/// Prints the verdict; the exit code is 1 if the agent is not ready.
pub(super) async fn run(context: &Context, command: &StatusCommand) -> Result<(), Failure> {
    if command.all_nodes {
        return nodes::run(context, nodes::View::Status).await;
    }
    let status: Status = Client::of(&context.globals).get("/v1/status").await?;
    output::print(context.globals.output, &status, |out, wide| render(out, &status, wide))?;
    if status.ready {
        return Ok(());
    }
    Err(Failure::new(Exit::No, "not-ready", format!("{} is not ready: {}", status.node, status.summary)))
}

/// Formats the first line: host, version, uptime, verdict.
pub(super) fn headline(s: &Status) -> String {
    let verdict = match s.verdict.as_str() {
        "degraded" => "READY, degraded".to_owned(),
        "not-ready" => "NOT READY".to_owned(),
        word => word.to_uppercase(),
    };
    format!("{}   tortie {}   up {}   {verdict}: {}", s.node, s.version, span(s.uptime_seconds), s.summary)
}

/// Formats counts that are not zero or always shown.
fn counts(all: &[(usize, &str, bool)]) -> String {
    let shown = all.iter().filter(|(n, _, always)| *always || *n > 0);
    shown
        .map(|(n, what, _)| match what.strip_suffix('#') {
            Some(noun) => counted(n, noun),
            None => format!("{n} {what}"),
        })
        .collect::<Vec<_>>()
        .join("   ")
}

fn named(map: &BTreeMap<String, u64>) -> String {
    map.iter().filter(|(_, n)| **n > 0).map(|(name, n)| format!("{name} {n}")).collect::<Vec<_>>().join(", ")
}

fn render(out: &mut String, s: &Status, wide: bool) {
    let _ = writeln!(out, "{}\n", headline(s));
    bgp(out, s, wide);
    let r = &s.routes;
    let _ = writeln!(
        out,
        "  Routes     {}",
        counts(&[
            (r.installed, "in kernel", true),
            (r.pending, "pending", true),
            (r.failed, "failed", false),
            (r.withheld, "withheld", false),
            (r.stale, "stale", false),
            (r.drifted, "drifted", true),
            (r.foreign, "foreign", true),
        ])
    );
    addresses(out, s, wide);
    policy(out, &s.policy, wide);
    store(out, s);
    let d = &s.dataplane;
    let compared = match d.compared_seconds {
        None => "never".to_owned(),
        Some(age) if r.drifted == 0 => format!("{} ago: equal", span(age)),
        Some(age) => format!("{} ago: {} differ", span(age), r.drifted),
    };
    let _ = writeln!(
        out,
        "  Dataplane  {}  protocol {}  {}  tunnel {}   last full compare {compared}",
        d.mode, d.protocol, d.nexthops, d.tunnel
    );
    if let Some(observed) = &s.observed {
        self::observed(out, observed);
    }
    if wide {
        let _ = writeln!(out, "  Process    {}", s.protections.text());
    }
    findings(out, s);
}

fn observed(out: &mut String, b: &ObserveStatus) {
    let mut title = "Observed";
    for line in b.bird.iter().chain(&b.felix) {
        let _ = writeln!(out, "  {title:<10} {line}");
        title = "";
    }
    for p in &b.planes {
        let counts = counts(&[
            (p.equal, "equal", true),
            (p.different, "different", false),
            (p.missing, "missing", false),
            (p.extra, "extra", false),
            (p.not_judged, "not judged", false),
        ]);
        let _ = writeln!(out, "  {title:<10} {:<10} {counts}", p.plane);
        title = "";
    }
    for unseen in &b.unseen {
        let _ = writeln!(out, "  {title:<10} not looked at: {unseen}");
        title = "";
    }
}

fn bgp(out: &mut String, s: &Status, wide: bool) {
    let b = &s.bgp;
    let _ = writeln!(
        out,
        "  BGP        AS {}  router-id {}   mesh {}/{}   peers {}/{}   graceful restart {}",
        b.asn, b.router_id, b.mesh.up, b.mesh.of, b.peers.up, b.peers.of, b.graceful_restart
    );
    for r in &b.ranges {
        let full = if r.sessions >= r.max_sessions { ", FULL" } else { "" };
        let asn = if r.remote_as == 0 { "any external AS".to_owned() } else { format!("AS {}", r.remote_as) };
        let _ = writeln!(
            out,
            "  Range      {} ({asn})   {} of {} dynamic sessions{full}   {} refused",
            r.prefix, r.sessions, r.max_sessions, r.refused
        );
    }
    if wide {
        for (what, map) in [("not announced now", &b.withheld), ("not used since the start", &b.refused)] {
            let list = named(map);
            if !list.is_empty() {
                let _ = writeln!(out, "             {what}: {list}");
            }
        }
        let _ = writeln!(out, "             listens on {}", b.listen.join(", "));
        if !b.without_prefix_limit.is_empty() {
            let _ = writeln!(
                out,
                "             without a prefix limit (max_prefixes): {}",
                b.without_prefix_limit.join(", ")
            );
        }
    }
}

fn addresses(out: &mut String, s: &Status, wide: bool) {
    let announced = s.blocks.iter().filter(|b| b.announced).count();
    let mut title = "IPAM";
    if s.pools.is_empty() {
        let _ = writeln!(out, "  IPAM       no pool");
    }
    for p in &s.pools {
        let blocks = counted(p.blocks, "block");
        let _ = writeln!(
            out,
            "  {title:<10} {}: {blocks} here, {}/{} used, {} free, {} borrowed, {} suspect",
            p.pool, p.used, p.addresses, p.free, p.borrowed, p.suspect
        );
        title = "";
    }
    if announced < s.blocks.len() || wide {
        let _ = writeln!(out, "  {:<10} {announced} of {} routes of this host announced", "", s.blocks.len());
    }
    if wide {
        for block in &s.blocks {
            let word = if block.announced { "announced" } else { "not announced" };
            let _ = writeln!(out, "               {}  {}  {word}  {}", block.cidr, block.kind, block.key);
        }
    }
}

fn policy(out: &mut String, p: &PolicyStatus, wide: bool) {
    if p.mode == "off" {
        let _ = writeln!(out, "  Policy     off");
        return;
    }
    let endpoints = counts(&[
        (p.endpoints, "endpoint#", true),
        (p.inactive, "inactive", false),
        (p.failed, "failed", false),
        (p.policies, "policy#", true),
        (p.profiles, "profile#", true),
        (p.rules, "rule#", true),
        (p.sets, "set#", true),
    ]);
    let _ = writeln!(
        out,
        "  Policy     {}   {endpoints}   {}, last apply {:.1}ms",
        p.mode,
        if p.in_sync { "in sync" } else { "BEHIND" },
        std::time::Duration::from_micros(p.apply_micros).as_secs_f64() * 1_000.0
    );
    if let Some(t) = p.table.as_ref().filter(|t| wide || t.drifted > 0) {
        let _ = writeln!(
            out,
            "             inet tortie: {}  {}  {}  {}   {} drifted",
            counted(t.chains, "chain"),
            counted(t.rules, "rule"),
            counted(t.sets, "set"),
            counted(t.elements, "element"),
            t.drifted
        );
    }
}

fn store(out: &mut String, s: &Status) {
    let mut store = format!("{}  rev {}  lag {:.1}s", s.store.store, s.store.revision, s.store.lag_seconds);
    if let Some(away) = &s.store.away {
        let _ = write!(store, "  AWAY: {away}");
    }
    if s.store.from_cache {
        store.push_str("  running from the cache on disk");
    }
    if let Some(frozen) = &s.store.frozen {
        let _ = write!(store, "  FROZEN: {frozen}");
    }
    let _ = writeln!(out, "  Store      {store}");
}

fn findings(out: &mut String, s: &Status) {
    for (title, list, mark) in [("Problems", &s.problems, "!"), ("Notes", &s.notes, "-")] {
        if list.is_empty() {
            continue;
        }
        let _ = writeln!(out, "\n{title} ({})", list.len());
        for problem in list {
            let _ = writeln!(out, "  {mark}  {}: {}   [{}]", problem.subject, problem.text, problem.code);
            if !problem.next.is_empty() {
                let _ = writeln!(out, "     next: {}", problem.next);
            }
        }
    }
}
