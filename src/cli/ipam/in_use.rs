//! Prevents commands from releasing addresses that endpoints use.

use std::collections::BTreeSet;

use tortie_config::calico3::{Kind, Object, ObjectKey};
use tortie_net::Cidr;

use crate::cli::failure::{Exit, Failure};
use tortie_engine::ipam::{Keyspace, UsedAddress, UsedAddresses};
use tortie_store::{KeyValue, Store};

/// Maximum number of addresses in the message.
const SHOWN: usize = 5;

/// Reads endpoints and blocks.
pub(in crate::cli) async fn read(store: &dyn Store) -> Result<UsedAddresses, Failure> {
    let space = Keyspace::of(store.dialect().await?);
    Ok(UsedAddresses::of(&space, &store.list(&UsedAddresses::prefixes(&space)).await?))
}

/// Returns the addresses of remaining endpoints that the deletion of these keys would release.
pub(in crate::cli) async fn freed_with<'a>(
    store: &dyn Store,
    keys: impl Iterator<Item = &'a str> + Clone,
) -> Result<Vec<UsedAddress>, Failure> {
    if !keys.clone().any(concerns) {
        return Ok(Vec::new());
    }
    let gone: BTreeSet<&str> = keys.collect();
    let space = Keyspace::of(store.dialect().await?);
    let mut snapshot = store.list(&UsedAddresses::prefixes(&space)).await?;
    // An endpoint that is deleted together with its address does not keep it.
    snapshot.entries.retain(|entry| concerns(&entry.key) || !gone.contains(entry.key.as_str()));
    let used = UsedAddresses::of(&space, &snapshot);
    let mut freed: Vec<UsedAddress> = gone.iter().flat_map(|key| used.of_key(key)).collect();
    let pools = snapshot.entries.iter().filter(|entry| gone.contains(entry.key.as_str())).filter_map(prefix);
    freed.extend(pools.flat_map(|pool| used.in_blocks(&pool)));
    freed.sort_by_key(|used| used.addr);
    freed.dedup();
    Ok(freed)
}

/// Returns true if a key holds or affects address allocations.
fn concerns(key: &str) -> bool {
    UsedAddresses::concerns(key) || ObjectKey::parse(key).is_some_and(|key| key.kind == Kind::IPPool)
}

/// Returns the prefix of an IPPool.
fn prefix(entry: &KeyValue) -> Option<Cidr> {
    let key = ObjectKey::parse(&entry.key).filter(|key| key.kind == Kind::IPPool)?;
    let object = Object::parse(key, &entry.value, entry.create_revision, entry.mod_revision).ok()?;
    object.spec.get("cidr")?.as_str()?.parse().ok()
}

/// Returns an error if any address is in use. `kept` describes what was not done.
pub(in crate::cli) fn refuse(used: &[UsedAddress], kept: &str) -> Result<(), Failure> {
    if used.is_empty() {
        return Ok(());
    }
    let (shown, more) = used.split_at(used.len().min(SHOWN));
    let list: Vec<String> = shown.iter().map(|used| format!("{} of {}", used.addr, used.holder)).collect();
    let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
    Err(Failure::new(
        Exit::Refused,
        "in-use",
        format!(
            "in use: {}{more}; {kept}. Remove the container, or the endpoint with `tortie store rm`; with \
             --force another container may get an address that is still in use",
            list.join(", ")
        ),
    ))
}
