//! IPAM metrics: own blocks, requests, garbage collection and, on the host that reads it, the usage of all
//! pools.

use std::collections::BTreeMap;

use super::core::CoreScrape;
use crate::agent::metrics::exposition::{Page, n};
use tortie_engine::ipam::metrics;

#[expect(clippy::cast_precision_loss, reason = "numbers of addresses in use, far below 2^53")]
pub(super) fn write(page: &mut Page, core: &CoreScrape) {
    let pools = || core.pool_usage.iter().flatten().map(|(pool, of)| (pool.to_string(), of));
    let mut family = page.gauge(
        "tortie_ipam_pool_addresses",
        "Addresses of pools; exported by one host of the cluster (the first by name that is up)",
    );
    for (pool, of) in pools() {
        let used = of.used as f64;
        let free = (of.total - of.reserved - used).max(0.0);
        let states = [("total", of.total), ("used", used), ("reserved", of.reserved), ("free", free)];
        for (state, value) in states {
            family.put(&[("pool", &pool), ("state", state)], value);
        }
    }
    let mut family = page.gauge(
        "tortie_ipam_pool_unclaimed_blocks",
        "Blocks that no host owns and that can be claimed; exported by one host of the cluster",
    );
    for (pool, of) in pools() {
        family.put(&[("pool", &pool)], of.unclaimed.max(0.0));
    }
    let mut family = page.gauge(
        "tortie_ipam_blocks",
        "Blocks; self: of this host; other and none: reported by one host for all",
    );
    for (pool, sum) in &core.blocks {
        family.count(&[("pool", pool), ("owner", "self")], sum.blocks);
    }
    for (pool, of) in pools() {
        let own = core.blocks.get(&pool).map_or(0, |own| own.blocks);
        family.count(&[("pool", &pool), ("owner", "other")], of.owned.saturating_sub(own));
        family.count(&[("pool", &pool), ("owner", "none")], of.ownerless);
    }
    let mut family = page.gauge(
        "tortie_ipam_block_addresses",
        "Addresses of the blocks of this host; borrowed_in: used here in blocks of others, borrowed_out: used by others in own blocks",
    );
    for (pool, sum) in &core.blocks {
        let states = [
            ("used", sum.used),
            ("free", sum.free),
            ("borrowed_in", sum.borrowed_in),
            ("borrowed_out", sum.borrowed_out),
        ];
        for (state, count) in states {
            family.count(&[("pool", pool), ("state", state)], count);
        }
    }
    suspects(page, core);
    page.counter(
        "tortie_ipam_collected_addresses_total",
        "Leaked addresses that the garbage collection released",
    )
    .put(&[], n(core.gc.released));
    requests(page);
}

/// Writes suspected inconsistencies: leaked addresses of this host and, on the host that reads the pools, the
/// findings of `tortie ipam check` that need no evidence of hosts.
fn suspects(page: &mut Page, core: &CoreScrape) {
    let mut sums: BTreeMap<(String, &str), usize> = BTreeMap::new();
    for pool in core.blocks.keys() {
        sums.insert((pool.clone(), "leaked"), 0);
    }
    for (pool, count) in &core.leaked {
        *sums.entry((pool.clone(), "leaked")).or_default() += count;
    }
    for (pool, of) in core.pool_usage.iter().flatten() {
        for (kind, count) in &of.suspects {
            *sums.entry((pool.to_string(), kind)).or_default() += count;
        }
    }
    let mut family = page.gauge(
        "tortie_ipam_suspect_addresses",
        "Inconsistent addresses; leaked: of this host, found by its garbage collection (IpamLeakGracePeriodSecs), all others reported by one host for all",
    );
    for ((pool, kind), count) in sums {
        family.count(&[("pool", &pool), ("kind", kind)], count);
    }
}

fn requests(page: &mut Page) {
    let meter = metrics::metrics();
    let requests = meter.requests.read();
    let mut family = page.counter(
        "tortie_ipam_requests_total",
        "Requests for addresses and blocks by the agent, the Docker drivers and CNI plugins of this host",
    );
    for op in metrics::OPS {
        for result in metrics::RESULTS {
            let count = requests.get(&(op, result)).map_or(0, tortie_metrics::Histogram::count);
            family.put(&[("op", op), ("result", result)], n(count));
        }
    }
    let mut family = page.histogram("tortie_ipam_assign_seconds", "Duration of requests for addresses");
    for ((op, result), times) in &requests {
        if *op == "assign" {
            family.observed(&[("result", result)], times);
        }
    }
    let mut family = page.counter(
        "tortie_ipam_cas_conflicts_total",
        "IPAM transactions that failed, by the object that another writer had changed",
    );
    let conflicts = meter.conflicts.read();
    for object in metrics::OBJECTS {
        family
            .put(&[("object", object)], n(conflicts.get(object).map_or(0, tortie_metrics::Histogram::count)));
    }
}
