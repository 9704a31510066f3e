//! Refuses to free what endpoints have.

use std::collections::BTreeSet;

use crate::cli::failure::{Exit, Failure};
use tortie_engine::ipam::{UsedAddress, UsedAddresses};
use tortie_store::Store;

/// Addresses that are named, at most.
const SHOWN: usize = 5;

/// Reads endpoints and blocks.
pub(in crate::cli) async fn read(store: &dyn Store) -> Result<UsedAddresses, Failure> {
    Ok(UsedAddresses::of(&store.list(&UsedAddresses::prefixes()).await?))
}

/// What of these keys, if they are deleted, frees addresses of endpoints that stay.
pub(in crate::cli) async fn freed_with<'a>(
    store: &dyn Store,
    keys: impl Iterator<Item = &'a str> + Clone,
) -> Result<Vec<UsedAddress>, Failure> {
    if !keys.clone().any(UsedAddresses::concerns) {
        return Ok(Vec::new());
    }
    let gone: BTreeSet<&str> = keys.collect();
    let mut snapshot = store.list(&UsedAddresses::prefixes()).await?;
    // An endpoint that goes with its address is no reason to keep it.
    snapshot
        .entries
        .retain(|entry| UsedAddresses::concerns(&entry.key) || !gone.contains(entry.key.as_str()));
    let used = UsedAddresses::of(&snapshot);
    let mut freed: Vec<UsedAddress> = gone.iter().flat_map(|key| used.of_key(key)).collect();
    freed.sort_by_key(|used| used.addr);
    freed.dedup();
    Ok(freed)
}

/// The refusal, where there is anything in use. `kept`: what was not done.
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
            "in use: {}{more}; {kept}. Remove the container, or the endpoint with `tortie store rm`; --force frees an address that \
             the next container may then get, too",
            list.join(", ")
        ),
    ))
}
