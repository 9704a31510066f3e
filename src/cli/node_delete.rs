//! `tortie node delete`: removes all keys of one host from the store, and reports them.
//!
//! Addresses and blocks are released first, while the endpoints that use them still exist. Then one
//! transaction deletes the host's keys; it fails if an agent has started meanwhile. An interrupted command is
//! completed by running it again.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::IpAddr;

use serde::Serialize;
use tortie_config::counted;
use tortie_config::key::{BgpItem, FelixItem, Key, prefix};
use tortie_net::Cidr;

use super::context::Context;
use super::failure::{Exit, Failure};
use super::ipam::failed;
use super::output;
use crate::api::machine::Machine;
use crate::api::nodes::NodeStatus;
use tortie_engine::ipam::Ipam;
use tortie_engine::model::endpoint_name::name_of_stored;
use tortie_store::{Compare, KeyValue, Op, Outcome, Snapshot, Txn};

/// Objects that the command removed.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Removed {
    node: String,
    /// Released addresses, in the host's own blocks and in blocks of others.
    addresses: Vec<IpAddr>,
    /// Deleted blocks of the host.
    blocks: Vec<Cidr>,
    /// Blocks of the host in which other hosts have addresses; they have no owner now.
    kept_blocks: Vec<Cidr>,
    endpoints: Vec<String>,
    /// Number of deleted keys of the host, including endpoints.
    keys: usize,
    /// Remaining keys of others that name an address of the host as a peer.
    still_named: Vec<String>,
}

/// Returns the keys that show that an agent runs.
fn alive_evidence(name: &str) -> [(&'static str, String); 2] {
    let felix = Key::Felix { host: name.to_owned(), item: FelixItem::Status };
    let own = Key::TortieStatus { host: name.to_owned() };
    [("an agent", own.to_string()), ("Felix", felix.to_string())]
}

pub(super) async fn run(context: &Context, name: &str, force: bool) -> Result<(), Failure> {
    let removed = remove(context, name, force).await?;
    output::print(context.globals.output, &removed, |out, _| print_report(out, &removed))
}

/// Removes the host from the store.
pub(super) async fn remove(context: &Context, name: &str, force: bool) -> Result<Removed, Failure> {
    let store = super::store::open(&context.globals, false).await?;
    let mut prefixes = prefix::all_of_host(name);
    let signs = alive_evidence(name);
    prefixes.extend(signs.iter().map(|(_, key)| key.clone()));
    prefixes.push(prefix::BGP.to_owned());
    let snapshot = store.list(&prefixes).await?;
    let of_host = |key: &str| {
        prefix::all_of_host(name).iter().any(|prefix| key.starts_with(prefix.as_str()))
            || signs.iter().any(|(_, sign)| sign == key)
    };
    let own = || snapshot.entries.iter().filter(|kv| of_host(&kv.key));
    let keys: Vec<&str> = own().map(|kv| &*kv.key).collect();
    let alive = signs.iter().find(|(_, sign)| keys.contains(&&**sign));
    if let (Some((who, sign)), false) = (alive, force) {
        return Err(is_alive(name, who, sign, &elsewhere(&snapshot)));
    }
    let ipam = Ipam::new(store.clone());
    let mut gone = ipam.remove_host(name).await.map_err(failed)?;
    let mut removed = Removed {
        node: name.to_owned(),
        endpoints: own().filter_map(endpoint).collect(),
        keys: keys.len(),
        still_named: peers_elsewhere(&snapshot, name),
        ..Removed::default()
    };
    let found = |gone: &tortie_engine::ipam::RemovedHost| {
        !(gone.released.is_empty() && gone.blocks.deleted.is_empty() && gone.blocks.kept.is_empty())
    };
    if keys.is_empty() && !found(&gone) {
        return Err(super::node::unknown(name));
    }
    let mut ops: Vec<Op> =
        prefix::all_of_host(name).into_iter().map(|prefix| Op::DeletePrefix { prefix }).collect();
    // Felix's status key is below one of the prefixes.
    ops.push(Op::Delete { key: Key::TortieStatus { host: name.to_owned() }.to_string() });
    let compare = if force {
        Vec::new()
    } else {
        signs.iter().map(|(_, sign)| Compare::Absent(sign.clone())).collect()
    };
    if store.commit(Txn { compare, ops }).await? == Outcome::Conflict {
        let (who, sign) = &signs[0];
        return Err(is_alive(name, who, sign, ""));
    }
    // A plugin call in progress may have allocated another address.
    let late = ipam.remove_host(name).await.map_err(failed)?;
    gone.released.extend(late.released);
    gone.blocks.deleted.extend(late.blocks.deleted);
    gone.blocks.kept.extend(late.blocks.kept);
    removed.addresses = sorted(gone.released);
    removed.blocks = sorted(gone.blocks.deleted);
    removed.kept_blocks = sorted(gone.blocks.kept);
    Ok(removed)
}

/// Describes the machine of this host's agent, if it is another machine than this one.
fn elsewhere(snapshot: &Snapshot) -> String {
    let machine = snapshot.entries.iter().find_map(|kv| NodeStatus::read(kv)?.machine);
    match (machine, Machine::by_machine_id()) {
        (Some(other), Some(own)) if other.id != own.id => {
            format!(" (on machine {other}, and this is machine {own})")
        }
        _ => String::new(),
    }
}

fn is_alive(name: &str, who: &str, sign: &str, elsewhere: &str) -> Failure {
    Failure::new(
        Exit::Refused,
        "agent-lives",
        format!(
            "{who} runs on {name}{elsewhere}, or did so in the last 90 seconds ({sign}): stop it first (systemctl stop tortie), or give \
             --force"
        ),
    )
}

fn sorted<T: Ord>(list: Vec<T>) -> Vec<T> {
    list.into_iter().collect::<BTreeSet<T>>().into_iter().collect()
}

/// Returns the name of the endpoint that a key contains.
fn endpoint(kv: &KeyValue) -> Option<String> {
    match Key::parse(&kv.key).ok()? {
        Key::Endpoint(endpoint) => Some(name_of_stored(&endpoint, &kv.value)),
        _ => None,
    }
}

/// Returns global peers and peers of other hosts at an address of this host.
fn peers_elsewhere(snapshot: &Snapshot, name: &str) -> Vec<String> {
    let mut addrs: Vec<IpAddr> = Vec::new();
    let mut peers: Vec<(IpAddr, String)> = Vec::new();
    for kv in &snapshot.entries {
        let Ok(key) = Key::parse(&kv.key) else { continue };
        let own = key.host() == Some(name);
        match key.canonical() {
            Key::Bgp(_, BgpItem::Address(_)) if own => {
                addrs.extend(
                    std::str::from_utf8(&kv.value).ok().and_then(|text| text.trim().parse::<IpAddr>().ok()),
                );
            }
            Key::Bgp(_, BgpItem::Peer { addr, .. }) if !own => peers.push((*addr, kv.key.clone())),
            _ => {}
        }
    }
    peers.into_iter().filter(|(addr, _)| addrs.contains(addr)).map(|(_, key)| key).collect()
}

pub(super) fn print_report(out: &mut String, removed: &Removed) {
    let _ = writeln!(out, "{} is removed: {} deleted", removed.node, counted(removed.keys, "key"));
    let list = |out: &mut String, what: &str, items: Vec<String>| {
        if items.is_empty() {
            return;
        }
        let _ = writeln!(out, "  {what:<10} {}", items.len());
        for item in items {
            let _ = writeln!(out, "    {item}");
        }
    };
    let texts = |items: &[Cidr]| items.iter().map(ToString::to_string).collect();
    list(out, "addresses", removed.addresses.iter().map(ToString::to_string).collect());
    list(out, "blocks", texts(&removed.blocks));
    list(out, "blocks in use by others, now without an owner", texts(&removed.kept_blocks));
    list(out, "endpoints", removed.endpoints.clone());
    list(out, "peers elsewhere still name it (tortie store rm)", removed.still_named.clone());
}
