//! Address usage of this host's blocks for `status`, and addresses that two endpoints claim.

use std::collections::BTreeMap;
use std::net::IpAddr;

use tortie_config::key::EndpointKey;
use tortie_config::resource::WorkloadEndpoint;
use tortie_net::Cidr;

use crate::agent::core::Core;
use crate::api::status::PoolStatus;

/// Returns the pools with this host's usage of each. Iterates over every address of the own blocks.
pub(in crate::agent::core) fn pools(core: &Core) -> Vec<PoolStatus> {
    let mut pools: Vec<(Cidr, PoolStatus)> = core
        .model
        .pools()
        .map(|pool| (*pool.key, PoolStatus { pool: pool.key.to_string(), ..PoolStatus::default() }))
        .collect();
    let mut orphans = PoolStatus::default();
    for (cidr, _) in core.model.own_blocks() {
        let Some(block) = core.model.block(cidr) else { continue };
        let pool = of(&mut pools, &cidr).unwrap_or(&mut orphans);
        pool.blocks += 1;
        pool.addresses += block.value.size() as u64;
        pool.free += block.value.free().len() as u64;
        for (_, attribute) in block.value.allocated() {
            pool.used += 1;
            let other = attribute.get("node").is_some_and(|node| node != core.model.node());
            pool.borrowed += u64::from(other);
        }
    }
    for addr in &core.observed.gc.leak_candidates {
        of(&mut pools, &Cidr::host(*addr)).unwrap_or(&mut orphans).suspect += 1;
    }
    let rest = (orphans.blocks > 0 || orphans.suspect > 0)
        .then(|| PoolStatus { pool: "no pool".to_owned(), ..orphans });
    pools.into_iter().map(|(_, pool)| pool).chain(rest).collect()
}

/// Returns addresses that several workload endpoints of this host claim, with those endpoints.
pub(in crate::agent::core) fn duplicate_addresses(core: &Core) -> Vec<(IpAddr, Vec<String>)> {
    let mut holders: BTreeMap<IpAddr, Vec<&EndpointKey>> = BTreeMap::new();
    for workload in core.model.workloads(core.model.node()) {
        for addr in addresses(workload.value) {
            holders.entry(addr).or_default().push(workload.key);
        }
    }
    holders.retain(|_, keys| keys.len() > 1);
    let name = |key: &EndpointKey| core.model.name_of_endpoint(key);
    holders.into_iter().map(|(addr, keys)| (addr, keys.into_iter().map(name).collect())).collect()
}

/// Returns the longest pool that contains the block.
fn of<'a>(pools: &'a mut [(Cidr, PoolStatus)], cidr: &Cidr) -> Option<&'a mut PoolStatus> {
    let fits = pools.iter_mut().filter(|(pool, _)| pool.covers(cidr));
    fits.max_by_key(|(pool, _)| pool.len()).map(|(_, status)| status)
}

/// Returns the single addresses of a workload; a network is shared by many on purpose.
fn addresses(workload: &WorkloadEndpoint) -> impl Iterator<Item = IpAddr> {
    let nets = workload.ipv4_nets.iter().chain(&workload.ipv6_nets);
    nets.filter(|net| net.is_host()).map(Cidr::addr)
}
