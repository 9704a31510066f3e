//! `tortie route list|get`: compares the kernel's routes with the intent.

use std::fmt::Write as _;

use clap::Subcommand;
use tortie_net::ScopedAddr;

use super::client::Client;
use super::context::{Context, RouteFilter, pages};
use super::failure::{Exit, Failure};
use super::output::{self, table};
use crate::api::status::{KernelRouteRow, List, RouteGet};

/// Subcommands of `tortie route`.
#[derive(Debug, Subcommand)]
pub(super) enum Route {
    /// List own routes with their state in the kernel
    List {
        #[command(flatten)]
        filter: RouteFilter,
    },
    /// Show what happens to a packet for an address
    Get {
        /// The address; a link-local one with its interface, `fe80::1%eth1` or `fe80::1%3`
        #[arg(value_parser = scoped_addr)]
        address: ScopedAddr,
    },
}

/// Parses an address with an optional zone, which is an interface name or index (RFC 4007 11.2).
fn scoped_addr(text: &str) -> Result<ScopedAddr, String> {
    let wrong =
        |error: &dyn std::fmt::Display| format!("{error}: write 192.0.2.1, 2001:db8::1 or fe80::1%eth1");
    match text.split_once('%') {
        Some((addr, zone)) if !zone.bytes().all(|digit| digit.is_ascii_digit()) => {
            let addr: std::net::IpAddr = addr.parse().map_err(|error| wrong(&error))?;
            let index =
                interface_index(zone).ok_or_else(|| format!("this host has no interface `{zone}`"))?;
            Ok(ScopedAddr::new(addr, index))
        }
        _ => text.parse().map_err(|error| wrong(&error)),
    }
}

/// Returns the index of an interface by its name.
fn interface_index(name: &str) -> Option<u32> {
    if name.is_empty() || name.contains('/') || name.starts_with('.') {
        return None;
    }
    std::fs::read_to_string(format!("/sys/class/net/{name}/ifindex")).ok()?.trim().parse().ok()
}

pub(super) async fn run(context: &Context, command: &Route) -> Result<(), Failure> {
    let client = Client::of(&context.globals);
    let format = context.globals.output;
    match command {
        Route::List { filter } => {
            let mut list: List<KernelRouteRow> = pages(&client, "/v1/routes", filter, &[]).await?;
            // Pages arrive in the order of the agent's table, so the list is sorted.
            list.items.sort_by_cached_key(|row| row.prefix.parse::<tortie_net::Cidr>().ok());
            output::print(format, &list, |out, wide| out.push_str(&rows(&list.items, wide)))
        }
        Route::Get { address } => {
            // `%` before a zone must be percent-encoded in URLs (RFC 3986 2.1).
            let segment = address.to_string().replace('%', "%25");
            let got: RouteGet = client.get(&format!("/v1/routes/get/{segment}")).await?;
            output::print(format, &got, |out, _| explain(out, &got))?;
            if got.kernel.is_none() && got.bgp.is_none() {
                return Err(Failure::new(Exit::No, "no-route", format!("no route of ours covers {address}")));
            }
            Ok(())
        }
    }
}

fn rows(items: &[KernelRouteRow], wide: bool) -> String {
    let mut head = vec!["PREFIX", "KIND", "STATE", "VIA", "REASON"];
    if wide {
        head.push("CHANGE");
    }
    let rows = items
        .iter()
        .map(|r| {
            let mut row = vec![
                r.prefix.clone(),
                r.kind.clone(),
                r.state.clone(),
                if r.via.is_empty() { "-".to_owned() } else { r.via.join(" + ") },
                r.reason.clone(),
            ];
            if wide {
                row.push(r.change.clone());
            }
            row
        })
        .collect();
    table(&head, rows)
}

fn explain(out: &mut String, got: &RouteGet) {
    let _ = writeln!(out, "{}", got.address);
    match &got.bgp {
        Some(route) => {
            let _ = writeln!(out, "  BGP      {}", route.prefix);
            for path in &route.paths {
                let word = if path.best {
                    "best"
                } else if path.usable {
                    "usable"
                } else {
                    "unusable"
                };
                let hop = path.next_hop.as_deref().unwrap_or("-");
                let _ = writeln!(
                    out,
                    "             from {} ({})  next hop {hop}  {word}: {}",
                    path.from, path.source, path.reason
                );
            }
        }
        None => {
            let _ = writeln!(out, "  BGP      no route covers it");
        }
    }
    match &got.kernel {
        Some(row) => {
            let _ = writeln!(
                out,
                "  desired  {} {} {} ({}): {}{}",
                row.prefix,
                row.kind,
                row.via.join(" + "),
                row.state,
                row.reason,
                if row.change.is_empty() { String::new() } else { format!("   change {}", row.change) }
            );
        }
        None => {
            let _ = writeln!(out, "  desired  no route of ours");
        }
    }
    let _ = writeln!(out, "  kernel   {}", got.kernel_lookup);
}
