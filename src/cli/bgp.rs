//! `tortie bgp peers|peer|ranges|routes|reset`; `bgp drain` is in [`drain`](super::drain).

use std::fmt::Write as _;

use clap::Subcommand;
use tortie_config::counted;

use super::client::{Client, escape};
use super::context::{Context, RouteFilter, pages};
use super::failure::{Exit, Failure};
use super::nodes;
use super::output::{self, span, table};
use crate::api::bgp::{BgpRoute, Peer, PeerBfd, PeerRange};
use crate::api::status::{ActionResult, List, ResetRequest};

/// Subcommands of `tortie bgp`.
#[derive(Debug, Subcommand)]
pub(super) enum Bgp {
    /// List the configured sessions and the dynamic ones, one per line
    Peers {
        /// Sessions of every host, from the status keys in the store; exit 6 when hosts have none
        #[arg(long)]
        all_nodes: bool,
        /// Sessions that an agent of this host would have, from the store alone; exit 6 when a value that they
        /// depend on cannot be read
        #[arg(long, conflicts_with = "all_nodes")]
        offline: bool,
    },
    /// List the ranges of addresses that dynamic peers may connect from (peer_range/ADDRESS-LENGTH)
    Ranges,
    /// Show one session in detail
    Peer {
        /// Session name, node name or address
        name: String,
    },
    /// Show the BGP table, with the reason for each best path
    Routes {
        #[command(flatten)]
        filter: RouteFilter,
        /// Only routes received from this peer
        #[arg(long, value_name = "PEER", conflicts_with = "to")]
        from: Option<String>,
        /// Only routes announced to this peer
        #[arg(long, value_name = "PEER")]
        to: Option<String>,
    },
    /// Record tables and updates as MRT files, print such files, or replay them to a lab router
    #[command(subcommand)]
    Mrt(super::mrt::Mrt),
    /// Move traffic away before maintenance: announce all routes with GRACEFUL_SHUTDOWN (RFC 8326) and wait
    /// until peers have received them. A restart of the agent ends the drain
    Drain(super::drain::Drain),
    /// Reset one session, or all
    Reset {
        /// Session name, node name or address
        #[arg(required_unless_present = "all")]
        name: Option<String>,
        /// All sessions, including dynamic ones
        #[arg(long, conflicts_with = "name")]
        all: bool,
        /// Request the peer's routes again (ROUTE-REFRESH); the session stays up
        #[arg(long, conflicts_with = "soft_out")]
        soft_in: bool,
        /// Send all routes to the peer again; the session stays up
        #[arg(long)]
        soft_out: bool,
        /// Reason for the peer's operators, sent in the NOTIFICATION; at most 255 octets (RFC 9003)
        #[arg(long, conflicts_with_all = ["soft_in", "soft_out"])]
        text: Option<String>,
    },
}

pub(super) async fn run(context: &Context, command: &Bgp) -> Result<(), Failure> {
    let client = Client::of(&context.globals);
    let format = context.globals.output;
    match command {
        Bgp::Peers { offline: true, .. } => super::configured_peers::run(context).await,
        Bgp::Peers { all_nodes: true, .. } => nodes::run(context, nodes::View::Sessions).await,
        Bgp::Peers { all_nodes: false, .. } => {
            let list: List<Peer> = client.get("/v1/bgp/peers").await?;
            output::print(format, &list, |out, wide| {
                out.push_str(&peers(&list.items, wide));
                summary(out, &list.items);
            })
        }
        Bgp::Ranges => {
            let list: List<PeerRange> = client.get("/v1/bgp/ranges").await?;
            output::print(format, &list, |out, _| out.push_str(&ranges(&list.items)))
        }
        Bgp::Peer { name } => {
            let peer: Peer = client.get(&format!("/v1/bgp/peers/{}", escape(name))).await?;
            output::print(format, &peer, |out, _| one(out, &peer))
        }
        Bgp::Routes { filter, from, to } => {
            let named = [("from", from.as_deref()), ("to", to.as_deref())];
            let mut list: List<BgpRoute> = pages(&client, "/v1/bgp/routes", filter, &named).await?;
            // Pages arrive in the order of the agent's table, so the list is sorted.
            list.items.sort_by_cached_key(|route| route.prefix.parse::<tortie_net::Cidr>().ok());
            output::print(format, &list, |out, wide| out.push_str(&routes(&list.items, wide)))?;
            if list.items.is_empty() && filter.prefix.is_some() {
                return Err(Failure::new(Exit::No, "not-found", "no such prefix in the BGP table"));
            }
            Ok(())
        }
        Bgp::Mrt(command) => super::mrt::run(context, command).await,
        Bgp::Drain(drain) => super::drain::run(&client, format, drain).await,
        Bgp::Reset { name, all, soft_in, soft_out, text } => {
            let kind = match (soft_in, soft_out) {
                (true, _) => "soft-in",
                (_, true) => "soft-out",
                _ => "hard",
            };
            let (peer, kind, text) = (name.clone(), kind.to_owned(), text.clone());
            let request = ResetRequest { peer, all: *all, kind, text };
            let done: ActionResult = client.post("/v1/bgp/reset", &request).await?;
            output::print(format, &done, |out, _| {
                let _ = writeln!(out, "{}", done.text);
            })
        }
    }
}

fn summary(out: &mut String, items: &[Peer]) {
    let up = items.iter().filter(|p| p.state == "Established").count();
    let _ =
        writeln!(out, "\n{}: {up} established, {} down", counted(items.len(), "session"), items.len() - up);
}

fn peers(items: &[Peer], wide: bool) -> String {
    let mut head =
        vec!["PEER", "NAME", "TYPE", "AS", "STATE", "UP/DOWN", "PFXRCD", "PFXACC", "PFXSNT", "FLAPS"];
    if wide {
        head.extend(["FAMILIES", "HOLD", "MSGIN", "MSGOUT", "ROUTER-ID", "GR", "BFD", "RANGE"]);
    }
    head.push("REASON");
    let rows = items
        .iter()
        .map(|p| {
            let up = p.state == "Established";
            let sum = |f: fn(&crate::api::bgp::PeerFamily) -> u64| {
                if up { p.families.iter().map(f).sum::<u64>().to_string() } else { "-".to_owned() }
            };
            let mut row = vec![
                p.address.clone(),
                p.name.clone(),
                p.kind.clone(),
                p.remote_as.to_string(),
                p.state.clone(),
                span(p.state_seconds),
                sum(|f| f.received),
                sum(|f| f.accepted),
                sum(|f| f.advertised),
                p.flaps.to_string(),
            ];
            if wide {
                row.extend([
                    p.families.iter().map(|f| f.afi.as_str()).collect::<Vec<_>>().join(","),
                    format!("{}s", p.hold_seconds),
                    p.messages_in.to_string(),
                    p.messages_out.to_string(),
                    p.router_id.clone().unwrap_or_else(|| "-".to_owned()),
                    p.graceful_restart.clone(),
                    p.bfd.as_ref().map_or_else(|| "-".to_owned(), |b| b.state.clone()),
                    p.range.clone().unwrap_or_else(|| "-".to_owned()),
                ]);
            }
            row.push(match (&p.last_error, up) {
                (Some(error), false) => error.text.clone(),
                (Some(error), true) if p.flaps > 0 => format!("last: {}", error.text),
                _ => String::new(),
            });
            row
        })
        .collect();
    table(&head, rows)
}

fn ranges(items: &[PeerRange]) -> String {
    let head = ["RANGE", "AS", "SESSIONS", "MAX", "REFUSED", "KEY", "LAST END"];
    let rows = items.iter().map(|r| {
        vec![
            r.prefix.clone(),
            if r.remote_as == 0 { "external".to_owned() } else { r.remote_as.to_string() },
            r.sessions.to_string(),
            r.max_sessions.to_string(),
            r.refused.to_string(),
            r.reason.clone(),
            r.last_error.as_ref().map_or_else(|| "-".to_owned(), |e| e.text.clone()),
        ]
    });
    table(&head, rows.collect())
}

fn one(out: &mut String, p: &Peer) {
    let _ = writeln!(
        out,
        "peer {} ({}, {}, AS {}) is {} for {}",
        p.address,
        p.name,
        p.kind,
        p.remote_as,
        p.state,
        span(p.state_seconds)
    );
    let _ = writeln!(out, "  configured by {}", p.reason);
    if let Some(text) = &p.shutdown {
        let _ = writeln!(out, "  shut down     {}", if text.is_empty() { "without a reason" } else { text });
    }
    if let Some(range) = &p.range {
        let _ = writeln!(out, "  came from     {range}");
    }
    let _ = writeln!(out, "  port          {}", p.port);
    if !p.dials.is_empty() {
        let _ = writeln!(out, "  dials         {}", p.dials);
    }
    if let Some(id) = &p.router_id {
        let _ = writeln!(out, "  router id     {id}");
        let _ = writeln!(out, "  timers        hold {}s, keepalive {}s", p.hold_seconds, p.keepalive_seconds);
        let _ = writeln!(out, "  capabilities  {}", p.capabilities.join(", "));
    }
    let _ = writeln!(out, "  messages      {} in, {} out", p.messages_in, p.messages_out);
    for f in &p.families {
        let _ = writeln!(
            out,
            "  {:<5} {}   {} received, {} accepted, {} best, {} advertised, {} stale",
            f.afi, f.safi, f.received, f.accepted, f.best, f.advertised, f.stale
        );
    }
    let _ = writeln!(out, "  restart       {}", p.graceful_restart);
    if let Some(bfd) = &p.bfd {
        forwarding(out, bfd);
    }
    if let Some(error) = &p.last_error {
        let _ = writeln!(out, "  last error    {} ({}, {})", error.text, error.code, error.time);
    }
    if let Some(error) = &p.last_message_error {
        let what = error.code.replace('_', " ");
        let _ = writeln!(out, "  last message error  {} ({what}, {})", error.text, error.time);
        for (name, octets) in [("data", &error.data), ("message", &error.message)] {
            dump(out, name, octets);
        }
    }
    for note in &p.notes {
        let _ = writeln!(out, "  note          {}", note.text);
    }
}

fn forwarding(out: &mut String, b: &PeerBfd) {
    let Some(path) = &b.path else {
        let _ = writeln!(out, "  bfd           waits for the route to the peer");
        return;
    };
    let remote = b.remote_state.as_deref().unwrap_or("nothing received");
    let _ = writeln!(
        out,
        "  bfd           {} for {}, {path}, peer: {remote}, {} packets in, {} out",
        b.state,
        span(b.state_seconds),
        b.packets_in,
        b.packets_out
    );
    let millis = |n: Option<u64>| n.map_or_else(|| "-".to_owned(), |n| format!("{n} ms"));
    let _ = writeln!(
        out,
        "                sends every {}, receives every {}, detects a loss in {}",
        millis(b.transmit_millis),
        millis(b.receive_millis),
        millis(b.detection_millis)
    );
    let said = [("here", &b.diagnostic), ("peer", &b.remote_diagnostic)];
    for (who, text) in said.into_iter().filter_map(|(who, text)| Some((who, text.as_ref()?))) {
        let _ = writeln!(out, "                diagnostic, {who}: {text}");
    }
    if let Some(down) = &b.last_down {
        let _ = writeln!(out, "                last down: {} ({})", down.text, down.time);
    }
}

/// Appends octets in hex, 32 per line.
fn dump(out: &mut String, name: &str, hex: &str) {
    for (at, line) in hex.as_bytes().chunks(64).enumerate() {
        let name = if at == 0 { name } else { "" };
        let _ = writeln!(out, "    {name:<9} {}", String::from_utf8_lossy(line));
    }
}

fn routes(items: &[BgpRoute], wide: bool) -> String {
    let mut head =
        vec!["", "PREFIX", "NEXT HOP", "FROM", "SOURCE", "LP", "MED", "AS PATH", "ORIGIN", "REASON"];
    if wide {
        head.push("COMMUNITIES");
    }
    let mut rows = Vec::new();
    for route in items {
        for (at, path) in route.paths.iter().enumerate() {
            let mark = match (path.usable, path.best, path.multipath) {
                (true, true, _) => "*>",
                (true, _, true) => "*=",
                (true, ..) => "*",
                _ => "",
            };
            let number = |n: Option<u32>| n.map_or_else(|| "-".to_owned(), |n| n.to_string());
            let mut row = vec![
                mark.to_owned(),
                if at == 0 { route.prefix.clone() } else { String::new() },
                path.next_hop.clone().unwrap_or_else(|| "-".to_owned()),
                path.path_id.map_or_else(|| path.from.clone(), |id| format!("{} (path {id})", path.from)),
                path.source.clone(),
                number(path.local_pref),
                number(path.med),
                if path.as_path.is_empty() { "-".to_owned() } else { path.as_path.clone() },
                path.origin.clone(),
                format!("{}{}", path.reason, if path.stale { " (stale)" } else { "" }),
            ];
            if wide {
                let mut all = path.communities.clone();
                all.extend(path.large_communities.iter().cloned());
                row.push(all.join(" "));
            }
            rows.push(row);
        }
    }
    table(&head, rows)
}
