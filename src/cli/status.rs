//! `tortie status`: one screen, one verdict.

use std::fmt::Write as _;

use super::failure::{Exit, Failure};
use super::output::{self, span};
use super::{Context, client::Client};
use crate::serve::api::Status;

/// Prints the verdict; exit 1 when the agent is not ready.
pub(super) async fn run(context: &Context) -> Result<(), Failure> {
    let status: Status = Client::new(&context.globals.socket).get("/v1/status").await?;
    output::print(context.globals.output, &status, |out, wide| render(out, &status, wide))?;
    if status.ready {
        return Ok(());
    }
    Err(Failure::new(Exit::No, "not-ready", format!("{} is not ready: {}", status.node, status.summary)))
}

fn render(out: &mut String, s: &Status, wide: bool) {
    let _ = writeln!(
        out,
        "{}   tortie {}   up {}   {}: {}\n",
        s.node,
        s.version,
        span(s.uptime_seconds),
        s.verdict.to_uppercase(),
        s.summary
    );
    let _ = writeln!(
        out,
        "  BGP        AS {}  router-id {}   mesh {}/{}   peers {}/{}   graceful restart {}",
        s.bgp.asn,
        s.bgp.router_id,
        s.bgp.mesh.up,
        s.bgp.mesh.of,
        s.bgp.peers.up,
        s.bgp.peers.of,
        s.bgp.graceful_restart
    );
    for r in &s.bgp.ranges {
        let full = if r.sessions >= r.max_sessions { ", FULL" } else { "" };
        let asn = if r.remote_as == 0 { "any external AS".to_owned() } else { format!("AS {}", r.remote_as) };
        let _ = writeln!(
            out,
            "  Range      {} ({asn})   {} of {} dynamic sessions{full}   {} refused",
            r.prefix, r.sessions, r.max_sessions, r.refused
        );
    }
    let r = &s.routes;
    let _ = writeln!(
        out,
        "  Routes     {} in kernel   {} pending   {} failed   {} withheld   {} stale   {} drifted   {} foreign",
        r.installed, r.pending, r.failed, r.withheld, r.stale, r.drifted, r.foreign
    );
    let announced = s.blocks.iter().filter(|b| b.announced).count();
    let _ = writeln!(out, "  Blocks     {} here, {announced} announced", s.blocks.len());
    if wide {
        for block in &s.blocks {
            let word = if block.announced { "announced" } else { "not announced" };
            let _ = writeln!(out, "               {}  {}  {word}  {}", block.cidr, block.kind, block.key);
        }
    }
    let p = &s.policy;
    let _ = match p.mode.as_str() {
        "off" => writeln!(out, "  Policy     off"),
        _ => writeln!(
            out,
            "  Policy     {}   {} endpoints, {} inactive, {} failed   {} policies  {} profiles  {} rules  {} sets   {}, \
             last change took {:.1}ms",
            p.mode,
            p.endpoints,
            p.inactive,
            p.failed,
            p.policies,
            p.profiles,
            p.rules,
            p.sets,
            if p.in_sync { "in sync" } else { "BEHIND" },
            std::time::Duration::from_micros(p.apply_micros).as_secs_f64() * 1_000.0
        ),
    };
    if let Some(t) = &p.table {
        let _ = writeln!(
            out,
            "             inet tortie: {} chains  {} rules  {} sets  {} elements   {} drifted",
            t.chains, t.rules, t.sets, t.elements, t.drifted
        );
    }
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
    let d = &s.dataplane;
    let compared = d.compared_seconds.map_or_else(|| "never".to_owned(), |age| format!("{} ago", span(age)));
    let _ = writeln!(
        out,
        "  Dataplane  {}  protocol {}  {}  tunnel {}   last full compare {compared}",
        d.mode, d.protocol, d.nexthops, d.tunnel
    );
    for (title, list, mark) in [("Problems", &s.problems, "!"), ("Notes", &s.notes, "-")] {
        if list.is_empty() {
            continue;
        }
        let _ = writeln!(out, "\n{title} ({})", list.len());
        for problem in list {
            let _ = writeln!(out, "  {mark}  {}: {}", problem.subject, problem.text);
            if !problem.next.is_empty() {
                let _ = writeln!(out, "     next: {}", problem.next);
            }
        }
    }
}
