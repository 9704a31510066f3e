//! Shows one address with all related data, or one block with its addresses.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;

use serde::Serialize;
use serde_json::{Map, Value};
use tortie_config::key::{IpFamily, Key, Scope, prefix};
use tortie_config::resource::Setting;
use tortie_net::Cidr;

use super::open::open;
use crate::api::explain::Why;
use crate::api::ipam::{self as words, Holder, state};
use crate::api::status::RouteGet;
use crate::cli::client::Client;
use crate::cli::context::Context;
use crate::cli::failure::{Exit, Failure};
use crate::cli::output::{self, table};
use tortie_engine::ipam::Keyspace;
use tortie_engine::ipam::check::IpamState;
use tortie_engine::model::endpoint_name::{endpoint_name, name_of_stored};
use tortie_store::Snapshot;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct AddressView {
    address: IpAddr,
    allocated: bool,
    pool: Option<Cidr>,
    block: Option<Cidr>,
    /// Store revision of the block.
    revision: Option<u64>,
    owner: Option<String>,
    /// State of the owner's affinity: `confirmed` and so on.
    state: Option<&'static str>,
    handle: Option<String>,
    attributes: Map<String, Value>,
    endpoints: Vec<Holder>,
    /// Hosts that use the address for their tunnel.
    tunnel_of: Vec<String>,
    /// Places where this host's kernel has the address.
    here: Vec<String>,
    /// Sources that could not be read.
    blind: Vec<String>,
    /// Routing decision of this host's agent; `None` if no agent answered.
    route: Option<RouteGet>,
    /// Explanation by this host's agent, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    live: Option<Why>,
}

/// Maps tunnel addresses in a prefix to their hosts.
fn tunnels(snapshot: &Snapshot, within: Cidr) -> BTreeMap<IpAddr, Vec<String>> {
    let mut found: BTreeMap<IpAddr, Vec<String>> = BTreeMap::new();
    let is_tunnel =
        |key: &str| Setting::TUNNEL_ADDRESSES.iter().any(|name| key.ends_with(&format!("/config/{name}")));
    for kv in snapshot.entries.iter().filter(|kv| is_tunnel(&kv.key)) {
        let addr = std::str::from_utf8(&kv.value).ok().and_then(|text| text.trim().parse().ok());
        if let (Ok(Key::Setting(Scope::Host(host), _)), Some(addr)) = (Key::parse(&kv.key), addr)
            && within.contains(addr)
        {
            found.entry(addr).or_default().push(host);
        }
    }
    found
}

/// Maps addresses in a prefix to the endpoints that use them.
fn holders(snapshot: &Snapshot, ipam_state: &IpamState, within: Cidr) -> BTreeMap<IpAddr, Vec<Holder>> {
    let mut found: BTreeMap<IpAddr, Vec<Holder>> = BTreeMap::new();
    for endpoint in &ipam_state.endpoints {
        for net in endpoint.nets.iter().filter(|net| net.is_host() && within.covers(net)) {
            let name = name_of(snapshot, &endpoint.key);
            let holder = Holder { name, host: endpoint.host.clone(), key: endpoint.key.clone() };
            found.entry(net.addr()).or_default().push(holder);
        }
    }
    found
}

/// Returns the name of the endpoint with this key.
fn name_of(snapshot: &Snapshot, key: &str) -> String {
    let stored = snapshot.entries.binary_search_by(|kv| kv.key.as_str().cmp(key));
    let stored = stored.ok().and_then(|at| snapshot.entries.get(at));
    match (Key::parse(key), stored) {
        (Ok(Key::Endpoint(endpoint)), Some(kv)) => name_of_stored(&endpoint, &kv.value),
        // The endpoint is an object of Calico 3.
        (Ok(Key::Endpoint(endpoint)), None) => endpoint_name(&endpoint),
        _ => key.to_owned(),
    }
}

fn ordinal(block: Cidr, addr: IpAddr) -> Option<u32> {
    u32::try_from(block.ordinal(addr)?).ok()
}

/// Shows an address as the store and the kernel have it.
pub(super) async fn address(context: &Context, addr: IpAddr) -> Result<(), Failure> {
    look(context, addr, false).await
}

/// Shows an address, with the explanation of the agent.
pub(in crate::cli) async fn why(context: &Context, addr: IpAddr) -> Result<(), Failure> {
    look(context, addr, true).await
}

async fn look(context: &Context, addr: IpAddr, live: bool) -> Result<(), Failure> {
    let (store, _) = open(context).await?;
    let space = Keyspace::of(store.dialect().await?);
    let snapshot = store.list(&IpamState::prefixes(&space)).await?;
    let ipam_state = IpamState::of(&space, &snapshot);
    let block = ipam_state.block_of(addr);
    let held = block.and_then(|b| b.value.allocation(ordinal(b.value.cidr(), addr)?));
    let mut view = AddressView {
        address: addr,
        allocated: held.is_some(),
        pool: ipam_state.pool_of(addr).map(|pool| pool.cidr),
        block: block.map(|b| b.value.cidr()),
        revision: block.map(|b| b.revision),
        owner: block.and_then(|b| b.value.host()).map(str::to_owned),
        state: block.map(|b| state(&ipam_state, &b.value)),
        handle: held.and_then(|held| held.handle.clone()),
        attributes: held.and_then(|held| held.secondary.clone()).unwrap_or_default(),
        endpoints: holders(&snapshot, &ipam_state, Cidr::host(addr)).remove(&addr).unwrap_or_default(),
        tunnel_of: tunnels(&snapshot, Cidr::host(addr)).remove(&addr).unwrap_or_default(),
        here: Vec::new(),
        blind: Vec::new(),
        route: None,
        live: None,
    };
    match tortie_kernel::address_uses() {
        Ok(seen) => {
            view.here = seen.of(addr).map(ToString::to_string).collect();
            view.blind = seen.unreadable;
        }
        Err(error) => view.blind.push(format!("the kernel of this host cannot be read: {error}")),
    }
    let client = Client::of(&context.globals);
    match client.get::<RouteGet>(&format!("/v1/routes/get/{addr}")).await {
        Ok(route) => view.route = Some(route),
        Err(failure) => view.blind.push(format!("routes: {failure}")),
    }
    // An agent that does not answer is already reported above.
    if live && view.route.is_some() {
        match client.get::<Why>(&format!("/v1/why/ip?address={addr}")).await {
            Ok(why) => view.live = Some(why),
            Err(failure) => view.blind.push(format!("state of the agent: {failure}")),
        }
    }
    output::print(context.globals.output, &view, |out, _| {
        explain(out, &view);
        if let Some(why) = &view.live {
            let _ = write!(out, "\n{why}");
        }
    })?;
    // The answer is complete; only the exit code reports an address that is not allocated.
    if view.allocated { Ok(()) } else { Err(Failure::new(Exit::No, "not-allocated", "")) }
}

fn explain(out: &mut String, view: &AddressView) {
    let word = match (view.allocated, view.pool, view.block) {
        (true, ..) => "allocated",
        (false, Some(_), Some(_)) => "free",
        (false, Some(_), None) => "free: no host has claimed its block yet",
        (false, None, _) => "in no pool",
    };
    let _ = writeln!(out, "{}   {word}", view.address);
    let mut line = |name: &str, text: String| {
        let _ = writeln!(out, "  {name:<10} {text}");
    };
    if let Some(pool) = view.pool {
        line("pool", pool.to_string());
    }
    if let Some(block) = view.block {
        let owner = match (&view.owner, view.state) {
            (Some(owner), Some("confirmed")) => format!("of {owner}"),
            (Some(owner), Some(state)) => format!("of {owner} ({state})"),
            _ => "without owner".to_owned(),
        };
        line("block", format!("{block} {owner}   rev {}", view.revision.unwrap_or_default()));
    }
    if view.allocated {
        line("handle", view.handle.clone().unwrap_or_else(|| "none: release it with --ip".to_owned()));
    }
    for (name, value) in &view.attributes {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        line(name, text);
    }
    for holder in &view.endpoints {
        line("endpoint", format!("{} on {}", holder.name, holder.host));
    }
    for host in &view.tunnel_of {
        line("tunnel", format!("of {host}"));
    }
    if view.allocated && view.endpoints.is_empty() && view.tunnel_of.is_empty() {
        line("endpoint", "none: see tortie ipam check".to_owned());
    }
    for place in &view.here {
        line("here", place.clone());
    }
    if let Some(route) = &view.route {
        if let Some(row) = &route.kernel {
            let via = if row.via.is_empty() { String::new() } else { format!(" {}", row.via.join(" + ")) };
            line("route", format!("{} {}{via} ({}): {}", row.prefix, row.kind, row.state, row.reason));
        }
        line("kernel", route.kernel_lookup.clone());
    }
    for text in &view.blind {
        line("not seen", text.clone());
    }
}

pub(super) async fn block(context: &Context, cidr: Cidr) -> Result<(), Failure> {
    let (store, _) = open(context).await?;
    let space = Keyspace::of(store.dialect().await?);
    let mut prefixes = IpamState::prefixes(&space);
    prefixes.retain(|prefix| !prefix.starts_with(prefix::BGP));
    let snapshot = store.list(&prefixes).await?;
    let ipam_state = IpamState::of(&space, &snapshot);
    let Some(view) = words::block(&ipam_state, cidr, holders(&snapshot, &ipam_state, cidr)) else {
        let key = space.blocks(IpFamily::of_cidr(&cidr));
        return Err(Failure::new(
            Exit::No,
            "not-found",
            format!("there is no block {cidr} below {key}: `tortie ipam blocks` lists them"),
        ));
    };
    output::print(context.globals.output, &view, |out, wide| {
        let owner = view.owner.as_ref().map_or_else(|| "nobody".to_owned(), Clone::clone);
        let strict = if view.strict { ", strict" } else { "" };
        let _ = writeln!(
            out,
            "{}   of {owner} ({}{strict})   {} used, {} free   rev {}\n",
            view.block,
            view.state,
            view.allocations.len(),
            view.free,
            view.revision
        );
        let mut head = vec!["ADDRESS", "HANDLE", "NODE", "HELD BY"];
        head.extend(wide.then_some("ATTRIBUTES"));
        let rows = view.allocations.iter().map(|a| {
            let text = |name: &str| a.attributes.get(name).and_then(Value::as_str).unwrap_or("-").to_owned();
            let names = a.endpoints.iter().map(|holder| holder.name.clone());
            let held: Vec<String> =
                names.chain(a.tunnel_of.iter().map(|host| format!("tunnel of {host}"))).collect();
            let mut row = vec![
                a.address.to_string(),
                a.handle.clone().unwrap_or_else(|| "-".to_owned()),
                text("node"),
                if held.is_empty() { "-".to_owned() } else { held.join(", ") },
            ];
            row.extend(wide.then(|| Value::Object(a.attributes.clone()).to_string()));
            row
        });
        out.push_str(&table(&head, rows.collect()));
    })
}
