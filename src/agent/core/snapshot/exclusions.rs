//! Addresses that IPAM must not allocate on this host: those of hosts, and those of networks to which its
//! kernel is connected.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use tortie_net::Cidr;

use crate::agent::core::Core;
use crate::plugins::attach::excluded;
use tortie_engine::ipam::{ExcludedPrefix, Exclusions, HostNetwork};
use tortie_engine::model::Model;

/// If the store has not answered for this time, unknown hosts may have registered.
const STALE: Duration = Duration::from_secs(20);

/// Returns the excluded addresses and networks inside pools.
pub(in crate::agent::core) fn exclusions(core: &Core, now: Instant) -> Exclusions {
    let pools: Vec<Cidr> = core.model.pools().map(|pool| *pool.key).collect();
    let node = core.model.node();
    let connected = core.observed.connected.iter().flatten();
    let connected = connected
        .filter(|found| pools.iter().any(|pool| pool.overlaps(&found.network)))
        .filter(|found| !(found.is_of_docker() && is_allocated(&core.model, found.addr)))
        .map(|found| excluded(found, node));
    let hosts = HostNetwork::within(&core.model, &pools).into_iter().map(ExcludedPrefix::from);
    let (mut addresses, mut all): (Vec<_>, Vec<_>) =
        hosts.chain(connected).partition(|prefix: &ExcludedPrefix| prefix.cidr.is_host());
    // A network covers its addresses: a rack of hosts becomes one entry.
    all.sort_by_key(|network| (network.cidr.len(), network.cidr));
    let mut prefixes: Vec<ExcludedPrefix> = Vec::new();
    let is_covered = |by: &[ExcludedPrefix], cidr: &Cidr| by.iter().any(|network| network.cidr.covers(cidr));
    for network in all {
        if !is_covered(&prefixes, &network.cidr) {
            prefixes.push(network);
        }
    }
    addresses.retain(|address| !is_covered(&prefixes, &address.cidr));
    addresses.sort_by_key(|address| address.cidr);
    addresses.dedup_by_key(|address| address.cidr);
    prefixes.extend(addresses);
    let link = &core.link;
    let complete = core.loaded()
        && link.connected
        && !link.from_cache
        && link.unreachable_reason.is_none()
        && now.saturating_duration_since(link.fresh) <= STALE;
    Exclusions { prefixes, complete }
}

/// True if an own block allocated this address. A Docker bridge with such an address uses Tortie's addresses
/// in its network on purpose.
fn is_allocated(model: &Model, addr: IpAddr) -> bool {
    model.own_blocks().filter(|(block, _)| block.contains(addr)).any(|(cidr, _)| {
        let ordinal = cidr.ordinal(addr).and_then(|ordinal| u32::try_from(ordinal).ok());
        let block = model.block(cidr);
        block.zip(ordinal).is_some_and(|(block, ordinal)| block.value.allocation(ordinal).is_some())
    })
}
