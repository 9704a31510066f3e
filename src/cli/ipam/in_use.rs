//! Prevents commands from releasing addresses that endpoints use.

use std::collections::BTreeSet;

use crate::cli::failure::{Exit, Failure};
use tortie_engine::ipam::{UsedAddress, UsedAddresses};
use tortie_store::Store;

/// Maximum number of addresses in the message.
const SHOWN: usize = 5;

/// Reads endpoints and blocks.
pub(in crate::cli) async fn read(store: &dyn Store) -> Result<UsedAddresses, Failure> {
    Ok(UsedAddresses::of(&store.list(&UsedAddresses::prefixes()).await?))
}

/// Returns the addresses of remaining endpoints that the deletion of these keys would release.
pub(in crate::cli) async fn freed_with<'a>(
    store: &dyn Store,
    keys: impl Iterator<Item = &'a str> + Clone,
) -> Result<Vec<UsedAddress>, Failure> {
    if !keys.clone().any(UsedAddresses::concerns) {
        return Ok(Vec::new());
    }
    let gone: BTreeSet<&str> = keys.collect();
    let mut snapshot = store.list(&UsedAddresses::prefixes()).await?;
    // An endpoint that is deleted together with its address does not keep it.
    snapshot
        .entries
        .retain(|entry| UsedAddresses::concerns(&entry.key) || !gone.contains(entry.key.as_str()));
    let used = UsedAddresses::of(&snapshot);
    let mut freed: Vec<UsedAddress> = gone.iter().flat_map(|key| used.of_key(key)).collect();
    freed.sort_by_key(|used| used.addr);
    freed.dedup();
    Ok(freed)
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
