//! Removal of a host from a store of the v1 model.
//!
//! Addresses and blocks are released first, while the endpoints that use them still exist. Then one
//! transaction deletes the host's keys; it fails if an agent has started meanwhile.

use std::net::IpAddr;
use std::sync::Arc;

use tortie_config::key::{BgpItem, FelixItem, Key, prefix};

use super::{Removed, elsewhere, is_alive, sorted, unknown};
use crate::cli::failure::Failure;
use crate::cli::ipam::failed;
use tortie_engine::ipam::Ipam;
use tortie_engine::model::endpoint_name::name_of_stored;
use tortie_store::{Compare, KeyValue, Op, Outcome, Snapshot, Store, Txn};

/// Returns the keys that show that an agent runs.
fn alive_evidence(name: &str) -> [(&'static str, String); 2] {
    let felix = Key::Felix { region: None, host: name.to_owned(), item: FelixItem::Status };
    let own = Key::TortieStatus { host: name.to_owned() };
    [("an agent", own.to_string()), ("Felix", felix.to_string())]
}

/// Removes the host from the store.
pub(super) async fn remove(store: Arc<dyn Store>, name: &str, force: bool) -> Result<Removed, Failure> {
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
        return Err(unknown(name));
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
